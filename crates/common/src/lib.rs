//! The domain: what every part of Sextant talks about.
//!
//! Owns the vocabulary (ids, keys, operations and their outcomes, the manifest, what a log's commands, a snapshot and a
//! configuration carry, errors, limits) and the filters (hashed once, the same on both sides of the wire). Does not
//! own: any protocol rule, any message, and anything that is not a pure function of its input (time, disk, network: the
//! crate `environment`).

pub mod archive;
pub mod command;
pub mod configuration;
pub mod cut;
pub mod database;
pub mod error;
pub mod expiry;
pub mod filter;
pub mod hashed;
pub mod ids;
pub mod key;
pub mod key_range;
pub mod limits;
pub mod load;
pub mod manifest;
pub mod marks;
pub mod object;
pub mod operation;
pub mod recovery;
pub mod shared_list;
pub mod snapshot;
pub mod sstable;

pub use error::{Error, ErrorKind, Result};
