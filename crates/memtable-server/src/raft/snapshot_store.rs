//! A partition's newest snapshot: in memory for Raft, and in one file, replaced atomically.
//!
//! File `partition-<id>.snapshot`: magic "SXTSNAP1", xxh3_64 of the rest u64, membership length u32, length u64, membership,
//! snapshot.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use sextant_common::Env;
use sextant_common::error::{Error, Result};
use sextant_common::ids::PartitionId;
use sextant_common::vfs::{read_file, write_file_atomically};
use sextant_raft_log::{StoredMembership, TypeConfig, decode_membership, log_id_at};

use crate::partition::snapshot::Snapshot;

const MAGIC: &[u8; 8] = b"SXTSNAP1";

/// An encoded snapshot: what travels.
#[derive(Clone, Debug, Default)]
pub struct SnapshotData(pub Bytes);

pub type Meta = openraft::alias::SnapshotMetaOf<TypeConfig>;

struct Stored {
    data: Bytes,
    meta: Meta,
    /// (position, manifest version): a file is never replaced by an older state.
    rank: (u64, u64),
}

#[derive(Clone)]
pub struct SnapshotStore {
    id: PartitionId,
    env: Env,
    path: PathBuf,
    newest: Arc<Mutex<Option<Stored>>>,
    /// One writer at a time.
    writing: Arc<tokio::sync::Mutex<()>>,
}

impl SnapshotStore {
    /// Reads the file, if there is one.
    pub fn open(env: &Env, dir: &Path, id: PartitionId) -> Result<(Self, Option<Snapshot>)> {
        let path = dir.join(format!("partition-{id}.snapshot"));
        let store = Self {
            id,
            env: env.clone(),
            path: path.clone(),
            newest: Arc::default(),
            writing: Arc::default(),
        };
        if !env.vfs.exists(&path) {
            return Ok((store, None));
        }
        let bytes = read_file(env.vfs.as_ref(), &path)?;
        let damaged = |what: &str| Error::corrupt(format!("{}: {what}", path.display()));
        let (magic, rest) = bytes.split_at_checked(16).ok_or_else(|| damaged("too short"))?;
        if &magic[..8] != MAGIC {
            return Err(damaged("not a snapshot, or of another version"));
        }
        if u64::from_le_bytes(magic[8..16].try_into().unwrap_or_default()) != xxhash_rust::xxh3::xxh3_64(rest)
        {
            return Err(damaged("checksum mismatch"));
        }
        let data = Bytes::copy_from_slice(rest);
        let snapshot = Snapshot::decode(&data, id)?;
        *store.newest.lock() = Some(stored(&snapshot, data)?);
        Ok((store, Some(snapshot)))
    }

    /// Makes a snapshot the newest one, durably. Returns whether Raft has to be told (its position moved).
    pub async fn put(&self, snapshot: &Snapshot) -> Result<bool> {
        let _one = self.writing.lock().await;
        let data = Bytes::from(snapshot.encode(self.id));
        let next = stored(snapshot, data.clone())?;
        let before = self.newest.lock().as_ref().map(|s| s.rank);
        if before.is_some_and(|b| b >= next.rank) {
            return Ok(false);
        }
        let (vfs, path) = (self.env.vfs.clone(), self.path.clone());
        let written = self.env.blocking(move || {
            let mut file = MAGIC.to_vec();
            file.extend_from_slice(&xxhash_rust::xxh3::xxh3_64(&data).to_le_bytes());
            file.extend_from_slice(&data);
            write_file_atomically(vfs.as_ref(), &path, &file)
        });
        written.await.ok_or_else(|| Error::internal("the runtime is stopping"))??;
        let moved = before.is_none_or(|b| b.0 < next.rank.0);
        *self.newest.lock() = Some(next);
        Ok(moved)
    }

    pub fn newest(&self) -> Option<(Meta, SnapshotData)> {
        self.newest.lock().as_ref().map(|s| (s.meta.clone(), SnapshotData(s.data.clone())))
    }
}

fn stored(snapshot: &Snapshot, data: Bytes) -> Result<Stored> {
    let at = snapshot.checkpoint.at;
    let membership = &snapshot.checkpoint.membership;
    let last_membership =
        if membership.is_empty() { StoredMembership::default() } else { decode_membership(membership)? };
    let meta = Meta { last_log_id: Some(log_id_at(at)), last_membership };
    Ok(Stored { data, meta, rank: (at.index, snapshot.manifest.version.0) })
}
