//! Gets, pages and ingests: messages <-> what the store is asked and answers.

use sextant_common::error::Result;
use sextant_common::ids::SstId;
use sextant_environment::env::error_of;
use sextant_proto::convert::sst_id_from_wire;
use sextant_proto::v1::{GetBatch, GetReply, GetStatus, IngestRequest, SstScanReply, SstScanRequest};
use tonic::Status;

use crate::get::{GetAnswer, Gets};
use crate::ingest::IngestPiece;
use crate::scan::{PageAnswer, PageRequest};
use crate::table::{Direction, KeyRange};

fn ids<'m>(ids: impl IntoIterator<Item = &'m bytes::Bytes>) -> impl Iterator<Item = Result<SstId>> {
    ids.into_iter().map(|id| sst_id_from_wire(id))
}

/// 0: none.
fn limit(asked: u32) -> Option<usize> {
    (asked > 0).then_some(asked as usize)
}

pub(super) fn gets_from_wire(batch: GetBatch) -> Result<Gets> {
    let mut candidates = Vec::with_capacity(batch.gets.len());
    let mut keys = Vec::with_capacity(batch.gets.len());
    for get in batch.gets {
        let before = candidates.len();
        for id in ids(&get.candidates) {
            candidates.push(id?);
        }
        keys.push((get.key, candidates.len() - before));
    }
    Ok(Gets { keys, candidates, value_bytes_max: limit(batch.value_bytes_max) })
}

fn in_reply(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

pub(super) fn get_to_wire(answer: GetAnswer) -> GetReply {
    let bare = |status: GetStatus| GetReply { status: status.into(), ..GetReply::default() };
    let of = |status: GetStatus, candidate: usize| GetReply { candidate: candidate as u32, ..bare(status) };
    match answer {
        GetAnswer::Value { value, seq, marks, candidate } => {
            let expires_at = marks.word();
            GetReply { value, seq, expires_at, ..of(GetStatus::GetValue, candidate) }
        }
        GetAnswer::Tombstone { seq, candidate } => GetReply { seq, ..of(GetStatus::GetTombstone, candidate) },
        GetAnswer::NoEntry => bare(GetStatus::GetNoEntry),
        GetAnswer::Gone { candidate } => of(GetStatus::GetTableGone, candidate),
        GetAnswer::Corrupt { candidate, message } => {
            GetReply { message, ..of(GetStatus::GetCorrupt, candidate) }
        }
        GetAnswer::Unreadable { candidate, message } => {
            GetReply { message, ..of(GetStatus::GetIoError, candidate) }
        }
        GetAnswer::TooLarge { bytes } => GetReply { bytes: in_reply(bytes), ..bare(GetStatus::GetTooLarge) },
    }
}

pub(super) fn page_from_wire(request: SstScanRequest) -> Result<PageRequest> {
    Ok(PageRequest {
        tables: ids(&request.tables).collect::<Result<_>>()?,
        range: KeyRange { start: request.start, end: request.end },
        direction: if request.reverse { Direction::Backward } else { Direction::Forward },
        records_max: limit(request.limit_records),
        bytes_max: limit(request.limit_bytes),
        first_bytes_max: limit(request.first_bytes_max),
    })
}

pub(super) fn page_to_wire(answer: PageAnswer) -> SstScanReply {
    let bare = |status: GetStatus| SstScanReply { status: status.into(), ..SstScanReply::default() };
    match answer {
        PageAnswer::Records { records, complete } => {
            let records = records.into_iter().map(Into::into).collect();
            SstScanReply { records, complete, ..bare(GetStatus::GetValue) }
        }
        PageAnswer::TooLarge(bytes) => {
            SstScanReply { bytes: in_reply(bytes), ..bare(GetStatus::GetTooLarge) }
        }
        PageAnswer::Gone(message) => SstScanReply { message, ..bare(GetStatus::GetTableGone) },
        PageAnswer::Corrupt(message) => SstScanReply { message, ..bare(GetStatus::GetCorrupt) },
        PageAnswer::Unreadable(message) => SstScanReply { message, ..bare(GetStatus::GetIoError) },
    }
}

pub(super) fn ingest_from_wire(message: Result<IngestRequest, Status>) -> Result<IngestPiece> {
    let message = message.map_err(error_of)?;
    Ok(IngestPiece {
        order: message.header.map(TryInto::try_into).transpose()?,
        records: message.records.into_iter().map(Into::into).collect(),
        finish: message.finish.then_some(message.record_count),
    })
}
