//! One partition's view of the log: openraft's log storage and reader, and what a memtable server needs beside them.
//!
//! Owns the index of the partition's entries, the newest of them in memory, and its vote, committed and purged positions.
//! Does not own the order of records ([`crate::queue`]) nor files.
//!
//! Invariant: whoever changes a partition's state queues the records for it under the partition's lock, so the records of a
//! partition are queued in the order in which its state changed.

mod handle;
pub(crate) mod index;
mod read;
pub(crate) mod recent;
pub(crate) mod state;
mod storage;

pub use handle::PartitionLog;
