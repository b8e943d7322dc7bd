//! Point reads and scans: which tier to ask, in which order, and when the answer is final.
//!
//! Owns: `plan` (the pure routing rules), `consult` (a view and a clock turned into a plan), `sst_search` (which replica to
//! ask for which tables), `execute` (a read from consult to answer), `scan`, `merge` and `range`. Does not own connections
//! nor how filters get here.
//!
//! Invariants: a tombstone of a memtable is final, one of an SSTable only if the memtables were asked or cannot hold the key;
//! a memtable read names the version of the SSTables that this very read searched or will search; whatever goes stale
//! starts the read again with a consult of its own.

mod consult;
mod execute;
mod merge;
pub(crate) mod plan;
mod range;
mod scan;
mod sst_search;

pub(crate) use consult::{answer_at_once, candidates};
pub(crate) use execute::Read;
pub(crate) use scan::SCANS_BYTES_MAX;
pub(crate) use sst_search::{SearchFailed, SstFound};
