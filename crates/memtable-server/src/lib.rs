//! The memtable tier: Raft-replicated partitions.
//!
//! A memtable server hosts a replica of every partition: its log ([`sextant_raft_log`]), its memtables and their filters,
//! its leases and its manifest. Writes enter at the leader's worker ([`worker`]), become groups ([`command`]), take effect in
//! the partition's pure state ([`partition`]) when they are appended, and become visible when Raft has committed them and no
//! lease forbids it ([`lease`]). Frozen memtables leave for the sstable servers ([`flush`]).
//!
//! Does not own: the log's bytes, the SSTables' bytes, the routing of clients.

pub mod command;
mod config;
mod drain;
mod flush;
mod founding;
#[doc(hidden)]
pub mod fuzzing;
mod incarnation;
pub mod leadership;
pub mod lease;
mod maintenance;
pub mod memtable;
mod metrics;
pub mod partition;
pub mod publication;
mod raft;
mod reading;
mod recover;
mod replica;
mod server;
mod service;
mod worker;

pub use config::{MemtableServerConfig, Rejoin, Tuning};
pub use metrics::Metrics;
pub use server::MemtableServer;
