//! Leases, from the side of their holder. Granting them is the memtable server's business.

mod holder;
mod watch;

pub use holder::{Drift, Grant, Lease, PullTimes};
pub use watch::{ClockWatch, Contradiction};
