//! Minor compaction: a frozen memtable becomes an SSTable on several servers.
//!
//! The leader streams the newest version of each key, sorted, to every server of the replica set; each writes the same bytes,
//! so their checksums must agree. Done when the required number is durable; the others are repaired later.

use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{FuturesUnordered, StreamExt};
use sextant_common::error::{Error, Result};
use sextant_common::ids::SstId;
use sextant_common::manifest::SstMeta;
use sextant_proto::convert::sst_id_to_wire;
use sextant_proto::v1;

use super::{Background, FlushJob};
use crate::memtable::Memtable;

/// Size of a message of the stream.
const CHUNK_BYTES: usize = 512 * 1024;
const CHUNK_RECORDS: usize = 4096;
/// When enough replicas are durable, how much longer the others may take before they are left to repair.
const STRAGGLERS: Duration = Duration::from_secs(2);

pub(super) async fn run(background: &Background, job: &FlushJob) -> Result<Option<SstMeta>> {
    if job.memtable.is_empty() {
        return Ok(None);
    }
    let id = background.new_id(job.freeze, job.epoch);
    match write(background, job, id).await {
        Ok(meta) => Ok(Some(meta)),
        Err(e) => {
            background.give_up(id);
            Err(e)
        }
    }
}

async fn write(background: &Background, job: &FlushJob, id: SstId) -> Result<SstMeta> {
    let targets = background.servers.choose(id, background.tuning.sst_replicas);
    let required = background.tuning.sst_replicas_required.min(targets.len());
    let mut running: FuturesUnordered<_> = targets
        .iter()
        .map(|server| {
            let stream = ingest_stream(id, job);
            async move { (server.id, server.ingest(stream).await) }
        })
        .collect();
    let mut written: Vec<SstMeta> = Vec::new();
    let mut errors = Vec::new();
    loop {
        let next = if written.len() >= required {
            tokio::time::timeout(STRAGGLERS, running.next()).await.unwrap_or_default()
        } else {
            running.next().await
        };
        match next {
            Some((_, Ok(meta))) => written.push(meta),
            Some((server, Err(e))) => errors.push(format!("server {server}: {e}")),
            None => break,
        }
    }
    let Some(first) = written.first().cloned() else {
        return Err(Error::unavailable(format!("no sstable server took the table ({})", errors.join("; "))));
    };
    let agreeing = written.iter().filter(|m| **m == first).count();
    if agreeing < written.len() {
        return Err(Error::corrupt(format!("replicas of {id} differ: the servers wrote different bytes")));
    }
    if agreeing < required {
        return Err(Error::unavailable(format!(
            "only {agreeing} of {required} replicas are durable ({})",
            errors.join("; ")
        )));
    }
    // (A server of an older version does not write the generations down, and tells of none.)
    if first.id != id || first.table != job.table {
        return Err(Error::internal("an sstable server answered for another table"));
    }
    Ok(SstMeta { replicas: targets.iter().map(|s| s.id).collect(), ..first })
}

enum Stage {
    Header,
    After(Bound<Bytes>),
    End,
}

/// The messages of an ingest, made as the server takes them.
fn ingest_stream(
    id: SstId,
    job: &FlushJob,
) -> impl tokio_stream::Stream<Item = v1::IngestRequest> + Send + 'static {
    let memtable: Arc<Memtable> = job.memtable.clone();
    let header = v1::IngestHeader {
        id: sst_id_to_wire(id),
        table: job.table.0,
        options: Some((&job.options).into()),
        origin: Some((&job.origin).into()),
    };
    futures::stream::unfold((Stage::Header, 0u64), move |(stage, sent)| {
        let next = match stage {
            Stage::Header => {
                let message = v1::IngestRequest { header: Some(header.clone()), ..Default::default() };
                Some((message, (Stage::After(Bound::Unbounded), 0)))
            }
            Stage::After(from) => {
                let (mut records, mut bytes) = (Vec::new(), 0);
                for (key, version) in memtable.range(from, Bound::Unbounded, u64::MAX) {
                    bytes += key.len() + version.value.as_ref().map_or(0, Bytes::len);
                    records.push(v1::ScanRecord {
                        key,
                        tombstone: version.value.is_none(),
                        value: version.value.unwrap_or_default(),
                        seq: version.seq,
                    });
                    if bytes >= CHUNK_BYTES || records.len() >= CHUNK_RECORDS {
                        break;
                    }
                }
                let sent = sent + records.len() as u64;
                match records.last().map(|r| r.key.clone()) {
                    Some(last) => {
                        let message = v1::IngestRequest { records, ..Default::default() };
                        Some((message, (Stage::After(Bound::Excluded(last)), sent)))
                    }
                    None => {
                        let message =
                            v1::IngestRequest { finish: true, record_count: sent, ..Default::default() };
                        Some((message, (Stage::End, sent)))
                    }
                }
            }
            Stage::End => None,
        };
        async move { next }
    })
}
