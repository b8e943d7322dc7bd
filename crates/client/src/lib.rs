//! The async Rust client of Sextant: services `Kv` and `Admin` of any number of p-nodes.
//!
//! ```no_run
//! use sextant_client::{Client, Effect, Expected, ScanOptions};
//!
//! #[tokio::main]
//! async fn main() -> sextant_client::Result<()> {
//!     let client = Client::connect("127.0.0.1:7401,127.0.0.1:7400").await?;
//!     client.put("", "a", "1").await?;
//!     let swapped = client.compare_and_set("", "a", Expected::Value("1".into()), Effect::Put("2".into())).await?;
//!     assert!(swapped.applied);
//!     println!("{} visits", client.increment("", "visits", 1).await?);
//!     for record in client.scan("", ScanOptions::prefix("a")).collect_records().await? {
//!         println!("{:?} = {:?}", record.key, record.value);
//!     }
//!     Ok(())
//! }
//! ```
//!
//! The first argument of operations is a table; `""` is the default table. Keys and values are bytes.
//!
//! An error says what to do by its [`ErrorKind`]. A write that ends as [`ErrorKind::OutcomeUnknown`] may have taken
//! effect, or may yet; one that ends otherwise has not.
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
#![warn(missing_docs)]

mod admin;
mod administration;
mod backup;
mod builder;
mod client;
mod endpoints;
mod failure;
#[doc(hidden)]
pub mod http;
mod load;
mod options;
mod read;
mod retry;
mod scan;
mod sessions;
mod snapshots;
mod users;
mod wire;
mod write;

pub use admin::Maintenance;
#[doc(hidden)]
pub use backup::{FetchedTable, FollowedLog, LogReader};
pub use builder::{Addresses, ClientBuilder};
pub use client::Client;
pub use load::{EndLoad, Load, LoadFailed, LoadPart, LoadRecord, LoadSource, LoadState};
pub use options::{ClientOptions, Credentials};
pub use scan::{RecordStream, ScanOptions, ScanPage, ScanRecord, ScanStream};
pub use snapshots::{Snapshot, SnapshotPartition};

// All that signatures here are made of, so that an application needs no other crate of ours.
pub use bytes::Bytes;
pub use sextant_common::configuration::{ConfigurationChange, LeaseMode, PartitionFormat};
pub use sextant_common::error::{Error, ErrorKind, Result};
pub use sextant_common::expiry::Tick;
pub use sextant_common::ids::{LoadId, NodeId, PartitionId, Seq, TableId};
pub use sextant_common::load::LoadName;
pub use sextant_common::manifest::{Compression, OptionsChange, TableInfo, TableOptions};
pub use sextant_common::marks::{Kind, Marks};
pub use sextant_common::operation::{
    Condition, Effect, Expected, Lifetime, LifetimeTest, Misfit, OpOutcome, Operation, ReadMode, Record,
    Returns, Told, Update, WriteOutcome,
};
pub use sextant_common::recovery::{RecoveredPartition, RecoveryOrder, RecoveryOutcome, UndecidedLoad};
