//! The status document: what an operator wants to see, as JSON (described in docs/operations.md).

use std::collections::HashSet;

use openraft::async_runtime::WatchReceiver;
use serde_json::{Value, json};
use sextant_common::manifest::{SstMeta, TableManifest};
use sextant_environment::clock::WallReading;

use super::Context;
use crate::replica::{Handle, Leader, Numbers};

pub fn json(context: &Context) -> String {
    let mut partitions: Vec<&Handle> = context.partitions.values().collect();
    partitions.sort_by_key(|h| h.shared.id);
    let stats = context.log.stats();
    let uptime_ns = context.env.clock.holder_ns().saturating_sub(context.started_ns);
    json!({
        "role": "memtable",
        "version": env!("CARGO_PKG_VERSION"),
        "wall": WallReading::of(&*context.env.clock),
        "node": context.node.0,
        "incarnation": context.partitions.values().next().map(|h| format!("{:016x}", h.shared.incarnation.id())),
        "cluster": context.cluster.id,
        "format_max": context.partitions.values().next().map(|h| h.shared.format_max),
        "uptime_seconds": uptime_ns as f64 / 1e9,
        "recovery": {
            "log_seconds": context.recovery.log_seconds,
            "log_entries": context.recovery.log_entries,
            "log_bytes": context.recovery.log_bytes,
            "torn_bytes_cut": context.recovery.torn_bytes,
            "replay_seconds": context.recovery.replay_seconds,
            "replayed_writes": context.recovery.replayed_writes,
            "skipped_writes": context.recovery.skipped_writes,
        },
        "log": {
            "fsyncs": stats.fsyncs,
            "batches": stats.batches,
            "records": stats.records,
            "bytes": stats.bytes,
            "failed": stats.failed,
        },
        "partitions": partitions.into_iter().map(|h| partition(context, h)).collect::<Vec<_>>(),
    })
    .to_string()
}

fn partition(context: &Context, handle: &Handle) -> Value {
    let shared = &handle.shared;
    let numbers = shared.numbers.lock().clone();
    let (holders, live) = shared.desk.holders(shared.now());
    let manifest = shared.manifest();
    let configuration = shared.configuration.load();
    let mut out = group(context, handle, &numbers);
    let rest = json!({
        "epoch": shared.desk.epoch().map(|e| e.to_string()),
        "serving": shared.serving().is_some(),
        "lease_holders": holders,
        "leases_live": live,
        "bf_log_serial": shared.desk.serial().0,
        "last_index": numbers.last_index,
        "committed_index": numbers.committed_index,
        "published_index": numbers.published_index,
        "configuration": {
            "revision": configuration.revision,
            "lease_mode": format!("{:?}", configuration.mode).to_lowercase(),
            "lease_ms": configuration.lease_ms,
            "leader_lease_ms": configuration.leader_lease_ms,
            "drift_ppm": configuration.drift_ppm,
            "memory_bytes": configuration.memory_bytes,
            "format": configuration.format,
            "draining": configuration.draining,
        },
        "published_seq": shared.published.seq(),
        "published_tick_ms": shared.published.tick().0,
        "persisted_index": numbers.persisted_index,
        "purged_index": numbers.purged_index,
        "unflushed_bytes": numbers.unflushed_bytes,
        "memory_bytes": numbers.memory_bytes,
        "writes": numbers.writes.name(),
        "writes_why": numbers.writes_why,
        "groups": numbers.groups,
        "group_writes": numbers.group_writes,
        "waiting_requests": numbers.waiting_requests,
        "sessions": numbers.sessions,
        "replayed_writes": numbers.replayed_writes,
        "replay_skipped_writes": numbers.replay_skipped_writes,
        "manifest_digest": manifest.digest().to_string(),
        "manifest_version": manifest.version.0,
        "snapshots": shared.view.load().cuts.iter().map(|cut| json!({
            "id": format!("{:016x}", cut.id),
            "seq": cut.seq.0,
            "opened_ms": cut.opened_ms,
            "complete": cut.is_complete(),
            "bytes": cut.ssts().map(|sst| sst.file_bytes).sum::<u64>(),
        })).collect::<Vec<_>>(),
        "memtables": numbers.tables.iter().map(|t| json!({
            "table": t.table,
            "generation": t.generation,
            "active_entries": t.active_entries,
            "active_bytes": t.active_bytes,
            "frozen": t.frozen,
            "frozen_bytes": t.frozen_bytes,
            "flush_error": t.flush_error,
        })).collect::<Vec<_>>(),
        "tables": manifest.tables.iter().map(table).collect::<Vec<_>>(),
    });
    if let (Value::Object(out), Value::Object(rest)) = (&mut out, rest) {
        out.extend(rest);
    }
    out
}

/// Who is in the partition's group, and who leads it.
fn group(context: &Context, handle: &Handle, numbers: &Numbers) -> Value {
    let shared = &handle.shared;
    let Leader { term: leader_term, node: leader, .. } = shared.leader();
    json!({
        "partition": shared.id.0,
        "role": if numbers.leading { "leader" } else { "follower" },
        "term": leader_term,
        "leader": leader,
        "voters": numbers.members.voters,
        "learners": numbers.members.learners,
        "lost_members": lost_members(context, handle),
        "lost_memory": shared.incarnation.is_lost(shared.id),
        "unfounded": shared.unfounded.lock().clone(),
        "lineage": format!("{:016x}", shared.configuration.load().lineage),
    })
}

/// Members that this server has found to be without their memory.
fn lost_members(context: &Context, handle: &Handle) -> Vec<u64> {
    let Some(raft) = context.rafts.get(&handle.shared.id) else { return Vec::new() };
    let metrics = raft.server_metrics();
    let membership = metrics.borrow_watched().membership_config.clone();
    let now_ns = context.env.clock.holder_ns();
    handle.shared.strangers.lost(membership.membership(), now_ns).into_keys().collect()
}

fn table(t: &TableManifest) -> Value {
    let (columns, most_for_a_key) = t.columns();
    // (One that answers for several ranges is one table.)
    let mut seen = HashSet::new();
    json!({
        "table": t.table.0,
        "name": t.name,
        "flushed_generation": t.flushed_generation.0,
        "last_flush_version": t.last_flush_version.0,
        "columns": columns,
        "most_for_a_key": most_for_a_key,
        "sstables": t.ssts.iter().filter(|sst| seen.insert(sst.id)).map(sstable).collect::<Vec<_>>(),
    })
}

fn sstable(s: &SstMeta) -> Value {
    json!({
        "id": s.id.to_string(),
        "records": s.records,
        "tombstones": s.tombstones,
        "bytes": s.file_bytes,
        "replicas": s.replicas.iter().map(|n| n.0).collect::<Vec<_>>(),
    })
}
