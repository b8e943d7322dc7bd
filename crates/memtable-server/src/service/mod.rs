//! The gRPC services: thin shells that validate what comes in, ask the shared state or the worker, and answer.

pub mod admin;
pub mod lease;
pub mod raft;
pub mod rows;
pub mod status;

use std::collections::HashMap;
use std::sync::Arc;

use sextant_common::Env;
use sextant_common::config::ClusterConfig;
use sextant_common::error::{Error, Result};
use sextant_common::ids::{NodeId, PartitionId};
use tokio::sync::Notify;

use crate::metrics::Metrics;
use crate::shared::Handle;

/// What all services share.
pub struct Context {
    pub env: Env,
    pub node: NodeId,
    pub cluster: ClusterConfig,
    pub partitions: HashMap<PartitionId, Handle>,
    pub rafts: HashMap<PartitionId, crate::raft::Raft>,
    pub news: Arc<Notify>,
    pub metrics: Arc<Metrics>,
    /// Random per process: monotonic clocks cannot be compared across restarts.
    pub boot: u64,
    pub recovery: Recovery,
    pub log: Arc<sextant_raft_log::RaftLog>,
    pub started_ns: u64,
    pub shutdown: sextant_common::shutdown::Shutdown,
}

/// What starting up took.
#[derive(Clone, Debug, Default)]
pub struct Recovery {
    /// Reading and checking the log.
    pub log_seconds: f64,
    pub log_entries: u64,
    pub log_bytes: u64,
    pub torn_bytes: u64,
    /// Filling the memtables.
    pub replay_seconds: f64,
    pub replayed_writes: u64,
    pub skipped_writes: u64,
}

impl Context {
    pub fn partition(&self, id: u32) -> Result<&Handle> {
        self.partitions.get(&PartitionId(id)).ok_or_else(|| {
            Error::invalid(format!("no partition {id}: there are {}", self.cluster.partitions))
        })
    }
}
