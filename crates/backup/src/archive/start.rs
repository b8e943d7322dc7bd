//! Where a follower begins in a partition's log: where the repository ends, or earlier, if there is log that a backup still needs; if
//! all of that is gone, as early as there is anything.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::Mutex;
use sextant_client::{FollowedLog, LogReader};
use sextant_common::archive::{LogAnswer, LogPage};
use sextant_common::error::{Error, Result};
use sextant_common::ids::{LogPosition, PartitionId};
use tokio::sync::Semaphore;

use super::clocks::{Clocks, Now, Time};
use super::coverage::{Coverage, End};
use super::reached::{Mark, Marks, Stretch};
use super::segment::{History, Name};
use super::time_text_if_any;
use crate::Progress;
use crate::inventory::{Inventory, Unreadable};
use crate::repository::Repository;

/// By position: what comes after it was said to be later than that.
pub type Said = Vec<(LogPosition, u64)>;

/// A log that is read from a position on.
pub struct Begun {
    pub history: History,
    pub after: LogPosition,
    pub said: Said,
    pub stretch: Stretch,
    /// Of backups.
    pub oldest: Option<LogPosition>,
    pub first: LogPage,
    pub pages: FollowedLog,
    /// Lines for who watches.
    pub told: Vec<String>,
}

/// What all partitions have to know of a repository.
#[derive(Debug, Default)]
pub struct Known {
    /// Names, and where they stand.
    backups: BTreeMap<History, Vec<(String, LogPosition)>>,
    /// By the names of their files.
    marks: BTreeMap<String, Marks>,
}

/// What there is of one history.
struct There<'a> {
    history: History,
    segments: Vec<Name>,
    backups: &'a [(String, LogPosition)],
    /// With the names of their files.
    marks: Vec<(&'a str, Mark)>,
}

impl Known {
    pub async fn read(repository: &Repository, progress: Progress<'_>) -> Result<Self> {
        let mut backups: BTreeMap<History, Vec<(String, LogPosition)>> = BTreeMap::new();
        let inventory = Inventory::read(repository).await?;
        for Unreadable { name, why } in &inventory.unreadable {
            progress(format!("what backup {name} needs is not known: {why}"));
        }
        for backup in inventory.backups {
            for (partition, cut) in &backup.cuts {
                let history = History { partition: *partition, lineage: cut.lineage };
                let position = cut.position().map(|position| (backup.name.clone(), position));
                backups.entry(history).or_default().extend(position);
            }
        }
        Ok(Self { backups, marks: repository.all_marks().await? })
    }

    fn of(&self, history: History, segments: Vec<Name>) -> There<'_> {
        let mut marks = Vec::new();
        for (file, all) in &self.marks {
            let of = all.get(&history).into_iter().flatten();
            let mark = |(archived, until_ms): (&LogPosition, &u64)| Mark {
                archived: *archived,
                until_ms: *until_ms,
            };
            marks.extend(of.map(mark).map(|mark| (file.as_str(), mark)));
        }
        There { history, segments, backups: self.backups.get(&history).map_or(&[], Vec::as_slice), marks }
    }
}

impl There<'_> {
    fn end(&self) -> Option<LogPosition> {
        self.segments.iter().map(|segment| segment.to).max()
    }

    /// Where the log is to go on, the earliest first, and which backups need it from there.
    fn candidates(&self) -> BTreeMap<LogPosition, Vec<&str>> {
        let mut candidates: BTreeMap<LogPosition, Vec<&str>> = BTreeMap::new();
        let mut ends: BTreeMap<LogPosition, Option<LogPosition>> = BTreeMap::new();
        let mut end_of = |from: LogPosition| {
            let end = || {
                let covered = Coverage::from(from, 0, &self.segments, &[], u64::MAX);
                (covered.end != End::Load).then_some(covered.to)
            };
            *ends.entry(from).or_insert_with(end)
        };
        for (name, position) in self.backups {
            if let Some(end) = end_of(*position) {
                candidates.entry(end).or_default().push(name);
            }
        }
        let oldest = self.oldest();
        for (_, mark) in &self.marks {
            // (What is before all backups nobody needs.)
            if oldest.is_none_or(|oldest| mark.archived >= oldest)
                && let Some(end) = end_of(mark.archived)
            {
                candidates.entry(end).or_default();
            }
        }
        candidates
            .extend(self.end().filter(|end| !candidates.contains_key(end)).map(|end| (end, Vec::new())));
        candidates
    }

    fn oldest(&self) -> Option<LogPosition> {
        self.backups.iter().map(|(_, position)| *position).min()
    }

    /// What nobody is to be told otherwise of, and lines about times that cannot be; an error, if it is not known whether they can.
    fn said(&self, now: Now) -> Result<(Said, Vec<String>)> {
        let (mut said, mut odd) = (Vec::new(), BTreeSet::new());
        for name in &self.segments {
            let times = [(name.after, name.from_ms.saturating_sub(1)), (name.to, name.until_ms)];
            if times.iter().any(|(_, ms)| now.is_odd(*ms)) {
                odd.insert(format!("segment {}/{name}", name.history));
            }
            said.extend(times.into_iter().filter(|(_, ms)| !now.is_odd(*ms)));
        }
        for (file, mark) in &self.marks {
            if now.is_odd(mark.until_ms) {
                odd.insert(format!("mark {file}"));
            } else {
                said.push((mark.archived, mark.until_ms));
            }
        }
        if !odd.is_empty() {
            now.check()?;
        }
        let told = |file| {
            let partition = self.history.partition;
            format!(
                "partition {partition}: {file} has a time far in the future by the clock here, which is ignored"
            )
        };
        Ok((said, odd.into_iter().map(told).collect()))
    }

    /// What cannot be continued.
    fn gap(&self, end: LogPosition, backups: &[&str]) -> Option<String> {
        if backups.is_empty() && self.end() != Some(end) {
            return None;
        }
        let partition = self.history.partition;
        let ends = self.segments.iter().filter(|segment| segment.to == end);
        let until = ends.filter_map(|segment| time_text_if_any(segment.until_ms)).max();
        let until = until.map(|until| format!(" ({until})")).unwrap_or_default();
        let whose = match backups {
            [] => String::new(),
            [name] => format!(", which backup {name} needs,"),
            names => format!(", which backups {} need,", names.join(", ")),
        };
        Some(format!(
            "partition {partition}: the log after entry {end}{until}{whose} is gone: there is a gap, \
             and only backups that were made after it are continued"
        ))
    }
}

/// Opens it; None: it is not there from that position on.
pub async fn open(
    reader: &LogReader,
    partition: PartitionId,
    after: LogPosition,
) -> Result<Option<(LogPage, FollowedLog)>> {
    let mut pages = reader.follow(partition, Some(after)).await?;
    Ok(match pages.next().await? {
        LogAnswer::Page(first) => Some((first, pages)),
        LogAnswer::Gone { .. } => None,
    })
}

/// `turns`: so many at once.
pub async fn begin(
    reader: &LogReader,
    repository: &Repository,
    known: &Known,
    clocks: &Arc<Mutex<Clocks>>,
    partition: PartitionId,
    turns: &Semaphore,
) -> Result<Begun> {
    let (lineage, first) = match reader.follow(partition, None).await?.next().await? {
        LogAnswer::Gone { lineage, first } => (lineage, first),
        LogAnswer::Page(_) => return Err(Error::internal("a page of the log that nobody asked for")),
    };
    let _turn = turns.acquire().await;
    let history = History { partition, lineage };
    let there = known.of(history, repository.segments_of(history).await?);
    let mut candidates = there.candidates();
    let first_is_one = candidates.contains_key(&first);
    let mut told = Vec::new();
    let mut tried = BTreeSet::new();
    let in_order: Vec<(LogPosition, bool)> = candidates.keys().map(|at| (*at, false)).collect();
    for (after, is_first) in in_order.into_iter().chain((!first_is_one).then_some((first, true))) {
        let Some((page, pages)) = open(reader, partition, after).await? else {
            tried.insert(after);
            continue;
        };
        if page.lineage != lineage {
            return Err(Error::retry(format!("partition {partition} was rebuilt just now")));
        }
        let here = Time::of(repository);
        clocks.lock().hear(partition, &page, here);
        let how = match (is_first, there.end() == Some(after)) {
            (_, true) => "goes on where the archive ends",
            (false, false) => "goes on from where a backup needs it",
            (true, false) => "begins",
        };
        told.push(format!("partition {partition}: it {how}, after entry {after}"));
        candidates.retain(|at, _| tried.contains(at));
        told.extend(candidates.iter().filter_map(|(end, backups)| there.gap(*end, backups)));
        let (said, odd) = there.said(Now::new(here, clocks))?;
        told.extend(odd);
        let marks = there.marks.iter().map(|(_, mark)| mark.archived);
        let stretch = Stretch::new(after, &there.segments, marks);
        let oldest = there.oldest();
        return Ok(Begun { history, after, said, stretch, oldest, first: page, pages, told });
    }
    Err(Error::retry(format!("partition {partition}: its log goes on faster than it is read")))
}

#[cfg(test)]
mod tests {
    use super::super::clocks::tests::now;
    use super::*;

    const HISTORY: History = History { partition: PartitionId(3), lineage: 7 };

    fn at(index: u64) -> LogPosition {
        LogPosition { term: 1, index }
    }

    fn segment(after: u64, to: u64) -> Name {
        let (after, to) = (at(after), at(to));
        Name { history: HISTORY, after, to, from_ms: 10, until_ms: 20, ends_by_load: false }
    }

    fn candidates(segments: &[Name], backups: &[(&str, u64)], marks: &[u64]) -> Vec<(u64, String)> {
        let backups: Vec<_> = backups.iter().map(|(name, index)| ((*name).to_owned(), at(*index))).collect();
        let marks = marks.iter().map(|index| ("m", Mark { archived: at(*index), until_ms: 1 })).collect();
        let there = There { history: HISTORY, segments: segments.to_vec(), backups: &backups, marks };
        there.candidates().into_iter().map(|(end, names)| (end.index, names.concat())).collect()
    }

    #[test]
    fn the_log_goes_on_where_the_earliest_chain_that_somebody_needs_ends() {
        let none = String::new;
        assert_eq!(candidates(&[], &[], &[]), []);
        assert_eq!(candidates(&[segment(1, 9)], &[], &[]), [(9, none())]);
        // All of them lead to the end, and a backup that is newer is continued from there, too.
        let there = [segment(1, 5), segment(5, 9)];
        let all = [("a", 1), ("b", 3), ("c", 12)];
        assert_eq!(candidates(&there, &all, &[7]), [(9, "ab".into()), (12, "c".into())]);
        // After a gap.
        let there = [segment(1, 5), segment(20, 25)];
        let all = [("a", 1), ("b", 12), ("c", 22), ("d", 15)];
        let expected = [(5, "a".into()), (12, "b".into()), (15, "d".into()), (25, "c".into())];
        assert_eq!(candidates(&there, &all, &[]), expected);
        // Nothing was archived yet.
        assert_eq!(
            candidates(&[], &[("b", 8), ("a", 4)], &[6]),
            [(4, "a".into()), (6, none()), (8, "b".into())]
        );
        // Nothing continues a load.
        let load = Name { ends_by_load: true, ..segment(1, 5) };
        assert_eq!(candidates(&[load], &[("a", 1)], &[]), [(5, none())]);
    }

    #[test]
    fn a_gap_is_told_of_each_backup_also_without_segments() {
        let there = |segments| There { history: HISTORY, segments, backups: &[], marks: Vec::new() };
        let told = there(vec![]).gap(at(4), &["a", "b"]).unwrap();
        assert!(told.contains("backups a, b need") && told.contains("there is a gap"), "{told}");
        assert!(there(vec![]).gap(at(4), &[]).is_none(), "nobody needs it");
        let told = there(vec![segment(1, 5)]).gap(at(5), &[]).unwrap();
        assert!(told.contains("1970-01-01T00:00:00.020Z"), "{told}");
    }

    #[test]
    fn times_in_the_future_are_ignored_and_their_files_named() {
        let odd = Name { until_ms: u64::MAX, ..segment(5, 9) };
        let marks = vec![
            ("m1", Mark { archived: at(9), until_ms: 30 }),
            ("m2", Mark { archived: at(9), until_ms: 600_000 }),
        ];
        let there = There { history: HISTORY, segments: vec![segment(1, 5), odd], backups: &[], marks };
        let (said, told) = there.said(now(1000, 0)).unwrap();
        assert_eq!(said, [(at(1), 9), (at(5), 20), (at(5), 9), (at(9), 30)]);
        assert!(
            told.len() == 2 && told[0].contains("mark m2") && told[1].contains(&odd.to_string()),
            "{told:?}"
        );
    }

    #[test]
    fn a_clock_here_that_is_behind_ignores_nothing_that_was_said() {
        let marks = vec![("m", Mark { archived: at(9), until_ms: 600_000 })];
        let there = There { history: HISTORY, segments: vec![segment(1, 9)], backups: &[], marks };
        let told = there.said(now(1000, 600_000)).unwrap_err();
        assert_eq!(&*told.message, "the clock here is 600 s behind the leaders'");
        let nobody_knows =
            Now::new(Time { ms: 1000, holder_ns: 0 }, &Clocks::of(1, std::time::Duration::ZERO));
        assert!(there.said(nobody_knows).is_err());
        assert_eq!(there.said(now(600_000, 0)).unwrap().0.last(), Some(&(at(9), 600_000)));
    }
}
