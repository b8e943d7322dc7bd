//! The rarer commands of a partition's Raft log, as plain data. (Groups of writes, and what all of them do, are in
//! memtable-server `command/`; their bytes are made in proto `convert/command.rs`.)
//!
//! Each carries the term of the leader that made it.

use crate::configuration::Configuration;
use crate::expiry;
use crate::ids::{Generation, LoadId, LogPosition, ManifestVersion, NodeId, SstId, TableId};
use crate::key_range::KeyRange;
use crate::manifest::{SstMeta, TableOptions};

/// Ends a memtable (the paper's compaction log entry).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Freeze {
    pub term: u64,
    pub table: TableId,
    /// The generation that ends.
    pub generation: Generation,
}

/// The flush flag: a frozen memtable is durable as an SSTable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flush {
    pub term: u64,
    pub table: TableId,
    pub generation: Generation,
    /// Position of the freeze.
    pub freeze: LogPosition,
    /// None: the memtable was empty.
    pub sst: Option<SstMeta>,
}

/// SSTables of one range, neighbours in age there, have become others, which share the range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compaction {
    pub term: u64,
    pub table: TableId,
    /// Newest first.
    pub inputs: Vec<SstId>,
    /// Of each input: an entry of the manifest is named by id and range.
    pub range: KeyRange,
    /// By rising range; none: nothing was left.
    pub outputs: Vec<SstMeta>,
    /// So no older SSTable of the range may be left out.
    pub tombstones_dropped: bool,
}

/// A partition adopts what was loaded into SSTables: they come on top of what the table has. One entry ends an empty memtable and is its
/// flush flag, so that everything before it is below them, and everything after it above.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Load {
    pub term: u64,
    pub table: TableId,
    pub id: LoadId,
    /// Of the memtable that ends. It is empty, and all before it are flushed.
    pub generation: Generation,
    /// What the next write would get: so nothing was written that the leader does not know of.
    pub next_seq: u64,
    /// Of all records that were loaded. The next write gets a later one.
    pub seq: u64,
    /// The generation up to which the table is flushed with it.
    pub flushed: Generation,
    /// Newest first for every key.
    pub ssts: Vec<SstMeta>,
}

/// A change of the sstable servers that are to hold tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    pub term: u64,
    /// The manifest that it changes: on any other one it does nothing. (So a replay changes nothing either.)
    pub version: ManifestVersion,
    pub relocations: Vec<Relocation>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Relocation {
    pub id: SstId,
    /// Has it already.
    pub add: Option<NodeId>,
    pub remove: Option<NodeId>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnsureTable {
    pub term: u64,
    pub name: String,
    pub options: TableOptions,
    /// None: the next id (partition 0 only).
    pub id: Option<TableId>,
}

/// A table is changed in a partition, or dropped from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangeTable {
    pub term: u64,
    pub table: TableId,
    /// What the next write would get: so nothing was written that the leader does not know of.
    pub next_seq: u64,
    /// Of the active memtable: nothing was frozen that the leader does not know of.
    pub generation: Generation,
    pub alteration: Alteration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Alteration {
    /// It is gone, with everything that it has. Nothing is written to it after this entry.
    Drop,
    /// It has these options. Its memtable is empty, and all before are flushed.
    Options(TableOptions),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenSession {
    pub term: u64,
    pub session: u64,
    pub time_ms: u64,
}

/// The partition's time goes on: takes effect when it is appended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tick {
    pub term: u64,
    pub at: expiry::Tick,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Configure {
    pub term: u64,
    pub configuration: Configuration,
}

/// A cut begins: takes effect when it is appended, as the freeze of all tables that it says so of, and when it is committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenCut {
    pub term: u64,
    pub id: u64,
    /// What the log before it has come to: on any other one it does nothing.
    pub next_seq: u64,
    pub tick: expiry::Tick,
    /// See [`Cut`](crate::cut::Cut).
    pub opened_ms: u64,
    pub lease_ms: u64,
    pub tables: Vec<CutPoint>,
}

/// Up to where a cut has a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CutPoint {
    pub table: TableId,
    pub generation: Generation,
    /// It ends here. (Otherwise it has ended already, and the next one is empty.)
    pub freezes: bool,
}

/// A cut is held no more: takes effect when it is committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndCut {
    pub term: u64,
    pub id: u64,
}
