//! Whole filters as a stream of chunks.

use std::time::Duration;

use bytes::Bytes;
use sextant_common::expiry::Tick;
use sextant_common::ids::{Epoch, Generation, PartitionId, Serial, TableId};
use sextant_common::manifest::Manifest;
use sextant_common::{Error, Result};
use sextant_environment::env::error_of;
use sextant_proto::v1;
use tonic::Streaming;

use super::super::copy::UpdateStatus;
use super::{manifest_of, status};
use crate::upstream::{Hint, Leases};

/// How long the next chunk may take.
const CHUNK_MAX: Duration = Duration::from_secs(2);
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
    /// The filters in their order, and how many bytes each has.
    pub filters: Vec<(TableId, Generation, u64)>,
    /// 0: nothing that the leader says may be kept.
    pub registration_slots: usize,
    pub tick: Tick,
}

/// The bytes of all filters, one after the other; chunks need not end where filters do.
pub(in crate::filter_copies) struct Chunks(Streaming<v1::FilterChunk>);

impl Chunks {
    pub async fn next(&mut self) -> Result<Option<Bytes>> {
        Ok(self.message().await?.map(|chunk| chunk.data))
    }

    async fn message(&mut self) -> Result<Option<v1::FilterChunk>> {
        let chunk = tokio::time::timeout(CHUNK_MAX, self.0.message()).await;
        chunk.map_err(|_| Error::unavailable("no filters in time"))?.map_err(error_of)
    }
}

fn registration_slots(slots: u32) -> Result<usize> {
    if slots > REGISTRATION_SLOTS_MAX || !(slots == 0 || slots.is_power_of_two()) {
        return Err(Error::internal(format!("{slots} registration slots")));
    }
    Ok(slots as usize)
}

/// Opens the stream; its header has the manifest.
pub(in crate::filter_copies) async fn open_whole(
    leases: &mut Leases,
    holder: Bytes,
    partition: PartitionId,
) -> Result<(WholeHeader, Chunks)> {
    let request = v1::FetchFiltersRequest { holder, partition: partition.0 };
    let opened = tokio::time::timeout(CHUNK_MAX, leases.fetch_filters(request)).await;
    let mut chunks =
        Chunks(opened.map_err(|_| Error::unavailable("no filters in time"))?.map_err(error_of)?.into_inner());
    let first = chunks.message().await?;
    let header = first.and_then(|c| c.header).ok_or_else(|| Error::internal("filters without a header"))?;
    let filters = header.filters.iter();
    let header = WholeHeader {
        status: status(header.status)?,
        hint: header.leader.as_ref().map(Hint::from),
        epoch: header.epoch.unwrap_or_default().into(),
        serial: Serial(header.serial),
        filters: filters.map(|f| (TableId(f.table), Generation(f.generation), f.bytes)).collect(),
        manifest: manifest_of(partition, header.manifest)?,
        registration_slots: registration_slots(header.registration_slots)?,
        tick: Tick(header.tick),
    };
    Ok((header, chunks))
}
