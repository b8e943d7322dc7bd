//! Reads and pages of scans: from the wire, and back.

use std::collections::HashMap;

use sextant_common::ids::{ManifestVersion, TableId};
use sextant_common::limits;
use sextant_environment::room::Share;
use sextant_proto::v1;
use sextant_rules::probe::PausePoint;

use super::RowsShell;
use crate::partition::view::ReadAnswer;
use crate::reading::page::{Range, TooLarge, cost};
use crate::reading::{Lapsed, PageAnswer, Round};

/// Values that one answer carries: the last one may be as large as a value can be.
const REPLY_BYTES_MAX: usize = 12 * 1024 * 1024;
/// Page limits of a scan when the request has none.
const PAGE_RECORDS: usize = 1000;
const PAGE_BYTES: usize = 1024 * 1024;
const PAGE_BYTES_MAX: usize = 8 * 1024 * 1024;
const PAGE_RECORDS_MAX: usize = 20_000;

impl RowsShell {
    /// Answers a batch of reads.
    async fn read_batch(&self, batch: v1::ReadBatch) -> v1::ReadBatchReply {
        self.context.metrics.read_messages.inc();
        self.context.metrics.reads.inc_by(batch.reads.len() as u64);
        let mut reply = v1::ReadBatchReply { batch: batch.batch, ..Default::default() };
        let mut round = Round::default();
        let value_bytes_max = match batch.value_bytes_max {
            0 => usize::MAX,
            max => max as usize,
        };
        let mut partitions = Vec::with_capacity(batch.reads.len());
        let mut bytes = 0;
        for read in batch.reads {
            partitions.push(read.partition);
            let mut answer = self.read_one(&read, &mut round);
            if answer.value.len() > value_bytes_max {
                answer = too_large(answer.value.len());
            } else if bytes > REPLY_BYTES_MAX {
                // To be asked again: one message carries only so much. (Who names no limit knows of none.)
                answer = match value_bytes_max {
                    usize::MAX => read_status(v1::ReadStatus::ReadNotReady),
                    _ => too_large(answer.value.len()),
                };
            }
            bytes += answer.value.len();
            reply.replies.push(answer);
        }
        self.context.env.pause_point(PausePoint::MemtablesRead).await;
        let mut lapsed: HashMap<u32, Option<v1::ReadStatus>> = HashMap::new();
        for (id, answer) in partitions.iter().zip(&mut reply.replies) {
            let Ok(handle) = self.context.partition(*id) else { continue };
            let lapsed = *lapsed.entry(*id).or_insert_with(|| {
                let why = round.lapsed(&handle.shared)?;
                if let Lapsed::NotLeader(leader) = why {
                    reply.leaders.push(leader.into());
                }
                Some(status_of(why))
            });
            if let Some(status) = lapsed {
                *answer = read_status(status);
            } else if answer.status() == v1::ReadStatus::ReadStaleManifest
                && !reply.manifests.iter().any(|m: &v1::Manifest| m.partition == *id)
            {
                self.context.metrics.stale_reads.inc();
                reply.manifests.push(handle.shared.manifest().as_ref().into());
            }
        }
        reply
    }

    /// The same with the room that its large values take until it has left. (Until then its values are those of the
    /// memtables; it is encoded when the connection asks for it.)
    pub(super) async fn answer(&self, batch: v1::ReadBatch) -> (v1::ReadBatchReply, Option<Share>) {
        let mut reply = self.read_batch(batch).await;
        let is_large = |r: &v1::ReadReply| r.value.len() > limits::LARGE_BYTES;
        let bytes: usize = reply.replies.iter().filter(|r| is_large(r)).map(|r| r.value.len()).sum();
        let room = match self.room_for_answer(bytes).await {
            Ok(room) => room,
            Err(_) => {
                for reply in reply.replies.iter_mut().filter(|r| is_large(r)) {
                    *reply = too_large(reply.value.len());
                }
                None
            }
        };
        (reply, room)
    }

    fn read_one(&self, read: &v1::ReadRequest, round: &mut Round) -> v1::ReadReply {
        let Ok(handle) = self.context.partition(read.partition) else {
            return read_status(v1::ReadStatus::ReadUnknownPartition);
        };
        let searched = ManifestVersion(read.manifest_version);
        match round.at(&handle.shared).read(TableId(read.table), &read.key, searched) {
            ReadAnswer::Found(version) => {
                let status = match version.value {
                    Some(_) => v1::ReadStatus::ReadValue,
                    None => v1::ReadStatus::ReadTombstone,
                };
                let value = version.value.unwrap_or_default();
                v1::ReadReply { bytes: 0, status: status.into(), value, seq: version.seq }
            }
            ReadAnswer::NoEntry => read_status(v1::ReadStatus::ReadNoEntry),
            ReadAnswer::StaleManifest => read_status(v1::ReadStatus::ReadStaleManifest),
            ReadAnswer::UnknownTable => read_status(v1::ReadStatus::ReadUnknownTable),
        }
    }

    /// A page of a scan, and how many bytes its records have.
    pub(super) fn page(&self, request: v1::ScanPageRequest) -> (v1::ScanPageReply, usize) {
        self.context.metrics.scan_pages.inc();
        let bare = |status: v1::ReadStatus| v1::ScanPageReply { status: status.into(), ..Default::default() };
        let Ok(handle) = self.context.partition(request.partition) else {
            return (bare(v1::ReadStatus::ReadUnknownPartition), 0);
        };
        let mut round = Round::default();
        let (table, searched) = (TableId(request.table), ManifestVersion(request.manifest_version));
        let (at, answer) = round.at(&handle.shared).page(table, &range_of(request), searched);
        if let Some(why) = round.lapsed(&handle.shared) {
            let leader = Some(handle.shared.leader().into());
            return (v1::ScanPageReply { leader, ..bare(status_of(why)) }, 0);
        }
        let mut bytes = 0;
        let reply = match answer {
            PageAnswer::UnknownTable => bare(v1::ReadStatus::ReadUnknownTable),
            PageAnswer::StaleManifest(manifest) => v1::ScanPageReply {
                manifest: Some(manifest.as_ref().into()),
                ..bare(v1::ReadStatus::ReadStaleManifest)
            },
            PageAnswer::TooLarge(TooLarge(bytes)) => v1::ScanPageReply {
                bytes: u32::try_from(bytes).unwrap_or(u32::MAX),
                ..bare(v1::ReadStatus::ReadTooLarge)
            },
            PageAnswer::Page(page) => {
                bytes = page.records.iter().map(|(key, v)| cost(key, v.value.as_ref())).sum();
                let record = |(key, version): (_, crate::memtable::Version)| v1::ScanRecord {
                    key,
                    tombstone: version.value.is_none(),
                    value: version.value.unwrap_or_default(),
                    seq: version.seq,
                };
                let records = page.records.into_iter().map(record).collect();
                v1::ScanPageReply { records, complete: page.complete, ..bare(v1::ReadStatus::ReadValue) }
            }
        };
        (v1::ScanPageReply { snapshot_seq: at, ..reply }, bytes)
    }
}

fn read_status(status: v1::ReadStatus) -> v1::ReadReply {
    v1::ReadReply { status: status.into(), ..Default::default() }
}

fn status_of(lapsed: Lapsed) -> v1::ReadStatus {
    match lapsed {
        Lapsed::NotReady => v1::ReadStatus::ReadNotReady,
        Lapsed::NotLeader(_) => v1::ReadStatus::ReadNotLeader,
    }
}

fn too_large(bytes: usize) -> v1::ReadReply {
    let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
    v1::ReadReply { bytes, ..read_status(v1::ReadStatus::ReadTooLarge) }
}

fn range_of(request: v1::ScanPageRequest) -> Range {
    let limit = |asked: u32, default: usize, max: usize| match asked {
        0 => default,
        n => (n as usize).min(max),
    };
    Range {
        start: request.start,
        end: request.end,
        reverse: request.reverse,
        records_max: limit(request.limit_records, PAGE_RECORDS, PAGE_RECORDS_MAX),
        bytes_max: limit(request.limit_bytes, PAGE_BYTES, PAGE_BYTES_MAX),
        first_bytes_max: (request.first_bytes_max > 0).then_some(request.first_bytes_max as usize),
    }
}
