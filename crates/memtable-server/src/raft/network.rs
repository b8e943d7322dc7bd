//! Raft's messages to a peer, over gRPC. Send times are taken here: the leader lease counts from them.

use std::any::Any;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use futures::task::AtomicWaker;
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
use sextant_common::mutant::{self, Mutant};
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
/// A snapshot is a manifest and the results of sessions, which can be large.
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(60);
/// Size of its pieces.
const SNAPSHOT_PIECE_BYTES: usize = 4 * 1024 * 1024;

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
    pub purged: Purged,
}

/// Tells up to which index this node's log of the partition is purged.
#[derive(Clone)]
pub struct Purged(pub Arc<dyn Fn() -> Option<u64> + Send + Sync>);

pub struct Network {
    shared: Arc<Shared>,
    address: Address,
    purged: Purged,
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

    /// Whether nobody else has anything of the partition's group: all of them have to say so.
    pub async fn nobody_has_founded(&self) -> bool {
        let asked = self.peers.iter().map(|(to, peer)| {
            let address = self.address(*to);
            let message =
                v1::IsFoundedRequest { partition: address.partition, to: *to, cluster: address.cluster };
            let mut client = peer.heartbeat.clone();
            async move { call(VOTE_TIMEOUT, client.is_founded(message)).await.is_ok_and(|r| !r.founded) }
        });
        futures::future::join_all(asked).await.into_iter().all(|unfounded| unfounded)
    }

    fn network(&self, target: u64, pick: impl Fn(&Peer) -> RaftClient<Channel>) -> Network {
        let address = self.address(target);
        Network {
            shared: self.shared.clone(),
            address,
            purged: self.purged.clone(),
            client: self.peers.get(&target).map(pick),
        }
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

/// What openraft feeds a stream of appends, as long as that stream is in use. Tonic may hold on to it for longer, and would take
/// what openraft means for the next stream: its streams share their state.
struct Feed<S>(Arc<Fed<S>>);

struct Fed<S> {
    /// None: the stream was given up.
    input: Mutex<Option<S>>,
    waiting: AtomicWaker,
}

impl<S: Stream + Unpin> Stream for Feed<S> {
    type Item = S::Item;

    fn poll_next(self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Option<S::Item>> {
        self.0.waiting.register(cx.waker());
        match self.0.input.lock().as_mut() {
            Some(input) => input.poll_next_unpin(cx),
            None => Poll::Ready(None),
        }
    }
}

/// A stream of appends in use.
struct Session<S>(Arc<Fed<S>>);

impl<S> Session<S> {
    fn new(input: S) -> Self {
        Self(Arc::new(Fed { input: Mutex::new(Some(input)), waiting: AtomicWaker::new() }))
    }
}

impl<S> Drop for Session<S> {
    fn drop(&mut self) {
        let input = self.0.input.lock().take();
        drop(input);
        // Whoever holds on to the feed is to see its end, and let the connection have its stream back.
        self.0.waiting.wake();
    }
}

fn lost() -> RPCError<TypeConfig> {
    unreachable(&Error::unavailable("what the follower needs next is purged"))
}

/// Whether openraft goes on from a place before the purged entries. There is nothing that it could send from there; it would
/// try for ever, and after an error it looks where the follower stands.
fn leads_nowhere(request: &AppendEntriesRequest<TypeConfig>, purged: Option<u64>) -> bool {
    let prev = request.prev_log_id.as_ref().map(|id| id.index);
    request.entries.is_empty() && prev.is_some() && prev < purged
}

/// Messages of a stream of appends. (A type without lifetimes: the compiler cannot see that the box is good for as long as tonic
/// wants it.)
struct Outgoing(BoxStream<'static, v1::AppendEntriesRequest>);

impl Stream for Outgoing {
    type Item = v1::AppendEntriesRequest;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_next_unpin(cx)
    }
}

/// A stream of appends, and what is known of it.
struct Pipeline {
    shared: Arc<Shared>,
    address: Address,
    purged: Purged,
    /// What is on its way, oldest first. Openraft stops feeding the stream when it has enough unanswered.
    sent: Arc<Mutex<VecDeque<Sent>>>,
    /// See [`leads_nowhere`].
    nowhere: Arc<AtomicBool>,
}

impl Pipeline {
    /// The messages, their times taken as they go out.
    fn outgoing(
        &self,
        requests: impl Stream<Item = AppendEntriesRequest<TypeConfig>> + Send + 'static,
    ) -> Outgoing {
        let (shared, address, purged) = (self.shared.clone(), self.address.clone(), self.purged.clone());
        let (sent, nowhere) = (self.sent.clone(), self.nowhere.clone());
        Outgoing(Box::pin(requests.map(move |request| {
            if leads_nowhere(&request, (purged.0)()) {
                nowhere.store(true, Ordering::Release);
            }
            let range = convert::append_range(&request);
            let term = request.vote.leader_id.term;
            let abstention_ns = shared.guard.abstention_ns();
            let message = convert::append_to_wire(&address, request, abstention_ns);
            let at_ns = shared.env.clock.holder_ns();
            sent.lock().push_back(Sent { range, term, at_ns, abstention_ns });
            message
        })))
    }

    async fn open(
        self,
        mut client: RaftClient<Channel>,
        mut outgoing: Outgoing,
        session: Box<dyn Any + Send>,
    ) -> RpcResult<BoxStream<'static, RpcResult<StreamAppendResult<TypeConfig>>>> {
        // Openraft waits out its backoff when a request is taken, and tonic takes none before it is connected: without this a peer
        // that refuses connections would be tried again and again without a pause.
        let Some(first) = outgoing.next().await else {
            return Ok(Box::pin(futures::stream::empty()));
        };
        if self.nowhere.load(Ordering::Acquire) {
            return Err(lost());
        }
        let outgoing = futures::stream::iter([first]).chain(outgoing);
        let replies =
            call(APPEND_TIMEOUT, client.stream_append(outgoing)).await.map_err(|e| unreachable(&e))?;
        Ok(self.answered(replies, session))
    }

    /// What openraft hears. `session` is kept as long as it listens.
    fn answered(
        self,
        replies: tonic::Streaming<v1::AppendEntriesResponse>,
        session: Box<dyn Any + Send>,
    ) -> BoxStream<'static, RpcResult<StreamAppendResult<TypeConfig>>> {
        let state = Some((self, replies, session));
        Box::pin(futures::stream::unfold(state, |state| async move {
            let (pipeline, mut replies, session) = state?;
            let reply = next_reply(&mut replies, &pipeline.sent, &pipeline.shared).await;
            if pipeline.nowhere.load(Ordering::Acquire) {
                return Some((Err(lost()), None));
            }
            // An error of a stream that owes nothing would undo what openraft has planned since. And a clean end of one that does,
            // it would take for a pause, and go on from where the stream once began: if that is purged by now, it would never get
            // any further.
            let owes_nothing = pipeline.sent.lock().is_empty();
            let reply = match reply {
                Some(Ok(reply)) => Ok(reply),
                None | Some(Err(_)) if owes_nothing => return None,
                Some(Err(e)) => Err(e),
                None => Err(Error::unavailable("the peer ended the stream before it had answered")),
            };
            match reply.and_then(|reply| pipeline.accept(reply)) {
                Ok(Ok(matching)) => Some((Ok(Ok(matching)), Some((pipeline, replies, session)))),
                Ok(Err(e)) => Some((Ok(Err(e)), None)),
                Err(e) => Some((Err(unreachable(&e)), None)),
            }
        }))
    }

    /// The answer to the oldest append; the leader's lease counts it.
    fn accept(&self, reply: v1::AppendEntriesResponse) -> Result<StreamAppendResult<TypeConfig>> {
        let oldest = self.sent.lock().pop_front();
        let oldest = oldest.ok_or_else(|| Error::invalid("an answer to no append"))?;
        let accepted = convert::stream_result_from_wire(reply, oldest.range)?;
        if !matches!(accepted, Err(StreamAppendError::HigherVote(_))) {
            // If this node led, it promised as much as its followers did.
            self.shared.guard.bind(self.shared.env.clock.grantor_ns(), oldest.abstention_ns);
            self.shared.lease.acknowledged(Ack {
                term: oldest.term,
                node: self.address.to,
                sent_ns: counted_from(oldest.at_ns, &self.shared),
                abstention_ns: oldest.abstention_ns,
                matched: accepted.as_ref().ok().and_then(|m| m.as_ref()).map(|id| id.index),
            });
        }
        Ok(accepted)
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
            let sent_ns = counted_from(sent_ns, &self.shared);
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
        let client = self.client();
        let pipeline = Pipeline {
            shared: self.shared.clone(),
            address: self.address.clone(),
            purged: self.purged.clone(),
            sent: Arc::default(),
            nowhere: Arc::default(),
        };
        let session = Session::new(input);
        let outgoing = pipeline.outgoing(Feed(session.0.clone()));
        let session: Box<dyn Any + Send> = Box::new(session);
        Box::pin(async move {
            let answered: BoxStream<'s, _> = pipeline.open(client?, outgoing, session).await?;
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
        let data = snapshot.snapshot.0;
        let first = v1::InstallSnapshotRequest {
            partition: self.address.partition,
            from: self.address.from,
            to: self.address.to,
            cluster: self.address.cluster.clone(),
            vote: Some(convert::vote_to_wire(&vote)),
            last_log: snapshot.meta.last_log_id.as_ref().map(convert::position_to_wire),
            membership: Bytes::from(encode_membership(&snapshot.meta.last_membership).to_vec()),
            membership_position: None,
            snapshot_id: String::new(),
            data: Bytes::new(),
            data_bytes: data.len() as u64,
            abstention_ns: self.shared.guard.abstention_ns(),
        };
        let pieces = (0..data.len()).step_by(SNAPSHOT_PIECE_BYTES).map(move |at| {
            let data = data.slice(at..data.len().min(at + SNAPSHOT_PIECE_BYTES));
            v1::InstallSnapshotRequest { data, ..Default::default() }
        });
        let message = futures::stream::iter(std::iter::once(first).chain(pieces));
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

/// The leader's lease runs from the sending of what was acknowledged.
fn counted_from(sent_ns: u64, shared: &Shared) -> u64 {
    if mutant::active(Mutant::LeaseFromReceipt) { shared.env.clock.holder_ns() } else { sent_ns }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::atomic::AtomicUsize;

    use sextant_common::Env;
    use sextant_common::env::{Connection, Listener, Network as Net, grpc_incoming};
    use sextant_proto::v1::raft_server::{Raft as RaftService, RaftServer};
    use sextant_raft_log::log_id;

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

    /// To a peer at an address.
    fn network(env: &Env, addr: &str) -> Network {
        let cluster = ClusterConfig {
            id: "test".into(),
            partitions: 1,
            memtable: Vec::new(),
            sstable: Vec::new(),
            lease: Default::default(),
        };
        let peer = Peer::connect(env, addr, &cluster);
        let address = Address { partition: 0, from: 1, to: 2, cluster: Bytes::new() };
        Network {
            shared: Shared::for_tests(env),
            address,
            purged: Purged(Arc::new(|| Some(7))),
            client: Some(peer.data),
        }
    }

    fn empty_append() -> AppendEntriesRequest<TypeConfig> {
        AppendEntriesRequest {
            vote: Vote::new_committed(1, 1),
            prev_log_id: None,
            entries: Vec::new(),
            leader_commit: None,
        }
    }

    #[tokio::test]
    async fn a_request_is_taken_before_a_connection_is_tried() {
        // Openraft waits between failed attempts while it hands out a request. A leader that connected first tried a dead
        // follower thousands of times a second.
        let (taken, when_tried) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(None)));
        let refusing = Refusing { taken: taken.clone(), when_tried: when_tried.clone() };
        let env = Env { net: Arc::new(refusing), ..Env::real() };
        let mut network = network(&env, "peer:1");
        let requests = futures::stream::repeat_with(move || {
            taken.fetch_add(1, Ordering::SeqCst);
            empty_append()
        });
        let failed = network.stream_append(requests.take(1), RPCOption::new(APPEND_TIMEOUT)).await;
        assert!(failed.is_err());
        assert_eq!(*when_tried.lock(), Some(1));
    }

    /// Takes one append and ends the stream without an answer.
    struct Curt;

    type Replies = BoxStream<'static, std::result::Result<v1::AppendEntriesResponse, tonic::Status>>;

    fn not_here<T>() -> std::result::Result<tonic::Response<T>, tonic::Status> {
        Err(tonic::Status::unimplemented("not in this test"))
    }

    #[tonic::async_trait]
    impl RaftService for Curt {
        type StreamAppendStream = Replies;

        async fn stream_append(
            &self,
            request: tonic::Request<tonic::Streaming<v1::AppendEntriesRequest>>,
        ) -> std::result::Result<tonic::Response<Replies>, tonic::Status> {
            request.into_inner().message().await?;
            Ok(tonic::Response::new(Box::pin(futures::stream::empty())))
        }

        async fn append_entries(
            &self,
            _request: tonic::Request<v1::AppendEntriesRequest>,
        ) -> std::result::Result<tonic::Response<v1::AppendEntriesResponse>, tonic::Status> {
            not_here()
        }

        async fn vote(
            &self,
            _request: tonic::Request<v1::VoteRequest>,
        ) -> std::result::Result<tonic::Response<v1::VoteResponse>, tonic::Status> {
            not_here()
        }

        async fn pre_vote(
            &self,
            _request: tonic::Request<v1::VoteRequest>,
        ) -> std::result::Result<tonic::Response<v1::VoteResponse>, tonic::Status> {
            not_here()
        }

        async fn install_snapshot(
            &self,
            _request: tonic::Request<tonic::Streaming<v1::InstallSnapshotRequest>>,
        ) -> std::result::Result<tonic::Response<v1::InstallSnapshotResponse>, tonic::Status> {
            not_here()
        }

        async fn transfer_leader(
            &self,
            _request: tonic::Request<v1::TransferLeaderRequest>,
        ) -> std::result::Result<tonic::Response<v1::TransferLeaderResponse>, tonic::Status> {
            not_here()
        }

        async fn is_founded(
            &self,
            _request: tonic::Request<v1::IsFoundedRequest>,
        ) -> std::result::Result<tonic::Response<v1::IsFoundedResponse>, tonic::Status> {
            not_here()
        }
    }

    #[tokio::test]
    async fn a_stream_that_ends_with_an_append_unanswered_has_failed() {
        // After a clean end openraft went on from where the stream had begun, for ever if that was purged: the follower never
        // got another entry. After an error it looks where the follower stands.
        let env = Env::real();
        let listener = env.net.bind("127.0.0.1:0".into()).await.unwrap();
        let addr = listener.local_addr().unwrap().to_string();
        let routes = tonic::transport::Server::builder().add_service(RaftServer::new(Curt));
        tokio::spawn(routes.serve_with_incoming(grpc_incoming(listener)));
        let mut network = network(&env, &addr);
        let one = futures::stream::iter([empty_append()]);
        let replies = network.stream_append(one, RPCOption::new(APPEND_TIMEOUT)).await.unwrap();
        let replies: Vec<_> = replies.collect().await;
        assert!(matches!(replies[..], [Err(_)]), "{replies:?}");
    }

    #[tokio::test]
    async fn a_stream_that_is_given_up_takes_nothing_more() {
        // The next stream's first request went out on the connection of the one before, which nobody listened to any more.
        let (first, never) = (futures::stream::iter([empty_append()]), futures::stream::pending());
        let session = Session::new(first.chain(never));
        let mut feed = Feed(session.0.clone());
        assert!(feed.next().await.is_some());
        let waiting = tokio::spawn(async move { feed.next().await });
        tokio::task::yield_now().await;
        drop(session);
        assert!(waiting.await.unwrap().is_none(), "and who waits is told");
    }

    #[tokio::test]
    async fn openraft_is_told_when_it_goes_on_before_what_is_purged() {
        let env = Env::real();
        let listener = env.net.bind("127.0.0.1:0".into()).await.unwrap();
        let mut network = network(&env, &listener.local_addr().unwrap().to_string());
        let request = AppendEntriesRequest { prev_log_id: Some(log_id(1, 6)), ..empty_append() };
        assert!(leads_nowhere(&request, Some(7)));
        assert!(!leads_nowhere(&request, Some(6)) && !leads_nowhere(&request, None));
        assert!(
            !leads_nowhere(&empty_append(), Some(7)),
            "from the beginning: openraft asks where the follower stands"
        );
        let one = futures::stream::iter([request]);
        assert!(network.stream_append(one, RPCOption::new(APPEND_TIMEOUT)).await.is_err());
    }
}
