//! A partition's replicated state, as pure logic: (state, event) -> effects. No I/O, no clocks, no tasks.
//!
//! An entry takes effect in memtables, filters, duplicate table and freezes **when it is appended** ([`ingest`]), tagged with
//! its seqs and invisible; a truncation undoes exactly that. Manifest changes (flush flags, compactions, tables) take effect
//! when they are **committed** ([`commit`]). The leader forms groups against the newest appended state ([`evaluate`]).
//! Publication is the worker's business.
//!
//! Invariant: two replicas that ingested the same entries hold the same memtables, seqs, generations and sessions.

pub mod columns;
pub mod commit;
pub mod cuts;
pub mod effects;
pub mod evaluate;
pub mod ingest;
pub mod rules;
pub mod sessions;
pub mod snapshot;
pub mod table;
mod undo;
pub mod verdicts;
pub mod view;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use sextant_common::configuration::FORMAT_NEWEST;
use sextant_common::error::{Error, ErrorKind, Result};
use sextant_common::expiry::Tick;
use sextant_common::ids::{Generation, LoadId, LogPosition, ManifestVersion, PartitionId, TableId};
use sextant_common::manifest::{Manifest, Versions};
use sextant_common::snapshot::{DroppedTables, HeldCuts};

use crate::command::{Command, Configuration, Configure};
use crate::memtable::Bookmark;
use crate::publication::Position;
use sessions::DuplicateTable;
use table::{Frozen, TableState};
use undo::Undo;
use verdicts::Verdicts;
use view::{ReadView, TableView};

/// State as of a log position, from which replay can start once everything before it is durable elsewhere.
pub type Checkpoint = sextant_common::snapshot::Checkpoint<DuplicateTable>;

#[derive(Debug)]
pub struct Partition {
    pub id: PartitionId,
    /// The newest format of a configuration that is taken in.
    pub format_max: u32,
    /// Position of the newest ingested entry.
    last: LogPosition,
    /// Index of the entry that comes next. (Raft's first entry has index 0; it is the membership and writes nothing.)
    next_index: u64,
    next_seq: u64,
    time_ms: u64,
    /// The newest appended one.
    tick: Tick,
    sessions: DuplicateTable,
    tables: BTreeMap<TableId, TableState>,
    membership: Bytes,
    /// How to undo each entry that is not yet committed, oldest first.
    undo: VecDeque<Undo>,
    /// Manifest commands that are not yet committed, oldest first.
    uncommitted: VecDeque<(LogPosition, Command)>,
    /// Which of the entries had an effect.
    verdicts: Verdicts,
    committed_index: u64,
    checkpoints: VecDeque<Checkpoint>,
    manifest: Arc<Manifest>,
    /// As of the newest commit: the same manifest, and what led to it.
    versions: Versions,
    /// When the first record of the SSTables may expire, of this version after this tick.
    ssts_expire: Mutex<Option<(ManifestVersion, Tick, Option<Tick>)>>,
    next_table: u32,
    /// The newest loads that are in the manifest, oldest first.
    loads: VecDeque<LoadId>,
    /// Tables that an appended entry has dropped: what comes after it writes nothing to them.
    ended: BTreeSet<TableId>,
    /// As of the newest commit.
    dropped: Arc<DroppedTables>,
    /// The configuration in effect, and the index of its entry.
    configuration: Option<(Configuration, u64)>,
    cuts: HeldCuts,
    /// Bytes of log ingested since the process started: a measure of distance.
    log_bytes: u64,
    /// Where the keys of the group that this leader proposes were found, by ordinal.
    expected: Vec<Option<Bookmark>>,
    pub counters: Counters,
}

/// What was done, for metrics and tests.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counters {
    /// Writes that went into a memtable.
    pub writes: u64,
    /// Writes that replay skipped because their table's flush flag covers them.
    pub skipped: u64,
    pub ignored_entries: u64,
    pub truncated_entries: u64,
    pub truncated_groups: u64,
    pub truncated_freezes: u64,
}

impl Partition {
    pub fn new(id: PartitionId) -> Self {
        let manifest = Arc::new(Manifest::empty(id));
        Self {
            id,
            format_max: FORMAT_NEWEST,
            last: LogPosition::default(),
            next_index: 0,
            next_seq: 1,
            time_ms: 0,
            tick: Tick::default(),
            sessions: DuplicateTable::default(),
            tables: BTreeMap::new(),
            membership: Bytes::new(),
            undo: VecDeque::new(),
            uncommitted: VecDeque::new(),
            verdicts: Verdicts::default(),
            committed_index: 0,
            checkpoints: VecDeque::new(),
            versions: manifest.clone().into(),
            manifest,
            ssts_expire: Mutex::default(),
            next_table: 1,
            loads: VecDeque::new(),
            ended: BTreeSet::new(),
            dropped: Arc::default(),
            configuration: None,
            cuts: HeldCuts::default(),
            log_bytes: 0,
            expected: Vec::new(),
            counters: Counters::default(),
        }
    }

    pub fn last(&self) -> LogPosition {
        self.last
    }

    pub fn next_index(&self) -> u64 {
        self.next_index
    }

    pub fn committed_index(&self) -> u64 {
        self.committed_index
    }

    pub fn verdicts(&self) -> &Verdicts {
        &self.verdicts
    }

    /// The seq of the newest appended write.
    pub fn last_seq(&self) -> u64 {
        self.next_seq - 1
    }

    pub fn time_ms(&self) -> u64 {
        self.time_ms
    }

    /// What the log has come to.
    pub fn position(&self) -> Position {
        Position { seq: self.last_seq(), tick: self.tick }
    }

    /// The newest appended tick.
    pub fn tick(&self) -> Tick {
        self.tick
    }

    /// The earliest time after the newest appended tick at which a record may expire; None: none can.
    pub fn next_expiry(&self) -> Option<Tick> {
        let memtables = self.tables.values().flat_map(|table| {
            let frozen = table.frozen.iter().map(|frozen| &frozen.memtable);
            frozen.chain([&table.active])
        });
        let memtables = memtables.filter_map(|memtable| memtable.next_expiry(self.tick)).min();
        [memtables, self.next_expiry_of_ssts()].into_iter().flatten().min()
    }

    /// Asked for at every turn, and seldom another: found once a version and tick.
    fn next_expiry_of_ssts(&self) -> Option<Tick> {
        let (version, tick) = (self.manifest.version, self.tick);
        let mut found = self.ssts_expire.lock();
        if let Some((of, after, next)) = *found
            && (of, after) == (version, tick)
        {
            return next;
        }
        let next = self.manifest.all_ssts().filter_map(|sst| sst.expiring.next_after(tick)).min();
        *found = Some((version, tick, next));
        next
    }

    pub fn manifest(&self) -> &Arc<Manifest> {
        &self.manifest
    }

    /// The same, with what led to it.
    pub fn versions(&self) -> &Versions {
        debug_assert_eq!(self.versions.newest.version, self.manifest.version, "each change is recorded");
        &self.versions
    }

    pub fn tables(&self) -> impl Iterator<Item = (TableId, &TableState)> {
        self.tables.iter().map(|(id, t)| (*id, t))
    }

    pub fn table(&self, id: TableId) -> Option<&TableState> {
        self.tables.get(&id)
    }

    /// The configuration in effect and the index of its entry; None: no leader has written one yet.
    pub fn configuration(&self) -> Option<(&Configuration, u64)> {
        self.configuration.as_ref().map(|(configuration, at)| (configuration, *at))
    }

    /// A log, or a snapshot, of a newer format has things to come that this server cannot read.
    pub fn check_format(&self, configuration: &Configuration) -> Result<()> {
        readable(self.id, configuration.format, self.format_max)
    }

    /// The configuration in effect, and those in the log that may take effect.
    pub fn configurations(&self) -> impl Iterator<Item = &Configuration> {
        let revision = self.configuration.as_ref().map_or(0, |(c, _)| c.revision);
        let coming = self.uncommitted.iter().filter_map(move |(_, command)| match command {
            Command::Configure(Configure { configuration, .. }) if configuration.revision > revision => {
                Some(configuration)
            }
            _ => None,
        });
        self.configuration.iter().map(|(c, _)| c).chain(coming)
    }

    /// Oldest first.
    pub fn checkpoints(&self) -> impl DoubleEndedIterator<Item = &Checkpoint> {
        self.checkpoints.iter()
    }

    /// The id of the table that is created next.
    pub fn next_table(&self) -> u32 {
        self.next_table
    }

    /// Whether a load is in the manifest, as far as it is remembered.
    pub fn has_loaded(&self, id: LoadId) -> bool {
        self.loads.contains(&id)
    }

    /// Whether the log has a load, or a change of a table, that is not in the manifest: p-nodes cannot have searched what it brings, so
    /// no base counts.
    pub fn is_adopting(&self) -> bool {
        self.uncommitted
            .iter()
            .any(|(_, command)| matches!(command, Command::Load(_) | Command::ChangeTable(_)))
    }

    pub fn dropped(&self) -> &Arc<DroppedTables> {
        &self.dropped
    }

    /// Whether the log has come to the end of a table: nothing may name it any more.
    pub fn has_ended(&self, table: TableId) -> bool {
        self.ended.contains(&table)
    }

    pub fn sessions(&self) -> &DuplicateTable {
        &self.sessions
    }

    pub fn log_bytes(&self) -> u64 {
        self.log_bytes
    }

    /// Memory of what is not yet flushed, in bytes.
    pub fn unflushed_bytes(&self) -> usize {
        self.tables.values().map(TableState::unflushed_bytes).sum()
    }

    fn table_mut(&mut self, id: TableId) -> &mut TableState {
        self.tables.entry(id).or_insert_with(|| TableState::new(Generation(1)))
    }

    /// Of a table that an entry writes to. A replay may meet one that was made and dropped since: of that nothing is kept.
    fn written_table(&mut self, at: LogPosition, id: TableId) -> &mut TableState {
        let is_gone = at.index <= self.cuts.applied && self.dropped.has(id);
        let new = if is_gone { TableState::gone } else { TableState::new };
        self.tables.entry(id).or_insert_with(|| new(Generation(1)))
    }

    /// What readers are to see.
    pub fn view(&self) -> ReadView {
        let tables: HashMap<TableId, TableView> = self
            .manifest
            .tables
            .iter()
            .filter_map(|t| {
                let state = self.tables.get(&t.table)?;
                let frozen = state.frozen.iter().rev().map(|f| f.memtable.clone());
                let view = TableView {
                    memtables: [state.active.clone()].into_iter().chain(frozen).collect(),
                    grace: state.grace.iter().rev().map(|g| (g.flushed_at, g.memtable.clone())).collect(),
                    dropped_version: state.dropped_version,
                };
                Some((t.table, view))
            })
            .collect();
        ReadView { versions: self.versions().clone(), tables, cuts: self.cuts.cuts.as_slice().into() }
    }

    /// Drops flushed memtables whose grace is over: those that are older than `before_ns`, and the oldest beyond
    /// `bytes_max` in all. Whether any was dropped.
    pub fn end_grace(&mut self, before_ns: u64, bytes_max: usize) -> bool {
        let mut bytes: usize = self.tables.values().flat_map(|t| &t.grace).map(|g| g.memtable.bytes()).sum();
        let mut dropped = false;
        for table in self.tables.values_mut() {
            while let Some(oldest) = table.grace.front()
                && (oldest.since_ns <= before_ns || bytes > bytes_max)
            {
                bytes -= oldest.memtable.bytes();
                table.dropped_version = table.dropped_version.max(oldest.flushed_at);
                table.grace.pop_front();
                dropped = true;
            }
        }
        dropped
    }

    /// The whole filters of every memtable that is not yet flushed: (table, generation, bytes).
    pub fn filters(&self) -> Vec<(TableId, Generation, Vec<u8>)> {
        let mut out = Vec::new();
        for (id, table) in &self.tables {
            for frozen in &table.frozen {
                out.push((*id, frozen.memtable.generation, frozen.filter.to_bytes()));
            }
            out.push((*id, table.generation(), table.filter.to_bytes()));
        }
        out
    }

    /// Tells where the keys of the group were found that this leader is about to propose: when it comes back from the log, it is
    /// written there. (If something else comes instead, keys are sought again, and nothing else is different.)
    pub fn expect(&mut self, bookmarks: Vec<Option<Bookmark>>) {
        self.expected = bookmarks;
    }

    /// Adds a bit to the filter of a table's active memtable: the leader does so before it proposes the group.
    pub fn add_bit(&mut self, table: TableId, hash: u64) {
        self.table_mut(table).filter.insert(hash);
    }

    /// The tables whose oldest frozen memtable may be flushed now.
    pub fn flushable(&self, published_index: u64) -> impl Iterator<Item = (TableId, &Frozen)> {
        let oldest = self.tables.iter().filter_map(|(id, t)| Some((*id, t.frozen.front()?)));
        oldest.filter(move |(_, frozen)| rules::may_flush(frozen.freeze.index, published_index))
    }

    /// Readers below this version of a table are stale for conditions: a flush of it was applied since.
    fn last_flush_version(&self, table: TableId) -> ManifestVersion {
        self.manifest.table(table).map_or(ManifestVersion(0), |t| t.last_flush_version)
    }
}

/// Whether a server that reads formats up to `most` can go on with a partition of this one.
pub fn readable(partition: PartitionId, format: u32, most: u32) -> Result<()> {
    if format <= most {
        return Ok(());
    }
    let text = format!(
        "partition {partition} has format {format}, this server reads up to {most}: start the newer version again (its data are as \
         they were)"
    );
    Err(Error::new(ErrorKind::Outdated, text))
}

#[cfg(test)]
pub mod testing;
#[cfg(test)]
mod tests;
