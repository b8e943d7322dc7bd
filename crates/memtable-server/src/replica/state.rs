//! What a replica's worker publishes, and the server's other tasks read from any thread.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use arc_swap::ArcSwap;
use openraft::raft::AppendEntriesRequest;
use parking_lot::Mutex;
use sextant_common::cut::Cut;
use sextant_common::expiry::Tick;
use sextant_common::ids::{ManifestVersion, NodeId, PartitionId, SstId};
use sextant_common::manifest::{Manifest, Versions};
use sextant_environment::Env;
use sextant_environment::config::LeaseMode;
use sextant_raft_log::TypeConfig;
use sextant_rules::mutant::{self, Mutant};
use sextant_rules::probe::PausePoint;
use tokio::sync::{Notify, watch};

use super::{CatchUp, LoadPlace, Numbers, Published, SnapshotsOut};
use crate::command::{Configuration, ConfigurationRules};
use crate::incarnation::Incarnation;
use crate::leadership::{Hearing, LeaderLease, Strangers, Told, VoteGuard};
use crate::lease::desk::LeaseDesk;
use crate::lease::grantor::Now;
use crate::lease::offer::{Claim, Offer};
use crate::lease::slots::Slots;
use crate::partition::Partition;
use crate::partition::view::ReadView;

/// Whom a node believes to lead a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leader {
    pub partition: PartitionId,
    pub term: u64,
    /// 0: nobody.
    pub node: u64,
}

/// State of a partition replica that is read from any thread.
pub struct ReplicaState {
    pub id: PartitionId,
    pub node: u64,
    /// The newest format of the partition that this server can read.
    pub format_max: u32,
    pub env: Env,
    pub published: Published,
    pub view: ArcSwap<ReadView>,
    /// The term in which this node answers reads (its own first entry is published); 0: none.
    pub serving_term: AtomicU64,
    pub lease: LeaderLease,
    /// In effect; before there is one, what the configuration file says.
    pub configuration: ArcSwap<Configuration>,
    pub guard: Arc<VoteGuard>,
    /// Which life of this server its memory is of.
    pub incarnation: Arc<Incarnation>,
    /// Members that say that they are others than the membership names.
    pub strangers: Strangers,
    /// The term whose leader has named this node as its successor; 0: none has.
    pub heir_of: AtomicU64,
    /// Wakes the elections when it is named.
    pub named_heir: Notify,
    pub desk: LeaseDesk,
    /// Of the term that this node leads or has led last.
    pub slots: ArcSwap<Slots>,
    /// Wakes parked pulls of all partitions of this server.
    pub news: Arc<Notify>,
    /// Whom this node believes to lead: (term, node); node 0: nobody.
    leader: Mutex<(u64, u64)>,
    /// Rises with each change of the manifest that this replica applied.
    pub manifest_version: watch::Sender<ManifestVersion>,
    /// Those that are held, for who waits for one. (What must not be deleted is asked of the view.)
    pub cuts: watch::Sender<Arc<[Arc<Cut>]>>,
    /// SSTables that this leader has asked for and that are not yet in the manifest: not orphans. Forgotten when they are named or given
    /// up, and when a later term is served ([`Self::serve`]).
    pub pending_ssts: Mutex<Vec<SstId>>,
    /// Copies of inputs that a compaction of this leader needs where they are: not surplus.
    pub gathered_ssts: Mutex<Vec<(NodeId, SstId)>>,
    /// The bulk load that this leader has begun, if there is one.
    pub load: LoadPlace,
    /// sstable servers that new tables are not to be on if there are enough others.
    pub avoided_ssts: Mutex<BTreeSet<NodeId>>,
    /// sstable servers that could not do what this replica asked of them, and until when others are asked first, on the grantor's clock.
    pub failing_ssts: Mutex<BTreeMap<NodeId, u64>>,
    pub catch_up: CatchUp,
    pub snapshots_out: SnapshotsOut,
    /// Why the partition is not founded, if this server knows.
    pub unfounded: Mutex<Option<String>>,
    /// Numbers for /status, refreshed by the worker.
    pub numbers: Mutex<Numbers>,
    /// An acknowledgement is on its way to the worker.
    pub ack_signalled: AtomicBool,
    /// Keys and values that wait for the sequencer, in bytes.
    pub queued_bytes: Arc<AtomicUsize>,
    /// When a follower last refused what this leader sent because it has no space (holder's clock); 0: none has.
    pub full_follower_ns: AtomicU64,
    /// Heartbeats that Raft is told of.
    pub hearing: Mutex<Hearing<AppendEntriesRequest<TypeConfig>>>,
    pub told: Told,
    /// Raft has refused a heartbeat: it has stopped.
    pub raft_refuses: AtomicBool,
    /// Smoothed lower bound of the time from proposal to commit, in nanoseconds (for leases of the `timed` mode).
    pub log_write_ns: AtomicU64,
}

impl ReplicaState {
    /// Of what recovery found. `founding`: the configuration of a partition that has none yet. `bf_log_serials`: that a ring keeps.
    pub fn new(
        env: &Env,
        node: u64,
        partition: &Partition,
        founding: &Configuration,
        incarnation: &Arc<Incarnation>,
        news: &Arc<Notify>,
        bf_log_serials: u64,
    ) -> Self {
        // Of everything that may be in effect somewhere the longest: this node may have promised as much before it stopped.
        let known = partition.configurations().map(Configuration::abstention_ns).max();
        let in_effect = partition.configuration().map(|(c, _)| c);
        let abstention_ns =
            known.unwrap_or(0).max(if in_effect.is_none() { founding.abstention_ns() } else { 0 });
        Self {
            id: partition.id,
            node,
            format_max: partition.format_max,
            env: env.clone(),
            published: Published::default(),
            view: ArcSwap::from_pointee(ReadView::empty(partition.versions().clone())),
            serving_term: AtomicU64::new(0),
            lease: LeaderLease::default(),
            configuration: ArcSwap::from_pointee(in_effect.unwrap_or(founding).clone()),
            guard: Arc::new(VoteGuard::new(abstention_ns, env.clock.grantor_ns())),
            incarnation: incarnation.clone(),
            strangers: Strangers::default(),
            heir_of: AtomicU64::new(0),
            full_follower_ns: AtomicU64::new(0),
            named_heir: Notify::new(),
            desk: LeaseDesk::of(bf_log_serials),
            slots: ArcSwap::from_pointee(Slots::new(1, 0)),
            news: news.clone(),
            leader: Mutex::default(),
            manifest_version: watch::channel(ManifestVersion(0)).0,
            cuts: watch::channel(Arc::default()).0,
            pending_ssts: Mutex::default(),
            gathered_ssts: Mutex::default(),
            load: LoadPlace::default(),
            avoided_ssts: Mutex::default(),
            failing_ssts: Mutex::default(),
            catch_up: CatchUp::default(),
            snapshots_out: SnapshotsOut::default(),
            unfounded: Mutex::default(),
            numbers: Mutex::default(),
            ack_signalled: AtomicBool::new(false),
            queued_bytes: Arc::default(),
            hearing: Mutex::default(),
            told: Told::default(),
            raft_refuses: AtomicBool::new(false),
            log_write_ns: AtomicU64::new(0),
        }
    }

    /// The grantor's clocks now. The wall clock is read first: a lease of the same length must not end later by it than by the other,
    /// however long the thread is away between the two.
    pub fn now(&self) -> Now {
        let clock = &self.env.clock;
        let wall = clock.wall();
        Now { mono_ns: clock.grantor_ns(), wall }
    }

    pub fn leader(&self) -> Leader {
        let (term, node) = *self.leader.lock();
        Leader { partition: self.id, term, node }
    }

    /// `node` 0: nobody leads, as far as this node knows.
    pub fn set_leader(&self, term: u64, node: u64) {
        *self.leader.lock() = (term, node);
    }

    /// This node's first entry of `term` is published. Everything before it is committed, and the view has it: what was asked for in an
    /// earlier term is named by the manifest or by a cut, or no command that names it can come into effect any more (the log has none
    /// that is not committed, and results of jobs of other terms are given up). So it is pending no more, whatever became of its command.
    pub fn serve(&self, term: u64) {
        self.pending_ssts.lock().retain(|id| id.epoch.term >= term);
        self.serving_term.store(term, Ordering::Release);
        self.catch_up.serves();
    }

    /// The term that this node serves, if its leader lease still holds. To be asked *after* the state was read.
    pub fn serving(&self) -> Option<u64> {
        let term = self.serving_term.load(Ordering::Acquire);
        let leased = || self.lease.is_valid(term, self.env.clock.holder_ns());
        (term != 0 && (mutant::active(Mutant::ReadWithoutLeaderLease) || leased())).then_some(term)
    }

    /// The newest tick that this node has published as the leader of `term`, or before; none if it does not serve that term. (What a
    /// follower takes for published its leader may still hold back, for leases that the follower does not know of.)
    pub fn published_tick_in(&self, term: u64) -> Tick {
        // First the tick: it was published at the latest in the term that is asked about then.
        let tick = self.published.tick();
        if term != 0 && self.serving_term.load(Ordering::Acquire) == term { tick } else { Tick::default() }
    }

    /// A lower bound of the time that the next group will need for its log write (precise data access, section 4.4): choosing it
    /// too small costs nothing but lease length.
    pub fn log_write_lower_bound_ns(&self) -> u64 {
        self.log_write_ns.load(Ordering::Relaxed) / 2
    }

    /// What can be granted now. `group_interval_ns`: how often this leader forms groups (for leases of the `timed` mode).
    pub async fn offer(&self, group_interval_ns: u64) -> Offer {
        let claim = || {
            let configuration = self.configuration.load();
            let term = self.desk.epoch()?.term;
            let left_ns = self.lease.left_ns(term, self.env.clock.holder_ns());
            let wanted_ns = match configuration.mode {
                LeaseMode::Ack => configuration.lease_ns(),
                LeaseMode::Timed => group_interval_ns + self.log_write_lower_bound_ns(),
            };
            Some(Claim { term, left_ns, drift_ppm: configuration.drift_ppm, wanted_ns })
        };
        Offer::of(|| self.now(), claim, self.env.pause_point(PausePoint::LeaseTimed)).await
    }

    /// A group took so long from proposal to commit.
    pub fn observe_log_write(&self, ns: u64) {
        let before = self.log_write_ns.load(Ordering::Relaxed);
        let next = if before == 0 { ns } else { (before * 7 + ns) / 8 };
        self.log_write_ns.store(next, Ordering::Relaxed);
    }

    pub fn manifest(&self) -> Arc<Manifest> {
        self.view.load().versions.newest.clone()
    }

    /// The same, with what led to it.
    pub fn manifest_versions(&self) -> Versions {
        self.view.load().versions.clone()
    }
}

#[cfg(test)]
impl ReplicaState {
    /// Of an empty partition that nobody works on; it has promised nothing.
    pub fn for_tests(env: &Env) -> Arc<Self> {
        use crate::lease::ring::SERIALS_MAX;
        let partition = Partition::new(PartitionId(0));
        let founding = Configuration::founding(&Default::default(), 1 << 20);
        let incarnation = Incarnation::for_tests(env, 1);
        let state = Self::new(env, 1, &partition, &founding, &incarnation, &Arc::default(), SERIALS_MAX);
        Arc::new(Self { guard: Arc::new(VoteGuard::new(0, 0)), ..state })
    }

    /// One that serves `term`, under a lease of its own.
    pub fn serving_for_tests(term: u64) -> Arc<Self> {
        let state = Self::for_tests(&Env::real());
        state.set_leader(term, state.node);
        state.lease.begin(term, state.node, vec![vec![state.node]]);
        let (lease_ns, abstention_ns) = (60_000_000_000, 60_000_000_000);
        state.lease.set_terms(crate::leadership::Terms { lease_ns, abstention_ns, configured_at: 0 });
        state.lease.renew_if_alone(state.env.clock.holder_ns());
        state.serving_term.store(term, Ordering::Release);
        state
    }
}

#[cfg(test)]
mod tests {
    use sextant_common::ids::Epoch;

    use super::*;
    use crate::partition::testing::sst;

    #[test]
    fn tables_of_earlier_terms_are_pending_no_more_when_a_later_one_is_served() {
        let state = ReplicaState::for_tests(&Env::real());
        let of = |term, counter| SstId { epoch: Epoch { term, incarnation: 1 }, ..sst(counter).id };
        let (lost, newest) = (of(3, 1), of(5, 2));
        state.pending_ssts.lock().extend([lost, newest]);
        state.serve(3);
        assert_eq!(*state.pending_ssts.lock(), [lost, newest], "the log may name them yet");
        state.serve(5);
        assert_eq!(*state.pending_ssts.lock(), [newest]);
        assert_eq!(state.serving_term.load(Ordering::Acquire), 5);
    }
}
