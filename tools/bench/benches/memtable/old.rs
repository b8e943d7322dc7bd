//! A memtable: versions of records in memory, ordered by key and falling seq (`crossbeam-skiplist`).
//!
//! One writer (the partition's worker), any number of readers, no locks. A version is never replaced: a (key, seq) pair is
//! inserted once, because inserting an existing key into the skip list would hide it for a moment.

use std::cmp::Ordering;
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use bytes::Bytes;
use crossbeam_skiplist::SkipMap;
use sextant_common::ids::Generation;

/// What an entry costs beyond its key and value: skip list node and towers, two `Bytes`, allocator overhead (measured:
/// 100 to 135 bytes).
const ENTRY_OVERHEAD_BYTES: usize = 128;

#[derive(Clone, Debug, PartialEq, Eq)]
struct VersionKey {
    key: Bytes,
    seq: u64,
}

impl Ord for VersionKey {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key.cmp(&other.key).then_with(|| other.seq.cmp(&self.seq))
    }
}

impl PartialOrd for VersionKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// A version of a record. `value: None` is a tombstone, which is an answer, not an absence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    pub seq: u64,
    pub value: Option<Bytes>,
}

#[derive(Debug)]
pub struct Memtable {
    pub generation: Generation,
    versions: SkipMap<VersionKey, Option<Bytes>>,
    bytes: AtomicUsize,
    entries: AtomicUsize,
    /// Log index of the first entry that wrote here; 0: none.
    first_index: AtomicU64,
    /// Bytes of log that lay before that entry, for the distance in the log.
    first_log_bytes: AtomicU64,
}

impl Memtable {
    pub fn new(generation: Generation) -> Self {
        Self {
            generation,
            versions: SkipMap::new(),
            bytes: AtomicUsize::new(0),
            entries: AtomicUsize::new(0),
            first_index: AtomicU64::new(0),
            first_log_bytes: AtomicU64::new(0),
        }
    }

    /// Adds a version. `log_index` and `log_bytes` say where in the log it came from.
    pub fn insert(&self, key: Bytes, seq: u64, value: Option<Bytes>, log_index: u64, log_bytes: u64) {
        if self.entries.fetch_add(1, Relaxed) == 0 {
            self.first_index.store(log_index, Relaxed);
            self.first_log_bytes.store(log_bytes, Relaxed);
        }
        self.bytes.fetch_add(cost(&key, value.as_ref()), Relaxed);
        self.versions.insert(VersionKey { key, seq }, value);
    }

    /// Takes a version back (its entry was truncated).
    pub fn remove(&self, key: &Bytes, seq: u64) {
        if let Some(entry) = self.versions.remove(&VersionKey { key: key.clone(), seq }) {
            self.bytes.fetch_sub(cost(key, entry.value().as_ref()), Relaxed);
            if self.entries.fetch_sub(1, Relaxed) == 1 {
                self.first_index.store(0, Relaxed);
            }
        }
    }

    /// The newest version with a seq of at most `at`.
    pub fn get(&self, key: &Bytes, at: u64) -> Option<Version> {
        let from = VersionKey { key: key.clone(), seq: at };
        let entry = self.versions.lower_bound(Bound::Included(&from))?;
        (entry.key().key == *key).then(|| Version { seq: entry.key().seq, value: entry.value().clone() })
    }

    /// The newest version, published or not: for the sequencer only.
    pub fn newest(&self, key: &Bytes) -> Option<Version> {
        self.get(key, u64::MAX)
    }

    pub fn entries(&self) -> usize {
        self.entries.load(Relaxed)
    }

    pub fn is_empty(&self) -> bool {
        self.entries() == 0
    }

    /// Memory, estimated.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Relaxed)
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

    /// The newest version of each key with a seq of at most `at`, in order of keys, from `start` (inclusive) to `end`
    /// (exclusive; None: to the last).
    pub fn range<'m>(
        &'m self,
        start: Bound<Bytes>,
        end: Bound<Bytes>,
        at: u64,
    ) -> impl Iterator<Item = (Bytes, Version)> + 'm {
        // A version sorts after all newer ones of its key, so (key, MAX) is before the key's versions and (key, 0) after.
        let lower = match start {
            Bound::Included(key) => Bound::Included(VersionKey { key, seq: u64::MAX }),
            Bound::Excluded(key) => Bound::Excluded(VersionKey { key, seq: 0 }),
            Bound::Unbounded => Bound::Unbounded,
        };
        let upper = match end {
            Bound::Included(key) => Bound::Included(VersionKey { key, seq: 0 }),
            Bound::Excluded(key) => Bound::Excluded(VersionKey { key, seq: u64::MAX }),
            Bound::Unbounded => Bound::Unbounded,
        };
        let mut last: Option<Bytes> = None;
        self.versions.range((lower, upper)).filter_map(move |entry| {
            let version = entry.key();
            if version.seq > at || last.as_ref() == Some(&version.key) {
                return None;
            }
            last = Some(version.key.clone());
            Some((version.key.clone(), Version { seq: version.seq, value: entry.value().clone() }))
        })
    }

    /// Like [`Memtable::range`], from the last key to the first.
    pub fn range_rev<'m>(
        &'m self,
        start: Bound<Bytes>,
        end: Bound<Bytes>,
        at: u64,
    ) -> impl Iterator<Item = (Bytes, Version)> + 'm {
        let mut upper = end;
        std::iter::from_fn(move || {
            loop {
                // Backwards a key's versions come oldest first; so find the next key, then its newest visible version.
                let above = match &upper {
                    Bound::Included(key) => Bound::Included(VersionKey { key: key.clone(), seq: 0 }),
                    Bound::Excluded(key) => Bound::Excluded(VersionKey { key: key.clone(), seq: u64::MAX }),
                    Bound::Unbounded => Bound::Unbounded,
                };
                let entry = self.versions.upper_bound(above.as_ref())?;
                let key = entry.key().key.clone();
                let inside = match &start {
                    Bound::Included(low) => key >= *low,
                    Bound::Excluded(low) => key > *low,
                    Bound::Unbounded => true,
                };
                if !inside {
                    return None;
                }
                upper = Bound::Excluded(key.clone());
                if let Some(version) = self.get(&key, at) {
                    return Some((key, version));
                }
            }
        })
    }
}

fn cost(key: &Bytes, value: Option<&Bytes>) -> usize {
    key.len() + value.map_or(0, Bytes::len) + ENTRY_OVERHEAD_BYTES
}
