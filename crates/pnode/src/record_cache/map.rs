//! Entries by key: `quick_cache`, weighted by bytes, good under scans (ours bypass it besides).
//!
//! An entry is one [`Block`] of memory, its key and value included: to find a record that no cache of the CPU has costs
//! three waits for memory (the map's bucket, its slot, the block), and each is a tenth of what a read in a pipeline takes.

use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU64};

use bytes::Bytes;
use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{Equivalent, Weighter};
use sextant_common::hashed::AlreadyHashed;
use sextant_common::ids::{ManifestVersion, PartitionId, Seq, TableId};
use sextant_common::marks::Marks;
use triomphe::ThinArc;

use super::CachedRecord;
use crate::view::{ReadKey, Registration};

/// What an entry takes besides its key and value: its block's head, the map's slot and bucket.
const ENTRY_OVERHEAD_BYTES: usize = 176;
/// A value of so many bytes is copied for whoever reads it.
const COPIED_BYTES_MAX: usize = 512;
/// For the map's first size; it grows.
const TYPICAL_ENTRY_BYTES: u64 = 512;

/// What an entry is of: a key may have one of each kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Sstable,
    Kept,
}

/// What an entry tells of its key, beside a record.
#[derive(Debug)]
pub(super) enum What {
    Sstable {
        /// The manifest version at which this is the newest SSTable record of its key.
        stamp: AtomicU64,
    },
    Kept {
        says: KeptSays,
        registration: Registration,
        /// It has spared a read its leader.
        used: AtomicBool,
    },
}

#[derive(Clone, Copy, Debug)]
pub(super) enum KeptSays {
    /// The entry's record.
    Record,
    Absent,
    NoEntry(ManifestVersion),
}

struct Head {
    what: What,
    seq: Seq,
    marks: Marks,
    has_value: bool,
    key_bytes: usize,
}

/// An entry: what it tells, then the bytes of its key and of its value. Shared by all who read it.
#[derive(Clone)]
pub(super) struct Block(ThinArc<Head, u8>);

/// The value of a block.
struct Value(Block);

impl AsRef<[u8]> for Value {
    fn as_ref(&self) -> &[u8] {
        let block = &self.0.0;
        &block.slice[block.header.header.key_bytes..]
    }
}

impl Block {
    /// The bytes are copied: they are slices of messages that may be much larger.
    pub fn new(key: &[u8], what: What, record: &CachedRecord) -> Self {
        let value = record.value.as_deref();
        let head = Head {
            what,
            seq: record.seq,
            marks: record.marks,
            has_value: value.is_some(),
            key_bytes: key.len(),
        };
        Self(ThinArc::from_header_and_slice(head, &[key, value.unwrap_or_default()].concat()))
    }

    #[inline]
    pub fn what(&self) -> &What {
        &self.0.header.header.what
    }

    /// Of a short value a copy: who keeps it keeps no key, which may be long.
    #[inline]
    pub fn into_record(self) -> CachedRecord {
        let Head { seq, marks, has_value, key_bytes, .. } = self.0.header.header;
        let value_bytes = self.0.slice.len() - key_bytes;
        let value = if !has_value {
            None
        } else if value_bytes <= COPIED_BYTES_MAX.max(key_bytes) {
            Some(Bytes::copy_from_slice(&self.0.slice[key_bytes..]))
        } else {
            Some(Bytes::from_owner(Value(self)))
        };
        CachedRecord { value, seq, marks }
    }

    #[inline]
    fn key(&self) -> &[u8] {
        &self.0.slice[..self.0.header.header.key_bytes]
    }

    fn weight(&self) -> u64 {
        weight_of(self.0.slice.len())
    }
}

pub(super) struct Key {
    hash: u64,
    partition: PartitionId,
    table: TableId,
    kind: Kind,
    /// Has the bytes of the key.
    block: Block,
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        let of = |key: &Self| (key.hash, key.partition, key.table, key.kind);
        of(self) == of(other) && self.block.key() == other.block.key()
    }
}

impl Eq for Key {}

pub(super) struct Probe<'k> {
    pub kind: Kind,
    pub table: TableId,
    pub at: ReadKey<'k>,
}

impl Probe<'_> {
    /// To be inserted: a block of this key.
    pub fn of(&self, block: Block) -> Key {
        let ReadKey { partition, hash, .. } = self.at;
        Key { hash, kind: self.kind, partition, table: self.table, block }
    }
}

// Both sides hash to what the key was hashed to once already; tables and kinds differ by a few bits.
fn map_hash(hash: u64, table: TableId, kind: Kind) -> u64 {
    hash ^ (u64::from(table.0) * 2 + kind as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(map_hash(self.hash, self.table, self.kind));
    }
}

impl Hash for Probe<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(map_hash(self.at.hash, self.table, self.kind));
    }
}

impl Equivalent<Key> for Probe<'_> {
    fn equivalent(&self, key: &Key) -> bool {
        self.at.hash == key.hash
            && self.kind == key.kind
            && self.table == key.table
            && self.at.partition == key.partition
            && self.at.key == key.block.key()
    }
}

#[derive(Clone)]
pub(super) struct ByBytes;

pub(super) fn weight(key: usize, record: &CachedRecord) -> u64 {
    weight_of(key + record.value.as_ref().map_or(0, Bytes::len))
}

/// The allocator's sizes are a quarter apart or less: half of that is lost.
fn weight_of(bytes: usize) -> u64 {
    (bytes + bytes / 8 + ENTRY_OVERHEAD_BYTES) as u64
}

impl Weighter<Key, Block> for ByBytes {
    fn weight(&self, _: &Key, block: &Block) -> u64 {
        block.weight()
    }
}

pub(super) type Map =
    Cache<Key, Block, ByBytes, BuildHasherDefault<AlreadyHashed>, DefaultLifecycle<Key, Block>>;

pub(super) fn with_room_for(bytes: u64) -> Map {
    let items = (bytes / TYPICAL_ENTRY_BYTES).clamp(16, 1 << 24) as usize;
    Map::with(items, bytes, ByBytes, BuildHasherDefault::default(), DefaultLifecycle::default())
}
