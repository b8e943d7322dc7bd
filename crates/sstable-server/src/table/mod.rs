//! The table file, format versions 2 to 7, by what a table has to say; version 1 is read (`docs/formats/table.md`).
//!
//! Owns every byte of it: blocks, index, filter section, footer; writing, point reads, iteration and merging; and what of all
//! tables is in memory ([`block_cache`], [`budget`]). Does not own files' names, which tables exist (`catalog`) or any message.
//!
//! Layout: data blocks, a dictionary (if they are compressed with one), leaf index blocks (if the index has two levels), top index block, filter section, meta section,
//! trailer. All but the trailer are frames ([`frame`]).
//!
//! Invariant: whatever the bytes are, a read gives the right answer or an error that names table and offset; it neither
//! panics nor gives a wrong answer.

pub mod block;
pub mod block_cache;
pub mod budget;
mod codec;
mod direction;
pub mod filter;
pub mod footer;
pub mod frame;
pub mod index;
mod index_cursor;
pub mod iter;
pub mod merge;
mod read_ahead;
pub mod reader;
mod section;
mod sections;
pub mod writer;
pub mod zstd;

use sextant_common::ids::{SstId, TableId};
pub use sextant_common::key_range::KeyRange;
use xxhash_rust::xxh3::xxh3_64;

pub use block::Content;
pub use direction::Direction;
pub use iter::{Caching, TableIter};
pub use merge::Merge;
pub use reader::{Access, Lookup, Opened, Table};
pub use writer::TableWriter;

/// What makes the checksums of a table's frames differ from another table's.
pub fn frame_salt(id: SstId, table: TableId) -> u64 {
    let mut bytes = id.to_bytes().to_vec();
    bytes.extend_from_slice(&table.0.to_le_bytes());
    xxh3_64(&bytes)
}

/// The seed of the checksum of the frame at `offset`.
pub fn frame_seed(salt: u64, offset: u64) -> u64 {
    salt.wrapping_add(offset)
}

#[cfg(test)]
mod tests;
