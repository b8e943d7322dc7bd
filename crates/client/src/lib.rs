//! The async Rust client of Sextant: services `Kv` and `Admin` of any number of p-nodes.
//!
//! Owns: connections, which p-node is asked (`endpoints`), deadlines, retries and backoff (`retry`), sessions and
//! request numbers (`sessions`). Does not own: routing and caching (that is the p-node; an application that wants a
//! p-node inside itself embeds `sextant-pnode`).
//!
//! Invariants:
//! * Every wait has a deadline. A read ends within it with an answer or an error.
//! * A write is sent again only if it was certainly not executed, or under the same session and request number, so it takes
//!   effect at most once. If its fate is still not known when the deadline passes, the error is `OutcomeUnknown`, and never
//!   anything that sounds like "not executed".

mod admin;
mod administration;
mod client;
mod endpoints;
mod failure;
pub mod http;
mod options;
mod read;
mod retry;
mod scan;
mod sessions;
mod users;
mod wire;
mod write;

pub use admin::Maintenance;
pub use client::Client;
pub use options::{ClientOptions, Credentials};
pub use scan::{ScanOptions, ScanPage, ScanRecord, ScanStream};

pub use sextant_common::configuration::{ConfigurationChange, LeaseMode};
pub use sextant_common::expiry::Tick;
pub use sextant_common::manifest::TableInfo;
pub use sextant_common::operation::{
    Condition, Effect, Expected, Lifetime, LifetimeTest, Misfit, OpOutcome, Operation, ReadMode, Record,
    Returns, Told, Update, WriteOutcome,
};
pub use sextant_common::recovery::{RecoveredPartition, RecoveryOutcome};
