//! The one log of a memtable server. (Skeleton: bodies are being filled in.)

mod entry_codec;
mod types;

use std::fmt::Debug;
use std::io;
use std::ops::RangeBounds;
use std::path::PathBuf;
use std::sync::Arc;

use openraft::OptionalSend;
use openraft::storage::{RaftLogReader, RaftLogStorage};
use sextant_common::ids::{NodeId, PartitionId};
use sextant_common::{Env, Result};

pub use entry_codec::{decode_entry, decode_membership, encode_entry, encode_membership};
pub use types::{
    Entry, IoFlushed, LogId, LogState, Membership, Payload, StoredMembership, TypeConfig, Vote, log_id, log_id_at,
    position_of,
};

/// One per partition; called in log order, synchronously from `append` and `truncate_after`. Implementations only push to
/// a queue.
pub trait LogObserver: Send + Sync + 'static {
    fn appended(&self, entries: Vec<Entry>);
    fn truncated(&self, after: Option<LogId>);
}

#[derive(Clone, Debug)]
pub struct RaftLogConfig {
    pub devices: Vec<PathBuf>,
    pub segment_bytes: u64,
    pub cluster: String,
    pub fingerprint: u64,
    pub node: NodeId,
    pub cache_bytes: u64,
}

#[derive(Clone, Debug, Default)]
pub struct RecoveryReport {
    pub entries: u64,
    pub bytes: u64,
    pub segments: u64,
    pub torn_bytes: u64,
    pub seconds: f64,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct LogStats {
    pub fsyncs: u64,
    pub batches: u64,
    pub records: u64,
    pub bytes: u64,
    pub failed: bool,
}

pub struct RaftLog;

impl RaftLog {
    pub async fn open(
        _env: Env,
        _config: RaftLogConfig,
        _partitions: &[PartitionId],
        _registry: &mut prometheus_client::registry::Registry,
    ) -> Result<RaftLog> {
        unimplemented!()
    }
    pub fn partition(&self, _id: PartitionId) -> PartitionLog {
        unimplemented!()
    }
    pub fn report(&self) -> RecoveryReport {
        unimplemented!()
    }
    pub async fn shutdown(&self) {
        unimplemented!()
    }
    pub fn stats(&self) -> LogStats {
        unimplemented!()
    }
}

#[derive(Clone)]
pub struct PartitionLog;

impl PartitionLog {
    pub fn set_observer(&self, _observer: Arc<dyn LogObserver>) {
        unimplemented!()
    }
    pub fn replay(&self, _from_index: u64, _f: &mut dyn FnMut(Entry) -> Result<()>) -> Result<()> {
        unimplemented!()
    }
    pub fn last_log_id(&self) -> Option<LogId> {
        unimplemented!()
    }
    pub fn purged(&self) -> Option<LogId> {
        unimplemented!()
    }
    pub fn bytes_since(&self, _index: u64) -> u64 {
        unimplemented!()
    }
}

impl RaftLogReader<TypeConfig> for PartitionLog {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        _range: RB,
    ) -> Result<Vec<Entry>, io::Error> {
        unimplemented!()
    }
    async fn read_vote(&mut self) -> Result<Option<Vote>, io::Error> {
        unimplemented!()
    }
    async fn limited_get_log_entries(&mut self, _start: u64, _end: u64) -> Result<Vec<Entry>, io::Error> {
        unimplemented!()
    }
}

impl RaftLogStorage<TypeConfig> for PartitionLog {
    type LogReader = PartitionLog;
    async fn get_log_state(&mut self) -> Result<LogState, io::Error> {
        unimplemented!()
    }
    async fn get_log_reader(&mut self) -> PartitionLog {
        self.clone()
    }
    async fn save_vote(&mut self, _vote: &Vote) -> Result<(), io::Error> {
        unimplemented!()
    }
    async fn save_committed(&mut self, _committed: Option<LogId>) -> Result<(), io::Error> {
        unimplemented!()
    }
    async fn read_committed(&mut self) -> Result<Option<LogId>, io::Error> {
        unimplemented!()
    }
    async fn append<I>(&mut self, _entries: I, _callback: IoFlushed) -> Result<(), io::Error>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        unimplemented!()
    }
    async fn truncate_after(&mut self, _last: Option<LogId>) -> Result<(), io::Error> {
        unimplemented!()
    }
    async fn purge(&mut self, _id: LogId) -> Result<(), io::Error> {
        unimplemented!()
    }
}
