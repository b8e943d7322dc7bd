//! What every part of Sextant shares.
//!
//! Owns the vocabulary (ids, keys, manifest, errors), the filters (hashed once, the same on both sides of the wire), and the
//! environment: time, randomness, disk, network and threads behind traits ([`env::Env`]), so that a whole cluster can run
//! in a deterministic simulation. Does not own any protocol rule and knows no message type.

pub mod clock;
pub mod config;
pub mod env;
pub mod error;
pub mod filter;
pub mod freight;
pub mod http;
pub mod ids;
pub mod key;
pub mod limits;
pub mod logging;
pub mod manifest;
pub mod mutant;
pub mod process;
pub mod rng;
pub mod room;
pub mod shutdown;
pub mod vfs;

pub use clock::Clock;
pub use env::Env;
pub use error::{Error, ErrorKind, Result};
