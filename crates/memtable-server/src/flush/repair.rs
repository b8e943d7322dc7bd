//! Repair: a leader compares what the sstable servers hold with its manifest. A server that lacks a table (it was down, or
//! lost its disk) copies it from another replica; tables that nobody names are deleted, by id, after a grace.

use std::collections::HashMap;
use std::time::Duration;

use sextant_common::ids::{NodeId, SstId};
use sextant_common::shutdown::Shutdown;

use super::servers::Held;
use super::{Background, SstServer};

/// Copies started per server and round: repair must not starve service.
const COPIES_PER_ROUND: usize = 8;

/// Runs until shutdown, one partition replica each; does something only while it leads and serves.
pub async fn repair_loop(background: Background, mut shutdown: Shutdown) {
    let interval = Duration::from_millis(background.tuning.repair_interval_ms.max(10));
    let mut orphans: HashMap<(NodeId, SstId), u64> = HashMap::new();
    loop {
        tokio::select! {
            () = shutdown.wait() => return,
            () = tokio::time::sleep(interval) => {}
        }
        if background.shared.serving().is_none() {
            orphans.clear();
            continue;
        }
        let Some(epoch) = background.shared.desk.epoch() else { continue };
        for server in background.servers.all() {
            round(&background, server, epoch.term, &mut orphans).await;
        }
    }
}

async fn round(
    background: &Background,
    server: &SstServer,
    term: u64,
    orphans: &mut HashMap<(NodeId, SstId), u64>,
) {
    let held = match server.inventory(background.shared.id).await {
        Ok(held) => held,
        Err(e) => {
            tracing::debug!("sstable server {}: inventory: {e}", server.id);
            return;
        }
    };
    // The manifest is taken after the inventory, so that a table which was flagged in between is not taken for an orphan.
    if background.shared.serving() != Some(term) {
        return;
    }
    let manifest = background.shared.manifest();
    let now = background.shared.env.clock.grantor_ns();
    judge_orphans(background, server, term, &held, orphans, now).await;
    let lacking = manifest
        .all_ssts()
        .filter(|sst| sst.replicas.contains(&server.id))
        .filter(|sst| !held.iter().any(|h| h.id == sst.id && h.checksum == sst.checksum && !h.damaged));
    for sst in lacking.take(COPIES_PER_ROUND) {
        let others = sst.replicas.iter().filter(|id| **id != server.id);
        let sources: Vec<String> =
            others.filter_map(|id| background.servers.get(*id)).map(|s| s.addr.clone()).collect();
        match server.copy(sst, sources).await {
            Ok(()) => tracing::info!("sstable server {} has copied table {}", server.id, sst.id),
            Err(e) => tracing::warn!("sstable server {} cannot copy table {}: {e}", server.id, sst.id),
        }
    }
}

/// Tables that no manifest names, and nobody is about to add, are deleted when they have been so for the grace.
async fn judge_orphans(
    background: &Background,
    server: &SstServer,
    term: u64,
    held: &[Held],
    orphans: &mut HashMap<(NodeId, SstId), u64>,
    now: u64,
) {
    let grace = background.tuning.sst_delete_grace_ms * 1_000_000;
    // First what is pending, then the manifest: a table that is flagged in between is in one of the two.
    let pending = background.shared.pending_ssts.lock().clone();
    let manifest = background.shared.manifest();
    let mut gone = Vec::new();
    for table in held {
        // Never a table of a newer epoch: a leader that was paused must not erase its successors' work.
        let orphan = table.id.epoch.term <= term
            && !pending.contains(&table.id)
            && !manifest.all_ssts().any(|sst| sst.id == table.id);
        if !orphan {
            orphans.remove(&(server.id, table.id));
            continue;
        }
        let since = *orphans.entry((server.id, table.id)).or_insert(now);
        if now.saturating_sub(since) >= grace {
            gone.push(table.id);
        }
    }
    if !gone.is_empty() {
        match server.delete(&gone).await {
            Ok(()) => orphans.retain(|(s, id), _| *s != server.id || !gone.contains(id)),
            Err(e) => tracing::debug!("sstable server {}: delete: {e}", server.id),
        }
    }
}
