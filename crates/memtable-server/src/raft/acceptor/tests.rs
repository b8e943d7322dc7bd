//! One member on a real log, and the messages of a leader that it never answers by itself.

use std::path::Path;

use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse, VoteRequest};
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use sextant_environment::Env;
use sextant_environment::config::LeaseConfig;
use sextant_environment::env::Fatal;
use sextant_raft_log::{RaftLogConfig, Vote, log_id};
use sextant_simulated::FaultyVfs;
use tokio::sync::mpsc;

use super::*;
use crate::config::Tuning;
use crate::raft::StateMachine;
use crate::raft::network::{NetworkFactory, Purged};

/// What this server is; what the leader takes it for otherwise.
const OWN: u64 = 1;
const FORMER: u64 = 99;
const HOUR_NS: u64 = 3_600_000_000_000;

/// Remembers why the process would have ended.
#[derive(Default)]
struct Ends(Mutex<Option<String>>);

impl Fatal for Ends {
    fn fatal(&self, message: &str) {
        *self.0.lock() = Some(message.to_owned());
    }
}

struct Member {
    acceptor: Acceptor,
    ends: Arc<Ends>,
}

impl Member {
    async fn start() -> Self {
        let ends = Arc::new(Ends::default());
        let env = Env { vfs: Arc::new(FaultyVfs::new(1)), fatal: ends.clone(), ..Env::real() };
        let dir = Path::new("/member");
        env.vfs.create_dir_all(dir).unwrap();
        let shared = ReplicaState::for_tests(&env);
        let config = RaftLogConfig {
            devices: vec![dir.join("log")],
            segment_bytes: 64 << 10,
            cluster: "test".into(),
            fingerprint: 7,
            node: sextant_common::ids::NodeId(shared.node),
            cache_bytes: 4 << 10,
        };
        let log = RaftLog::open(env.clone(), config, &[shared.id], &mut Registry::default()).await.unwrap();
        let (store, _) = SnapshotStore::open(&env, dir, shared.id).unwrap();
        let (events, mut told) = mpsc::unbounded_channel();
        tokio::spawn(async move { while told.recv().await.is_some() {} });
        let machine = StateMachine::new(shared.id, events, store.clone());
        let lease = LeaseConfig::default();
        let config = crate::raft::config(&lease, lease.leader_lease_ms, &Tuning::default()).unwrap();
        let network = NetworkFactory {
            shared: shared.clone(),
            cluster: Default::default(),
            peers: Arc::default(),
            purged: Purged(Arc::new(|| None)),
        };
        let raft = Raft::new(shared.node, Arc::new(config), network, log.partition(shared.id), machine);
        let raft = raft.await.unwrap();
        let acceptor = Acceptor {
            rafts: Arc::new([(shared.id, raft.clone())].into()),
            shared,
            raft,
            store,
            log: Arc::new(log),
            metrics: Arc::new(Metrics::register(&mut Registry::default())),
            disk_stall_ms: 0,
            group_bytes: Tuning::default().group_bytes,
        };
        Self { acceptor, ends }
    }

    fn is_bound(&self) -> bool {
        !self.acceptor.shared.guard.is_open(self.acceptor.shared.env.clock.grantor_ns())
    }

    /// The term of the vote that is written down.
    fn voted(&self) -> u64 {
        let vote = self.acceptor.log.partition(self.acceptor.shared.id).vote();
        vote.map_or(0, |vote| vote.leader_id.term)
    }

    async fn vote(&self, named: u64, term: u64) -> Result<bool, Refusal> {
        let request = VoteRequest::new(Vote::new(term, 2), Some(log_id(term, 100)));
        self.acceptor.vote(named, request).await.map(|reply| reply.vote_granted)
    }
}

/// A heartbeat of the leader of `term`, that asks for an hour.
fn heartbeat(named: u64, term: u64) -> Sent {
    let vote = Vote::new_committed(term, 2);
    let request = AppendEntriesRequest { vote, prev_log_id: None, entries: Vec::new(), leader_commit: None };
    Sent { incarnation: named, asked_ns: HOUR_NS, acknowledged: 0, request: Ok(request) }
}

#[tokio::test]
async fn a_leader_that_was_accepted_is_the_only_one_for_as_long_as_it_asked() {
    let member = Member::start().await;
    let reply = member.acceptor.append(heartbeat(OWN, 3)).await.unwrap();
    assert!(matches!(reply, AppendEntriesResponse::Success));
    assert!(member.is_bound());
    assert!(matches!(member.vote(OWN, 4).await, Err(Refusal::NotNow(_))));
    assert_eq!(member.voted(), 3, "Raft was not asked: it would have written the vote down");
    assert_eq!(member.acceptor.metrics.votes_dropped.get(), 1);
}

#[tokio::test]
async fn what_means_a_former_life_is_refused_before_the_guard_the_vote_and_the_log_are_touched() {
    let member = Member::start().await;
    let is_other = |refused: Option<Refusal>| {
        matches!(refused, Some(Refusal::OtherIncarnation { named: FORMER, own: OWN }))
    };
    assert!(is_other(member.acceptor.append(heartbeat(FORMER, 3)).await.err()));
    assert!(is_other(member.acceptor.append_all(heartbeat(FORMER, 3), tokio_stream::empty()).err()));
    assert!(is_other(member.vote(FORMER, 3).await.err()));
    assert!(is_other(member.acceptor.admit_snapshot(FORMER).err()));
    assert!(!member.is_bound(), "nothing was accepted");
    assert_eq!(member.voted(), 0);
    assert!(member.acceptor.shared.incarnation.is_lost(member.acceptor.shared.id), "it asks to be let in");
    // Not even a node that is bound says so to somebody who means another.
    member.acceptor.append(heartbeat(OWN, 3)).await.unwrap();
    assert!(is_other(member.vote(FORMER, 4).await.err()));
    assert_eq!(member.acceptor.metrics.votes_dropped.get(), 0);
}

#[tokio::test]
async fn a_log_that_lacks_what_it_acknowledged_is_not_appended_to_and_the_server_ends() {
    let member = Member::start().await;
    let sent = Sent { acknowledged: 5, ..heartbeat(OWN, 3) };
    assert!(matches!(member.acceptor.append(sent).await, Err(Refusal::NotNow(_))));
    assert!(!member.is_bound());
    assert_eq!(member.voted(), 0);
    while member.ends.0.lock().is_none() {
        tokio::task::yield_now().await;
    }
    let why = member.ends.0.lock().clone().unwrap();
    assert!(why.contains("older copy") && why.contains("asks to be let in"), "{why}");
    assert_ne!(member.acceptor.shared.incarnation.id(), OWN);
}

#[tokio::test]
async fn who_is_only_asked_whether_it_would_lead_is_not_named() {
    let member = Member::start().await;
    let named = || member.acceptor.shared.heir_of.load(std::sync::atomic::Ordering::Acquire);
    assert!(member.acceptor.would_lead(false) && !member.acceptor.would_lead(true), "it may be stopping");
    assert_eq!(named(), 0);
    assert!(member.acceptor.is_named_heir(&Vote::new_committed(3, 2), false).unwrap());
    assert_eq!(named(), 3);
}

#[tokio::test]
async fn what_is_committed_is_believed_of_the_newest_leader_only_and_of_the_first_message_that_says_it() {
    let member = Member::start().await;
    let append = async |term, committed: Option<u64>| {
        let mut sent = heartbeat(OWN, term);
        sent.request.as_mut().unwrap().leader_commit = committed.map(|index| log_id(term, index));
        member.acceptor.append(sent).await.unwrap();
    };
    let committed = || member.acceptor.shared.catch_up.behind().unwrap().committed;
    append(3, None).await;
    append(2, Some(5)).await;
    assert_eq!(committed(), None, "it does not know yet, or it leads no more");
    append(3, Some(7)).await;
    append(3, Some(900)).await;
    assert_eq!(committed(), Some(7));
}
