//! One partition's view of the log: openraft's log storage and reader, and what a memtable server needs beside them.
//!
//! Owns the handle, and what each call does to the partition's state ([`crate::state`]). Does not own the order of records
//! ([`crate::queue`]) nor files.
//!
//! Invariant: whoever changes a partition's state queues the records for it under the partition's lock, so the records of a
//! partition are queued in the order in which its state changed.

mod handle;
mod read;
mod storage;

pub use handle::PartitionLog;
