//! Scans: pages of partitions, merged in key order.
//!
//! A page of a partition is a snapshot of it at one published seq: the leader's memtables as of S, naming v, merged with the
//! SSTables of v over exactly the range that the page covers. Pages, and partitions, are not synchronised with each other.
//!
//! Keys are spread over partitions by hash, so a scan in key order takes all partitions (unless the range pins one) and
//! merges their pages: such a page of the answer is no snapshot of anything, and says so.
//!
//! Bounds: a page or two per partition, and a page or two on their way to the caller. Pages are fetched as they are taken.

mod cursor;
mod page;

use std::sync::Arc;

use bytes::Bytes;
use sextant_common::ids::{PartitionId, Seq};
use sextant_common::{Error, Result};
use tokio::sync::mpsc;

use super::range::pinned_partition;
use crate::api::{MANY_PARTITIONS, Record, ScanPage, ScanRange, ScanStream};
use crate::engine::Engine;
use crate::view::TableInfo;
use cursor::Cursor;
use page::{PageSize, Rest};

/// Records a page if the caller does not say.
const PAGE_RECORDS_DEFAULT: u32 = 1000;
/// Most records a page.
const PAGE_RECORDS_MAX: u32 = 10_000;
/// Bytes of one partition's page; with many partitions less, so that all of them together stay below [`SCAN_BYTES`].
const PAGE_BYTES_MAX: usize = 1024 * 1024;
const PAGE_BYTES_MIN: usize = 64 * 1024;
/// Bytes that a scan over many partitions may hold.
const SCAN_BYTES: usize = 32 * 1024 * 1024;
/// Pages on their way to the caller.
const PAGES_AHEAD: usize = 2;
/// Records asked of each partition beyond its fair share of a small limit: keys are spread by hash, so shares vary little.
const SHARE_SLACK: u64 = 8;

impl Engine {
    pub(crate) fn scan(self: &Arc<Self>, table: &str, range: ScanRange) -> ScanStream {
        let (pages, taken) = mpsc::channel(PAGES_AHEAD);
        let (engine, table) = (self.clone(), table.to_owned());
        tokio::spawn(async move {
            if let Err(e) = engine.run_scan(&table, range, &pages).await {
                let _ = pages.send(Err(e)).await;
            }
        });
        ScanStream::new(taken)
    }

    async fn run_scan(
        self: &Arc<Self>,
        table: &str,
        range: ScanRange,
        pages: &mpsc::Sender<Result<ScanPage>>,
    ) -> Result<()> {
        if !range.end.is_empty() && range.start >= range.end {
            return Ok(());
        }
        let table = self.table(table, self.deadline(None)).await?;
        let partitions: Vec<PartitionId> = match range.partition {
            Some(partition) if !self.views.contains(partition) => {
                return Err(Error::invalid(format!("there is no partition {partition}")));
            }
            Some(partition) => vec![partition],
            None => match pinned_partition(&range.start, &range.end, &table.options, &self.views.slot_map) {
                Some(partition) => vec![partition],
                None => self.views.partitions().collect(),
            },
        };
        let page_records = match range.page_records {
            0 => PAGE_RECORDS_DEFAULT,
            n => n.min(PAGE_RECORDS_MAX),
        };
        let limit = if range.limit == 0 { u64::MAX } else { range.limit };
        let rest = Rest { start: range.start, end: range.end, reverse: range.reverse };
        match partitions[..] {
            [partition] => self.scan_one(&table, partition, rest, limit, page_records, pages).await,
            _ => self.scan_merged(&table, partitions, rest, limit, page_records, pages).await,
        }
    }

    /// Pages of one partition: each is a snapshot.
    async fn scan_one(
        self: &Arc<Self>,
        table: &Arc<TableInfo>,
        partition: PartitionId,
        rest: Rest,
        mut limit: u64,
        page_records: u32,
        pages: &mpsc::Sender<Result<ScanPage>>,
    ) -> Result<()> {
        let mut rest = Some(rest);
        while let Some(from) = rest
            && limit > 0
            && !pages.is_closed()
        {
            let size =
                PageSize { records: limit.min(u64::from(page_records)) as u32, bytes: PAGE_BYTES_MAX as u32 };
            let mut page = self.partition_page(table, partition, from, size).await?;
            page.records.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
            limit -= page.records.len() as u64;
            rest = page.rest;
            if !page.records.is_empty() {
                let page = ScanPage { partition, snapshot_seq: page.snapshot_seq, records: page.records };
                if pages.send(Ok(page)).await.is_err() {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Pages of several partitions, merged in key order.
    async fn scan_merged(
        self: &Arc<Self>,
        table: &Arc<TableInfo>,
        partitions: Vec<PartitionId>,
        rest: Rest,
        mut limit: u64,
        page_records: u32,
        pages: &mpsc::Sender<Result<ScanPage>>,
    ) -> Result<()> {
        let count = partitions.len();
        let share = (limit / count as u64).saturating_mul(2).saturating_add(SHARE_SLACK);
        let size = PageSize {
            records: share.min(u64::from(page_records)) as u32,
            bytes: (SCAN_BYTES / (2 * count)).clamp(PAGE_BYTES_MIN, PAGE_BYTES_MAX) as u32,
        };
        let reverse = rest.reverse;
        let mut cursors: Vec<Cursor> =
            partitions.into_iter().map(|p| Cursor::start(self, table, p, rest.clone(), size)).collect();
        let (mut out, mut out_bytes) = (Vec::new(), 0);
        while limit > 0 && !pages.is_closed() {
            for cursor in &mut cursors {
                cursor.fill(limit).await?;
            }
            let heads = cursors.iter().enumerate().filter_map(|(at, c)| c.head().map(|key| (key, at)));
            let first = if reverse { heads.max() } else { heads.min() };
            let Some((_, at)) = first else { break };
            if let Some((key, record)) = cursors[at].ahead.pop_front() {
                out_bytes += key.len() + record.value.len();
                out.push((key, record));
            }
            limit -= 1;
            if out.len() >= page_records as usize || out_bytes >= PAGE_BYTES_MAX {
                out_bytes = 0;
                if !send_merged(pages, &mut out).await {
                    return Ok(());
                }
            }
        }
        if !out.is_empty() {
            send_merged(pages, &mut out).await;
        }
        Ok(())
    }
}

async fn send_merged(pages: &mpsc::Sender<Result<ScanPage>>, records: &mut Vec<(Bytes, Record)>) -> bool {
    let page =
        ScanPage { partition: MANY_PARTITIONS, snapshot_seq: Seq(0), records: std::mem::take(records) };
    pages.send(Ok(page)).await.is_ok()
}
