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
fn nameless(env: &Env, dir: &Path, file: &File) -> Result<Arc<dyn VfsFile>> {
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

impl Records {
    /// All that the table has.
    pub async fn open(repository: &Repository, table: &CutTable, tick: Tick, dir: &Path) -> Result<Self> {
        let mut files = Files::default();
        files.bring(repository, &[table], &KeyRange::all(), dir).await?;
        files.records(table, &KeyRange::all(), tick)
    }

    fn next(&mut self) -> Result<Option<RecordVersion>> {
        while !self.merge.is_at_end() {
            let marks = self.merge.marks();
            let is_there = !self.merge.is_tombstone() && !is_expired(marks.expires_at(), self.tick);
            let record = is_there.then(|| {
                let (key, value) = (self.merge.key().to_vec().into(), self.merge.value());
                RecordVersion { key, seq: Seq(self.merge.seq()), value: Some(value), marks }
            });
            self.merge.advance()?;
            if record.is_some() {
                return Ok(record);
            }
        }
        Ok(None)
    }
}

/// Records of several partitions, in order of their keys; no two have the same.
pub(crate) struct Joined {
    /// Each with what it has next.
    sources: Vec<(RecordVersion, Records)>,
    /// Which are wanted.
    wanted: Wanted,
}

type Wanted = Box<dyn Fn(&[u8]) -> bool + Send>;

impl Joined {
    pub fn all(records: Records) -> Result<Self> {
        Self::of(vec![records], Box::new(|_| true))
    }

    pub fn of(sources: Vec<Records>, wanted: Wanted) -> Result<Self> {
        let mut joined = Self { sources: Vec::new(), wanted };
        for records in sources {
            joined.push(records)?;
        }
        Ok(joined)
    }

    fn push(&mut self, mut records: Records) -> Result<()> {
        while let Some(next) = records.next()? {
            if (self.wanted)(&next.key) {
                self.sources.push((next, records));
                break;
            }
        }
        Ok(())
    }

    fn take(&mut self, at: usize) -> Result<RecordVersion> {
        let (record, records) = self.sources.swap_remove(at);
        self.push(records)?;
        Ok(record)
    }
}

impl Iterator for Joined {
    type Item = Result<RecordVersion>;

    fn next(&mut self) -> Option<Self::Item> {
        let (least, _) = self.sources.iter().enumerate().min_by(|(_, a), (_, b)| a.0.key.cmp(&b.0.key))?;
        Some(self.take(least))
    }
}

/// The next of these records; up to so many, and about so many bytes. Empty: that was all.
pub(crate) fn next_page(
    records: &mut impl Iterator<Item = Result<RecordVersion>>,
    count_max: usize,
    bytes_max: usize,
) -> Result<Vec<RecordVersion>> {
    let (mut page, mut bytes) = (Vec::new(), 0);
    while page.len() < count_max && bytes < bytes_max {
        let Some(record) = records.next().transpose()? else { break };
        bytes += bytes_of(&record);
        page.push(record);
    }
    Ok(page)
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
    use crate::testing::sst;

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
