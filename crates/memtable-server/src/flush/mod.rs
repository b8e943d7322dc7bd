//! Work in the background of a partition's leader: flushes, compactions, deletions. Each job runs as a task, talks to
//! sstable servers, and reports to the worker, which decides what becomes of the result.

mod compaction;
mod enough;
#[cfg(test)]
mod fakes;
mod load;
mod minor;
mod repair;

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use sextant_common::expiry::Tick;
use sextant_common::ids::{Epoch, LogPosition, NodeId, SstId, TableId};
use sextant_common::key_range::KeyRange;
use sextant_common::manifest::{Origin, SstMeta, TableOptions};
use sextant_common::sstable::OrderNumber;
use sextant_rules::probe::PausePoint;
use tokio::sync::mpsc;

use crate::config::Tuning;
use crate::memtable::Memtable;
use crate::metrics::Metrics;
use crate::replica::{Event, ReplicaState};
use crate::upstream::{SstServer, SstServers};

/// How long others are asked before an sstable server that could not do what it was asked.
const FAILING: Duration = Duration::from_secs(60);

pub use load::{Arriving, LOAD_BYTES_MAX, LoadPiece};
pub use repair::repair_loop;

/// Write one frozen memtable as an SSTable (minor compaction).
pub struct FlushJob {
    pub term: u64,
    pub epoch: Epoch,
    pub table: TableId,
    pub options: TableOptions,
    pub memtable: Arc<Memtable>,
    pub freeze: LogPosition,
    /// A published tick: what expires up to it is written as a tombstone.
    pub expired_by: Tick,
    pub origin: Origin,
}

/// Compact SSTables of a table that answer for one range, neighbours in age there (major compaction).
pub struct CompactionJob {
    pub term: u64,
    pub epoch: Epoch,
    pub table: TableId,
    pub options: TableOptions,
    /// Newest first.
    pub inputs: Vec<SstMeta>,
    pub plan: LogPosition,
    /// A published tick: what expires up to it is a tombstone.
    pub expired_by: Tick,
    /// Of all outputs together: its range is that of the inputs.
    pub origin: Origin,
    /// No older table of the range is left out.
    pub drops_tombstones: bool,
    /// Where outputs are cut, rising.
    pub cuts: Vec<Bytes>,
    /// And when one has about so many bytes; 0: not by size.
    pub output_bytes: u64,
}

/// What a compaction was made of.
#[derive(Clone, Debug)]
pub struct Inputs {
    /// Newest first.
    pub ids: Vec<SstId>,
    pub range: KeyRange,
    pub tombstones_dropped: bool,
}

/// Starts jobs for one partition. Cheap to clone.
#[derive(Clone)]
pub struct Background {
    pub runtime: tokio::runtime::Handle,
    pub shared: Arc<ReplicaState>,
    pub servers: Arc<SstServers>,
    pub events: mpsc::UnboundedSender<Event>,
    pub tuning: Tuning,
    /// Counts attempts: an SSTable id is never given twice.
    pub attempts: Arc<AtomicU32>,
    /// Counts orders to sstable servers, of all partitions of this process.
    pub orders: Arc<AtomicU64>,
    pub metrics: Arc<Metrics>,
}

impl Background {
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn(task);
    }

    /// The number of the next order of the leader of a term.
    pub fn order(&self, term: u64) -> OrderNumber {
        let lineage = self.shared.configuration.load().lineage;
        OrderNumber { lineage, term, number: self.orders.fetch_add(1, Ordering::Relaxed) }
    }

    /// A server could not do what it was asked: its disk may be full. Others are asked first, for a while.
    fn failed(&self, server: NodeId) {
        let until_ns = self.shared.env.clock.grantor_ns().saturating_add(FAILING.as_nanos() as u64);
        self.shared.failing_ssts.lock().insert(server, until_ns);
    }

    /// Those that could not do what they were asked, lately.
    fn failing(&self) -> BTreeSet<NodeId> {
        let now_ns = self.shared.env.clock.grantor_ns();
        let mut failing = self.shared.failing_ssts.lock();
        failing.retain(|_, until_ns| *until_ns > now_ns);
        failing.keys().copied().collect()
    }

    /// The servers of a new table.
    fn choose(&self, id: SstId) -> Vec<&SstServer> {
        let mut avoided = self.shared.avoided_ssts.lock().clone();
        avoided.extend(self.failing());
        self.servers.choose(id, self.tuning.sst_replicas, &avoided)
    }

    /// Drops what is large, elsewhere.
    pub fn let_go(&self, what: impl Send + 'static) {
        let _entered = self.runtime.enter();
        self.shared.env.workers.blocking(Box::new(move || drop(what)));
    }

    /// An id for a new attempt, registered as pending so that nobody takes its table for an orphan.
    fn new_id(&self, plan: LogPosition, epoch: Epoch) -> SstId {
        let counter = self.attempts.fetch_add(1, Ordering::Relaxed);
        let id = SstId { partition: self.shared.id, plan, epoch, counter };
        self.shared.pending_ssts.lock().push(id);
        id
    }

    /// The attempt came to nothing.
    pub fn give_up(&self, ids: Vec<SstId>) {
        if ids.is_empty() {
            return;
        }
        self.unused(&ids);
        self.delete(ids, Duration::ZERO);
    }

    /// Whether they are orphans is told by the manifest alone.
    pub fn forget_pending(&self, ids: &[SstId]) {
        self.unused(ids);
    }

    /// No server was told to write them.
    fn unused(&self, ids: &[SstId]) {
        self.shared.pending_ssts.lock().retain(|p| !ids.contains(p));
    }

    pub fn flush(&self, job: FlushJob) {
        let this = self.clone();
        self.spawn(async move {
            let (term, table, generation) = (job.term, job.table, job.memtable.generation);
            let result = minor::run(&this, &job).await;
            this.shared.env.pause_point(PausePoint::SstableSealed).await;
            let _ = this.events.send(Event::Flushed { term, table, generation, result });
        });
    }

    pub fn compact(&self, job: CompactionJob) {
        let this = self.clone();
        self.spawn(async move {
            let ids = job.inputs.iter().map(|s| s.id).collect();
            let range = job.origin.range.clone();
            let inputs = Inputs { ids, range, tombstones_dropped: job.drops_tombstones };
            let (term, table) = (job.term, job.table);
            let result = compaction::run(&this, &job).await;
            let _ = this.events.send(Event::Compacted { term, table, inputs, result });
        });
    }

    /// Deletes replaced tables after their grace: p-nodes with the older manifest may still read them.
    pub fn delete_later(&self, ids: Vec<SstId>) {
        self.delete(ids, Duration::from_millis(self.tuning.sst_delete_grace_ms));
    }

    /// Always by id, and in the name of this partition's lineage. What a server misses now is found as an orphan later.
    fn delete(&self, ids: Vec<SstId>, after: Duration) {
        let this = self.clone();
        let lineage = self.shared.configuration.load().lineage;
        self.spawn(async move {
            tokio::time::sleep(after).await;
            for server in this.servers.all() {
                if let Err(e) = server.delete(&ids, lineage).await {
                    tracing::debug!("sstable server {}: delete: {e}", server.id);
                }
            }
        });
    }
}
