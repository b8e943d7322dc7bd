//! Scans: pages of partitions, merged in key order.
//!
//! A page of a partition is a snapshot of it at one published seq: the leader's memtables as of S, naming v, merged with the
//! SSTables of v over exactly the range that the page covers. Pages, and partitions, are not synchronised with each other.
//!
//! Keys are spread over partitions by hash, so a scan in key order takes all partitions (unless the range pins one) and
//! merges their pages: such a page of the answer is no snapshot of anything, and says so.
//!
//! Bounds: a page or two per partition, and a page or two on their way to the caller. Pages are fetched as they are taken.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use sextant_common::ids::{NodeId, PartitionId, Seq, SstId};
use sextant_common::{Error, ErrorKind, Result};
use sextant_proto::v1;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::merge::{MergedPage, Side, merge_page};
use super::range::pinned_partition;
use crate::api::{MANY_PARTITIONS, Record, ScanPage, ScanRange, ScanStream};
use crate::engine::Engine;
use crate::upstream::{Backoff, Deadline};
use crate::view::{PartitionView, Sst, TableInfo};

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
/// How long a server may take for a page before it is asked again, or another one is.
const PAGE_ANSWER_MAX: Duration = Duration::from_secs(3);
/// Records asked of each partition beyond its fair share of a small limit: keys are spread by hash, so shares vary little.
const SHARE_SLACK: u64 = 8;

/// What is left of a range, in the direction of the scan.
#[derive(Clone, Debug)]
struct Rest {
    start: Bytes,
    end: Bytes,
    reverse: bool,
}

impl Rest {
    /// What is left after a page; None: nothing.
    fn after(&self, covered_to: Option<&Bytes>) -> Option<Rest> {
        let to = covered_to?;
        let rest = if self.reverse {
            Rest { end: to.clone(), ..self.clone() }
        } else {
            let mut next = Vec::with_capacity(to.len() + 1);
            next.extend_from_slice(to);
            next.push(0);
            Rest { start: next.into(), ..self.clone() }
        };
        let empty = !rest.end.is_empty() && rest.start >= rest.end;
        // A reverse scan that has reached the empty key has nothing below it.
        let nothing_below = self.reverse && to.is_empty();
        if empty || nothing_below { None } else { Some(rest) }
    }

    fn overlaps(&self, sst: &Sst) -> bool {
        (self.end.is_empty() || sst.meta.min_key < self.end) && sst.meta.max_key >= self.start
    }
}

/// How much to ask of a partition at once.
#[derive(Clone, Copy, Debug)]
struct PageSize {
    records: u32,
    bytes: u32,
}

/// One partition's page.
struct PartitionPage {
    snapshot_seq: Seq,
    records: Vec<(Bytes, Record)>,
    rest: Option<Rest>,
}

/// Tables that one server is asked for.
type ServerGroup<'s> = (NodeId, Vec<&'s Arc<Sst>>);

/// Why a page has to be done again.
struct Redo(Error);

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

    /// One page of one partition; done again until it is a snapshot. Pages without a live record are passed over.
    async fn partition_page(
        &self,
        table: &Arc<TableInfo>,
        partition: PartitionId,
        mut from: Rest,
        size: PageSize,
    ) -> Result<PartitionPage> {
        let mut deadline = self.deadline(None);
        let mut backoff = Backoff::default();
        loop {
            self.check_running()?;
            let leader = self.leaders.get(partition).node;
            match self.page_once(table, partition, &from, size, deadline).await {
                Ok((snapshot_seq, merged)) => {
                    self.metrics.scan_pages.inc();
                    let rest = from.after(merged.covered_to.as_ref());
                    match rest {
                        Some(rest) if merged.records.is_empty() => {
                            // Progress: the deadline is a page's.
                            deadline = self.deadline(None);
                            backoff.reset();
                            from = rest;
                        }
                        rest => return Ok(PartitionPage { snapshot_seq, records: merged.records, rest }),
                    }
                }
                Err(Redo(error)) => {
                    self.metrics.scan_pages_redone.inc();
                    if error.kind == ErrorKind::Invalid
                        || !self.wait_to_retry(partition, leader, &mut backoff, deadline).await
                    {
                        return Err(error);
                    }
                }
            }
        }
    }

    async fn page_once(
        &self,
        table: &Arc<TableInfo>,
        partition: PartitionId,
        from: &Rest,
        size: PageSize,
        deadline: Deadline,
    ) -> Result<(Seq, MergedPage), Redo> {
        // One view: the SSTables of the version that the memtables' page names.
        let view = self.views.load(partition);
        let memtables = self.memtable_page(table, partition, &view, from, size, deadline);
        let ssts = self.sst_pages(table, &view, from, size, deadline);
        let (memtables, ssts) = tokio::join!(memtables, ssts);
        let (snapshot_seq, memtables) = memtables?;
        let ssts = match ssts {
            Ok(ssts) => ssts,
            Err(error) => {
                let _ = self.refresh_manifest(partition, view.manifest.version, deadline).await;
                return Err(Redo(error));
            }
        };
        let sides = std::iter::once(memtables).chain(ssts).collect();
        merge_page(sides, from.reverse).map(|page| (snapshot_seq, page)).map_err(Redo)
    }

    async fn memtable_page(
        &self,
        table: &Arc<TableInfo>,
        partition: PartitionId,
        view: &PartitionView,
        from: &Rest,
        size: PageSize,
        deadline: Deadline,
    ) -> Result<(Seq, Side), Redo> {
        let searched = view.manifest.version;
        let request = v1::ScanPageRequest {
            partition: partition.0,
            table: table.id.0,
            manifest_version: searched.0,
            start: from.start.clone(),
            end: from.end.clone(),
            reverse: from.reverse,
            limit_records: size.records,
            limit_bytes: size.bytes,
        };
        let asked = self.ask_leader(partition, deadline, PAGE_ANSWER_MAX, |peer| {
            let mut rows = peer.rows.clone();
            async move { Ok(rows.scan_page(request).await?.into_inner()) }
        });
        let (node, reply) = asked.await.map_err(|e| Redo(e.into_error()))?;
        use v1::ReadStatus as S;
        let error = match S::try_from(reply.status) {
            Ok(S::ReadValue | S::ReadNoEntry) => {
                return Ok((
                    Seq(reply.snapshot_seq),
                    Side { records: reply.records, complete: reply.complete },
                ));
            }
            Ok(S::ReadStaleManifest) => {
                match reply.manifest {
                    Some(manifest) => self.memtable(node).map_err(Redo)?.news.manifest(manifest),
                    None => {
                        let _ = self.refresh_manifest(partition, searched, deadline).await;
                    }
                }
                Error::unavailable("flushes outran the scan")
            }
            Ok(S::ReadNotLeader | S::ReadUnknownPartition) => {
                self.memtable(node).map_err(Redo)?.news.not_leader(partition, reply.leader.as_ref());
                Error::unavailable(format!("no leader of partition {partition} answers"))
            }
            Ok(S::ReadUnknownTable) => {
                self.create_in_partition(table, partition, deadline).await.map_err(Redo)?;
                Error::new(ErrorKind::UnknownTable, "the table is not in its partition yet")
            }
            _ => Error::unavailable(format!("the leader of partition {partition} is not ready")),
        };
        Err(Redo(error))
    }

    /// What the SSTables of the view have of the range: one side for each group of tables that share a server.
    async fn sst_pages(
        &self,
        table: &TableInfo,
        view: &PartitionView,
        from: &Rest,
        size: PageSize,
        deadline: Deadline,
    ) -> Result<Vec<Side>> {
        let all = view.manifest.table(table.id).map_or(&[][..], |t| &t.ssts);
        let mut left: Vec<&Arc<Sst>> = all.iter().filter(|sst| from.overlaps(sst)).collect();
        let mut failed: Vec<(SstId, NodeId)> = Vec::new();
        let mut sides = Vec::new();
        while !left.is_empty() {
            let groups = self.group_by_server(&left, &failed)?;
            let scans = groups.iter().map(|(node, ssts)| self.sst_page(*node, ssts, from, size, deadline));
            let results = join_all(scans).await;
            left.clear();
            for ((node, ssts), result) in groups.into_iter().zip(results) {
                match result {
                    Ok(side) => sides.push(side),
                    Err(e) => {
                        tracing::debug!(%node, "scan of SSTables: {e}");
                        failed.extend(ssts.iter().map(|sst| (sst.meta.id, node)));
                        left.extend(ssts);
                    }
                }
            }
        }
        Ok(sides)
    }

    /// Each table with a server that holds it, as few servers as a greedy choice finds.
    fn group_by_server<'s>(
        &self,
        ssts: &[&'s Arc<Sst>],
        failed: &[(SstId, NodeId)],
    ) -> Result<Vec<ServerGroup<'s>>> {
        let now_ns = self.env.clock.holder_ns();
        let usable = |sst: &Sst, node: NodeId| {
            sst.meta.replicas.contains(&node) && !failed.contains(&(sst.meta.id, node))
        };
        let mut left = ssts.to_vec();
        let mut groups = Vec::new();
        while !left.is_empty() {
            let weigh = |node: NodeId| {
                let held: Vec<_> = left.iter().filter(|sst| usable(sst, node)).collect();
                let avoided = held.iter().any(|sst| self.health.is_avoided(node, sst.meta.id, now_ns));
                (!held.is_empty() && !avoided, held.len())
            };
            let best = self.sstables.keys().copied().max_by_key(|node| weigh(*node));
            let node = best.filter(|node| weigh(*node).1 > 0);
            let node = node.ok_or_else(|| Error::unavailable("no replica of an SSTable can be scanned"))?;
            let (here, elsewhere) = left.into_iter().partition(|sst| usable(sst, node));
            left = elsewhere;
            groups.push((node, here));
        }
        Ok(groups)
    }

    async fn sst_page(
        &self,
        node: NodeId,
        ssts: &[&Arc<Sst>],
        from: &Rest,
        size: PageSize,
        deadline: Deadline,
    ) -> Result<Side> {
        let request = v1::SstScanRequest {
            tables: ssts.iter().map(|sst| sst.wire_id.clone()).collect(),
            start: from.start.clone(),
            end: from.end.clone(),
            reverse: from.reverse,
            limit_records: size.records,
            limit_bytes: size.bytes,
        };
        let mut client = self.sstable(node)?.sst.clone();
        let asked = async { Ok(client.scan(request).await?.into_inner()) };
        let now_ns = self.env.clock.holder_ns();
        let reply = match deadline.limit(&*self.env.clock, PAGE_ANSWER_MAX, asked).await {
            Ok(reply) => reply,
            Err(e) => {
                self.health.server_failed(node, now_ns);
                return Err(e);
            }
        };
        match v1::GetStatus::try_from(reply.status) {
            Ok(v1::GetStatus::GetValue | v1::GetStatus::GetNoEntry) => {
                Ok(Side { records: reply.records, complete: reply.complete })
            }
            _ => {
                ssts.iter().for_each(|sst| self.health.replica_failed(node, sst.meta.id, now_ns));
                Err(Error::unavailable(format!("sstable server {node} cannot scan: {}", reply.message)))
            }
        }
    }
}

async fn send_merged(pages: &mpsc::Sender<Result<ScanPage>>, records: &mut Vec<(Bytes, Record)>) -> bool {
    let page =
        ScanPage { partition: MANY_PARTITIONS, snapshot_seq: Seq(0), records: std::mem::take(records) };
    pages.send(Ok(page)).await.is_ok()
}

/// Where a merged scan stands in one partition: what is here, and the page that is on its way.
struct Cursor {
    engine: Arc<Engine>,
    table: Arc<TableInfo>,
    partition: PartitionId,
    size: PageSize,
    ahead: VecDeque<(Bytes, Record)>,
    rest: Option<Rest>,
    coming: Option<JoinHandle<Result<PartitionPage>>>,
}

impl Cursor {
    fn start(
        engine: &Arc<Engine>,
        table: &Arc<TableInfo>,
        partition: PartitionId,
        rest: Rest,
        size: PageSize,
    ) -> Self {
        let mut cursor = Self {
            engine: engine.clone(),
            table: table.clone(),
            partition,
            size,
            ahead: VecDeque::new(),
            rest: Some(rest),
            coming: None,
        };
        cursor.fetch();
        cursor
    }

    fn head(&self) -> Option<&Bytes> {
        self.ahead.front().map(|(key, _)| key)
    }

    /// Sees to it that the next record is here, if there is one; and asks for the next page in time, if the limit may need it.
    async fn fill(&mut self, limit: u64) -> Result<()> {
        while self.ahead.is_empty() {
            if self.coming.is_none() {
                if self.rest.is_none() {
                    return Ok(());
                }
                self.fetch();
            }
            if let Some(coming) = &mut self.coming {
                let page = coming.await.map_err(|_| Error::internal("the fetch of a page failed"))?;
                self.coming = None;
                let page = page?;
                self.ahead.extend(page.records);
                self.rest = page.rest;
            }
        }
        let low = self.ahead.len() <= self.size.records as usize / 2;
        if low && self.coming.is_none() && self.rest.is_some() && limit > self.ahead.len() as u64 {
            self.fetch();
        }
        Ok(())
    }

    fn fetch(&mut self) {
        let Some(rest) = self.rest.take() else { return };
        let (engine, table, partition, size) =
            (self.engine.clone(), self.table.clone(), self.partition, self.size);
        self.coming =
            Some(tokio::spawn(async move { engine.partition_page(&table, partition, rest, size).await }));
    }
}

impl Drop for Cursor {
    fn drop(&mut self) {
        if let Some(coming) = &self.coming {
            coming.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rest(start: &'static str, end: &'static str, reverse: bool) -> Rest {
        Rest { start: start.into(), end: end.into(), reverse }
    }

    #[test]
    fn the_rest_of_a_range_begins_right_after_the_page() {
        let to = |s: &'static str| Bytes::from(s);
        assert!(rest("a", "c", false).after(None).is_none());
        assert_eq!(rest("a", "c", false).after(Some(&to("b"))).unwrap().start, Bytes::from("b\0"));
        assert!(rest("a", "b\0", false).after(Some(&to("b"))).is_none());
        let r = rest("a", "", true).after(Some(&to("b"))).unwrap();
        assert_eq!((r.start, r.end), (Bytes::from("a"), Bytes::from("b")));
        assert!(rest("a", "", true).after(Some(&to("a"))).is_none());
    }
}
