//! Pages of scans: the named tables merged, the newest record of each key, tombstones included.

use std::sync::Arc;

use bytes::Bytes;
use sextant_common::error::{Error, ErrorKind, Result};
use sextant_common::ids::SstId;
use sextant_common::limits::LARGE_BYTES;
use sextant_environment::room::Share;
use sextant_environment::vfs::IoKind;
use sextant_proto::convert::sst_id_from_wire;
use sextant_proto::v1::{GetStatus, ScanRecord, SstScanReply, SstScanRequest};

use crate::store::Store;
use crate::table::{Caching, Direction, KeyRange, Merge, Table, TableIter};

/// Most tables of one scan: more than a partition has.
const SCAN_TABLES_MAX: usize = 4096;
/// Used if the request states no limit, or a larger one.
const PAGE_RECORDS_MAX: usize = 100_000;
const PAGE_BYTES_MAX: usize = 8 * 1024 * 1024;
/// What a record costs in the message beyond key and value.
const RECORD_OVERHEAD_BYTES: usize = 32;

struct Page {
    tables: Vec<Arc<Table>>,
    range: KeyRange,
    direction: Direction,
    records_max: usize,
    bytes_max: usize,
    /// Of the first record.
    first_bytes_max: usize,
}

impl Store {
    /// Reads one page; also the room that it takes until it has left. `Err`: the request is malformed, or there is no room; what
    /// is missing or damaged is a status.
    pub async fn scan_page(
        self: &Arc<Self>,
        request: SstScanRequest,
    ) -> Result<(SstScanReply, Option<Share>)> {
        if request.tables.len() > SCAN_TABLES_MAX {
            return Err(Error::invalid(format!(
                "scan names {} tables: the limit is {SCAN_TABLES_MAX}",
                request.tables.len()
            )));
        }
        let ids = request.tables.iter().map(|id| sst_id_from_wire(id)).collect::<Result<Vec<_>>>()?;
        self.metrics.scans.inc();
        let tables = match self.tables_of(&ids) {
            Ok(tables) => tables,
            Err(reply) => return Ok((reply, None)),
        };
        let at_most = |asked: u32, most: usize| if asked == 0 { most } else { most.min(asked as usize) };
        let page = Page {
            tables,
            range: KeyRange { start: request.start, end: request.end },
            direction: if request.reverse { Direction::Backward } else { Direction::Forward },
            records_max: at_most(request.limit_records, PAGE_RECORDS_MAX),
            bytes_max: at_most(request.limit_bytes, PAGE_BYTES_MAX),
            first_bytes_max: at_most(request.first_bytes_max, usize::MAX),
        };
        // Held until there is room for the page: so few pages are in memory without.
        let _scan = self.scans.take().await?;
        let turn = self.disk_reads.take().await?;
        let store = self.clone();
        let work = move || {
            let read = page.read();
            drop(turn);
            let (reply, disk_bytes) = read?;
            store.metrics.scanned_records.inc_by(reply.records.len() as u64);
            store.metrics.disk_bytes.inc_by(disk_bytes);
            Ok(reply)
        };
        let reply = match self.disk(IoKind::Read, work).await {
            Err(e) if e.kind == ErrorKind::Corrupt => failed(GetStatus::GetCorrupt, &e),
            Err(e) if e.kind == ErrorKind::Disk => failed(GetStatus::GetIoError, &e),
            result => result?,
        };
        let bytes: usize =
            reply.records.iter().map(|r| r.key.len() + r.value.len() + RECORD_OVERHEAD_BYTES).sum();
        let room = if bytes > LARGE_BYTES { Some(self.answers.take(bytes).await?) } else { None };
        Ok((reply, room))
    }

    fn tables_of(&self, ids: &[SstId]) -> Result<Vec<Arc<Table>>, SstScanReply> {
        let tables = self.catalog.tables();
        let find = |id: &SstId| match tables.get(id).map(|entry| entry.table()) {
            Some(Ok(table)) => Ok(table.clone()),
            Some(Err(e)) => Err(failed(GetStatus::GetCorrupt, &e)),
            None => Err(failed(GetStatus::GetTableGone, &crate::store::gone(*id))),
        };
        ids.iter().map(find).collect()
    }
}

fn failed(status: GetStatus, e: &Error) -> SstScanReply {
    SstScanReply { status: status.into(), message: e.message.to_string(), ..SstScanReply::default() }
}

impl Page {
    /// The page, and how many bytes of files it took.
    fn read(self) -> Result<(SstScanReply, u64)> {
        let open = |table| TableIter::new(table, self.range.clone(), self.direction, Caching::Look);
        let iters = self.tables.into_iter().map(open).collect::<Result<Vec<_>>>()?;
        let mut merge = Merge::new(iters, self.direction);
        let mut records = Vec::new();
        let mut bytes = 0;
        while !merge.is_at_end() && records.len() < self.records_max {
            let more = merge.key().len() + merge.value_ref().len() + RECORD_OVERHEAD_BYTES;
            if records.is_empty() && more > self.first_bytes_max {
                let bytes = u32::try_from(more).unwrap_or(u32::MAX);
                let reply =
                    SstScanReply { status: GetStatus::GetTooLarge.into(), bytes, ..SstScanReply::default() };
                return Ok((reply, merge.disk_bytes()));
            }
            bytes += more;
            // One record always fits: a page makes progress.
            if bytes > self.bytes_max && !records.is_empty() {
                break;
            }
            records.push(ScanRecord {
                key: Bytes::copy_from_slice(merge.key()),
                value: merge.value(),
                seq: merge.seq(),
                tombstone: merge.is_tombstone(),
            });
            merge.advance()?;
        }
        let complete = merge.is_at_end();
        let disk_bytes = merge.disk_bytes();
        let status = GetStatus::GetValue.into();
        Ok((SstScanReply { status, records, complete, ..SstScanReply::default() }, disk_bytes))
    }
}
