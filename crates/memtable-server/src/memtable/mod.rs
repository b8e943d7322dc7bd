//! A memtable: versions of records in memory.
//!
//! Owns: a key's record and versions ([`versions`]) in an [`arena`], a hash index of the keys for point reads and for the writer
//! ([`index`]), and an ordered one for ranges ([`order`]). Does not own what is visible: readers name a seq.
//!
//! One writer (the partition's worker), any number of readers, no locks but the writer's own. A version is never replaced: a (key, seq)
//! pair is inserted once. A version that was removed leaves its memory until the memtable goes, and so does a key.
//!
//! Memory of a key with a version, beyond both: 61 to 64 bytes; of another version of the key: 12 (see [`KEY_BYTES`], [`VERSION_BYTES`],
//! docs/benchmarks/memtable.md). A reader gets a copy of a value: it holds no memory of the memtable, which goes as a whole. Only a long one is shared.

mod arena;
mod expiring;
mod index;
mod order;
mod range;
mod segments;
mod slot;
mod versions;

use std::ops::Bound;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use bytes::Bytes;
use sextant_common::expiry::Tick;
use sextant_common::ids::Generation;
use sextant_common::manifest::Expiring;
use sextant_common::marks::Marks;

use arena::Arena;
use expiring::AtomicExpiring;
use index::Index;
use order::Order;
use range::{Direction, Range};
pub use slot::{Bookmark, Slot};
pub use versions::{NewVersion, Seen};

/// What a key costs beyond its bytes: a node of the ordered index (40 bytes on average, 42 with mimalloc), slots of the hash
/// index (9 to 12).
const KEY_BYTES: usize = 52;
/// What a version costs beyond its value: the record's header, and half of what its length is rounded up by.
const VERSION_BYTES: usize = 16;

/// What so many versions have in common the next ones will have.
const TELLING_ENTRIES: usize = 100;

/// Keys without a version that are passed over in search of one with.
const LEFT_KEYS_MAX: usize = 64;

/// Memtables that this process has made.
static MADE: AtomicU64 = AtomicU64::new(0);

/// A version of a record. `value: None` is a tombstone, which is an answer, not an absence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    pub seq: u64,
    pub value: Option<Bytes>,
    /// None: it does not expire.
    pub marks: Marks,
}

#[derive(Debug)]
pub struct Memtable {
    pub generation: Generation,
    /// No other one in this process has it.
    number: u64,
    order: Order,
    index: Index,
    arena: Arena,
    bytes: AtomicUsize,
    /// What removed versions leave.
    left_bytes: AtomicUsize,
    entries: AtomicUsize,
    /// What was written; also what was removed since.
    expiring: AtomicExpiring,
    /// Log index of the first entry that wrote here; 0: none.
    first_index: AtomicU64,
    /// Bytes of log that lay before that entry, for the distance in the log.
    first_log_bytes: AtomicU64,
}

impl Memtable {
    pub fn new(generation: Generation) -> Self {
        Self::with_order(generation, Order::new(&[]))
    }

    /// An empty memtable for what is written after this one.
    pub fn successor(&self) -> Self {
        let is_telling = self.entries() >= TELLING_ENTRIES;
        let common = if is_telling { self.order.common_beginning() } else { Vec::new() };
        Self::with_order(Generation(self.generation.0 + 1), Order::new(&common))
    }

    fn with_order(generation: Generation, order: Order) -> Self {
        Self {
            generation,
            number: MADE.fetch_add(1, Relaxed),
            order,
            index: Index::default(),
            arena: Arena::default(),
            bytes: AtomicUsize::new(0),
            left_bytes: AtomicUsize::new(0),
            entries: AtomicUsize::new(0),
            expiring: AtomicExpiring::default(),
            first_index: AtomicU64::new(0),
            first_log_bytes: AtomicU64::new(0),
        }
    }

    /// Finds a key once, for all that is to be done with it.
    pub fn seek<'m, 'k>(&'m self, key: &'k [u8]) -> Slot<'m, 'k> {
        Slot::find(self, key)
    }

    /// To write a key that was sought before, where it was found then.
    pub fn seek_again<'m, 'k>(&'m self, key: &'k [u8], bookmark: Option<&Bookmark>) -> Slot<'m, 'k> {
        bookmark.map_or_else(|| Slot::find(self, key), |bookmark| Slot::at(self, key, bookmark))
    }

    /// Adds a version that does not expire. `log_index` and `log_bytes` say where in the log it came from.
    pub fn insert(&self, key: Bytes, seq: u64, value: Option<Bytes>, log_index: u64, log_bytes: u64) {
        let new = NewVersion { value: value.as_deref(), marks: Marks::NONE };
        self.seek(&key).insert(seq, new, log_index, log_bytes);
    }

    /// Takes a version back (its entry was truncated).
    pub fn remove(&self, key: &[u8], seq: u64) {
        self.seek(key).remove(seq);
    }

    /// The newest version with a seq of at most `at`.
    pub fn get(&self, key: &[u8], at: u64) -> Option<Version> {
        Some(self.seek(key).newest_at(at)?.to_version())
    }

    /// The newest version, published or not: for the sequencer only.
    pub fn newest(&self, key: &[u8]) -> Option<Version> {
        self.get(key, u64::MAX)
    }

    pub fn entries(&self) -> usize {
        self.entries.load(Relaxed)
    }

    pub fn is_empty(&self) -> bool {
        self.entries() == 0
    }

    /// Memory of the versions that are here.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Relaxed)
    }

    /// Memory that is held: with what removed versions have left.
    pub fn held_bytes(&self) -> usize {
        self.bytes() + self.left_bytes.load(Relaxed)
    }

    /// Of all versions that were written.
    pub fn expiring(&self) -> Expiring {
        self.expiring.get()
    }

    /// The earliest time after `now` at which a record may expire; None: all have. (For the writer.)
    pub fn next_expiry(&self, now: Tick) -> Option<Tick> {
        self.expiring.next_after(now)
    }

    pub fn first_index(&self) -> Option<u64> {
        match self.first_index.load(Relaxed) {
            0 => None,
            index => Some(index),
        }
    }

    pub fn first_log_bytes(&self) -> u64 {
        self.first_log_bytes.load(Relaxed)
    }

    /// Whether there is a version of a key that begins so, published or not: for the sequencer only. False also if many such keys
    /// are left of versions that were taken back: it looks at few.
    pub fn has_prefix(&self, prefix: &[u8]) -> bool {
        let first = self.order.first(Bound::Included(prefix));
        let places = std::iter::successors(first, |place| place.next());
        let records = places.map(|place| place.record(&self.arena)).take(LEFT_KEYS_MAX);
        records
            .take_while(|record| record.key().starts_with(prefix))
            .any(|record| versions::newest(record, u64::MAX).is_some())
    }

    /// The newest version of each key with a seq of at most `at`, in order of keys, from `start` to `end`.
    pub fn range<'m>(
        &'m self,
        start: Bound<Bytes>,
        end: Bound<Bytes>,
        at: u64,
    ) -> impl Iterator<Item = (Bytes, Version)> + 'm {
        Range::new(self, start, end, Direction::Forward, at)
    }

    /// Like [`Memtable::range`], from the last key to the first.
    pub fn range_rev<'m>(
        &'m self,
        start: Bound<Bytes>,
        end: Bound<Bytes>,
        at: u64,
    ) -> impl Iterator<Item = (Bytes, Version)> + 'm {
        Range::new(self, start, end, Direction::Backward, at)
    }
}

#[cfg(test)]
mod tests;
