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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use object_store::memory::InMemory;
    use sextant_common::cut::{Cut, CutTable};
    use sextant_common::ids::{Epoch, LogPosition, PartitionId, SstId, TableId};
    use sextant_common::manifest::SstMeta;
    use sextant_environment::Env;

    use super::*;
    use crate::manifest::{Backup, File};

    fn sst(counter: u32) -> SstMeta {
        let id = SstId {
            partition: PartitionId(0),
            plan: LogPosition::default(),
            epoch: Epoch::default(),
            counter,
        };
        SstMeta {
            id,
            table: TableId(1),
            records: 1,
            tombstones: 0,
            min_key: "a".into(),
            max_key: "b".into(),
            min_seq: 1,
            max_seq: 1,
            file_bytes: 3,
            checksum: 7,
            generations: Default::default(),
            range: Default::default(),
            expiring: Default::default(),
            replicas: Vec::new(),
        }
    }

    async fn backup(repository: &Repository, name: &str, created_ms: u64, ssts: &[u32]) {
        let table = CutTable {
            table: TableId(1),
            name: "t".into(),
            options: Default::default(),
            generation: Default::default(),
            ssts: Some(ssts.iter().map(|counter| sst(*counter)).collect()),
        };
        let cut = Cut {
            id: 1,
            at: 1,
            seq: Default::default(),
            tick: Default::default(),
            opened_ms: 1,
            lease_ms: 1,
            tables: vec![table],
        };
        let cuts = BTreeMap::from([(PartitionId(0), cut)]);
        let backup = Backup { name: name.into(), created_ms, cuts };
        for File { id, checksum, bytes } in backup.files() {
            let mut to = repository.write_table(&File { id, checksum, bytes }).await.unwrap();
            to.write(b"sst").await.unwrap();
            to.finish().await.unwrap();
        }
        repository.commit(&backup).await.unwrap();
    }

    #[tokio::test]
    async fn the_newest_stay_with_all_that_they_name_and_the_rest_goes() {
        let repository = Repository::over(&Env::real(), Arc::new(InMemory::new()));
        // (By when they were made, not by name.)
        backup(&repository, "c", 1, &[1, 2]).await;
        backup(&repository, "a", 2, &[2, 3]).await;
        backup(&repository, "b", 3, &[3, 4]).await;
        let mut died = repository.write_table(&File { id: sst(9).id, checksum: 1, bytes: 3 }).await.unwrap();
        died.write(b"sst").await.unwrap();
        died.finish().await.unwrap();
        let pruned = prune(&repository, 2, &|_| ()).await.unwrap();
        assert_eq!(pruned, Pruned { backups: 1, files: 2, bytes: 6 });
        assert_eq!(repository.names().await.unwrap(), ["a", "b"]);
        assert_eq!(repository.tables().await.unwrap().len(), 3);
        assert_eq!(prune(&repository, 2, &|_| ()).await.unwrap(), Pruned::default());
        assert!(prune(&repository, 0, &|_| ()).await.is_err(), "one stays in any case");
        assert!(repository.backup("c").await.is_err());
        assert!(repository.backup("../a").await.is_err());
    }
}
