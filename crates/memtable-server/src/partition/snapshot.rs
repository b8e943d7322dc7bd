//! A partition's snapshot: the newest manifest, and, **as of the global persistence point**, seqs, generations, sessions and
//! membership (taken "as of now" they would make replayed groups mismatch and vanish). No memtable is ever dumped.
//!
//! The global persistence point is the newest checkpoint (a freeze) before which everything of every table is durable as
//! SSTables (PASV's global epoch); each table's own flush flag lets replay skip what it covers (partial recovery).

use std::sync::Arc;

use sextant_common::error::Result;
use sextant_common::ids::{Generation, LogPosition, PartitionId};
use sextant_common::snapshot::HeldCuts;
use sextant_proto::convert;

use super::sessions::DuplicateTable;
use super::table::TableState;
use super::verdicts::Verdicts;
use super::{Checkpoint, Partition};
use crate::command::ConfigurationRules;

/// A decoded snapshot.
pub type Snapshot = sextant_common::snapshot::Snapshot<DuplicateTable>;

/// As it travels and is stored.
pub fn encode(snapshot: &Snapshot, partition: PartitionId) -> Vec<u8> {
    convert::snapshot::encode(snapshot, snapshot.checkpoint.sessions.iter(), partition)
}

pub fn decode(bytes: &[u8], partition: PartitionId) -> Result<Snapshot> {
    let snapshot = convert::snapshot::decode(bytes, partition)?;
    if let Some((configuration, _)) = &snapshot.configuration {
        configuration.check()?;
    }
    Ok(snapshot.map_sessions(|sessions| sessions.into_iter().collect()))
}

impl Partition {
    /// The newest checkpoint from which replay can start.
    fn persistence_point(&self) -> Option<&Checkpoint> {
        let first =
            self.tables.values().filter_map(TableState::first_unflushed_index).min().unwrap_or(u64::MAX);
        self.checkpoints.iter().rev().find(|c| c.at.index < first && c.at.index <= self.committed_index)
    }

    /// The snapshot to be taken now; forgets checkpoints that are older than it. None: nothing was flushed yet.
    pub fn snapshot(&mut self) -> Option<Snapshot> {
        let checkpoint = self.persistence_point()?.clone();
        self.checkpoints.retain(|c| c.at.index >= checkpoint.at.index);
        Some(Snapshot {
            checkpoint,
            manifest: (*self.manifest).clone(),
            next_table: self.next_table,
            configuration: self.configuration.clone(),
            cuts: HeldCuts { applied: self.cuts.applied.max(self.committed_index), ..self.cuts.clone() },
            loads: self.loads.iter().copied().collect(),
            dropped: (*self.dropped).clone(),
        })
    }

    /// A partition that starts from a snapshot: memtables empty, to be filled from the log after it.
    pub fn restore(id: PartitionId, snapshot: &Snapshot) -> Self {
        let Snapshot { checkpoint, manifest, next_table, configuration, cuts, loads, dropped } = snapshot;
        let mut partition = Partition::new(id);
        partition.last = checkpoint.at;
        partition.verdicts = Verdicts::since(checkpoint.at);
        partition.next_index = checkpoint.at.index + 1;
        partition.committed_index = checkpoint.at.index;
        partition.next_seq = checkpoint.next_seq;
        partition.time_ms = checkpoint.time_ms;
        partition.tick = checkpoint.tick;
        partition.sessions = checkpoint.sessions.clone();
        partition.membership = checkpoint.membership.clone();
        partition.checkpoints.push_back(checkpoint.clone());
        partition.next_table = *next_table;
        partition.configuration = configuration.clone();
        partition.cuts = cuts.clone();
        partition.loads = loads.iter().copied().collect();
        partition.dropped = Arc::new(dropped.clone());
        // The log before its end still names a table that was dropped after the checkpoint: of that nothing is kept.
        for (table, generation) in &checkpoint.generations {
            partition.tables.insert(*table, TableState::gone(*generation));
        }
        for table in &manifest.tables {
            let generation = checkpoint.generations.get(&table.table).copied().unwrap_or(Generation(1));
            let mut state = TableState::new(generation);
            state.flushed_generation = table.flushed_generation;
            state.dropped_version = table.last_flush_version;
            partition.tables.insert(table.table, state);
        }
        partition.manifest = Arc::new(manifest.clone());
        partition.versions = partition.manifest.clone().into();
        partition
    }

    /// Log position up to which nothing is needed from the log any more.
    pub fn persisted(&self) -> LogPosition {
        self.persistence_point().map_or(LogPosition::default(), |c| c.at)
    }
}
