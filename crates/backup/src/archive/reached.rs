//! How far an archive reaches: what a follower says of each partition, again and again. So where nobody writes it costs one small file,
//! and no segments.
//!
//! A mark is true whoever wrote it, and whenever. So the file keeps what is there, also of others and from before a gap, and only what
//! a later one of the same stretch says better goes.

use std::collections::{BTreeMap, BTreeSet};

use prost::Message;
use sextant_common::error::{Error, Result};
use sextant_common::ids::{LogPosition, PartitionId};
use sextant_proto::v1;

use super::coverage::Coverage;
use super::segment::{History, Name};
use crate::framing::{framed, unframed};

const MAGIC: [u8; 8] = *b"\xa5sextREA";
const VERSION: u32 = 1;

/// All that comes after the entry `archived` is later than `until_ms`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// In segments, or where the follower began.
    pub archived: LogPosition,
    pub until_ms: u64,
}

/// Of each history: until when, by what is archived.
pub type Marks = BTreeMap<History, BTreeMap<LogPosition, u64>>;

/// Of a history in a file; the newest stay.
const MARKS_MAX: usize = 64;

/// What a follower has archived with nothing missing in between. Whoever has a position of it can be taken on to its end.
#[derive(Clone, Debug, Default)]
pub struct Stretch {
    to: LogPosition,
    /// Where it began, and positions that segments of others lead on from.
    joined: BTreeSet<LogPosition>,
    /// Of each term: the first and the last index.
    terms: BTreeMap<u64, (u64, u64)>,
}

impl Stretch {
    /// `there`: segments of the history; `known`: positions that may lead here by them.
    pub fn new(after: LogPosition, there: &[Name], known: impl IntoIterator<Item = LogPosition>) -> Self {
        let leads_here =
            |from: &LogPosition| Coverage::from(*from, 0, there, &[], u64::MAX).goes_through(after);
        let joined = known.into_iter().filter(leads_here).chain([after]).collect();
        Self { to: after, joined, terms: BTreeMap::new() }
    }

    /// By entries of one term.
    pub fn extend(&mut self, to: LogPosition) {
        if to.index > self.to.index {
            let range = self.terms.entry(to.term).or_insert((self.to.index + 1, to.index));
            range.1 = to.index;
            self.to = to;
        }
    }

    fn has(&self, at: LogPosition) -> bool {
        let of_term = self.terms.get(&at.term);
        self.joined.contains(&at) || of_term.is_some_and(|(first, last)| (*first..=*last).contains(&at.index))
    }
}

/// What a follower says of a history now.
#[derive(Clone, Debug)]
struct Now {
    mark: Mark,
    stretch: Stretch,
    /// Of backups in this history.
    oldest: Option<LogPosition>,
}

/// What a follower says of all histories.
#[derive(Clone, Debug, Default)]
pub struct Own {
    now: BTreeMap<History, Now>,
    /// What it said before, or has read.
    before: Marks,
}

impl Own {
    /// A stretch begins. What was said of the one before stays.
    pub fn begin(&mut self, history: History, mark: Mark, stretch: Stretch, oldest: Option<LogPosition>) {
        if let Some(was) = self.now.insert(history, Now { mark, stretch, oldest }) {
            add(self.before.entry(history).or_default(), was.mark);
        }
    }

    /// It goes on.
    pub fn reach(&mut self, history: History, mark: Mark) {
        if let Some(now) = self.now.get_mut(&history) {
            now.stretch.extend(mark.archived);
            now.mark = mark;
        }
    }

    pub fn mark(&self, history: &History) -> Option<Mark> {
        self.now.get(history).map(|now| now.mark)
    }

    /// To see whether something has changed.
    pub fn newest(&self) -> BTreeMap<History, Mark> {
        self.now.iter().map(|(history, now)| (*history, now.mark)).collect()
    }

    pub fn remember(&mut self, written: Marks) {
        // (Something may have been said since.)
        self.before = self.merged(written);
    }

    /// With what a file has.
    pub fn merged(&self, there: Marks) -> Marks {
        let mut merged = there;
        for (history, marks) in &self.before {
            let of = merged.entry(*history).or_default();
            marks.iter().for_each(|(archived, until_ms)| {
                add(of, Mark { archived: *archived, until_ms: *until_ms });
            });
        }
        for (history, now) in &self.now {
            let of = merged.entry(*history).or_default();
            add(of, now.mark);
            now.thin_out(of);
        }
        for of in merged.values_mut() {
            while of.len() > MARKS_MAX {
                of.pop_first();
            }
        }
        merged
    }
}

impl Now {
    /// Without those that say nothing to any backup that another one does not say.
    fn thin_out(&self, of: &mut BTreeMap<LogPosition, u64>) {
        let Mark { archived, until_ms } = self.mark;
        of.retain(|at, ms| *at == archived || !self.stretch.has(*at) || *ms > until_ms);
        // (All backups have what is before the oldest.)
        let Some(oldest) = self.oldest else { return };
        let mut best = None;
        for (at, ms) in of.clone().range(..=oldest).rev() {
            match best {
                Some(best_ms) if best_ms >= *ms => drop(of.remove(at)),
                _ => best = Some(*ms),
            }
        }
    }
}

fn add(of: &mut BTreeMap<LogPosition, u64>, mark: Mark) {
    let until_ms = of.entry(mark.archived).or_insert(mark.until_ms);
    *until_ms = mark.until_ms.max(*until_ms);
}

#[derive(Clone, PartialEq, Message)]
struct WireMarks {
    #[prost(message, repeated, tag = "1")]
    marks: Vec<WireMark>,
}

#[derive(Clone, PartialEq, Message)]
struct WireMark {
    #[prost(uint32, tag = "1")]
    partition: u32,
    #[prost(fixed64, tag = "2")]
    lineage: u64,
    #[prost(message, optional, tag = "3")]
    archived: Option<v1::LogPosition>,
    #[prost(uint64, tag = "4")]
    until_ms: u64,
}

pub fn encode(marks: &Marks) -> Vec<u8> {
    let all = marks.iter().flat_map(|(history, of)| of.iter().map(move |mark| (history, mark)));
    let mark = |(history, (archived, until_ms)): (&History, (&LogPosition, &u64))| WireMark {
        partition: history.partition.0,
        lineage: history.lineage,
        archived: Some((*archived).into()),
        until_ms: *until_ms,
    };
    framed(MAGIC, VERSION, &WireMarks { marks: all.map(mark).collect() })
}

pub fn decode(name: &str, bytes: &[u8]) -> Result<Marks> {
    let bad = |what: String| Error::corrupt(format!("mark {name} {what}"));
    let message: WireMarks = unframed(MAGIC, VERSION, bytes).map_err(bad)?;
    let (mut marks, mut last) = (Marks::new(), None);
    for mark in message.marks {
        let history = History { partition: PartitionId(mark.partition), lineage: mark.lineage };
        let archived: LogPosition = mark.archived.unwrap_or_default().into();
        if last.is_some_and(|last| last >= (history, archived)) {
            return Err(bad("is not in order".into()));
        }
        last = Some((history, archived));
        marks.entry(history).or_default().insert(archived, mark.until_ms);
    }
    Ok(marks)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HISTORY: History = History { partition: PartitionId(3), lineage: 7 };

    fn at(term: u64, index: u64) -> LogPosition {
        LogPosition { term, index }
    }

    fn mark(archived: LogPosition, until_ms: u64) -> Mark {
        Mark { archived, until_ms }
    }

    fn own(began: LogPosition, to: LogPosition, until_ms: u64, oldest: Option<LogPosition>) -> Own {
        let mut own = Own::default();
        own.begin(HISTORY, mark(began, 0), Stretch::new(began, &[], []), oldest);
        own.reach(HISTORY, mark(to, until_ms));
        own
    }

    fn of(marks: &Marks) -> Vec<(u64, u64)> {
        marks[&HISTORY].iter().map(|(at, ms)| (at.index, *ms)).collect()
    }

    #[test]
    fn what_was_said_before_a_gap_is_still_said_after_it() {
        let before = own(at(1, 10), at(1, 10), 500, None).merged(Marks::new());
        let mut after = own(at(1, 50), at(1, 50), 900, None);
        let both = after.merged(before.clone());
        assert_eq!(of(&both), [(10, 500), (50, 900)]);
        let covered = |position| {
            let marks: Vec<Mark> = both[&HISTORY].iter().map(|(at, ms)| mark(*at, *ms)).collect();
            Coverage::from(position, 100, &[], &marks, u64::MAX).until_ms
        };
        assert_eq!((covered(at(1, 10)), covered(at(1, 60))), (500, 900));
        // Within a stretch one is enough, as long as none is lowered.
        after.reach(HISTORY, mark(at(1, 60), 1000));
        assert_eq!(of(&after.merged(both.clone())), [(10, 500), (60, 1000)]);
        after.reach(HISTORY, mark(at(2, 70), 950));
        assert_eq!(of(&after.merged(both)), [(10, 500), (70, 950)]);
        // A gap within one life of a follower.
        after.begin(HISTORY, mark(at(3, 90), 1000), Stretch::new(at(3, 90), &[], []), None);
        assert_eq!(of(&after.merged(before)), [(10, 500), (70, 950), (90, 1000)]);
    }

    #[test]
    fn the_slower_of_two_followers_lowers_nothing() {
        let fast = own(at(1, 10), at(1, 100), 900, None);
        let slow = own(at(1, 10), at(1, 90), 800, None);
        let both = slow.merged(fast.merged(Marks::new()));
        assert_eq!(of(&both), [(90, 800), (100, 900)]);
        assert_eq!(of(&own(at(1, 10), at(1, 100), 850, None).merged(both.clone())), [(100, 900)]);
        assert_eq!(of(&fast.merged(both)), [(100, 900)]);
    }

    #[test]
    fn only_marks_that_count_for_a_backup_are_kept_and_not_more_than_so_many() {
        let there = (1..200).map(|n| (at(1, n), n * 10)).collect();
        let merged = own(at(9, 500), at(9, 500), 9000, None).merged(Marks::from([(HISTORY, there)]));
        assert_eq!((merged[&HISTORY].len(), of(&merged)[0]), (MARKS_MAX, (137, 1370)));
        // A backup at 150 counts on the last one before it, and one that says more.
        let oldest = Some(at(1, 150));
        let merged = own(at(9, 500), at(9, 500), 9000, oldest).merged(merged);
        assert_eq!(of(&merged)[..2], [(150, 1500), (151, 1510)]);
        let other = BTreeMap::from([(at(1, 3), 50), (at(1, 4), 800), (at(1, 5), 60)]);
        let merged = own(at(9, 500), at(9, 500), 9000, oldest).merged(Marks::from([(HISTORY, other)]));
        assert_eq!(of(&merged), [(4, 800), (5, 60), (500, 9000)]);
    }

    #[test]
    fn positions_of_a_log_that_was_lost_are_in_no_stretch() {
        // After entry 12 the log began anew; entry 20 of term 1 is another log's.
        let lost = Marks::from([(HISTORY, BTreeMap::from([(at(1, 20), 100)]))]);
        assert_eq!(of(&own(at(1, 12), at(9, 30), 900, None).merged(lost)), [(20, 100), (30, 900)]);
    }

    #[test]
    fn what_leads_to_a_stretch_by_segments_of_others_is_of_it() {
        let name = |after, to| Name {
            history: HISTORY,
            after: at(1, after),
            to: at(1, to),
            from_ms: 0,
            until_ms: 0,
            ends_by_load: false,
        };
        let there = [name(10, 20), name(20, 30), name(40, 50)];
        let stretch = Stretch::new(at(1, 30), &there, [at(1, 5), at(1, 15), at(1, 20), at(1, 40)]);
        let has: Vec<u64> = (0..100).filter(|index| stretch.has(at(1, *index))).collect();
        assert_eq!(has, [15, 20, 30]);
    }

    #[test]
    fn marks_that_are_not_in_order_are_bad() {
        let mark =
            |index| WireMark { partition: 0, lineage: 7, archived: Some(at(1, index).into()), until_ms: 1 };
        let bytes = |marks: [u64; 2]| framed(MAGIC, VERSION, &WireMarks { marks: marks.map(mark).into() });
        assert!(decode("a", &bytes([1, 2])).is_ok());
        assert!(decode("a", &bytes([2, 1])).is_err() && decode("a", &bytes([1, 1])).is_err());
    }

    #[test]
    fn marks_are_read_as_they_were_written_and_not_if_a_bit_of_them_is_another() {
        let of = |partition, index| {
            let history = History { partition: PartitionId(partition), lineage: 7 };
            (history, BTreeMap::from([(at(2, index), 100), (at(2, index + 1), 90)]))
        };
        let marks = Marks::from([of(0, 5), of(1, 9)]);
        let bytes = encode(&marks);
        assert_eq!(decode("a", &bytes).unwrap(), marks);
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert!(decode("a", &damaged).is_err(), "byte {at}");
        }
    }
}
