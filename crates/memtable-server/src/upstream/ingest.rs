//! A frozen memtable as a stream of messages: the newest version of each key, in their order.

use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use sextant_common::ids::Seq;
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

/// The messages of an ingest, made as the server takes them.
pub(super) fn messages(
    order: &IngestOrder,
    memtable: Arc<Memtable>,
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
                    let Version { seq, value } = version;
                    records.push(v1::ScanRecord::from(RecordVersion { key, seq: Seq(seq), value }));
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
