//! Entries by key: `quick_cache`, weighted by bytes, good under scans (ours bypass it besides).

use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use bytes::Bytes;
use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{Equivalent, Weighter};
use sextant_common::ids::{PartitionId, Seq, TableId};

use super::{CachedRecord, Kept, Said};
use crate::view::ReadKey;

/// Bookkeeping of an entry besides its key and value: the map's slot, two reference counts, the stamp.
const ENTRY_OVERHEAD_BYTES: usize = 128;
/// For the map's first size; it grows.
const TYPICAL_ENTRY_BYTES: u64 = 512;

/// What an entry is of: a key may have one of each kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Sstable,
    Kept,
}

#[derive(Debug)]
pub(super) enum Entry {
    Sstable {
        /// The manifest version at which this is the newest SSTable record of its key.
        stamp: AtomicU64,
        record: CachedRecord,
    },
    Kept {
        kept: Kept,
        /// It has spared a read its leader.
        used: AtomicBool,
    },
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Key {
    hash: u64,
    kind: Kind,
    partition: PartitionId,
    table: TableId,
    key: Bytes,
}

pub(super) struct Probe<'k> {
    pub kind: Kind,
    pub table: TableId,
    pub at: ReadKey<'k>,
}

impl Probe<'_> {
    /// To be inserted. The bytes are copied: they are slices of a message that may be much larger.
    pub fn copied(&self) -> Key {
        let ReadKey { partition, key, hash } = self.at;
        Key { hash, kind: self.kind, partition, table: self.table, key: Bytes::copy_from_slice(key) }
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
            && self.at.key == key.key.as_ref()
    }
}

/// Takes a hash for what it is. (Also: the same keys are replaced in every run of a simulation.)
#[derive(Clone, Default)]
pub(super) struct AsItIs(u64);

impl Hasher for AsItIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for b in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*b);
        }
    }

    fn write_u64(&mut self, n: u64) {
        self.0 = n;
    }
}

#[derive(Clone)]
pub(super) struct ByBytes;

pub(super) fn weight(key: usize, record: &CachedRecord) -> u64 {
    (key + record.value.as_ref().map_or(0, Bytes::len) + ENTRY_OVERHEAD_BYTES) as u64
}

impl Weighter<Key, Arc<Entry>> for ByBytes {
    fn weight(&self, key: &Key, entry: &Arc<Entry>) -> u64 {
        match &**entry {
            Entry::Sstable { record, .. }
            | Entry::Kept { kept: Kept { said: Said::Record(record), .. }, .. } => {
                weight(key.key.len(), record)
            }
            Entry::Kept { .. } => weight(key.key.len(), &CachedRecord::tombstone(Seq(0))),
        }
    }
}

pub(super) type Map =
    Cache<Key, Arc<Entry>, ByBytes, BuildHasherDefault<AsItIs>, DefaultLifecycle<Key, Arc<Entry>>>;

pub(super) fn with_room_for(bytes: u64) -> Map {
    let items = (bytes / TYPICAL_ENTRY_BYTES).clamp(16, 1 << 24) as usize;
    Map::with(items, bytes, ByBytes, BuildHasherDefault::default(), DefaultLifecycle::default())
}
