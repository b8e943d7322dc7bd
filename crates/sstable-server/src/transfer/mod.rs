//! Moving whole tables between servers.
//!
//! Owns `Copy` (this server pulls a table from one that has it), `Fetch` (another server pulls from this one) and the delivery
//! of filters. Does not own which tables are to be where (the leader compares inventories with the manifest). Invariant: a
//! copied table is in the catalog only if its file has the length and the checksum that were asked for, however many servers
//! its bytes came from.

mod arriving;
mod copy;
mod serve;

pub use arriving::BrokenOff;
use bytes::Bytes;

/// Tables and filters travel in pieces of this size.
pub const PIECE_BYTES: usize = 1024 * 1024;

/// A piece of a table's file.
#[derive(Debug)]
pub struct Piece {
    pub offset: u64,
    pub data: Bytes,
}
