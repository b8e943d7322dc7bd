//! One page of a scan out of what the memtables and the SSTables gave. Pure.

use std::collections::BTreeMap;

use bytes::Bytes;
use sextant_common::expiry::{Tick, is_expired};
use sextant_common::operation::Record;
use sextant_common::sstable::RecordVersion;
use sextant_common::{Error, Result};

use crate::upstream::Page;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MergedPage {
    /// In the direction of the scan.
    pub records: Vec<(Bytes, Record)>,
    /// The last key that the page covers; None: the page covers the whole range.
    pub covered_to: Option<Bytes>,
}

/// Merges sources of which the first are the memtables. The page ends where the first source ends that is not complete; of
/// several versions of a key the one with the highest seq stays (of equal ones the first source's); tombstones go last, and what has
/// expired by `tick`: that of the memtables' page.
pub(crate) fn merge_page(sides: Vec<Page>, reverse: bool, tick: Tick) -> Result<MergedPage> {
    let mut covered_to: Option<Bytes> = None;
    for side in sides.iter().filter(|s| !s.complete) {
        let last = side.records.last().ok_or_else(|| Error::internal("a page that covers nothing"))?;
        let nearer =
            covered_to.as_ref().is_none_or(|to| if reverse { last.key > *to } else { last.key < *to });
        if nearer {
            covered_to = Some(last.key.clone());
        }
    }
    let covered = |key: &Bytes| match &covered_to {
        None => true,
        Some(to) => {
            if reverse {
                key >= to
            } else {
                key <= to
            }
        }
    };
    let mut newest: BTreeMap<Bytes, RecordVersion> = BTreeMap::new();
    for record in sides.into_iter().flat_map(|s| s.records).filter(|r| covered(&r.key)) {
        match newest.get(&record.key) {
            Some(other) if other.seq >= record.seq => {}
            _ => {
                newest.insert(record.key.clone(), record);
            }
        }
    }
    let live = newest.into_values().filter(|r| !is_expired(r.marks.expires_at(), tick));
    let record = |RecordVersion { key, seq, value, marks }| Some((key, Record::marked(value?, seq, marks)));
    let mut records: Vec<_> = live.filter_map(record).collect();
    if reverse {
        records.reverse();
    }
    Ok(MergedPage { records, covered_to })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use sextant_common::ids::Seq;

    use super::*;
    use sextant_common::marks::Marks;

    fn record(key: u8, seq: u64, tombstone: bool) -> RecordVersion {
        let value = (!tombstone).then(|| Bytes::from(seq.to_string()));
        RecordVersion { key: Bytes::from(vec![key]), seq: Seq(seq), value, marks: Marks::NONE }
    }

    #[test]
    fn a_tombstone_hides_older_records_and_is_removed() {
        let memtables = Page { records: vec![record(1, 9, true), record(3, 8, false)], complete: true };
        let ssts = Page {
            records: vec![record(1, 2, false), record(2, 3, false), record(3, 4, false)],
            complete: true,
        };
        let page = merge_page(vec![memtables, ssts], false, Tick(0)).unwrap();
        let keys: Vec<(u8, u64)> = page.records.iter().map(|(k, r)| (k[0], r.seq.0)).collect();
        assert_eq!(keys, [(2, 3), (3, 8)]);
        assert_eq!(page.covered_to, None);
    }

    #[test]
    fn what_has_expired_by_the_pages_time_is_absent_and_hides_older_records() {
        let expiring =
            |key, seq, at| RecordVersion { marks: Marks::until(Tick(at)), ..record(key, seq, false) };
        let memtables = Page { records: vec![expiring(1, 9, 50), expiring(2, 8, 51)], complete: true };
        let ssts = Page {
            records: vec![record(1, 2, false), expiring(3, 3, 50), expiring(4, 4, 60)],
            complete: true,
        };
        let page = merge_page(vec![memtables, ssts], false, Tick(50)).unwrap();
        let keys: Vec<_> = page.records.iter().map(|(k, r)| (k[0], r.expires_at)).collect();
        assert_eq!(keys, [(2, Some(Tick(51))), (4, Some(Tick(60)))]);
    }

    #[test]
    fn a_page_ends_where_its_first_source_ends() {
        let memtables = Page { records: vec![record(1, 9, false), record(5, 8, false)], complete: false };
        let ssts = Page { records: vec![record(2, 2, false), record(3, 3, false)], complete: false };
        let page = merge_page(vec![memtables.clone(), ssts.clone()], false, Tick(0)).unwrap();
        assert_eq!(page.covered_to, Some(Bytes::from(vec![3])));
        assert_eq!(page.records.len(), 3, "the record at 5 comes with the next page");
        let flip = |mut s: Page| {
            s.records.reverse();
            s
        };
        let page = merge_page(vec![flip(memtables), flip(ssts)], true, Tick(0)).unwrap();
        assert_eq!(page.covered_to, Some(Bytes::from(vec![2])));
        assert_eq!(page.records.iter().map(|(k, _)| k[0]).collect::<Vec<_>>(), [5, 3, 2]);
    }

    #[test]
    fn a_source_that_covers_nothing_is_an_error() {
        assert!(merge_page(vec![Page { records: vec![], complete: false }], false, Tick(0)).is_err());
    }

    proptest! {
        /// Pages that follow one another give exactly the newest live records, however each source cuts its pages.
        #[test]
        fn pages_add_up_to_the_newest_records(
            memtables in prop::collection::btree_map(any::<u8>(), any::<bool>(), 0..40),
            older in prop::collection::btree_map(any::<u8>(), any::<bool>(), 0..40),
            oldest in prop::collection::btree_map(any::<u8>(), any::<bool>(), 0..40),
            cuts in prop::collection::vec(1usize..6, 3),
            reverse: bool,
        ) {
            let sources = [(&memtables, 3000), (&older, 2000), (&oldest, 1000)];
            let mut expected = BTreeMap::new();
            for (source, base) in sources.iter().rev() {
                for (key, tombstone) in source.iter() {
                    expected.insert(*key, (base + u64::from(*key), *tombstone));
                }
            }
            let mut expected: Vec<(u8, u64)> = expected.into_iter().filter(|(_, (_, t))| !t).map(|(k, (s, _))| (k, s)).collect();
            if reverse {
                expected.reverse();
            }
            let mut got: Vec<(u8, u64)> = Vec::new();
            let mut after: Option<u8> = None;
            for round in 0.. {
                prop_assert!(round < 200, "every page makes progress");
                let sides = sources.iter().zip(&cuts).map(|((source, base), cut)| {
                    let mut left: Vec<(u8, bool)> = source.iter().map(|(k, t)| (*k, *t)).collect();
                    if reverse {
                        left.reverse();
                    }
                    left.retain(|(k, _)| after.is_none_or(|a| if reverse { *k < a } else { *k > a }));
                    let complete = left.len() <= *cut;
                    left.truncate(*cut);
                    Page { records: left.into_iter().map(|(k, t)| record(k, base + u64::from(k), t)).collect(), complete }
                });
                let page = merge_page(sides.collect(), reverse, Tick(0)).unwrap();
                got.extend(page.records.iter().map(|(k, r)| (k[0], r.seq.0)));
                match page.covered_to {
                    Some(to) => after = Some(to[0]),
                    None => break,
                }
            }
            prop_assert_eq!(got, expected);
        }
    }
}
