//! Old backups go, and files that none names.

use std::collections::BTreeSet;

use sextant_common::error::{Error, Result};

use crate::Progress;
use crate::guard::{Guard, Work};
use crate::repository::Repository;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    pub backups: usize,
    pub files: usize,
    pub bytes: u64,
}

/// Keeps the newest `keep` backups, by the time at which they were made.
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
    let mut backups = Vec::new();
    for name in repository.names().await? {
        // (One that cannot be read ends it: nobody knows what it names.)
        backups.push(repository.backup(&name).await?);
    }
    backups.sort_by_key(|backup| (backup.created_ms, backup.name.clone()));
    let old = backups.len().saturating_sub(keep);
    let kept: BTreeSet<String> = backups[old..].iter().flat_map(|b| b.files()).map(|f| f.name()).collect();
    let mut pruned = Pruned::default();
    for backup in &backups[..old] {
        repository.remove_backup(&backup.name).await?;
        progress(format!("backup {} is removed", backup.name));
        pruned.backups += 1;
    }
    for (name, bytes) in repository.tables().await? {
        if kept.contains(&name) {
            continue;
        }
        if pruned.files % 1000 == 0 {
            guard.renew().await?;
        }
        repository.remove_table(&name).await?;
        pruned.files += 1;
        pruned.bytes += bytes;
    }
    Ok(pruned)
}
