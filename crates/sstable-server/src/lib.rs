//! The tier of immutable SSTables.
//!
//! Owns: the table format, point reads and scans on named tables, receiving tables, running compactions, copying tables between
//! servers, verifying them. Does not own any truth: which tables *should* exist, and where, is the manifest's business, which
//! this crate never sees.
//!
//! Invariant: a table that is not here, or not readable, is never taken for one without the key.
//!
//! [`SstServer`] wires [`store::Store`] (all requests) to gRPC ([`service`]) and HTTP.

pub mod catalog;
mod compaction;
pub mod config;
pub mod data_dir;
mod erasing;
mod get;
mod ingest;
pub mod memory;
pub mod metrics;
mod progress;
mod scan;
mod scrub;
mod server;
mod service;
mod settling;
mod status;
pub mod store;
pub mod table;
mod transfer;
mod upstream;

pub use config::SstServerConfig;
pub use server::SstServer;

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
