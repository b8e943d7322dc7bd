//! Major compaction: one server does it, the others copy the results.

use futures::future::join_all;
use sextant_common::error::{Error, Result};
use sextant_common::ids::{NodeId, SstId};
use sextant_common::limits::COMPACTION_OUTPUTS_MAX;
use sextant_common::manifest::SstMeta;
use sextant_common::sstable::{CompactionOrder, CopyOrder};

use super::{Background, CompactionJob};
use crate::replica::ReplicaState;
use crate::upstream::SstServer;

/// Ids beyond those that the inputs' bytes ask for: what outputs weigh is known when they are written.
const IDS_TO_SPARE: usize = 2;

/// The outputs, in the order of their ranges.
pub(super) async fn run(background: &Background, job: &CompactionJob) -> Result<Vec<SstMeta>> {
    let ids: Vec<SstId> = (0..outputs_max(job)).map(|_| background.new_id(job.plan, job.epoch)).collect();
    let written = write(background, job, &ids).await;
    let used: Vec<SstId> = written.iter().flatten().map(|meta| meta.id).collect();
    let (failed, unused) = (written.is_err(), ids.into_iter().filter(|id| !used.contains(id)).collect());
    if failed {
        background.give_up(unused)
    } else {
        background.unused(&unused)
    }
    written
}

/// How many outputs there may be.
fn outputs_max(job: &CompactionJob) -> usize {
    let bytes: u64 = job.inputs.iter().map(|input| input.file_bytes).sum();
    let by_size = match bytes.checked_div(job.output_bytes) {
        Some(outputs) => usize::try_from(outputs).unwrap_or(usize::MAX).saturating_add(IDS_TO_SPARE),
        None => 1,
    };
    (job.cuts.len().saturating_add(by_size)).min(COMPACTION_OUTPUTS_MAX)
}

async fn write(background: &Background, job: &CompactionJob, ids: &[SstId]) -> Result<Vec<SstMeta>> {
    let Some(first) = ids.first() else { return Err(Error::internal("a compaction without an output")) };
    // All of them on the servers of the first: the worker has them all.
    let targets = background.choose(*first);
    let order = |gather| CompactionOrder {
        gather,
        inputs: job.inputs.iter().map(|s| s.id).collect(),
        outputs: ids.to_vec(),
        cuts: job.cuts.clone(),
        output_bytes: job.output_bytes,
        table: job.table,
        options: job.options.clone(),
        // If no older table of the range is left out, nothing older can hold a key.
        drop_tombstones: job.drops_tombstones,
        expired_by: job.expired_by,
        origin: Some(job.origin.clone()),
    };
    let mut errors = Vec::new();
    for worker in &targets {
        let missing = missing(job, worker);
        // (Also if a copy fails: those before it go when nobody needs them.)
        let copies = missing.iter().map(|input| (worker.id, input.id)).collect();
        let _gathered = Gathered::new(&background.shared, copies);
        let gather = missing.into_iter().map(|input| copy_order(background, job, input)).collect();
        let outputs = match worker.compact(&order(gather)).await {
            Ok(outputs) => outputs,
            Err(e) => {
                errors.push(format!("server {}: {e}", worker.id));
                continue;
            }
        };
        if outputs.is_empty() {
            return Ok(outputs);
        }
        // (A server of an older version knows of no ranges.)
        if !job.origin.range.is_made_of(outputs.iter().map(|meta| &meta.range))
            || !outputs.iter().all(|meta| ids.contains(&meta.id))
        {
            errors.push(format!("server {}: its outputs are not what was asked for", worker.id));
            break;
        }
        let required = background.tuning.sst_replicas_required.min(targets.len());
        let others = targets.iter().filter(|s| s.id != worker.id);
        let copied = join_all(others.map(|other| copy(background, job.term, other, &outputs, worker))).await;
        let durable = 1 + copied.iter().filter(|copied| copied.is_ok()).count();
        errors.extend(copied.into_iter().filter_map(Result::err));
        if durable >= required {
            let entry = |meta: SstMeta| SstMeta {
                replicas: targets.iter().map(|s| s.id).collect(),
                // Where there was nothing between cuts its file answers, for whoever rebuilds a manifest; nobody has to look there.
                range: meta.range.between(&job.cuts, &meta.min_key, &meta.max_key),
                ..meta
            };
            return Ok(outputs.into_iter().map(entry).collect());
        }
        break;
    }
    Err(Error::unavailable(format!("compaction: too few sstable servers ({})", errors.join("; "))))
}

async fn copy(
    background: &Background,
    term: u64,
    to: &SstServer,
    outputs: &[SstMeta],
    from: &SstServer,
) -> Result<(), String> {
    for meta in outputs {
        let copied = to.copy(meta, vec![from.addr.clone()], background.order(term)).await;
        copied.map_err(|e| format!("server {}: copy: {e}", to.id))?;
    }
    Ok(())
}

/// A compaction needs all inputs on one server: those that are not to be there are copied first (and become orphans afterwards).
fn missing<'j>(job: &'j CompactionJob, worker: &SstServer) -> Vec<&'j SstMeta> {
    job.inputs.iter().filter(|input| !input.replicas.contains(&worker.id)).collect()
}

fn copy_order(background: &Background, job: &CompactionJob, input: &SstMeta) -> CopyOrder {
    let holders = input.replicas.iter().filter_map(|id| background.servers.get(*id));
    CopyOrder {
        id: input.id,
        checksum: input.checksum,
        file_bytes: input.file_bytes,
        sources: holders.map(|s| s.addr.clone()).collect(),
        order: Some(background.order(job.term)),
    }
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
