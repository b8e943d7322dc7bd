//! Whole filters, each partition's on a stream and a task of its own: megabytes hold up nobody's acknowledgement.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use sextant_common::filter::LayeredBloom;
use sextant_common::ids::{Generation, NodeId, PartitionId, Serial, TableId};
use sextant_common::{Error, Result};
use sextant_environment::env::error_of;
use sextant_proto::v1;
use tokio::sync::watch;
use tonic::Streaming;

use super::copy::{UpdateStatus, WholeFilters, install_whole};
use super::wire;
use crate::engine::Engine;

/// How long the next chunk may take.
const CHUNK_MAX: Duration = Duration::from_secs(2);
/// Largest set of filters that is accepted: some hundred million keys of unflushed updates.
const BYTES_MAX: u64 = 1 << 30;
/// After a failure the next attempt waits: the leader is asked again by then.
const FAILURE_PAUSE: Duration = Duration::from_millis(50);

/// Which partitions' filters are being fetched.
pub(crate) struct WholeFetches {
    running: Mutex<BTreeSet<PartitionId>>,
    ended: watch::Sender<u64>,
}

impl Default for WholeFetches {
    fn default() -> Self {
        Self { running: Mutex::default(), ended: watch::Sender::new(0) }
    }
}

impl WholeFetches {
    pub fn is_running(&self, partition: PartitionId) -> bool {
        self.running.lock().contains(&partition)
    }

    /// Sees every later end of a fetch.
    pub fn watch(&self) -> watch::Receiver<u64> {
        self.ended.subscribe()
    }

    fn begin(&self, partition: PartitionId) -> bool {
        self.running.lock().insert(partition)
    }

    fn end(&self, partition: PartitionId) {
        self.running.lock().remove(&partition);
        self.ended.send_modify(|n| *n += 1);
    }
}

/// Fetches a partition's filters from its leader, unless that is being done already.
pub(super) fn spawn_fetch(engine: &Arc<Engine>, node: NodeId, partition: PartitionId) {
    if !engine.whole_fetches.begin(partition) {
        return;
    }
    let task_engine = engine.clone();
    engine.runtime.spawn(async move {
        let engine = task_engine;
        // Also if the task is dropped half-way: a partition must not count as being fetched for ever.
        let _ended = EndFetch { engine: &engine, partition };
        if let Err(e) = fetch_and_install(&engine, node, partition).await {
            tracing::debug!(%node, %partition, "whole filters: {e}");
            tokio::time::sleep(FAILURE_PAUSE).await;
        }
    });
}

struct EndFetch<'e> {
    engine: &'e Engine,
    partition: PartitionId,
}

impl Drop for EndFetch<'_> {
    fn drop(&mut self) {
        self.engine.whole_fetches.end(self.partition);
    }
}

async fn fetch_and_install(engine: &Arc<Engine>, node: NodeId, partition: PartitionId) -> Result<()> {
    let (header, mut chunks) = open(engine, node, partition).await?;
    let status = wire::status(header.status)?;
    if status != UpdateStatus::Ok {
        if status == UpdateStatus::NotLeader {
            let peer = engine.memtables.get(&node);
            peer.into_iter().for_each(|p| p.news.not_leader(partition, header.leader.as_ref()));
        }
        return Err(Error::retry(format!("the server answered {status:?}")));
    }
    let total: u64 = header.filters.iter().map(|f| f.bytes).fold(0, u64::saturating_add);
    if total > BYTES_MAX {
        return Err(Error::internal(format!("whole filters of {total} bytes: the limit is {BYTES_MAX}")));
    }
    let mut buffer = BytesMut::new();
    let mut parts = Vec::with_capacity(header.filters.len());
    for filter in &header.filters {
        while (buffer.len() as u64) < filter.bytes {
            let chunk =
                next(&mut chunks).await?.ok_or_else(|| Error::unavailable("the filters end early"))?;
            buffer.extend_from_slice(&chunk.data);
        }
        parts.push((
            TableId(filter.table),
            Generation(filter.generation),
            buffer.split_to(filter.bytes as usize).freeze(),
        ));
    }
    let decoded = engine.env.blocking(move || decode(parts)).await;
    let filters = decoded.ok_or_else(|| Error::unavailable("the p-node is stopping"))??;
    let manifest = wire::manifest_of(partition, header.manifest)?;
    if let Some(manifest) = &manifest {
        engine.views.tables.learn_all(manifest);
    }
    let epoch = header.epoch.unwrap_or_default().into();
    let whole = WholeFilters { epoch, serial: Serial(header.serial), manifest, filters };
    engine.views.change(partition, |view| (install_whole(view, whole), ()));
    engine.leaders.confirm(partition, node, epoch.term);
    engine.metrics.whole_filter_fetches.inc();
    engine.metrics.whole_filter_bytes.inc_by(total);
    Ok(())
}

fn decode(parts: Vec<(TableId, Generation, Bytes)>) -> Result<Vec<(TableId, Generation, LayeredBloom)>> {
    parts
        .into_iter()
        .map(|(table, generation, b)| Ok((table, generation, LayeredBloom::from_bytes(&b)?)))
        .collect()
}

/// Opens the stream; its header has the manifest.
pub(super) async fn open(
    engine: &Engine,
    node: NodeId,
    partition: PartitionId,
) -> Result<(v1::FilterHeader, Streaming<v1::FilterChunk>)> {
    let mut client = engine.memtable(node)?.lease.clone();
    let request = v1::FetchFiltersRequest { holder: engine.holder.clone(), partition: partition.0 };
    let opened = tokio::time::timeout(CHUNK_MAX, client.fetch_filters(request)).await;
    let mut chunks =
        opened.map_err(|_| Error::unavailable("no filters in time"))?.map_err(error_of)?.into_inner();
    let first = next(&mut chunks).await?;
    let header = first.and_then(|c| c.header).ok_or_else(|| Error::internal("filters without a header"))?;
    Ok((header, chunks))
}

async fn next(chunks: &mut Streaming<v1::FilterChunk>) -> Result<Option<v1::FilterChunk>> {
    let chunk = tokio::time::timeout(CHUNK_MAX, chunks.message()).await;
    chunk.map_err(|_| Error::unavailable("no filters in time"))?.map_err(error_of)
}
