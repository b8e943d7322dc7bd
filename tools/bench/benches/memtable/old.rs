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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn key(s: &str) -> Bytes {
        Bytes::copy_from_slice(s.as_bytes())
    }

    #[test]
    fn readers_see_the_newest_version_that_is_published() {
        let m = Memtable::new(Generation(1));
        m.insert(key("a"), 1, Some(key("one")), 5, 0);
        m.insert(key("a"), 4, None, 6, 10);
        m.insert(key("b"), 3, Some(key("b3")), 6, 10);
        assert_eq!(m.get(&key("a"), 0), None);
        assert_eq!(m.get(&key("a"), 3), Some(Version { seq: 1, value: Some(key("one")) }));
        // A tombstone is an answer.
        assert_eq!(m.get(&key("a"), 9), Some(Version { seq: 4, value: None }));
        assert_eq!(m.get(&key("aa"), 9), None);
        assert_eq!(m.first_index(), Some(5));
    }

    #[test]
    fn a_removed_version_uncovers_the_one_before() {
        let m = Memtable::new(Generation(1));
        m.insert(key("a"), 1, Some(key("one")), 5, 0);
        let before = m.bytes();
        m.insert(key("a"), 2, Some(key("two")), 6, 0);
        m.remove(&key("a"), 2);
        assert_eq!(m.newest(&key("a")).unwrap().seq, 1);
        assert_eq!(m.bytes(), before);
        m.remove(&key("a"), 1);
        assert!(m.is_empty() && m.first_index().is_none());
    }

    proptest! {
        #[test]
        fn ranges_agree_with_a_map(
            writes in prop::collection::vec((0u8..20, any::<bool>()), 1..60), at in 0u64..70,
            low in 0u8..20, high in 0u8..22
        ) {
            let m = Memtable::new(Generation(1));
            let mut model: BTreeMap<Bytes, Version> = BTreeMap::new();
            for (i, (k, delete)) in writes.iter().enumerate() {
                let (k, seq) = (key(&format!("{k:02}")), i as u64 + 1);
                let value = (!delete).then(|| key(&seq.to_string()));
                m.insert(k.clone(), seq, value.clone(), 1, 0);
                if seq <= at {
                    model.insert(k, Version { seq, value });
                }
            }
            let (start, end) = (Bound::Included(key(&format!("{low:02}"))), Bound::Excluded(key(&format!("{high:02}"))));
            let inside = |k: &Bytes| *k >= key(&format!("{low:02}")) && *k < key(&format!("{high:02}"));
            let mut want: Vec<_> = model.into_iter().filter(|(k, _)| inside(k)).collect();
            prop_assume!(low <= high);
            let got: Vec<_> = m.range(start.clone(), end.clone(), at).collect();
            prop_assert_eq!(&got, &want);
            want.reverse();
            let got: Vec<_> = m.range_rev(start, end, at).collect();
            prop_assert_eq!(&got, &want);
        }
    }
}
