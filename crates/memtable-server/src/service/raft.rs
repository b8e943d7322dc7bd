//! Raft between memtable servers. The vote guard stands here: votes are dropped while a lease may live.

use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use futures::Stream;
use openraft::raft::{AppendEntriesResponse, StreamAppendError};
use sextant_common::env::PausePoint;
use sextant_common::error::Error;
use sextant_proto::v1;
use sextant_proto::v1::raft_server::Raft as RaftService;
use sextant_raft_log::decode_membership;
use tokio_stream::StreamExt;
use tonic::{Request, Response, Status, Streaming};

use super::Context;
use crate::raft::convert;
use crate::raft::snapshot_store::{Meta, SnapshotData};
use crate::shared::Handle;

#[derive(Clone)]
pub struct RaftShell {
    pub context: Arc<Context>,
    /// Cluster id and fingerprint, as peers send it.
    pub cluster: Bytes,
}

impl RaftShell {
    /// The partition that a message is for, if the message is for this node of this cluster.
    fn admit(
        &self,
        partition: u32,
        to: u64,
        cluster: &Bytes,
    ) -> Result<(&Handle, &crate::raft::Raft), Status> {
        if *cluster != self.cluster {
            return Err(Error::invalid(
                "another cluster, or lease lengths that differ from this server's: check [cluster] in the configuration",
            )
            .into());
        }
        if to != self.context.node.0 {
            return Err(Error::invalid(format!("this is node {}, not {to}", self.context.node)).into());
        }
        let handle = self.context.partition(partition)?;
        let raft =
            self.context.rafts.get(&handle.shared.id).ok_or_else(|| Status::unavailable("starting"))?;
        Ok((handle, raft))
    }

    async fn append(&self, request: v1::AppendEntriesRequest) -> Result<v1::AppendEntriesResponse, Status> {
        let (handle, raft) = self.admit(request.partition, request.to, &request.cluster)?;
        let request = convert::append_from_wire(request)?;
        let reply = raft.append_entries(request).await.map_err(|e| Status::unavailable(e.to_string()))?;
        if !matches!(reply, AppendEntriesResponse::HigherVote(_)) {
            handle.shared.guard.bind(self.context.env.clock.grantor_ns());
        }
        Ok(convert::append_reply_to_wire(reply))
    }

    /// Dropping a vote request is always safe; answering one while a lease may live is not.
    fn guard(&self, handle: &Handle) -> Result<(), Status> {
        if handle.shared.guard.is_open(self.context.env.clock.grantor_ns()) {
            return Ok(());
        }
        self.context.metrics.votes_dropped.inc();
        Err(Status::unavailable("bound by a leader's lease"))
    }
}

#[tonic::async_trait]
impl RaftService for RaftShell {
    type StreamAppendStream = Pin<Box<dyn Stream<Item = Result<v1::AppendEntriesResponse, Status>> + Send>>;

    async fn stream_append(
        &self,
        request: Request<Streaming<v1::AppendEntriesRequest>>,
    ) -> Result<Response<Self::StreamAppendStream>, Status> {
        let mut messages = request.into_inner();
        let Some(first) = messages.next().await else {
            return Ok(Response::new(Box::pin(tokio_stream::empty())));
        };
        let first = first?;
        let (handle, raft) = self.admit(first.partition, first.to, &first.cluster)?;
        let (handle, raft) = (handle.clone(), raft.clone());
        let (partition, to, cluster) = (first.partition, first.to, first.cluster.clone());
        // A stream speaks for one partition; a message that does not fit ends it.
        let appends = tokio_stream::once(Ok(first)).chain(messages).map_while(move |message| {
            let message = message.ok()?;
            let fits = message.partition == partition && message.to == to && message.cluster == cluster;
            if fits { convert::append_from_wire(message).ok() } else { None }
        });
        let clock = self.context.env.clock.clone();
        let replies = raft.stream_append(appends).map(move |result| {
            let result = result.map_err(|e| Status::unavailable(e.to_string()))?;
            if !matches!(result, Err(StreamAppendError::HigherVote(_))) {
                handle.shared.guard.bind(clock.grantor_ns());
            }
            Ok(convert::stream_result_to_wire(result))
        });
        Ok(Response::new(Box::pin(replies)))
    }

    async fn append_entries(
        &self,
        request: Request<v1::AppendEntriesRequest>,
    ) -> Result<Response<v1::AppendEntriesResponse>, Status> {
        self.append(request.into_inner()).await.map(Response::new)
    }

    async fn vote(&self, request: Request<v1::VoteRequest>) -> Result<Response<v1::VoteResponse>, Status> {
        let request = request.into_inner();
        let (handle, raft) = self.admit(request.partition, request.to, &request.cluster)?;
        self.guard(handle)?;
        self.context.env.pause_point(PausePoint::VoteGuardAsked).await;
        let request = convert::vote_request_from_wire(request)?;
        let reply = raft.vote(request).await.map_err(|e| Status::unavailable(e.to_string()))?;
        Ok(Response::new(convert::vote_reply_to_wire(&reply)))
    }

    async fn pre_vote(
        &self,
        request: Request<v1::VoteRequest>,
    ) -> Result<Response<v1::VoteResponse>, Status> {
        let request = request.into_inner();
        let (handle, raft) = self.admit(request.partition, request.to, &request.cluster)?;
        self.guard(handle)?;
        self.context.env.pause_point(PausePoint::VoteGuardAsked).await;
        let request = convert::vote_request_from_wire(request)?;
        let reply = raft.pre_vote(request).await.map_err(|e| Status::unavailable(e.to_string()))?;
        Ok(Response::new(convert::vote_reply_to_wire(&reply)))
    }

    async fn install_snapshot(
        &self,
        request: Request<v1::InstallSnapshotRequest>,
    ) -> Result<Response<v1::InstallSnapshotResponse>, Status> {
        let request = request.into_inner();
        let (handle, raft) = self.admit(request.partition, request.to, &request.cluster)?;
        let vote = convert::vote_from_wire(request.vote)?;
        let meta = Meta {
            last_log_id: request.last_log.map(convert::log_id_from_wire),
            last_membership: decode_membership(&request.membership)?,
        };
        let snapshot = openraft::Snapshot { meta, snapshot: SnapshotData(request.data) };
        let reply = raft
            .install_full_snapshot(vote, snapshot)
            .await
            .map_err(|e| Status::unavailable(e.to_string()))?;
        if reply.vote == vote {
            handle.shared.guard.bind(self.context.env.clock.grantor_ns());
        }
        Ok(Response::new(v1::InstallSnapshotResponse { vote: Some(convert::vote_to_wire(&reply.vote)) }))
    }

    async fn transfer_leader(
        &self,
        _request: Request<v1::TransferLeaderRequest>,
    ) -> Result<Response<v1::TransferLeaderResponse>, Status> {
        // A transfer passes the lease by: leases would have to be ended first, explicitly.
        Ok(Response::new(v1::TransferLeaderResponse { accepted: false }))
    }
}
