//! Backups: SSTables do not change, so a backup is a list of them, and a copy of those that the repository lacks.
//!
//! Owns the [`repository`] (bytes: docs/formats/backup.md), what is copied into it ([`create`]), checked ([`verify`]), deleted
//! ([`prune`](mod@prune)) and written into a cluster again ([`restore`]), and what there is ([`inventory`]). Does not own how a cluster holds still for it: that is a snapshot, which it
//! opens and renews like any client.
//!
//! Invariant: a backup is there when its manifest is, and that is written when everything that it names is. Nothing that a manifest
//! names is deleted.

pub mod archive;
pub mod compare;
pub mod create;
mod framing;
mod guard;
pub mod inventory;
mod litter;
mod manifest;
mod pace;
pub mod prune;
mod records;
pub mod repository;
pub mod restore;
mod s3;
#[cfg(test)]
mod testing;
pub mod verify;

pub use inventory::Inventory;
pub use manifest::{Backup, File, check_name};
pub use repository::Repository;

/// How far a long command has come, for who watches.
pub type Progress<'p> = &'p (dyn Fn(String) + Send + Sync);

/// Users and rights. (Passwords are hashes there.)
const USERS_TABLE: &str = "sextant.access";
