//! The records of a table of a backup, in order of keys: its SSTables merged, each for the keys that it answers for.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures::StreamExt;
use sextant_common::cut::CutTable;
use sextant_common::error::{Error, Result};
use sextant_common::expiry::{Tick, is_expired};
use sextant_common::ids::Seq;
use sextant_common::ids::SstId;
use sextant_common::key_range::KeyRange;
use sextant_common::manifest::SstMeta;
use sextant_common::sstable::RecordVersion;
use sextant_environment::Env;
use sextant_environment::vfs::{OpenMode, VfsFile};
use sextant_sstable_server::table::block_cache::BlockCache;
use sextant_sstable_server::table::{Caching, Direction, Merge, Table, TableIter};

use crate::create::Check;
use crate::manifest::File;
use crate::repository::Repository;

/// So many records are passed over at a time. Then whoever asks for the next one has his turn: he may have somebody to tell that it goes
/// on, and others to let go on.
pub(crate) const PASSED_MAX: usize = 100_000;

pub(crate) fn file_of(sst: &SstMeta) -> File {
    File { id: sst.id, checksum: sst.checksum, bytes: sst.file_bytes }
}

/// A file of a repository, brought here and checked. It has no name, and goes when it is dropped, or the process is.
pub(crate) struct Local {
    pub table: Arc<Table>,
}

impl Local {
    pub async fn fetch(repository: &Repository, file: File, dir: &Path) -> Result<Self> {
        let to = nameless(&repository.env, dir, &file)?;
        copy(repository, file, &*to).await?;
        let opened = Table::open(to, file.id, 0, Arc::new(BlockCache::new(0)))?;
        match opened.filter_damage {
            None => Ok(Self { table: Arc::new(opened.table) }),
            Some(damage) => Err(damage),
        }
    }
}

/// An empty file in a directory, with room for one of a repository. It loses its name at once: however the process ends, nothing is left.
pub(crate) fn nameless(env: &Env, dir: &Path, file: &File) -> Result<Arc<dyn VfsFile>> {
    env.vfs.create_dir_all(dir)?;
    let path = dir.join(format!("sextant-backup-{}-{:016x}", file.name(), env.rng.next_u64()));
    let opened = env.vfs.open(&path, OpenMode::CreateNew)?;
    env.vfs.remove_file(&path)?;
    Ok(opened)
}

async fn copy(repository: &Repository, file: File, to: &dyn VfsFile) -> Result<()> {
    let (mut pieces, mut check, mut at) = (repository.read_table(&file).await?, Check::new(file), 0);
    while let Some(piece) = pieces.next().await {
        let piece = piece?;
        check.take(&piece)?;
        to.write_all_at(&piece, at)?;
        at += piece.len() as u64;
    }
    check.finish()
}

/// Files that are here: those that were asked for last.
#[derive(Default)]
pub(crate) struct Files {
    by_id: BTreeMap<SstId, Arc<Local>>,
}

impl Files {
    /// Brings those of these tables that have keys of the range, and gives up all others.
    pub async fn bring(
        &mut self,
        repository: &Repository,
        tables: &[&CutTable],
        range: &KeyRange,
        dir: &Path,
    ) -> Result<()> {
        let mut before = std::mem::take(&mut self.by_id);
        let ssts: Vec<_> = tables.iter().flat_map(|table| answering(table, range)).collect();
        before.retain(|id, _| ssts.iter().any(|sst| sst.id == *id));
        for sst in ssts {
            let local = match before.remove(&sst.id).or_else(|| self.by_id.get(&sst.id).cloned()) {
                Some(local) => local,
                None => Arc::new(Local::fetch(repository, file_of(sst), dir).await?),
            };
            self.by_id.insert(sst.id, local);
        }
        Ok(())
    }

    #[cfg(test)]
    pub fn count(&self) -> usize {
        self.by_id.len()
    }

    /// What the table has in the range; its files were brought.
    pub fn records(&self, table: &CutTable, range: &KeyRange, tick: Tick) -> Result<Records> {
        let (mut iters, mut files) = (Vec::new(), Vec::new());
        for sst in answering(table, range) {
            let local = self.by_id.get(&sst.id).cloned();
            let local = local.ok_or_else(|| Error::internal(format!("{} was not brought", sst.id)))?;
            let range = sst.range.intersection(range);
            iters.push(TableIter::new(local.table.clone(), range, Direction::Forward, Caching::Bypass)?);
            files.push(local);
        }
        let merge = Merge::new(iters, Direction::Forward);
        Ok(Records { merge, tick, _files: files })
    }
}

/// Those of its SSTables that answer for keys of the range.
fn answering<'a>(table: &'a CutTable, range: &'a KeyRange) -> impl Iterator<Item = &'a SstMeta> {
    table.ssts.iter().flatten().filter(|sst| {
        let answers = sst.range.intersection(range);
        !answers.is_empty()
            && answers.start <= sst.max_key
            && (answers.end.is_empty() || sst.min_key < answers.end)
    })
}

/// What a table of a backup has; tombstones, and what has expired by the cut's tick, left out.
pub(crate) struct Records {
    merge: Merge,
    tick: Tick,
    /// Until there is no record any more.
    _files: Vec<Arc<Local>>,
}

/// What there is next.
enum Next {
    Record(RecordVersion),
    /// As many were passed over as may be.
    NotYet,
    End,
}

impl Records {
    /// `left`: so many may be passed over.
    fn next(&mut self, left: &mut usize) -> Result<Next> {
        while !self.merge.is_at_end() {
            if *left == 0 {
                return Ok(Next::NotYet);
            }
            let marks = self.merge.marks();
            let is_there = !self.merge.is_tombstone() && !is_expired(marks.expires_at(), self.tick);
            let record = is_there.then(|| {
                let (key, value) = (self.merge.key().to_vec().into(), self.merge.value());
                RecordVersion { key, seq: Seq(self.merge.seq()), value: Some(value), marks }
            });
            self.merge.advance()?;
            match record {
                Some(record) => return Ok(Next::Record(record)),
                None => *left -= 1,
            }
        }
        Ok(Next::End)
    }
}

/// Records of several partitions, in order of their keys; no two have the same. None where many were passed over: the next one is still
/// looked for.
pub(crate) struct Joined {
    sources: Vec<Source>,
    /// Which are wanted.
    wanted: Wanted,
    passed_max: usize,
}

struct Source {
    /// None: it is looked for.
    next: Option<RecordVersion>,
    records: Records,
}

impl Source {
    fn key(&self) -> Option<&bytes::Bytes> {
        self.next.as_ref().map(|record| &record.key)
    }
}

type Wanted = Box<dyn Fn(&[u8]) -> bool + Send>;

impl Joined {
    pub fn of(sources: Vec<Records>, wanted: Wanted) -> Self {
        let sources = sources.into_iter().map(|records| Source { next: None, records }).collect();
        Self { sources, wanted, passed_max: PASSED_MAX }
    }

    /// Whether all sources have what they have next; those that have nothing more are gone.
    fn look(&mut self) -> Result<bool> {
        let mut left = self.passed_max;
        while let Some(at) = self.sources.iter().position(|source| source.next.is_none()) {
            let source = &mut self.sources[at];
            match source.records.next(&mut left)? {
                Next::Record(record) if (self.wanted)(&record.key) => source.next = Some(record),
                Next::Record(_) => left = left.saturating_sub(1),
                Next::End => drop(self.sources.swap_remove(at)),
                Next::NotYet => return Ok(false),
            }
        }
        Ok(true)
    }
}

impl Iterator for Joined {
    type Item = Result<Option<RecordVersion>>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.look() {
            Ok(true) => {}
            Ok(false) => return Some(Ok(None)),
            Err(e) => return Some(Err(e)),
        }
        let least = self.sources.iter_mut().min_by(|a, b| a.key().cmp(&b.key()))?;
        Some(Ok(least.next.take()))
    }
}

/// The next of these records; up to so many, and about so many bytes. It ends early, and may be empty, where many were passed over.
/// None: that was all.
pub(crate) fn next_page(
    records: &mut impl Iterator<Item = Result<Option<RecordVersion>>>,
    count_max: usize,
    bytes_max: usize,
) -> Result<Option<Vec<RecordVersion>>> {
    let (mut page, mut bytes) = (Vec::new(), 0);
    while page.len() < count_max && bytes < bytes_max {
        match records.next().transpose()? {
            Some(Some(record)) => {
                bytes += bytes_of(&record);
                page.push(record);
            }
            Some(None) => return Ok(Some(page)),
            None => return Ok((!page.is_empty()).then_some(page)),
        }
    }
    Ok(Some(page))
}

pub(crate) fn bytes_of(record: &RecordVersion) -> usize {
    record.key.len() + record.value.as_ref().map_or(0, bytes::Bytes::len) + 32
}

/// All records of a file, older ones of a key and tombstones too: how many, and how many of them are tombstones.
pub(crate) fn count(table: Arc<Table>) -> Result<(u64, u64)> {
    let mut iter = TableIter::new(table, Default::default(), Direction::Forward, Caching::Bypass)?;
    let (mut records, mut tombstones) = (0, 0);
    while !iter.is_at_end() {
        records += 1;
        tombstones += u64::from(iter.is_tombstone());
        iter.advance()?;
    }
    Ok((records, tombstones))
}

/// Where files are put while they are read: in the directory that is named, or where the system has its temporary ones.
pub(crate) fn work_dir(named: Option<&Path>) -> Result<PathBuf> {
    let dir = named.map_or_else(std::env::temp_dir, Path::to_path_buf);
    std::path::absolute(&dir).map_err(|e| Error::invalid(format!("{}: {e}", dir.display())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{sst, table_file};

    /// Of a table on disk: keys, and whether each is a tombstone.
    fn records(dir: &Path, counter: u32, keys: &[(String, bool)]) -> Records {
        let (file, meta) = table_file(dir, counter, keys);
        let table = Arc::new(Table::open(file, meta.id, 0, Arc::new(BlockCache::new(0))).unwrap().table);
        let iter = TableIter::new(table, KeyRange::all(), Direction::Forward, Caching::Bypass).unwrap();
        Records { merge: Merge::new(vec![iter], Direction::Forward), tick: Tick(0), _files: Vec::new() }
    }

    fn dead(from: u32, to: u32) -> impl Iterator<Item = (String, bool)> {
        (from..to).map(|at| (format!("{at:05}"), true))
    }

    fn live(at: u32) -> [(String, bool); 1] {
        [(format!("{at:05}"), false)]
    }

    #[test]
    fn a_run_of_dead_records_is_passed_over_in_steps_and_whoever_asks_hears_of_each() {
        let dir = tempfile::tempdir().unwrap();
        let one: Vec<_> = live(0).into_iter().chain(dead(1, 100)).chain(live(100)).collect();
        let other: Vec<_> = live(50).into_iter().chain(dead(51, 80)).collect();
        let sources = vec![records(dir.path(), 1, &one), records(dir.path(), 2, &other)];
        let mut joined = Joined { passed_max: 10, ..Joined::of(sources, Box::new(|_| true)) };
        let (mut keys, mut steps) = (Vec::new(), 0);
        while let Some(page) = next_page(&mut joined, 4000, 1 << 20).unwrap() {
            keys.extend(page.into_iter().map(|record| record.key));
            steps += 1;
        }
        assert_eq!(keys, ["00000", "00050", "00100"]);
        assert!(steps > 10, "no more than ten at a time: {steps}");
    }

    #[test]
    fn what_is_not_wanted_is_passed_over_in_steps_too() {
        let dir = tempfile::tempdir().unwrap();
        let all: Vec<_> = (0..100).flat_map(live).collect();
        let joined = Joined::of(vec![records(dir.path(), 1, &all)], Box::new(|key| key == b"00099"));
        let steps: Vec<_> = Joined { passed_max: 10, ..joined }.map(Result::unwrap).collect();
        assert!(steps.len() >= 9 && steps[..steps.len() - 1].iter().all(Option::is_none), "{}", steps.len());
        assert_eq!(steps[steps.len() - 1].as_ref().unwrap().key, "00099");
    }

    #[test]
    fn a_file_that_is_worked_on_is_in_no_directory() {
        let dir = tempfile::tempdir().unwrap();
        let work_dir = dir.path().join("made");
        let file = nameless(&Env::real(), &work_dir, &file_of(&sst(1))).unwrap();
        assert_eq!(std::fs::read_dir(&work_dir).unwrap().count(), 0);
        file.write_all_at(b"sst", 0).unwrap();
        let mut read = [0; 3];
        file.read_exact_at(&mut read, 0).unwrap();
        assert_eq!(&read, b"sst");
    }
}
