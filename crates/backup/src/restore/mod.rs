//! A backup is written into a cluster: any, of any number of partitions.
//!
//! What is large is loaded ([`loads`]), [piece](pieces) by piece; what is small is written as clients do ([`imports`]). What the
//! archived log has on top of it is written as clients do ([`log`]), [folded](fold). Objects of the Redis protocol get
//! [new versions](renaming): first all headers are written, as they are in the end, then elements. A restore that ended half-way may be
//! begun again: it writes the same, but for versions, and elements of the one before are swept.

mod fold;
mod imports;
mod loads;
mod log;
pub(crate) mod pieces;
mod renaming;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::stream::{self, StreamExt, TryStreamExt};
use sextant_client::{Client, ScanOptions};
use sextant_common::cut::{Cut, CutTable};
use sextant_common::database::Database;
use sextant_common::error::{Error, ErrorKind, Result};
use sextant_common::expiry::Tick;
use sextant_common::ids::{DEFAULT_TABLE_NAME, OWN_TABLES};
use sextant_common::ids::{LoadId, PartitionId};
use sextant_common::key::{SLOTS, SlotMap};
use sextant_common::manifest::TableOptions;

use crate::manifest::Backup;
use crate::records::{Files, Joined, work_dir};
use crate::repository::Repository;
use crate::{Progress, USERS_TABLE};
pub use log::restore_to;
use pieces::{Share, Source, Target, targets};
use renaming::{Part, Pass, Renamed, Renaming};

/// Of files that are brought here at once, for one partition, about: whole ones, whatever of them goes there.
pub(crate) const PIECE_BYTES: u64 = 2 * 1024 * 1024 * 1024;
/// What is smaller is written as clients do: a load holds back the writes of its partition for a moment.
const LOADED_BYTES_MIN: u64 = 4 * 1024 * 1024;

#[derive(Clone, Debug)]
pub struct Options {
    /// Empty: all.
    pub tables: Vec<String>,
    /// What a table has already stays, unless the backup has the key.
    pub into_existing: bool,
    /// Users and their rights too.
    pub users: bool,
    /// Where files are put while they are read; None: where the system has its temporary ones.
    pub dir: Option<PathBuf>,
    /// How many partitions of the cluster are written at a time.
    pub parallel: usize,
    /// Of what bytes of files on a partition's part of a table is loaded; None: everything is written as clients do.
    pub loaded_bytes_min: Option<u64>,
    /// Of files that are brought here at once, for one partition, about.
    pub piece_bytes: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            tables: Vec::new(),
            into_existing: false,
            users: false,
            dir: None,
            parallel: 2,
            loaded_bytes_min: Some(LOADED_BYTES_MIN),
            piece_bytes: PIECE_BYTES,
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    /// By table.
    pub records: BTreeMap<String, u64>,
    /// That the log after the backup has written or deleted.
    pub of_log: u64,
}

pub async fn restore(
    client: &Client,
    repository: &Repository,
    backup: &Backup,
    options: &Options,
    progress: Progress<'_>,
) -> Result<Restored> {
    let restoring = Restoring::begin(client, repository, backup, options, progress).await?;
    let mut restored = Restored::default();
    for part in [Part::Headers, Part::Elements] {
        restoring.part(part, &mut restored).await?;
    }
    Ok(restored)
}

/// How the backup's cluster gave its keys to partitions.
fn slots_of(backup: &Backup) -> Result<SlotMap> {
    let partitions = backup.cuts.len() as u32;
    let are_all = backup.cuts.keys().copied().eq((0..partitions).map(PartitionId));
    match are_all && partitions > 0 && partitions <= u32::from(SLOTS) {
        true => Ok(SlotMap::even(partitions)),
        false => Err(Error::corrupt(format!("backup {} has not all partitions", backup.name))),
    }
}

struct Restoring<'a> {
    client: &'a Client,
    repository: &'a Repository,
    backup: &'a Backup,
    options: &'a Options,
    progress: Progress<'a>,
    /// Where files are put while they are read.
    dir: PathBuf,
    cluster: SlotMap,
    targets: Vec<Target>,
    /// What is restored, by name.
    tables: BTreeMap<String, TableOptions>,
    /// What the cluster had before.
    known: BTreeMap<String, TableOptions>,
    renaming: Renaming,
    /// What has expired by now is not written: the cluster's own time may be behind, and it would be seen until then.
    now: Tick,
}

impl<'a> Restoring<'a> {
    /// Its tables are there when this returns. (All of them first: what the cluster cannot have is refused before anything is written.)
    async fn begin(
        client: &'a Client,
        repository: &'a Repository,
        backup: &'a Backup,
        options: &'a Options,
        progress: Progress<'a>,
    ) -> Result<Self> {
        let tables = chosen(backup, options)?;
        let known: BTreeMap<String, TableOptions> =
            client.list_tables().await?.into_iter().map(|table| (table.name, table.options)).collect();
        if !options.into_existing {
            check_empty(client, tables.keys().filter(|name| known.contains_key(*name))).await?;
        }
        let cluster = SlotMap::even(client.partitions().await?);
        let targets = targets(&slots_of(backup)?, &cluster);
        let dir = work_dir(options.dir.as_deref())?;
        let renaming = Renaming::new(repository.env.rng.nonzero_u64());
        let now = Tick(repository.env.clock.wall_guess_ns() / 1_000_000);
        for (name, table_options) in &tables {
            client.ensure_table(name, table_options).await?;
        }
        Ok(Self {
            client,
            repository,
            backup,
            options,
            progress,
            dir,
            cluster,
            targets,
            tables,
            known,
            renaming,
            now,
        })
    }

    /// Writes what the backup has of these tables.
    async fn part(&self, part: Part, restored: &mut Restored) -> Result<()> {
        for (name, options) in self.tables.iter().filter(|(name, _)| Part::of(name) == part) {
            // (Where its keys go is another matter in a table with other options, and each write finds its way.)
            let may_load = self.known.get(name).is_none_or(|known| known == options);
            let records = stream::iter(&self.targets)
                .map(|target| self.table(name, options, may_load, target))
                .buffer_unordered(self.options.parallel.max(1))
                .try_fold(0, |all, records| std::future::ready(Ok(all + records)))
                .await?;
            restored.records.insert(name.clone(), records);
        }
        Ok(())
    }

    /// What a partition of the cluster gets of a table: how many records.
    async fn table(
        &self,
        name: &str,
        options: &TableOptions,
        may_load: bool,
        target: &Target,
    ) -> Result<u64> {
        let source = |(from, share): &(PartitionId, Share)| {
            let cut = self.backup.cuts.get(from)?;
            let table = cut.tables.iter().find(|table| table.name == name)?;
            Some(Source { cut, table, share: *share })
        };
        let sources: Vec<Source<'_>> = target.sources.iter().filter_map(source).collect();
        let tables: Vec<&CutTable> = sources.iter().map(|source| source.table).collect();
        let is_loaded = may_load
            && name != USERS_TABLE
            && self.options.loaded_bytes_min.is_some_and(|least| pieces::bytes(&sources) >= least);
        let (partition, cluster) = (target.partition, &self.cluster);
        let (mut files, mut count) = (Files::default(), 0);
        for range in pieces::ranges(&sources, self.options.piece_bytes) {
            files.bring(self.repository, &tables, &range, &self.dir).await?;
            let records = |pass: Pass| {
                let records =
                    sources.iter().map(|s| files.records(s.table, &range, s.cut.tick.max(self.now)));
                let (cluster, options) = (cluster.clone(), options.clone());
                let is_here = move |key: &[u8]| cluster.partition_of(key, &options) == partition;
                let records = Joined::of(records.collect::<Result<_>>()?, Box::new(is_here));
                Ok(Renamed::new(records, self.renaming.of(name), pass))
            };
            let mut all = records(Pass::All)?.peekable();
            while all.next_if(|next| matches!(next, Ok(None))).is_some() {
                tokio::task::yield_now().await;
            }
            if all.peek().is_none() {
                continue;
            }
            if is_loaded {
                let id = LoadId(self.repository.env.rng.nonzero_u64());
                let has_others = Arc::new(AtomicBool::new(false));
                let rising = || records(Pass::Rising(has_others.clone()));
                count += loads::load(self.client, name, id, partition, &rising).await?;
                if has_others.load(Ordering::Relaxed) {
                    count += imports::import(self.client, name, records(Pass::Others)?).await?;
                }
            } else {
                count += imports::import(self.client, name, all).await?;
            }
            (self.progress)(format!("table {name:?}, partition {partition}: {count} records so far"));
        }
        Ok(count)
    }
}

/// By name, with their options.
fn chosen(backup: &Backup, options: &Options) -> Result<BTreeMap<String, TableOptions>> {
    let all = backup.cuts.values().flat_map(|cut: &Cut| &cut.tables);
    // (What the first partition says of a table that partitions have with other options is what was asked for.)
    let all: BTreeMap<String, TableOptions> =
        all.rev().map(|t| (t.name.clone(), t.options.clone())).collect();
    if let Some(unknown) = options.tables.iter().find(|name| !all.contains_key(*name)) {
        let why = format!("backup {} has no table {unknown:?}", backup.name);
        return Err(Error::new(ErrorKind::UnknownTable, why));
    }
    Ok(all.into_iter().filter(|(name, _)| is_chosen(options, name)).collect())
}

fn is_chosen(options: &Options, name: &str) -> bool {
    match name {
        USERS_TABLE => options.users,
        _ if options.tables.is_empty() => true,
        name if name.starts_with(OWN_TABLES) => {
            // Elements go with the objects that they are of: without them they would end up in whatever objects are there now.
            let database = Database::all().find(|database| database.elements() == name);
            database.is_none_or(|database| {
                let table = if database == Database::FIRST { DEFAULT_TABLE_NAME } else { database.table() };
                options.tables.iter().any(|t| t == table || t.is_empty() && database == Database::FIRST)
            })
        }
        name => options.tables.iter().any(|t| t == name),
    }
}

async fn check_empty(client: &Client, tables: impl Iterator<Item = &String>) -> Result<()> {
    for name in tables {
        let one = ScanOptions { limit: 1, ..ScanOptions::default() };
        if !client.scan(name, one).collect_records().await?.is_empty() {
            return Err(Error::invalid(format!(
                "table {name:?} is not empty: --into-existing restores into it all the same"
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_restored_with_the_table_of_their_objects_and_not_without_it() {
        let of = |tables: &[&str], users| Options {
            tables: tables.iter().map(|&name| name.to_owned()).collect(),
            users,
            ..Options::default()
        };
        let (first, second) = (Database::FIRST.elements(), Database::new(1).unwrap().elements());
        let chosen = |options: Options| {
            ["foo", DEFAULT_TABLE_NAME, "db1", first, second, USERS_TABLE]
                .map(|name| is_chosen(&options, name))
        };
        assert_eq!(chosen(of(&[], true)), [true; 6]);
        assert_eq!(chosen(of(&[], false)), [true, true, true, true, true, false]);
        assert_eq!(chosen(of(&["foo"], false)), [true, false, false, false, false, false]);
        assert_eq!(chosen(of(&["db1"], true)), [false, false, true, false, true, true]);
        assert_eq!(chosen(of(&[DEFAULT_TABLE_NAME], false)), [false, true, false, true, false, false]);
    }
}
