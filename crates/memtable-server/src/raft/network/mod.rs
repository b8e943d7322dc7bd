//! Raft's messages to a peer, over gRPC. Send times are taken here: the leader lease counts from them.
//!
//! [`call`] is one call, [`factory`] knows the peers, [`pipeline`] streams appends, [`heartbeats`] has those that have no entries; what
//! openraft asks of a network is here.

mod call;
mod factory;
mod heartbeats;
mod pipeline;
#[cfg(test)]
mod tests;

use std::any::Any;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::BoxStream;
use futures::{Stream, StreamExt as _};
use openraft::OptionalSend;
use openraft::errors::{RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::{RPCOption, RaftNetworkV2};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, StreamAppendResult, VoteRequest,
    VoteResponse,
};
use sextant_common::error::{Error, Result};
use sextant_raft_log::{TypeConfig, Vote};

use self::call::{
    APPEND_TIMEOUT, PRE_VOTE_TIMEOUT, RpcResult, VOTE_TIMEOUT, believed, call, reach, refused,
    refused_append, unreachable,
};
pub use self::factory::{NetworkFactory, Peer, Purged};
use self::heartbeats::Heartbeats;
use self::pipeline::{Feed, InUse, Pipeline};
use super::snapshot_store::SnapshotData;
use super::wire::{self, Address, PeerClient};
use crate::leadership::Ack;
use crate::replica::ReplicaState;

type Snapshot = openraft::alias::SnapshotOf<TypeConfig, SnapshotData>;

/// A snapshot is a manifest and the results of sessions, which can be large.
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(60);

pub struct Network {
    shared: Arc<ReplicaState>,
    address: Address,
    purged: Purged,
    client: Option<PeerClient>,
    /// If it is for nothing but heartbeats.
    heartbeats: Option<Heartbeats>,
}

impl Network {
    fn client(&self) -> RpcResult<PeerClient> {
        let missing =
            || unreachable(&Error::unavailable(format!("node {} is not configured", self.address.to)));
        self.client.clone().ok_or_else(missing)
    }

    fn failed(&self, status: tonic::Status) -> RPCError<TypeConfig> {
        unreachable(&refused(&self.shared, &self.address, status))
    }

    /// Whether this node may stand for election now. Its timer asked when it told Raft to; since then Raft may have accepted an
    /// append that was before the campaign in its queue, and so promised its leader to elect nobody. (What Raft accepts after
    /// that is of the new term, or refused: its own vote is durable before the requests for others leave.)
    fn may_campaign(&self) -> RpcResult<()> {
        let is_open = self.shared.guard.is_open(self.shared.env.clock.grantor_ns());
        is_open.then_some(()).ok_or_else(|| unreachable(&Error::unavailable("bound by a leader's lease")))
    }

    /// A vote that comes after this node has heard from a leader is dropped. A refusal only ends the campaign: it is passed on.
    fn heard_in_time(&self, reply: Result<VoteResponse<TypeConfig>>) -> RpcResult<VoteResponse<TypeConfig>> {
        let reply = reply.map_err(|e| unreachable(&e))?;
        if reply.vote_granted {
            self.may_campaign()?;
        }
        Ok(reply)
    }
}

impl RaftNetworkV2<TypeConfig> for Network {
    type SnapshotData = SnapshotData;

    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<TypeConfig>,
        _option: RPCOption,
    ) -> RpcResult<AppendEntriesResponse<TypeConfig>> {
        let mut client = self.client()?;
        let term = request.vote.leader_id.term;
        let (_, last) = wire::append_range(&request);
        let abstention_ns = self.shared.guard.abstention_ns();
        let acknowledged = self.shared.lease.acknowledged_by(term, self.address.to);
        let message = wire::append_to_wire(&self.address, request, abstention_ns, acknowledged);
        let sent_ns = self.shared.env.clock.holder_ns();
        let reply = call(APPEND_TIMEOUT, client.append_entries(message)).await;
        let reply = reply.map_err(|e| unreachable(&refused_append(&self.shared, &self.address, e)))?;
        let reply = wire::append_reply_from_wire(reply).map_err(|e| unreachable(&e))?;
        reach(term, last.as_ref()).check_append_reply(&reply).map_err(|e| unreachable(&e))?;
        // A conflict too was accepted under this leader's vote.
        if !matches!(reply, AppendEntriesResponse::HigherVote(_)) && self.shared.lease.counts(term) {
            let matched = match &reply {
                AppendEntriesResponse::Success => last,
                AppendEntriesResponse::PartialSuccess(matching) => *matching,
                _ => None,
            };
            let matched = matched.map(|id| id.index);
            let node = self.address.to;
            // If this node led, it promised as much as its followers did.
            self.shared.guard.bind(self.shared.env.clock.grantor_ns(), abstention_ns);
            self.shared.lease.acknowledged(Ack { term, node, sent_ns, abstention_ns, matched });
        }
        Ok(reply)
    }

    /// Pipelined: appends go out as Raft makes them, answers come in their order. So a follower's fsyncs overlap with the
    /// next entries' way to it.
    fn stream_append<'s, S>(
        &'s mut self,
        input: S,
        _option: RPCOption,
    ) -> BoxFuture<'s, RpcResult<BoxStream<'s, RpcResult<StreamAppendResult<TypeConfig>>>>>
    where
        S: Stream<Item = AppendEntriesRequest<TypeConfig>> + OptionalSend + Unpin + 'static,
    {
        if let Some(heartbeats) = &self.heartbeats
            && heartbeats.are_understood(self.shared.env.clock.holder_ns())
        {
            let (heartbeats, shared) = (heartbeats.clone(), self.shared.clone());
            let address = self.address.clone();
            let answered = input.then(move |request| {
                let (heartbeats, shared, address) = (heartbeats.clone(), shared.clone(), address.clone());
                async move { heartbeats.send(shared, address, request).await }
            });
            let answered: BoxStream<'s, _> = Box::pin(answered);
            return Box::pin(async { Ok(answered) });
        }
        let client = self.client();
        let pipeline = Pipeline {
            shared: self.shared.clone(),
            address: self.address.clone(),
            purged: self.purged.clone(),
            sent: Arc::default(),
            nowhere: Arc::default(),
        };
        let in_use = InUse::new(input);
        let outgoing = pipeline.outgoing(Feed(in_use.0.clone()));
        let in_use: Box<dyn Any + Send> = Box::new(in_use);
        Box::pin(async move {
            let answered: BoxStream<'s, _> = pipeline.open(client?, outgoing, in_use).await?;
            Ok(answered)
        })
    }

    async fn vote(
        &mut self,
        request: VoteRequest<TypeConfig>,
        _option: RPCOption,
    ) -> RpcResult<VoteResponse<TypeConfig>> {
        let mut client = self.client()?;
        self.may_campaign()?;
        // With this request goes the node's own vote.
        let term = request.vote.leader_id.term;
        if !self.shared.lease.forswear(term, self.shared.env.clock.holder_ns()) {
            return Err(unreachable(&Error::unavailable("bound by its own lease as a leader")));
        }
        let message = wire::vote_request_to_wire(&self.address, &request);
        let reply = call(VOTE_TIMEOUT, client.vote(message)).await.map_err(|e| self.failed(e))?;
        self.heard_in_time(believed(&request, reply))
    }

    async fn pre_vote(
        &mut self,
        request: VoteRequest<TypeConfig>,
        _option: RPCOption,
    ) -> RpcResult<VoteResponse<TypeConfig>> {
        let mut client = self.client()?;
        self.may_campaign()?;
        let message = wire::vote_request_to_wire(&self.address, &request);
        let reply = call(PRE_VOTE_TIMEOUT, client.pre_vote(message)).await.map_err(|e| self.failed(e))?;
        self.heard_in_time(believed(&request, reply))
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: Snapshot,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _option: RPCOption,
    ) -> std::result::Result<SnapshotResponse<TypeConfig>, StreamingError<TypeConfig>> {
        let failed = |e: &Error| StreamingError::Unreachable(Unreachable::from_string(e));
        let mut client =
            self.client.clone().ok_or_else(|| failed(&Error::unavailable("the node is not configured")))?;
        let abstention_ns = self.shared.guard.abstention_ns();
        let data = snapshot.snapshot.0;
        let messages: Vec<_> =
            wire::snapshot_to_wire(&self.address, &vote, &snapshot.meta, data, abstention_ns).collect();
        let (shared, to, all) = (self.shared.clone(), self.address.to, messages.len());
        let leaves = move |(before, message)| {
            shared.snapshots_out.left(to, before + 1, all);
            message
        };
        let message = futures::stream::iter(messages.into_iter().enumerate().map(leaves));
        let _attempt = self.shared.snapshots_out.attempt(to);
        tokio::select! {
            closed = cancel => Err(StreamingError::Closed(closed)),
            reply = call(SNAPSHOT_TIMEOUT, client.install_snapshot(message)) => {
                let reply = reply.map_err(|e| failed(&refused(&self.shared, &self.address, e)))?;
                let answered = wire::vote_from_wire(reply.vote).map_err(|e| failed(&e))?;
                reach(vote.leader_id.term, None).check_vote(&answered).map_err(|e| failed(&e))?;
                let vote = answered;
                Ok(SnapshotResponse::new(vote))
            }
        }
    }
}
