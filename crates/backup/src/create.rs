//! A backup is made: a snapshot of the cluster, the SSTables that the repository lacks, the manifest.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::StreamExt;
use futures::stream;
use sextant_client::Client;
use sextant_common::cut::Cut;
use sextant_common::error::{Error, ErrorKind, Result};
use sextant_common::ids::OWN_TABLES;
use sextant_common::ids::PartitionId;
use sextant_environment::shutdown::{self, Shutdown};
use sextant_sstable_server::table::footer::UNHASHED_BYTES;
use xxhash_rust::xxh3::Xxh3;

use crate::Progress;
use crate::guard::{Guard, Work};
use crate::manifest::{Backup, File, check_name};
use crate::pace::Pace;
use crate::repository::{Repository, Writing};

/// Of the snapshot: renewed three times as often.
const LEASE: Duration = Duration::from_secs(120);
const RENEWAL: Duration = Duration::from_secs(40);
/// SSTables that are copied at once.
const COPIES_AT_ONCE: usize = 4;
/// From one replica, then from others.
const ATTEMPTS_MAX: u32 = 8;
const RETRY_PAUSE: Duration = Duration::from_millis(500);

#[derive(Clone, Debug, Default)]
pub struct Options {
    /// None: by the time.
    pub name: Option<String>,
    /// Empty: all. (The database's own go along in any case: users, elements of objects.)
    pub tables: Vec<String>,
    pub bytes_per_second: Option<u64>,
}

#[derive(Clone, Debug)]
pub struct Created {
    pub backup: Backup,
    pub files: usize,
    /// That the repository did not have.
    pub copied: usize,
    pub copied_bytes: u64,
}

pub async fn create(
    client: &Client,
    repository: &Repository,
    options: &Options,
    progress: Progress<'_>,
) -> Result<Created> {
    let (_never, stop) = shutdown::channel();
    create_until(client, repository, options, stop, progress).await
}

/// The same for who may be told to stop. Then there is no backup, and nothing is held or marked any more, unless all but its manifest
/// was written by then.
pub async fn create_until(
    client: &Client,
    repository: &Repository,
    options: &Options,
    stop: Shutdown,
    progress: Progress<'_>,
) -> Result<Created> {
    let created_ms = repository.env.clock.wall_guess_ns() / 1_000_000;
    let name = options.name.clone().unwrap_or_else(|| name_of(created_ms));
    check_name(&name)?;
    if repository.names().await?.contains(&name) {
        return Err(Error::invalid(format!("there is a backup {name:?} already")));
    }
    let guard = Guard::take(repository, Work::Creating).await?;
    let created = held(client, repository, &guard, (name, created_ms), options, stop, progress).await;
    repository.settle().await;
    guard.release().await;
    created
}

/// While a snapshot is held.
async fn held(
    client: &Client,
    repository: &Repository,
    guard: &Guard,
    (name, created_ms): (String, u64),
    options: &Options,
    mut stop: Shutdown,
    progress: Progress<'_>,
) -> Result<Created> {
    // (One that is opened all the same ends with its lease.)
    let snapshot = tokio::select! {
        opened = client.open_snapshot(LEASE) => opened?,
        () = stop.wait() => return Err(stopped()),
    };
    progress(format!("snapshot {:016x} is held", snapshot.id));
    let partitions: Vec<PartitionId> = snapshot.partitions.iter().map(|p| p.partition).collect();
    let made = async {
        let mut cuts = BTreeMap::new();
        for partition in partitions {
            cuts.insert(partition, chosen(client.cut(partition, snapshot.id).await?, &options.tables));
        }
        check_tables(&cuts, &options.tables)?;
        let backup = Backup { name, created_ms, cuts, is_part: !options.tables.is_empty() };
        let created = copy_all(client, repository, snapshot.id, backup, options, progress).await?;
        // It was held all the time: nobody has slept so long that a prune took the mark for a dead one's.
        client.renew_snapshot(snapshot.id).await?;
        guard.look().await?;
        Ok(created)
    };
    let created = tokio::select! {
        created = made => created,
        lost = renew(client, guard, snapshot.id) => Err(lost),
        () = stop.wait() => Err(stopped()),
    };
    if let Err(e) = client.close_snapshot(snapshot.id).await {
        tracing::warn!("snapshot {:016x} is held until its lease is over: {e}", snapshot.id);
    }
    let created = created?;
    // A prune may begin as soon as the guard is gone: by then the manifest is there.
    commit(repository, &created.backup).await?;
    Ok(created)
}

fn stopped() -> Error {
    Error::new(ErrorKind::Stopping, "it was stopped before all was copied: there is no backup")
}

/// The backup is there, with all that it names; or else it is not.
async fn commit(repository: &Repository, backup: &Backup) -> Result<()> {
    repository.commit(backup).await?;
    // Whoever prunes and took this one's mark for a dead one's may have deleted something until now, and sees the manifest from now on.
    let looked = repository.tables().await.map(|there| {
        backup.files().iter().filter(|file| there.get(&file.name()) != Some(&file.bytes)).count()
    });
    let why = match looked {
        Ok(0) => return Ok(()),
        Ok(lost) => Error::retry(format!(
            "{lost} files were removed from the repository meanwhile: create the backup again"
        )),
        Err(e) => e,
    };
    match repository.remove_backup(&backup.name).await {
        Ok(()) => Err(why),
        Err(e) => Err(Error::unavailable(format!(
            "{why}; and {} is still listed, though it may lack files ({e}): remove it, or verify it",
            backup.name
        ))),
    }
}

/// Ends when it cannot be held any more. (Neither waits for the other: a store may take longer than a snapshot's lease.)
async fn renew(client: &Client, guard: &Guard, snapshot: u64) -> Error {
    let marking = async {
        loop {
            tokio::time::sleep(RENEWAL).await;
            if let Err(e) = guard.renew().await {
                tracing::warn!("the repository's mark is not renewed yet: {e}");
            }
        }
    };
    let holding = async {
        loop {
            tokio::time::sleep(RENEWAL).await;
            match client.renew_snapshot(snapshot).await {
                Ok(_) => {}
                Err(e) if e.kind == ErrorKind::Invalid => return e,
                Err(e) => tracing::warn!("the snapshot is not renewed yet: {e}"),
            }
        }
    };
    tokio::select! {
        e = holding => e,
        () = marking => Error::internal("it renews its mark for ever"),
    }
}

fn chosen(mut cut: Cut, tables: &[String]) -> Cut {
    let is_chosen =
        |name: &String| tables.is_empty() || name.starts_with(OWN_TABLES) || tables.contains(name);
    cut.tables.retain(|table| is_chosen(&table.name));
    cut
}

fn check_tables(cuts: &BTreeMap<PartitionId, Cut>, tables: &[String]) -> Result<()> {
    let is_there = |name: &&String| cuts.values().any(|cut| cut.tables.iter().any(|t| t.name == **name));
    match tables.iter().find(|name| !is_there(name)) {
        Some(unknown) => Err(Error::new(ErrorKind::UnknownTable, format!("no table {unknown:?}"))),
        None => Ok(()),
    }
}

async fn copy_all(
    client: &Client,
    repository: &Repository,
    snapshot: u64,
    backup: Backup,
    options: &Options,
    progress: Progress<'_>,
) -> Result<Created> {
    let there = repository.tables().await?;
    let files = backup.files();
    let missing: Vec<File> =
        files.iter().filter(|file| there.get(&file.name()) != Some(&file.bytes)).copied().collect();
    let (count, bytes) = (missing.len(), missing.iter().map(|file| file.bytes).sum::<u64>());
    progress(format!("{count} of {} SSTables are to be copied, {bytes} bytes", files.len()));
    let pace = Arc::new(Pace::new(&repository.env, options.bytes_per_second));
    let (done, copied_bytes) = (AtomicU64::new(0), AtomicU64::new(0));
    let copies = missing.into_iter().map(|file| {
        let (pace, done, copied_bytes) = (&pace, &done, &copied_bytes);
        async move {
            copy(client, repository, snapshot, file, pace).await?;
            let bytes_done = copied_bytes.fetch_add(file.bytes, Ordering::Relaxed) + file.bytes;
            let done = done.fetch_add(1, Ordering::Relaxed) + 1;
            progress(format!("{done} of {count} SSTables, {bytes_done} of {bytes} bytes"));
            Ok::<_, Error>(())
        }
    });
    let mut copies = stream::iter(copies).buffer_unordered(COPIES_AT_ONCE);
    while let Some(copied) = copies.next().await {
        copied?;
    }
    drop(copies);
    Ok(Created { backup, files: files.len(), copied: count, copied_bytes: bytes })
}

async fn copy(
    client: &Client,
    repository: &Repository,
    snapshot: u64,
    file: File,
    pace: &Pace,
) -> Result<()> {
    let mut attempts = 0;
    loop {
        let mut writing = repository.write_table(&file);
        let copied = match fetch(client, snapshot, file, pace, &mut writing).await {
            Ok(()) => writing.finish().await,
            Err(e) => {
                drop(writing);
                Err(e)
            }
        };
        let Err(error) = copied else { return Ok(()) };
        attempts += 1;
        let is_final = matches!(error.kind, ErrorKind::Invalid | ErrorKind::Disk | ErrorKind::Denied);
        if is_final || attempts >= ATTEMPTS_MAX {
            return Err(error);
        }
        tracing::debug!("SSTable {} is copied again: {error}", file.id);
        tokio::time::sleep(RETRY_PAUSE * attempts).await;
    }
}

/// Checked on the way: what is finished is what the manifest says.
async fn fetch(client: &Client, snapshot: u64, file: File, pace: &Pace, to: &mut Writing) -> Result<()> {
    let mut pieces = client.fetch_table(file.id.partition, snapshot, file.id).await?;
    let mut check = Check::new(file);
    while let Some((offset, piece)) = pieces.next().await? {
        pace.take(piece.len()).await;
        if offset != check.at {
            return Err(Error::corrupt(format!("SSTable {}: pieces are missing", file.id)));
        }
        check.take(&piece)?;
        to.write(&piece).await?;
    }
    check.finish()
}

/// Of the bytes of an SSTable's file, as they come.
pub(crate) struct Check {
    file: File,
    at: u64,
    hasher: Xxh3,
}

impl Check {
    pub fn new(file: File) -> Self {
        Self { file, at: 0, hasher: Xxh3::new() }
    }

    pub fn take(&mut self, piece: &[u8]) -> Result<()> {
        let end = self.at.saturating_add(piece.len() as u64);
        if end > self.file.bytes {
            return Err(self.bad("is longer than it was"));
        }
        let hashed = self.file.bytes.saturating_sub(UNHASHED_BYTES as u64);
        let of_hashed = hashed.saturating_sub(self.at).min(piece.len() as u64);
        self.hasher.update(&piece[..of_hashed as usize]);
        self.at = end;
        Ok(())
    }

    pub fn finish(self) -> Result<()> {
        if self.at != self.file.bytes {
            return Err(self.bad("is shorter than it was"));
        }
        if self.hasher.digest() != self.file.checksum {
            return Err(self.bad("does not have its checksum"));
        }
        Ok(())
    }

    fn bad(&self, what: &str) -> Error {
        Error::corrupt(format!("the file of SSTable {} {what}", self.file.id))
    }
}

/// Names by time sort by time.
fn name_of(ms: u64) -> String {
    let time = i64::try_from(ms).ok().and_then(chrono::DateTime::from_timestamp_millis).unwrap_or_default();
    time.format("%Y%m%dT%H%M%SZ").to_string()
}

#[cfg(test)]
mod tests {
    use object_store::memory::InMemory;
    use sextant_environment::Env;

    use super::*;
    use crate::testing::backup;

    #[test]
    fn names_by_time_sort_by_time() {
        assert_eq!(name_of(1_795_000_000_123), "20261118T110640Z");
        assert!(name_of(999_999_999_000) < name_of(1_000_000_000_000));
    }

    #[tokio::test]
    async fn of_two_backups_of_one_name_the_first_stays() {
        let repository = Repository::over(&Env::real(), Arc::new(InMemory::new()));
        backup(&repository, "a", 1, &[1]).await;
        let second = Backup { name: "a".into(), created_ms: 2, cuts: BTreeMap::new(), is_part: false };
        let error = commit(&repository, &second).await.unwrap_err();
        assert!(error.message.contains("already"), "{error}");
        assert_eq!(repository.backup("a").await.unwrap().created_ms, 1);
    }

    #[tokio::test]
    async fn in_a_directory_too() {
        let dir = tempfile::tempdir().unwrap();
        let repository = Repository::open(&Env::real(), dir.path().to_str().unwrap()).unwrap();
        let of = |created_ms| Backup { name: "a".into(), created_ms, cuts: BTreeMap::new(), is_part: false };
        commit(&repository, &of(1)).await.unwrap();
        assert!(commit(&repository, &of(2)).await.is_err());
        assert_eq!(repository.backup("a").await.unwrap().created_ms, 1);
    }

    #[tokio::test]
    async fn a_backup_whose_files_are_gone_by_then_is_none() {
        let repository = Repository::over(&Env::real(), Arc::new(InMemory::new()));
        backup(&repository, "a", 1, &[1, 2]).await;
        let a = repository.backup("a").await.unwrap();
        repository.remove_table(&a.files().first().unwrap().name()).await.unwrap();
        let error = commit(&repository, &Backup { name: "b".into(), ..a }).await.unwrap_err();
        assert!(error.message.contains("1 files were removed"), "{error}");
        assert_eq!(repository.names().await.unwrap(), ["a"]);
    }
}
