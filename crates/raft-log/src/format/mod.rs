//! The bytes on a log device: `docs/formats/raft_log.md` is the same in prose.
//!
//! ```text
//! directory   LOCK  IDENTITY  segment-000001.log  segment-000002.log ..
//! segment     header (4096 bytes) | batch | batch | ..           each batch starts on a 64-byte boundary
//! batch       header (64 bytes) | body                           body: records, or one checkpoint
//! record      header (32 bytes) | payload
//! ```
//!
//! All numbers are little-endian, all checksums crc32c that start from the device's salt, so that no stored value can pass
//! for a batch.
//!
//! Owns layouts and their checks. Does not own files, nor what the records mean.

pub(crate) mod batch;
pub(crate) mod checkpoint;
mod fields;
pub(crate) mod identity;
pub(crate) mod record;
pub(crate) mod segment;

/// Generations, lsns and indices are counted on from what is found: none that a log reaches is larger.
pub(crate) const NUMBER_MAX: u64 = u64::MAX / 2;

/// Version of everything in this folder. A directory of another version is refused.
pub(crate) const FORMAT_VERSION: u32 = 1;
