//! The memtable tier: Raft-replicated partitions.
//!
//! A memtable server hosts a replica of every partition: its log ([`sextant_raft_log`]), its memtables and their filters,
//! its leases and its manifest. Writes enter at the leader's worker ([`worker`]), become groups ([`command`]), take effect in
//! the partition's pure state ([`partition`]) when they are appended, and become visible when Raft has committed them and no
//! lease forbids it ([`publication`]). Frozen memtables leave for the sstable servers ([`flush`]).
//!
//! Does not own: the log's bytes, the SSTables' bytes, the routing of clients.
//!
//! The modules from the top down; none imports from one above it, nor does any file within them:
//!
//! * `server`: wiring: what is on the disk, Raft, workers and services are put together
//! * `service`: gRPC shells: decode, ask, encode
//! * [`worker`]: a partition's one writer: follows the log, and leads
//! * `balance`: leaderships are spread
//! * `clocks`: how far the others' are away
//! * `drain`: before the server stops, it hands over what it leads
//! * `maintenance`: what an operator asks of the partitions that a server leads
//! * `founding`: how a partition's group begins, and how a server that was in it gets back
//! * `recover`: whether a group may be founded, and what its tables make if all memory is lost
//! * `raft`: openraft's side: network, elections, snapshots, and what a member takes from the others (`raft::acceptor`)
//! * [`flush`]: memtables leave for the sstable servers, whose tables are watched
//! * `reading`: from which state a leader answers, and when it may
//! * `replica`: a partition as the server's tasks see it, and the ways to reach its worker
//! * [`leadership`]: the leader's own lease, the vote guard, members without their memory
//! * `incarnation`: which life of this server its memory is of
//! * [`partition`]: the replicated state, as pure logic
//! * [`lease`]: what the leader promises to holders, and what publication waits for
//! * [`publication`]: the order in which entries become visible
//! * [`command`]: what the log says
//! * `upstream`: the sstable servers, as they are talked to: messages to them end here
//! * [`memtable`]: the newest versions, by key and in order of keys
//! * `metrics`, `config`: numbers, settings

mod balance;
mod clocks;
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
mod upstream;
mod worker;

pub use config::{MemtableServerConfig, Rejoin, Tuning};
pub use metrics::Metrics;
pub use server::MemtableServer;
