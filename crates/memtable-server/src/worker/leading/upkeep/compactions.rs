//! When the SSTables of a table are merged, and which; and who waits for that.

use std::collections::{HashMap, HashSet};

use sextant_common::error::Result;
use sextant_common::ids::{Generation, TableId};
use sextant_common::manifest::{Generations, Manifest, SstMeta, TableManifest};
use tokio::sync::oneshot;

type Done = oneshot::Sender<Result<()>>;

#[derive(Default)]
pub(in crate::worker) struct Compactions {
    /// One a table, until its command is committed.
    pub under_way: HashSet<TableId>,
    waiters: HashMap<TableId, Vec<Done>>,
    retry_at_ns: HashMap<TableId, u64>,
}

impl Compactions {
    /// The tables that have as many SSTables as `trigger` says (0: never), and no compaction under way.
    pub fn due(&self, manifest: &Manifest, trigger: usize, now_ns: u64) -> Vec<TableId> {
        if trigger == 0 {
            return Vec::new();
        }
        let crowded = manifest.tables.iter().filter(|t| t.ssts.len() >= trigger.max(2)).map(|t| t.table);
        let is_due = |t: &TableId| {
            !self.under_way.contains(t) && self.retry_at_ns.get(t).is_none_or(|at| *at <= now_ns)
        };
        crowded.filter(is_due).collect()
    }

    /// Whoever asks during a compaction waits for that one.
    pub fn wait(&mut self, table: TableId, done: Option<Done>) {
        self.waiters.entry(table).or_default().extend(done);
    }

    /// The table's compaction is over.
    pub fn end(&mut self, table: TableId, result: &Result<()>) {
        self.under_way.remove(&table);
        for waiter in self.waiters.remove(&table).unwrap_or_default() {
            let _ = waiter.send(result.clone());
        }
    }

    pub fn retry_at(&mut self, table: TableId, at_ns: u64) {
        self.retry_at_ns.insert(table, at_ns);
    }

    /// Leadership ends.
    pub fn end_all(&mut self, result: &Result<()>) {
        for waiter in self.waiters.drain().flat_map(|(_, waiters)| waiters) {
            let _ = waiter.send(result.clone());
        }
    }
}

/// What is merged into one, newest first: all SSTables of the table. So the result reaches back to the table's beginning, and needs
/// no tombstones. Fewer must be the oldest ones (a partition refuses others), and [`generations`] rests on their being all.
pub(in crate::worker) fn inputs(entry: &TableManifest) -> Vec<SstMeta> {
    entry.ssts.clone()
}

/// What the result stands for: everything up to the newest input, which is the newest table.
pub(in crate::worker) fn generations(entry: &TableManifest) -> Generations {
    let newest = entry.ssts.first().map(|sst| sst.generations).unwrap_or_default();
    let last = if newest.are_known() { newest.last } else { entry.flushed_generation.max(Generation(1)) };
    Generations { first: Generation(1), last }
}
