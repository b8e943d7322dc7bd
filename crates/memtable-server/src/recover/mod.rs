//! All memory of a partition is lost, but not its SSTables.
//!
//! Owns two decisions. [`gate`]: a group is founded only if no sstable server holds tables, for a new group would say that their
//! records do not exist. [`plan`]: what manifest the tables make, if an operator has the partition rebuilt ([`Rebuilding`]). Does not own the
//! founding itself: a rebuilt partition begins with a snapshot on the server that founds, and goes on from there like any other.
//!
//! Invariant: nothing here deletes a table, and a partition that any memtable server remembers is not touched.

mod gate;
mod plan;
mod run;
mod snapshot;

pub use gate::{Gate, Memories, Verdict};
pub use run::Rebuilding;
