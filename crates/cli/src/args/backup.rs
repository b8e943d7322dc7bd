//! What outlasts a cluster: `snapshot`, `backup`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::Connection;

/// As it is printed.
pub(super) fn snapshot_id(text: &str) -> Result<u64, String> {
    u64::from_str_radix(text, 16).map_err(|e| e.to_string())
}

#[derive(Debug, Args)]
pub struct SnapshotArgs {
    #[command(subcommand)]
    pub command: SnapshotCommand,
}

#[derive(Debug, Subcommand)]
pub enum SnapshotCommand {
    /// Print the id of a new snapshot: each partition at one position of its log, not all of them at one moment
    Open(SnapshotOpenArgs),
    /// Hold it on, for as long as it was opened for
    Renew(SnapshotIdArgs),
    /// Let go what it holds
    Close(SnapshotIdArgs),
}

#[derive(Debug, Args)]
pub struct SnapshotOpenArgs {
    /// How long it is held without a renewal, in seconds
    #[arg(long, value_name = "S", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=600))]
    pub lease_s: u64,
    #[command(flatten)]
    pub connection: Connection,
}

#[derive(Debug, Args)]
pub struct SnapshotIdArgs {
    #[arg(value_parser = snapshot_id)]
    pub id: u64,
    #[command(flatten)]
    pub connection: Connection,
}

#[derive(Debug, Args)]
pub struct BackupArgs {
    #[command(subcommand)]
    pub command: BackupCommand,
    /// Authorities (PEM) of the store's certificate, for s3://, beside Mozilla's [env: SEXTANT_STORE_CA]
    #[arg(long, global = true, value_name = "FILE")]
    pub store_ca: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub enum BackupCommand {
    /// Copy what the repository does not have yet, of each partition at one position of its log, while all goes on
    Create(BackupCreateArgs),
    /// Archive the log of all partitions as it grows, until it is stopped: so backups can be restored to a later time
    Follow(BackupFollowArgs),
    /// List the backups of a repository, and until when the log after each reaches
    List(RepositoryArgs),
    /// Read every file of a backup, and of the log after it, to its end; with --against-cluster compare its records with a cluster's. 1: something is bad
    Verify(BackupVerifyArgs),
    /// Write a backup's records into a cluster, of any number of partitions; with --to-time what was written after it, too
    Restore(BackupRestoreArgs),
    /// Remove all backups but the newest, and the files and the log that none of them needs
    Prune(BackupPruneArgs),
}

#[derive(Debug, Args)]
pub struct RepositoryArgs {
    /// The repository: a directory, which should be on another machine, or s3://BUCKET/PREFIX
    #[arg(value_name = "REPOSITORY")]
    pub repository: String,
}

#[derive(Debug, Args)]
pub struct BackupCreateArgs {
    /// The repository: a directory, which should be on another machine, or s3://BUCKET/PREFIX
    #[arg(long, value_name = "REPOSITORY")]
    pub to: String,
    /// Its name; without, the time (UTC)
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Only this table, and the database's own; may be repeated
    #[arg(long, value_name = "TABLE")]
    pub table: Vec<String>,
    /// Copy no faster than so many bytes a second
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub bytes_per_second: Option<u64>,
    #[command(flatten)]
    pub connection: Connection,
}

#[derive(Debug, Args)]
pub struct BackupFollowArgs {
    /// The repository: a directory, which should be on another machine, or s3://BUCKET/PREFIX
    #[arg(long, value_name = "REPOSITORY")]
    pub to: String,
    /// How often what was written is put there, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub every: u64,
    #[command(flatten)]
    pub connection: Connection,
}

#[derive(Debug, Args)]
pub struct BackupVerifyArgs {
    #[command(flatten)]
    pub repository: RepositoryArgs,
    /// Its name; without, the newest of all tables
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Compare its records with what a cluster has now, key by key
    #[arg(long)]
    pub against_cluster: bool,
    /// Move SSTables whose bytes are damaged to damaged/, so that the next backup copies them again
    #[arg(long, conflicts_with = "against_cluster")]
    pub set_aside: bool,
    /// Where files are put while they are read
    #[arg(long, value_name = "DIR")]
    pub work_dir: Option<PathBuf>,
    #[command(flatten)]
    pub connection: Connection,
}

#[derive(Debug, Args)]
pub struct BackupRestoreArgs {
    /// The repository
    #[arg(long, value_name = "REPOSITORY")]
    pub from: String,
    /// Its name; without, the newest of all tables
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// What was written until then, too, by the archived log: RFC 3339, 2026-11-25T20:00:00Z. Without --name: of the newest backup before
    #[arg(long, value_name = "TIME")]
    pub to_time: Option<String>,
    /// Only this table, with the elements of its objects; may be repeated
    #[arg(long, value_name = "TABLE")]
    pub table: Vec<String>,
    /// Also into tables that have records: they stay, unless the backup has the key
    #[arg(long)]
    pub into_existing: bool,
    /// Users and their rights too: they take the place of those of the same name
    #[arg(long)]
    pub users: bool,
    /// Write all records as clients do. Without: what is more than a few MiB is loaded, which is faster
    #[arg(long)]
    pub as_writes: bool,
    /// Partitions that are written at a time
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub parallel: usize,
    /// Where files are put while they are read: room for some 3 GB for each partition that is written at a time
    #[arg(long, value_name = "DIR")]
    pub work_dir: Option<PathBuf>,
    #[command(flatten)]
    pub connection: Connection,
}

#[derive(Debug, Args)]
pub struct BackupPruneArgs {
    #[command(flatten)]
    pub repository: RepositoryArgs,
    /// So many backups of all tables stay: the newest, and those of some tables that are no older
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub keep: u32,
}
