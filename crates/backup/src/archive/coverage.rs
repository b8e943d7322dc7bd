//! How far a backup's partition can be taken on: which segments follow one another from its position, and until when. Pure.
//!
//! Positions are of term and index: two logs of one lineage with an entry of the same term and index are the same up to there. So what
//! was written before a partition was lost and rebuilt is never continued by what came after.

use std::fmt;

use sextant_common::ids::LogPosition;

use super::reached::Mark;
use super::segment::Name;
use super::time_text;

/// Why it goes no further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// There is nothing more.
    Newest,
    /// A bulk load came next.
    Load,
    /// What came next is not there, but later entries are.
    Gap,
    /// Where the backup stands in the log is not known: an older version made it.
    NoPosition,
}

/// What continues a backup in a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Coverage {
    /// In order. Two may have entries in common.
    pub segments: Vec<Name>,
    /// The last entry that is covered.
    pub to: LogPosition,
    /// All that was written up to then, by the leaders' clocks, is in backup and segments.
    pub until_ms: u64,
    pub end: End,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            End::Newest => "what came next is not archived",
            End::Load => "a bulk load came next, which no log has",
            End::Gap => "what came next is missing, a gap",
            End::NoPosition => "an older version made the backup, and did not say where in the log it stands",
        })
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", time_text(self.until_ms), self.end)
    }
}

impl Coverage {
    /// From a position on, of which a backup has everything up to `opened_ms`. `there`, `marks`: of the partition and lineage.
    pub fn from(start: LogPosition, opened_ms: u64, there: &[Name], marks: &[Mark]) -> Self {
        let mut covered = Self { segments: Vec::new(), to: start, until_ms: opened_ms, end: End::Newest };
        while let Some(next) = furthest(there, covered.to) {
            covered.to = next.to;
            covered.until_ms = covered.until_ms.max(next.until_ms);
            covered.segments.push(next);
            if next.ends_by_load {
                covered.end = End::Load;
                return covered;
            }
        }
        for mark in marks.iter().filter(|mark| mark.archived <= covered.to) {
            covered.until_ms = covered.until_ms.max(mark.until_ms);
        }
        if there.iter().any(|segment| segment.to > covered.to)
            || marks.iter().any(|mark| mark.archived > covered.to)
        {
            covered.end = End::Gap;
        }
        covered
    }

    pub fn unknown(opened_ms: u64) -> Self {
        let to = LogPosition::default();
        Self { segments: Vec::new(), to, until_ms: opened_ms, end: End::NoPosition }
    }
}

/// Of the segments that go on at a position the one that leads furthest.
fn furthest(there: &[Name], at: LogPosition) -> Option<Name> {
    let goes_on = |segment: &&Name| {
        // All its entries are of one term: it has exactly this one if that is of its term, too.
        let has =
            segment.to.term == at.term && (segment.after.index + 1..segment.to.index).contains(&at.index);
        segment.after == at || has
    };
    there.iter().filter(goes_on).max_by_key(|segment| segment.to).copied()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use sextant_common::ids::PartitionId;

    use super::super::segment::History;
    use super::*;

    fn at(term: u64, index: u64) -> LogPosition {
        LogPosition { term, index }
    }

    /// Until ten times its last index.
    fn segment(after: (u64, u64), to: (u64, u64)) -> Name {
        let history = History { partition: PartitionId(0), lineage: 1 };
        let (after, to) = (at(after.0, after.1), at(to.0, to.1));
        Name { history, after, to, from_ms: 0, until_ms: to.index * 10, ends_by_load: false }
    }

    fn covered(start: (u64, u64), there: &[Name], marks: &[Mark]) -> (u64, u64, End) {
        let covered = Coverage::from(at(start.0, start.1), 1, there, marks);
        (covered.to.index, covered.until_ms, covered.end)
    }

    #[test]
    fn segments_follow_one_another_over_terms_and_overlaps() {
        let there = [segment((1, 10), (1, 20)), segment((1, 20), (3, 30)), segment((3, 25), (3, 40))];
        assert_eq!(covered((1, 10), &there, &[]), (40, 400, End::Newest));
        assert_eq!(covered((1, 15), &there, &[]), (40, 400, End::Newest), "from the middle of one");
        assert_eq!(covered((3, 40), &there, &[]), (40, 1, End::Newest), "from the end of all");
        assert_eq!(covered((1, 9), &there, &[]), (9, 1, End::Gap));
        assert_eq!(covered((2, 15), &there, &[]), (15, 1, End::Gap), "another log's entry of that index");
        assert_eq!(covered((2, 20), &there, &[]), (20, 1, End::Gap));
    }

    #[test]
    fn a_rebuilt_partition_does_not_continue_what_was_lost() {
        // Entries 11 to 20 of term 1 were archived, but not flushed; the log began anew after entry 12.
        let there = [segment((1, 10), (1, 20)), segment((9, 13), (9, 25))];
        assert_eq!(covered((1, 10), &there, &[]), (20, 200, End::Gap));
        let mark = Mark { archived: at(9, 25), until_ms: 900 };
        assert_eq!(covered((1, 10), &there, &[mark]), (20, 200, End::Gap), "nor does its mark");
        assert_eq!(covered((9, 18), &there, &[mark]), (25, 900, End::Newest));
    }

    #[test]
    fn a_load_ends_it_and_a_mark_does_not_lead_beyond() {
        let load = Name { ends_by_load: true, ..segment((1, 20), (1, 30)) };
        let there = [segment((1, 10), (1, 20)), load, segment((1, 30), (1, 40))];
        let mark = Mark { archived: at(1, 40), until_ms: 900 };
        assert_eq!(covered((1, 10), &there, &[mark]), (30, 300, End::Load));
        assert_eq!(covered((1, 30), &there, &[mark]), (40, 900, End::Newest), "a backup after it");
    }

    #[test]
    fn a_mark_counts_for_whoever_has_what_it_counts_on() {
        let there = [segment((1, 10), (1, 20))];
        let mark = |index| Mark { archived: at(1, index), until_ms: 900 };
        assert_eq!(covered((1, 10), &there, &[mark(20)]), (20, 900, End::Newest));
        assert_eq!(
            covered((1, 10), &there, &[mark(15)]),
            (20, 900, End::Newest),
            "an older one is true as well"
        );
        assert_eq!(covered((1, 25), &there, &[mark(20)]), (25, 900, End::Newest), "a backup that is newer");
        assert_eq!(covered((1, 10), &there, &[mark(21)]), (20, 200, End::Gap));
        assert_eq!(covered((1, 5), &[], &[mark(5)]), (5, 900, End::Newest), "nobody has written");
    }

    proptest! {
        /// Two followers have cut one log each in its own way, and some files are lost. Entries of term t are those from 100 t on.
        #[test]
        fn what_is_covered_is_there_and_no_more_is_possible(
            cuts in prop::collection::vec(prop::collection::btree_set(1u64..400, 1..30), 2),
            lost in prop::collection::vec(any::<bool>(), 60),
            start in 0u64..400,
        ) {
            let position = |index: u64| at(index / 100, index);
            let mut there = Vec::new();
            for cuts in cuts {
                // A segment has entries of one term only.
                let ends: Vec<u64> = cuts.into_iter().chain([99, 199, 299]).collect::<std::collections::BTreeSet<_>>().into_iter().collect();
                for pair in ends.windows(2) {
                    let (after, to) = (position(pair[0]), position(pair[1]));
                    let name = segment((after.term, after.index), (to.term, to.index));
                    there.push(name);
                }
            }
            let mut lost = lost.into_iter();
            there.retain(|_| !lost.next().unwrap_or(false));
            let covered = Coverage::from(position(start), 0, &there, &[]);
            let archived = |index: u64| there.iter().any(|s| s.after.index < index && index <= s.to.index);
            let expected = (start + 1..).take_while(|index| archived(*index)).last().unwrap_or(start);
            prop_assert_eq!(covered.to, position(expected));
            // And the segments are a chain.
            let mut reached = start;
            for segment in &covered.segments {
                prop_assert!(segment.after.index <= reached && reached < segment.to.index);
                reached = segment.to.index;
            }
            prop_assert_eq!(covered.end == End::Gap, there.iter().any(|s| s.to.index > expected));
        }
    }
}
