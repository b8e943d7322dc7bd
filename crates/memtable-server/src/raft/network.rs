//! Raft's messages to a peer, over gRPC. Send times are taken here: the leader lease counts from them.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use futures::{Stream, StreamExt};
use openraft::errors::{RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::{RPCOption, RaftNetworkFactory, RaftNetworkV2};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, StreamAppendError, StreamAppendResult,
    VoteRequest, VoteResponse,
};
use openraft::{BasicNode, OptionalSend};
use parking_lot::Mutex;
use sextant_common::config::ClusterConfig;
use sextant_common::env::cluster_channel;
use sextant_common::error::{Error, Result};
use sextant_proto::v1::raft_client::RaftClient;
use sextant_proto::{MESSAGE_BYTES_MAX, v1};
use sextant_raft_log::{LogId, TypeConfig, Vote, encode_membership};
use tonic::transport::Channel;

use super::convert::{self, Address};
use super::snapshot_store::SnapshotData;
use crate::leadership::Ack;
use crate::shared::Shared;

type Snapshot = openraft::alias::SnapshotOf<TypeConfig, SnapshotData>;
type RpcResult<T> = std::result::Result<T, RPCError<TypeConfig>>;

/// An append has data and an fsync behind it; Raft retries.
const APPEND_TIMEOUT: Duration = Duration::from_secs(2);
const VOTE_TIMEOUT: Duration = Duration::from_millis(300);
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(10);

/// Connections to a peer: heartbeats have one of their own, so that no bulk of data delays them.
#[derive(Clone)]
pub struct Peer {
    data: RaftClient<Channel>,
    heartbeat: RaftClient<Channel>,
}

impl Peer {
    pub fn connect(env: &sextant_common::Env, addr: &str, cluster: &ClusterConfig) -> Self {
        let client = || {
            RaftClient::new(cluster_channel(&env.net, addr, cluster))
                .max_decoding_message_size(MESSAGE_BYTES_MAX)
                .max_encoding_message_size(MESSAGE_BYTES_MAX)
        };
        Self { data: client(), heartbeat: client() }
    }
}

/// Makes the networks of one partition.
#[derive(Clone)]
pub struct NetworkFactory {
    pub shared: Arc<Shared>,
    pub cluster: Bytes,
    pub peers: Arc<std::collections::HashMap<u64, Peer>>,
}

pub struct Network {
    shared: Arc<Shared>,
    address: Address,
    client: Option<RaftClient<Channel>>,
}

impl NetworkFactory {
    fn address(&self, target: u64) -> Address {
        Address {
            partition: self.shared.id.0,
            from: self.shared.node,
            to: target,
            cluster: self.cluster.clone(),
        }
    }

    /// Tells a node that the leader of `term`, this node, has let go and wants it to lead next. If the message is lost,
    /// somebody is elected all the same, only a little later.
    pub async fn name_heir(&self, to: u64, term: u64) {
        let Some(peer) = self.peers.get(&to) else { return };
        let address = self.address(to);
        let message = v1::TransferLeaderRequest {
            partition: address.partition,
            from: address.from,
            to,
            cluster: address.cluster,
            from_leader: Some(v1::RaftVote { term, node: address.from, committed: true }),
            to_node: to,
            last_log: None,
        };
        let mut client = peer.heartbeat.clone();
        if let Err(e) = call(VOTE_TIMEOUT, client.transfer_leader(message)).await {
            tracing::debug!(partition = %self.shared.id, to, "the successor was not told: {e}");
        }
    }

    fn network(&self, target: u64, pick: impl Fn(&Peer) -> RaftClient<Channel>) -> Network {
        let address = self.address(target);
        Network { shared: self.shared.clone(), address, client: self.peers.get(&target).map(pick) }
    }
}

impl RaftNetworkFactory<TypeConfig> for NetworkFactory {
    type Network = Network;

    async fn new_client(&mut self, target: u64, _node: &BasicNode) -> Network {
        self.network(target, |p| p.data.clone())
    }

    async fn new_heartbeat_client(&mut self, target: u64, _node: &BasicNode) -> Network {
        self.network(target, |p| p.heartbeat.clone())
    }
}

fn unreachable(e: &Error) -> RPCError<TypeConfig> {
    RPCError::Unreachable(Unreachable::from_string(e))
}

async fn call<T>(
    limit: Duration,
    call: impl Future<Output = std::result::Result<tonic::Response<T>, tonic::Status>>,
) -> Result<T> {
    match tokio::time::timeout(limit, call).await {
        Ok(answer) => Ok(answer?.into_inner()),
        Err(_) => Err(Error::unavailable(format!("no answer within {limit:?}"))),
    }
}

/// An append that is on its way.
struct Sent {
    range: (Option<LogId>, Option<LogId>),
    term: u64,
    at_ns: u64,
    abstention_ns: u64,
}

/// How often a stream that waits for answers looks whether the oldest append is overdue.
const OVERDUE_CHECK: Duration = Duration::from_millis(250);

/// The next answer. None: the stream has ended. An append that is not answered in time is an error: a connection may stay
/// open although an answer was lost.
async fn next_reply(
    replies: &mut tonic::Streaming<v1::AppendEntriesResponse>,
    sent: &Mutex<VecDeque<Sent>>,
    shared: &Shared,
) -> Option<Result<v1::AppendEntriesResponse>> {
    loop {
        match tokio::time::timeout(OVERDUE_CHECK, replies.next()).await {
            Ok(Some(Ok(reply))) => return Some(Ok(reply)),
            Ok(Some(Err(status))) => return Some(Err(status.into())),
            Ok(None) => return None,
            Err(_) => {
                let oldest = sent.lock().front().map(|s| s.at_ns);
                let now = shared.env.clock.holder_ns();
                if oldest.is_some_and(|at| now.saturating_sub(at) > APPEND_TIMEOUT.as_nanos() as u64) {
                    return Some(Err(Error::unavailable(format!("no answer within {APPEND_TIMEOUT:?}"))));
                }
            }
        }
    }
}

impl Network {
    fn client(&self) -> RpcResult<RaftClient<Channel>> {
        let missing =
            || unreachable(&Error::unavailable(format!("node {} is not configured", self.address.to)));
        self.client.clone().ok_or_else(missing)
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
        let (_, last) = convert::append_range(&request);
        let abstention_ns = self.shared.guard.abstention_ns();
        let message = convert::append_to_wire(&self.address, request, abstention_ns);
        let sent_ns = self.shared.env.clock.holder_ns();
        let reply =
            call(APPEND_TIMEOUT, client.append_entries(message)).await.map_err(|e| unreachable(&e))?;
        let reply = convert::append_reply_from_wire(reply).map_err(|e| unreachable(&e))?;
        // A conflict too was accepted under this leader's vote.
        if !matches!(reply, AppendEntriesResponse::HigherVote(_)) {
            let matched = match &reply {
                AppendEntriesResponse::Success => last,
                AppendEntriesResponse::PartialSuccess(matching) => *matching,
                _ => None,
            };
            let matched = matched.map(|id| id.index);
            let node = self.address.to;
            self.shared.lease.acknowledged(Ack { term, node, sent_ns, abstention_ns, matched });
            // If this node led, it promised as much as its followers did.
            self.shared.guard.bind(self.shared.env.clock.grantor_ns(), abstention_ns);
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
        Box::pin(async move {
            let mut client = self.client()?;
            let (shared, address) = (self.shared.clone(), self.address.clone());
            // What is on its way, oldest first. Openraft stops feeding the stream when it has enough unanswered.
            let sent: Arc<Mutex<VecDeque<Sent>>> = Arc::default();
            let mut outgoing = {
                let (shared, sent) = (shared.clone(), sent.clone());
                let address = address.clone();
                input.map(move |request| {
                    let range = convert::append_range(&request);
                    let term = request.vote.leader_id.term;
                    let abstention_ns = shared.guard.abstention_ns();
                    let message = convert::append_to_wire(&address, request, abstention_ns);
                    let at_ns = shared.env.clock.holder_ns();
                    sent.lock().push_back(Sent { range, term, at_ns, abstention_ns });
                    message
                })
            };
            // Openraft waits out its backoff when a request is taken, and tonic takes none before it is connected: without this
            // a peer that refuses connections would be tried again and again without a pause.
            let Some(first) = outgoing.next().await else {
                let nothing: BoxStream<'s, _> = Box::pin(futures::stream::empty());
                return Ok(nothing);
            };
            let outgoing = futures::stream::iter([first]).chain(outgoing);
            let replies =
                call(APPEND_TIMEOUT, client.stream_append(outgoing)).await.map_err(|e| unreachable(&e))?;
            let answered = futures::stream::unfold(Some((replies, sent, shared)), move |state| async move {
                let (mut replies, sent, shared) = state?;
                let reply = next_reply(&mut replies, &sent, &shared).await?;
                let outcome = reply.and_then(|reply| {
                    let oldest = sent.lock().pop_front();
                    let oldest = oldest.ok_or_else(|| Error::invalid("an answer to no append"))?;
                    let accepted = convert::stream_result_from_wire(reply, oldest.range)?;
                    if !matches!(accepted, Err(StreamAppendError::HigherVote(_))) {
                        shared.lease.acknowledged(Ack {
                            term: oldest.term,
                            node: address.to,
                            sent_ns: oldest.at_ns,
                            abstention_ns: oldest.abstention_ns,
                            matched: accepted.as_ref().ok().and_then(|m| m.as_ref()).map(|id| id.index),
                        });
                        shared.guard.bind(shared.env.clock.grantor_ns(), oldest.abstention_ns);
                    }
                    Ok(accepted)
                });
                match outcome {
                    Ok(Ok(matching)) => Some((Ok(Ok(matching)), Some((replies, sent, shared)))),
                    Ok(Err(e)) => Some((Ok(Err(e)), None)),
                    Err(e) => Some((Err(unreachable(&e)), None)),
                }
            });
            let answered: BoxStream<'s, _> = Box::pin(answered);
            Ok(answered)
        })
    }

    async fn vote(
        &mut self,
        request: VoteRequest<TypeConfig>,
        _option: RPCOption,
    ) -> RpcResult<VoteResponse<TypeConfig>> {
        let mut client = self.client()?;
        let message = convert::vote_request_to_wire(&self.address, &request);
        let reply = call(VOTE_TIMEOUT, client.vote(message)).await.map_err(|e| unreachable(&e))?;
        convert::vote_reply_from_wire(reply).map_err(|e| unreachable(&e))
    }

    async fn pre_vote(
        &mut self,
        request: VoteRequest<TypeConfig>,
        _option: RPCOption,
    ) -> RpcResult<VoteResponse<TypeConfig>> {
        let mut client = self.client()?;
        let message = convert::vote_request_to_wire(&self.address, &request);
        let reply = call(VOTE_TIMEOUT, client.pre_vote(message)).await.map_err(|e| unreachable(&e))?;
        convert::vote_reply_from_wire(reply).map_err(|e| unreachable(&e))
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
        let message = v1::InstallSnapshotRequest {
            partition: self.address.partition,
            from: self.address.from,
            to: self.address.to,
            cluster: self.address.cluster.clone(),
            vote: Some(convert::vote_to_wire(&vote)),
            last_log: snapshot.meta.last_log_id.as_ref().map(convert::position_to_wire),
            membership: Bytes::from(encode_membership(&snapshot.meta.last_membership).to_vec()),
            membership_position: None,
            snapshot_id: String::new(),
            data: snapshot.snapshot.0,
            abstention_ns: self.shared.guard.abstention_ns(),
        };
        tokio::select! {
            closed = cancel => Err(StreamingError::Closed(closed)),
            reply = call(SNAPSHOT_TIMEOUT, client.install_snapshot(message)) => {
                let reply = reply.map_err(|e| failed(&e))?;
                let vote = convert::vote_from_wire(reply.vote).map_err(|e| failed(&e))?;
                Ok(SnapshotResponse::new(vote))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use sextant_common::Env;
    use sextant_common::env::{Connection, Listener, Network as Net};

    use super::*;

    /// Refuses connections, and remembers how many requests had been taken when the first one was tried.
    struct Refusing {
        taken: Arc<AtomicUsize>,
        when_tried: Arc<Mutex<Option<usize>>>,
    }

    impl Net for Refusing {
        fn bind(&self, _addr: String) -> BoxFuture<'static, io::Result<Box<dyn Listener>>> {
            Box::pin(async { Err(io::ErrorKind::Unsupported.into()) })
        }

        fn connect(&self, _addr: String) -> BoxFuture<'static, io::Result<Connection>> {
            self.when_tried.lock().get_or_insert(self.taken.load(Ordering::SeqCst));
            Box::pin(async { Err(io::ErrorKind::ConnectionRefused.into()) })
        }
    }

    #[tokio::test]
    async fn a_request_is_taken_before_a_connection_is_tried() {
        // Openraft waits between failed attempts while it hands out a request. A leader that connected first tried a dead
        // follower thousands of times a second.
        let (taken, when_tried) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(None)));
        let refusing = Refusing { taken: taken.clone(), when_tried: when_tried.clone() };
        let env = Env { net: Arc::new(refusing), ..Env::real() };
        let cluster = ClusterConfig {
            id: "test".into(),
            partitions: 1,
            memtable: Vec::new(),
            sstable: Vec::new(),
            lease: Default::default(),
        };
        let peer = Peer::connect(&env, "peer:1", &cluster);
        let address = Address { partition: 0, from: 1, to: 2, cluster: Bytes::new() };
        let mut network = Network { shared: Shared::for_tests(&env), address, client: Some(peer.data) };
        let requests = futures::stream::repeat_with(move || {
            taken.fetch_add(1, Ordering::SeqCst);
            AppendEntriesRequest {
                vote: Vote::new_committed(1, 1),
                prev_log_id: None,
                entries: Vec::new(),
                leader_commit: None,
            }
        });
        let failed = network.stream_append(requests.take(1), RPCOption::new(APPEND_TIMEOUT)).await;
        assert!(failed.is_err());
        assert_eq!(*when_tried.lock(), Some(1));
    }
}
