//! How far a backup's partition can be taken on: which segments follow one another from its position, and until when. Pure.
//!
//! Positions are of term and index: two logs of one lineage with an entry of the same term and index are the same up to there. So what
//! was written before a partition was lost and rebuilt is never continued by what came after.

use std::collections::BTreeMap;
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
    /// A bulk load came next, or the end of a table.
    Load,
    /// What came next is not there, but later entries are.
    Gap,
    /// What came next has a time that cannot be: who wanted an earlier one would not get it.
    Odd(Name),
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
            End::Odd(name) => {
                return write!(
                    f,
                    "what came next has a time far in the future by the clock here, segment {}/{name}",
                    name.history
                );
            }
            End::Newest => "what came next is not archived",
            End::Load => "a bulk load came next, or a table was dropped, which no log has",
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
    /// Times that are later than `limit_ms` are none.
    pub fn from(start: LogPosition, opened_ms: u64, there: &[Name], marks: &[Mark], limit_ms: u64) -> Self {
        let mut covered = Self { segments: Vec::new(), to: start, until_ms: opened_ms, end: End::Newest };
        let mut following = Following::of(there);
        while let Some(next) = following.furthest(covered.to) {
            if next.from_ms.max(next.until_ms) > limit_ms {
                covered.end = End::Odd(next);
                break;
            }
            covered.to = next.to;
            covered.until_ms = covered.until_ms.max(next.until_ms);
            covered.segments.push(next);
            if next.ends_by_load {
                covered.end = End::Load;
                return covered;
            }
        }
        let are_true = |mark: &&Mark| mark.archived <= covered.to && mark.until_ms <= limit_ms;
        let marked_ms = marks.iter().filter(are_true).map(|mark| mark.until_ms).max();
        covered.until_ms = covered.until_ms.max(marked_ms.unwrap_or(0));
        if covered.end != End::Newest {
            return covered;
        }
        if there.iter().any(|segment| segment.to > covered.to)
            || marks.iter().any(|mark| mark.archived > covered.to)
        {
            covered.end = End::Gap;
        }
        covered
    }

    /// Whether a position is on the way.
    pub fn goes_through(&self, at: LogPosition) -> bool {
        let has = |segment: &Name| segment.after == at || segment.to == at || segment.has_before_end(at);
        self.to == at || self.segments.iter().any(has)
    }

    pub fn unknown(opened_ms: u64) -> Self {
        let to = LogPosition::default();
        Self { segments: Vec::new(), to, until_ms: opened_ms, end: End::NoPosition }
    }
}

/// Segments, sorted to be asked for what goes on at one position after another, each later than the one before.
struct Following<'a> {
    there: &'a [Name],
    /// By the position after which they begin: where the one that leads furthest ends, and its place.
    after: BTreeMap<LogPosition, (LogPosition, usize)>,
    terms: BTreeMap<u64, Term>,
}

/// The segments of one term.
#[derive(Default)]
struct Term {
    /// Index after which it begins, and its place; those that begin first are last.
    to_come: Vec<(u64, usize)>,
    /// Of those that have begun.
    furthest: Option<(LogPosition, usize)>,
}

impl<'a> Following<'a> {
    fn of(there: &'a [Name]) -> Self {
        let (mut after, mut terms) = (BTreeMap::new(), BTreeMap::<u64, Term>::new());
        for (place, segment) in there.iter().enumerate() {
            let furthest = after.entry(segment.after).or_insert((segment.to, place));
            *furthest = (segment.to, place).max(*furthest);
            terms.entry(segment.to.term).or_default().to_come.push((segment.after.index, place));
        }
        for term in terms.values_mut() {
            term.to_come.sort_unstable_by_key(|begins| std::cmp::Reverse(*begins));
        }
        Self { there, after, terms }
    }

    /// Of the segments that go on at a position the one that leads furthest.
    fn furthest(&mut self, at: LogPosition) -> Option<Name> {
        let term = self.terms.get_mut(&at.term);
        let has = term.and_then(|term| {
            while let Some((_, place)) = term.to_come.pop_if(|(after, _)| *after < at.index) {
                term.furthest = term.furthest.max(Some((self.there[place].to, place)));
            }
            term.furthest.filter(|(to, _)| to.index > at.index)
        });
        let (_, place) = has.max(self.after.get(&at).copied())?;
        Some(self.there[place])
    }
}

impl Name {
    /// All its entries are of one term: it has exactly this one if that is of its term, too.
    fn has_before_end(&self, at: LogPosition) -> bool {
        self.to.term == at.term && (self.after.index + 1..self.to.index).contains(&at.index)
    }
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
        let covered = Coverage::from(at(start.0, start.1), 1, there, marks, u64::MAX);
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

    #[test]
    fn a_time_that_cannot_be_ends_it_where_the_good_ones_do() {
        let odd = Name { until_ms: 5000, ..segment((1, 20), (1, 30)) };
        let there = [
            segment((1, 10), (1, 20)),
            odd,
            Name { from_ms: 5001, until_ms: 5002, ..segment((1, 30), (1, 40)) },
        ];
        let marks =
            [Mark { archived: at(1, 20), until_ms: 250 }, Mark { archived: at(1, 20), until_ms: 5000 }];
        let covered = Coverage::from(at(1, 10), 1, &there, &marks, 1000);
        assert_eq!((covered.segments.len(), covered.until_ms, covered.end), (1, 250, End::Odd(odd)));
        assert!(
            covered
                .to_string()
                .contains(&format!("in the future by the clock here, segment 0-0000000000000001/{odd}")),
            "{covered}"
        );
        assert_eq!(Coverage::from(at(1, 10), 1, &there, &marks, 6000).end, End::Newest);
    }

    /// As simple as it can be.
    fn slow(start: LogPosition, there: &[Name]) -> (LogPosition, Vec<Name>) {
        let (mut to, mut segments) = (start, Vec::new());
        let goes_on = |at| move |segment: &&Name| segment.after == at || segment.has_before_end(at);
        while let Some(next) = there.iter().filter(goes_on(to)).max_by_key(|segment| segment.to) {
            to = next.to;
            segments.push(*next);
            if next.ends_by_load {
                break;
            }
        }
        (to, segments)
    }

    proptest! {
        #[test]
        fn sorted_it_is_the_same_as_looking_at_all_again_and_again(
            segments in prop::collection::vec((0u64..30, 0u64..4, 1u64..12, 0u64..2, 0u32..8, 0u64..50), 0..60),
            start in (0u64..4, 0u64..30),
        ) {
            let name = |(after, term, entries, later, load, until_ms): (u64, u64, u64, u64, u32, u64)| Name {
                ends_by_load: load == 0,
                until_ms,
                ..segment((term, after), (term + later, after + entries))
            };
            let there: Vec<Name> = segments.into_iter().map(name).collect();
            let covered = Coverage::from(at(start.0, start.1), 0, &there, &[], u64::MAX);
            prop_assert_eq!((covered.to, covered.segments), slow(at(start.0, start.1), &there));
        }

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
            let covered = Coverage::from(position(start), 0, &there, &[], u64::MAX);
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
