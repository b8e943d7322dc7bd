//! The log as an archive keeps it: what committed entries did, not what they say.
//!
//! Pure data. Which entries had an effect is the replicas' to say (memtable-server `partition/verdicts.rs`); what is kept of them, and
//! what follows what, is backup's.

use crate::ids::{LogPosition, TableId};
use crate::manifest::TableOptions;
use crate::sstable::RecordVersion;

/// A group that took effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogGroup {
    pub index: u64,
    /// In milliseconds since 1970, by the clock of the leader that formed it; never falls within a log.
    pub time_ms: u64,
    pub writes: Vec<LogWrites>,
}

/// What a group wrote into a table, by rising seqs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogWrites {
    pub table: TableId,
    pub records: Vec<RecordVersion>,
}

/// A table that groups write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogTable {
    pub id: TableId,
    pub name: String,
    pub options: TableOptions,
}

/// Entries of one term, one after the other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogPage {
    /// Of the partition.
    pub lineage: u64,
    /// The entries after this one ..
    pub after: LogPosition,
    /// .. up to this one. The same: none.
    pub to: LogPosition,
    pub groups: Vec<LogGroup>,
    /// That the groups write.
    pub tables: Vec<LogTable>,
    /// The last entry is a bulk load, whose records are in no log, or the end of a table.
    pub ends_by_load: bool,
    /// The leader has nothing up to this time beyond `to`, by its clock; 0: not known.
    pub complete_until_ms: u64,
    /// When it was read, by the clock of the server that read it; 0: not known.
    pub now_ms: u64,
}

/// What there is after a position of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogAnswer {
    Page(LogPage),
    /// It is not there any more, or never was in this log; what comes after `first` is.
    Gone {
        lineage: u64,
        first: LogPosition,
    },
}

impl LogPage {
    pub fn is_empty(&self) -> bool {
        self.after == self.to
    }
}

impl LogGroup {
    pub fn records(&self) -> impl Iterator<Item = (TableId, &RecordVersion)> {
        self.writes.iter().flat_map(|writes| writes.records.iter().map(|record| (writes.table, record)))
    }
}
