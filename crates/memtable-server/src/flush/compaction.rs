//! Major compaction: one server does it, the others copy the results.

use std::time::Duration;

use sextant_common::error::{Error, ErrorKind, Result};
use sextant_common::ids::{NodeId, SstId};
use sextant_common::limits::COMPACTION_OUTPUTS_MAX;
use sextant_common::manifest::{HASH_WEIGHT_BYTES, SstMeta};
use sextant_common::sstable::{CompactionOrder, CopyOrder};

use super::enough::enough;
use super::{Background, CompactionJob};
use crate::replica::ReplicaState;
use crate::upstream::SstServer;

/// Ids beyond those that the inputs' weights ask for: what outputs weigh is known when they are written.
const IDS_TO_SPARE: usize = 2;
/// Outputs that are compressed less than the inputs were may have so many times their bytes.
const EXPANDS: u64 = 4;
/// When enough replicas are durable, how much longer the others may take at least before they are left to repair: as long again as it
/// took so far, with the writing, since outputs may be large and repair copies what it finds begun to its end.
const STRAGGLERS: Duration = if cfg!(test) { Duration::from_millis(100) } else { Duration::from_secs(10) };

/// The ids that one worker may use. What it has not named when it ended is given up: it may have written some of it, and may go on
/// where nobody hears of it any more. So no other worker uses them.
struct Ids<'b> {
    background: &'b Background,
    ids: Vec<SstId>,
}

impl<'b> Ids<'b> {
    fn new(background: &'b Background, job: &CompactionJob) -> Self {
        let ids = (0..outputs_max(job)).map(|_| background.new_id(job.plan, job.epoch));
        Self { background, ids: ids.collect() }
    }

    /// The worker had no room for it: it has written nothing, and will not.
    fn were_refused(mut self) {
        self.background.unused(&std::mem::take(&mut self.ids));
    }

    /// The outputs are what came of it: no server was told to write more.
    fn become_outputs(mut self, outputs: &[SstMeta]) {
        let mut unused = std::mem::take(&mut self.ids);
        unused.retain(|id| outputs.iter().all(|meta| meta.id != *id));
        self.background.unused(&unused);
    }
}

impl Drop for Ids<'_> {
    fn drop(&mut self) {
        self.background.give_up(std::mem::take(&mut self.ids));
    }
}

/// The outputs, in the order of their ranges.
pub(super) async fn run(background: &Background, job: &CompactionJob) -> Result<Vec<SstMeta>> {
    let mut first = Some(Ids::new(background, job));
    let id = first.as_ref().and_then(|ids| ids.ids.first().copied());
    let Some(id) = id else { return Err(Error::internal("a compaction without an output")) };
    // All of them on the servers of the first: the worker has them all.
    let targets = background.choose(id);
    let clock = &background.shared.env.clock;
    let mut errors = Vec::new();
    for worker in &targets {
        let ids = first.take().unwrap_or_else(|| Ids::new(background, job));
        let started_ns = clock.grantor_ns();
        let so_far = || Duration::from_nanos(clock.grantor_ns().saturating_sub(started_ns));
        let outputs = match write_on(background, job, worker, &ids.ids).await {
            Ok(outputs) => outputs,
            Err(e) => {
                match e.kind {
                    ErrorKind::Overloaded => ids.were_refused(),
                    // It may hang: next time it is asked after others.
                    ErrorKind::Unavailable | ErrorKind::Disk => background.failed(worker.id),
                    _ => {}
                }
                errors.push(of_server(worker, "", &e));
                continue;
            }
        };
        match spread(background, job, (worker, &targets), &ids.ids, outputs, so_far).await {
            Ok(outputs) => {
                ids.become_outputs(&outputs);
                return Ok(outputs);
            }
            // All of it was written, and is thrown away: that is a failure, also if others were only busy.
            Err(of_outputs) => {
                let failed = |e: Error| Error::new(ErrorKind::Unavailable, e.message);
                errors.extend(of_outputs.into_iter().map(failed));
            }
        }
        break;
    }
    Err(too_few(&errors))
}

fn of_server(server: &SstServer, what: &str, e: &Error) -> Error {
    Error::new(e.kind, format!("server {}: {what}{e}", server.id))
}

/// Servers that all have something better to do are no failure: whoever asked is told.
fn too_few(errors: &[Error]) -> Error {
    let are_busy = !errors.is_empty() && errors.iter().all(|e| e.kind == ErrorKind::Overloaded);
    let kind = if are_busy { ErrorKind::Overloaded } else { ErrorKind::Unavailable };
    let errors: Vec<&str> = errors.iter().map(|e| e.message.as_ref()).collect();
    Error::new(kind, format!("compaction: too few sstable servers ({})", errors.join("; ")))
}

/// How many outputs there may be: some end for their bytes, others for their hashes.
fn outputs_max(job: &CompactionJob) -> usize {
    let bytes: u64 = job.inputs.iter().map(|input| input.file_bytes).sum();
    let records: u64 = job.inputs.iter().map(|input| input.records).sum();
    let of_hashes = job.options.hashes_max(records).saturating_mul(HASH_WEIGHT_BYTES);
    let weight = bytes.saturating_mul(EXPANDS).saturating_add(of_hashes);
    let by_size = match weight.checked_div(job.output_bytes) {
        Some(outputs) => usize::try_from(outputs).unwrap_or(usize::MAX).saturating_add(IDS_TO_SPARE),
        None => 1,
    };
    (job.cuts.len().saturating_add(by_size)).min(COMPACTION_OUTPUTS_MAX)
}

/// One server does it.
async fn write_on(
    background: &Background,
    job: &CompactionJob,
    worker: &SstServer,
    ids: &[SstId],
) -> Result<Vec<SstMeta>> {
    let missing = missing(job, worker);
    // (Also if a copy fails: those before it go when nobody needs them.)
    let copies = missing.iter().map(|input| (worker.id, input.id)).collect();
    let _gathered = Gathered::new(&background.shared, copies);
    let order = CompactionOrder {
        gather: missing.into_iter().map(|input| copy_order(background, job, input)).collect(),
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
    worker.compact(&order).await
}

/// What the worker has written is checked, and copied to the others.
async fn spread(
    background: &Background,
    job: &CompactionJob,
    (worker, targets): (&SstServer, &[&SstServer]),
    ids: &[SstId],
    outputs: Vec<SstMeta>,
    so_far: impl Fn() -> Duration,
) -> Result<Vec<SstMeta>, Vec<Error>> {
    if outputs.is_empty() {
        return Ok(outputs);
    }
    // (A server of an older version knows of no ranges.)
    if !job.origin.range.is_made_of(outputs.iter().map(|meta| &meta.range))
        || !outputs.iter().all(|meta| ids.contains(&meta.id))
    {
        let e = Error::internal("its outputs are not what was asked for");
        return Err(vec![of_server(worker, "", &e)]);
    }
    let required = background.tuning.sst_replicas_required.min(targets.len());
    let others = targets.iter().filter(|server| server.id != worker.id);
    let copies = others.map(|to| (to.id, copy(background, job.term, to, &outputs, worker)));
    let done = enough(copies, required.saturating_sub(1), || STRAGGLERS.max(so_far())).await;
    if done.by.len() + 1 < required {
        return Err(done.errors.into_iter().map(|(_, e)| e).collect());
    }
    // (Otherwise the worker may be at fault.)
    done.failed().for_each(|server| background.failed(server));
    let entry = |meta: SstMeta| SstMeta {
        replicas: targets.iter().map(|s| s.id).collect(),
        // Where there was nothing between cuts its file answers, for whoever rebuilds a manifest; nobody has to look there.
        range: meta.range.between(&job.cuts, &meta.min_key, &meta.max_key),
        ..meta
    };
    Ok(outputs.into_iter().map(entry).collect())
}

async fn copy(
    background: &Background,
    term: u64,
    to: &SstServer,
    outputs: &[SstMeta],
    from: &SstServer,
) -> Result<()> {
    for meta in outputs {
        let copied = to.copy(meta, vec![from.addr.clone()], background.order(term)).await;
        copied.map_err(|e| of_server(to, "copy: ", &e))?;
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

#[cfg(test)]
mod tests;
