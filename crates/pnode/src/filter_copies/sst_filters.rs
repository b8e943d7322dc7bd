//! Filters of SSTables, fetched ahead in the background. Until one is here, its table matches its whole range.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::StreamExt;
use sextant_common::filter::SealedFilter;
use sextant_common::ids::{NodeId, PartitionId, SstId};
use sextant_common::{Error, Result};
use sextant_environment::shutdown::Shutdown;

use crate::core::Core;
use crate::view::Sst;

/// Filters fetched at once: enough to fill a connection, few enough not to starve reads.
const FETCHES_MAX: usize = 4;
/// How long the next chunk may take.
const CHUNK_MAX: Duration = Duration::from_secs(2);
/// Largest filter that is accepted: a table of some hundred million keys.
const BYTES_MAX: usize = 256 * 1024 * 1024;
/// How soon failed fetches are tried again, on the next replica: longer the more attempts there were.
const RETRY_PAUSE: Duration = Duration::from_millis(100);
const RETRY_PAUSES_MAX: u32 = 20;

/// Entries that lack the filter of one table.
type Lacking = Vec<(PartitionId, Weak<Sst>)>;

/// Fetches whatever filter is missing in any view, until shutdown.
pub(super) async fn run_sst_filter_fetcher(core: Arc<Core>, mut shutdown: Shutdown) {
    tokio::select! {
        () = shutdown.wait() => {}
        () = fetch_for_ever(&core) => {}
    }
}

async fn fetch_for_ever(core: &Arc<Core>) {
    // By table: how often it was tried.
    let mut wanted: BTreeMap<SstId, (Lacking, u32)> = BTreeMap::new();
    loop {
        for (partition, sst) in core.views.take_unfiltered() {
            let Some(id) = sst.upgrade().map(|sst| sst.meta.id) else { continue };
            let ssts = &mut wanted.entry(id).or_default().0;
            if !ssts.iter().any(|(_, known)| known.ptr_eq(&sst)) {
                ssts.push((partition, sst));
            }
        }
        let mut work: Vec<(Arc<Sst>, u32)> = Vec::new();
        wanted.retain(|_, (ssts, attempts)| {
            ssts.retain(|(partition, sst)| {
                sst.upgrade().is_some_and(|sst| is_missing(core, *partition, &sst))
            });
            let Some(one) = ssts.first().and_then(|(_, sst)| sst.upgrade()) else { return false };
            *attempts += 1;
            work.push((one, *attempts));
            true
        });
        if work.is_empty() {
            core.views.filters_wanted.notified().await;
            continue;
        }
        let failed_attempts: Vec<u32> = futures::stream::iter(work)
            .map(|(sst, attempt)| async move {
                match fetch(core, &sst, attempt).await {
                    Ok(()) => 0,
                    Err(e) => {
                        tracing::debug!(sst = %sst.meta.id, attempt, "filter: {e}");
                        attempt
                    }
                }
            })
            .buffer_unordered(FETCHES_MAX)
            .collect()
            .await;
        if let Some(fewest) = failed_attempts.into_iter().filter(|attempt| *attempt > 0).min() {
            tokio::time::sleep(RETRY_PAUSE * fewest.min(RETRY_PAUSES_MAX)).await;
        }
    }
}

/// Whether a table has no filter yet. One that only a record of a flush names needs none: it is on its way out.
fn is_missing(core: &Core, partition: PartitionId, sst: &Arc<Sst>) -> bool {
    let is_named = || {
        let view = core.views.peek(partition);
        view.manifest.table(sst.meta.table).is_some_and(|table| table.layers().has(sst))
    };
    !sst.has_filter() && is_named()
}

async fn fetch(core: &Core, sst: &Sst, attempt: u32) -> Result<()> {
    let now_ns = core.env.clock.holder_ns();
    let mut replicas: Vec<NodeId> =
        sst.meta.replicas.iter().copied().filter(|n| core.sstables.contains_key(n)).collect();
    let start = sst.meta.id.counter.wrapping_add(attempt) as usize % replicas.len().max(1);
    replicas.rotate_left(start);
    // A stable sort: healthy ones first, each group still in the rotated order.
    replicas.sort_by_key(|n| core.health.is_avoided(*n, sst.meta.id, now_ns));
    let node = *replicas.first().ok_or_else(|| Error::unavailable("no replica is in the configuration"))?;
    let fetched = fetch_from(core, sst, node).await;
    if fetched.is_err() {
        core.health.replica_failed(node, sst.meta.id, now_ns);
    }
    fetched
}

async fn fetch_from(core: &Core, sst: &Sst, node: NodeId) -> Result<()> {
    let bytes = core.sstable(node)?.filter(sst.wire_id.clone(), BYTES_MAX, CHUNK_MAX).await?;
    core.metrics.sst_filter_fetches.inc();
    core.metrics.sst_filter_bytes.inc_by(bytes.len() as u64);
    let decoded = core.env.blocking(move || SealedFilter::from_bytes(&bytes)).await;
    sst.set_filter(decoded.ok_or_else(|| Error::unavailable("the p-node is stopping"))??);
    Ok(())
}
