//! Old backups go, files that none names, and the log before the oldest that is kept.
//!
//! Invariant: nothing is deleted unless this program has just seen that nobody else creates or prunes, and that there are the backups
//! that it knows. (It cannot be seen in the same moment: one that sleeps for an hour between the two deletes one file too many.)

use std::collections::{BTreeMap, BTreeSet};

use sextant_common::error::{Error, Result};

use crate::Progress;
use crate::archive::reached::Marks;
use crate::archive::segment::{History, Name};
use crate::archive::store::Archive;
use crate::guard::{Guard, Work};
use crate::inventory::Inventory;
use crate::manifest::Backup;
use crate::repository::Repository;

/// For how long it is believed what was seen of others: far below the age of a mark that counts for nothing.
const BELIEVED_NS: u64 = 10_000_000_000;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    pub backups: usize,
    pub files: usize,
    /// Of the log.
    pub segments: usize,
    pub bytes: u64,
}

/// Keeps the newest `keep` backups of all tables, and those of some tables that are newer than the oldest of these: of each cluster
/// that has backups here.
pub async fn prune(repository: &Repository, keep: usize, progress: Progress<'_>) -> Result<Pruned> {
    if keep == 0 {
        return Err(Error::invalid("at least one backup is kept"));
    }
    let guard = Guard::take(repository, Work::Pruning).await?;
    let pruned = run(repository, keep, &guard, progress).await;
    guard.release().await;
    pruned
}

async fn run(repository: &Repository, keep: usize, guard: &Guard, progress: Progress<'_>) -> Result<Pruned> {
    let inventory = Inventory::read(repository).await?;
    inventory.check_readable()?;
    let mut names: Vec<String> = inventory.backups.iter().map(|backup| backup.name.clone()).collect();
    names.sort();
    let (old, stay) = divided(inventory.backups, keep);
    let kept: BTreeSet<String> = stay.iter().flat_map(|b| b.files()).map(|f| f.name()).collect();
    let archive = repository.archive().await?;
    let (segments, marks) = unneeded(&archive, &stay);
    let mut alone = Alone { repository, guard, names, seen_ns: None };
    let mut pruned = Pruned::default();
    for backup in &old {
        alone.check().await?;
        repository.remove_backup(&backup.name).await?;
        alone.names.retain(|name| *name != backup.name);
        progress(format!("backup {} is removed", backup.name));
        pruned.backups += 1;
    }
    for name in segments {
        alone.check().await?;
        repository.remove_segment(&name).await?;
        pruned.segments += 1;
        pruned.bytes += archive.sizes.get(&name).copied().unwrap_or(0);
    }
    for name in marks {
        alone.check().await?;
        repository.remove_marks(&name).await?;
    }
    for (name, bytes) in repository.tables().await? {
        if kept.contains(&name) {
            continue;
        }
        alone.check().await?;
        repository.remove_table(&name).await?;
        pruned.files += 1;
        pruned.bytes += bytes;
    }
    // (The guard's own mark is one of them: it is of now.)
    let now_ms = repository.marks().await?.into_iter().map(|(_, at_ms)| at_ms).max().unwrap_or(0);
    for litter in repository.litter(now_ms).await? {
        alone.check().await?;
        repository.remove_litter(&litter)?;
        pruned.files += 1;
        pruned.bytes += litter.bytes;
    }
    Ok(pruned)
}

/// Those that go, and those that stay, of all from the oldest on. What one cluster has is no substitute for what another has.
fn divided(backups: Vec<Backup>, keep: usize) -> (Vec<Backup>, Vec<Backup>) {
    let mut of_clusters: BTreeMap<u64, Vec<Backup>> = BTreeMap::new();
    for backup in backups {
        of_clusters.entry(backup.lineage()).or_default().push(backup);
    }
    let (mut old, mut stay) = (Vec::new(), Vec::new());
    for (goes, stays) in of_clusters.into_values().map(|backups| divided_of_one(backups, keep)) {
        old.extend(goes);
        stay.extend(stays);
    }
    (old, stay)
}

/// The same of one cluster. A backup of some tables is no substitute for one of all: it counts for
/// nothing, and goes with those of all tables that are as old. Where there are none of these, `keep` stay of each choice of tables.
fn divided_of_one(mut backups: Vec<Backup>, keep: usize) -> (Vec<Backup>, Vec<Backup>) {
    if backups.iter().all(|backup| backup.is_part) {
        return divided_by_tables(backups, keep);
    }
    let full = |(_, backup): &(usize, &Backup)| !backup.is_part;
    let oldest = backups.iter().enumerate().filter(full).rev().nth(keep - 1).map_or(0, |(at, _)| at);
    let stay = backups.split_off(oldest);
    (backups, stay)
}

fn divided_by_tables(backups: Vec<Backup>, keep: usize) -> (Vec<Backup>, Vec<Backup>) {
    let mut left: BTreeMap<Vec<String>, usize> = BTreeMap::new();
    let tables = |backup: &Backup| backup.table_names().into_iter().map(str::to_owned).collect();
    for backup in &backups {
        *left.entry(tables(backup)).or_default() += 1;
    }
    backups.into_iter().partition(|backup| {
        let newer = left.entry(tables(backup)).or_default();
        *newer -= 1;
        *newer >= keep
    })
}

/// Segments and marks of which no kept backup needs anything. Nor will one that comes: what is archived now is before it.
fn unneeded(archive: &Archive, kept: &[Backup]) -> (Vec<Name>, Vec<String>) {
    let cuts = kept.iter().flat_map(|backup| &backup.cuts).filter(|(_, cut)| cut.position().is_some());
    let mut since: BTreeMap<History, u64> = BTreeMap::new();
    for (partition, cut) in cuts {
        let history = History { partition: *partition, lineage: cut.lineage };
        let at = since.entry(history).or_insert(cut.at);
        *at = cut.at.min(*at);
    }
    let is_needed = |name: &&Name| since.get(&name.history).is_some_and(|at| name.to.index > *at);
    let segments = archive.segments.values().flatten().chain(&archive.stumps);
    let segments = segments.filter(|name| !is_needed(name)).copied().collect();
    let is_of_nobody = |marks: &Marks| !marks.keys().any(|history| since.contains_key(history));
    let marks = archive.marks.iter().filter(|(_, marks)| is_of_nobody(marks)).map(|(name, _)| name.clone());
    (segments, marks.collect())
}

/// That nobody else is at work, and was not while this program slept.
struct Alone<'r> {
    repository: &'r Repository,
    guard: &'r Guard,
    /// Of the backups that there are to be, sorted.
    names: Vec<String>,
    /// When that was last begun to be seen.
    seen_ns: Option<u64>,
}

impl Alone<'_> {
    /// Before each deletion.
    async fn check(&mut self) -> Result<()> {
        let clock = &*self.repository.env.clock;
        let is_fresh = |seen_ns: u64| clock.holder_ns().saturating_sub(seen_ns) < BELIEVED_NS;
        if self.seen_ns.is_some_and(is_fresh) {
            return Ok(());
        }
        let now_ns = clock.holder_ns();
        self.guard.look().await?;
        if self.repository.names().await? != self.names {
            return Err(Error::retry("backups came or went meanwhile: nothing more is deleted, prune again"));
        }
        if !is_fresh(now_ns) {
            return Err(Error::retry(
                "the repository is too slow to be sure of others: nothing more is deleted",
            ));
        }
        self.seen_ns = Some(now_ns);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use futures::FutureExt;
    use object_store::memory::InMemory;
    use sextant_common::ids::PartitionId;
    use sextant_environment::Env;
    use sextant_environment::clock::{Clock, WallInterval};

    use super::*;
    use crate::archive::segment::encode;
    use crate::manifest::File;
    use crate::testing::{
        archived, assert_archived, backup, damage, of_another_cluster, partial, segment, sst,
    };

    /// Moved by hand.
    #[derive(Default)]
    struct Moved(AtomicU64);

    impl Clock for Moved {
        fn wall(&self) -> WallInterval {
            WallInterval { earliest_ns: self.holder_ns(), latest_ns: self.holder_ns() }
        }

        fn wall_guess_ns(&self) -> u64 {
            self.holder_ns()
        }

        fn holder_ns(&self) -> u64 {
            self.0.load(Ordering::Relaxed)
        }

        fn grantor_ns(&self) -> u64 {
            self.holder_ns()
        }
    }

    #[tokio::test]
    async fn what_was_made_while_a_prune_slept_keeps_its_files() {
        let clock = Arc::new(Moved::default());
        let env = Env { clock: clock.clone(), ..Env::real() };
        let repository = Repository::over(&env, Arc::new(InMemory::new()));
        for (name, made_ms, ssts) in [("a", 1, [1, 2]), ("b", 2, [2, 3]), ("c", 3, [3, 4])] {
            backup(&repository, name, made_ms, &ssts).await;
        }
        let d = Backup { name: "d".into(), created_ms: 4, ..repository.backup("a").await.unwrap() };
        let slept = AtomicU64::new(0);
        // After the first one: its mark counts for nothing any more, and somebody makes a backup of what it is about to delete.
        let sleep = |_: String| {
            if slept.fetch_add(1, Ordering::Relaxed) == 0 {
                clock.0.fetch_add(2 * 3_600_000_000_000, Ordering::Relaxed);
                repository.commit(&d).now_or_never().unwrap().unwrap();
            }
        };
        let error = prune(&repository, 1, &sleep).await.unwrap_err();
        assert!(error.message.contains("meanwhile"), "{error}");
        let there = repository.tables().await.unwrap();
        assert!(
            repository.backup("d").await.unwrap().files().iter().all(|file| there.contains_key(&file.name()))
        );
        assert!(repository.marks().await.unwrap().is_empty());
        assert_eq!(prune(&repository, 1, &|_| ()).await.unwrap().backups, 2);
    }

    #[tokio::test]
    async fn who_creates_while_a_prune_slept_keeps_what_it_has_copied() {
        let clock = Arc::new(Moved::default());
        let env = Env { clock: clock.clone(), ..Env::real() };
        let repository = Repository::over(&env, Arc::new(InMemory::new()));
        backup(&repository, "a", 1, &[1]).await;
        backup(&repository, "b", 2, &[2]).await;
        let sleep = |_: String| {
            clock.0.fetch_add(2 * 3_600_000_000_000, Ordering::Relaxed);
            repository.mark("creating-0123456789abcdef").now_or_never().unwrap().unwrap();
        };
        let error = prune(&repository, 1, &sleep).await.unwrap_err();
        assert!(error.message.contains("in use"), "{error}");
        assert_eq!(repository.tables().await.unwrap().len(), 2);
    }

    #[tokio::test]
    async fn the_log_before_the_oldest_that_stays_goes_and_that_of_nobody() {
        let repository = Repository::over(&Env::real(), Arc::new(InMemory::new()));
        let of = |lineage| History { partition: PartitionId(0), lineage };
        // (Backups are of entry 1.)
        let segments = archived(&repository, of(1)).await;
        let old = segment(of(1), 0, 1);
        repository.write_segment(&old.name, encode(old.clone()).into()).await.unwrap();
        archived(&repository, of(2)).await;
        let stump = segment(of(2), 9, 12);
        repository.write_segment(&stump.name, b"".as_slice().into()).await.unwrap();
        backup(&repository, "a", 1, &[1]).await;
        let pruned = prune(&repository, 1, &|_| ()).await.unwrap();
        assert_eq!((pruned.backups, pruned.files, pruned.segments), (0, 0, 4));
        assert_archived(&repository, &segments).await;
        let archive = repository.archive().await.unwrap();
        assert!(archive.segments_of(&of(2)).is_empty() && archive.marks_of(&of(2)).is_empty());
        // Those of a backup of an older version are of nobody, too: nothing follows it.
        let mut older = repository.backup("a").await.unwrap();
        older.cuts.values_mut().for_each(|cut| cut.term = 0);
        repository.commit(&Backup { name: "b".into(), created_ms: 2, ..older }).await.unwrap();
        assert_eq!(prune(&repository, 1, &|_| ()).await.unwrap().segments, 2);
    }

    async fn pruned(repository: &Repository, keep: usize) -> Vec<String> {
        prune(repository, keep, &|_| ()).await.unwrap();
        repository.names().await.unwrap()
    }

    #[tokio::test]
    async fn backups_of_some_tables_do_not_count_and_go_with_those_of_all_that_are_as_old() {
        let repository = Repository::over(&Env::real(), Arc::new(InMemory::new()));
        partial(&repository, "part1", 1, "t").await;
        backup(&repository, "full2", 2, &[1]).await;
        partial(&repository, "part3", 3, "t").await;
        partial(&repository, "part4", 4, "t").await;
        assert_eq!(pruned(&repository, 2).await.len(), 4, "there are fewer than two");
        assert_eq!(pruned(&repository, 1).await, ["full2", "part3", "part4"]);
        backup(&repository, "full5", 5, &[1]).await;
        partial(&repository, "part6", 6, "t").await;
        assert_eq!(pruned(&repository, 1).await, ["full5", "part6"]);
    }

    #[tokio::test]
    async fn of_two_clusters_in_a_repository_each_keeps_its_newest_with_their_files() {
        let repository = Repository::over(&Env::real(), Arc::new(InMemory::new()));
        for (name, made_ms, ssts) in [("a1", 1, [1]), ("a2", 4, [2])] {
            backup(&repository, name, made_ms, &ssts).await;
        }
        for (name, made_ms, ssts) in [("b1", 2, [3]), ("b2", 3, [4])] {
            of_another_cluster(&repository, name, made_ms, 2, &ssts).await;
        }
        // Nobody knows whose it is.
        of_another_cluster(&repository, "older", 0, 0, &[5]).await;
        assert_eq!(pruned(&repository, 1).await, ["a2", "b2", "older"]);
        assert_eq!(repository.tables().await.unwrap().len(), 3);
    }

    #[tokio::test]
    async fn where_there_are_only_backups_of_some_tables_the_newest_of_each_choice_stay() {
        let repository = Repository::over(&Env::real(), Arc::new(InMemory::new()));
        for (at, table) in ["t", "u", "t", "t"].iter().enumerate() {
            partial(&repository, &format!("{table}{at}"), at as u64, table).await;
        }
        assert_eq!(pruned(&repository, 2).await, ["t2", "t3", "u1"]);
    }

    #[tokio::test]
    async fn nothing_is_removed_where_a_backup_cannot_be_read_and_it_is_said_which() {
        let repository = Repository::over(&Env::real(), Arc::new(InMemory::new()));
        for (name, made_ms, ssts) in [("a", 1, [1, 2]), ("b", 2, [2, 3]), ("c", 3, [3, 4])] {
            backup(&repository, name, made_ms, &ssts).await;
        }
        damage(&repository, "b").await;
        let error = prune(&repository, 1, &|_| ()).await.unwrap_err();
        assert!(error.message.starts_with("backup b: its manifest"), "{error}");
        assert!(error.message.contains("remove backups/b/manifest"), "{error}");
        assert_eq!(repository.names().await.unwrap().len(), 3);
        assert_eq!(repository.tables().await.unwrap().len(), 4);
        assert!(repository.marks().await.unwrap().is_empty());
        repository.remove_backup("b").await.unwrap();
        assert_eq!(pruned(&repository, 1).await, ["c"]);
    }

    #[tokio::test]
    async fn what_a_process_that_died_has_begun_to_write_in_a_directory_goes() {
        let dir = tempfile::tempdir().unwrap();
        let repository = Repository::open(&Env::real(), dir.path().to_str().unwrap()).unwrap();
        backup(&repository, "a", 1, &[1]).await;
        let begun = dir.path().join("tables/begun#1");
        std::fs::write(&begun, "begun").unwrap();
        let pruned = prune(&repository, 1, &|_| ()).await.unwrap();
        assert_eq!((pruned.files, pruned.bytes, begun.exists()), (1, 5, false));
        assert_eq!(repository.tables().await.unwrap().len(), 1);
    }

    #[tokio::test]
    async fn the_newest_stay_with_all_that_they_name_and_the_rest_goes() {
        let repository = Repository::over(&Env::real(), Arc::new(InMemory::new()));
        // (By when they were made, not by name.)
        backup(&repository, "c", 1, &[1, 2]).await;
        backup(&repository, "a", 2, &[2, 3]).await;
        backup(&repository, "b", 3, &[3, 4]).await;
        let mut died = repository.write_table(&File { id: sst(9).id, checksum: 1, bytes: 3 });
        died.write(b"sst").await.unwrap();
        died.finish().await.unwrap();
        let pruned = prune(&repository, 2, &|_| ()).await.unwrap();
        assert_eq!(pruned, Pruned { backups: 1, files: 2, segments: 0, bytes: 6 });
        assert_eq!(repository.names().await.unwrap(), ["a", "b"]);
        assert_eq!(repository.tables().await.unwrap().len(), 3);
        assert_eq!(prune(&repository, 2, &|_| ()).await.unwrap(), Pruned::default());
        assert!(prune(&repository, 0, &|_| ()).await.is_err(), "one stays in any case");
        assert!(repository.backup("c").await.is_err());
        assert!(repository.backup("../a").await.is_err());
    }
}
