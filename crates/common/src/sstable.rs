//! SSTables as servers speak of them: what is in them, and what leaders and sstable servers say to each other about
//! them.

use bytes::Bytes;

use crate::expiry::Tick;
use crate::ids::{Seq, SstId, TableId};
use crate::manifest::{Origin, SstMeta, TableOptions};
use crate::marks::Marks;

/// A version of a record, or a tombstone: what memtables and SSTables have, and merge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordVersion {
    pub key: Bytes,
    pub seq: Seq,
    /// None: a tombstone.
    pub value: Option<Bytes>,
    /// Of a tombstone: none.
    pub marks: Marks,
}

/// What a readable SSTable says of itself: what a lost manifest is rebuilt from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contents {
    pub meta: SstMeta,
    pub options: TableOptions,
    /// None: written by an older version.
    pub origin: Option<Origin>,
}

/// An SSTable that an sstable server has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holding {
    pub id: SstId,
    /// A part of it fails its checks.
    pub damaged: bool,
    /// None: it cannot be read at all.
    pub contents: Option<Contents>,
}

/// A compaction that a leader asks of an sstable server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompactionOrder {
    /// Newest first. Only records of the origin's range are taken.
    pub inputs: Vec<SstId>,
    /// Those that the server is not known to have: it copies them first, when it is the compaction's turn.
    pub gather: Vec<CopyOrder>,
    /// Ids for as many outputs as there may be, in the order of their ranges.
    pub outputs: Vec<SstId>,
    /// The outputs are cut at these keys of the range, rising, unless there is nothing between two of them.
    pub cuts: Vec<Bytes>,
    /// And when one has about so many bytes; 0: not by size.
    pub output_bytes: u64,
    pub table: TableId,
    pub options: TableOptions,
    /// No older table outside the inputs can hold a key of theirs.
    pub drop_tombstones: bool,
    /// What expires up to this time counts as a tombstone: a tick that was published.
    pub expired_by: Tick,
    /// Of all outputs together; each has its part of the range. With it, a compaction that would leave nothing keeps one
    /// tombstone: the proof that its inputs are superseded. None: from an older server.
    pub origin: Option<Origin>,
}

/// How new an order of a partition's leader to an sstable server is: by its term, then by its place among those that it gave.
/// Terms are counted by lineage: a partition that is founded anew begins with the first again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OrderNumber {
    /// 0: from a server that does not say.
    pub lineage: u64,
    pub term: u64,
    pub number: u64,
}

/// A table that an sstable server is to copy from others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyOrder {
    pub id: SstId,
    /// What the file must be.
    pub checksum: u64,
    pub file_bytes: u64,
    /// Addresses of those that may have it.
    pub sources: Vec<String>,
    /// None: from an older server.
    pub order: Option<OrderNumber>,
}

/// A table that an sstable server is to write from a stream of records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IngestOrder {
    pub id: SstId,
    pub table: TableId,
    pub options: TableOptions,
    /// None: from an older server; the table is written in format version 1.
    pub origin: Option<Origin>,
}
