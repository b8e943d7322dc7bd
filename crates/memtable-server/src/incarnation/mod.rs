//! Which life of this server its memory is of, and in which partitions that memory counts.
//!
//! A voter must never forget what it promised or acknowledged. A disk that comes back empty, or older, is therefore another
//! replica: it has another *incarnation*, a random number that stands in a file of every directory of the server ([`file`]) and in
//! the memberships of its partitions. Raft's messages name the incarnation that their sender means; one that means another is
//! refused (`raft::acceptor`), so that a server without its memory votes for nobody and acknowledges nothing, until a
//! committed change of the membership has let it in as what it is now (`worker::leading::voters::rejoin`).
//!
//! Owns: the number, its files, and the list of partitions that this server has to be let into again (`lost`). Does not own:
//! who is a member.

pub mod file;
mod memory;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use sextant_common::error::{Error, ErrorKind, Result};
use sextant_common::ids::PartitionId;
use sextant_environment::Env;
use sextant_environment::config::{foreign_volume, unusable};
use sextant_environment::vfs::Vfs;

use self::file::{Found, Record, Verdict, judge};
use crate::config::MemtableServerConfig;

pub use file::with_advice;
pub use memory::Memory;

/// A file that its directories have.
const OF_AN_SSTABLE_SERVER: &str = "IDENTITY";

/// Of the data directory; given back when dropped.
pub type DirectoryLock = Box<dyn Send + Sync>;

/// This server's incarnation. Shared by all of its partitions.
pub struct Incarnation {
    env: Env,
    /// The data directory first.
    dirs: Vec<PathBuf>,
    id: AtomicU64,
    record: Mutex<Record>,
    /// This life of the server is over: see [`Self::renew`].
    given_up: AtomicBool,
    /// One writer of the files at a time.
    writing: Mutex<()>,
}

impl std::fmt::Debug for Incarnation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Incarnation({:016x})", self.id())
    }
}

impl Incarnation {
    /// Reads the files of all directories, or makes them if nothing was ever written here. Before the log is opened. Blocks. The lock
    /// keeps other processes off the data directory.
    ///
    /// Errors: [`ErrorKind::Corrupt`] or [`ErrorKind::Invalid`] if the directories are not this server's or do not belong
    /// together, with what to do; `Unavailable` while another process has the lock.
    pub fn open(env: &Env, config: &MemtableServerConfig) -> Result<(Incarnation, DirectoryLock)> {
        let vfs = env.vfs.as_ref();
        let data_dir = &config.data_dir;
        // (One of ours may have that of a log, too.)
        if vfs.exists(&data_dir.join(OF_AN_SSTABLE_SERVER)) && !vfs.exists(&data_dir.join(file::NAME)) {
            let what = "it is an sstable server's: not touched";
            return Err(Error::invalid(format!("data directory {}: {what}", data_dir.display())));
        }
        let mut dirs = vec![data_dir.clone()];
        dirs.extend(config.devices());
        vfs.create_dir_all(data_dir).map_err(|e| unusable(data_dir, e))?;
        let lock = vfs.lock(&data_dir.join("INCARNATION.lock")).map_err(|e| match e.kind() {
            std::io::ErrorKind::WouldBlock => {
                // One that is about to end, maybe: it may be had later.
                Error::unavailable(format!("{} is in use by another process", data_dir.display()))
            }
            _ => unusable(data_dir, e),
        })?;
        let mut found = Vec::new();
        for (at, dir) in dirs.iter().enumerate() {
            vfs.create_dir_all(dir).map_err(|e| unusable(dir, e))?;
            let holds =
                if at == 0 { holds_snapshot(vfs, dir)? } else { sextant_raft_log::holds_records(vfs, dir)? };
            let record = Record::read(vfs, dir).map_err(|e| with_advice(e, &dirs))?;
            found.push(Found { dir: dir.clone(), record, holds });
        }
        let record = match judge(&config.cluster.id, config.id.0, &found)? {
            Verdict::Known(record) if record.before.is_some() => finish_renewal(vfs, &dirs, record)?,
            Verdict::Known(record) => record,
            Verdict::Fresh => {
                let servers = &config.cluster.memtable;
                let foreign = foreign_volume(vfs, "memtable", servers, config.id, data_dir, file::NAME);
                if let Some(foreign) = foreign {
                    tracing::warn!("{foreign}");
                }
                let record = Record {
                    cluster: config.cluster.id.clone(),
                    node: config.id.0,
                    incarnation: env.rng.nonzero_u64(),
                    run: 0,
                    partitions: config.cluster.partitions,
                    lost: Vec::new(),
                    before: None,
                };
                dirs.iter().try_for_each(|dir| record.write(vfs, dir))?;
                record
            }
        };
        let record = with_partitions(record, config)?;
        let incarnation = Incarnation {
            env: env.clone(),
            dirs,
            id: AtomicU64::new(record.incarnation),
            record: Mutex::new(record),
            given_up: AtomicBool::new(false),
            writing: Mutex::default(),
        };
        Ok((incarnation, lock))
    }

    /// The log is open: another run has begun with these directories. Blocks. A full disk does not keep a server from starting:
    /// it then runs under the number of the run before.
    pub fn began(&self) -> Result<()> {
        let record = {
            let mut record = self.record.lock();
            record.run += 1;
            record.clone()
        };
        match self.write(&record) {
            Err(e) if e.kind == ErrorKind::Disk && record.run > 1 => {
                tracing::warn!("this start is not counted: {e}");
                self.record.lock().run -= 1;
                Ok(())
            }
            result => result,
        }
    }

    pub fn id(&self) -> u64 {
        self.id.load(Ordering::Acquire)
    }

    /// Whether this server has to be let into the partition's group again.
    pub fn is_lost(&self, partition: PartitionId) -> bool {
        self.record.lock().lost.contains(&partition.0)
    }

    /// The group takes this server for one that it no longer is. False: that was known. To be followed by [`Self::store`].
    pub fn lose(&self, partition: PartitionId) -> bool {
        let mut record = self.record.lock();
        let new = !record.lost.contains(&partition.0);
        if new {
            record.lost.push(partition.0);
        }
        new
    }

    /// The group has let this server in. To be followed by [`Self::store`].
    pub fn regain(&self, partition: PartitionId) {
        self.record.lock().lost.retain(|p| *p != partition.0);
    }

    /// Writes the list of lost partitions. Without it a server that is started again would wait for somebody to add it.
    pub async fn store(self: &std::sync::Arc<Self>) {
        let this = self.clone();
        let written = self.env.blocking(move || {
            let _one = this.writing.lock();
            let record = this.record.lock().clone();
            this.dirs.first().map_or(Ok(()), |data| record.write(this.env.vfs.as_ref(), data))
        });
        if let Some(Err(e)) = written.await {
            tracing::error!("cannot write down which groups have to let this server in: {e}");
        }
    }

    /// Whether this is the first to find that the server has forgotten what it acknowledged. It is to call [`Self::renew`]; others,
    /// for other partitions, would only draw another number while the first one is being written.
    pub fn gives_up(&self) -> bool {
        !self.given_up.swap(true, Ordering::AcqRel)
    }

    /// This server has forgotten what it acknowledged: its directories are an older copy. From now on it is another one, and has
    /// to be let into all of these partitions. Durable on return; the process must not go on with what it has in memory.
    ///
    /// The data directory is the first to say so, and names the incarnation that the log devices may still have: a server that stops
    /// in between goes on from there when it is started again ([`Self::open`]).
    pub async fn renew(self: &std::sync::Arc<Self>, partitions: &BTreeSet<PartitionId>) -> Result<()> {
        let this = self.clone();
        let lost = partitions.iter().map(|p| p.0).collect();
        let written = self.env.blocking(move || {
            let _one = this.writing.lock();
            let old = this.record.lock().clone();
            let record = match old.before {
                // It could not be written everywhere: some log devices may have it already.
                Some(_) => Record { lost, ..old },
                None => Record {
                    incarnation: this.env.rng.nonzero_u64(),
                    lost,
                    before: Some(old.incarnation),
                    ..old
                },
            };
            this.id.store(record.incarnation, Ordering::Release);
            *this.record.lock() = record.clone();
            let vfs = this.env.vfs.as_ref();
            this.dirs.first().map_or(Ok(()), |data| record.write(vfs, data))?;
            *this.record.lock() = finish_renewal(vfs, &this.dirs, record)?;
            Ok(())
        });
        written.await.unwrap_or_else(|| Err(Error::new(ErrorKind::Stopping, "the runtime is stopping")))
    }

    /// The logs' files first: see [`judge`].
    fn write(&self, record: &Record) -> Result<()> {
        let _one = self.writing.lock();
        self.write_all(record)
    }

    fn write_all(&self, record: &Record) -> Result<()> {
        write_all(self.env.vfs.as_ref(), &self.dirs, record)
    }

    #[cfg(test)]
    pub fn for_tests(env: &Env, id: u64) -> std::sync::Arc<Self> {
        let (cluster, lost, before) = ("test".into(), Vec::new(), None);
        let record = Record { cluster, node: 1, incarnation: id, run: 1, partitions: 1, lost, before };
        std::sync::Arc::new(Self {
            env: env.clone(),
            dirs: Vec::new(),
            id: AtomicU64::new(id),
            record: Mutex::new(record),
            given_up: AtomicBool::new(false),
            writing: Mutex::default(),
        })
    }
}

/// Keys would be looked for in other partitions than they are in: what is there would seem absent, and be written beside itself.
fn with_partitions(record: Record, config: &MemtableServerConfig) -> Result<Record> {
    let partitions = config.cluster.partitions;
    if record.partitions != 0 && record.partitions != partitions {
        return Err(Error::invalid(format!(
            "{} is of a cluster with {} partitions, but cluster.partitions is {partitions}: the number is fixed when a cluster is first \
             started",
            config.data_dir.display(),
            record.partitions
        )));
    }
    Ok(Record { partitions, ..record })
}

/// The data directory's file last.
fn write_all(vfs: &dyn Vfs, dirs: &[PathBuf], record: &Record) -> Result<()> {
    dirs.iter().rev().try_for_each(|dir| record.write(vfs, dir))
}

/// The data directory has another incarnation, and says which one was before: the log devices get it too, and only then the data
/// directory forgets the one before (a log device that shows up with it later is an older copy).
fn finish_renewal(vfs: &dyn Vfs, dirs: &[PathBuf], record: Record) -> Result<Record> {
    let record = Record { before: None, ..record };
    write_all(vfs, dirs, &record)?;
    Ok(record)
}

fn holds_snapshot(vfs: &dyn Vfs, dir: &std::path::Path) -> Result<bool> {
    let is_snapshot = |path: &PathBuf| path.extension().is_some_and(|e| e == "snapshot");
    Ok(vfs.list(dir)?.iter().any(is_snapshot))
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use sextant_environment::vfs::OpenMode;
    use sextant_simulated::{CrashMode, FaultyVfs};

    use super::*;

    fn config() -> MemtableServerConfig {
        let text = r#"
            id = 1
            listen = "127.0.0.1:0"
            data_dir = "/data"
            log_devices = ["/log0", "/log1"]
            [cluster]
            id = "test"
            partitions = 2
            memtable = [{ id = 1, addr = "a:1" }]
            sstable = [{ id = 1, addr = "s:1" }]
        "#;
        toml::from_str(text).unwrap()
    }

    /// A server that has run with its directories: each has something.
    fn used(seed: u64) -> (FaultyVfs, Env, Incarnation) {
        let disk = FaultyVfs::new(seed);
        disk.set_crash_mode(CrashMode::TearAll);
        let env = Env { vfs: Arc::new(disk.clone()), ..Env::real() };
        let (incarnation, _lock) = Incarnation::open(&env, &config()).unwrap();
        for file in ["/data/partition-0.snapshot", "/log0/segment-000001.log", "/log1/segment-000001.log"] {
            let path = Path::new(file);
            let file = env.vfs.open(path, OpenMode::CreateNew).unwrap();
            file.write_all_at(b"used by the test", 0).unwrap();
            file.sync_data().unwrap();
            env.vfs.sync_dir(path.parent().unwrap()).unwrap();
        }
        incarnation.began().unwrap();
        (disk, env, incarnation)
    }

    fn files(env: &Env) -> Vec<Record> {
        let read = |dir| Record::read(env.vfs.as_ref(), Path::new(dir)).unwrap().unwrap();
        ["/data", "/log0", "/log1"].map(read).into()
    }

    /// Opens the directories: nothing of a renewal is left half done.
    fn opened(env: &Env) -> Incarnation {
        let (incarnation, _lock) = Incarnation::open(env, &config()).unwrap();
        for file in files(env) {
            assert_eq!((file.incarnation, file.before, file.run), (incarnation.id(), None, 1));
        }
        incarnation
    }

    #[test]
    fn a_directory_of_an_sstable_server_is_not_touched() {
        let env = Env { vfs: Arc::new(FaultyVfs::new(1)), ..Env::real() };
        let dir = Path::new("/data");
        env.vfs.create_dir_all(dir).unwrap();
        let identity = dir.join(OF_AN_SSTABLE_SERVER);
        env.vfs.open(&identity, OpenMode::CreateNew).unwrap();
        let error = Incarnation::open(&env, &config()).map(drop).unwrap_err();
        assert!(error.kind == ErrorKind::Invalid && error.message.contains("not touched"), "{error}");
        assert_eq!(env.vfs.list(dir).unwrap(), [identity]);
    }

    #[test]
    fn the_number_of_partitions_is_fixed_when_directories_are_first_used() {
        let (_disk, env, incarnation) = used(1);
        // As a version wrote it that did not say.
        let old = Record { partitions: 0, ..incarnation.record.lock().clone() };
        incarnation.write_all(&old).unwrap();
        drop(incarnation);
        let open_with = |partitions| {
            let mut config = config();
            config.cluster.partitions = partitions;
            Incarnation::open(&env, &config).map(|(incarnation, _lock)| incarnation.began())
        };
        open_with(2).unwrap().unwrap();
        for other in [1, 3] {
            let error = open_with(other).map(drop).unwrap_err();
            assert!(error.message.contains("a cluster with 2 partitions"), "{error}");
            assert_eq!(error.kind, ErrorKind::Invalid);
        }
        open_with(2).unwrap().unwrap();
    }

    fn lost_partitions() -> BTreeSet<PartitionId> {
        [PartitionId(0), PartitionId(1)].into()
    }

    #[tokio::test]
    async fn a_server_takes_another_incarnation_wherever_the_power_fails() {
        // Files of two incarnations were refused, until somebody emptied the directories of a server that had said it would ask to be
        // let in by itself.
        let (mut untouched, mut renewed) = (0, 0);
        for operation in 1.. {
            // It fails a second time while the server that was started again goes on with it.
            for again in [None, Some(1), Some(2), Some(3), Some(4), Some(6), Some(8), Some(10)] {
                let (disk, env, incarnation) = used(operation);
                let incarnation = Arc::new(incarnation);
                let old = incarnation.id();
                disk.cut_power_at(operation);
                let done = incarnation.renew(&lost_partitions()).await.is_ok();
                let had_power = disk.has_power();
                disk.crash();
                if let Some(again) = again {
                    disk.cut_power_at(again);
                    let _ = Incarnation::open(&env, &config());
                    disk.crash();
                }
                let now = opened(&env);
                assert!(now.id() == incarnation.id() || (now.id() == old && !done), "{operation}");
                let is_new = now.id() != old;
                assert!(lost_partitions().iter().all(|p| now.is_lost(*p) == is_new), "{operation}");
                if is_new {
                    renewed += 1
                } else {
                    untouched += 1
                }
                if done && had_power {
                    assert!(untouched > 0 && renewed > 8);
                    return;
                }
            }
        }
    }

    #[tokio::test]
    async fn a_renewal_that_fails_on_one_device_is_finished_by_the_next_start_also_after_another() {
        let (disk, env, incarnation) = used(1);
        let (incarnation, old) = (Arc::new(incarnation), incarnation_id(&env));
        for _ in 0..2 {
            let fault = sextant_simulated::Fault::Io;
            disk.fail_next(sextant_environment::vfs::IoKind::Write, 1, fault, |path| {
                path.starts_with("/log0")
            });
            incarnation.renew(&lost_partitions()).await.unwrap_err();
            let before: Vec<u64> = files(&env).iter().map(|f| f.before.unwrap_or(0)).collect();
            assert_eq!(before, [old, 0, 0]);
        }
        disk.clear_faults();
        // What is stored meanwhile does not hide it.
        incarnation.regain(PartitionId(1));
        incarnation.store().await;
        disk.crash();
        let now = opened(&env);
        assert_eq!(now.id(), incarnation.id());
        assert!(now.is_lost(PartitionId(0)) && !now.is_lost(PartitionId(1)));
    }

    fn incarnation_id(env: &Env) -> u64 {
        files(env)[0].incarnation
    }
}
