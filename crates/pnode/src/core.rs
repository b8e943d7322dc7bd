//! What everything in a p-node shares: who it is, the servers, the views, and how a leader is asked.
//!
//! Owns the connections, and the two facts that are switched: whether requests travel together, and whether the p-node stops. Does
//! not own any operation, nor anything that runs in the background: those are of the parts above.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use sextant_common::ids::{NodeId, PartitionId};
use sextant_common::{Error, ErrorKind, Result};
use sextant_environment::Env;
use sextant_environment::env::Party;
use sextant_environment::slow_log::{self, Tier};
use sextant_rules::probe::ProbeEvent;

use crate::config::LibraryConfig;
use crate::lease::Drift;
use crate::metrics::PNodeMetrics;
use crate::upstream::{
    Backoff, Deadline, Distances, Health, Leaders, MemtablePeer, MemtablePeers, News, Refusals, SstPeer,
    SstPeers,
};
use crate::view::Views;

/// How much longer than its deadline a write without a deadline of its own is waited for, if it was sent in time: its leader
/// takes it before the deadline, or refuses it; but then there are disks to be waited for.
const ANSWER_GRACE: Duration = Duration::from_secs(5);
/// How long to wait before looking whether the leader has moved on. Nearly every request is answered sooner, and the watch
/// costs something.
pub(crate) const PATIENCE: Duration = Duration::from_millis(30);

/// A write's two deadlines: when it is to be taken by the leader, or else certainly never; and when the answer is to be here.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WriteDeadlines {
    pub taken: Deadline,
    pub answered: Deadline,
}

/// How a request to a leader ended without an answer.
#[derive(Debug)]
pub(crate) enum Unanswered {
    /// It did not leave.
    NotSent(Error),
    /// It may have arrived.
    Lost(Error),
}

impl Unanswered {
    pub fn into_error(self) -> Error {
        match self {
            Unanswered::NotSent(e) | Unanswered::Lost(e) => e,
        }
    }
}

pub(crate) struct Core {
    pub env: Env,
    pub config: LibraryConfig,
    /// Random per process: names this p-node to leaders.
    pub holder: Bytes,
    pub drift: Drift,
    pub views: Arc<Views>,
    pub leaders: Arc<Leaders>,
    pub memtables: MemtablePeers,
    pub sstables: SstPeers,
    pub health: Health,
    pub distances: Distances,
    pub refusals: Refusals,
    pub metrics: Arc<PNodeMetrics>,
    /// The runtime that the p-node was started in.
    pub runtime: tokio::runtime::Handle,
    coalesce: AtomicBool,
    stopping: AtomicBool,
}

impl Core {
    /// Must be called within a tokio runtime.
    pub fn new(env: Env, config: LibraryConfig) -> Self {
        let metrics = Arc::new(PNodeMetrics::default());
        let partitions = config.cluster.partitions;
        let me = Party::pnode(config.id);
        let holder = env.rng.id16();
        let views = Arc::new(Views::new(partitions).told_to(&env, holder));
        let leaders = Arc::new(Leaders::new(partitions));
        let memtables = config.cluster.memtable.iter().map(|server| {
            let news = News { node: server.id, views: views.clone(), leaders: leaders.clone() };
            (server.id, MemtablePeer::new(&env, &server.addr, &config.cluster, me, news, &metrics))
        });
        let sstables = config.cluster.sstable.iter();
        Self {
            holder: Bytes::copy_from_slice(&holder),
            drift: Drift::of_each_clock(config.cluster.lease.drift_ppm),
            memtables: memtables.collect(),
            sstables: sstables
                .map(|s| (s.id, SstPeer::new(&env, s, &config.cluster, me, &metrics)))
                .collect(),
            health: Health::default(),
            distances: Distances::of(config.cluster.sstable.iter().map(|s| s.id)),
            refusals: Refusals::default(),
            runtime: tokio::runtime::Handle::current(),
            coalesce: AtomicBool::new(config.coalesce),
            stopping: AtomicBool::new(false),
            views,
            leaders,
            metrics,
            env,
            config,
        }
    }

    pub fn deadline(&self, asked: Option<Duration>) -> Deadline {
        Deadline::after(&*self.env.clock, asked.unwrap_or(self.config.default_deadline))
    }

    /// Of the time that a caller states, a quarter is left for the answer of a write that was taken at the last moment.
    pub fn write_deadlines(&self, asked: Option<Duration>) -> WriteDeadlines {
        let clock = &*self.env.clock;
        let default = self.config.default_deadline;
        let (taken, answered) =
            asked.map_or((default, default + ANSWER_GRACE), |asked| (asked - asked / 4, asked));
        WriteDeadlines { taken: Deadline::after(clock, taken), answered: Deadline::after(clock, answered) }
    }

    pub fn coalesces(&self) -> bool {
        self.coalesce.load(Ordering::Relaxed)
    }

    pub fn set_coalesce(&self, on: bool) {
        self.coalesce.store(on, Ordering::Relaxed);
    }

    /// A change of a manifest led to something else than the leader has. It is not used.
    pub fn manifest_differs(&self, partition: PartitionId, leader: NodeId) {
        let version = self.views.peek(partition).manifest.version;
        self.metrics.manifest_mismatches.inc();
        tracing::error!(
            %partition, %version, %leader,
            "a change of the manifest leads to something else than its leader has: the whole is fetched"
        );
        self.env.tell(|| ProbeEvent::ManifestDiffers { partition, version });
    }

    pub fn check_running(&self) -> Result<()> {
        if self.stopping.load(Ordering::Relaxed) {
            return Err(Error::new(ErrorKind::Stopping, "the p-node is stopping"));
        }
        Ok(())
    }

    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
        self.views.drain();
    }

    pub fn memtable(&self, node: NodeId) -> Result<&MemtablePeer> {
        let peer = self.memtables.get(&node);
        peer.ok_or_else(|| Error::unavailable(format!("memtable server {node} is not in the configuration")))
    }

    pub fn sstable(&self, node: NodeId) -> Result<&SstPeer> {
        let peer = self.sstables.get(&node);
        peer.ok_or_else(|| Error::unavailable(format!("sstable server {node} is not in the configuration")))
    }

    /// Makes a request to the leader of `partition` and waits for the answer: until the deadline, for `at_most`, or until
    /// another leader is known. Whatever goes wrong, the leader becomes suspect.
    pub async fn ask_leader<'e, T, F>(
        &'e self,
        partition: PartitionId,
        deadline: Deadline,
        at_most: Duration,
        request: impl FnOnce(&'e MemtablePeer) -> F,
    ) -> Result<(NodeId, T), Unanswered>
    where
        F: Future<Output = Result<T>> + 'e,
    {
        let answer = self.answer_of_leader(partition, deadline, at_most, request);
        slow_log::asking(Tier::Memtables, &*self.env.clock, answer).await
    }

    async fn answer_of_leader<'e, T, F>(
        &'e self,
        partition: PartitionId,
        deadline: Deadline,
        at_most: Duration,
        request: impl FnOnce(&'e MemtablePeer) -> F,
    ) -> Result<(NodeId, T), Unanswered>
    where
        F: Future<Output = Result<T>> + 'e,
    {
        let clock = &*self.env.clock;
        let Some(node) = self.leaders.get(partition).node else {
            return Err(Unanswered::NotSent(Error::unavailable(format!(
                "no leader of partition {partition} is known"
            ))));
        };
        let peer = self.memtable(node).map_err(|e| {
            // Hinted at, and not in this p-node's configuration: whoever leads later must be looked for.
            self.leaders.suspect(partition, node);
            Unanswered::NotSent(e)
        })?;
        if deadline.is_over(clock) {
            return Err(Unanswered::NotSent(Error::unavailable("the deadline is over")));
        }
        let mut answer = pin!(request(peer));
        let first = tokio::time::timeout(deadline.left(clock).min(PATIENCE), &mut answer).await;
        let result = match first {
            Ok(result) => result,
            Err(_) => {
                let mut leader = self.leaders.watch(partition);
                let moved = leader.wait_for(|l| l.node != Some(node));
                let left = deadline.left(clock).min(at_most);
                tokio::select! {
                    result = &mut answer => result,
                    _ = moved => return Err(Unanswered::Lost(Error::unavailable("the leader has changed"))),
                    () = tokio::time::sleep(left) => Err(Error::unavailable("the leader did not answer in time")),
                }
            }
        };
        result.map(|answer| (node, answer)).map_err(|e| Unanswered::Lost(self.unanswered(partition, node, e)))
    }

    /// Whoever was taken for the leader has not answered: it is suspect. The error as it is told.
    pub fn unanswered(&self, partition: PartitionId, node: NodeId, e: Error) -> Error {
        // Too much to do on the way to it says nothing about the leader.
        if e.kind == ErrorKind::Overloaded {
            return e;
        }
        self.leaders.suspect(partition, node);
        Error::new(e.kind, format!("partition {partition}, memtable server {node}: {}", e.message))
    }

    /// Waits for a retry: until a leader other than `before` is known, or for the backoff's step. False: the deadline is over.
    pub async fn wait_to_retry(
        &self,
        partition: PartitionId,
        before: Option<NodeId>,
        backoff: &mut Backoff,
        deadline: Deadline,
    ) -> bool {
        let clock = &*self.env.clock;
        let step = backoff.step(&*self.env.rng).min(deadline.left(clock));
        let mut leader = self.leaders.watch(partition);
        // A leader that was found meanwhile is asked at once.
        let found = leader.wait_for(|l| l.is_certain() && l.node != before);
        let _ = slow_log::asking(Tier::Pause, clock, tokio::time::timeout(step, found)).await;
        !deadline.is_over(clock)
    }
}
