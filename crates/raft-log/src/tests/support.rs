//! A server's log on a disk in memory, and a model of what must be in it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use openraft::EntryPayload;
use openraft::storage::{RaftLogReader, RaftLogStorage, RaftLogStorageExt};
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use sextant_common::Result;
use sextant_common::ids::{NodeId, PartitionId};
use sextant_environment::clock::SystemClock;
use sextant_environment::env::{Fatal, TcpNetwork, ThreadWorkers, Workers};
use sextant_environment::rng::SeededRng;
use sextant_environment::vfs::{IoKind, OpenMode, Vfs, VfsFile};
use sextant_environment::{Clock, Env};
use sextant_simulated::FaultyVfs;

use crate::recovery::scan::{DeviceScan, identify, scan};
use crate::{Entry, LogId, Member, PartitionLog, Payload, RaftLog, RaftLogConfig, Vote, log_id};

/// Remembers why the process would have ended.
#[derive(Default)]
pub(super) struct Fatals(pub Mutex<Vec<String>>);

impl Fatal for Fatals {
    fn fatal(&self, message: &str) {
        self.0.lock().push(message.to_owned());
    }
}

/// Does blocking work at once, as a simulation does: a file is made before the next batch is written.
#[derive(Default)]
struct AtOnce(ThreadWorkers);

impl Workers for AtOnce {
    fn dedicated(&self, name: &str, task: BoxFuture<'static, ()>) {
        self.0.dedicated(name, task);
    }

    fn blocking(&self, work: Box<dyn FnOnce() + Send>) {
        work();
    }

    fn cores(&self) -> usize {
        2
    }
}

/// All on the runtime of the test, which can pause its time: the same seed gives the same order of everything.
#[derive(Default)]
struct OneThread;

impl Workers for OneThread {
    fn dedicated(&self, _name: &str, task: BoxFuture<'static, ()>) {
        tokio::spawn(task);
    }

    fn blocking(&self, work: Box<dyn FnOnce() + Send>) {
        work();
    }

    fn cores(&self) -> usize {
        1
    }
}

/// A directory in which no file can be created, and the system's number of the error.
pub(super) type Refused = Arc<Mutex<Option<(PathBuf, i32)>>>;

/// A disk on which a directory may refuse new files.
struct RefusingVfs {
    vfs: FaultyVfs,
    refused: Refused,
}

impl Vfs for RefusingVfs {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn VfsFile>> {
        match &*self.refused.lock() {
            Some((dir, error)) if mode == OpenMode::CreateNew && path.starts_with(dir) => {
                Err(io::Error::from_raw_os_error(*error))
            }
            _ => self.vfs.open(path, mode),
        }
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        self.vfs.create_dir_all(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<PathBuf>> {
        self.vfs.list(dir)
    }

    fn exists(&self, path: &Path) -> bool {
        self.vfs.exists(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.vfs.rename(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.vfs.remove_file(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.vfs.sync_dir(dir)
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn Send + Sync>> {
        self.vfs.lock(path)
    }

    fn delay(&self, kind: IoKind) -> Option<Duration> {
        self.vfs.delay(kind)
    }
}

pub(super) struct Server {
    /// Blocking work is done at once.
    pub at_once: bool,
    /// So is it, and devices have no threads.
    pub one_thread: bool,
    pub clock: Arc<dyn Clock>,
    pub vfs: FaultyVfs,
    pub refused: Refused,
    pub config: RaftLogConfig,
    pub fatals: Arc<Fatals>,
    pub partitions: Vec<PartitionId>,
    seed: u64,
}

impl Server {
    pub fn new(seed: u64) -> Self {
        Self::with_devices(seed, 1)
    }

    pub fn with_devices(seed: u64, devices: usize) -> Self {
        let config = RaftLogConfig {
            devices: (0..devices).map(|n| PathBuf::from(format!("/log{n}"))).collect(),
            segment_bytes: 64 << 10,
            cluster: "test".into(),
            fingerprint: 7,
            node: NodeId(1),
            cache_bytes: 4 << 10,
        };
        let partitions = vec![PartitionId(0), PartitionId(1), PartitionId(2)];
        Self {
            at_once: false,
            one_thread: false,
            clock: Arc::new(SystemClock::default()),
            vfs: FaultyVfs::new(seed),
            refused: Refused::default(),
            config,
            fatals: Arc::default(),
            partitions,
            seed,
        }
    }

    pub fn env(&self) -> Env {
        Env {
            clock: self.clock.clone(),
            rng: Arc::new(SeededRng::new(self.seed)),
            vfs: Arc::new(RefusingVfs { vfs: self.vfs.clone(), refused: self.refused.clone() }),
            net: Arc::new(TcpNetwork::default()),
            workers: self.workers(),
            fatal: self.fatals.clone(),
            probe: None,
        }
    }

    fn workers(&self) -> Arc<dyn Workers> {
        match (self.one_thread, self.at_once) {
            (true, _) => Arc::new(OneThread),
            (false, true) => Arc::new(AtOnce::default()),
            (false, false) => Arc::new(ThreadWorkers),
        }
    }

    pub async fn open(&self) -> Result<RaftLog> {
        RaftLog::open(self.env(), self.config.clone(), &self.partitions, &mut Registry::default()).await
    }

    /// Power fails. Waits until the process that had the log open has noticed: its threads outlive it here.
    pub async fn crash(&self, log: RaftLog) {
        self.vfs.crash();
        log.shutdown().await;
    }

    /// The process dies.
    pub async fn kill(&self, log: RaftLog) {
        self.vfs.kill();
        log.shutdown().await;
    }

    /// What recovery would read of a device.
    pub fn scan(&self, device: usize) -> Result<DeviceScan> {
        let (env, dir) = (self.env(), &self.config.devices[device]);
        let place = crate::format::identity::Identity {
            cluster: self.config.cluster.clone(),
            node: self.config.node.0,
            device: device as u16,
            devices: self.config.devices.len() as u16,
            salt: 0,
        };
        scan(&env, dir, identify(&env, dir, place)?)
    }

    /// What is on the devices, for people.
    pub fn dump(&self) -> String {
        use crate::format::record::read_records;
        let mut out = String::new();
        for (device, dir) in self.config.devices.iter().enumerate() {
            let scanned = match self.scan(device) {
                Ok(scanned) => scanned,
                Err(e) => {
                    out += &format!("{}: {e}\n", dir.display());
                    continue;
                }
            };
            let salt = scanned.identity.salt;
            for batch in &scanned.batches {
                let segment = &scanned.chain[batch.segment];
                let header = batch.header;
                out += &format!("{} {header:?}\n", segment.path.display());
                let bytes = self.read(&segment.path);
                let body = &bytes[header.body_start() as usize..][..header.length as usize];
                read_records(body, header.records, header.body_crc, salt, |_, record| {
                    out += &format!("    {record:?}\n");
                });
            }
            for found in &scanned.checkpoints {
                out += &format!("  checkpoint {} run {} {:?}\n", found.lsn, found.run, found.checkpoint);
            }
        }
        out
    }

    /// Names of the segment files of a device.
    pub fn segments(&self, device: usize) -> Vec<PathBuf> {
        let files = self.vfs.list(&self.config.devices[device]).unwrap();
        files.into_iter().filter(|path| path.extension().is_some_and(|e| e == "log")).collect()
    }

    pub fn file(&self, path: &Path) -> Arc<dyn VfsFile> {
        self.vfs.open(path, OpenMode::Existing).unwrap()
    }

    pub fn read(&self, path: &Path) -> Vec<u8> {
        sextant_environment::vfs::read_file(&self.vfs, path).unwrap()
    }

    /// Overwrites bytes of a file, durably.
    pub fn overwrite(&self, path: &Path, offset: u64, bytes: &[u8]) {
        let file = self.file(path);
        file.write_all_at(bytes, offset).unwrap();
        file.sync_data().unwrap();
    }
}

pub(super) fn normal(term: u64, index: u64, payload: impl AsRef<[u8]>) -> Entry {
    let payload = Payload(bytes::Bytes::copy_from_slice(payload.as_ref()));
    Entry { log_id: log_id(term, index), payload: EntryPayload::Normal(payload) }
}

/// An entry whose payload tells what it is, so that a mix-up is seen.
pub(super) fn marked(partition: u32, term: u64, index: u64, length: usize) -> Entry {
    let mut payload = format!("p{partition} t{term} i{index} ").into_bytes();
    payload.resize(payload.len().max(length), b'.');
    normal(term, index, payload)
}

pub(super) fn membership(term: u64, index: u64, voters: &[u64]) -> Entry {
    let nodes = voters.iter().map(|id| (*id, Member::new(format!("host{id}:1"), 0))).collect();
    let membership = crate::Membership::new(vec![voters.iter().copied().collect()], to_map(nodes)).unwrap();
    Entry { log_id: log_id(term, index), payload: EntryPayload::Membership(membership) }
}

fn to_map(nodes: Vec<(u64, Member)>) -> std::collections::BTreeMap<u64, Member> {
    nodes.into_iter().collect()
}

/// Appends and waits until it is durable.
pub(super) async fn append(log: &PartitionLog, entries: Vec<Entry>) -> std::result::Result<(), String> {
    log.clone().blocking_append(entries).await.map_err(|e| e.to_string())
}

pub(super) async fn all(log: &PartitionLog) -> Vec<Entry> {
    log.clone().try_get_log_entries(..).await.unwrap()
}

/// All that is known of a partition.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Contents {
    pub vote: Option<Vote>,
    pub purged: Option<LogId>,
    pub entries: Vec<Entry>,
}

pub(super) async fn contents(log: &PartitionLog) -> Contents {
    try_contents(log).await.unwrap()
}

/// Reads in two ways and compares.
pub(super) async fn try_contents(log: &PartitionLog) -> std::io::Result<Contents> {
    let mut log = log.clone();
    let state = log.get_log_state().await?;
    let mut entries = Vec::new();
    let replayed = log.replay(0, &mut |entry| {
        entries.push(entry);
        Ok(())
    });
    replayed.map_err(std::io::Error::other)?;
    assert_eq!(entries, log.try_get_log_entries(..).await?);
    assert_eq!(state.last_log_id, entries.last().map(|entry| entry.log_id).or(state.last_purged_log_id));
    Ok(Contents { vote: log.read_vote().await?, purged: state.last_purged_log_id, entries })
}
