use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::Duration;

use bytes::Bytes;
use openraft::storage::{RaftLogStorage, RaftLogStorageExt};
use prometheus_client::registry::Registry;
use sextant_common::error::ErrorKind;
use sextant_common::ids::{NodeId, SstId};
use sextant_environment::Env;
use sextant_environment::config::{ClusterConfig, LeaseConfig};
use sextant_raft_log::{Payload, RaftLog, RaftLogConfig, Reservation, Vote, log_id};
use sextant_simulated::FaultyVfs;
use tokio::sync::{mpsc, watch};

use super::*;
use crate::command::{Compaction, Configuration, ConfigurationRules};
use crate::config::Tuning;
use crate::flush::Background;
use crate::metrics::Metrics;
use crate::partition::Partition;
use crate::partition::testing::sst;
use crate::raft::network::{NetworkFactory, Purged};
use crate::raft::snapshot_store::SnapshotStore;
use crate::raft::{Raft, StateMachine};
use crate::replica::ReplicaState;
use crate::upstream::SstServers;
use crate::worker::Parts;
use crate::worker::proposal::PendingCommand;

fn ready() -> Facts {
    Facts {
        is_written_to: false,
        is_flushing: false,
        is_cutting: false,
        is_leased: false,
        is_proposing: false,
        now_ns: 5,
        until_ns: 10,
    }
}

#[test]
fn a_load_is_proposed_when_no_lease_lives_and_nothing_is_under_way() {
    assert_eq!(next_step(ready()), Step::Propose);
    assert_eq!(next_step(Facts { is_leased: true, ..ready() }), Step::Wait);
    assert_eq!(next_step(Facts { is_flushing: true, ..ready() }), Step::Wait);
    assert_eq!(next_step(Facts { is_cutting: true, ..ready() }), Step::Wait);
    assert_eq!(next_step(Facts { is_proposing: true, ..ready() }), Step::Wait);
    assert_eq!(next_step(Facts { is_written_to: true, ..ready() }), Step::Freeze);
    assert_eq!(next_step(Facts { is_written_to: true, is_proposing: true, ..ready() }), Step::Wait);
}

#[test]
fn writes_are_not_held_back_for_ever() {
    let late = Facts { now_ns: 10, ..ready() };
    assert_eq!(next_step(Facts { is_leased: true, ..late }), Step::GiveUp);
    assert_eq!(next_step(late), Step::Propose, "it is ready");
}

#[test]
fn after_a_vain_attempt_writes_go_on_for_longer_each_time_up_to_a_bound() {
    let mut rest = Rest::default();
    assert!(rest.check(5).is_ok());
    let mut now_ns = 5;
    let mut rests = Vec::new();
    for _ in 0..5 {
        rest.begin(now_ns);
        assert!(rest.check(now_ns).unwrap_err().is_retryable());
        rests.push((rest.until_ns - now_ns) / HOLD_NS);
        assert!(rest.check(rest.until_ns - 1).is_err());
        now_ns = rest.until_ns;
        assert!(rest.check(now_ns).is_ok());
    }
    assert_eq!(rests, [1, 2, 4, 4, 4]);
    now_ns += FORGIVEN_NS;
    rest.begin(now_ns);
    assert_eq!(rest.until_ns, now_ns + HOLD_NS, "long ago");
}

#[test]
fn loaded_tables_are_columns_where_nothing_was_and_answer_for_all_keys_above_others() {
    let loaded = |counter, key: &'static str| SstMeta {
        min_key: key.into(),
        generations: Generations::new(100 + u64::from(counter), 100 + u64::from(counter)),
        ..sst(counter)
    };
    let three = || vec![loaded(0, "c"), loaded(1, "m"), loaded(2, "t")];
    let columns = placed(three(), &SstList::default(), Generation(102));
    let ranges: Vec<_> = columns.iter().map(|sst| (sst.range.start.clone(), sst.range.end.clone())).collect();
    assert_eq!(ranges, [("t".into(), "".into()), ("m".into(), "t".into()), ("".into(), "m".into())]);
    assert!(columns.iter().all(|sst| sst.generations == Generations::new(1, 102)));
    let above = placed(three(), &vec![sst(9)].into(), Generation(102));
    assert!(above.iter().all(|sst| sst.range.is_all()));
    assert_eq!(above[0].generations, Generations::new(102, 102), "newest first");
}

const TERM: u64 = 3;
const SEGMENT_BYTES: u64 = 4 << 20;
/// Another one is made when a quarter of the first is used.
const USED_BYTES: usize = 5 << 18;
/// A partition that leaves this one less room.
const OTHER: PartitionId = PartitionId(1);
const KEY_BYTES: usize = 16 << 10;

/// A leader whose log has one segment, and no room for another.
struct Full {
    replica: Replica,
    leading: Leading,
    taken: Vec<Reservation>,
    _events: mpsc::UnboundedReceiver<crate::replica::Event>,
}

impl Full {
    async fn start() -> Self {
        let disk = FaultyVfs::new(1);
        disk.set_capacity(Some(SEGMENT_BYTES + 4000));
        let env = Env { vfs: Arc::new(disk), ..Env::real() };
        let dir = Path::new("/leader");
        env.vfs.create_dir_all(dir).unwrap();
        let shared = ReplicaState::for_tests(&env);
        let config = RaftLogConfig {
            devices: vec![dir.join("log")],
            segment_bytes: SEGMENT_BYTES,
            cluster: "test".into(),
            fingerprint: 7,
            node: NodeId(shared.node),
            cache_bytes: 4 << 10,
        };
        let log =
            RaftLog::open(env.clone(), config, &[shared.id, OTHER], &mut Registry::default()).await.unwrap();
        let (store, _) = SnapshotStore::open(&env, dir, shared.id).unwrap();
        let (events, queue) = mpsc::unbounded_channel();
        let (lease, tuning) = (LeaseConfig::default(), Tuning { group_bytes: 64 << 10, ..Tuning::default() });
        let network = NetworkFactory {
            shared: shared.clone(),
            cluster: Default::default(),
            peers: Arc::default(),
            purged: Purged(Arc::new(|| None)),
        };
        let raft_config = crate::raft::config(&lease, lease.leader_lease_ms, &tuning).unwrap();
        let machine = StateMachine::new(shared.id, events.clone(), store);
        let raft_log = log.partition(shared.id);
        let raft =
            Raft::new(shared.node, Arc::new(raft_config), network.clone(), raft_log.clone(), machine).await;
        let (id, memtable, sstable) = ("test".into(), Vec::new(), Vec::new());
        let cluster = ClusterConfig { id, partitions: 1, memtable, sstable, lease: lease.clone() };
        let metrics = Arc::new(Metrics::register(&mut Registry::default()));
        let background = Background {
            runtime: tokio::runtime::Handle::current(),
            shared: shared.clone(),
            servers: Arc::new(SstServers::connect(&env, &cluster, NodeId(1))),
            events,
            tuning: tuning.clone(),
            attempts: Arc::new(AtomicU32::new(1)),
            orders: Arc::new(AtomicU64::new(1)),
            metrics: metrics.clone(),
        };
        let replica = Replica::new(Parts {
            partition: Partition::new(shared.id),
            shared,
            raft: raft.unwrap(),
            log: raft_log,
            server_log: Arc::new(log),
            tuning,
            founding: Configuration { format: 2, ..Configuration::founding(&lease, 1 << 20) },
            heartbeat_ms: lease.heartbeat_ms,
            group_interval: Duration::ZERO,
            metrics,
            background,
            network,
            snapshots: watch::channel(None).0,
            recovered: Vec::new(),
            of_snapshot: Default::default(),
        });
        let leading = Leading::begin(&replica, TERM);
        let full = Self { replica, leading, taken: Vec::new(), _events: queue };
        full.find_out().await;
        full
    }

    /// Until the log knows that it gets no second segment.
    async fn find_out(&self) {
        let log = &self.replica.server_log;
        let mut other = log.partition(OTHER);
        let payload = openraft::EntryPayload::Normal(Payload(vec![0; USED_BYTES].into()));
        other.blocking_append([openraft::Entry { log_id: log_id(1, 0), payload }]).await.unwrap();
        let mut term = 1;
        while log.check_room(SEGMENT_BYTES).is_ok() {
            // (A device looks around when it has something to write.)
            term += 1;
            other.save_vote(&Vote::new(term, 1)).await.unwrap();
        }
    }

    /// Others take what is left, until there is no room for commands; then so much is given back.
    fn fill(&mut self, but: usize) {
        while let Ok(taken) = self.replica.server_log.reserve(1, 64 << 10, 0) {
            self.taken.push(taken);
        }
        self.taken.truncate(self.taken.len() - but);
    }

    /// A load of so many tables is ready to be adopted.
    fn adopt(&mut self, tables: u32, proposed: bool) -> oneshot::Receiver<Adopted> {
        let (done, adopted) = oneshot::channel();
        let load = Written {
            id: LoadId(7),
            term: TERM,
            table: TableId(1),
            name: "t".into(),
            first: Generation(1 << 40),
            seq: 1 << 40,
            ssts: (0..tables).map(long).collect(),
        };
        self.leading.adoption = Some(Adoption { what: Adopting::Load(load), until_ns: 0, proposed, done });
        adopted
    }

    fn is_queued(&self) -> bool {
        self.leading.sequencer.has_own(is_adoption)
    }

    async fn propose(&mut self, command: Command) {
        let pending = PendingCommand { command, done: None, privileged: false };
        self.leading.propose_command(&self.replica, pending.into()).await;
        assert!(self.leading.sequencer.proposal.is_none());
    }
}

/// A table with keys as long as they may be.
fn long(counter: u32) -> SstMeta {
    let key = |last: u8| {
        let mut key = vec![b'k'; KEY_BYTES];
        key[..4].copy_from_slice(&counter.to_be_bytes());
        key[KEY_BYTES - 1] = last;
        Bytes::from(key)
    };
    SstMeta { min_key: key(0), max_key: key(1), ..sst(counter) }
}

fn refusal(mut adopted: oneshot::Receiver<Adopted>) -> (ErrorKind, String) {
    match adopted.try_recv() {
        Ok(Adopted::NotNow(e)) => (e.kind, e.message.into_owned()),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_load_for_which_the_log_has_no_room_is_given_up_wherever_it_is() {
    let mut full = Full::start().await;
    // There is room, and then there is none before its turn.
    let adopted = full.adopt(10, false);
    full.leading.propose_adoption(&full.replica);
    assert!(full.is_queued() && full.leading.adoption.is_some());
    full.leading.see_to_adoption(&full.replica);
    assert!(full.is_queued(), "it waits for its turn");
    full.fill(0);
    full.leading.see_to_adoption(&full.replica);
    assert!(!full.is_queued() && full.leading.adoption.is_none());
    assert_eq!(refusal(adopted).0, ErrorKind::Overloaded);

    // There is room for commands that make room, and not for as long a one as this.
    full.fill(4);
    full.replica.log_takes_commands().unwrap();
    let adopted = full.adopt(10, false);
    full.leading.propose_adoption(&full.replica);
    assert!(!full.is_queued() && full.leading.adoption.is_none());
    let (kind, why) = refusal(adopted);
    assert!(kind == ErrorKind::Overloaded && why.contains("the log takes no command of"), "{why}");

    // Its turn has come.
    let adopted = full.adopt(10, true);
    let load = Load {
        term: TERM,
        table: TableId(1),
        id: LoadId(7),
        generation: Generation(1),
        next_seq: 1,
        seq: 1 << 40,
        flushed: Generation(1 << 40),
        ssts: (0..10).map(long).collect(),
    };
    full.propose(Command::Load(load)).await;
    assert!(full.leading.adoption.is_none());
    assert_eq!(refusal(adopted).0, ErrorKind::Overloaded);
}

#[tokio::test]
async fn a_load_that_no_message_to_a_follower_carries_is_refused_for_good() {
    let mut full = Full::start().await;
    let adopted = full.adopt(500, false);
    full.leading.propose_adoption(&full.replica);
    assert!(!full.is_queued() && full.leading.adoption.is_none());
    let (kind, why) = refusal(adopted);
    assert!(kind == ErrorKind::Invalid && why.contains("what a message to another server carries"), "{why}");
}

#[tokio::test]
async fn outputs_of_a_compaction_for_which_the_log_has_no_room_are_given_up() {
    let mut full = Full::start().await;
    full.fill(4);
    let outputs: Vec<SstMeta> = (0..10).map(long).collect();
    let ids: Vec<SstId> = outputs.iter().map(|sst| sst.id).collect();
    full.replica.shared.pending_ssts.lock().extend(ids);
    let (inputs, range) = (vec![sst(77).id], KeyRange::all());
    let table = TableId(1);
    let compaction = Compaction { term: TERM, table, inputs, range, outputs, tombstones_dropped: true };
    full.propose(Command::Compaction(compaction)).await;
    assert!(full.replica.shared.pending_ssts.lock().is_empty());
    assert_eq!(full.replica.metrics.compaction_failures.get(), 1);
}
