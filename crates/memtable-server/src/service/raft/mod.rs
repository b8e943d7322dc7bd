//! Raft between memtable servers: decoded here, decided in [`crate::raft::acceptor`], encoded here.

mod appends;
mod heartbeats;
mod snapshots;

use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use futures::Stream;
use sextant_common::error::Result as Checked;
use sextant_environment::env::status_of;
use sextant_proto::v1;
use sextant_proto::v1::raft_server::Raft as RaftService;
use tonic::{Request, Response, Status, Streaming};

use super::Context;
use crate::incarnation::Memory;
use crate::raft::acceptor::{Acceptor, Refusal, Stranger, check_server};
use crate::raft::wire;

#[derive(Clone)]
pub struct RaftShell {
    pub context: Arc<Context>,
    /// Cluster id and fingerprint, as peers send it.
    pub cluster: Bytes,
}

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

impl RaftShell {
    /// Of the partition that a message is for, if the message is for this node of this cluster.
    fn acceptor(&self, partition: u32, to: u64, cluster: &Bytes) -> Result<&Acceptor, Status> {
        let named = || -> Checked<_> {
            check_server((self.context.node, &self.cluster), to, cluster)?;
            Ok(self.context.partition(partition)?.shared.id)
        };
        let id = named().map_err(status_of)?;
        self.context.acceptors.get(&id).ok_or_else(|| Status::unavailable("starting"))
    }
}

fn status_of_refusal(refusal: Refusal) -> Status {
    match refusal {
        Refusal::OtherIncarnation { named, own } => wire::other_incarnation(named, own),
        Refusal::Error(e) => status_of(e),
        Refusal::NotNow(why) => Status::unavailable(why),
    }
}

#[tonic::async_trait]
impl RaftService for RaftShell {
    type StreamAppendStream = Answers<v1::AppendEntriesResponse>;

    async fn stream_append(
        &self,
        request: Request<Streaming<v1::AppendEntriesRequest>>,
    ) -> Result<Response<Self::StreamAppendStream>, Status> {
        self.append_all(request.into_inner()).await.map(Response::new)
    }

    async fn append_entries(
        &self,
        request: Request<v1::AppendEntriesRequest>,
    ) -> Result<Response<v1::AppendEntriesResponse>, Status> {
        self.append(request.into_inner()).await.map(Response::new)
    }

    type HeartbeatsStream = Answers<v1::HeartbeatsReply>;

    async fn heartbeats(
        &self,
        request: Request<v1::HeartbeatsRequest>,
    ) -> Result<Response<Self::HeartbeatsStream>, Status> {
        self.hear_all(request.into_inner()).map(Response::new)
    }

    async fn vote(&self, request: Request<v1::VoteRequest>) -> Result<Response<v1::VoteResponse>, Status> {
        let request = request.into_inner();
        let acceptor = self.acceptor(request.partition, request.to, &request.cluster)?;
        let named = request.to_incarnation;
        let request = wire::vote_request_from_wire(request).map_err(status_of)?;
        let reply = acceptor.vote(named, request).await.map_err(status_of_refusal)?;
        Ok(Response::new(wire::vote_reply_to_wire(&reply)))
    }

    async fn pre_vote(
        &self,
        request: Request<v1::VoteRequest>,
    ) -> Result<Response<v1::VoteResponse>, Status> {
        let request = request.into_inner();
        let acceptor = self.acceptor(request.partition, request.to, &request.cluster)?;
        let named = request.to_incarnation;
        let request = wire::vote_request_from_wire(request).map_err(status_of)?;
        let reply = acceptor.pre_vote(named, request).await.map_err(status_of_refusal)?;
        Ok(Response::new(wire::vote_reply_to_wire(&reply)))
    }

    async fn install_snapshot(
        &self,
        request: Request<Streaming<v1::InstallSnapshotRequest>>,
    ) -> Result<Response<v1::InstallSnapshotResponse>, Status> {
        self.install(request.into_inner()).await.map(Response::new)
    }

    async fn is_founded(
        &self,
        request: Request<v1::IsFoundedRequest>,
    ) -> Result<Response<v1::IsFoundedResponse>, Status> {
        let v1::IsFoundedRequest { partition, from, to, cluster, let_in } = request.into_inner();
        let acceptor = self.acceptor(partition, to, &cluster)?;
        let stranger = (let_in != 0).then_some(Stranger { node: from, incarnation: let_in });
        let founded = acceptor.is_founded(stranger, &self.context.cluster).await;
        let founded = founded.map_err(status_of_refusal)?;
        let (incarnation, format) = (acceptor.shared.incarnation.id(), acceptor.shared.format_max);
        let unix_us = acceptor.shared.env.clock.wall_guess_ns() / 1000;
        Ok(Response::new(v1::IsFoundedResponse { founded, incarnation, format, unix_us }))
    }

    async fn remembers(
        &self,
        request: Request<v1::RemembersRequest>,
    ) -> Result<Response<v1::RemembersResponse>, Status> {
        let request = request.into_inner();
        let acceptor = self.acceptor(request.partition, request.to, &request.cluster)?;
        let Memory { partition, any, term, lost } = self.context.memories.of(acceptor.shared.id);
        Ok(Response::new(v1::RemembersResponse { partition, any, term, lost }))
    }

    async fn transfer_leader(
        &self,
        request: Request<v1::TransferLeaderRequest>,
    ) -> Result<Response<v1::TransferLeaderResponse>, Status> {
        let request = request.into_inner();
        let acceptor = self.acceptor(request.partition, request.to, &request.cluster)?;
        let vote = wire::vote_from_wire(request.from_leader).map_err(status_of)?;
        let stops = self.context.draining.is_triggered();
        let accepted = match wire::is_only_asked(&vote) {
            true => acceptor.would_lead(stops),
            false => acceptor.is_named_heir(&vote, stops).map_err(status_of_refusal)?,
        };
        Ok(Response::new(v1::TransferLeaderResponse { accepted }))
    }
}
