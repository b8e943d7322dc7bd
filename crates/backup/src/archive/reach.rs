//! To which times a backup can be restored: all its partitions have to get there.

use std::collections::BTreeMap;
use std::fmt;

use sextant_common::error::{Error, Result};
use sextant_common::ids::PartitionId;

use super::coverage::{Coverage, End};
use super::segment::History;
use super::store::Archive;
use super::time_text;
use crate::manifest::Backup;

/// What continues a backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reach {
    /// The earliest time: all partitions have what they had then.
    pub as_of_ms: u64,
    pub partitions: BTreeMap<PartitionId, Coverage>,
}

impl Reach {
    pub fn of(backup: &Backup, archive: &Archive) -> Self {
        let covered = backup.cuts.iter().map(|(partition, cut)| {
            let covered = match cut.position() {
                Some(position) => {
                    let history = History { partition: *partition, lineage: cut.lineage };
                    let (there, marks) = (archive.segments_of(&history), archive.marks_of(&history));
                    Coverage::from(position, cut.opened_ms, there, &marks, archive.limit_ms)
                }
                None => Coverage::unknown(cut.opened_ms),
            };
            (*partition, covered)
        });
        Self { as_of_ms: backup.as_of_ms(), partitions: covered.collect() }
    }

    /// The partition that ends first.
    pub fn first_to_end(&self) -> Option<(PartitionId, &Coverage)> {
        let first = self.partitions.iter().min_by_key(|(_, covered)| covered.until_ms);
        first.map(|(partition, covered)| (*partition, covered))
    }

    /// The latest time; None: there is none but the backup's own.
    pub fn until_ms(&self) -> Option<u64> {
        let (_, covered) = self.first_to_end()?;
        (covered.until_ms > self.as_of_ms).then_some(covered.until_ms)
    }

    pub fn check(&self, to_ms: u64) -> Result<()> {
        if to_ms < self.as_of_ms {
            let as_of = time_text(self.as_of_ms);
            return Err(Error::invalid(format!("the backup is of {as_of}, which is later")));
        }
        match self.first_to_end() {
            Some((partition, covered)) if covered.until_ms < to_ms => Err(Error::invalid(format!(
                "the backup and the log after it do not lead to {}: in partition {partition} they end at {covered}",
                time_text(to_ms)
            ))),
            _ => Ok(()),
        }
    }
}

/// For a list.
impl fmt::Display for Reach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.until_ms(), self.first_to_end()) {
            (Some(ms), Some((partition, covered))) => {
                write!(f, "log to {}", time_text(ms))?;
                match covered.end {
                    End::Newest => Ok(()),
                    end => write!(f, ", in partition {partition} {end}"),
                }
            }
            (None, Some((partition, covered))) if covered.end != End::Newest => {
                write!(f, "no log after it: in partition {partition} {}", covered.end)
            }
            _ => f.write_str("no log after it"),
        }
    }
}

#[cfg(test)]
mod tests {
    use sextant_common::cut::Cut;
    use sextant_common::ids::LogPosition;

    use super::super::segment::Name;
    use super::*;
    use crate::testing::cut;

    fn backup(name: &str, opened_ms: [u64; 2]) -> Backup {
        let of = |at: usize| Cut { opened_ms: opened_ms[at], term: 1, lineage: 7, ..cut(std::iter::empty()) };
        let cuts = BTreeMap::from([(PartitionId(0), of(0)), (PartitionId(1), of(1))]);
        Backup { name: name.into(), created_ms: opened_ms[0], cuts, is_part: false }
    }

    fn history(partition: u32) -> History {
        History { partition: PartitionId(partition), lineage: 7 }
    }

    fn archive() -> Archive {
        let mut archive = Archive::default();
        let (after, to) = (LogPosition { term: 1, index: 1 }, LogPosition { term: 1, index: 5 });
        let name = Name { history: history(0), after, to, from_ms: 100, until_ms: 500, ends_by_load: false };
        archive.segments.insert(history(0), vec![name]);
        archive.marks.insert("m".into(), BTreeMap::from([(history(1), BTreeMap::from([(after, 400)]))]));
        archive
    }

    #[test]
    fn all_partitions_have_to_get_there() {
        let reach = Reach::of(&backup("a", [90, 95]), &archive());
        assert_eq!((reach.as_of_ms, reach.until_ms()), (95, Some(400)));
        reach.check(95).unwrap();
        reach.check(400).unwrap();
        assert!(reach.check(94).unwrap_err().message.contains("later"));
        let refused = reach.check(401).unwrap_err().message;
        assert!(refused.contains("in partition 1 they end at 1970-01-01T00:00:00.400Z"), "{refused}");
        assert_eq!(reach.to_string(), "log to 1970-01-01T00:00:00.400Z");
    }

    #[test]
    fn a_time_before_what_has_a_time_that_cannot_be_is_refused() {
        let archive = Archive { limit_ms: 450, ..archive() };
        let reach = Reach::of(&backup("a", [90, 95]), &archive);
        let refused = reach.check(200).unwrap_err().message;
        assert!(
            refused
                .contains("in partition 0 they end at 1970-01-01T00:00:00.090Z (what came next has a time"),
            "{refused}"
        );
    }

    #[test]
    fn a_gap_a_load_and_an_older_backup_are_named() {
        let (mut gap, mut load) = (archive(), archive());
        gap.segments.get_mut(&history(0)).unwrap()[0].after.index = 3;
        let reach = Reach::of(&backup("a", [90, 95]), &gap);
        let end = "in partition 0 what came next is missing, a gap";
        assert_eq!(reach.to_string(), format!("no log after it: {end}"));
        load.segments.get_mut(&history(0)).unwrap()[0].ends_by_load = true;
        load.segments.get_mut(&history(0)).unwrap()[0].until_ms = 300;
        let reach = Reach::of(&backup("a", [90, 95]), &load);
        let end = "in partition 0 a bulk load came next, or a table was dropped, which no log has";
        assert_eq!(reach.to_string(), format!("log to 1970-01-01T00:00:00.300Z, {end}"));
        let mut old = backup("a", [90, 95]);
        old.cuts.values_mut().for_each(|cut| cut.term = 0);
        let reach = Reach::of(&old, &archive());
        assert!(
            reach.until_ms().is_none() && reach.check(95).is_err() && reach.to_string().contains("older")
        );
    }
}
