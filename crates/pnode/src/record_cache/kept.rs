//! What leaders have answered to registered reads (design, section 14): recent records, and that there is none.
//!
//! An entry is kept with the registration that the leader took for that very read, and tells nothing by itself: whether it may be
//! used, the filters say, which are consulted under a lease ([`FilterCopies::may_use`]). Freezes, flushes and compactions end no entry.

use std::sync::atomic::{AtomicBool, Ordering};

use sextant_common::ids::{ManifestVersion, Seq, TableId};

use super::map::{Block, KeptSays, Kind, Probe, What};
use super::{CachedRecord, RecordCache};
use crate::metrics::KeptEvent;
use crate::view::{FilterCopies, ReadKey, Registration};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Kept {
    pub said: Said,
    pub registration: Registration,
}

/// What is kept of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Said {
    /// The memtables have this record.
    Record(CachedRecord),
    /// There is none: they have a tombstone, or no entry, and nor have the SSTables.
    Absent,
    /// They have no entry that the SSTables of this version, or of a newer one, lack.
    NoEntry(ManifestVersion),
}

impl RecordCache {
    /// Whether an answer is likely to be kept.
    #[inline]
    pub fn guesses_kept(&self, hash: u64) -> bool {
        self.guess.is_kept(hash)
    }

    /// Whether the answer to a read was kept.
    #[inline]
    pub fn was_kept(&self, hash: u64, kept: bool) {
        self.guess.was_kept(hash, kept);
    }

    /// What was kept of a key and may be used. `copies`: under a lease. `searched`: whose SSTables the read goes by.
    #[inline]
    pub fn kept(
        &self,
        copies: &FilterCopies,
        searched: ManifestVersion,
        table: TableId,
        at: ReadKey<'_>,
    ) -> Option<Kept> {
        let entry = self.map()?.get(&Probe { kind: Kind::Kept, table, at })?;
        let What::Kept { says, registration, used } = entry.what() else { return None };
        if !copies.may_use(*registration, table, at.hash) {
            self.metrics.count_kept(KeptEvent::Over);
            return None;
        }
        let (says, registration) = (*says, *registration);
        if matches!(says, KeptSays::NoEntry(version) if version > searched) {
            return None;
        }
        if !used.load(Ordering::Relaxed) {
            used.store(true, Ordering::Relaxed);
        }
        let said = match says {
            KeptSays::Record => Said::Record(entry.into_record()),
            KeptSays::Absent => Said::Absent,
            KeptSays::NoEntry(version) => Said::NoEntry(version),
        };
        Some(Kept { said, registration })
    }

    /// Whether what was kept of a key the last time has spared a read its leader: then it is worth keeping again.
    pub fn was_worth_keeping(&self, table: TableId, at: ReadKey<'_>) -> bool {
        let entry = self.map().and_then(|map| map.get(&Probe { kind: Kind::Kept, table, at }));
        let what = entry.as_ref().map(Block::what);
        matches!(what, Some(What::Kept { used, .. }) if used.load(Ordering::Relaxed))
    }

    /// Keeps an answer, however late it arrived: whether it is over is asked when it is used.
    pub fn keep(&self, table: TableId, at: ReadKey<'_>, kept: &Kept) {
        let none = CachedRecord::tombstone(Seq(0));
        let (says, record) = match &kept.said {
            Said::Record(record) => (KeptSays::Record, record),
            Said::Absent => (KeptSays::Absent, &none),
            Said::NoEntry(version) => (KeptSays::NoEntry(*version), &none),
        };
        let Some(map) = self.map_for(at, record) else { return };
        let what = What::Kept { says, registration: kept.registration, used: AtomicBool::new(false) };
        let block = Block::new(at.key, what, record);
        map.insert(Probe { kind: Kind::Kept, table, at }.of(block.clone()), block);
        self.metrics.count_kept(KeptEvent::Kept);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;
    use sextant_common::ids::{Epoch, PartitionId, Serial};
    use sextant_common::key::{filter_hash, registration_slot};

    use super::*;
    use crate::metrics::PNodeMetrics;

    const T1: TableId = TableId(1);
    const EPOCH: Epoch = Epoch { term: 3, incarnation: 1 };
    const V1: ManifestVersion = ManifestVersion(1);

    fn at(key: &'static [u8]) -> ReadKey<'static> {
        ReadKey { partition: PartitionId(0), key, hash: filter_hash(key) }
    }

    fn copies(epoch: Epoch, serial: u64, slots: usize) -> FilterCopies {
        FilterCopies::new(epoch, Serial(serial), slots, [])
    }

    fn record() -> Said {
        Said::Record(CachedRecord {
            value: Some(Bytes::from_static(b"v")),
            ..CachedRecord::tombstone(Seq(5))
        })
    }

    fn kept(said: Said, serial: u64) -> Kept {
        Kept { said, registration: Registration { epoch: EPOCH, serial: Serial(serial) } }
    }

    fn cache() -> RecordCache {
        RecordCache::new(1 << 20, Arc::new(PNodeMetrics::default()))
    }

    #[test]
    fn an_answer_is_used_until_its_slot_is_written_to() {
        let (cache, copies) = (cache(), copies(EPOCH, 7, 64));
        let kept = kept(record(), 7);
        cache.keep(T1, at(b"k"), &kept);
        assert_eq!(cache.kept(&copies, V1, T1, at(b"k")), Some(kept.clone()));
        assert_eq!(cache.kept(&copies, V1, TableId(2), at(b"k")), None);
        let slot = registration_slot(T1, filter_hash(b"k"), 64);
        copies.slots.invalidate([(slot + 1) % 64].into_iter(), Serial(7));
        assert_eq!(cache.kept(&copies, V1, T1, at(b"k")), Some(kept));
        copies.slots.invalidate([slot].into_iter(), Serial(7));
        assert_eq!(cache.kept(&copies, V1, T1, at(b"k")), None);
    }

    #[test]
    fn what_has_spared_a_read_its_leader_was_worth_keeping_until_it_is_kept_again() {
        let (cache, copies) = (cache(), copies(EPOCH, 7, 64));
        let worth = || cache.was_worth_keeping(T1, at(b"k"));
        assert!(!worth());
        cache.keep(T1, at(b"k"), &kept(record(), 7));
        assert!(!worth());
        assert!(cache.kept(&copies, V1, T1, at(b"k")).is_some() && worth());
        copies.slots.invalidate([registration_slot(T1, filter_hash(b"k"), 64)].into_iter(), Serial(7));
        assert!(cache.kept(&copies, V1, T1, at(b"k")).is_none() && worth());
        cache.keep(T1, at(b"k"), &kept(record(), 8));
        assert!(!worth());
    }

    #[test]
    fn an_answer_that_arrives_after_its_invalidation_is_over() {
        let (cache, copies) = (cache(), copies(EPOCH, 7, 64));
        copies.slots.invalidate([registration_slot(T1, filter_hash(b"k"), 64)].into_iter(), Serial(8));
        cache.keep(T1, at(b"k"), &kept(record(), 8));
        assert_eq!(cache.kept(&copies, V1, T1, at(b"k")), None);
        cache.keep(T1, at(b"k"), &kept(record(), 9));
        assert!(cache.kept(&copies, V1, T1, at(b"k")).is_some(), "it was read after it");
    }

    #[test]
    fn what_is_kept_ends_with_its_epoch_and_with_whole_filters() {
        let cache = cache();
        cache.keep(T1, at(b"k"), &kept(record(), 7));
        for epoch in [Epoch { term: 4, incarnation: 1 }, Epoch { term: 3, incarnation: 2 }] {
            assert_eq!(cache.kept(&copies(epoch, 0, 64), V1, T1, at(b"k")), None);
        }
        assert_eq!(cache.kept(&copies(EPOCH, 8, 64), V1, T1, at(b"k")), None);
        assert_eq!(cache.kept(&copies(EPOCH, 7, 0), V1, T1, at(b"k")), None, "a leader without slots");
    }

    #[test]
    fn no_entry_is_said_of_the_sstables_that_the_read_named_or_newer_ones() {
        let (cache, copies) = (cache(), copies(EPOCH, 7, 64));
        let kept = kept(Said::NoEntry(ManifestVersion(4)), 7);
        cache.keep(T1, at(b"k"), &kept);
        for (searched, expected) in [(3, None), (4, Some(kept.clone())), (5, Some(kept))] {
            assert_eq!(cache.kept(&copies, ManifestVersion(searched), T1, at(b"k")), expected);
        }
    }

    #[test]
    fn a_slot_that_is_unknown_ends_everything() {
        let (cache, copies) = (cache(), copies(EPOCH, 7, 64));
        cache.keep(T1, at(b"k"), &kept(record(), 7));
        copies.slots.invalidate([64].into_iter(), Serial(7));
        assert_eq!(cache.kept(&copies, V1, T1, at(b"k")), None);
    }
}
