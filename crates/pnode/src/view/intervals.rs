//! Which SSTables of a table answer for a key: found by range, since a large table has thousands of them. Pure.

use bytes::Bytes;
use sextant_common::key_range::KeyRange;

/// The intervals between the bounds of all ranges, and for each the tables that answer for it, by their places in the list.
pub(crate) struct Intervals {
    /// Where each begins, rising; the first with the first key.
    starts: Vec<Bytes>,
    /// Newest first.
    tables: Vec<Vec<u32>>,
}

impl Intervals {
    /// `ranges`: of the tables, newest first for every key.
    pub fn new<'r>(ranges: impl Iterator<Item = &'r KeyRange> + Clone) -> Self {
        let mut starts = vec![Bytes::new()];
        for range in ranges.clone() {
            starts.extend([&range.start, &range.end].into_iter().filter(|bound| !bound.is_empty()).cloned());
        }
        starts.sort();
        starts.dedup();
        let mut intervals = Self { tables: vec![Vec::new(); starts.len()], starts };
        for (place, range) in (0..).zip(ranges) {
            let first = intervals.at(&range.start);
            let end = if range.end.is_empty() { intervals.tables.len() } else { intervals.at(&range.end) };
            intervals.tables[first..end].iter_mut().for_each(|tables| tables.push(place));
        }
        intervals
    }

    /// The interval that a key lies in.
    #[inline]
    fn at(&self, key: &[u8]) -> usize {
        self.starts.partition_point(|start| start.as_ref() <= key).saturating_sub(1)
    }

    /// The tables that answer for a key, newest first.
    #[inline]
    pub fn of(&self, key: &[u8]) -> &[u32] {
        self.tables.get(self.at(key)).map_or(&[], Vec::as_slice)
    }

    /// The beginning of a range, in the direction of a walk, for which no more than `most` tables answer, or one interval of it.
    pub fn window(&self, range: &KeyRange, reverse: bool, most: usize) -> KeyRange {
        let (first, last) = (self.at(&range.start), self.last_of(range));
        let mut order: Vec<usize> = (first..=last).collect();
        if reverse {
            order.reverse();
        }
        let mut seen: Vec<u32> = Vec::new();
        let mut reached = order[0];
        for at in order {
            seen.extend(&self.tables[at]);
            seen.sort_unstable();
            seen.dedup();
            if seen.len() > most && at != reached {
                break;
            }
            reached = at;
        }
        let mut window = range.clone();
        if reverse && reached > first {
            window.start = self.starts[reached].clone();
        }
        if !reverse && reached < last {
            window.end = self.starts[reached + 1].clone();
        }
        window
    }

    /// The last interval that a range overlaps.
    fn last_of(&self, range: &KeyRange) -> usize {
        let after = match range.end.is_empty() {
            true => self.starts.len(),
            false => self.starts.partition_point(|start| *start < range.end),
        };
        after.saturating_sub(1).max(self.at(&range.start))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_range() -> impl Strategy<Value = KeyRange> {
        let bound = || prop::collection::vec(0u8..5, 0..3);
        (bound(), bound())
            .prop_map(|(start, end)| KeyRange::new(start, end))
            .prop_filter("empty", |r| !r.is_empty())
    }

    proptest! {
        #[test]
        fn the_tables_of_a_key_are_those_whose_range_has_it(
            ranges in prop::collection::vec(any_range(), 0..12),
            key in prop::collection::vec(0u8..6, 1..4),
        ) {
            let intervals = Intervals::new(ranges.iter());
            let expected: Vec<u32> = (0..).zip(&ranges).filter(|(_, r)| r.contains(&key)).map(|(at, _)| at).collect();
            prop_assert_eq!(intervals.of(&key), expected);
        }

        #[test]
        fn windows_of_few_tables_make_a_range(
            ranges in prop::collection::vec(any_range(), 0..12),
            range in any_range(),
            reverse: bool,
            most in 1usize..6,
        ) {
            let intervals = Intervals::new(ranges.iter());
            let (mut left, mut parts) = (range.clone(), Vec::new());
            loop {
                let window = intervals.window(&left, reverse, most);
                prop_assert!(!window.is_empty() && left.covers(&window));
                let tables = ranges.iter().filter(|r| r.overlaps(&window)).count();
                let bounds = ranges.iter().flat_map(|r| [&r.start, &r.end]);
                prop_assert!(tables <= most || !bounds.into_iter().any(|b| window.is_cut_by(b)));
                parts.push(window.clone());
                prop_assert!(parts.len() < 50);
                let is_whole = if reverse { window.start == left.start } else { window.end == left.end };
                if is_whole {
                    break;
                }
                if reverse { left.end = window.start } else { left.start = window.end }
            }
            if reverse {
                parts.reverse();
            }
            prop_assert!(range.is_made_of(&parts), "{:?}", parts);
        }
    }
}
