//! Repair: a leader compares what the sstable servers hold with its manifest. A server that lacks a table (it was down, or
//! lost its disk) copies it from another replica; tables that nobody names are deleted, by id, after a grace.
//!
//! Invariant: nothing is deleted as an orphan unless, by the inventories of the same round, every table of the manifest is sound on
//! as many servers as a new table has to be, and on each server that answers and is to have it. As long as copies are missing, what
//! nobody names may be the last that holds a record (the inputs of a compaction, for one).

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use sextant_common::ids::{NodeId, SstId};
use sextant_common::manifest::{Manifest, SstMeta};
use sextant_environment::shutdown::Shutdown;

use super::Background;
use crate::upstream::{Held, SstServer};

/// Copies started per server and round: repair must not starve service.
const COPIES_PER_ROUND: usize = 8;

/// Runs until shutdown, one partition replica each; does something only while it leads and serves.
pub async fn repair_loop(background: Background, mut shutdown: Shutdown) {
    let interval = Duration::from_millis(background.tuning.repair_interval_ms.max(10));
    let mut orphans: HashMap<(NodeId, SstId), u64> = HashMap::new();
    let mut foreign: HashMap<NodeId, usize> = HashMap::new();
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
        round(&background, epoch.term, &mut orphans, &mut foreign).await;
    }
}

/// What the servers that answer hold.
async fn inventories(background: &Background) -> Vec<(&SstServer, Vec<Held>)> {
    let asked = background.servers.all().iter().map(|server| async move {
        match server.inventory(background.shared.id).await {
            Ok(held) => Some((server, held)),
            Err(e) => {
                tracing::debug!("sstable server {}: inventory: {e}", server.id);
                None
            }
        }
    });
    futures::future::join_all(asked).await.into_iter().flatten().collect()
}

async fn round(
    background: &Background,
    term: u64,
    orphans: &mut HashMap<(NodeId, SstId), u64>,
    foreign: &mut HashMap<NodeId, usize>,
) {
    let inventories = inventories(background).await;
    // The manifest is taken after the inventories, so that a table which was flagged in between is not taken for an orphan.
    if background.shared.serving() != Some(term) {
        return;
    }
    let manifest = background.shared.manifest();
    let now = background.shared.env.clock.grantor_ns();
    let held = inventories.iter().map(|(server, held)| (server.id, held.as_slice()));
    let held: Vec<(NodeId, &[Held])> = held.collect();
    let may_delete = all_copies_are_there(&manifest, &held, background.tuning.sst_replicas_required);
    for (server, held) in &inventories {
        tell_of_foreign(background, server, held, foreign);
        let gone = judge_orphans(background, server.id, term, held, orphans, now);
        if may_delete && !gone.is_empty() {
            let lineage = background.shared.configuration.load().lineage;
            match server.delete(&gone, lineage).await {
                Ok(()) => orphans.retain(|(s, id), _| *s != server.id || !gone.contains(id)),
                Err(e) => tracing::debug!("sstable server {}: delete: {e}", server.id),
            }
        }
    }
    // After that: copies take their time, and what was judged above would be old.
    for (server, held) in &inventories {
        if background.shared.serving() == Some(term) {
            mend(background, server, &manifest, held).await;
        }
    }
}

/// Whether a server has a table as the manifest means it.
fn is_sound(held: &[Held], sst: &SstMeta) -> bool {
    held.iter().any(|h| h.id == sst.id && h.checksum == sst.checksum && !h.damaged)
}

/// Whether every table of the manifest is sound on at least `required` servers. A server that does not answer (it may never again)
/// is not in `inventories`, and does not count. (More is not asked for: a server that cannot copy because its disk is full of
/// orphans would keep them for ever.)
fn all_copies_are_there(manifest: &Manifest, inventories: &[(NodeId, &[Held])], required: usize) -> bool {
    manifest.all_ssts().all(|sst| {
        let sound = inventories.iter().filter(|(_, held)| is_sound(held, sst)).count();
        sound >= required.min(sst.replicas.len()).max(1)
    })
}

/// Has a server copy what it is to have and has not.
async fn mend(background: &Background, server: &SstServer, manifest: &Manifest, held: &[Held]) {
    // (A table may have several entries.)
    let mut seen = HashSet::new();
    let lacking = manifest
        .all_ssts()
        .filter(|sst| sst.replicas.contains(&server.id) && !is_sound(held, sst) && seen.insert(sst.id));
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

/// Says so, once, if a server has tables of the partition that another founding of it made: nobody here can know what they are worth.
fn tell_of_foreign(
    background: &Background,
    server: &SstServer,
    held: &[Held],
    foreign: &mut HashMap<NodeId, usize>,
) {
    let lineage = background.shared.configuration.load().lineage;
    let count = held.iter().filter(|table| table.lineage.is_some_and(|l| l != lineage)).count();
    if foreign.insert(server.id, count).unwrap_or(0) != count && count > 0 {
        tracing::error!(
            partition = %background.shared.id,
            "sstable server {} holds {count} tables of another lineage: the partition was founded more than once. They are left \
             alone, and not read",
            server.id
        );
    }
}

/// Tables that no manifest names, and nobody is about to add, and that have been so for the grace: they may be deleted.
fn judge_orphans(
    background: &Background,
    server: NodeId,
    term: u64,
    held: &[Held],
    orphans: &mut HashMap<(NodeId, SstId), u64>,
    now: u64,
) -> Vec<SstId> {
    let grace = background.tuning.sst_delete_grace_ms * 1_000_000;
    // First what is pending, then the manifest: a table that is flagged in between is in one of the two.
    let pending = background.shared.pending_ssts.lock().clone();
    let manifest = background.shared.manifest();
    let lineage = background.shared.configuration.load().lineage;
    let mut gone = Vec::new();
    for table in held {
        // Never a table of a newer epoch: a leader that was paused must not erase its successors' work.
        // Nor one of another history, of which this leader's manifest says nothing.
        let orphan = table.id.epoch.term <= term
            && table.lineage.is_none_or(|of_table| of_table == lineage)
            && !pending.contains(&table.id)
            && !manifest.all_ssts().any(|sst| sst.id == table.id);
        if !orphan {
            orphans.remove(&(server, table.id));
            continue;
        }
        let since = *orphans.entry((server, table.id)).or_insert(now);
        if now.saturating_sub(since) >= grace {
            gone.push(table.id);
        }
    }
    gone
}

#[cfg(test)]
mod tests {
    use sextant_common::ids::{LogPosition, ManifestVersion, PartitionId, TableId};
    use sextant_common::manifest::TableManifest;

    use super::*;
    use crate::partition::testing;

    fn sst(counter: u32, replicas: &[u64]) -> SstMeta {
        let replicas = replicas.iter().map(|id| NodeId(*id)).collect();
        SstMeta { checksum: u64::from(counter), replicas, ..testing::sst(counter) }
    }

    fn held(sst: &SstMeta) -> Held {
        Held { id: sst.id, checksum: sst.checksum, damaged: false, lineage: Some(7) }
    }

    fn manifest(ssts: Vec<SstMeta>) -> Manifest {
        let version = ManifestVersion(1);
        Manifest {
            partition: PartitionId(0),
            version,
            tables: vec![TableManifest {
                table: TableId(1),
                name: "t".into(),
                options: Default::default(),
                flushed_generation: Default::default(),
                last_flush_version: version,
                persisted: LogPosition::default(),
                ssts,
            }],
            recent_flushes: Vec::new(),
            flushes_known_after: version,
        }
    }

    #[test]
    fn nothing_is_deleted_while_copies_of_what_the_manifest_names_are_missing() {
        let (compacted, other) = (sst(9, &[1, 2, 3]), sst(4, &[1, 2]));
        let manifest = manifest(vec![other.clone(), compacted.clone()]);
        let both = || vec![held(&other), held(&compacted)];
        let judged = |servers: [Option<Vec<Held>>; 3]| {
            let ids = (1..).map(NodeId);
            let answered: Vec<(NodeId, Vec<Held>)> =
                ids.zip(servers).filter_map(|(id, held)| Some((id, held?))).collect();
            let answered: Vec<(NodeId, &[Held])> =
                answered.iter().map(|(id, held)| (*id, held.as_slice())).collect();
            all_copies_are_there(&manifest, &answered, 2)
        };
        assert!(judged([Some(both()), Some(both()), Some(vec![held(&compacted)])]));
        // One server has the only copy of a compaction's result.
        assert!(!judged([Some(both()), Some(vec![held(&other)]), Some(vec![])]));
        assert!(
            judged([Some(both()), Some(both()), Some(vec![])]),
            "the third one may have no room for its own"
        );
        // A damaged copy is none, nor is one with another checksum.
        let damaged = vec![held(&other), Held { damaged: true, ..held(&compacted) }];
        assert!(!judged([Some(both()), Some(vec![held(&other)]), Some(damaged)]));
        let another = vec![Held { checksum: 1, ..held(&compacted) }];
        assert!(!judged([Some(both()), Some(vec![held(&other)]), Some(another)]));
        // A server that is away holds nothing up, unless too few copies are known to be there without it.
        assert!(judged([Some(both()), Some(both()), None]));
        assert!(
            !judged([Some(both()), None, Some(vec![held(&compacted)])]),
            "one copy of the other table is known"
        );
        assert!(!judged([Some(both()), None, None]));
    }
}
