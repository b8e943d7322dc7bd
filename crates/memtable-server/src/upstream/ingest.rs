//! A frozen memtable as a stream of messages: the newest version of each key, in their order.

use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use sextant_common::expiry::{Tick, is_expired};
use sextant_common::ids::Seq;
use sextant_common::marks::Marks;
use sextant_common::sstable::{IngestOrder, RecordVersion};
use sextant_proto::v1;

use crate::memtable::{Memtable, Version};

/// Size of a message of the stream.
const CHUNK_BYTES: usize = 512 * 1024;
const CHUNK_RECORDS: usize = 4096;

enum Stage {
    Header,
    After(Bound<Bytes>),
    End,
}

/// A version as it is flushed: a tombstone, if it has expired.
fn record(key: Bytes, version: Version, expired_by: Tick) -> RecordVersion {
    let Version { seq, value, marks } = version;
    let seq = Seq(seq);
    match is_expired(marks.expires_at(), expired_by) {
        true => RecordVersion { key, seq, value: None, marks: Marks::NONE },
        false => RecordVersion { key, seq, value, marks },
    }
}

/// The messages of an ingest, made as the server takes them. `expired_by`: a published tick.
pub(super) fn messages(
    order: &IngestOrder,
    memtable: Arc<Memtable>,
    expired_by: Tick,
) -> impl tokio_stream::Stream<Item = v1::IngestRequest> + Send + 'static {
    let mut header = Some(v1::IngestHeader::from(order));
    futures::stream::unfold((Stage::Header, 0u64), move |(stage, sent)| {
        let next = match stage {
            Stage::Header => {
                let message = v1::IngestRequest { header: header.take(), ..Default::default() };
                Some((message, (Stage::After(Bound::Unbounded), 0)))
            }
            Stage::After(from) => {
                let (mut records, mut bytes) = (Vec::new(), 0);
                for (key, version) in memtable.range(from, Bound::Unbounded, u64::MAX) {
                    bytes += key.len() + version.value.as_ref().map_or(0, Bytes::len);
                    records.push(v1::ScanRecord::from(record(key, version, expired_by)));
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
