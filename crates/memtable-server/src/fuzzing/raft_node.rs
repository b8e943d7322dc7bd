//! One replica's Raft behind the door that the wire comes through, on a real log; no worker, no leases, no peers.

use std::path::Path;
use std::sync::Arc;

use openraft::async_runtime::WatchReceiver;
use openraft::errors::{RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::{RPCOption, RaftNetworkFactory, RaftNetworkV2};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, VoteRequest, VoteResponse,
};
use openraft::storage::RaftLogReader;
use prometheus_client::registry::Registry;
use sextant_common::error::{Error, Result};
use sextant_common::ids::{LogPosition, NodeId, PartitionId};
use sextant_environment::Env;
use sextant_environment::config::LeaseConfig;
use sextant_proto::v1;
use sextant_raft_log::{PartitionLog, RaftLog, RaftLogConfig, TypeConfig, Vote, position_of};
use tokio::sync::mpsc;

use crate::config::Tuning;
use crate::raft::reach::Reach;
use crate::raft::snapshot_store::{SnapshotData, SnapshotStore};
use crate::raft::{Raft, StateMachine, wire};

const PARTITION: PartitionId = PartitionId(0);
/// The node's own id.
pub const NODE: u64 = 1;

pub struct RaftNode {
    raft: Raft,
    partition: PartitionLog,
    log: Arc<RaftLog>,
}

impl RaftNode {
    /// Starts it on what the directory holds; at first that is nothing.
    pub async fn start(env: &Env, dir: &Path) -> Result<Self> {
        env.vfs.create_dir_all(dir)?;
        let config = RaftLogConfig {
            devices: vec![dir.join("log")],
            segment_bytes: 64 << 10,
            cluster: "fuzz".into(),
            fingerprint: 7,
            node: NodeId(NODE),
            cache_bytes: 4 << 10,
        };
        let log = Arc::new(RaftLog::open(env.clone(), config, &[PARTITION], &mut Registry::default()).await?);
        let partition = log.partition(PARTITION);
        let (events, mut told) = mpsc::unbounded_channel();
        // What is committed is nobody's business here.
        tokio::spawn(async move { while told.recv().await.is_some() {} });
        let (store, _) = SnapshotStore::open(env, dir, PARTITION)?;
        let machine = StateMachine::new(PARTITION, events, store);
        let lease = LeaseConfig::default();
        let config = Arc::new(crate::raft::config(&lease, lease.leader_lease_ms, &Tuning::default())?);
        let raft = Raft::new(NODE, config, Nobody, partition.clone(), machine).await;
        let raft = raft.map_err(|e| Error::internal(e.to_string()))?;
        Ok(Self { raft, partition, log })
    }

    pub async fn append(&self, message: v1::AppendEntriesRequest) -> Result<v1::AppendEntriesResponse> {
        let request = wire::append_from_wire(message)?;
        Reach::of(&self.raft).check_append(&request)?;
        let reply = self.raft.append_entries(request).await.map_err(|e| Error::unavailable(e.to_string()))?;
        Ok(wire::append_reply_to_wire(reply))
    }

    pub async fn vote(&self, message: v1::VoteRequest) -> Result<v1::VoteResponse> {
        let request = wire::vote_request_from_wire(message)?;
        Reach::of(&self.raft).check_vote_request(&request)?;
        let reply = self.raft.vote(request).await.map_err(|e| Error::unavailable(e.to_string()))?;
        Ok(wire::vote_reply_to_wire(&reply))
    }

    pub async fn pre_vote(&self, message: v1::VoteRequest) -> Result<v1::VoteResponse> {
        let request = wire::vote_request_from_wire(message)?;
        Reach::of(&self.raft).check_vote_request(&request)?;
        let reply = self.raft.pre_vote(request).await.map_err(|e| Error::unavailable(e.to_string()))?;
        Ok(wire::vote_reply_to_wire(&reply))
    }

    /// Of the vote that is written down.
    pub async fn term(&self) -> Result<u64> {
        let vote = self.partition.clone().read_vote().await.map_err(Error::from)?;
        Ok(vote.map_or(0, |vote| vote.leader_id.term))
    }

    /// The last entry of its log.
    pub fn last(&self) -> Option<LogPosition> {
        self.partition.last_log_id().as_ref().map(position_of)
    }

    /// Openraft's core is alive.
    pub fn is_running(&self) -> bool {
        self.raft.metrics().borrow_watched().running_state.is_ok()
    }

    pub async fn stop(self) {
        let _ = self.raft.shutdown().await;
        self.log.shutdown().await;
    }
}

/// Peers that never answer.
struct Nobody;

fn unreachable() -> Unreachable<TypeConfig> {
    Unreachable::from_string("there are no peers")
}

impl RaftNetworkFactory<TypeConfig> for Nobody {
    type Network = Nobody;

    async fn new_client(&mut self, _target: u64, _node: &sextant_raft_log::Member) -> Nobody {
        Nobody
    }
}

impl RaftNetworkV2<TypeConfig> for Nobody {
    type SnapshotData = SnapshotData;

    async fn append_entries(
        &mut self,
        _request: AppendEntriesRequest<TypeConfig>,
        _option: RPCOption,
    ) -> std::result::Result<AppendEntriesResponse<TypeConfig>, RPCError<TypeConfig>> {
        Err(RPCError::Unreachable(unreachable()))
    }

    async fn vote(
        &mut self,
        _request: VoteRequest<TypeConfig>,
        _option: RPCOption,
    ) -> std::result::Result<VoteResponse<TypeConfig>, RPCError<TypeConfig>> {
        Err(RPCError::Unreachable(unreachable()))
    }

    async fn full_snapshot(
        &mut self,
        _vote: Vote,
        _snapshot: openraft::alias::SnapshotOf<TypeConfig, SnapshotData>,
        _cancel: impl Future<Output = ReplicationClosed> + openraft::OptionalSend + 'static,
        _option: RPCOption,
    ) -> std::result::Result<SnapshotResponse<TypeConfig>, StreamingError<TypeConfig>> {
        Err(StreamingError::Unreachable(unreachable()))
    }
}
