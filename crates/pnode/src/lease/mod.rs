//! Leases, from the side of their holder. Granting them is the memtable server's business.

mod holder;

pub use holder::{Drift, Grant, Lease, PullTimes};
