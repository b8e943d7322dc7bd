//! The record cache: the newest *SSTable* record of a key at a manifest version, and, apart from it, what a leader has answered to a
//! registered read ([`kept`]).
//!
//! Owns: entries (value or tombstone, seq, stamp), their replacement ([`map`]: one budget for both kinds), and the rule by which a
//! stamp moves. Does not own the decision whether the SSTables are what has to be read: a hit only replaces the search in them.
//!
//! Invariants, of SSTable records:
//! * never a memtable's value;
//! * the stamp is the version that was *searched*, not the one at arrival;
//! * a stamp moves forward only over flushes whose filter (or range) rules the key out, every single one of them; if one is
//!   not known or not here, the entry is dropped. Compactions change no newest record, so they empty no cache.

mod carry;
mod guess;
mod kept;
mod map;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use sextant_common::ids::{ManifestVersion, Seq, TableId};
use sextant_common::marks::Marks;
use sextant_common::operation::Record;
use sextant_rules::mutant::{self, Mutant};

use crate::metrics::{CacheEvent, PNodeMetrics};
use crate::view::{Flushed, ManifestView, ReadKey};

use guess::Guess;
use map::{Block, Kind, Map, Probe, What};

pub use carry::{Carry, carry_stamp};
pub(crate) use kept::{Kept, Said};

/// An entry may take this part of the cache at the most: a single huge value must not sweep it.
const LARGEST_ENTRY_SHARE: u64 = 64;

/// A record, or that there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CachedRecord {
    /// None: a tombstone.
    pub value: Option<Bytes>,
    pub seq: Seq,
    /// Whether its end has come is judged at each use.
    pub marks: Marks,
}

impl From<Record> for CachedRecord {
    fn from(record: Record) -> Self {
        let marks = record.marks();
        Self { value: Some(record.value), seq: record.seq, marks }
    }
}

impl CachedRecord {
    pub fn tombstone(seq: Seq) -> Self {
        Self { value: None, seq, marks: Marks::NONE }
    }

    /// As it is answered; None: a tombstone.
    pub fn into_record(self) -> Option<Record> {
        let Self { value, seq, marks } = self;
        Some(Record::marked(value?, seq, marks))
    }
}

pub(crate) struct RecordCache {
    map: Option<Map>,
    guess: Guess,
    on: AtomicBool,
    largest_entry_bytes: u64,
    metrics: Arc<PNodeMetrics>,
}

impl RecordCache {
    /// `bytes`: 0: off for good.
    pub fn new(bytes: u64, metrics: Arc<PNodeMetrics>) -> Self {
        let map = (bytes > 0).then(|| map::with_room_for(bytes));
        Self {
            map,
            guess: Guess::new(),
            on: AtomicBool::new(true),
            largest_entry_bytes: bytes / LARGEST_ENTRY_SHARE,
            metrics,
        }
    }

    /// A switch for measurement; switching off also empties.
    pub fn set_on(&self, on: bool) {
        self.on.store(on, Ordering::Relaxed);
        if !on && let Some(map) = &self.map {
            map.clear();
        }
    }

    #[inline]
    fn map(&self) -> Option<&Map> {
        if self.on.load(Ordering::Relaxed) { self.map.as_ref() } else { None }
    }

    /// Whether anything is remembered.
    pub fn is_on(&self) -> bool {
        self.map().is_some()
    }

    /// What the SSTables of this manifest say about the key, if that is known.
    #[inline]
    pub fn lookup(&self, manifest: &ManifestView, table: TableId, at: ReadKey<'_>) -> Option<CachedRecord> {
        let map = self.map()?;
        let probe = Probe { kind: Kind::Sstable, table, at };
        let entry = map.get(&probe)?;
        let What::Sstable { stamp: stamped } = entry.what() else { return None };
        let stamp = ManifestVersion(stamped.load(Ordering::Relaxed));
        match carry(stamp, manifest, table, at) {
            Carry::Valid => {}
            Carry::Forward => {
                stamped.fetch_max(manifest.version.0, Ordering::Relaxed);
                self.metrics.count_cache(CacheEvent::Carried);
            }
            Carry::Unusable => return None,
            Carry::Drop => {
                map.remove(&probe);
                self.metrics.count_cache(CacheEvent::Dropped);
                return None;
            }
        }
        Some(entry.into_record())
    }

    /// Counts what became of a lookup (once a read, however often it looked).
    pub fn count(&self, hit: bool) {
        if self.map().is_some() {
            self.metrics.count_cache(if hit { CacheEvent::Hit } else { CacheEvent::Miss });
        }
    }

    /// Remembers what a search of the SSTables of version `searched` found.
    pub fn insert(&self, searched: ManifestVersion, table: TableId, at: ReadKey<'_>, record: &CachedRecord) {
        let Some(map) = self.map_for(at, record) else { return };
        let what = What::Sstable { stamp: AtomicU64::new(searched.0) };
        let block = Block::new(at.key, what, record);
        map.insert(Probe { kind: Kind::Sstable, table, at }.of(block.clone()), block);
    }

    /// The map, if the record is not too large for it.
    fn map_for(&self, at: ReadKey<'_>, record: &CachedRecord) -> Option<&Map> {
        self.map().filter(|_| map::weight(at.key.len(), record) <= self.largest_entry_bytes)
    }

    /// Entries and bytes.
    pub fn size(&self) -> (u64, u64) {
        self.map.as_ref().map_or((0, 0), |m| (m.len() as u64, m.weight()))
    }
}

/// Whether an entry with this stamp is the newest SSTable record at the manifest's version.
fn carry(stamp: ManifestVersion, manifest: &ManifestView, table: TableId, at: ReadKey<'_>) -> Carry {
    let ruled_out = |flushed: &Flushed| match flushed {
        Flushed::Nothing => true,
        Flushed::Table(sst) => !sst.meta.covers(at.key) || sst.filter_says(at.hash) == Some(false),
        Flushed::Unknown => mutant::active(Mutant::StampPastSwallowed),
    };
    // It was dropped, or is not there yet: nothing is known of it.
    let Some(table) = manifest.table(table) else { return Carry::Unusable };
    carry_stamp(
        stamp,
        manifest.version,
        table.last_flush_version,
        manifest.flushes_known_after,
        table.flushes.iter().map(|(version, flushed)| (*version, || ruled_out(flushed))),
    )
}

#[cfg(test)]
mod tests {
    use sextant_common::filter::SealedFilter;
    use sextant_common::ids::PartitionId;
    use sextant_common::key::filter_hash;
    use sextant_common::manifest::{Manifest, SstMeta};

    use super::*;
    use crate::testing::{flush_record, manifest, sst_meta, table_manifest};

    const T1: TableId = TableId(1);

    fn at(key: &'static [u8]) -> ReadKey<'static> {
        ReadKey { partition: PartitionId(0), key, hash: filter_hash(key) }
    }

    fn record(value: &'static [u8]) -> CachedRecord {
        CachedRecord { value: Some(Bytes::from_static(value)), ..CachedRecord::tombstone(Seq(5)) }
    }

    fn cache() -> (RecordCache, Arc<PNodeMetrics>) {
        let metrics = Arc::new(PNodeMetrics::default());
        (RecordCache::new(1 << 20, metrics.clone()), metrics)
    }

    #[test]
    fn nothing_is_known_of_a_table_that_the_manifest_does_not_have() {
        let (cache, _) = cache();
        let before = ManifestView::build(first(), &ManifestView::empty());
        cache.insert(ManifestVersion(1), T1, at(b"k"), &record(b"v"));
        assert!(cache.lookup(&before, T1, at(b"k")).is_some());
        let dropped = ManifestView::build(manifest(2, vec![table_manifest(2, vec![])]), &before);
        assert!(cache.lookup(&dropped, T1, at(b"k")).is_none());
    }

    /// Version 1 with table 1, flushed at version 1.
    fn first() -> Manifest {
        flushed(1, vec![sst_meta(1, b"a", b"z")], &[(1, Some(1))])
    }

    fn flushed(version: u64, ssts: Vec<SstMeta>, flushes: &[(u64, Option<u32>)]) -> Manifest {
        let mut table = table_manifest(1, ssts);
        table.last_flush_version = ManifestVersion(flushes.last().map_or(0, |(v, _)| *v));
        let mut m = manifest(version, vec![table]);
        m.recent_flushes = flushes.iter().map(|(v, id)| flush_record(*v, 1, *id)).collect();
        m
    }

    /// Version 2: table 2 was flushed, with these keys.
    fn second(previous: &ManifestView, keys: Option<&[&[u8]]>) -> ManifestView {
        let m =
            flushed(2, vec![sst_meta(2, b"a", b"z"), sst_meta(1, b"a", b"z")], &[(1, Some(1)), (2, Some(2))]);
        let view = ManifestView::build(m, previous);
        if let Some(keys) = keys {
            let mut hashes = keys.iter().map(|k| filter_hash(k)).collect();
            view.tables[0].ssts()[0].set_filter(SealedFilter::build(&mut hashes));
        }
        view
    }

    #[test]
    fn a_hit_needs_the_same_partition_table_and_key() {
        let (cache, _) = cache();
        let view = ManifestView::build(first(), &ManifestView::empty());
        cache.insert(ManifestVersion(1), T1, at(b"k"), &record(b"v"));
        assert_eq!(cache.lookup(&view, T1, at(b"k")), Some(record(b"v")));
        assert_eq!(cache.lookup(&view, TableId(2), at(b"k")), None);
        assert_eq!(cache.lookup(&view, T1, at(b"l")), None);
        let elsewhere = ReadKey { partition: PartitionId(1), ..at(b"k") };
        assert_eq!(cache.lookup(&view, T1, elsewhere), None);
    }

    #[test]
    fn a_stamp_moves_over_a_flush_that_rules_the_key_out() {
        let (cache, metrics) = cache();
        let v1 = ManifestView::build(first(), &ManifestView::empty());
        cache.insert(ManifestVersion(1), T1, at(b"k"), &record(b"v"));
        let v2 = second(&v1, Some(&[b"other"]));
        assert_eq!(cache.lookup(&v2, T1, at(b"k")), Some(record(b"v")));
        assert_eq!(metrics.cache(CacheEvent::Carried), 1);
        // The stamp has moved: version 3 does not remember the flush any more, and need not.
        let mut m = flushed(3, vec![sst_meta(3, b"a", b"z")], &[]);
        m.tables[0].last_flush_version = ManifestVersion(2);
        m.flushes_known_after = ManifestVersion(2);
        assert_eq!(cache.lookup(&ManifestView::build(m, &v2), T1, at(b"k")), Some(record(b"v")));
    }

    #[test]
    fn an_entry_is_dropped_when_a_flush_may_have_brought_the_key() {
        let (cache, metrics) = cache();
        let v1 = ManifestView::build(first(), &ManifestView::empty());
        cache.insert(ManifestVersion(1), T1, at(b"k"), &record(b"v"));
        let v2 = second(&v1, Some(&[b"k"]));
        assert_eq!(cache.lookup(&v2, T1, at(b"k")), None);
        assert_eq!(metrics.cache(CacheEvent::Dropped), 1);
        assert_eq!(cache.lookup(&v1, T1, at(b"k")), None, "it is gone");
    }

    #[test]
    fn cache_entry_dropped_when_a_flush_filter_is_missing() {
        let (cache, metrics) = cache();
        let v1 = ManifestView::build(first(), &ManifestView::empty());
        // Not fetched yet.
        cache.insert(ManifestVersion(1), T1, at(b"k"), &record(b"v"));
        assert_eq!(cache.lookup(&second(&v1, None), T1, at(b"k")), None);
        // Swallowed by a compaction before this p-node saw it: version 3 knows the flush of version 2 by name only.
        cache.insert(ManifestVersion(1), T1, at(b"k"), &record(b"v"));
        let m = flushed(3, vec![sst_meta(7, b"a", b"z")], &[(1, Some(1)), (2, Some(2))]);
        let swallowed = ManifestView::build(m, &v1);
        swallowed.tables[0].ssts()[0].set_filter(SealedFilter::Empty);
        assert_eq!(cache.lookup(&swallowed, T1, at(b"k")), None);
        // Forgotten: flushes up to version 2 have no record any more.
        cache.insert(ManifestVersion(1), T1, at(b"k"), &record(b"v"));
        let mut m = flushed(4, vec![sst_meta(8, b"a", b"z")], &[(4, None)]);
        m.flushes_known_after = ManifestVersion(2);
        assert_eq!(cache.lookup(&ManifestView::build(m, &v1), T1, at(b"k")), None);
        assert_eq!(metrics.cache(CacheEvent::Dropped), 3);
    }

    /// The stamp moved past a flush whose table a compaction has already swallowed: its filter still has to be asked.
    #[test]
    fn a_swallowed_flush_is_checked_by_the_filter_that_was_kept() {
        for (keys, survives) in [(vec![b"k".as_slice()], false), (vec![b"other".as_slice()], true)] {
            let (cache, _) = cache();
            let v1 = ManifestView::build(first(), &ManifestView::empty());
            cache.insert(ManifestVersion(1), T1, at(b"k"), &record(b"v"));
            let v2 = second(&v1, Some(&keys));
            let compacted = flushed(3, vec![sst_meta(9, b"a", b"z")], &[(1, Some(1)), (2, Some(2))]);
            let v3 = ManifestView::build(compacted, &v2);
            v3.tables[0].ssts()[0].set_filter(SealedFilter::Empty);
            assert_eq!(cache.lookup(&v3, T1, at(b"k")).is_some(), survives);
        }
    }

    #[test]
    fn a_compaction_empties_no_cache() {
        let (cache, metrics) = cache();
        let v1 = ManifestView::build(first(), &ManifestView::empty());
        cache.insert(ManifestVersion(1), T1, at(b"k"), &record(b"v"));
        let mut m = flushed(9, vec![sst_meta(50, b"a", b"z")], &[(1, Some(1))]);
        m.tables[0].last_flush_version = ManifestVersion(1);
        assert!(cache.lookup(&ManifestView::build(m, &v1), T1, at(b"k")).is_some());
        assert_eq!(metrics.cache(CacheEvent::Dropped) + metrics.cache(CacheEvent::Carried), 0);
    }

    #[test]
    fn cache_stamp_is_the_searched_version() {
        let (cache, _) = cache();
        let v1 = ManifestView::build(first(), &ManifestView::empty());
        let v2 = second(&v1, Some(&[b"k"]));
        // The answer to a search of version 1 arrives when version 2 is current: the flush in between brought the key.
        cache.insert(v1.version, T1, at(b"k"), &record(b"old"));
        assert_eq!(cache.lookup(&v2, T1, at(b"k")), None);
    }

    #[test]
    fn a_reader_with_an_older_view_does_not_use_a_newer_entry() {
        let (cache, metrics) = cache();
        let v1 = ManifestView::build(first(), &ManifestView::empty());
        let v2 = second(&v1, Some(&[b"k"]));
        cache.insert(v2.version, T1, at(b"k"), &record(b"new"));
        assert_eq!(cache.lookup(&v1, T1, at(b"k")), None);
        assert_eq!(cache.lookup(&v2, T1, at(b"k")), Some(record(b"new")), "and leaves it to others");
        assert_eq!(metrics.cache(CacheEvent::Dropped), 0);
    }

    #[test]
    fn the_cache_is_bounded_in_bytes_and_refuses_huge_entries() {
        let (cache, _) = cache();
        let view = ManifestView::build(first(), &ManifestView::empty());
        let of = |bytes| CachedRecord { value: Some(Bytes::from(bytes)), ..CachedRecord::tombstone(Seq(1)) };
        let huge = of(vec![0; 1 << 15]);
        cache.insert(ManifestVersion(1), T1, at(b"huge"), &huge);
        assert_eq!(cache.lookup(&view, T1, at(b"huge")), None);
        for i in 0..10_000u64 {
            let key: &'static [u8] = Box::leak(i.to_be_bytes().to_vec().into_boxed_slice());
            cache.insert(ManifestVersion(1), T1, at(key), &of(vec![7; 1000]));
        }
        let (entries, bytes) = cache.size();
        assert!(bytes <= 1 << 20 && entries > 100, "{entries} entries, {bytes} bytes");
    }

    #[test]
    fn switched_off_it_holds_nothing() {
        let (cache, _) = cache();
        let view = ManifestView::build(first(), &ManifestView::empty());
        cache.insert(ManifestVersion(1), T1, at(b"k"), &record(b"v"));
        cache.set_on(false);
        assert_eq!(cache.lookup(&view, T1, at(b"k")), None);
        cache.set_on(true);
        assert_eq!(cache.lookup(&view, T1, at(b"k")), None);
    }
}
