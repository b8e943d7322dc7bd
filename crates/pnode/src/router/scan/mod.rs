//! Scans: pages of partitions, merged in key order.
//!
//! Of a snapshot that a client has opened, a page has what the SSTables of its cut have, judged by the cut's tick; and all pages are of
//! one position of the partition's log.
//!
//! Otherwise a page of a partition is a snapshot of it at one published seq: the leader's memtables as of S, naming v, merged with the
//! SSTables of v over exactly the range that the page covers; or, if no memtable has a key that begins as all of the range do, the
//! SSTables alone. Pages, and partitions, are not synchronised with each other.
//!
//! Keys are spread over partitions by hash, so a scan in key order takes all partitions (unless the range pins one) and
//! merges their pages: such a page of the answer is no snapshot of anything, and says so.
//!
//! A page says where the scan goes on behind it. For who wants to hear of a scan that finds nothing for long, pages without records say
//! that, too ([`silence`]): of several partitions as far as all of them have come, with what is known to come first.
//!
//! Bounds: a page or two per partition, and a page or two on their way to the caller. Pages are fetched as they are taken. A scan
//! begins when there is room for all of these, of pages as large as there is room for. A record that is longer than a page comes
//! alone, with room of its own ([`crate::upstream::LargeReads`]).

mod cursor;
mod page;
mod rest;
mod silence;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::TryStreamExt;
use futures::stream::FuturesUnordered;
use sextant_common::ids::MANY_PARTITIONS;
use sextant_common::ids::{PartitionId, Seq};
use sextant_common::manifest::TableInfo;
use sextant_common::operation::Record;
use sextant_common::{Error, ErrorKind, Result};
use sextant_environment::room::{Purse, Room, Share};
use tokio::sync::mpsc;

use super::range::pinned_partition;
use crate::api::{ScanPage, ScanRange, ScanStream};
use crate::core::Core;
use crate::filter_copies::Copies;
use crate::snapshots::Snapshots;
use crate::tables::Tables;
use crate::upstream::{LargeReads, busy};
use cursor::Cursor;
use page::{OfSnapshot, PageSize, Pages};
use rest::Rest;
use silence::Told;

/// Records a page if the caller does not say.
const PAGE_RECORDS_DEFAULT: u32 = 1000;
/// Most records a page.
const PAGE_RECORDS_MAX: u32 = 10_000;
/// Bytes of one partition's page; with many partitions less, so that all of them together stay below [`SCAN_BYTES`].
const PAGE_BYTES_MAX: usize = 1024 * 1024;
const PAGE_BYTES_MIN: usize = 64 * 1024;
/// Bytes that a scan over many partitions may hold.
const SCAN_BYTES: usize = 32 * 1024 * 1024;
/// Bytes of pages that all scans of a p-node may hold. While more than half of them are taken, pages are small.
const SCANS_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Pages on their way to the caller.
const PAGES_AHEAD: usize = 2;
/// Pages that a scan holds besides those of its partitions: those ahead, one that waits to be, and one that is being made or sent.
const PAGES_IN_HAND: usize = PAGES_AHEAD + 2;
/// Records asked of each partition beyond its fair share of a small limit: keys are spread by hash, so shares vary little.
const SHARE_SLACK: u64 = 8;

/// The pages of a scan: how large they are, and the room for what is larger.
struct Paging {
    source: Arc<Pages>,
    size: PageSize,
    purse: Arc<Purse>,
    first_page: bool,
    /// Without records. None: no page comes without any.
    silence_max: Option<Duration>,
}

/// Where pages go.
struct Sink {
    pages: mpsc::Sender<Result<ScanPage>>,
    sent: AtomicBool,
}

impl Sink {
    async fn send(&self, page: Result<ScanPage>) -> Result<(), mpsc::error::SendError<Result<ScanPage>>> {
        self.sent.store(true, Ordering::Relaxed);
        self.pages.send(page).await
    }

    fn has_sent(&self) -> bool {
        self.sent.load(Ordering::Relaxed)
    }
}

pub(super) struct Scans {
    core: Arc<Core>,
    tables: Arc<Tables>,
    large_reads: Arc<LargeReads>,
    pages: Arc<Pages>,
    snapshots: Arc<Snapshots>,
    /// For pages of scans.
    room: Room,
}

impl Scans {
    pub fn new(
        core: &Arc<Core>,
        copies: &Arc<Copies>,
        tables: &Arc<Tables>,
        large_reads: &Arc<LargeReads>,
        snapshots: &Arc<Snapshots>,
    ) -> Self {
        Self {
            core: core.clone(),
            tables: tables.clone(),
            large_reads: large_reads.clone(),
            pages: Arc::new(Pages::new(core, copies, tables, large_reads)),
            snapshots: snapshots.clone(),
            room: Room::new(SCANS_BYTES_MAX),
        }
    }

    /// `snapshot`: of what it has; None: of what there is.
    pub fn scan(self: &Arc<Self>, table: &str, range: ScanRange, snapshot: Option<u64>) -> ScanStream {
        let (pages, taken) = mpsc::channel(PAGES_AHEAD);
        let pages = Sink { pages, sent: AtomicBool::new(false) };
        let (scans, table) = (self.clone(), table.to_owned());
        let whole = Arc::new(AtomicBool::new(false));
        let stream = ScanStream::new(taken, whole.clone());
        tokio::spawn(async move {
            // (Whoever takes no more pages waits for none: not even for one behind a long run of deleted records.)
            tokio::select! {
                () = scans.run_to_end(&table, range, snapshot, &pages) => {}
                () = pages.pages.closed() => {}
            }
            // Before the channel is closed. A task that panics does not come here.
            whole.store(true, Ordering::Release);
        });
        stream
    }

    /// Whether those who take their time keep pages from others.
    pub fn is_crowded(&self) -> bool {
        self.room.held_bytes() > SCANS_BYTES_MAX / 2
    }

    async fn run_to_end(&self, table: &str, range: ScanRange, snapshot: Option<u64>, pages: &Sink) {
        let before = self.core.views.tables.get(table).map(|table| table.id);
        let mut scanned = self.run(table, range.clone(), snapshot, pages).await;
        if scanned.as_ref().is_err_and(|e| e.kind == ErrorKind::UnknownTable && !pages.has_sent()) {
            // This p-node had not heard that the table was dropped, and made anew.
            let now = self.core.views.tables.get(table).map(|table| table.id);
            if now.is_some() && now != before {
                scanned = self.run(table, range, snapshot, pages).await;
            }
        }
        if let Err(e) = scanned {
            let _ = pages.send(Err(e)).await;
        }
    }

    async fn run(&self, table: &str, range: ScanRange, snapshot: Option<u64>, pages: &Sink) -> Result<()> {
        if !range.end.is_empty() && range.start >= range.end {
            return Ok(());
        }
        let snapshot = match snapshot {
            Some(id) => Some(self.snapshots.find(id).await?),
            None => None,
        };
        // (What has the name today may be another table.)
        let then = snapshot.as_ref().and_then(|snapshot| snapshot.table(table));
        let table = match then {
            Some(table) => Arc::new(table),
            None => self.tables.get(table, self.core.deadline(None)).await?,
        };
        let partitions: Vec<PartitionId> = match range.partition {
            Some(partition) if !self.core.views.contains(partition) => {
                return Err(Error::invalid(format!("there is no partition {partition}")));
            }
            Some(partition) => vec![partition],
            None => {
                match pinned_partition(&range.start, &range.end, &table.options, &self.core.views.slot_map) {
                    Some(partition) => vec![partition],
                    None => self.core.views.partitions().collect(),
                }
            }
        };
        let source = match snapshot {
            None => self.pages.clone(),
            Some(snapshot) => {
                let of = OfSnapshot { snapshot, all: self.snapshots.clone() };
                Arc::new(self.pages.of_snapshot(of))
            }
        };
        let (_room, page_bytes) = self.room_for_scan(partitions.len()).await?;
        let purse = Arc::new(self.large_reads.purse());
        let page_records = match range.page_records {
            0 => PAGE_RECORDS_DEFAULT,
            n => n.min(PAGE_RECORDS_MAX),
        };
        let limit = if range.limit == 0 { u64::MAX } else { range.limit };
        let ScanRange { start, end, reverse, .. } = range;
        let rest = Rest { start, end, reverse, large_at: None, ask_at_least: 0 };
        let (first_page, silence_max) = (range.first_page, range.silence_max);
        let size = PageSize { records: page_records, bytes: page_bytes as u32 };
        let paging = Paging { source, size, purse, first_page, silence_max };
        match partitions[..] {
            [partition] => self.scan_one(&table, partition, rest, limit, &paging, pages).await,
            _ => self.scan_merged(&table, partitions, rest, limit, &paging, pages).await,
        }
    }

    /// Room for a scan of so many partitions, and how large its pages may be.
    async fn room_for_scan(&self, partitions: usize) -> Result<(Share, usize)> {
        let pages = 2 * partitions + PAGES_IN_HAND;
        let bytes = (SCAN_BYTES / (2 * partitions)).clamp(PAGE_BYTES_MIN, PAGE_BYTES_MAX);
        if self.room.held_bytes() + pages * bytes <= SCANS_BYTES_MAX / 2
            && let Some(share) = self.room.try_take(pages * bytes)
        {
            return Ok((share, bytes));
        }
        let patience = self.core.deadline(None).left(&*self.core.env.clock);
        let share = tokio::time::timeout(patience, self.room.take(pages * PAGE_BYTES_MIN)).await;
        let share = share.map_err(|_| busy("too many scans are under way: try again later"))?;
        Ok((share, PAGE_BYTES_MIN))
    }

    /// Pages of one partition: each is a snapshot.
    async fn scan_one(
        &self,
        table: &Arc<TableInfo>,
        partition: PartitionId,
        rest: Rest,
        mut limit: u64,
        paging: &Paging,
        pages: &Sink,
    ) -> Result<()> {
        let mut rest = Some(rest);
        while let Some(from) = rest
            && limit > 0
            && !pages.pages.is_closed()
        {
            // (Whoever wants one page may ask for more of the servers than it takes: deleted records count there.)
            let most = if paging.first_page { u64::MAX } else { limit };
            let size = PageSize { records: most.min(u64::from(paging.size.records)) as u32, ..paging.size };
            let page = paging.source.page(table, partition, from, size, paging.silence_max, &paging.purse);
            let mut page = page.await?;
            page.records.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
            limit -= page.records.len() as u64;
            rest = page.rest;
            if paging.first_page || !page.records.is_empty() || rest.is_some() {
                let behind = rest.as_ref().filter(|_| limit > 0);
                let is_enough = paging.first_page && !page.records.is_empty();
                let page = ScanPage {
                    partition,
                    snapshot_seq: page.snapshot_seq,
                    records: page.records,
                    has_more: behind.is_some(),
                    goes_on_at: behind.map(|rest| rest.front().clone()),
                    passed_over: page.passed_over,
                };
                if pages.send(Ok(page)).await.is_err() || is_enough {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Pages of several partitions, merged in key order.
    async fn scan_merged(
        &self,
        table: &Arc<TableInfo>,
        partitions: Vec<PartitionId>,
        whole: Rest,
        mut limit: u64,
        paging: &Paging,
        pages: &Sink,
    ) -> Result<()> {
        let count = partitions.len();
        let share = (limit / count as u64).saturating_mul(2).saturating_add(SHARE_SLACK);
        let (page_records, page_bytes) = (paging.size.records as usize, paging.size.bytes as usize);
        let size = PageSize { records: share.min(u64::from(paging.size.records)) as u32, ..paging.size };
        let start = |partition| Cursor::start(paging, table, partition, whole.clone(), size);
        let mut cursors: Vec<Cursor> = partitions.into_iter().map(start).collect();
        let mut told = Told::begin(&*self.core.env.clock, paging.silence_max, &whole);
        let (mut out, mut out_bytes) = (Vec::new(), 0);
        while limit > 0 && !pages.pages.is_closed() {
            let first = first_of(&cursors, whole.reverse);
            let head = first.and_then(|at| cursors[at].head());
            if cursors.iter().any(|cursor| cursor.may_come_before(head)) {
                let head = head.cloned();
                let awaited = cursors.iter_mut().filter(|cursor| cursor.may_come_before(head.as_ref()));
                let awaited: FuturesUnordered<_> = awaited.map(|cursor| cursor.take_page(limit)).collect();
                // (Pages that have not come by then are still on their way. An error is not kept behind one of them.)
                let come = told.in_time(awaited.try_collect()).await;
                let head = first_of(&cursors, whole.reverse).and_then(|at| cursors[at].head());
                // Whose page has nothing has searched for long.
                let still_nothing = cursors.iter().any(|cursor| cursor.may_come_before(head));
                if let Some(rest) = left(&cursors, &whole)
                    && (still_nothing || told.is_due() || come.is_err())
                    && told.goes_on_at(&rest, !out.is_empty())
                {
                    if !send_merged(pages, &mut out, Some(&rest)).await {
                        return Ok(());
                    }
                    out_bytes = 0;
                }
                come?;
                continue;
            }
            let Some((key, record)) = first.and_then(|at| cursors[at].pop(limit)) else { break };
            out_bytes += key.len() + record.value.len();
            out.push((key, record));
            limit -= 1;
            if out.len() >= page_records || out_bytes >= page_bytes {
                let rest = left(&cursors, &whole).filter(|_| limit > 0);
                if let Some(rest) = &rest {
                    told.goes_on_at(rest, true);
                }
                if !send_merged(pages, &mut out, rest.as_ref()).await {
                    return Ok(());
                }
                out_bytes = 0;
            }
        }
        if !out.is_empty() {
            send_merged(pages, &mut out, None).await;
        }
        Ok(())
    }
}

/// Which of them has the record that comes first of all that are here.
fn first_of(cursors: &[Cursor], reverse: bool) -> Option<usize> {
    let heads = cursors.iter().enumerate().filter_map(|(at, cursor)| Some((cursor.head()?, at)));
    let first = if reverse { heads.max() } else { heads.min() };
    first.map(|(_, at)| at)
}

/// What none of them has given.
fn left(cursors: &[Cursor], whole: &Rest) -> Option<Rest> {
    let lefts = cursors.iter().filter_map(|cursor| cursor.left(whole));
    lefts.reduce(|first, other| if other.is_before(&first) { other } else { first })
}

/// `rest`: what comes behind it; None: nothing, or it is not known.
async fn send_merged(pages: &Sink, records: &mut Vec<(Bytes, Record)>, rest: Option<&Rest>) -> bool {
    let page = ScanPage {
        partition: MANY_PARTITIONS,
        snapshot_seq: Seq(0),
        records: std::mem::take(records),
        has_more: false,
        goes_on_at: rest.map(|rest| rest.front().clone()),
        passed_over: false,
    };
    pages.send(Ok(page)).await.is_ok()
}
