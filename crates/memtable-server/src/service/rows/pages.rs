//! Pages of scans: from the wire, and back.

use sextant_common::ids::{ManifestVersion, Seq, TableId};
use sextant_common::sstable::RecordVersion;
use sextant_proto::convert::manifest_change::news;
use sextant_proto::v1;

use super::reads::status_of;
use super::{CHANGES_BYTES_MAX, RowsShell};
use crate::memtable::Version;
use crate::reading::page::{Range, TooLarge, cost};
use crate::reading::{PageAnswer, Round};

/// Page limits of a scan when the request has none.
const PAGE_RECORDS: usize = 1000;
const PAGE_BYTES: usize = 1024 * 1024;
const PAGE_BYTES_MAX: usize = 8 * 1024 * 1024;
const PAGE_RECORDS_MAX: usize = 20_000;

impl RowsShell {
    /// A page of a scan, and how many bytes its records have.
    pub(super) fn page(&self, request: v1::ScanPageRequest) -> (v1::ScanPageReply, usize) {
        self.context.metrics.scan_pages.inc();
        let bare = |status: v1::ReadStatus| v1::ScanPageReply { status: status.into(), ..Default::default() };
        let Ok(handle) = self.context.partition(request.partition) else {
            return (bare(v1::ReadStatus::ReadUnknownPartition), 0);
        };
        let mut round = Round::default();
        let takes_changes = request.takes_changes;
        let (table, searched) = (TableId(request.table), ManifestVersion(request.manifest_version));
        let (at, answer) = round.at(&handle.shared).page(table, &range_of(request), searched);
        if let Some(why) = round.lapsed(&handle.shared) {
            let leader = Some(handle.shared.leader().into());
            return (v1::ScanPageReply { leader, ..bare(status_of(why)) }, 0);
        }
        let mut bytes = 0;
        let reply = match answer {
            PageAnswer::UnknownTable => bare(v1::ReadStatus::ReadUnknownTable),
            PageAnswer::StaleManifest(versions) => {
                let stale = bare(v1::ReadStatus::ReadStaleManifest);
                match takes_changes {
                    true => v1::ScanPageReply {
                        manifest_news: Some(news(&versions, searched, None, CHANGES_BYTES_MAX)),
                        ..stale
                    },
                    false => v1::ScanPageReply { manifest: Some(versions.newest.as_ref().into()), ..stale },
                }
            }
            PageAnswer::TooLarge(TooLarge(bytes)) => v1::ScanPageReply {
                bytes: u32::try_from(bytes).unwrap_or(u32::MAX),
                ..bare(v1::ReadStatus::ReadTooLarge)
            },
            PageAnswer::Page(page) => {
                bytes = page.records.iter().map(|(key, v)| cost(key, v.value.as_ref())).sum();
                let record =
                    |(key, Version { seq, value, marks })| RecordVersion { key, seq: Seq(seq), value, marks };
                let records = page.records.into_iter().map(|r| record(r).into()).collect();
                v1::ScanPageReply { records, complete: page.complete, ..bare(v1::ReadStatus::ReadValue) }
            }
        };
        (v1::ScanPageReply { snapshot_seq: at.seq, tick: at.tick.0, ..reply }, bytes)
    }
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
