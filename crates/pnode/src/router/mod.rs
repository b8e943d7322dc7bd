//! Point reads and scans: which tier to ask, in which order, and when the answer is final.
//!
//! Owns: `plan` (the pure routing rules), `consult` (a view and a clock turned into a plan), `sst_search` (which replica to
//! ask for which tables), `point_reads` (a read from consult to answer), `registrar` (whose answers are to be kept), `scan`, `merge` and `range`; [`Reader`] is the
//! face of all of them. Does not own connections
//! nor how filters get here.
//!
//! Invariants: a tombstone of a memtable is final, one of an SSTable only if the memtables were asked or cannot hold the key;
//! a memtable read names the version of the SSTables that this very read searched or will search; whatever goes stale
//! starts the read again with a consult of its own. A read consults once for each start: what the look at its key found out is
//! carried on, and nothing that it rests on is asked again.

mod consult;
mod merge;
pub(crate) mod plan;
mod point_reads;
mod range;
mod reader;
mod registrar;
mod scan;
mod sst_search;

pub(crate) use consult::candidates;
pub(crate) use range::pinned_partition;
pub(crate) use reader::{Look, Missed, Reader};
pub(crate) use sst_search::{SearchFailed, SstFound, SstSearch};
