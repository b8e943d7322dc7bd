//! Whole filters as a stream of messages.

use bytes::Bytes;
use sextant_common::ids::ManifestVersion;
use sextant_common::manifest::{ManifestDigest, Versions};
use sextant_proto::convert::manifest;
use sextant_proto::convert::manifest_change::news;
use sextant_proto::v1;
use tonic::Status;

use super::CHANGES_BYTES_MAX;
use crate::replica::FilterSet;

/// Size of a message with filter bytes.
const CHUNK_BYTES: usize = 256 * 1024;

/// A header, then the manifest's bytes if it comes in pieces, then the filters' in its order; and whether the whole manifest is in it.
pub(super) fn chunks(
    set: FilterSet,
    request: &v1::FetchFiltersRequest,
) -> (Vec<Result<v1::FilterChunk, Status>>, bool) {
    let news = news_for(&set.manifest, request);
    let is_whole = news.is_none();
    let in_pieces = is_whole && request.takes_pieces;
    let pieces = if in_pieces { manifest::encode(&set.manifest.newest) } else { Vec::new() };
    let header = v1::FilterHeader {
        status: v1::PartitionStatus::PartitionOk.into(),
        epoch: Some(set.epoch.into()),
        serial: set.serial.0,
        manifest: (is_whole && !in_pieces).then(|| set.manifest.newest.as_ref().into()),
        manifest_news: news,
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
    (out, is_whole)
}

/// What a holder is told instead of the whole manifest, if that is enough.
fn news_for(versions: &Versions, request: &v1::FetchFiltersRequest) -> Option<v1::ManifestNews> {
    let held = ManifestVersion(request.manifest_version);
    let digest = Some(ManifestDigest(request.manifest_digest)).filter(|digest| digest.0 != 0)?;
    let news = news(versions, held, Some(digest), CHANGES_BYTES_MAX);
    let is_enough = !news.changes.is_empty() || !versions.is_news(held, Some(digest));
    Some(news).filter(|_| request.takes_pieces && is_enough)
}
