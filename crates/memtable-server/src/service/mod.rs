//! The gRPC services: thin shells that validate what comes in, ask the shared state or the worker, and answer.

pub mod admin;
pub mod answers;
pub mod heartbeat;
pub mod lease;
pub mod raft;
pub mod rows;
pub mod status;
mod underway;

use std::collections::HashMap;
use std::sync::Arc;

use openraft::async_runtime::WatchReceiver;
use sextant_common::Env;
use sextant_common::config::ClusterConfig;
use sextant_common::error::{Error, Result};
use sextant_common::ids::{NodeId, PartitionId};
use tokio::sync::Notify;
use tonic::Status;

use crate::metrics::Metrics;
use crate::raft::network::NetworkFactory;
use crate::raft::reach::check_acknowledged;
use crate::raft::snapshot_store::SnapshotStore;
use crate::recover::{Gate, Memories};
use crate::shared::Handle;

/// What all services share.
pub struct Context {
    pub env: Env,
    pub node: NodeId,
    pub cluster: ClusterConfig,
    pub partitions: HashMap<PartitionId, Handle>,
    pub rafts: HashMap<PartitionId, crate::raft::Raft>,
    pub networks: HashMap<PartitionId, NetworkFactory>,
    pub snapshots: HashMap<PartitionId, SnapshotStore>,
    /// Before the founding of each partition.
    pub gates: HashMap<PartitionId, Gate>,
    pub memories: Arc<Memories>,
    pub news: Arc<Notify>,
    pub metrics: Arc<Metrics>,
    /// Random per process: monotonic clocks cannot be compared across restarts.
    pub boot: u64,
    pub recovery: Recovery,
    pub log: Arc<sextant_raft_log::RaftLog>,
    /// For large answers to reads, of all partitions.
    pub answers: sextant_common::room::Room,
    pub started_ns: u64,
    /// The server hands over and takes no new leadership.
    pub draining: sextant_common::shutdown::Shutdown,
    pub shutdown: sextant_common::shutdown::Shutdown,
    /// As in the tuning.
    pub disk_stall_ms: u64,
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

    /// The group takes this server for what it was before it lost its memory. It asks to be let in as what it is now
    /// (`raft::founding`).
    pub fn lost_in(&self, handle: &Handle, named: u64) {
        let incarnation = handle.shared.incarnation.clone();
        if incarnation.lose(handle.shared.id) {
            tracing::error!(
                partition = %handle.shared.id,
                "this server has lost its memory: the group knows it as incarnation {named:016x}, it is {:016x} now. It votes for \
                 nobody and counts for nothing until the group has let it in again",
                incarnation.id()
            );
            tokio::spawn(async move { incarnation.store().await });
        }
    }

    /// A leader of `term` says how many entries of the log this server has acknowledged to it. If the log ends before, this server's
    /// directories are an older copy: it has forgotten votes too, and must not go on with what it has.
    pub fn check_memory(&self, handle: &Handle, term: u64, acknowledged: u64) -> Result<(), Status> {
        if acknowledged == 0 {
            return Ok(());
        }
        let log = self.log.partition(handle.shared.id);
        // In this order: the log is cut only for a leader whose vote was taken before.
        let end = log.last_log_id().map_or(0, |last| last.index.saturating_add(1));
        // While a snapshot that contradicts its end is installed, the log is shorter than what it stands for.
        let end = end.max(self.snapshots.get(&handle.shared.id).map_or(0, SnapshotStore::entries_covered));
        if end >= acknowledged || log.vote().is_some_and(|vote| vote.leader_id.term > term) {
            return Ok(());
        }
        check_acknowledged(acknowledged, end)?;
        let what = format!(
            "partition {}: this server has acknowledged {acknowledged} entries to the leader of term {term}, but its log ends after \
             {end}: its directories are an older copy",
            handle.shared.id
        );
        if !handle.shared.incarnation.gives_up() {
            return Err(Status::unavailable(what));
        }
        tracing::error!("{what}");
        let (incarnation, fatal) = (handle.shared.incarnation.clone(), self.env.fatal.clone());
        // Where an operator has taken it out, it stays out.
        let is_member = |raft: &crate::raft::Raft| {
            let metrics = raft.server_metrics();
            let m = metrics.borrow_watched();
            m.membership_config.membership().get_node(&self.node.0).is_some()
        };
        let members = self.rafts.iter().filter(|(_, raft)| is_member(raft)).map(|(id, _)| *id);
        let partitions = members.chain([handle.shared.id]).collect();
        let message = format!("{what}. When it is started again it asks to be let in as a new one");
        tokio::spawn(async move {
            match incarnation.renew(&partitions).await {
                Ok(()) => fatal.fatal(&message),
                Err(e) => fatal.fatal(&format!("{message}; but that cannot be written: {e}")),
            }
        });
        Err(Status::unavailable(what))
    }
}
