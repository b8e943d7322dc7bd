//! Keeping copies of the memtables' filters current by pulling bf-logs (precise data access, section 3.4).
//!
//! Owns: what a reply to a pull does to a view (`copy`, pure but for the bits), the pull loops (`puller`), the search for
//! leaders (`prober`), whole filters (`whole`), filters of SSTables (`sst_filters`), and [`Copies`], which
//! starts all this and gets a manifest out of turn. Does not own the lease arithmetic nor routing.
//!
//! Flow: pull states (N, v) in use -> reply: bf-log runs, manifest, lease -> bits into the filters -> one new view with the
//! new N, v and lease -> next pull, which acknowledges them.
//!
//! Invariants: bits before the view that claims them; the view before the pull that acknowledges it; a new epoch or a gap in
//! the serials only by whole filters.

mod copies;
mod copy;
pub(crate) mod fuzzing;
mod prober;
mod puller;
mod sst_filters;
mod updates;
mod whole;
mod wire;

pub(crate) use copies::Copies;
