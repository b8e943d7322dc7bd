//! Whole filters, each partition's on a stream and a task of its own: megabytes hold up nobody's acknowledgement.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use sextant_common::filter::LayeredBloom;
use sextant_common::ids::{Generation, NodeId, PartitionId, TableId};
use sextant_common::{Error, Result};
use tokio::sync::watch;

use super::copy::{UpdateStatus, WholeFilters, install_whole};
use super::wire::{Wanted, WholeHeader, open_whole};
use crate::core::Core;

/// Largest set of filters that is accepted: some hundred million keys of unflushed updates.
const BYTES_MAX: u64 = 1 << 30;
/// After a failure the next attempt waits: the leader is asked again by then.
const FAILURE_PAUSE: Duration = Duration::from_millis(50);

/// Fetches whole filters, and knows of which partitions they are being fetched.
pub(super) struct WholeFetches {
    pub core: Arc<Core>,
    running: Mutex<BTreeSet<PartitionId>>,
    /// Of these only the manifest is being fetched: pulls go on meanwhile.
    manifests: Mutex<BTreeSet<PartitionId>>,
    ended: watch::Sender<u64>,
}

impl WholeFetches {
    pub fn new(core: &Arc<Core>) -> Self {
        Self {
            core: core.clone(),
            running: Mutex::default(),
            manifests: Mutex::default(),
            ended: watch::Sender::new(0),
        }
    }

    pub fn is_running(&self, partition: PartitionId) -> bool {
        self.running.lock().contains(&partition)
    }

    /// Sees every later end of a fetch.
    pub fn watch(&self) -> watch::Receiver<u64> {
        self.ended.subscribe()
    }

    /// Fetches a partition's filters from its leader, unless that is being done already.
    pub fn spawn(self: &Arc<Self>, node: NodeId, partition: PartitionId) {
        if !self.running.lock().insert(partition) {
            return;
        }
        let fetches = self.clone();
        self.core.runtime.spawn(async move {
            // Also if the task is dropped half-way: a partition must not count as being fetched for ever.
            let _ended = EndFetch { fetches: &fetches, partition };
            if let Err(e) = fetch_and_install(&fetches.core, node, partition).await {
                tracing::debug!(%node, %partition, "whole filters: {e}");
                tokio::time::sleep(FAILURE_PAUSE).await;
            }
        });
    }

    /// Fetches a partition's manifest from its leader, unless that is being done already.
    pub fn spawn_manifest(self: &Arc<Self>, node: NodeId, partition: PartitionId) {
        if !self.manifests.lock().insert(partition) {
            return;
        }
        let fetches = self.clone();
        self.core.runtime.spawn(async move {
            let _ended = EndManifest { fetches: &fetches, partition };
            if let Err(e) = fetch_manifest(&fetches.core, node, partition).await {
                tracing::debug!(%node, %partition, "whole manifest: {e}");
                tokio::time::sleep(FAILURE_PAUSE).await;
            }
        });
    }
}

/// Gets the manifest that a leader has, whatever ours is.
pub(super) async fn fetch_manifest(core: &Core, node: NodeId, partition: PartitionId) -> Result<()> {
    let peer = core.memtable(node)?;
    let mut leases = peer.lease.clone();
    let (wanted, held) = (Wanted::Manifest, core.views.load(partition));
    let opened = open_whole(&mut leases, core.holder.clone(), partition, wanted, &held.manifest);
    let (header, _chunks) = opened.await?;
    if header.status != UpdateStatus::Ok {
        if header.status == UpdateStatus::NotLeader {
            peer.news.not_leader(partition, header.hint);
        }
        return Err(Error::retry(format!("the server answered {:?}", header.status)));
    }
    core.metrics.whole_manifests.inc();
    core.views.install_manifest(partition, header.manifest, header.told.as_ref());
    Ok(())
}

struct EndManifest<'f> {
    fetches: &'f WholeFetches,
    partition: PartitionId,
}

impl Drop for EndManifest<'_> {
    fn drop(&mut self) {
        self.fetches.manifests.lock().remove(&self.partition);
    }
}

struct EndFetch<'f> {
    fetches: &'f WholeFetches,
    partition: PartitionId,
}

impl Drop for EndFetch<'_> {
    fn drop(&mut self) {
        self.fetches.running.lock().remove(&self.partition);
        self.fetches.ended.send_modify(|n| *n += 1);
    }
}

async fn fetch_and_install(core: &Core, node: NodeId, partition: PartitionId) -> Result<()> {
    let peer = core.memtable(node)?;
    let mut leases = peer.lease.clone();
    let (wanted, held) = (Wanted::FiltersAndManifest, core.views.load(partition));
    let opened = open_whole(&mut leases, core.holder.clone(), partition, wanted, &held.manifest);
    let (header, mut chunks) = opened.await?;
    if header.status != UpdateStatus::Ok {
        if header.status == UpdateStatus::NotLeader {
            peer.news.not_leader(partition, header.hint);
        }
        return Err(Error::retry(format!("the server answered {:?}", header.status)));
    }
    let total: u64 = header.filters.iter().map(|(_, _, bytes)| *bytes).fold(0, u64::saturating_add);
    if total > BYTES_MAX {
        return Err(Error::internal(format!("whole filters of {total} bytes: the limit is {BYTES_MAX}")));
    }
    let mut parts = Vec::with_capacity(header.filters.len());
    for (table, generation, bytes) in header.filters {
        parts.push((table, generation, chunks.take(bytes).await?));
    }
    let decoded = core.env.blocking(move || decode(parts)).await;
    let filters = decoded.ok_or_else(|| Error::unavailable("the p-node is stopping"))??;
    let (epoch, serial) = (header.epoch, header.serial);
    let (registration_slots, tick) = (header.registration_slots, header.tick);
    let WholeHeader { manifest, told, .. } = header;
    let whole = WholeFilters { epoch, serial, manifest, told, filters, registration_slots, tick };
    core.views.change(partition, |view| (install_whole(view, whole), ()));
    core.leaders.confirm(partition, node, epoch.term);
    core.metrics.whole_filter_fetches.inc();
    core.metrics.whole_filter_bytes.inc_by(total);
    Ok(())
}

fn decode(parts: Vec<(TableId, Generation, Bytes)>) -> Result<Vec<(TableId, Generation, LayeredBloom)>> {
    parts
        .into_iter()
        .map(|(table, generation, b)| Ok((table, generation, LayeredBloom::from_bytes(&b)?)))
        .collect()
}
