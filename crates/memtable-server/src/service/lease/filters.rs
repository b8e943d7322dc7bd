//! Whole filters as a stream of messages.

use bytes::Bytes;
use sextant_proto::convert::manifest;
use sextant_proto::v1;
use tonic::Status;

use crate::replica::FilterSet;

/// Size of a message with filter bytes.
const CHUNK_BYTES: usize = 256 * 1024;

/// A header, then the manifest's bytes if it comes in pieces, then the filters' in its order.
pub(super) fn chunks(set: FilterSet, in_pieces: bool) -> Vec<Result<v1::FilterChunk, Status>> {
    let pieces = if in_pieces { manifest::encode(&set.manifest.newest) } else { Vec::new() };
    let header = v1::FilterHeader {
        status: v1::PartitionStatus::PartitionOk.into(),
        epoch: Some(set.epoch.into()),
        serial: set.serial.0,
        manifest: (!in_pieces).then(|| set.manifest.newest.as_ref().into()),
        manifest_bytes: pieces.len() as u64,
        manifest_digest: set.manifest.digest().0,
        filters: set
            .filters
            .iter()
            .map(|(table, generation, bytes)| v1::MemtableFilter {
                table: table.0,
                generation: generation.0,
                bytes: bytes.len() as u64,
            })
            .collect(),
        leader: None,
        registration_slots: set.registration_slots as u32,
        tick: set.tick.0,
    };
    let mut out = vec![Ok(v1::FilterChunk { header: Some(header), data: Bytes::new() })];
    for bytes in std::iter::once(pieces).chain(set.filters.into_iter().map(|(_, _, bytes)| bytes)) {
        let mut bytes = Bytes::from(bytes);
        while !bytes.is_empty() {
            let data = bytes.split_to(bytes.len().min(CHUNK_BYTES));
            out.push(Ok(v1::FilterChunk { header: None, data }));
        }
    }
    out
}
