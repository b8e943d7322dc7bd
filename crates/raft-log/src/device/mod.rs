//! One log device: its segments, and the worker that writes them.
//!
//! Owns the files of one directory while the log is open. One worker on a thread of its own writes a batch, fsyncs it, then
//! takes the next: whatever was queued meanwhile. Files are zero-filled before they are used and used again when their
//! records are no longer needed (overwriting costs half of growing).
//!
//! Does not own the order of records ([`crate::queue`]), nor recovery ([`crate::recovery`]).
//!
//! Invariant: at most one write is not yet durable, so a batch's `durable_before` is where it starts; the first write to a
//! segment happens after everything in the one before it is durable.

pub(crate) mod spares;
pub(crate) mod worker;
pub(crate) mod writer;
