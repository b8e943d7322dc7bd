//! Whole filters as a stream of chunks.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use sextant_common::expiry::Tick;
use sextant_common::ids::{Epoch, Generation, PartitionId, Serial, TableId};
use sextant_common::manifest::{Manifest, ManifestDigest};
use sextant_common::{Error, Result};
use sextant_environment::env::error_of;
use sextant_proto::convert::manifest;
use sextant_proto::convert::manifest_change::ToldOfManifest;
use sextant_proto::v1;
use tonic::Streaming;

use super::super::copy::UpdateStatus;
use super::{is_of, manifest_of, status, told_of};
use crate::upstream::{Hint, Leases};
use crate::view::ManifestView;

/// How long the next chunk may take.
const CHUNK_MAX: Duration = Duration::from_secs(2);
/// Longest manifest that is accepted: of some hundred thousand tables.
const MANIFEST_BYTES_MAX: u64 = 256 << 20;
/// Most registration slots that are accepted: 8 MiB of serials.
const REGISTRATION_SLOTS_MAX: u32 = 1 << 20;

/// What comes before the filters.
#[derive(Debug)]
pub(in crate::filter_copies) struct WholeHeader {
    pub status: UpdateStatus,
    pub hint: Option<Hint>,
    pub epoch: Epoch,
    pub serial: Serial,
    pub manifest: Option<Manifest>,
    /// Of the manifest; None: an older server says nothing of it.
    pub told: Option<ToldOfManifest>,
    /// The filters in their order, and how many bytes each has.
    pub filters: Vec<(TableId, Generation, u64)>,
    /// 0: nothing that the leader says may be kept.
    pub registration_slots: usize,
    pub tick: Tick,
}

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::filter_copies) enum Wanted {
    FiltersAndManifest,
    Manifest,
}

/// The bytes of what the header announces, one after the other; chunks need not end where parts do.
pub(in crate::filter_copies) struct Chunks {
    chunks: Streaming<v1::FilterChunk>,
    buffer: BytesMut,
}

impl Chunks {
    /// The next so many bytes.
    pub async fn take(&mut self, bytes: u64) -> Result<Bytes> {
        while (self.buffer.len() as u64) < bytes {
            let chunk = self.message().await?.ok_or_else(|| Error::unavailable("the filters end early"))?;
            self.buffer.extend_from_slice(&chunk.data);
        }
        Ok(self.buffer.split_to(bytes as usize).freeze())
    }

    async fn message(&mut self) -> Result<Option<v1::FilterChunk>> {
        let chunk = tokio::time::timeout(CHUNK_MAX, self.chunks.message()).await;
        chunk.map_err(|_| Error::unavailable("no filters in time"))?.map_err(error_of)
    }
}

fn registration_slots(slots: u32) -> Result<usize> {
    if slots > REGISTRATION_SLOTS_MAX || !(slots == 0 || slots.is_power_of_two()) {
        return Err(Error::internal(format!("{slots} registration slots")));
    }
    Ok(slots as usize)
}

/// Opens the stream. The manifest has come by then, in the header or after it, or what is new of it to who has `held`.
pub(in crate::filter_copies) async fn open_whole(
    leases: &mut Leases,
    holder: Bytes,
    partition: PartitionId,
    wanted: Wanted,
    held: &ManifestView,
) -> Result<(WholeHeader, Chunks)> {
    let request = v1::FetchFiltersRequest {
        holder,
        partition: partition.0,
        takes_pieces: true,
        only_manifest: wanted == Wanted::Manifest,
        manifest_version: held.version.0,
        manifest_digest: if wanted == Wanted::Manifest { 0 } else { held.digest.0 },
    };
    let opened = tokio::time::timeout(CHUNK_MAX, leases.fetch_filters(request)).await;
    let opened = opened.map_err(|_| Error::unavailable("no filters in time"))?.map_err(error_of)?;
    let mut chunks = Chunks { chunks: opened.into_inner(), buffer: BytesMut::new() };
    let first = chunks.message().await?;
    let header = first.and_then(|c| c.header).ok_or_else(|| Error::internal("filters without a header"))?;
    if header.manifest_bytes > MANIFEST_BYTES_MAX {
        let bytes = header.manifest_bytes;
        return Err(Error::internal(format!(
            "a manifest of {bytes} bytes: the limit is {MANIFEST_BYTES_MAX}"
        )));
    }
    let manifest = match header.manifest_bytes {
        0 => manifest_of(partition, header.manifest)?,
        bytes => is_of(partition, Some(manifest::decode(chunks.take(bytes).await?)?))?,
    };
    let of_whole = manifest.as_ref().filter(|_| header.manifest_digest != 0).map(|manifest| ToldOfManifest {
        partition,
        version: manifest.version,
        digest: ManifestDigest(header.manifest_digest),
        changes: Vec::new(),
    });
    let told = told_of(partition, header.manifest_news)?.or(of_whole);
    let filters = header.filters.iter();
    let header = WholeHeader {
        status: status(header.status)?,
        hint: header.leader.as_ref().map(Hint::from),
        epoch: header.epoch.unwrap_or_default().into(),
        serial: Serial(header.serial),
        filters: filters.map(|f| (TableId(f.table), Generation(f.generation), f.bytes)).collect(),
        manifest,
        told,
        registration_slots: registration_slots(header.registration_slots)?,
        tick: Tick(header.tick),
    };
    Ok((header, chunks))
}
