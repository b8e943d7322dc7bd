//! Status as JSON, for people and tools.

use std::time::Duration;

use futures::future::join_all;
use serde_json::{Value, json};
use sextant_common::ids::PartitionId;
use sextant_common::operation::ReadMode;
use sextant_environment::clock::WallReading;
use sextant_environment::config::Server;
use sextant_proto::v1;
use sextant_proto::v1::admin_client::AdminClient;
use tonic::transport::Channel;

use crate::core::Core;
use crate::metrics::{CacheEvent, ReadPath};
use crate::pnode::PNode;

/// How long another server may take: the status of the others is worth more than waiting.
const SERVER_ANSWER_MAX: Duration = Duration::from_secs(1);

/// This p-node alone; asks nobody.
pub(crate) fn own_status(pnode: &PNode) -> Value {
    let core = pnode.core();
    let partitions: Vec<Value> = core.views.partitions().map(|p| partition_status(core, p)).collect();
    let (entries, bytes) = pnode.cache().size();
    let metrics = &core.metrics;
    let reads = ReadMode::ALL.map(|mode| {
        let paths = ReadPath::ALL.map(|path| (path.name().to_owned(), json!(metrics.reads(mode, path))));
        (mode.name().to_owned(), Value::Object(paths.into_iter().collect()))
    });
    json!({
        "role": "pnode",
        "version": env!("CARGO_PKG_VERSION"),
        "wall": WallReading::of(&*core.env.clock),
        "node": core.config.id.0,
        "cluster": core.config.cluster.id,
        "partitions": partitions,
        "tables": core.views.tables.all().iter().map(|t| json!({"id": t.id, "name": t.name})).collect::<Vec<_>>(),
        "cache": {
            "entries": entries,
            "bytes": bytes,
            "hits": metrics.cache(CacheEvent::Hit),
            "misses": metrics.cache(CacheEvent::Miss),
        },
        "reads": Value::Object(reads.into_iter().collect()),
        "no_lease_reads": metrics.no_lease_reads(),
        "pulls": metrics.pulls(),
    })
}

fn partition_status(core: &Core, partition: PartitionId) -> Value {
    let leader = core.leaders.get(partition);
    let view = core.views.peek(partition);
    let clock = &*core.env.clock;
    let ssts: Vec<_> = view.manifest.ssts().collect();
    let copies = view.copies.as_ref();
    json!({
        "partition": partition,
        "leader": leader.node,
        "leader_certain": leader.is_certain(),
        "term": leader.term,
        "manifest_version": view.manifest.version,
        "manifest_digest": view.manifest.digest.to_string(),
        "tables": view.manifest.tables.len(),
        "sstables": ssts.len(),
        "sstable_filters_missing": ssts.iter().filter(|s| !s.has_filter()).count(),
        "sstable_filter_bytes": ssts.iter().map(|s| s.filter_bytes()).sum::<usize>(),
        "epoch": copies.map(|c| c.epoch.to_string()),
        "serial": copies.map(|c| c.serial),
        "memtable_filter_bytes": copies.map(|c| c.memory_bytes()),
        "leased": view.leased_copies(clock).is_some(),
        "lease_left_ms": view.lease.as_ref().map(|l| l.left_ns(clock) / 1_000_000),
    })
}

/// The whole cluster, as far as it answers.
pub(crate) async fn cluster_status(pnode: &PNode) -> Value {
    let core = pnode.core();
    let cluster = &core.config.cluster;
    let memtables =
        cluster.memtable.iter().filter_map(|s| Some((s, core.memtables.get(&s.id)?.admin.clone())));
    let sstables = cluster.sstable.iter().filter_map(|s| Some((s, core.sstables.get(&s.id)?.admin.clone())));
    let (memtables, sstables) = tokio::join!(
        join_all(memtables.map(|(server, admin)| server_status(server, admin))),
        join_all(sstables.map(|(server, admin)| server_status(server, admin))),
    );
    json!({ "pnode": own_status(pnode), "memtable": memtables, "sstable": sstables })
}

async fn server_status(server: &Server, mut admin: AdminClient<Channel>) -> Value {
    let asked = tokio::time::timeout(SERVER_ANSWER_MAX, admin.status(v1::StatusRequest {})).await;
    let (status, error) = match asked {
        Ok(Ok(reply)) => match serde_json::from_str(&reply.into_inner().json) {
            Ok(status) => (status, None),
            Err(e) => (Value::Null, Some(format!("the status is no JSON: {e}"))),
        },
        Ok(Err(status)) => (Value::Null, Some(status.message().to_owned())),
        Err(_) => (Value::Null, Some("no answer in time".to_owned())),
    };
    json!({ "id": server.id, "addr": server.addr, "status": status, "error": error })
}
