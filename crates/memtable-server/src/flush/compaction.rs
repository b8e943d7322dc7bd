//! Major compaction: one server does it, the others copy the result.

use sextant_common::error::{Error, Result};
use sextant_common::ids::{NodeId, SstId};
use sextant_common::manifest::SstMeta;
use sextant_common::sstable::CompactionOrder;

use super::{Background, CompactionJob};
use crate::replica::ReplicaState;
use crate::upstream::SstServer;

pub(super) async fn run(background: &Background, job: &CompactionJob) -> Result<Option<SstMeta>> {
    let id = background.new_id(job.plan, job.epoch);
    let targets = background.choose(id);
    let order = CompactionOrder {
        inputs: job.inputs.iter().map(|s| s.id).collect(),
        output: id,
        table: job.table,
        options: job.options.clone(),
        // If no older table is left out, nothing older can hold a key.
        drop_tombstones: job.drops_tombstones,
        expired_by: job.expired_by,
        origin: Some(job.origin.clone()),
    };
    let mut errors = Vec::new();
    for worker in &targets {
        let _gathered = match gather(background, job, worker).await {
            Ok(gathered) => gathered,
            Err(e) => {
                errors.push(format!("server {}: {e}", worker.id));
                continue;
            }
        };
        let meta = match worker.compact(&order).await {
            Ok(Some(meta)) => meta,
            Ok(None) => {
                background.give_up(id);
                return Ok(None);
            }
            Err(e) => {
                errors.push(format!("server {}: {e}", worker.id));
                continue;
            }
        };
        let required = background.tuning.sst_replicas_required.min(targets.len());
        let mut durable = 1;
        for other in targets.iter().filter(|s| s.id != worker.id) {
            match other.copy(&meta, vec![worker.addr.clone()], background.order(job.term)).await {
                Ok(()) => durable += 1,
                Err(e) => errors.push(format!("server {}: copy: {e}", other.id)),
            }
        }
        if durable >= required {
            return Ok(Some(SstMeta { replicas: targets.iter().map(|s| s.id).collect(), ..meta }));
        }
        break;
    }
    background.give_up(id);
    Err(Error::unavailable(format!("compaction: too few sstable servers ({})", errors.join("; "))))
}

/// A compaction needs all inputs on one server: those that are not to be there are copied first (and become orphans afterwards).
async fn gather<'b>(
    background: &'b Background,
    job: &CompactionJob,
    worker: &SstServer,
) -> Result<Gathered<'b>> {
    let missing = || job.inputs.iter().filter(|i| !i.replicas.contains(&worker.id));
    // (Also if a copy fails: those before it go when nobody needs them.)
    let gathered = Gathered::new(&background.shared, missing().map(|input| (worker.id, input.id)).collect());
    for input in missing() {
        let holders = input.replicas.iter().filter_map(|id| background.servers.get(*id));
        let sources = holders.map(|s| s.addr.clone()).collect();
        worker.copy(input, sources, background.order(job.term)).await?;
    }
    Ok(gathered)
}

/// Copies that a compaction needs where the manifest does not name them: they are not released until it has ended.
struct Gathered<'b> {
    shared: &'b ReplicaState,
    copies: Vec<(NodeId, SstId)>,
}

impl<'b> Gathered<'b> {
    fn new(shared: &'b ReplicaState, copies: Vec<(NodeId, SstId)>) -> Self {
        shared.gathered_ssts.lock().extend(&copies);
        Self { shared, copies }
    }
}

impl Drop for Gathered<'_> {
    fn drop(&mut self) {
        let mut all = self.shared.gathered_ssts.lock();
        for copy in &self.copies {
            if let Some(at) = all.iter().position(|other| other == copy) {
                all.swap_remove(at);
            }
        }
    }
}
