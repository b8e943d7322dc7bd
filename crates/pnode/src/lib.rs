//! The p-node: Sextant's query node, as a library ([`PNode`]) and as a server ([`PNodeServer`]).
//!
//! Owns: routing, copies of the memtables' filters under leases, the record cache, retries and failover. Does not own
//! anything that must survive: it starts empty and pulls.
//!
//! What each part may know of (no arrow runs back up):
//!
//! * `api`, `config`, `lease`, `metrics`: nothing;
//! * `view`: `lease`;
//! * `record_cache`: `view`, `metrics`;
//! * `upstream`: `view`, `metrics`, `api`. Messages to servers end here (those of leases in `filter_copies::wire`);
//! * `core`: `upstream`, `view`, `lease`, `metrics`, `config`;
//! * `filter_copies`: `core` and below;
//! * `tables`: `filter_copies` and below;
//! * `snapshots`: `core` and below;
//! * `router`: `tables`, `snapshots`, `record_cache` and below;
//! * `write`: `router` and below;
//! * `pnode`: all of these, and owns them;
//! * `frontend`: `pnode` and below;
//! * `grpc_listeners`: `frontend`, `pnode`, `config`;
//! * `server`: `grpc_listeners` and below.

mod api;
mod config;
mod core;
#[cfg(test)]
mod end_to_end;
mod filter_copies;
mod frontend;
#[doc(hidden)]
pub mod fuzzing;
mod grpc_listeners;
mod lease;
#[doc(hidden)]
pub mod measuring;
mod metrics;
mod pnode;
mod record_cache;
mod router;
mod server;
mod snapshots;
mod tables;
#[cfg(test)]
mod testing;
mod upstream;
mod view;
mod write;

/// The pure rules of this crate, for the exhaustive model of the protocol.
pub mod rules {
    pub use crate::record_cache::{Carry, carry_stamp};
    pub use crate::router::plan::{Answer, Facts, Found, Plan, Progress, Step, route};
    pub use crate::view::{Registration, is_usable};
}

pub use api::{ReadOptions, ScanPage, ScanRange, ScanStream, WriteOptions};
pub use config::{ADMIN_PORT_OFFSET, LibraryConfig, PNodeConfig, RegisterReads};
pub use metrics::{CacheEvent, KeptEvent, MessageKind, PNodeMetrics, ReadPath, WrongTurn};
pub use pnode::PNode;
pub use server::PNodeServer;

pub use sextant_common::ids::MANY_PARTITIONS;
pub use sextant_common::key::prefix_end;
pub use sextant_common::operation::{
    Condition, Effect, Lane, Misfit, OpOutcome, Operation, ReadMode, Record, RequestId, Returns, Told,
    Update, WriteOutcome,
};
