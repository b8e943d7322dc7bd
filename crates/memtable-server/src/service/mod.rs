//! The gRPC services: thin shells that validate what comes in, ask the shared state or the worker, and answer.

pub mod admin;
pub mod lease;
pub mod raft;
pub mod rows;
pub mod status;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use sextant_common::error::{Error, Result};
use sextant_common::ids::{NodeId, PartitionId};
use sextant_environment::Env;
use sextant_environment::config::ClusterConfig;
use sextant_proto::v1;
use tokio::sync::Notify;

use crate::flush::Background;
use crate::metrics::Metrics;
use crate::raft::acceptor::Acceptor;
use crate::raft::network::NetworkFactory;
use crate::recover::{Memories, Rebuilding};
use crate::replica::{Handle, Leader};

impl From<Leader> for v1::LeaderHint {
    fn from(leader: Leader) -> Self {
        Self { partition: leader.partition.0, node: leader.node, term: leader.term }
    }
}

/// What all services share.
pub struct Context {
    pub env: Env,
    pub node: NodeId,
    pub cluster: ClusterConfig,
    pub partitions: HashMap<PartitionId, Handle>,
    pub rafts: Arc<HashMap<PartitionId, crate::raft::Raft>>,
    pub acceptors: BTreeMap<PartitionId, Acceptor>,
    pub networks: HashMap<PartitionId, NetworkFactory>,
    /// For bulk loads.
    pub backgrounds: HashMap<PartitionId, Background>,
    /// What `sextant admin recover` runs.
    pub rebuilding: Arc<Rebuilding>,
    pub memories: Arc<Memories>,
    pub news: Arc<Notify>,
    pub metrics: Arc<Metrics>,
    /// Random per process: monotonic clocks cannot be compared across restarts.
    pub boot: u64,
    pub recovery: Recovery,
    pub log: Arc<sextant_raft_log::RaftLog>,
    /// For large answers to reads, of all partitions.
    pub answers: sextant_environment::room::Room,
    /// For pages of the log: each holds a group, which may be large.
    pub log_pages: tokio::sync::Semaphore,
    pub started_ns: u64,
    /// The server hands over and takes no new leadership.
    pub draining: sextant_environment::shutdown::Shutdown,
    pub shutdown: sextant_environment::shutdown::Shutdown,
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
    pub fn background(&self, id: PartitionId) -> Result<&Background> {
        self.backgrounds.get(&id).ok_or_else(|| Error::internal("a partition without a background"))
    }

    pub fn partition(&self, id: u32) -> Result<&Handle> {
        self.partitions.get(&PartitionId(id)).ok_or_else(|| {
            Error::invalid(format!("no partition {id}: there are {}", self.cluster.partitions))
        })
    }
}
