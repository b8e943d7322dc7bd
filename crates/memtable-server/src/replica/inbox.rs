//! What a partition's worker can be told.
//!
//! Owns the events; does not own what they do (the worker's), nor the line in which writes wait ([`super::admission`]).

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use sextant_common::cut::WantedCut;
use sextant_common::error::Result;
use sextant_common::expiry::Tick;
use sextant_common::ids::{Epoch, Generation, LoadId, Serial, TableId};
use sextant_common::manifest::{Manifest, OptionsChange, SstMeta, TableOptions, Versions};
use sextant_common::snapshot::DroppedTables;
use sextant_raft_log::{Entry, LogId, Member};
use tokio::sync::{mpsc, oneshot};

use crate::command::Placement;
use crate::command::configuration::ConfigurationChange;
use crate::flush::Inputs;
use crate::partition::ingest::Body;
use crate::partition::snapshot::Snapshot;
use crate::partition::verdicts::Verdicts;

use super::loading::{Adopted, LoadJob, Written};

/// What a worker is told.
pub enum Event {
    Appended(Vec<Entry>),
    Truncated(Option<LogId>),
    Committed(u64),
    Install {
        snapshot: Box<Snapshot>,
        done: oneshot::Sender<Result<()>>,
    },
    /// Acknowledgements arrived that publication may wait for.
    Acknowledged,
    Filters(oneshot::Sender<Option<FilterSet>>),
    Freeze {
        table: Option<TableId>,
        done: oneshot::Sender<Result<Vec<(TableId, Generation)>>>,
    },
    EnsureTable {
        name: String,
        options: TableOptions,
        id: Option<TableId>,
        done: oneshot::Sender<Result<()>>,
    },
    OpenSession {
        session: u64,
        done: oneshot::Sender<Result<()>>,
    },
    Flushed {
        term: u64,
        table: TableId,
        generation: Generation,
        result: Result<Option<SstMeta>>,
    },
    /// Tables are to be elsewhere.
    Place {
        placement: Placement,
        done: oneshot::Sender<Result<()>>,
    },
    /// What a load of this table would be of, if it began now.
    BeginLoad {
        table: String,
        id: LoadId,
        done: oneshot::Sender<Result<LoadJob>>,
    },
    HasLoaded {
        id: LoadId,
        done: oneshot::Sender<Result<bool>>,
    },
    /// Whether it is worth while to flush a table so that a load of it may be seen.
    MayAdopt {
        done: oneshot::Sender<Result<()>>,
    },
    /// Written SSTables are to be seen.
    Adopt {
        load: Written,
        done: oneshot::Sender<Adopted>,
    },
    /// A table is to be dropped, or to have other options.
    ChangeTable {
        table: TableId,
        wanted: TableWish,
        done: oneshot::Sender<Adopted>,
    },
    Configure {
        change: ConfigurationChange,
        done: oneshot::Sender<Result<()>>,
    },
    /// The format is to be this one at least, if these (with the incarnations that the membership names) are all the members, and
    /// this node leads the term still in which they were asked.
    RaiseFormat {
        term: u64,
        members: BTreeMap<u64, u64>,
        to: u32,
        done: oneshot::Sender<Result<()>>,
    },
    /// A cut is to begin; told when its entry is published. Idempotent.
    OpenCut {
        wanted: WantedCut,
        done: oneshot::Sender<Result<()>>,
    },
    /// It is read on. Told the term in which it is held on.
    RenewCut {
        id: u64,
        done: oneshot::Sender<Result<u64>>,
    },
    EndCut {
        id: u64,
        done: oneshot::Sender<Result<()>>,
    },
    /// What this replica knows of its log.
    LookAtLog {
        done: oneshot::Sender<Result<KnownLog>>,
    },
    Compact {
        table: TableId,
        done: Option<oneshot::Sender<Result<()>>>,
    },
    Compacted {
        term: u64,
        table: TableId,
        inputs: Inputs,
        result: Result<Vec<SstMeta>>,
    },
    /// Who could lead after this node, best first, and the term that it leads. Dropped if it does not lead.
    Successors(oneshot::Sender<(u64, Vec<u64>)>),
    /// Leadership is to go to another node. Told the term that ended here.
    HandOver {
        to: u64,
        done: oneshot::Sender<Result<u64>>,
    },
    /// The voters are to be exactly these.
    ChangeVoters {
        voters: BTreeMap<u64, Member>,
        done: oneshot::Sender<Result<()>>,
    },
    /// Raft's answer to a step of a change of the voters.
    VotersAnswered {
        term: u64,
        result: Result<()>,
    },
    Stop(oneshot::Sender<()>),
}

/// A replica's log, as far as it can tell what its entries did.
pub struct KnownLog {
    pub lineage: u64,
    pub committed: u64,
    pub verdicts: Verdicts,
    /// Every table that committed entries write is in it, or was dropped.
    pub manifest: Arc<Manifest>,
    pub dropped: Arc<DroppedTables>,
    /// By the leader's clock, nothing up to then comes after what is committed; 0: not known.
    pub complete_until_ms: u64,
    /// By the clock here.
    pub now_ms: u64,
}

/// What is to become of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TableWish {
    Gone,
    Altered(OptionsChange),
}

/// Whole filters, as of one serial.
pub struct FilterSet {
    pub epoch: Epoch,
    pub serial: Serial,
    pub manifest: Versions,
    pub filters: Vec<(TableId, Generation, Vec<u8>)>,
    pub registration_slots: usize,
    /// The newest tick that is out in the ring, or that was in the log before.
    pub tick: Tick,
}

impl FilterSet {
    /// Only the manifest of an epoch.
    pub fn without_filters(epoch: Epoch, manifest: Versions) -> Self {
        Self {
            epoch,
            serial: Serial(0),
            manifest,
            filters: Vec::new(),
            registration_slots: 0,
            tick: Tick::default(),
        }
    }
}

/// Feeds a partition's worker from its log.
pub struct LogFeed(pub mpsc::UnboundedSender<Event>);

impl sextant_raft_log::LogObserver for LogFeed {
    fn appended(&self, entries: Vec<Entry>) {
        let _ = self.0.send(Event::Appended(entries));
    }

    fn truncated(&self, after: Option<LogId>) {
        let _ = self.0.send(Event::Truncated(after));
    }
}

/// An entry's body as the partition takes it.
pub fn body_of(entry: &Entry) -> Body {
    match &entry.payload {
        openraft::EntryPayload::Blank => Body::Blank,
        openraft::EntryPayload::Normal(payload) => Body::Payload(payload.0.clone()),
        openraft::EntryPayload::Membership(m) => {
            let stored = sextant_raft_log::StoredMembership::new(Some(entry.log_id), m.clone());
            Body::Membership(Bytes::from(sextant_raft_log::encode_membership(&stored).to_vec()))
        }
    }
}
