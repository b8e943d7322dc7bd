//! `sextant backup`, `sextant verify`.

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use sextant_backup::archive::follow::{self, follow};
use sextant_backup::archive::reach::Reach;
use sextant_backup::archive::store::Archive;
use sextant_backup::archive::verify::verify_log;
use sextant_backup::archive::{time_of, time_text};
use sextant_backup::create::{self, create_until};
use sextant_backup::inventory::{Chosen, Inventory, Unreadable, lineage_text};
use sextant_backup::restore::{self, restore, restore_to};
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
    /// Made, if it is not there.
    fn open(&self, repository: &str) -> Result<Repository, Failure> {
        Ok(Repository::open_trusting(&Env::real(), repository, self.ca.as_deref())?)
    }

    fn existing(&self, repository: &str) -> Result<Repository, Failure> {
        Ok(Repository::existing(&Env::real(), repository, self.ca.as_deref())?)
    }
}

/// On standard error: what is printed on standard output is the result.
fn progress(line: String) {
    eprintln!("{line}");
}

/// The one that is named; else the newest, of those that were there by a time.
async fn find(repository: &Repository, name: Option<&str>, to_ms: Option<u64>) -> Result<Backup, Failure> {
    if let Some(name) = name {
        return Ok(repository.backup(name).await?);
    }
    let inventory = Inventory::read(repository).await?;
    let Chosen { backup, told } = match to_ms {
        Some(to_ms) => inventory.newest_by(to_ms)?,
        None => inventory.newest()?,
    };
    told.into_iter().for_each(progress);
    Ok(backup)
}

/// A signal ends it in order: nothing is held any more, here or in the cluster. Another one ends it at once.
async fn made(args: BackupCreateArgs, stores: &Stores) -> CommandResult {
    let (client, repository) = (client(&args.connection).await?, stores.open(&args.to)?);
    let options =
        create::Options { name: args.name, tables: args.table, bytes_per_second: args.bytes_per_second };
    let mut signals = StopSignals::listen()?;
    let (stop, stopping) = shutdown::channel();
    let creating = create_until(&client, &repository, &options, stopping, &progress);
    let mut creating = std::pin::pin!(creating);
    let made = tokio::select! {
        made = &mut creating => made?,
        () = signals.wait() => {
            stop.trigger();
            let ended = signals.drain(creating).await;
            ended.ok_or_else(|| Failure::error("it was ended at once: what it held is free when its leases are over"))??
        }
    };
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
    let repository = stores.existing(&args.repository)?;
    let archive = repository.archive().await?;
    let Inventory { backups, unreadable } = Inventory::read(&repository).await?;
    let mut stdout = std::io::stdout().lock();
    for backup in &backups {
        writeln!(stdout, "{}", listed(backup, &archive))?;
    }
    for Unreadable { name, why } in &unreadable {
        writeln!(stdout, "{name}\tit cannot be read: {why}")?;
    }
    match unreadable.len() {
        0 => Ok(()),
        bad => Err(Failure::negative(format!("{bad} of {} backups cannot be read", backups.len() + bad))),
    }
}

/// What a list says of a backup.
fn listed(backup: &Backup, archive: &Archive) -> String {
    let files = backup.files();
    let bytes = files.iter().map(|file| file.bytes).fold(0, u64::saturating_add);
    let ssts = backup.cuts.values().flat_map(Cut::ssts);
    let records = ssts.map(|sst| sst.records.saturating_sub(sst.tombstones)).fold(0, u64::saturating_add);
    let tables = match backup.is_part {
        true => format!("only tables {}", backup.table_names().join(", ")),
        false => "all tables".to_owned(),
    };
    let fields = [
        backup.name.clone(),
        time_text(backup.created_ms),
        tables,
        format!("{} partitions", backup.cuts.len()),
        format!("{} SSTables", files.len()),
        format!("{bytes} bytes"),
        format!("at most {records} records"),
        Reach::of(backup, archive).to_string(),
        format!("lineage {}", lineage_text(backup.lineage())),
    ];
    fields.join("\t")
}

async fn verified(args: BackupVerifyArgs, stores: &Stores) -> CommandResult {
    let repository = stores.existing(&args.repository.repository)?;
    let backup = find(&repository, args.name.as_deref(), None).await?;
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
    if args.set_aside {
        for line in verify::set_aside(&repository, &verified.suspects).await {
            writeln!(stdout, "{line}")?;
        }
    }
    match verified.bad.len() + log.bad.len() {
        0 => Ok(()),
        bad => Err(Failure::negative(format!("{bad} files of the backup, or of the log after it, are bad"))),
    }
}

async fn restored(args: BackupRestoreArgs, stores: &Stores) -> CommandResult {
    let (repository, client) = (stores.existing(&args.from)?, client(&args.connection).await?);
    let to_ms = args.to_time.as_deref().map(time_of).transpose()?;
    let backup = find(&repository, args.name.as_deref(), to_ms).await?;
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
    let repository = stores.existing(&args.repository.repository)?;
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use clap::Parser;
    use sextant_common::cut::CutTable;
    use sextant_common::ids::{Epoch, LogPosition, PartitionId, SstId, TableId};
    use sextant_common::manifest::SstMeta;

    use super::*;
    use crate::args::{Cli, Command};

    async fn run(words: &[&str]) -> CommandResult {
        let words = ["sextant", "backup"].iter().chain(words);
        let Command::Backup(args) = Cli::try_parse_from(words).unwrap().command else { panic!("of backups") };
        super::run(args).await
    }

    fn backup(name: &str, tables: &[&str], is_part: bool) -> Backup {
        let table = |name: &&str| CutTable {
            table: TableId(1),
            name: (*name).into(),
            options: Default::default(),
            generation: Default::default(),
            ssts: Some(Default::default()),
        };
        let cut = Cut {
            id: 1,
            at: 1,
            seq: Default::default(),
            tick: Default::default(),
            opened_ms: 1,
            lease_ms: 1,
            tables: tables.iter().map(table).collect(),
            term: 1,
            lineage: 1,
        };
        let cuts = BTreeMap::from([(PartitionId(0), cut)]);
        Backup { name: name.into(), created_ms: 1_795_000_000_123, cuts, is_part }
    }

    /// With an SSTable of each of these: how many records, and how many of them are tombstones.
    fn with_ssts(ssts: &[(u64, u64)]) -> Backup {
        let mut backup = backup("a", &["t"], false);
        let sst = |((records, tombstones), counter): (&(u64, u64), u32)| SstMeta {
            id: SstId {
                partition: PartitionId(0),
                plan: LogPosition::default(),
                epoch: Epoch::default(),
                counter,
            },
            table: TableId(1),
            records: *records,
            tombstones: *tombstones,
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
        };
        let cut = backup.cuts.get_mut(&PartitionId(0)).unwrap();
        cut.tables[0].ssts = Some(ssts.iter().zip(1..).map(sst).collect());
        backup
    }

    #[tokio::test]
    async fn what_looks_for_a_repository_makes_none() {
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("a");
        let at = missing.to_str().unwrap();
        for words in
            [&["list", at][..], &["verify", at], &["prune", at, "--keep", "1"], &["restore", "--from", at]]
        {
            let failure = run(words).await.unwrap_err();
            let told = format!("{failure:?}");
            assert!(told.contains("there is no directory") && told.contains("Usage"), "{words:?}: {told}");
        }
        assert!(!missing.exists());
    }

    #[tokio::test]
    async fn a_list_with_a_backup_that_cannot_be_read_is_a_finding() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().to_str().unwrap();
        let repository = Repository::open(&Env::real(), at).unwrap();
        for name in ["a", "b"] {
            repository.commit(&backup(name, &["t"], false)).await.unwrap();
        }
        run(&["list", at]).await.unwrap();
        std::fs::write(dir.path().join("backups/a/manifest"), "").unwrap();
        let told = format!("{:?}", run(&["list", at]).await.unwrap_err());
        assert!(told.contains("1 of 2 backups cannot be read") && told.contains("Negative"), "{told}");
        assert_eq!(find(&repository, None, None).await.unwrap().name, "b");
    }

    #[test]
    fn a_list_says_when_a_backup_was_made_whether_it_has_all_tables_and_of_which_cluster_it_is() {
        let line =
            |is_part| listed(&backup("a", &["t", "small", "sextant.access"], is_part), &Archive::default());
        let rest =
            "1 partitions\t0 SSTables\t0 bytes\tat most 0 records\tno log after it\tlineage 0000000000000001";
        assert_eq!(line(false), format!("a\t2026-11-18T11:06:40.123Z\tall tables\t{rest}"));
        assert_eq!(line(true), format!("a\t2026-11-18T11:06:40.123Z\tonly tables small, t\t{rest}"));
    }

    #[test]
    fn a_list_counts_records_also_where_files_say_nonsense() {
        let listed = |ssts: &[(u64, u64)]| listed(&with_ssts(ssts), &Archive::default());
        assert!(listed(&[(5, 2), (3, 4)]).contains("\tat most 3 records\t"));
        assert!(listed(&[(u64::MAX, 0), (2, 1)]).contains(&format!("\tat most {} records\t", u64::MAX)));
    }

    #[tokio::test]
    async fn what_cannot_be_set_aside_is_a_finding_as_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().to_str().unwrap();
        let (repository, backup) = (Repository::open(&Env::real(), at).unwrap(), with_ssts(&[(1, 0)]));
        repository.commit(&backup).await.unwrap();
        std::fs::create_dir(dir.path().join("tables")).unwrap();
        std::fs::write(dir.path().join("tables").join(backup.files()[0].name()), "bad").unwrap();
        // A file where the folder is to be.
        std::fs::write(dir.path().join("damaged"), "").unwrap();
        let told = format!("{:?}", run(&["verify", at, "--set-aside"]).await.unwrap_err());
        assert!(told.contains("1 files of the backup") && told.contains("Negative"), "{told}");
    }

    #[tokio::test]
    async fn a_directory_that_cannot_be_used_is_no_finding_about_a_backup() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().to_str().unwrap();
        let (repository, backup) = (Repository::open(&Env::real(), at).unwrap(), with_ssts(&[(1, 0)]));
        repository.commit(&backup).await.unwrap();
        std::fs::create_dir(dir.path().join("tables")).unwrap();
        std::fs::write(dir.path().join("tables").join(backup.files()[0].name()), "sst").unwrap();
        let work_dir = dir.path().join("file");
        std::fs::write(&work_dir, "").unwrap();
        let work_dir = work_dir.to_str().unwrap();
        let told = format!("{:?}", run(&["verify", at, "--work-dir", work_dir]).await.unwrap_err());
        assert!(told.contains(work_dir) && told.contains("Failed"), "{told}");
    }
}
