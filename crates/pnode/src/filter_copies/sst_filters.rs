//! Filters of SSTables, fetched ahead in the background. Until one is here, its table matches its whole range.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use sextant_common::filter::SealedFilter;
use sextant_common::ids::{NodeId, SstId};
use sextant_common::{Error, Result};
use sextant_environment::env::error_of;
use sextant_environment::shutdown::Shutdown;
use sextant_proto::v1;

use crate::engine::Engine;
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

/// Fetches whatever filter is missing in any view, until shutdown.
pub(crate) async fn run_sst_filter_fetcher(engine: Arc<Engine>, mut shutdown: Shutdown) {
    tokio::select! {
        () = shutdown.wait() => {}
        () = fetch_for_ever(&engine) => {}
    }
}

async fn fetch_for_ever(engine: &Arc<Engine>) {
    let mut attempts: BTreeMap<SstId, u32> = BTreeMap::new();
    loop {
        let missing = missing(engine);
        attempts.retain(|id, _| missing.contains_key(id));
        if missing.is_empty() {
            engine.views.filters_wanted.notified().await;
            continue;
        }
        let work = missing.into_values().map(|sst| {
            let attempt = attempts.entry(sst.meta.id).or_default();
            *attempt += 1;
            (sst, *attempt)
        });
        let work: Vec<_> = work.collect();
        let failed_attempts: Vec<u32> = futures::stream::iter(work)
            .map(|(sst, attempt)| async move {
                match fetch(engine, &sst, attempt).await {
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

/// SSTables without a filter. One that only a record of a flush names is not fetched: it is on its way out.
fn missing(engine: &Engine) -> BTreeMap<SstId, Arc<Sst>> {
    let mut missing = BTreeMap::new();
    for partition in engine.views.partitions() {
        let view = engine.views.peek(partition);
        for sst in view.manifest.tables.iter().flat_map(|t| &t.ssts) {
            if !sst.has_filter() {
                missing.insert(sst.meta.id, Arc::clone(sst));
            }
        }
    }
    missing
}

async fn fetch(engine: &Engine, sst: &Sst, attempt: u32) -> Result<()> {
    let now_ns = engine.env.clock.holder_ns();
    let mut replicas: Vec<NodeId> =
        sst.meta.replicas.iter().copied().filter(|n| engine.sstables.contains_key(n)).collect();
    let start = sst.meta.id.counter.wrapping_add(attempt) as usize % replicas.len().max(1);
    replicas.rotate_left(start);
    // A stable sort: healthy ones first, each group still in the rotated order.
    replicas.sort_by_key(|n| engine.health.is_avoided(*n, sst.meta.id, now_ns));
    let node = *replicas.first().ok_or_else(|| Error::unavailable("no replica is in the configuration"))?;
    let fetched = fetch_from(engine, sst, node).await;
    if fetched.is_err() {
        engine.health.replica_failed(node, sst.meta.id, now_ns);
    }
    fetched
}

async fn fetch_from(engine: &Engine, sst: &Sst, node: NodeId) -> Result<()> {
    let mut client = engine.sstable(node)?.sst.clone();
    let request = v1::FetchFilterRequest { id: sst.wire_id.clone() };
    let late = |_| Error::unavailable("no filter in time");
    let mut chunks = tokio::time::timeout(CHUNK_MAX, client.fetch_filter(request))
        .await
        .map_err(late)?
        .map_err(error_of)?
        .into_inner();
    let mut bytes = Vec::new();
    while let Some(chunk) =
        tokio::time::timeout(CHUNK_MAX, chunks.message()).await.map_err(late)?.map_err(error_of)?
    {
        if bytes.len() + chunk.data.len() > BYTES_MAX {
            return Err(Error::corrupt(format!("a filter above {BYTES_MAX} bytes")));
        }
        bytes.extend_from_slice(&chunk.data);
    }
    engine.metrics.sst_filter_fetches.inc();
    engine.metrics.sst_filter_bytes.inc_by(bytes.len() as u64);
    let decoded = engine.env.blocking(move || SealedFilter::from_bytes(&bytes)).await;
    sst.set_filter(decoded.ok_or_else(|| Error::unavailable("the p-node is stopping"))??);
    Ok(())
}
