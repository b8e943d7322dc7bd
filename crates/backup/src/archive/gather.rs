//! Pages of a log become segments. Pure: pages and times in, segments out.
//!
//! Invariant: what a segment or a mark has said to be complete until some time stays so. A group that comes later with an earlier time
//! (the next leader's clock is behind) gets a later one. And nothing gets another time because the clock [here](super::clocks) is behind.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use sextant_common::archive::{LogGroup, LogPage, LogTable};
use sextant_common::error::{Error, Result};
use sextant_common::ids::{LogPosition, TableId};

use super::clocks::Now;
use super::reached::Mark;
use super::segment::{History, Name, Segment};
use super::time_text;

/// A segment is not larger by more than a page.
const BYTES_MAX: usize = 8 * 1024 * 1024;
/// Entries that wrote nothing are of no hurry: they only have to be named before the log forgets them.
const EMPTY_ENTRIES_MAX: u64 = 500;
const EMPTY_AGE_MAX: Duration = Duration::from_secs(600);
/// Of a record, beside key and value.
const RECORD_BYTES: usize = 24;

pub struct Gatherer {
    pub history: History,
    every: Duration,
    /// What was cut off already.
    archived: LogPosition,
    /// What was taken.
    to: LogPosition,
    /// All that comes is later.
    said_ms: u64,
    /// Of what was taken and is not cut off: later than that, too.
    passed_ms: u64,
    /// By position: what comes after it is later than this. Those that were not passed yet.
    to_pass: VecDeque<(LogPosition, u64)>,
    now: Now,
    /// To be told; None: nothing, or it was told.
    odd: Option<String>,
    has_told: bool,
    /// Nothing up to then comes after `to`; 0: not known.
    complete_ms: u64,
    groups: Vec<LogGroup>,
    tables: BTreeMap<TableId, LogTable>,
    bytes: usize,
    /// Since when something waits.
    since_ns: Option<u64>,
}

impl Gatherer {
    /// Of what comes after a position. `said` by anyone, in any order: all that comes after this position is later than that.
    pub fn new(
        history: History,
        after: LogPosition,
        mut said: Vec<(LogPosition, u64)>,
        every: Duration,
    ) -> Self {
        said.sort_unstable();
        let of_it = said.partition_point(|(at, _)| *at <= after);
        let to_pass = said.split_off(of_it).into();
        Self {
            history,
            every,
            archived: after,
            to: after,
            said_ms: said.iter().map(|(_, until_ms)| *until_ms).max().unwrap_or(0),
            passed_ms: 0,
            to_pass,
            now: Now::NEVER,
            odd: None,
            has_told: false,
            complete_ms: 0,
            groups: Vec::new(),
            tables: BTreeMap::new(),
            bytes: 0,
            since_ns: None,
        }
    }

    pub fn position(&self) -> LogPosition {
        self.to
    }

    pub fn set_now(&mut self, now: Now) {
        self.now = now;
    }

    /// Times that cannot be: once.
    pub fn take_odd(&mut self) -> Option<String> {
        self.odd.take()
    }

    /// Whether times that cannot be are known for such.
    fn check_times(&mut self, page: &LogPage) -> Result<()> {
        let newest_ms = page.groups.iter().map(|group| group.time_ms).max().unwrap_or(0);
        let (what, ms) = match (self.now.is_odd(page.complete_until_ms), self.now.is_odd(newest_ms)) {
            (true, _) => ("a leader says that it is complete until", page.complete_until_ms),
            (_, true) => ("what was written has the time", newest_ms),
            _ => return Ok(()),
        };
        self.now.check()?;
        if !std::mem::replace(&mut self.has_told, true) {
            self.odd = Some(format!("{what} {}, far in the future by the clock here", time_text(ms)));
        }
        Ok(())
    }

    fn pass(&mut self, before: LogPosition) {
        while let Some((_, until_ms)) = self.to_pass.front().filter(|(at, _)| *at < before) {
            self.passed_ms = self.passed_ms.max(*until_ms);
            self.to_pass.pop_front();
        }
    }

    /// What is to be written now, in this order. If it fails nothing was taken.
    pub fn take(&mut self, page: LogPage, now_ns: u64) -> Result<Vec<Segment>> {
        if page.lineage != self.history.lineage || page.after != self.to {
            let (from, at) = (page.after, self.to);
            return Err(Error::internal(format!("pages of the log come from {from} on, and not from {at}")));
        }
        self.check_times(&page)?;
        let mut cut = Vec::new();
        let waits = self.to != self.archived;
        if waits && !page.is_empty() && page.to.term != self.to.term {
            cut.extend(self.cut(false));
        }
        if !page.is_empty() {
            self.since_ns.get_or_insert(now_ns);
            self.complete_ms = 0;
        }
        self.to = page.to;
        if !self.now.is_odd(page.complete_until_ms) {
            self.complete_ms = self.complete_ms.max(page.complete_until_ms);
        }
        self.tables.extend(page.tables.into_iter().map(|table| (table.id, table)));
        for mut group in page.groups {
            // It was written before it came here. (A leader that has had such a time once gives all that it writes later times.)
            if self.now.is_odd(group.time_ms) {
                group.time_ms = self.now.ms();
            }
            self.pass(LogPosition { term: page.to.term, index: group.index });
            let said_ms = self.said_ms.max(self.passed_ms);
            let before_ms = self.groups.last().map_or(0, |last| last.time_ms);
            group.time_ms = group.time_ms.max(said_ms.saturating_add(1)).max(before_ms);
            self.bytes += bytes(&group);
            self.groups.push(group);
        }
        if page.ends_by_load || self.bytes >= BYTES_MAX || self.is_due(now_ns) {
            cut.extend(self.cut(page.ends_by_load));
        }
        Ok(cut)
    }

    fn is_due(&self, now_ns: u64) -> bool {
        let Some(since_ns) = self.since_ns else { return false };
        let waited = Duration::from_nanos(now_ns.saturating_sub(since_ns));
        match self.groups.is_empty() {
            true => {
                self.to.index - self.archived.index >= EMPTY_ENTRIES_MAX
                    || waited >= EMPTY_AGE_MAX.max(self.every)
            }
            false => waited >= self.every,
        }
    }

    /// What has been taken and not cut off.
    pub fn rest(&mut self) -> Option<Segment> {
        self.cut(false)
    }

    fn cut(&mut self, ends_by_load: bool) -> Option<Segment> {
        if self.to == self.archived {
            return None;
        }
        // (Others of the last one's millisecond may come.)
        let of_groups = self.groups.last().map_or(0, |last| last.time_ms.saturating_sub(1));
        self.said_ms = self.said_ms.max(of_groups).max(self.complete_ms).max(self.passed_ms);
        let from_ms = self.groups.first().map_or(self.said_ms, |first| first.time_ms);
        let (after, until_ms) = (self.archived, self.said_ms);
        let name = Name { history: self.history, after, to: self.to, from_ms, until_ms, ends_by_load };
        self.archived = self.to;
        (self.bytes, self.since_ns) = (0, None);
        let tables = std::mem::take(&mut self.tables).into_values().collect();
        Some(Segment { name, groups: std::mem::take(&mut self.groups), tables })
    }

    /// How far it is when everything that was cut off is written. From now on this is said.
    pub fn mark(&mut self) -> Mark {
        let until_ms = match self.groups.first() {
            Some(first) => first.time_ms.saturating_sub(1),
            None => self.complete_ms,
        };
        self.said_ms = self.said_ms.max(until_ms);
        Mark { archived: self.archived, until_ms: self.said_ms }
    }
}

fn bytes(group: &LogGroup) -> usize {
    let of = |value: &Option<bytes::Bytes>| value.as_ref().map_or(0, bytes::Bytes::len);
    group.records().map(|(_, record)| record.key.len() + of(&record.value) + RECORD_BYTES).sum()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use sextant_common::ids::PartitionId;

    use super::super::AHEAD_MS_MAX;
    use super::super::clocks::tests::now;
    use super::super::coverage::{Coverage, End};
    use super::super::segment::{decode, encode};
    use super::*;
    use crate::testing::{group, log_table};

    const HISTORY: History = History { partition: PartitionId(0), lineage: 7 };
    const SECOND: u64 = 1_000_000_000;

    fn at(term: u64, index: u64) -> LogPosition {
        LogPosition { term, index }
    }

    fn page(after: LogPosition, to: LogPosition, groups: &[(u64, u64)], complete_until_ms: u64) -> LogPage {
        let groups: Vec<LogGroup> =
            groups.iter().map(|(index, ms)| group(*index, *ms, &[("k", Some("v"))])).collect();
        let tables = if groups.is_empty() { Vec::new() } else { vec![log_table()] };
        LogPage { lineage: 7, after, to, groups, tables, complete_until_ms, ..LogPage::default() }
    }

    fn gatherer() -> Gatherer {
        Gatherer::new(HISTORY, at(1, 10), Vec::new(), Duration::from_secs(30))
    }

    #[test]
    fn a_segment_is_cut_when_it_has_waited_and_says_what_is_complete() {
        let mut g = gatherer();
        assert!(g.take(page(at(1, 10), at(1, 12), &[(11, 100), (12, 200)], 0), 0).unwrap().is_empty());
        assert_eq!(g.mark(), Mark { archived: at(1, 10), until_ms: 99 }, "the first is not written yet");
        let cut = g.take(page(at(1, 12), at(1, 12), &[], 500), 30 * SECOND).unwrap();
        assert_eq!((cut[0].name.from_ms, cut[0].name.until_ms), (100, 500));
        assert_eq!((cut[0].name.after, cut[0].name.to), (at(1, 10), at(1, 12)));
        assert_eq!(g.mark(), Mark { archived: at(1, 12), until_ms: 500 });
        g.take(page(at(1, 12), at(1, 12), &[], 900), 31 * SECOND).unwrap();
        assert_eq!(
            g.mark(),
            Mark { archived: at(1, 12), until_ms: 900 },
            "nobody writes, and no file is needed"
        );
        assert!(g.rest().is_none());
    }

    #[test]
    fn who_is_not_told_that_it_is_complete_says_what_is_earlier_than_the_last() {
        let mut g = gatherer();
        g.take(page(at(1, 10), at(1, 12), &[(11, 100), (12, 200)], 0), 0).unwrap();
        assert_eq!(g.rest().unwrap().name.until_ms, 199, "another one of this millisecond may come");
        let later = g.take(page(at(1, 12), at(1, 13), &[(13, 200)], 0), 0).unwrap();
        assert!(later.is_empty());
        assert_eq!(g.rest().unwrap().groups[0].time_ms, 200);
    }

    #[test]
    fn what_comes_from_a_clock_that_is_behind_is_later_than_what_was_said() {
        let mut g = gatherer();
        g.take(page(at(1, 10), at(1, 10), &[], 500), 0).unwrap();
        assert_eq!(g.mark().until_ms, 500);
        g.take(page(at(1, 10), at(1, 12), &[(11, 450), (12, 501)], 0), 0).unwrap();
        let times: Vec<u64> = g.rest().unwrap().groups.iter().map(|group| group.time_ms).collect();
        assert_eq!(times, [501, 501]);
    }

    #[test]
    fn a_term_and_a_load_end_a_segment_and_pages_have_to_follow() {
        let mut g = gatherer();
        g.take(page(at(1, 10), at(1, 12), &[(11, 100)], 0), 0).unwrap();
        let cut = g.take(page(at(1, 12), at(2, 14), &[(14, 150)], 0), 0).unwrap();
        assert_eq!((cut.len(), cut[0].name.to), (1, at(1, 12)));
        let load = LogPage { ends_by_load: true, ..page(at(2, 14), at(2, 15), &[], 0) };
        let cut = g.take(load, 0).unwrap();
        assert!(cut.len() == 1 && cut[0].name.ends_by_load && cut[0].name.until_ms == 149);
        assert!(g.take(page(at(2, 14), at(2, 16), &[], 0), 0).is_err());
    }

    #[test]
    fn entries_that_wrote_nothing_are_named_before_the_log_forgets_them() {
        let mut g = gatherer();
        assert!(g.take(page(at(1, 10), at(1, 509), &[], 0), 60 * SECOND).unwrap().is_empty());
        let cut = g.take(page(at(1, 509), at(1, 510), &[], 0), 60 * SECOND).unwrap();
        assert_eq!((cut[0].name.to, cut[0].groups.len()), (at(1, 510), 0));
        assert!(g.take(page(at(1, 510), at(1, 511), &[], 0), 60 * SECOND).unwrap().is_empty());
        assert_eq!(g.take(page(at(1, 511), at(1, 511), &[], 0), 660 * SECOND).unwrap().len(), 1);
    }

    #[test]
    fn what_is_archived_again_is_later_only_than_what_was_said_before_it() {
        let said = vec![(at(1, 13), 300), (at(1, 10), 90), (at(1, 20), 900), (at(1, 8), 80)];
        let mut g = Gatherer::new(HISTORY, at(1, 10), said, Duration::from_secs(30));
        assert_eq!(g.mark().until_ms, 90);
        g.take(page(at(1, 10), at(1, 15), &[(11, 50), (13, 100), (14, 110)], 0), 0).unwrap();
        assert_eq!(g.mark(), Mark { archived: at(1, 10), until_ms: 90 }, "entry 11 is of 91");
        let times = |segment: Segment| segment.groups.iter().map(|g| g.time_ms).collect::<Vec<_>>();
        assert_eq!(times(g.rest().unwrap()), [91, 100, 301]);
        g.take(page(at(1, 15), at(1, 21), &[(16, 310), (21, 320)], 0), 0).unwrap();
        assert_eq!(times(g.rest().unwrap()), [310, 901]);
    }

    #[test]
    fn times_in_the_future_are_told_once_and_leaders_are_not_believed() {
        const NOW: u64 = 100_000;
        let mut g = gatherer();
        g.set_now(now(NOW, 0));
        g.take(page(at(1, 10), at(1, 10), &[], u64::MAX), 0).unwrap();
        assert!(g.take_odd().unwrap().contains("future"));
        assert_eq!(g.mark().until_ms, 0);
        g.take(page(at(1, 10), at(1, 12), &[(11, 900), (12, u64::MAX)], 0), 0).unwrap();
        g.set_now(now(NOW + 10, 0));
        g.take(page(at(1, 12), at(1, 13), &[(13, u64::MAX)], u64::MAX), 0).unwrap();
        assert!(g.take_odd().is_none());
        let segment = g.rest().unwrap();
        let times: Vec<u64> = segment.groups.iter().map(|group| group.time_ms).collect();
        assert_eq!(times, [900, NOW, NOW + 10], "they were written before they came");
        assert_eq!((segment.name.from_ms, segment.name.until_ms), (900, NOW + 9));
        let mut g = gatherer();
        g.set_now(now(NOW, 0));
        g.take(page(at(1, 10), at(1, 12), &[(11, NOW + AHEAD_MS_MAX + 1)], 0), 0).unwrap();
        assert!(g.take_odd().unwrap().contains("was written"));
    }

    #[test]
    fn a_clock_here_that_is_behind_changes_no_times_and_nothing_is_written() {
        const THERE: u64 = 1_000_000_000;
        const BEHIND: u64 = 600_000;
        let said = vec![(at(1, 10), THERE - 5000)];
        let mut g = Gatherer::new(HISTORY, at(1, 10), said, Duration::from_secs(30));
        let before = g.mark();
        let pages = [
            page(at(1, 10), at(1, 12), &[(11, THERE - BEHIND), (12, THERE - 2000)], 0),
            page(at(1, 10), at(1, 10), &[], THERE),
        ];
        g.set_now(now(THERE - BEHIND, BEHIND));
        for page in pages.clone() {
            let told = g.take(page, 60 * SECOND).unwrap_err();
            assert_eq!(&*told.message, "the clock here is 600 s behind the leaders'");
            assert_eq!((g.mark(), g.rest(), g.take_odd()), (before, None, None));
        }
        // It is set, and goes on as if nothing had been.
        g.set_now(now(THERE, 0));
        let [written, _] = pages;
        g.take(written, 60 * SECOND).unwrap();
        let times: Vec<u64> = g.rest().unwrap().groups.iter().map(|group| group.time_ms).collect();
        assert_eq!(times, [THERE - 4999, THERE - 2000]);
    }

    #[test]
    fn what_has_no_time_is_not_before_what_came_before_it() {
        let mut g = gatherer();
        g.set_now(now(100_000, 0));
        let ahead = 100_000 + AHEAD_MS_MAX;
        g.take(page(at(1, 10), at(1, 12), &[(11, ahead), (12, u64::MAX)], 0), 0).unwrap();
        let times: Vec<u64> = g.rest().unwrap().groups.iter().map(|group| group.time_ms).collect();
        assert_eq!(times, [ahead, ahead]);
    }

    proptest! {
        /// However pages come, what the segments have is what the log had, and covers as much as is said.
        #[test]
        fn segments_are_a_chain_of_all_that_came(steps in prop::collection::vec((1u64..4, any::<bool>(), 0u64..40, 0u64..3, any::<bool>()), 1..40)) {
            let (mut g, mut to, mut ms, mut now_ns) = (gatherer(), at(1, 10), 1000, 0);
            let (mut segments, mut written) = (Vec::new(), Vec::new());
            for (entries, writes, later, terms, complete) in steps {
                let next = at(to.term + terms / 2, to.index + entries);
                ms += later;
                let groups = if writes { vec![(next.index, ms)] } else { vec![] };
                written.extend(groups.iter().map(|(index, _)| *index));
                now_ns += later * SECOND;
                segments.extend(g.take(page(to, next, &groups, if complete { ms } else { 0 }), now_ns).unwrap());
                to = next;
                let mark = g.mark();
                let names: Vec<Name> = segments.iter().map(|s| s.name).collect();
                let covered = Coverage::from(at(1, 10), 0, &names, &[mark], u64::MAX);
                prop_assert_eq!(covered.end, End::Newest);
                prop_assert!(covered.until_ms >= mark.until_ms && covered.segments.len() == segments.len());
            }
            segments.extend(g.rest());
            let groups: Vec<&LogGroup> = segments.iter().flat_map(|s| &s.groups).collect();
            prop_assert!(groups.iter().map(|group| group.index).eq(written));
            prop_assert!(groups.windows(2).all(|pair| pair[0].time_ms <= pair[1].time_ms));
            for pair in segments.windows(2) {
                prop_assert_eq!(pair[0].name.to, pair[1].name.after);
                // What was said is kept to.
                prop_assert!(pair[1].groups.iter().all(|group| group.time_ms > pair[0].name.until_ms));
            }
            for segment in segments {
                prop_assert_eq!(decode(segment.name, &encode(segment.clone())).unwrap(), segment);
            }
        }
    }
}
