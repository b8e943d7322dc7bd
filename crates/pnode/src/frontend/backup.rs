//! What a backup, a restore and `sextant verify` ask of the whole cluster: cuts, files of SSTables, records as they are, checks.
//! (The log: [`super::archive`].)

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::Duration;

use bytes::Bytes;
use futures::future::{join_all, try_join_all};
use futures::stream::{self, Stream, StreamExt};
use sextant_common::cut::Cut;
use sextant_common::database::Database;
use sextant_common::ids::{NodeId, PartitionId, SstId};
use sextant_common::limits::{BATCH_OPS_MAX, check_key};
use sextant_common::manifest::TableOptions;
use sextant_common::marks::Kind;
use sextant_common::object::inner_key;
use sextant_common::operation::{Condition, Effect, Lifetime, Operation, Update};
use sextant_common::sstable::RecordVersion;
use sextant_common::{Error, ErrorKind, Result};
use sextant_environment::env::{error_of, status_of};
use sextant_proto::convert::sst_id_from_wire;
use sextant_proto::v1;
use tonic::Status;

use crate::api::WriteOptions;
use crate::core::Core;
use crate::pnode::PNode;
use crate::snapshots::Wish;
use crate::upstream::Deadline;

/// Until a server sends the first piece of a file, or the next.
const PIECE_MAX: Duration = Duration::from_secs(10);

pub(super) async fn cut(
    pnode: &PNode,
    request: v1::CutRequest,
    limit: Option<Duration>,
) -> Result<Option<Cut>> {
    let core = pnode.core();
    let partition = PartitionId(request.partition);
    if !core.views.contains(partition) {
        return Err(Error::invalid(format!("there is no partition {partition}")));
    }
    let clock = &*core.env.clock;
    let wish = Wish { action: request.action(), lease_ms: request.lease_ms, privileged: true };
    let deadline = limit.map_or_else(|| core.deadline(None), |limit| Deadline::after(clock, limit));
    pnode.snapshots().ask(partition, request.id, wish, deadline).await
}

/// From those servers first that are to have it, and of them first from who has not failed lately.
pub(super) async fn fetch_table(
    pnode: &PNode,
    request: v1::FetchTableRequest,
) -> Result<impl Stream<Item = Result<v1::FileChunk, Status>> + Send + 'static> {
    let core = pnode.core();
    let id = sst_id_from_wire(&request.id)?;
    let snapshot = pnode.snapshots().find(request.cut).await?;
    let cut = &snapshot.of(PartitionId(request.partition))?.cut;
    let Some(sst) = cut.ssts().find(|sst| sst.id == id) else {
        return Err(Error::invalid(format!("the snapshot has no SSTable {id}")));
    };
    let now_ns = core.env.clock.holder_ns();
    let mut nodes: Vec<NodeId> = core.sstables.keys().copied().collect();
    nodes.sort_by_key(|node| (!sst.replicas.contains(node), core.health.is_avoided(*node, id, now_ns)));
    let mut failures = Vec::new();
    for node in nodes {
        match first_piece(core, node, request.id.clone()).await {
            Ok((first, rest)) => {
                let pnode = pnode.clone();
                let first = stream::once(async move { Ok(first) });
                let rest = rest.map(move |piece| {
                    if piece.is_err() {
                        replica_failed(pnode.core(), node, id);
                    }
                    piece
                });
                return Ok(first.chain(rest));
            }
            Err(e) => {
                replica_failed(core, node, id);
                failures.push(format!("sstable server {node}: {e}"));
            }
        }
    }
    let error = Error::unavailable(format!("no server gives SSTable {id}: {}", failures.join("; ")));
    Err(pnode.snapshots().why(request.cut, PartitionId(request.partition), error).await)
}

fn replica_failed(core: &Core, node: NodeId, id: SstId) {
    core.health.replica_failed(node, id, core.env.clock.holder_ns());
}

type Pieces = stream::BoxStream<'static, Result<v1::FileChunk, Status>>;

async fn first_piece(core: &Core, node: NodeId, id: Bytes) -> Result<(v1::FileChunk, Pieces)> {
    let late = |_| Error::unavailable("no answer in time");
    let opened = tokio::time::timeout(PIECE_MAX, core.sstable(node)?.fetch(id)).await.map_err(late)?;
    let mut pieces = opened?;
    let first = tokio::time::timeout(PIECE_MAX, pieces.message()).await.map_err(late)?.map_err(error_of)?;
    let first = first.ok_or_else(|| Error::corrupt("the file is empty"))?;
    let rest = stream::unfold(Some(pieces), |pieces| async move {
        let mut pieces = pieces?;
        match tokio::time::timeout(PIECE_MAX, pieces.message()).await {
            Ok(Ok(Some(piece))) => Some((Ok(piece), Some(pieces))),
            Ok(Ok(None)) => None,
            Ok(Err(status)) => Some((Err(status), None)),
            Err(_) => Some((Err(status_of(Error::unavailable("the sstable server sends nothing"))), None)),
        }
    });
    Ok((first, rest.boxed()))
}

/// Writes records as they were: with their kinds, and until when they were there. Tombstones delete.
pub(super) async fn import(pnode: &PNode, request: v1::ImportRequest) -> Result<u64> {
    let core = pnode.core();
    let table = pnode.tables_by_name().get(&request.table, core.deadline(None)).await?;
    let mut batches: BTreeMap<PartitionId, Vec<Operation>> = BTreeMap::new();
    let count = request.records.len() as u64;
    for record in request.records.into_iter().map(RecordVersion::from) {
        check_key(&record.key)?;
        let partition = core.views.slot_map.partition_of(&record.key, &table.options);
        batches.entry(partition).or_default().push(operation(&table.name, record));
    }
    let owners = Database::all().find(|database| database.elements() == table.name).map(Database::table);
    let writes = batches.into_iter().flat_map(|(partition, ops)| {
        let at_once = if owners.is_some() { BATCH_OPS_MAX / 2 } else { BATCH_OPS_MAX };
        let with_headers = |ops: &[Operation]| {
            let headers = owners.map(|owners| {
                headers_of(ops, owners, |key| {
                    core.views.slot_map.partition_of(key, &TableOptions::default()) == partition
                })
            });
            [ops, &headers.unwrap_or_default()].concat()
        };
        let batches: Vec<Vec<Operation>> = ops.chunks(at_once).map(with_headers).collect();
        batches
    });
    let writes = writes.map(|ops| async move {
        let outcome = pnode.write(ops, WriteOptions::default()).await?;
        let refused = || Error::new(ErrorKind::Internal, "an import was not applied");
        outcome.applied.then_some(()).ok_or_else(refused)
    });
    try_join_all(writes).await?;
    Ok(count)
}

/// Every change of an object writes its header, which readers go by: so these write those of their elements again, as they are.
/// (But for bounds: a touch that keeps the lifetime drops them.)
fn headers_of(elements: &[Operation], table: &str, is_together: impl Fn(&[u8]) -> bool) -> Vec<Operation> {
    let owners: BTreeSet<&[u8]> = elements.iter().filter_map(|op| inner_key(&op.key)).collect();
    let touch = |key: &[u8]| {
        let header = Operation::update(table, Bytes::copy_from_slice(key), Update::Touch);
        header.only_if(Condition::Present).skip_on_failure()
    };
    owners.into_iter().filter(|key| is_together(key)).map(touch).collect()
}

fn operation(table: &str, record: RecordVersion) -> Operation {
    let RecordVersion { key, value, marks, .. } = record;
    let Some(value) = value else { return Operation::new(table, key, Effect::Delete) };
    let effect = match marks.kind() {
        Kind::Plain => Effect::Put(value),
        kind => Effect::Update(Update::Header { kind, value }),
    };
    let lifetime = marks.expires_at().map_or(Lifetime::Unlimited, Lifetime::Until);
    Operation::new(table, key, effect).lasting(lifetime)
}

/// Has sstable servers read all that they have, and compares what they hold with the manifests.
pub(super) async fn verify(pnode: &PNode, named: &[u64], limit: Duration) -> v1::VerifyTablesReply {
    let core = pnode.core();
    let asked = core.sstables.iter().filter(|(node, _)| named.is_empty() || named.contains(&node.0));
    let asked = asked.map(|(node, peer)| {
        let mut admin = peer.admin.clone();
        let failed = |error: String| v1::VerifiedServer { node: node.0, error, ..Default::default() };
        async move {
            let verified = admin.verify_tables(v1::VerifyTablesRequest::default());
            match tokio::time::timeout(limit, verified).await {
                Ok(Ok(reply)) => {
                    let server = reply.into_inner().servers.into_iter().next();
                    server.unwrap_or_else(|| failed("it says nothing".into()))
                }
                Ok(Err(status)) => failed(status.message().to_owned()),
                Err(_) => failed("no answer in time".into()),
            }
        }
    });
    let servers = join_all(asked).await;
    let partitions = core.views.partitions().map(|partition| lacking(core, partition));
    let lacking = join_all(partitions).await.into_iter().flatten().collect();
    v1::VerifyTablesReply { servers, lacking }
}

/// Copies that the manifest names and that are not sound where they are to be, a line each.
async fn lacking(core: &Core, partition: PartitionId) -> Vec<String> {
    // First the manifest: what it names is kept for a while after a newer one does not.
    let view = core.views.load(partition);
    let inventories = core.sstables.iter().map(|(node, peer)| async move {
        let held = tokio::time::timeout(PIECE_MAX, peer.inventory(partition)).await;
        Some((*node, held.ok()?.ok()?))
    });
    let held: BTreeMap<NodeId, Vec<v1::InventoryEntry>> =
        join_all(inventories).await.into_iter().flatten().collect();
    let mut seen = HashSet::new();
    let mut lines = Vec::new();
    for sst in view.manifest.ssts() {
        if !seen.insert(sst.meta.id) {
            continue;
        }
        for node in &sst.meta.replicas {
            let copy = held.get(node).map(|held| held.iter().find(|entry| entry.id == sst.wire_id));
            let why = match copy {
                None => "does not answer",
                Some(None) => "does not have it",
                Some(Some(entry)) if entry.damaged => "has a damaged copy",
                Some(Some(entry)) if entry.checksum != sst.meta.checksum => "has another file of this name",
                Some(Some(_)) => continue,
            };
            lines
                .push(format!("partition {partition}: SSTable {}: sstable server {node} {why}", sst.meta.id));
        }
    }
    lines
}
