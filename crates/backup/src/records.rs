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

/// A file of a repository, brought here and checked. Goes when it is dropped.
pub(crate) struct Local {
    pub table: Arc<Table>,
    _file: Temporary,
}

impl Local {
    pub async fn fetch(repository: &Repository, file: File, dir: &Path) -> Result<Self> {
        let env = repository.env.clone();
        env.vfs.create_dir_all(dir)?;
        let path = dir.join(format!("sextant-backup-{}-{:016x}", file.name(), env.rng.next_u64()));
        let to = env.vfs.open(&path, OpenMode::CreateNew)?;
        let temporary = Temporary { env, path };
        copy(repository, file, &*to).await?;
        let opened = Table::open(to, file.id, 0, Arc::new(BlockCache::new(0)))?;
        match opened.filter_damage {
            None => Ok(Self { table: Arc::new(opened.table), _file: temporary }),
            Some(damage) => Err(damage),
        }
    }
}

/// Removed when it is dropped.
struct Temporary {
    env: Env,
    path: PathBuf,
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if let Err(e) = self.env.vfs.remove_file(&self.path) {
            tracing::warn!("{} is left: {e}", self.path.display());
        }
    }
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

/// What a table of a backup has; tombstones, and what has expired by the cut's tick, left out.
pub(crate) struct Records {
    merge: Merge,
    tick: Tick,
    /// Until there is no record any more.
    _files: Vec<Arc<Local>>,
}

impl Records {
    pub async fn open(repository: &Repository, table: &CutTable, tick: Tick, dir: &Path) -> Result<Self> {
        let mut files: BTreeMap<SstId, Arc<Local>> = BTreeMap::new();
        let mut iters = Vec::new();
        for sst in table.ssts.iter().flatten() {
            let local = match files.get(&sst.id) {
                Some(local) => local.clone(),
                None => {
                    let local = Arc::new(Local::fetch(repository, file_of(sst), dir).await?);
                    files.insert(sst.id, local.clone());
                    local
                }
            };
            let range = sst.range.clone();
            iters.push(TableIter::new(local.table.clone(), range, Direction::Forward, Caching::Bypass)?);
        }
        let merge = Merge::new(iters, Direction::Forward);
        Ok(Self { merge, tick, _files: files.into_values().collect() })
    }

    /// The next of them; up to so many, and about so many bytes. Empty: that was all.
    pub fn next(&mut self, count_max: usize, bytes_max: usize) -> Result<Vec<RecordVersion>> {
        let (mut records, mut bytes) = (Vec::new(), 0);
        while !self.merge.is_at_end() && records.len() < count_max && bytes < bytes_max {
            let marks = self.merge.marks();
            if !self.merge.is_tombstone() && !is_expired(marks.expires_at(), self.tick) {
                let (key, value) = (self.merge.key().to_vec().into(), self.merge.value());
                bytes += bytes_of(&key, &value);
                records.push(RecordVersion { key, seq: Seq(self.merge.seq()), value: Some(value), marks });
            }
            self.merge.advance()?;
        }
        Ok(records)
    }
}

fn bytes_of(key: &bytes::Bytes, value: &bytes::Bytes) -> usize {
    key.len() + value.len() + 32
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
