//! The one log of a memtable server: openraft's log storage for many partitions (Raft groups), over one or more log devices.
//!
//! Owns the order of all records of the server, their durability, their bytes on disk (`docs/formats/raft_log.md`) and their
//! recovery. Does not know what is in an entry, and decides nothing about Raft.
//!
//! ```text
//! PartitionLog::append ──▶ queue (lsn) ──▶ worker of a device: batch, write, fdatasync ──▶ completer ──▶ IOFlushed
//!        │ index, newest entries, observer          │ places into the index
//! ```
//!
//! Invariant: a callback is completed with `Ok`, in log order, only after its entries and every record before them are durable
//! on all devices; and what was completed so is there after any crash, or the log refuses to open.

mod config;
mod device;
mod entry_codec;
mod format;
#[doc(hidden)]
pub mod fuzzing;
mod log;
mod metrics;
mod observer;
mod open;
mod partition;
mod queue;
mod recovery;
mod shared;
#[cfg(feature = "simulation")]
mod simulation;
mod state;
mod types;

#[cfg(test)]
mod tests;

pub use config::RaftLogConfig;
pub use entry_codec::{decode_entry, decode_membership, encode_entry, encode_membership};
pub use log::{RaftLog, Reservation};
pub use metrics::LogStats;
pub use observer::LogObserver;
pub use partition::PartitionLog;
pub use recovery::{RecoveryReport, holds_records};
#[cfg(feature = "simulation")]
pub use simulation::seed_openraft;
pub use types::{
    Entry, IoFlushed, LogId, LogState, Member, Membership, Payload, StoredMembership, TypeConfig, Vote,
    log_id, log_id_at, position_of,
};
