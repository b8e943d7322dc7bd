//! A backup beside a cluster, key by key.
//!
//! Both are read in the order of their keys, range by range: so what is brought here at once is bounded, and what only one of them has
//! is seen whatever else there is.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::iter::Peekable;
use std::path::Path;

use sextant_client::{Client, ScanOptions, ScanRecord};
use sextant_common::cut::{Cut, CutTable};
use sextant_common::error::Result;
use sextant_common::ids::OWN_TABLES;
use sextant_common::key_range::KeyRange;
use sextant_common::marks::Kind;
use sextant_common::sstable::RecordVersion;

use crate::Progress;
use crate::manifest::Backup;
use crate::records::{Files, Joined, work_dir};
use crate::repository::Repository;
use crate::restore::PIECE_BYTES;
use crate::restore::pieces::{Source, ranges};

/// Differences that are told; all are counted.
const TOLD_MAX: usize = 20;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Compared {
    /// Equal in both. (An object of the Redis protocol: there, and of the same kind.)
    pub equal: u64,
    /// Of the backup, and missing in the cluster, as whole tables may be, or another one there. (What has expired since counts here.)
    pub differing: u64,
    /// Of the cluster only.
    pub more: u64,
    /// Of some that differ, a line each.
    pub told: Vec<String>,
}

impl Compared {
    pub fn is_equal(&self) -> bool {
        self.differing == 0 && self.more == 0
    }

    fn tell(&mut self, table: &str, key: &[u8], what: &str) {
        if self.told.len() < TOLD_MAX {
            self.told.push(format!("table {table:?}: {:?} {what}", bytes::Bytes::copy_from_slice(key)));
        }
    }
}

/// All tables of clients, of either side; of a backup of some tables only these. Of objects of the Redis protocol only that they are
/// there, and of which kind.
pub async fn compare(
    client: &Client,
    repository: &Repository,
    backup: &Backup,
    dir: Option<&Path>,
    progress: Progress<'_>,
) -> Result<Compared> {
    let dir = work_dir(dir)?;
    let mut compared = Compared::default();
    let there: BTreeSet<String> = client.list_tables().await?.into_iter().map(|table| table.name).collect();
    for name in names(backup, &there) {
        let found = there.contains(name).then_some(client);
        let (of_backup, of_cluster) =
            table(found, repository, backup, name, &dir, PIECE_BYTES, &mut compared).await?;
        progress(format!("table {name:?}: {of_backup} records in the backup, {of_cluster} in the cluster"));
    }
    Ok(compared)
}

/// Of the tables that are compared.
fn names<'a>(backup: &'a Backup, there: &'a BTreeSet<String>) -> BTreeSet<&'a str> {
    let of_backup = backup.cuts.values().flat_map(|cut: &Cut| &cut.tables).map(|table| table.name.as_str());
    let of_cluster = there.iter().map(String::as_str).filter(|_| !backup.is_part);
    of_backup.chain(of_cluster).filter(|name| !name.starts_with(OWN_TABLES)).collect()
}

/// How many records the backup has of it, and how many the cluster. No client: the cluster has no such table.
async fn table(
    client: Option<&Client>,
    repository: &Repository,
    backup: &Backup,
    name: &str,
    dir: &Path,
    piece_bytes: u64,
    compared: &mut Compared,
) -> Result<(u64, u64)> {
    let mut pieces = Pieces::of(backup, name, piece_bytes);
    let (mut of_backup, mut of_cluster) = (0, 0);
    while let Some((range, records)) = pieces.next(repository, dir).await? {
        let mut beside = Beside::new(name, records.filter_map(Result::transpose), compared);
        if let Some(client) = client {
            let mut pages = client.scan(name, ScanOptions::range(range.start, range.end));
            while let Some(page) = pages.next_page().await {
                for found in page?.records {
                    of_cluster += 1;
                    beside.found(&found)?;
                }
            }
        }
        of_backup += beside.finish()?;
    }
    Ok((of_backup, of_cluster))
}

/// What a backup has of a table, one range of keys after the other: only the files of one are here at a time.
struct Pieces<'b> {
    sources: Vec<Source<'b>>,
    ranges: std::vec::IntoIter<KeyRange>,
    files: Files,
}

impl<'b> Pieces<'b> {
    fn of(backup: &'b Backup, name: &str, piece_bytes: u64) -> Self {
        let of_cut =
            |cut: &'b Cut| Some(Source::whole(cut, cut.tables.iter().find(|table| table.name == name)?));
        let sources: Vec<Source<'b>> = backup.cuts.values().filter_map(of_cut).collect();
        let ranges = ranges(&sources, piece_bytes).into_iter();
        Self { sources, ranges, files: Files::default() }
    }

    async fn next(&mut self, repository: &Repository, dir: &Path) -> Result<Option<(KeyRange, Joined)>> {
        let Some(range) = self.ranges.next() else { return Ok(None) };
        let tables: Vec<&CutTable> = self.sources.iter().map(|source| source.table).collect();
        self.files.bring(repository, &tables, &range, dir).await?;
        let of = |source: &Source<'_>| self.files.records(source.table, &range, source.cut.tick);
        let records = self.sources.iter().map(of).collect::<Result<_>>()?;
        Ok(Some((range, Joined::of(records, Box::new(|_| true)))))
    }
}

/// The records of a backup, in order of their keys, beside what is found in a cluster, in the same order.
struct Beside<'a, I: Iterator<Item = Result<RecordVersion>>> {
    table: &'a str,
    of_backup: Peekable<I>,
    count: u64,
    compared: &'a mut Compared,
}

impl<'a, I: Iterator<Item = Result<RecordVersion>>> Beside<'a, I> {
    fn new(table: &'a str, of_backup: I, compared: &'a mut Compared) -> Self {
        Self { table, of_backup: of_backup.peekable(), count: 0, compared }
    }

    /// The cluster's next one.
    fn found(&mut self, found: &ScanRecord) -> Result<()> {
        while let Some(next) = self.of_backup.peek() {
            let order = next.as_ref().map_or(Ordering::Less, |record| record.key.cmp(&found.key));
            if order == Ordering::Greater {
                break;
            }
            let Some(record) = self.of_backup.next().transpose()? else { break };
            if order == Ordering::Equal {
                self.both(&record, found);
                return Ok(());
            }
            self.is_missing(&record);
        }
        self.compared.more += 1;
        self.compared.tell(self.table, &found.key, "is in the cluster only");
        Ok(())
    }

    /// That was all of the cluster. How many records the backup had.
    fn finish(mut self) -> Result<u64> {
        while let Some(record) = self.of_backup.next().transpose()? {
            self.is_missing(&record);
        }
        Ok(self.count)
    }

    fn both(&mut self, record: &RecordVersion, found: &ScanRecord) {
        self.count += 1;
        if is_equal(record, found) {
            self.compared.equal += 1;
            return;
        }
        self.compared.differing += 1;
        self.compared.tell(self.table, &record.key, "is another one");
    }

    fn is_missing(&mut self, record: &RecordVersion) {
        self.count += 1;
        self.compared.differing += 1;
        self.compared.tell(self.table, &record.key, "is missing");
    }
}

/// (What an object has is in other records, under versions that differ in every cluster.)
fn is_equal(record: &RecordVersion, found: &ScanRecord) -> bool {
    record.marks.kind() == found.kind
        && record.marks.expires_at() == found.expires_at
        && (found.kind != Kind::Plain || record.value.as_ref() == Some(&found.value))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use object_store::memory::InMemory;
    use sextant_common::error::Error;
    use sextant_common::expiry::Tick;
    use sextant_common::ids::{PartitionId, Seq};
    use sextant_common::marks::Marks;
    use sextant_environment::Env;

    use super::*;
    use crate::testing::{cut, stored};

    fn of_backup(key: &'static str, kind: Kind, expires_at: Option<Tick>) -> RecordVersion {
        RecordVersion {
            key: key.into(),
            seq: Seq(1),
            value: Some("v".into()),
            marks: Marks::new(kind, expires_at),
        }
    }

    fn of_cluster(key: &'static str, value: &'static str, kind: Kind) -> ScanRecord {
        ScanRecord { key: key.into(), value: value.into(), seq: Seq(9), expires_at: None, kind }
    }

    fn plain(key: &'static str) -> RecordVersion {
        of_backup(key, Kind::Plain, None)
    }

    fn hash(key: &'static str) -> RecordVersion {
        of_backup(key, Kind::Hash, None)
    }

    fn compared(backup: Vec<RecordVersion>, cluster: &[ScanRecord]) -> Compared {
        let (mut compared, count) = (Compared::default(), backup.len() as u64);
        let mut beside = Beside::new("t", backup.into_iter().map(Ok), &mut compared);
        cluster.iter().for_each(|found| beside.found(found).unwrap());
        assert_eq!(beside.finish().unwrap(), count);
        compared
    }

    #[tokio::test]
    async fn only_the_files_of_one_range_are_here_at_a_time_and_all_records_come_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let repository = Repository::over(&Env::real(), Arc::new(InMemory::new()));
        let mut ssts = Vec::new();
        for (counter, keys) in [(1, ["a", "b"]), (2, ["c", "d"]), (3, ["e", "f"])] {
            let keys = keys.map(|key| (key.to_owned(), false));
            ssts.push(stored(&repository, dir.path(), counter, &keys).await);
        }
        let cuts = BTreeMap::from([(PartitionId(0), cut(ssts.into_iter()))]);
        let backup = Backup { name: "a".into(), created_ms: 1, cuts, is_part: false };
        let mut pieces = Pieces::of(&backup, "t", 1);
        let (mut keys, mut count) = (Vec::new(), 0);
        while let Some((range, records)) = pieces.next(&repository, dir.path()).await.unwrap() {
            assert_eq!(pieces.files.count(), 1, "{range:?}");
            keys.extend(records.filter_map(|record| Some(record.unwrap()?.key)));
            count += 1;
        }
        assert_eq!((keys.concat(), count), (b"abcdef".to_vec(), 3));
    }

    #[tokio::test]
    async fn every_record_of_a_table_that_the_cluster_has_not_is_missing() {
        let dir = tempfile::tempdir().unwrap();
        let repository = Repository::over(&Env::real(), Arc::new(InMemory::new()));
        let keys = ["a", "b"].map(|key| (key.to_owned(), false));
        let ssts = [stored(&repository, dir.path(), 1, &keys).await];
        let cuts = BTreeMap::from([(PartitionId(0), cut(ssts.into_iter()))]);
        let backup = Backup { name: "a".into(), created_ms: 1, cuts, is_part: false };
        let mut compared = Compared::default();
        let counts = table(None, &repository, &backup, "t", dir.path(), 1, &mut compared).await.unwrap();
        assert_eq!((counts, compared.differing, compared.more), ((2, 0), 2, 0));
        assert_eq!(compared.told, [r#"table "t": b"a" is missing"#, r#"table "t": b"b" is missing"#]);
        let counts = table(None, &repository, &backup, "u", dir.path(), 1, &mut compared).await.unwrap();
        assert_eq!(counts, (0, 0), "nobody has it");
    }

    #[test]
    fn tables_of_either_side_are_compared_and_of_a_backup_of_some_only_its_own() {
        let mut cut = cut(std::iter::empty());
        let own = format!("{OWN_TABLES}users");
        cut.tables.push(CutTable { name: own.clone(), ..cut.tables[0].clone() });
        let cuts = BTreeMap::from([(PartitionId(0), cut)]);
        let mut backup = Backup { name: "a".into(), created_ms: 1, cuts, is_part: false };
        let there = BTreeSet::from(["s".to_owned(), own]);
        assert_eq!(names(&backup, &there), BTreeSet::from(["s", "t"]));
        backup.is_part = true;
        assert_eq!(names(&backup, &there), BTreeSet::from(["t"]));
    }

    #[test]
    fn an_object_that_is_missing_differs_and_hides_no_key_of_the_cluster_only() {
        let missing = compared(vec![hash("h")], &[]);
        assert_eq!((missing.differing, missing.told), (1, vec!["table \"t\": b\"h\" is missing".to_owned()]));
        let hidden = compared(
            vec![hash("h"), plain("p")],
            &[of_cluster("p", "v", Kind::Plain), of_cluster("x", "v", Kind::Plain)],
        );
        assert_eq!((hidden.equal, hidden.differing, hidden.more), (1, 1, 1));
        assert!(hidden.told[1].contains("b\"x\" is in the cluster only"), "{hidden:?}");
    }

    #[test]
    fn objects_are_equal_by_their_kind_and_plain_records_by_all_that_they_are() {
        let same = compared(
            vec![hash("h"), plain("p")],
            &[of_cluster("h", "", Kind::Hash), of_cluster("p", "v", Kind::Plain)],
        );
        assert!(same.is_equal() && same.equal == 2, "{same:?}");
        let soon = of_backup("p", Kind::Plain, Some(Tick(5)));
        for (record, found) in [
            (hash("h"), of_cluster("h", "", Kind::Set)),
            (hash("h"), of_cluster("h", "v", Kind::Plain)),
            (plain("p"), of_cluster("p", "", Kind::Hash)),
            (plain("p"), of_cluster("p", "w", Kind::Plain)),
            (soon, of_cluster("p", "v", Kind::Plain)),
        ] {
            let other = compared(vec![record], &[found]);
            assert_eq!((other.equal, other.differing, other.more), (0, 1, 0), "{other:?}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_an_error_and_no_difference() {
        let mut differences = Compared::default();
        let records = [Ok(plain("a")), Err(Error::corrupt("bad"))].into_iter();
        let mut beside = Beside::new("t", records, &mut differences);
        beside.found(&of_cluster("a", "v", Kind::Plain)).unwrap();
        beside.found(&of_cluster("b", "v", Kind::Plain)).unwrap_err();
        assert!(differences.is_equal());
    }
}
