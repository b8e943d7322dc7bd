//! `sextant backup`, `sextant verify`.

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use sextant_backup::archive::follow::{self, follow};
use sextant_backup::archive::reach::Reach;
use sextant_backup::archive::time_of;
use sextant_backup::archive::verify::verify_log;
use sextant_backup::create::{self, create};
use sextant_backup::restore::{self, backup_for, restore, restore_to};
use sextant_backup::{Backup, Repository, compare, prune, verify};
use sextant_common::cut::Cut;
use sextant_environment::{Env, shutdown};

use super::client;
use crate::args::{
    BackupArgs, BackupCommand, BackupCreateArgs, BackupFollowArgs, BackupPruneArgs, BackupRestoreArgs,
    BackupVerifyArgs, Connection, RepositoryArgs,
};
use crate::exit::{CommandResult, Failure};
use crate::process::StopSignals;

pub async fn run(args: BackupArgs) -> CommandResult {
    let by_environment = || std::env::var_os("SEXTANT_STORE_CA").filter(|said| !said.is_empty());
    let stores = Stores { ca: args.store_ca.or_else(|| by_environment().map(PathBuf::from)) };
    match args.command {
        BackupCommand::Create(args) => made(args, &stores).await,
        BackupCommand::Follow(args) => followed(args, &stores).await,
        BackupCommand::List(args) => list(args, &stores).await,
        BackupCommand::Verify(args) => verified(args, &stores).await,
        BackupCommand::Restore(args) => restored(args, &stores).await,
        BackupCommand::Prune(args) => pruned(args, &stores).await,
    }
}

/// How repositories are reached.
struct Stores {
    /// Authorities of stores' certificates.
    ca: Option<PathBuf>,
}

impl Stores {
    fn open(&self, repository: &str) -> Result<Repository, Failure> {
        Ok(Repository::open_trusting(&Env::real(), repository, self.ca.as_deref())?)
    }
}

/// On standard error: what is printed on standard output is the result.
fn progress(line: String) {
    eprintln!("{line}");
}

async fn find(repository: &Repository, name: Option<String>) -> Result<Backup, Failure> {
    if let Some(name) = name {
        return Ok(repository.backup(&name).await?);
    }
    let mut newest: Option<Backup> = None;
    for name in repository.names().await? {
        let backup = repository.backup(&name).await?;
        if newest.as_ref().is_none_or(|newest| newest.created_ms <= backup.created_ms) {
            newest = Some(backup);
        }
    }
    newest.ok_or_else(|| Failure::usage("there is no backup in this repository"))
}

async fn made(args: BackupCreateArgs, stores: &Stores) -> CommandResult {
    let (client, repository) = (client(&args.connection).await?, stores.open(&args.to)?);
    let options =
        create::Options { name: args.name, tables: args.table, bytes_per_second: args.bytes_per_second };
    let made = create(&client, &repository, &options, &progress).await?;
    let (name, files, copied) = (&made.backup.name, made.files, made.copied);
    writeln!(
        std::io::stdout(),
        "backup {name}: {files} SSTables, {copied} of them copied, {} bytes",
        made.copied_bytes
    )?;
    Ok(())
}

/// Until a signal; what is in memory is written then, unless another signal comes.
async fn followed(args: BackupFollowArgs, stores: &Stores) -> CommandResult {
    let (client, repository) = (client(&args.connection).await?, stores.open(&args.to)?);
    let mut signals = StopSignals::listen()?;
    let (stop, stopping) = shutdown::channel();
    let options = follow::Options { every: Duration::from_secs(args.every) };
    let following = follow(&client, &repository, options, stopping, &progress);
    let mut following = std::pin::pin!(following);
    tokio::select! {
        ended = &mut following => return Ok(ended?),
        () = signals.wait() => stop.trigger(),
    }
    match signals.drain(following).await {
        Some(ended) => Ok(ended?),
        None => {
            Err(Failure::error("it was ended before everything was written; the next one reads it again"))
        }
    }
}

async fn list(args: RepositoryArgs, stores: &Stores) -> CommandResult {
    let repository = stores.open(&args.repository)?;
    let archive = repository.archive().await?;
    let mut stdout = std::io::stdout().lock();
    for name in repository.names().await? {
        let backup = repository.backup(&name).await?;
        let files = backup.files();
        let bytes: u64 = files.iter().map(|file| file.bytes).sum();
        let (partitions, records) = (
            backup.cuts.len(),
            backup.cuts.values().flat_map(Cut::ssts).map(|sst| sst.records - sst.tombstones).sum::<u64>(),
        );
        writeln!(
            stdout,
            "{name}\t{partitions} partitions\t{} SSTables\t{bytes} bytes\tat most {records} records\t{}",
            files.len(),
            Reach::of(&backup, &archive)
        )?;
    }
    Ok(())
}

async fn verified(args: BackupVerifyArgs, stores: &Stores) -> CommandResult {
    let repository = stores.open(&args.repository.repository)?;
    let backup = find(&repository, args.name).await?;
    let (dir, mut stdout) = (args.work_dir.as_deref(), std::io::stdout());
    if args.against_cluster {
        let client = client(&args.connection).await?;
        let compared = compare::compare(&client, &repository, &backup, dir, &progress).await?;
        for line in &compared.told {
            writeln!(stdout, "{line}")?;
        }
        writeln!(
            stdout,
            "backup {}: {} records are equal, {} differ, the cluster has {} more",
            backup.name, compared.equal, compared.differing, compared.more
        )?;
        let differs = || Failure::negative("the cluster has not what the backup has");
        return compared.is_equal().then_some(()).ok_or_else(differs);
    }
    let verified = verify::verify(&repository, &backup, dir, &progress).await?;
    let log = verify_log(&repository, &backup, &progress).await?;
    for line in verified.bad.iter().chain(&log.bad) {
        writeln!(stdout, "{line}")?;
    }
    let (files, bytes, records) = (verified.files, verified.bytes, verified.records);
    writeln!(stdout, "backup {}: {files} files are good, {bytes} bytes, {records} records", backup.name)?;
    let (segments, groups) = (log.segments, log.groups);
    writeln!(stdout, "{}: {segments} segments are good, {groups} groups", log.reach)?;
    match verified.bad.len() + log.bad.len() {
        0 => Ok(()),
        bad => Err(Failure::negative(format!("{bad} files of the backup, or of the log after it, are bad"))),
    }
}

async fn restored(args: BackupRestoreArgs, stores: &Stores) -> CommandResult {
    let (client, repository) = (client(&args.connection).await?, stores.open(&args.from)?);
    let to_ms = args.to_time.as_deref().map(time_of).transpose()?;
    let backup = match to_ms {
        Some(to_ms) => backup_for(&repository, args.name.as_deref(), to_ms).await?,
        None => find(&repository, args.name).await?,
    };
    let options = restore::Options {
        tables: args.table,
        into_existing: args.into_existing,
        users: args.users,
        dir: args.work_dir,
        parallel: args.parallel,
        ..restore::Options::default()
    };
    let options = match args.as_writes {
        true => restore::Options { loaded_bytes_min: None, ..options },
        false => options,
    };
    let restored = match to_ms {
        Some(to_ms) => restore_to(&client, &repository, &backup, to_ms, &options, &progress).await?,
        None => restore(&client, &repository, &backup, &options, &progress).await?,
    };
    let mut stdout = std::io::stdout().lock();
    for (table, records) in &restored.records {
        writeln!(stdout, "table {table}: {records} records")?;
    }
    if to_ms.is_some() {
        let (name, count) = (&backup.name, restored.of_log);
        writeln!(stdout, "on top of backup {name}: {count} records written or deleted by the log")?;
    }
    Ok(())
}

async fn pruned(args: BackupPruneArgs, stores: &Stores) -> CommandResult {
    let repository = stores.open(&args.repository.repository)?;
    let pruned = prune::prune(&repository, args.keep as usize, &progress).await?;
    let prune::Pruned { backups, files, segments, bytes } = pruned;
    writeln!(
        std::io::stdout(),
        "removed: {backups} backups, {files} files, {segments} segments of the log, {bytes} bytes"
    )?;
    Ok(())
}

pub async fn verify_cluster(connection: Connection) -> CommandResult {
    let found = client(&connection).await?.verify_tables().await?;
    let (mut stdout, mut bad) = (std::io::stdout().lock(), found.lacking.len());
    for server in &found.servers {
        let node = server.node;
        if !server.error.is_empty() {
            bad += 1;
            writeln!(stdout, "sstable server {node}: {}", server.error)?;
            continue;
        }
        writeln!(
            stdout,
            "sstable server {node}: {} SSTables are good, {} bytes",
            server.tables, server.bytes
        )?;
        bad += server.damaged.len();
        for line in &server.damaged {
            writeln!(stdout, "sstable server {node}: {line}")?;
        }
    }
    for line in &found.lacking {
        writeln!(stdout, "{line}")?;
    }
    if bad > 0 { Err(Failure::negative(format!("{bad} findings"))) } else { Ok(()) }
}
