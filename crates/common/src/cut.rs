//! Cuts: what a partition's tables were at one position of its log, held for whoever reads it. Part of the replicated state.
//!
//! Pure data. When a table is captured, and what a cut keeps from being deleted, is in memtable-server `partition/cuts.rs`.

use std::time::Duration;

use crate::error::{Error, Result};
use crate::expiry::Tick;
use crate::ids::{Generation, LogPosition, NodeId, Seq, SstId, TableId};
use crate::manifest::{SstList, SstMeta, TableOptions};

/// Most cuts of a partition: each names as much as its manifest.
pub const CUTS_MAX: usize = 16;
/// So many of them are for administrators only: whoever may read does not keep backups away.
pub const CUTS_KEPT: usize = 4;
/// A cut ends if nothing that it waits for was flushed for so long.
pub const STUCK_MAX: Duration = Duration::from_secs(300);
/// How long a cut is held without a renewal.
pub const LEASE_DEFAULT: Duration = Duration::from_secs(60);
pub const LEASE_MIN: Duration = Duration::from_secs(1);
pub const LEASE_MAX: Duration = Duration::from_secs(600);

/// How long a cut is to be held without a renewal; 0: the default.
pub fn check_lease(lease_ms: u64) -> Result<Duration> {
    let lease = if lease_ms == 0 { LEASE_DEFAULT } else { Duration::from_millis(lease_ms) };
    if (LEASE_MIN..=LEASE_MAX).contains(&lease) {
        Ok(lease)
    } else {
        Err(Error::invalid(format!(
            "a snapshot is held for {LEASE_MIN:?} to {LEASE_MAX:?} without a renewal"
        )))
    }
}

/// A cut that somebody wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WantedCut {
    pub id: u64,
    pub lease_ms: u64,
    /// For an administrator.
    pub privileged: bool,
}

impl WantedCut {
    /// Beside how many others it is held at most.
    pub fn room(&self) -> usize {
        if self.privileged { CUTS_MAX } else { CUTS_MAX - CUTS_KEPT }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Drawn by who asked for it.
    pub id: u64,
    /// Index of its entry in the log.
    pub at: u64,
    /// The newest write that it has.
    pub seq: Seq,
    /// What has expired by then is absent.
    pub tick: Tick,
    /// By the wall clock of the leader that began it.
    pub opened_ms: u64,
    pub lease_ms: u64,
    pub tables: Vec<CutTable>,
    /// Of its entry; 0: not known, as the lineage is not.
    pub term: u64,
    /// Of the partition.
    pub lineage: u64,
}

/// A table of a cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CutTable {
    pub table: TableId,
    pub name: String,
    pub options: TableOptions,
    /// The newest memtable that it has.
    pub generation: Generation,
    /// As in a manifest; None: not all of them are there yet.
    pub ssts: Option<SstList>,
}

impl Cut {
    /// Of its entry in the log; None: not known, so nobody can tell what came after it.
    pub fn position(&self) -> Option<LogPosition> {
        (self.term > 0 && self.lineage > 0).then_some(LogPosition { term: self.term, index: self.at })
    }

    /// Whether all that it has is in SSTables.
    pub fn is_complete(&self) -> bool {
        self.tables.iter().all(|table| table.ssts.is_some())
    }

    pub fn ssts(&self) -> impl Iterator<Item = &SstMeta> {
        self.tables.iter().flat_map(|table| table.ssts.iter().flatten())
    }

    pub fn names(&self, id: SstId) -> bool {
        self.ssts().any(|sst| sst.id == id)
    }

    /// Whether it counts on a server's copy.
    pub fn names_at(&self, id: SstId, server: NodeId) -> bool {
        self.ssts().any(|sst| sst.id == id && sst.replicas.contains(&server))
    }
}
