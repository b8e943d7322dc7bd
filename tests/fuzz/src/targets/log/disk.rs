//! Log directories on a disk in memory: some that real logs left behind, with every state that they went through.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use openraft::EntryPayload;
use openraft::storage::{RaftLogReader, RaftLogStorage, RaftLogStorageExt};
use prometheus_client::registry::Registry;
use sextant_common::Result;
use sextant_common::ids::{NodeId, PartitionId};
use sextant_environment::Env;
use sextant_environment::env::{Fatal, TcpNetwork, Workers};
use sextant_environment::rng::SeededRng;
use sextant_environment::vfs::{OpenMode, Vfs, read_file};
use sextant_raft_log::{
    Entry, LogId, Member, Membership, PartitionLog, Payload, RaftLog, RaftLogConfig, Vote, fuzzing, log_id,
};
use sextant_simulated::ManualClock;
use sextant_simulated::{CrashMode, FaultyVfs};

pub const SALT_FILE: &str = "IDENTITY";
const PARTITIONS: u32 = 2;
const SEGMENT_BYTES: u64 = 16 << 10;

/// Everything on the present thread: blocking work at once, and what has a thread of its own as a task.
struct OneThread;

impl Workers for OneThread {
    fn dedicated(&self, _name: &str, task: BoxFuture<'static, ()>) {
        tokio::spawn(task);
    }

    fn blocking(&self, work: Box<dyn FnOnce() + Send>) {
        work();
    }

    fn cores(&self) -> usize {
        2
    }
}

/// A log whose process is killed finds that out; whoever reads the log afterwards sees what is missing.
struct Ignored;

impl Fatal for Ignored {
    fn fatal(&self, _message: &str) {}
}

pub fn env(vfs: &FaultyVfs) -> Env {
    Env {
        clock: Arc::new(ManualClock::default()),
        rng: Arc::new(SeededRng::new(1)),
        vfs: Arc::new(vfs.clone()),
        net: Arc::new(TcpNetwork::default()),
        workers: Arc::new(OneThread),
        fatal: Arc::new(Ignored),
        probe: None,
    }
}

pub fn normal(term: u64, index: u64, payload: &[u8]) -> Entry {
    Entry {
        log_id: log_id(term, index),
        payload: EntryPayload::Normal(Payload(Bytes::copy_from_slice(payload))),
    }
}

pub fn membership(term: u64, index: u64, voters: &[u64]) -> Entry {
    let nodes: BTreeMap<u64, Member> =
        voters.iter().map(|id| (*id, Member::new(format!("host{id}:1"), 0))).collect();
    let payload = match Membership::new(vec![voters.iter().copied().collect()], nodes) {
        Ok(membership) => EntryPayload::Membership(membership),
        Err(e) => panic!("not a membership: {e}"),
    };
    Entry { log_id: log_id(term, index), payload }
}

/// What a log holds, of one partition.
#[derive(Clone, Debug, PartialEq)]
pub struct Contents {
    vote: Option<Vote>,
    purged: Option<LogId>,
    /// Or why they cannot be read.
    entries: std::result::Result<Vec<Entry>, String>,
}

/// What a log directory turned out to hold, and what it looks like after it was opened and closed.
pub struct Found {
    pub contents: Vec<Contents>,
    pub left: Files,
}

/// The files of all devices, by path.
pub type Files = Vec<(PathBuf, Vec<u8>)>;

/// The directories of a log as a process left them.
pub struct Image {
    pub files: Files,
    /// Everything that the log held, after each of its records; the last is what it holds now.
    pub states: Vec<Vec<Contents>>,
    devices: usize,
}

fn config(devices: usize) -> RaftLogConfig {
    RaftLogConfig {
        devices: (0..devices).map(|n| PathBuf::from(format!("/log{n}"))).collect(),
        segment_bytes: SEGMENT_BYTES,
        cluster: "fuzz".into(),
        fingerprint: 7,
        node: NodeId(1),
        cache_bytes: 4 << 10,
    }
}

async fn open(vfs: &FaultyVfs, devices: usize) -> Result<RaftLog> {
    let partitions: Vec<PartitionId> = (0..PARTITIONS).map(PartitionId).collect();
    RaftLog::open(env(vfs), config(devices), &partitions, &mut Registry::default()).await
}

async fn contents(log: &RaftLog) -> Vec<Contents> {
    let mut all = Vec::new();
    for id in 0..PARTITIONS {
        let mut partition = log.partition(PartitionId(id));
        let state = partition.get_log_state().await;
        all.push(Contents {
            vote: partition.read_vote().await.ok().flatten(),
            purged: state.ok().and_then(|state| state.last_purged_log_id),
            entries: partition.try_get_log_entries(..).await.map_err(|e| e.to_string()),
        });
    }
    all
}

impl Image {
    pub fn device_of(&self, path: &Path) -> usize {
        let dir = path.parent();
        (0..self.devices).find(|n| dir == Some(Path::new(&format!("/log{n}")))).unwrap_or(0)
    }

    pub fn salt(&self, device: usize) -> u32 {
        let path = PathBuf::from(format!("/log{device}/{SALT_FILE}"));
        let identity = self.files.iter().find(|(name, _)| *name == path);
        identity.and_then(|(_, bytes)| fuzzing::salt_of(bytes)).unwrap_or(0)
    }

    /// The files with other contents.
    pub fn with(&self, contents: Vec<Vec<u8>>) -> Files {
        self.files.iter().map(|(path, _)| path.clone()).zip(contents).collect()
    }

    /// Opens directories with these files.
    pub async fn open(&self, files: &Files) -> Result<Found> {
        let vfs = FaultyVfs::new(1);
        vfs.set_crash_mode(CrashMode::LoseAll);
        for n in 0..self.devices {
            vfs.create_dir_all(Path::new(&format!("/log{n}")))?;
        }
        for (path, bytes) in files {
            let file = vfs.open(path, OpenMode::CreateNew)?;
            file.write_all_at(bytes, 0)?;
            file.sync_data()?;
        }
        let log = open(&vfs, self.devices).await?;
        let contents = contents(&log).await;
        log.shutdown().await;
        Ok(Found { contents, left: files_of(&vfs, self.devices) })
    }
}

fn files_of(vfs: &FaultyVfs, devices: usize) -> Files {
    let dirs = (0..devices).map(|n| PathBuf::from(format!("/log{n}")));
    let paths = dirs.flat_map(|dir| vfs.list(&dir).unwrap_or_default());
    let paths = paths.filter(|path| !path.ends_with("LOCK"));
    paths.map(|path| (path.clone(), read_file(vfs, &path).unwrap_or_default())).collect()
}

/// A log that is being written, and the states that it went through.
struct Writing {
    vfs: FaultyVfs,
    devices: usize,
    log: RaftLog,
    states: Vec<Vec<Contents>>,
}

impl Writing {
    async fn start(devices: usize) -> Self {
        let vfs = FaultyVfs::new(devices as u64);
        let log = open(&vfs, devices).await.unwrap_or_else(|e| panic!("a new log: {e}"));
        let states = vec![contents(&log).await];
        Self { vfs, devices, log, states }
    }

    fn partition(&self, id: u32) -> PartitionLog {
        self.log.partition(PartitionId(id))
    }

    /// Notes the state after a record. In memory it is there as soon as the record is queued.
    async fn note(&mut self, done: std::io::Result<()>) {
        done.unwrap_or_else(|e| panic!("a good log refused a record: {e}"));
        self.states.push(contents(&self.log).await);
    }

    async fn append(&mut self, id: u32, entry: Entry) {
        let done = self.partition(id).blocking_append(vec![entry]).await.map_err(std::io::Error::other);
        self.note(done).await;
    }

    async fn vote(&mut self, id: u32, vote: Vote) {
        let done = self.partition(id).save_vote(&vote).await;
        self.note(done).await;
    }

    /// The process dies, and another one opens the log.
    async fn restart(self) -> Self {
        let Self { vfs, devices, log, states } = self;
        vfs.kill();
        log.shutdown().await;
        drop(log);
        let log = open(&vfs, devices).await.unwrap_or_else(|e| panic!("a good log: {e}"));
        Self { vfs, devices, log, states }
    }

    async fn end(self, cleanly: bool) -> Image {
        if !cleanly {
            self.vfs.kill();
        }
        self.log.shutdown().await;
        Image { files: files_of(&self.vfs, self.devices), states: self.states, devices: self.devices }
    }
}

/// Every kind of record.
async fn write_some(log: &mut Writing) {
    log.vote(0, Vote::new(1, 2)).await;
    log.vote(0, Vote::new_committed(1, 2)).await;
    log.append(0, membership(1, 0, &[1, 2, 3])).await;
    for index in 1..4 {
        log.append(0, normal(1, index, &[index as u8; 50])).await;
        log.append(1, normal(4, 10 + index, &[b'a' + index as u8; 30])).await;
    }
    let truncated = log.partition(0).truncate_after(Some(log_id(1, 2))).await;
    log.note(truncated).await;
    log.append(0, normal(2, 3, b"after the truncation")).await;
    let committed = log.partition(0).save_committed(Some(log_id(2, 3))).await;
    log.note(committed).await;
    log.append(0, normal(2, 4, b"")).await;
    let purged = log.partition(1).purge(log_id(4, 12)).await;
    log.note(purged).await;
    log.vote(1, Vote::new(9, 3)).await;
}

/// Enough for several segments, some of them used again.
async fn write_much(log: &mut Writing) {
    for index in 0..30 {
        log.append(0, normal(1, index, &[index as u8; 3000])).await;
        if index % 10 == 9 {
            let purged = log.partition(0).purge(log_id(1, index - 2)).await;
            log.note(purged).await;
        }
        // Waited for, unlike a purge: so that everything before it is on the disk at the end.
        log.vote(1, Vote::new(index, 1)).await;
    }
}

/// One segment, killed and closed cleanly; two runs; many segments; two devices.
pub async fn images() -> Vec<Image> {
    let mut images = Vec::new();
    for cleanly in [false, true] {
        let mut log = Writing::start(1).await;
        write_some(&mut log).await;
        images.push(log.end(cleanly).await);
    }
    let mut log = Writing::start(1).await;
    write_some(&mut log).await;
    let mut log = log.restart().await;
    log.append(0, normal(3, 5, b"in the second run")).await;
    log.vote(0, Vote::new(5, 1)).await;
    images.push(log.end(false).await);
    for devices in [1, 2] {
        let mut log = Writing::start(devices).await;
        write_some(&mut log).await;
        let mut log = log.restart().await;
        for index in 5..12 {
            log.append(0, normal(3, index, &[index as u8; 200])).await;
        }
        images.push(log.end(false).await);
        let mut log = Writing::start(devices).await;
        write_much(&mut log).await;
        images.push(log.end(devices == 2).await);
    }
    images
}
