//! What a snapshot of a partition carries, as plain data. What goes into it, and what is made of it, is in
//! memtable-server `partition/snapshot.rs`; its bytes are made in proto `convert/snapshot.rs`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use bytes::Bytes;

use crate::configuration::Configuration;
use crate::cut::Cut;
use crate::expiry::Tick;
use crate::ids::{Generation, LoadId, LogPosition, TableId};
use crate::manifest::{Manifest, TableInfo};
use crate::operation::RecordedOutcome;

/// What is remembered of a session's requests, so that a retry takes effect once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionMemory {
    pub last_used_ms: u64,
    /// Answers below this number are no longer kept.
    pub floor: u64,
    /// By the requests' numbers: an outcome for each operation.
    pub answers: BTreeMap<u64, Arc<[RecordedOutcome]>>,
    /// What the answers weigh: about as many operations ([`RecordedOutcome::weight`]).
    pub ops: usize,
}

impl SessionMemory {
    pub fn new(last_used_ms: u64, floor: u64, answers: BTreeMap<u64, Arc<[RecordedOutcome]>>) -> Self {
        let ops = answers.values().map(|outcomes| weight(outcomes)).sum();
        Self { last_used_ms, floor, answers, ops }
    }
}

/// Of an answer; see [`SessionMemory::ops`].
pub fn weight(answer: &[RecordedOutcome]) -> usize {
    answer.iter().map(RecordedOutcome::weight).sum()
}

/// State as of a log position, from which replay can start once everything before it is durable elsewhere. `S`:
/// sessions, as a list when they were read, as a duplicate table where they are used.
#[derive(Clone, Debug)]
pub struct Checkpoint<S> {
    pub at: LogPosition,
    pub next_seq: u64,
    pub time_ms: u64,
    /// The partition's time, by which records expire: the newest tick up to `at`.
    pub tick: Tick,
    pub generations: BTreeMap<TableId, Generation>,
    pub sessions: S,
    /// raft_log's encoding of the membership in force at `at`.
    pub membership: Bytes,
}

/// A partition's snapshot: a checkpoint, and the newest of what is not replayed.
#[derive(Clone, Debug)]
pub struct Snapshot<S> {
    pub checkpoint: Checkpoint<S>,
    pub manifest: Manifest,
    pub next_table: u32,
    /// The newest, and the index of its entry.
    pub configuration: Option<(Configuration, u64)>,
    pub cuts: HeldCuts,
    /// The newest that were adopted, oldest first.
    pub loads: Vec<LoadId>,
    pub dropped: DroppedTables,
}

/// Tables that a partition has no more, or never had and never will.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DroppedTables {
    /// All of them. None comes back.
    pub ids: BTreeSet<TableId>,
    /// What the newest of those that were there were called, oldest first: for who reads the log before their end.
    pub newest: VecDeque<TableInfo>,
}

/// So many are described.
const DESCRIBED_MAX: usize = 1024;

impl DroppedTables {
    /// `table` None: it was never there.
    pub fn add(&mut self, id: TableId, table: Option<TableInfo>) {
        self.ids.insert(id);
        self.newest.extend(table);
        while self.newest.len() > DESCRIBED_MAX {
            self.newest.pop_front();
        }
    }

    pub fn has(&self, id: TableId) -> bool {
        self.ids.contains(&id)
    }

    pub fn described(&self, id: TableId) -> Option<&TableInfo> {
        self.newest.iter().find(|table| table.id == id)
    }
}

/// The cuts of a partition, and up to which index of the log its entries have made them: those are not applied again by a replay,
/// nor are those that make, change or drop tables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeldCuts {
    pub applied: u64,
    pub cuts: Vec<Arc<Cut>>,
}

impl<S> Snapshot<S> {
    /// The same with the sessions in another shape.
    pub fn map_sessions<T>(self, map: impl FnOnce(S) -> T) -> Snapshot<T> {
        let Self { checkpoint, manifest, next_table, configuration, cuts, loads, dropped } = self;
        let Checkpoint { at, next_seq, time_ms, tick, generations, sessions, membership } = checkpoint;
        let sessions = map(sessions);
        let checkpoint = Checkpoint { at, next_seq, time_ms, tick, generations, sessions, membership };
        Snapshot { checkpoint, manifest, next_table, configuration, cuts, loads, dropped }
    }
}
