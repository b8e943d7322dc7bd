//! From the bytes on the devices to the state of all partitions.
//!
//! Steps: each device is scanned for valid batches ([`scan`], in parallel); the batches of all devices are put into the order of
//! their lsns and cut at the first gap ([`merge`]); the records are replayed ([`replay`]); what was found is made durable
//! on every device; only then a new run begins.
//!
//! Invariant: what is presented as recovered is a prefix of the server's records by lsn, it contains everything that was
//! ever acknowledged (or opening fails), and what lies beyond the cut can never come back.

pub(crate) mod merge;
pub(crate) mod replay;
pub(crate) mod scan;

pub use scan::holds_records;

/// What was found when the log was opened.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RecoveryReport {
    /// Entries that are in the log, of all partitions.
    pub entries: u64,
    /// Of their records.
    pub bytes: u64,
    /// Segments that were read.
    pub segments: u64,
    /// Bytes of batches that were cut off: they were never acknowledged.
    pub torn_bytes: u64,
    pub seconds: f64,
}
