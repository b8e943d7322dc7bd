//! A partition's newest snapshot: in memory for Raft, and in one file, replaced atomically.
//!
//! A snapshot that a leader sends is made durable before Raft is told of it ([`SnapshotStore::receive`]): Raft cannot go on after
//! an error of its state machine, and a full disk is no reason to end a server. So the file may be ahead of what Raft knows, if
//! whoever sent it went away meanwhile, or the server stopped:
//!
//! * Raft is only given what it knows ([`SnapshotStore::newest`]); an older snapshot that it takes or is sent after that needs no
//!   file, since what it covers is covered by the file.
//! * A server that starts goes on from the file, as what a snapshot covers is committed whoever sent it. Its log may end before
//!   the file or contradict it with entries that were never committed: then it begins after the file
//!   (`sextant_raft_log::PartitionLog::follow_snapshot`, before anything is replayed or Raft starts).
//! * Its vote is not behind: the leader's vote is durable before its snapshot is (`super::acceptor`).
//!
//! Invariant: the file is never older than what Raft knows, so the log is never purged beyond it.
//!
//! File `partition-<id>.snapshot`: magic "SXTSNAP1", xxh3_64 of the rest u64, membership length u32, length u64, membership,
//! snapshot.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use sextant_common::error::{Error, Result};
use sextant_common::ids::PartitionId;
use sextant_environment::Env;
use sextant_environment::vfs::{read_file, write_file_atomically};
use sextant_raft_log::{StoredMembership, TypeConfig, decode_membership, log_id_at, position_of};

use crate::partition::snapshot::{self, Snapshot};

const MAGIC: &[u8; 8] = b"SXTSNAP1";

/// An encoded snapshot: what travels.
#[derive(Clone, Debug, Default)]
pub struct SnapshotData(pub Bytes);

pub type Meta = openraft::alias::SnapshotMetaOf<TypeConfig>;

struct Stored {
    data: Bytes,
    meta: Meta,
    rank: Rank,
}

#[derive(Clone)]
pub struct SnapshotStore {
    id: PartitionId,
    env: Env,
    path: PathBuf,
    state: Arc<Mutex<State>>,
    /// One writer at a time. Held by the writing itself: whoever waits for it may go away.
    writing: Arc<tokio::sync::Mutex<()>>,
}

/// (position, manifest version): nothing is ever replaced by an older state.
type Rank = (u64, u64);

#[derive(Default)]
struct State {
    /// What Raft knows.
    newest: Option<Stored>,
    /// Of what is in the file: the newest, or one that was received and that Raft does not know yet.
    in_file: Option<Rank>,
}

impl SnapshotStore {
    /// Reads the file, if there is one.
    pub fn open(env: &Env, dir: &Path, id: PartitionId) -> Result<(Self, Option<Snapshot>)> {
        let path = dir.join(format!("partition-{id}.snapshot"));
        let store =
            Self { id, env: env.clone(), path: path.clone(), state: Arc::default(), writing: Arc::default() };
        if !env.vfs.exists(&path) {
            return Ok((store, None));
        }
        let bytes = read_file(env.vfs.as_ref(), &path)?;
        let damaged = |what: &str| Error::corrupt(format!("{}: {what}", path.display()));
        let (magic, rest) = bytes.split_at_checked(16).ok_or_else(|| damaged("too short"))?;
        if &magic[..8] != MAGIC {
            return Err(damaged("not a snapshot"));
        }
        if u64::from_le_bytes(magic[8..16].try_into().unwrap_or_default()) != xxhash_rust::xxh3::xxh3_64(rest)
        {
            return Err(damaged("checksum mismatch"));
        }
        let data = Bytes::copy_from_slice(rest);
        let snapshot = snapshot::decode(&data, id)?;
        let newest = stored(&snapshot, data)?;
        *store.state.lock() = State { in_file: Some(newest.rank), newest: Some(newest) };
        Ok((store, Some(snapshot)))
    }

    /// Makes a snapshot the newest one, durably. Returns whether Raft has to be told (its position moved).
    pub async fn put(&self, snapshot: &Snapshot) -> Result<bool> {
        let next = self.write(snapshot).await?;
        let mut state = self.state.lock();
        let before = state.newest.as_ref().map(|s| s.rank);
        if before.is_some_and(|b| b >= next.rank) {
            return Ok(false);
        }
        let moved = before.is_none_or(|b| b.0 < next.rank.0);
        state.newest = Some(next);
        Ok(moved)
    }

    /// Makes a snapshot that a leader sent durable, before Raft is told: to be followed by Raft's installation, which then finds
    /// the work done.
    pub async fn receive(&self, snapshot: &Snapshot) -> Result<()> {
        self.write(snapshot).await.map(drop)
    }

    /// Writes the file, unless what is in it is as new. May be given up by whoever waits: the writing is finished all the same,
    /// alone.
    async fn write(&self, snapshot: &Snapshot) -> Result<Stored> {
        let data = Bytes::from(snapshot::encode(snapshot, self.id));
        let next = stored(snapshot, data.clone())?;
        let one = self.writing.clone().lock_owned().await;
        if self.state.lock().in_file.is_some_and(|rank| rank >= next.rank) {
            return Ok(next);
        }
        let (vfs, path, state, rank) =
            (self.env.vfs.clone(), self.path.clone(), self.state.clone(), next.rank);
        let written = self.env.blocking(move || {
            let _one = one;
            let mut file = MAGIC.to_vec();
            file.extend_from_slice(&xxhash_rust::xxh3::xxh3_64(&data).to_le_bytes());
            file.extend_from_slice(&data);
            write_file_atomically(vfs.as_ref(), &path, &file)?;
            state.lock().in_file = Some(rank);
            Ok::<(), std::io::Error>(())
        });
        written.await.ok_or_else(|| Error::internal("the runtime is stopping"))??;
        Ok(next)
    }

    /// How many entries, from index 0, the file stands for.
    pub fn entries_covered(&self) -> u64 {
        self.state.lock().in_file.map_or(0, |(index, _)| index.saturating_add(1))
    }

    pub fn newest(&self) -> Option<(Meta, SnapshotData)> {
        self.state.lock().newest.as_ref().map(|s| (s.meta.clone(), SnapshotData(s.data.clone())))
    }
}

/// What Raft wants to know of a snapshot.
pub fn meta_of(snapshot: &Snapshot) -> Result<Meta> {
    let membership = &snapshot.checkpoint.membership;
    let last_membership =
        if membership.is_empty() { StoredMembership::default() } else { decode_membership(membership)? };
    Ok(Meta { last_log_id: Some(log_id_at(snapshot.checkpoint.at)), last_membership })
}

/// Refuses a snapshot that cannot be installed. To be asked before openraft is given it: there an error of the state machine
/// ends the partition's Raft for good.
pub fn check_installable(partition: PartitionId, meta: &Meta, data: &[u8]) -> Result<()> {
    let checkpoint = snapshot::decode(data, partition)?.checkpoint;
    if meta.last_log_id.as_ref().map(position_of) != Some(checkpoint.at) {
        return Err(Error::invalid(format!("a snapshot as of {} under another position", checkpoint.at)));
    }
    if !checkpoint.membership.is_empty() {
        decode_membership(&checkpoint.membership)?;
    }
    Ok(())
}

fn stored(snapshot: &Snapshot, data: Bytes) -> Result<Stored> {
    let rank = (snapshot.checkpoint.at.index, snapshot.manifest.version.0);
    Ok(Stored { data, meta: meta_of(snapshot)?, rank })
}

#[cfg(test)]
mod tests {
    use openraft::EntryPayload;
    use openraft::storage::{RaftLogStorage, RaftLogStorageExt};
    use prometheus_client::registry::Registry;
    use sextant_common::error::ErrorKind;
    use sextant_common::ids::{LogPosition, NodeId};
    use sextant_common::manifest::Manifest;
    use sextant_environment::config::{ClusterConfig, Server};
    use sextant_environment::env::free_addrs;
    use sextant_raft_log::{Entry, RaftLog, Vote, log_id};
    use sextant_simulated::{CrashMode, FaultyVfs};

    use super::*;
    use crate::partition::{Checkpoint, Partition};
    use crate::{MemtableServer, MemtableServerConfig};

    const ID: PartitionId = PartitionId(0);

    fn disk() -> (FaultyVfs, Env) {
        let disk = FaultyVfs::new(1);
        disk.set_crash_mode(CrashMode::LoseAll);
        let env = Env { vfs: Arc::new(disk.clone()), ..Env::real() };
        env.vfs.create_dir_all(Path::new("/data")).unwrap();
        (disk, env)
    }

    fn open(env: &Env) -> (SnapshotStore, Option<u64>) {
        let (store, snapshot) = SnapshotStore::open(env, Path::new("/data"), ID).unwrap();
        (store, snapshot.map(|s| s.checkpoint.at.index))
    }

    fn snapshot(term: u64, index: u64) -> Snapshot {
        let empty = Partition::new(ID);
        Snapshot {
            checkpoint: Checkpoint {
                at: LogPosition { term, index },
                next_seq: 1,
                time_ms: 0,
                tick: Default::default(),
                generations: Default::default(),
                sessions: Default::default(),
                membership: Bytes::new(),
            },
            manifest: (**empty.manifest()).clone(),
            next_table: 1,
            configuration: None,
            cuts: Default::default(),
            dropped: Default::default(),
            loads: Vec::new(),
        }
    }

    fn known(store: &SnapshotStore) -> Option<u64> {
        store.newest().and_then(|(meta, _)| meta.last_log_id).map(|id| id.index)
    }

    #[tokio::test]
    async fn a_snapshot_that_was_received_is_durable_before_raft_knows_of_it() {
        let (disk, env) = disk();
        let (store, _) = open(&env);
        assert!(store.put(&snapshot(1, 10)).await.unwrap());
        store.receive(&snapshot(2, 30)).await.unwrap();
        assert_eq!(known(&store), Some(10), "Raft is given what it knows");
        // Its own ones go on meanwhile; the file covers them.
        assert!(store.put(&snapshot(2, 20)).await.unwrap());
        assert_eq!(known(&store), Some(20));
        assert!(!store.put(&snapshot(2, 20)).await.unwrap());
        disk.crash();
        let (store, stored) = open(&env);
        assert_eq!((stored, known(&store)), (Some(30), Some(30)));
        // Raft's installation finds the work done, on whatever disk.
        disk.set_capacity(Some(0));
        store.receive(&snapshot(2, 25)).await.unwrap();
        store.receive(&snapshot(2, 30)).await.unwrap();
        assert!(!store.put(&snapshot(2, 30)).await.unwrap());
    }

    #[tokio::test]
    async fn a_full_disk_refuses_a_snapshot_and_keeps_the_one_that_there_is() {
        let (disk, env) = disk();
        let (store, _) = open(&env);
        store.put(&snapshot(1, 10)).await.unwrap();
        disk.set_capacity(Some(disk.used_bytes() + 20));
        let used = disk.used_bytes();
        for _ in 0..2 {
            assert_eq!(store.receive(&snapshot(2, 30)).await.unwrap_err().kind, ErrorKind::Disk);
            assert_eq!(disk.used_bytes(), used, "nothing is left behind");
        }
        assert_eq!((known(&store), open(&env).1), (Some(10), Some(10)));
        disk.set_capacity(None);
        store.receive(&snapshot(2, 30)).await.unwrap();
        assert_eq!(open(&env).1, Some(30));
    }

    #[tokio::test]
    async fn of_several_at_once_the_newest_stays_also_if_nobody_waits_any_more() {
        let (_disk, env) = disk();
        let (store, _) = open(&env);
        let (newer, older) = (snapshot(2, 30), snapshot(2, 20));
        let (a, b) = tokio::join!(store.receive(&newer), store.receive(&older));
        a.and(b).unwrap();
        let newest = snapshot(2, 40);
        {
            let mut given_up = Box::pin(store.receive(&newest));
            let _ = futures::poll!(&mut given_up);
        }
        // Whether it was written or not: this one waits until it is.
        store.receive(&snapshot(2, 35)).await.unwrap();
        assert!(open(&env).1 >= Some(35));
    }

    /// A server of three, the others are not there.
    async fn config() -> MemtableServerConfig {
        let addrs = free_addrs(&Env::real(), 4).await.unwrap();
        let server = |i: usize| Server::new(i as u64 + 1, &addrs[i]);
        MemtableServerConfig {
            id: NodeId(1),
            listen: addrs[0].clone(),
            cluster: ClusterConfig {
                id: "test".into(),
                partitions: 1,
                memtable: (0..3).map(server).collect(),
                sstable: vec![server(3)],
                lease: Default::default(),
            },
            http: None,
            data_dir: "/data".into(),
            log_devices: vec![],
            clock: Default::default(),
            tls: None,
            tuning: Default::default(),
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_server_that_stopped_between_the_snapshot_and_its_log_starts_again() {
        // It was refused for ever: "inverted log order". The snapshot was durable, and the truncation of what it contradicts
        // only queued, or Raft did not know of it yet.
        // A tail of a higher term, shorter than the snapshot, let it start, and never take another entry.
        let contradicted: Vec<(u64, u64)> = (0..9).map(|index| (1 + index / 5, index)).collect();
        for entries in [contradicted, vec![(1, 0), (5, 1), (5, 2)]] {
            let (_disk, env) = disk();
            let config = config().await;
            MemtableServer::start(env.clone(), config.clone()).await.unwrap().shutdown().await;
            let open_log =
                async || RaftLog::open(env.clone(), config.log(), &[ID], &mut Registry::default()).await;
            let log = open_log().await.unwrap();
            let entry = |(term, index)| Entry { log_id: log_id(term, index), payload: EntryPayload::Blank };
            let mut partition = log.partition(ID);
            partition.blocking_append(entries.into_iter().map(entry).collect::<Vec<_>>()).await.unwrap();
            partition.save_vote(&Vote::new_committed(6, 2)).await.unwrap();
            log.shutdown().await;
            open(&env).0.receive(&snapshot(3, 7)).await.unwrap();

            MemtableServer::start(env.clone(), config.clone()).await.unwrap().shutdown().await;
            let log = open_log().await.unwrap();
            assert_eq!(log.partition(ID).last_log_id(), Some(log_id(3, 7)));
            log.shutdown().await;
        }
    }

    #[test]
    fn a_snapshot_that_cannot_be_installed_is_refused_before_openraft_sees_it() {
        let id = PartitionId(3);
        let message = |index: u64, membership: &'static [u8]| {
            let mut made = snapshot(2, index);
            made.checkpoint.membership = Bytes::from_static(membership);
            made.manifest = Manifest::empty(id);
            snapshot::encode(&made, id)
        };
        let meta = Meta { last_log_id: Some(log_id(2, 7)), last_membership: StoredMembership::default() };
        check_installable(id, &meta, &message(7, b"")).unwrap();
        check_installable(id, &meta, &message(8, b"")).unwrap_err();
        check_installable(id, &meta, &message(7, b"nonsense")).unwrap_err();
        check_installable(PartitionId(4), &meta, &message(7, b"")).unwrap_err();
        check_installable(id, &meta, &message(7, b"")[1..]).unwrap_err();
    }
}
