//! What backups a repository has, those that cannot be read among them, and which one is taken where none is named.

use std::collections::BTreeMap;
use std::fmt;

use sextant_common::error::{Error, ErrorKind, Result};

use crate::archive::time_text;
use crate::manifest::{Backup, check_name};
use crate::repository::Repository;

/// A backup of which nobody knows what it has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    pub name: String,
    pub why: String,
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "backup {}: {}", self.name, self.why)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inventory {
    /// The oldest first, by the time at which they were made.
    pub backups: Vec<Backup>,
    pub unreadable: Vec<Unreadable>,
}

/// A backup that nobody named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    pub backup: Backup,
    /// What somebody may not expect of the choice, a line each.
    pub told: Vec<String>,
}

impl Inventory {
    pub async fn read(repository: &Repository) -> Result<Self> {
        let mut inventory = Self::default();
        for name in repository.names().await? {
            match read(repository, &name).await? {
                Some(Ok(backup)) => inventory.backups.push(backup),
                Some(Err(why)) => inventory.unreadable.push(Unreadable { name, why }),
                None => {}
            }
        }
        inventory.backups.sort_by_cached_key(|backup| (backup.created_ms, backup.name.clone()));
        Ok(inventory)
    }

    /// The newest of all tables; where there is none, the newest of some. Refused where there are backups of several clusters: nobody
    /// has said which one is meant. Those that do not say whose they are are passed over beside others.
    pub fn newest(&self) -> Result<Chosen> {
        self.chosen(&self.backups.iter().collect::<Vec<_>>(), "in this repository")
    }

    /// The same, of those that were there by then.
    pub fn newest_by(&self, to_ms: u64) -> Result<Chosen> {
        let mut there: Vec<_> = self.backups.iter().filter(|backup| backup.as_of_ms() <= to_ms).collect();
        there.sort_by_key(|backup| (backup.as_of_ms(), &backup.name));
        self.chosen(&there, &format!("of {} or before", time_text(to_ms)))
    }

    /// Of these, the oldest first.
    fn chosen(&self, there: &[&Backup], which: &str) -> Result<Chosen> {
        self.check_one_cluster()?;
        let (unknown, of_it): (Vec<&Backup>, Vec<&Backup>) =
            there.iter().partition(|backup| backup.lineage() == 0);
        let (there, unknown) = if of_it.is_empty() { (unknown, of_it) } else { (of_it, unknown) };
        let full = there.iter().rposition(|backup| !backup.is_part);
        let (Some(newest), Some(taken)) = (there.last(), full.map(|at| there[at]).or(there.last().copied()))
        else {
            return Err(self.nothing(which));
        };
        let mut told: Vec<String> =
            self.unreadable.iter().map(|unreadable| format!("{unreadable}: it is passed over")).collect();
        told.extend(unknown.last().map(|backup| {
            format!(
                "backups that do not say of which cluster they are (the newest is {}) are passed over",
                backup.name
            )
        }));
        let (name, tables) = (&newest.name, newest.table_names().join(", "));
        if taken.is_part {
            told.push(format!(
                "backup {name} has only tables {tables}: it is taken, as there is none of all tables"
            ));
        } else if newest.is_part {
            let taken = &taken.name;
            told.push(format!(
                "backup {name} is newer, but has only tables {tables}: backup {taken} is taken"
            ));
        }
        Ok(Chosen { backup: taken.clone(), told })
    }

    fn check_one_cluster(&self) -> Result<()> {
        let newest: BTreeMap<u64, &str> =
            self.backups.iter().map(|backup| (backup.lineage(), backup.name.as_str())).collect();
        // (Some may not say it.)
        if newest.keys().filter(|lineage| **lineage != 0).count() <= 1 {
            return Ok(());
        }
        let told: Vec<String> = newest
            .iter()
            .map(|(lineage, name)| format!("{} (the newest is {name})", lineage_text(*lineage)))
            .collect();
        Err(Error::invalid(format!(
            "this repository has backups of several clusters, of the lineages {}: name the backup with --name",
            told.join(", ")
        )))
    }

    fn nothing(&self, which: &str) -> Error {
        match self.unreadable.first() {
            None => Error::invalid(format!("there is no backup {which}")),
            Some(unreadable) => {
                Error::corrupt(format!("there is no backup {which} that can be read ({unreadable})"))
            }
        }
    }

    /// Before anything is deleted that a backup may name.
    pub fn check_readable(&self) -> Result<()> {
        let Some(unreadable) = self.unreadable.first() else { return Ok(()) };
        let more = match self.unreadable.len() - 1 {
            0 => String::new(),
            more => format!(" (and {more} more like it)"),
        };
        Err(Error::corrupt(format!(
            "{unreadable}{more}: nothing is removed, as nobody knows which files it names; if it is of no use, remove \
             backups/{}/manifest from the repository, and prune again",
            unreadable.name
        )))
    }
}

/// Of which cluster a backup is.
pub fn lineage_text(lineage: u64) -> String {
    match lineage {
        0 => "unknown".to_owned(),
        lineage => format!("{lineage:016x}"),
    }
}

/// Or why it cannot be read; None: it is gone meanwhile.
async fn read(repository: &Repository, name: &str) -> Result<Option<Result<Backup, String>>> {
    let why = |e: Error| {
        let prefix = format!("backup {name}: ");
        Ok(Some(Err(e.message.strip_prefix(&prefix).unwrap_or(&e.message).to_owned())))
    };
    if let Err(e) = check_name(name) {
        return why(e);
    }
    match repository.backup_if_there(name).await {
        Ok(backup) => Ok(backup.map(Ok)),
        Err(e) if matches!(e.kind, ErrorKind::Corrupt | ErrorKind::Outdated) => why(e),
        Err(e) => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use object_store::memory::InMemory;
    use sextant_environment::Env;

    use super::*;
    use crate::testing::{backup, damage, of_another_cluster, partial};

    fn repository() -> Repository {
        Repository::over(&Env::real(), Arc::new(InMemory::new()))
    }

    fn names(backups: &[Backup]) -> Vec<&str> {
        backups.iter().map(|backup| backup.name.as_str()).collect()
    }

    #[tokio::test]
    async fn backups_are_in_the_order_in_which_they_were_made_whatever_their_names() {
        let repository = repository();
        for (name, made_ms) in [("b", 1), ("c", 2), ("a", 3)] {
            backup(&repository, name, made_ms, &[1]).await;
        }
        let inventory = Inventory::read(&repository).await.unwrap();
        assert_eq!(names(&inventory.backups), ["b", "c", "a"]);
        assert!(inventory.unreadable.is_empty());
    }

    #[tokio::test]
    async fn the_newest_of_all_tables_is_taken_and_a_newer_one_of_some_is_named() {
        let repository = repository();
        backup(&repository, "full", 2, &[1]).await;
        partial(&repository, "before", 1, "t").await;
        let chosen = Inventory::read(&repository).await.unwrap().newest().unwrap();
        assert_eq!((chosen.backup.name.as_str(), chosen.told.len()), ("full", 0));
        partial(&repository, "small", 3, "t").await;
        let inventory = Inventory::read(&repository).await.unwrap();
        let told = "backup small is newer, but has only tables t: backup full is taken";
        assert_eq!(inventory.newest().unwrap().told, [told]);
        assert_eq!(
            inventory.newest_by(1).unwrap().backup.name,
            "full",
            "they are all of the first millisecond"
        );
        assert!(inventory.newest_by(0).unwrap_err().message.contains("or before"));
    }

    #[tokio::test]
    async fn where_there_are_only_backups_of_some_tables_the_newest_of_them_is_taken() {
        let repository = repository();
        let nothing = Inventory::read(&repository).await.unwrap().newest().unwrap_err();
        assert_eq!(
            (nothing.kind, &*nothing.message),
            (ErrorKind::Invalid, "there is no backup in this repository")
        );
        partial(&repository, "z", 1, "t").await;
        partial(&repository, "a", 2, "u").await;
        let chosen = Inventory::read(&repository).await.unwrap().newest().unwrap();
        assert_eq!(chosen.backup.name, "a");
        assert_eq!(chosen.told, ["backup a has only tables u: it is taken, as there is none of all tables"]);
    }

    #[tokio::test]
    async fn one_that_cannot_be_read_hides_no_others() {
        let repository = repository();
        for (name, made_ms) in [("a", 1), ("b", 3), ("c", 2)] {
            backup(&repository, name, made_ms, &[1]).await;
        }
        damage(&repository, "b").await;
        let inventory = Inventory::read(&repository).await.unwrap();
        assert_eq!(names(&inventory.backups), ["a", "c"]);
        let [unreadable] = &inventory.unreadable[..] else { panic!("{inventory:?}") };
        assert_eq!(unreadable.to_string(), "backup b: its manifest does not have its checksum");
        let chosen = inventory.newest().unwrap();
        assert_eq!(chosen.backup.name, "c");
        assert_eq!(chosen.told, [format!("{unreadable}: it is passed over")]);
    }

    #[tokio::test]
    async fn where_there_are_backups_of_several_clusters_none_is_taken_that_nobody_named() {
        let repository = repository();
        backup(&repository, "a", 1, &[1]).await;
        of_another_cluster(&repository, "b", 2, 2, &[1]).await;
        of_another_cluster(&repository, "c", 3, 2, &[1]).await;
        let inventory = Inventory::read(&repository).await.unwrap();
        for refused in [inventory.newest(), inventory.newest_by(1)] {
            let error = refused.unwrap_err();
            let told = "0000000000000001 (the newest is a), 0000000000000002 (the newest is c)";
            assert!(error.kind == ErrorKind::Invalid && error.message.contains(told), "{error}");
        }
    }

    #[tokio::test]
    async fn backups_that_do_not_say_whose_they_are_are_passed_over_beside_those_of_one_cluster() {
        let repository = repository();
        of_another_cluster(&repository, "a", 1, 0, &[1]).await;
        let read = async || Inventory::read(&repository).await.unwrap();
        let alone = read().await.newest().unwrap();
        assert_eq!((&*alone.backup.name, alone.told), ("a", vec![]));
        backup(&repository, "b", 2, &[1]).await;
        of_another_cluster(&repository, "c", 3, 0, &[1]).await;
        let chosen = read().await.newest().unwrap();
        assert_eq!(chosen.backup.name, "b");
        let told = "backups that do not say of which cluster they are (the newest is c) are passed over";
        assert_eq!(chosen.told, [told]);
        of_another_cluster(&repository, "d", 4, 2, &[1]).await;
        let error = read().await.newest().unwrap_err();
        assert!(error.message.contains("lineages unknown (the newest is c), 0000000000000001"), "{error}");
    }

    #[tokio::test]
    async fn where_none_can_be_read_that_is_said() {
        let repository = repository();
        backup(&repository, "a", 1, &[1]).await;
        damage(&repository, "a").await;
        let error = Inventory::read(&repository).await.unwrap().newest().unwrap_err();
        assert_eq!(error.kind, ErrorKind::Corrupt);
        assert!(error.message.contains("that can be read (backup a: "), "{error}");
    }
}
