//! Into what pieces a table of a backup is cut to be restored: by the partitions of the cluster that it goes into, and by ranges of keys,
//! so that what is brought here at once is bounded.

use std::collections::BTreeMap;

use bytes::Bytes;
use sextant_common::cut::{Cut, CutTable};
use sextant_common::ids::PartitionId;
use sextant_common::key::{SLOTS, SlotMap};
use sextant_common::key_range::KeyRange;
use sextant_common::manifest::SstMeta;

/// Slots of a partition, of all that it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    slots: u32,
    of: u32,
}

impl Share {
    /// About: keys are spread evenly over slots.
    fn of_bytes(self, bytes: u64) -> u64 {
        bytes / u64::from(self.of) * u64::from(self.slots)
    }
}

/// A partition of the cluster, and the partitions of the backup that its keys come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    pub partition: PartitionId,
    pub sources: Vec<(PartitionId, Share)>,
}

/// The partitions of the cluster.
pub fn targets(backup: &SlotMap, cluster: &SlotMap) -> Vec<Target> {
    let mut shared: BTreeMap<PartitionId, BTreeMap<PartitionId, u32>> = BTreeMap::new();
    let mut of_source: BTreeMap<PartitionId, u32> = BTreeMap::new();
    for slot in 0..SLOTS {
        let (from, to) = (backup.partition_of_slot(slot), cluster.partition_of_slot(slot));
        *shared.entry(to).or_default().entry(from).or_default() += 1;
        *of_source.entry(from).or_default() += 1;
    }
    let target = |(partition, sources): (PartitionId, BTreeMap<PartitionId, u32>)| {
        let share = |(from, slots)| (from, Share { slots, of: of_source[&from] });
        Target { partition, sources: sources.into_iter().map(share).collect() }
    };
    shared.into_iter().map(target).collect()
}

/// A table of a partition of the backup, as a partition of the cluster sees it.
#[derive(Clone, Copy, Debug)]
pub struct Source<'b> {
    pub cut: &'b Cut,
    pub table: &'b CutTable,
    pub share: Share,
}

impl<'b> Source<'b> {
    /// All that the table has, wherever it goes.
    pub fn whole(cut: &'b Cut, table: &'b CutTable) -> Self {
        Self { cut, table, share: Share { slots: 1, of: 1 } }
    }

    /// Its files, and what they have for the partition.
    fn files(self) -> impl Iterator<Item = (&'b SstMeta, u64)> {
        self.table.ssts.iter().flatten().map(move |sst| (sst, self.share.of_bytes(sst.file_bytes)))
    }
}

/// How many bytes of files go into the partition.
pub fn bytes(sources: &[Source<'_>]) -> u64 {
    sources.iter().flat_map(|source| source.files()).map(|(_, bytes)| bytes).sum()
}

/// Ranges that have about so many bytes of files each, in order; together they are all keys. They begin where files do. (A file is
/// brought as a whole, whatever share of it goes into the partition.)
pub fn ranges(sources: &[Source<'_>], bytes_max: u64) -> Vec<KeyRange> {
    // By the least key that is looked for in them.
    let mut files: BTreeMap<&Bytes, u64> = BTreeMap::new();
    for (sst, _) in sources.iter().flat_map(|source| source.files()) {
        *files.entry((&sst.min_key).max(&sst.range.start)).or_default() += sst.file_bytes;
    }
    let (mut ranges, mut start, mut bytes) = (Vec::new(), Bytes::new(), 0);
    for (least, of_file) in files {
        if bytes > 0 && bytes + of_file > bytes_max && *least > start {
            ranges.push(KeyRange::new(start, least.clone()));
            (start, bytes) = (least.clone(), 0);
        }
        bytes += of_file;
    }
    ranges.push(KeyRange::new(start, Bytes::new()));
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn a_partition_gets_its_slots_from_those_that_had_them() {
        let of = |from: u32, to: u32| targets(&SlotMap::even(from), &SlotMap::even(to));
        for n in [1, 2, 3, 7] {
            for (at, target) in of(n, n).iter().enumerate() {
                let [(from, share)] = target.sources[..] else { panic!("{target:?}") };
                assert_eq!((target.partition, from), (PartitionId(at as u32), PartitionId(at as u32)));
                assert_eq!(share.slots, share.of);
            }
        }
        let three = of(2, 3);
        let froms: Vec<Vec<u32>> =
            three.iter().map(|t| t.sources.iter().map(|(from, _)| from.0).collect()).collect();
        assert_eq!(froms, [vec![0], vec![0, 1], vec![1]]);
        let slots: u32 = three.iter().flat_map(|t| &t.sources).map(|(_, share)| share.slots).sum();
        assert_eq!(slots, u32::from(SLOTS));
        assert_eq!(of(3, 1)[0].sources.len(), 3);
    }

    proptest::proptest! {
        #[test]
        fn ranges_follow_each_other_and_none_has_more_files_than_it_should(
            files in proptest::collection::vec((0u8..50, 1u64..100), 0..40),
            bytes_max in 1u64..300,
        ) {
            let sst = |(at, bytes): &(u8, u64)| SstMeta {
                min_key: format!("{at:03}").into(),
                file_bytes: *bytes,
                ..testing::sst(1)
            };
            let cut = testing::cut(files.iter().map(sst));
            let source = Source { cut: &cut, table: &cut.tables[0], share: Share { slots: 1, of: 3 } };
            let ranges = ranges(&[source], bytes_max);
            proptest::prop_assert!(ranges[0].start.is_empty() && ranges[ranges.len() - 1].end.is_empty());
            proptest::prop_assert!(ranges.windows(2).all(|two| two[0].end == two[1].start && !two[0].end.is_empty()));
            for range in &ranges {
                let begun: Vec<_> = files.iter().filter(|(at, _)| range.contains(format!("{at:03}").as_bytes())).collect();
                let bytes: u64 = begun.iter().map(|(_, bytes)| bytes).sum();
                let is_of_one_key = begun.iter().all(|(at, _)| *at == begun[0].0);
                proptest::prop_assert!(bytes <= bytes_max || is_of_one_key, "{bytes}");
            }
        }
    }
}
