//! The p-node: Sextant's query node, as a library ([`PNode`]) and as a server ([`PNodeServer`]).
//!
//! Owns: routing, copies of the memtables' filters under leases, the record cache, retries and failover. Does not own
//! anything that must survive: it starts empty and pulls.

mod api;
mod config;
#[cfg(test)]
mod end_to_end;
mod engine;
mod filter_copies;
mod frontend;
#[doc(hidden)]
pub mod fuzzing;
mod lease;
mod metrics;
mod record_cache;
mod router;
mod server;
#[cfg(test)]
mod testing;
mod upstream;
mod view;
mod write;

/// The pure rules of this crate, for the exhaustive model of the protocol.
pub mod rules {
    pub use crate::record_cache::{Carry, carry_stamp};
    pub use crate::router::plan::{Answer, Facts, Found, Plan, Progress, Step, route};
}

pub use api::{
    BatchOp, MANY_PARTITIONS, OpCondition, OpKind, OpOutcome, ReadMode, ReadOptions, Record, RequestId,
    ScanPage, ScanRange, ScanStream, WriteOptions, WriteOutcome, prefix_end,
};
pub use config::{ADMIN_PORT_OFFSET, EngineConfig, PNodeConfig};
pub use engine::PNode;
pub use metrics::{CacheEvent, MessageKind, PNodeMetrics, ReadPath, WrongTurn};
pub use server::PNodeServer;
