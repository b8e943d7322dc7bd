//! The engine: what all operations of a p-node share, and the library's face ([`PNode`]).
//!
//! Owns: construction, background tasks, shutdown, and single requests to leaders with their deadlines. Does not own the
//! operations: reads and scans are the router's, writes are `write`'s.

mod ask;
mod pnode;
mod table_admin;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use sextant_common::ids::NodeId;
use sextant_common::{Error, ErrorKind, Result};
use sextant_environment::Env;
use sextant_environment::env::Party;
use sextant_environment::room::Room;
use sextant_environment::shutdown::Shutdown;
use tokio::sync::Semaphore;

use crate::config::EngineConfig;
use crate::filter_copies::{WholeFetches, run_pull_loops, run_sst_filter_fetcher};
use crate::lease::Drift;
use crate::metrics::PNodeMetrics;
use crate::record_cache::RecordCache;
use crate::router::SCANS_BYTES_MAX;
use crate::upstream::{
    Deadline, Health, LargeReads, Leaders, MemtablePeer, MemtablePeers, News, SstPeer, SstPeers,
};
use crate::view::Views;
use crate::write::Sessions;

pub(crate) use ask::Unanswered;
pub use pnode::PNode;

/// How much longer than its deadline a write without a deadline of its own is waited for, if it was sent in time: its leader
/// takes it before the deadline, or refuses it; but then there are disks to be waited for.
const ANSWER_GRACE: Duration = Duration::from_secs(5);

/// A write's two deadlines: when it is to be taken by the leader, or else certainly never; and when the answer is to be here.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WriteDeadlines {
    pub taken: Deadline,
    pub answered: Deadline,
}

pub(crate) struct Engine {
    pub env: Env,
    pub config: EngineConfig,
    /// Random per process: names this p-node to leaders.
    pub holder: Bytes,
    pub drift: Drift,
    pub views: Arc<Views>,
    pub leaders: Arc<Leaders>,
    pub memtables: MemtablePeers,
    pub sstables: SstPeers,
    pub health: Health,
    pub large_reads: LargeReads,
    /// For pages of scans.
    pub scans: Room,
    pub cache: RecordCache,
    pub metrics: Arc<PNodeMetrics>,
    pub sessions: Sessions,
    pub whole_fetches: WholeFetches,
    /// One permit a partition: refreshes of its manifest take turns.
    pub refreshes: Vec<Semaphore>,
    /// The runtime that the engine was started in.
    pub runtime: tokio::runtime::Handle,
    coalesce: AtomicBool,
    stopping: AtomicBool,
}

impl Engine {
    /// Must be called within a tokio runtime.
    pub fn start(env: Env, config: EngineConfig, shutdown: Shutdown) -> Arc<Self> {
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
        let engine = Arc::new(Self {
            holder: Bytes::copy_from_slice(&holder),
            drift: Drift::of_each_clock(config.cluster.lease.drift_ppm),
            memtables: memtables.collect(),
            sstables: sstables
                .map(|s| (s.id, SstPeer::new(&env, s, &config.cluster, me, &metrics)))
                .collect(),
            health: Health::default(),
            large_reads: LargeReads::new(config.read_bytes_max),
            scans: Room::new(SCANS_BYTES_MAX),
            cache: RecordCache::new(config.cache_bytes, metrics.clone()),
            sessions: Sessions::new(partitions),
            whole_fetches: WholeFetches::default(),
            refreshes: (0..partitions).map(|_| Semaphore::new(1)).collect(),
            runtime: tokio::runtime::Handle::current(),
            coalesce: AtomicBool::new(config.coalesce),
            stopping: AtomicBool::new(false),
            views,
            leaders,
            metrics,
            env,
            config,
        });
        engine.env.dedicated("pnode-pulls", run_pull_loops(engine.clone(), shutdown.clone()));
        tokio::spawn(run_sst_filter_fetcher(engine.clone(), shutdown));
        engine
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
}
