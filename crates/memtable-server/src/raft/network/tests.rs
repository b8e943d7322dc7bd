//! A network and a peer that is curt.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use futures::StreamExt;
use openraft::EntryPayload;
use parking_lot::Mutex;
use sextant_common::ids::NodeId;
use sextant_environment::Env;
use sextant_environment::config::ClusterConfig;
use sextant_environment::env::{
    Connection, Door, Listener, Network as Net, Party, Whom, cluster_channel, grpc_incoming,
};
use sextant_proto::v1;
use sextant_proto::v1::raft_server::{Raft as RaftService, RaftServer};
use sextant_raft_log::{Entry, log_id};

use super::pipeline::{Feed, InUse, Pipeline, leads_nowhere};
use super::*;

/// Refuses connections, and remembers how many requests had been taken when the first one was tried.
struct Refusing {
    taken: Arc<AtomicUsize>,
    when_tried: Arc<Mutex<Option<usize>>>,
}

impl Net for Refusing {
    fn bind(&self, _addr: String, _: Door) -> BoxFuture<'static, io::Result<Box<dyn Listener>>> {
        Box::pin(async { Err(io::ErrorKind::Unsupported.into()) })
    }

    fn connect(&self, _addr: String, _: Whom) -> BoxFuture<'static, io::Result<Connection>> {
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
    let address = Address { partition: 0, from: 1, to: 2, cluster: Bytes::new(), to_incarnation: 9 };
    Network {
        shared: ReplicaState::for_tests(env),
        address,
        purged: Purged(Arc::new(|| Some(7))),
        client: Some(PeerClient::new(cluster_channel(
            &env.net,
            addr,
            &cluster,
            Party::memtable(NodeId(1)),
            Some(Party::memtable(NodeId(2))),
        ))),
        heartbeats: None,
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
async fn appends_without_entries_go_out_only_to_ask_where_the_follower_stands() {
    let env = Env::real();
    let Network { shared, address, purged, .. } = network(&env, "peer:1");
    let pipeline = Pipeline { shared, address, purged, sent: Arc::default(), nowhere: Arc::default() };
    let entry = |index| Entry { log_id: log_id(1, index), payload: EntryPayload::Blank };
    let at = |index, entries| AppendEntriesRequest {
        prev_log_id: Some(log_id(1, index)),
        entries,
        leader_commit: Some(log_id(1, index)),
        ..empty_append()
    };
    let requests = [at(7, vec![]), at(7, vec![]), at(7, vec![entry(8), entry(9)]), at(9, vec![])];
    let messages = pipeline.outgoing(futures::stream::iter(requests));
    let counts: Vec<usize> = messages.map(|message| message.entries.len()).collect().await;
    assert_eq!(counts, [0, 2]);
    assert_eq!(pipeline.sent.lock().len(), 2, "of what is sent answers are waited for");
    assert!(!pipeline.nowhere.load(Ordering::Acquire));
    // What leads nowhere goes: its answer ends the stream.
    let requests = [at(9, vec![entry(10)]), at(6, vec![])];
    assert_eq!(pipeline.outgoing(futures::stream::iter(requests)).count().await, 2);
    assert!(pipeline.nowhere.load(Ordering::Acquire));
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

type Heard = BoxStream<'static, std::result::Result<v1::HeartbeatsReply, tonic::Status>>;
type Hears =
    dyn Fn(v1::HeartbeatsRequest) -> std::result::Result<tonic::Response<Heard>, tonic::Status> + Send + Sync;

/// Takes one append and ends the stream without an answer. Grants any vote, after it has done something else.
struct Curt {
    asked: Arc<dyn Fn() + Send + Sync>,
    hears: Arc<Hears>,
}

impl Curt {
    fn grant(
        &self,
        request: tonic::Request<v1::VoteRequest>,
    ) -> std::result::Result<tonic::Response<v1::VoteResponse>, tonic::Status> {
        (self.asked)();
        let vote = request.into_inner().vote;
        Ok(tonic::Response::new(v1::VoteResponse { vote, granted: true, last_log: None }))
    }
}

/// Starts a peer; a network to it.
async fn curt(env: &Env, asked: impl Fn() + Send + Sync + 'static) -> Network {
    peer(env, Curt { asked: Arc::new(asked), hears: Arc::new(|_| not_here()) }).await
}

async fn peer(env: &Env, curt: Curt) -> Network {
    let listener = env.net.bind("127.0.0.1:0".into(), Door::Members).await.unwrap();
    let addr = listener.local_addr().unwrap().to_string();
    let routes = tonic::transport::Server::builder().add_service(RaftServer::new(curt));
    tokio::spawn(routes.serve_with_incoming(grpc_incoming(listener)));
    network(env, &addr)
}

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

    type HeartbeatsStream = Heard;

    async fn heartbeats(
        &self,
        request: tonic::Request<v1::HeartbeatsRequest>,
    ) -> std::result::Result<tonic::Response<Self::HeartbeatsStream>, tonic::Status> {
        (self.hears)(request.into_inner())
    }

    async fn vote(
        &self,
        request: tonic::Request<v1::VoteRequest>,
    ) -> std::result::Result<tonic::Response<v1::VoteResponse>, tonic::Status> {
        self.grant(request)
    }

    async fn pre_vote(
        &self,
        request: tonic::Request<v1::VoteRequest>,
    ) -> std::result::Result<tonic::Response<v1::VoteResponse>, tonic::Status> {
        self.grant(request)
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

    async fn remembers(
        &self,
        _request: tonic::Request<v1::RemembersRequest>,
    ) -> std::result::Result<tonic::Response<v1::RemembersResponse>, tonic::Status> {
        not_here()
    }
}

#[tokio::test]
async fn a_stream_that_ends_with_an_append_unanswered_has_failed() {
    // After a clean end openraft went on from where the stream had begun, for ever if that was purged: the follower never
    // got another entry. After an error it looks where the follower stands.
    let env = Env::real();
    let mut network = curt(&env, || ()).await;
    let one = futures::stream::iter([empty_append()]);
    let replies = network.stream_append(one, RPCOption::new(APPEND_TIMEOUT)).await.unwrap();
    let replies: Vec<_> = replies.collect().await;
    assert!(matches!(replies[..], [Err(_)]), "{replies:?}");
}

#[tokio::test]
async fn a_node_that_hears_from_a_leader_asks_for_no_votes_and_takes_none() {
    // The timer's question and the request's way through Raft leave time for an append.
    let env = Env::real();
    let option = || RPCOption::new(VOTE_TIMEOUT);
    let request = || VoteRequest::new(Vote::new(2, 1), None);
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    let mut bound = curt(&env, move || {
        count.fetch_add(1, Ordering::SeqCst);
    })
    .await;
    assert!(bound.vote(request(), option()).await.unwrap().vote_granted);
    assert!(bound.pre_vote(request(), option()).await.unwrap().vote_granted);
    assert_eq!(asked.load(Ordering::SeqCst), 2);
    let bind = |shared: &ReplicaState| shared.guard.bind(shared.env.clock.grantor_ns(), u64::MAX);
    bind(&bound.shared);
    assert!(bound.vote(request(), option()).await.is_err());
    assert!(bound.pre_vote(request(), option()).await.is_err());
    assert_eq!(asked.load(Ordering::SeqCst), 2, "nobody was asked");

    // And while the answer is on its way.
    for pre in [false, true] {
        let late: Arc<Mutex<Option<Arc<ReplicaState>>>> = Arc::default();
        let meanwhile = late.clone();
        let mut network = curt(&env, move || meanwhile.lock().iter().for_each(|s| bind(s))).await;
        *late.lock() = Some(network.shared.clone());
        let answer = match pre {
            true => network.pre_vote(request(), option()).await,
            false => network.vote(request(), option()).await,
        };
        assert!(answer.is_err(), "the vote came too late");
    }
}

#[tokio::test]
async fn a_node_whose_own_lease_lives_asks_for_no_votes() {
    let env = Env::real();
    let mut network = curt(&env, || ()).await;
    let lease = &network.shared.lease;
    lease.set_terms(crate::leadership::Terms { lease_ns: u64::MAX / 4, abstention_ns: 0, configured_at: 0 });
    lease.begin(1, 1, vec![vec![1]]);
    lease.renew_if_alone(env.clock.holder_ns());
    let request = VoteRequest::new(Vote::new(2, 1), None);
    assert!(network.vote(request, RPCOption::new(VOTE_TIMEOUT)).await.is_err());
}

#[tokio::test]
async fn a_stream_that_is_given_up_takes_nothing_more() {
    // The next stream's first request went out on the connection of the one before, which nobody listened to any more.
    let (first, never) = (futures::stream::iter([empty_append()]), futures::stream::pending());
    let in_use = InUse::new(first.chain(never));
    let mut feed = Feed(in_use.0.clone());
    assert!(feed.next().await.is_some());
    let waiting = tokio::spawn(async move { feed.next().await });
    tokio::task::yield_now().await;
    drop(in_use);
    assert!(waiting.await.unwrap().is_none(), "and who waits is told");
}

#[tokio::test]
async fn openraft_is_told_when_it_goes_on_before_what_is_purged() {
    let env = Env::real();
    let listener = env.net.bind("127.0.0.1:0".into(), Door::Members).await.unwrap();
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

/// A network for heartbeats to a peer that hears them like this.
async fn heart(
    env: &Env,
    hears: impl Fn(v1::HeartbeatsRequest) -> std::result::Result<tonic::Response<Heard>, tonic::Status>
    + Send
    + Sync
    + 'static,
) -> Network {
    let network = peer(env, Curt { asked: Arc::new(|| ()), hears: Arc::new(hears) }).await;
    let heartbeats = Heartbeats::start(network.client.clone().unwrap(), env.clock.clone());
    Network { heartbeats: Some(heartbeats), ..network }
}

/// One heartbeat, of the partition.
async fn beat(network: &Network, partition: u32) -> RpcResult<StreamAppendResult<TypeConfig>> {
    let address = Address { partition, ..network.address.clone() };
    let mut network = Network {
        shared: network.shared.clone(),
        address,
        purged: network.purged.clone(),
        client: network.client.clone(),
        heartbeats: network.heartbeats.clone(),
    };
    let one = futures::stream::iter([empty_append()]);
    let mut answers = network.stream_append(one, RPCOption::new(APPEND_TIMEOUT)).await?;
    let answer = answers.next().await.unwrap();
    assert!(answers.next().await.is_none());
    answer
}

#[tokio::test]
async fn heartbeats_go_together_and_none_waits_for_the_answer_to_another() {
    let env = Env::real();
    let calls: Arc<Mutex<Vec<Vec<u32>>>> = Arc::default();
    let heard = calls.clone();
    let (slow, answers_later) = tokio::sync::mpsc::unbounded_channel();
    let later = Arc::new(Mutex::new(Some(answers_later)));
    let network = heart(&env, move |request| {
        assert_eq!(request.to, 2);
        heard.lock().push(request.heartbeats.iter().map(|heartbeat| heartbeat.partition).collect());
        let answer = |at| v1::HeartbeatAnswer {
            at,
            reply: Some(v1::AppendEntriesResponse::default()),
            ..Default::default()
        };
        // The first of them is slow, the last never answered, and somebody answers what nobody asked.
        let known = v1::HeartbeatsReply { answers: vec![answer(1), answer(1), answer(77)] };
        let slow = later.lock().take().unwrap();
        let slow = tokio_stream::wrappers::UnboundedReceiverStream::new(slow)
            .map(move |()| Ok(v1::HeartbeatsReply { answers: vec![answer(0)] }));
        Ok(tonic::Response::new(Box::pin(futures::stream::iter([Ok(known)]).chain(slow))))
    })
    .await;
    let (mut first, mut last) = (Box::pin(beat(&network, 4)), Box::pin(beat(&network, 6)));
    assert!(futures::poll!(first.as_mut()).is_pending());
    let mut second = Box::pin(beat(&network, 5));
    assert!(futures::poll!(second.as_mut()).is_pending() && futures::poll!(last.as_mut()).is_pending());
    assert!(second.await.unwrap().is_ok());
    assert!(futures::poll!(first.as_mut()).is_pending());
    slow.send(()).unwrap();
    assert!(first.await.unwrap().is_ok());
    drop(slow);
    assert!(last.await.is_err(), "the peer has left it unanswered");
    assert_eq!(*calls.lock(), [[4, 5, 6]]);
}

#[tokio::test]
async fn an_answer_counts_for_the_lease_from_when_its_heartbeat_was_handed_over_also_if_nobody_waits() {
    let env = Env::real();
    let (asked, mut was_asked) = tokio::sync::mpsc::unbounded_channel();
    let network = heart(&env, move |_| {
        let (answers, said) = tokio::sync::mpsc::unbounded_channel();
        asked.send(answers).unwrap();
        let said = tokio_stream::wrappers::UnboundedReceiverStream::new(said);
        Ok(tonic::Response::new(Box::pin(said)))
    })
    .await;
    let lease = &network.shared.lease;
    lease.set_terms(crate::leadership::Terms { lease_ns: u64::MAX / 4, abstention_ns: 0, configured_at: 0 });
    lease.begin(1, 1, vec![vec![1, 2]]);
    let mut waits = Box::pin(beat(&network, 4));
    assert!(futures::poll!(waits.as_mut()).is_pending());
    let handed_ns = env.clock.holder_ns();
    let answers = was_asked.recv().await.unwrap();
    drop(waits);
    let answer =
        v1::HeartbeatAnswer { reply: Some(v1::AppendEntriesResponse::default()), ..Default::default() };
    answers.send(Ok(v1::HeartbeatsReply { answers: vec![answer] })).unwrap();
    while network.shared.lease.answered_ns(1, 2).is_none() {
        tokio::task::yield_now().await;
    }
    assert!(network.shared.lease.answered_ns(1, 2).unwrap() <= handed_ns);
}

#[tokio::test]
async fn a_peer_of_an_older_version_hears_each_heartbeat_in_a_stream_of_its_own() {
    let env = Env::real();
    let network = heart(&env, |_| not_here()).await;
    let heartbeats = network.heartbeats.clone().unwrap();
    assert!(heartbeats.are_understood(env.clock.holder_ns()));
    assert!(beat(&network, 4).await.is_err());
    while heartbeats.are_understood(env.clock.holder_ns()) {
        tokio::task::yield_now().await;
    }
    let error = beat(&network, 4).await.unwrap_err();
    assert!(error.to_string().contains("ended the stream"), "{error}");
}
