//! Scans, page by page.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::Stream;
use futures::stream::{self, BoxStream, StreamExt};
use sextant_common::error::Result;
use sextant_common::expiry::Tick;
use sextant_common::ids::{MANY_PARTITIONS, PartitionId, Seq};
use sextant_common::key::prefix_end;
use sextant_common::marks::Kind;
use sextant_proto::v1;

use crate::client::{Client, kv};
use crate::failure::Failure;
use crate::retry::Repeat;

/// Which records a scan delivers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScanOptions {
    /// Inclusive; empty: from the first key.
    pub start: Bytes,
    /// Exclusive; empty: to the last key.
    pub end: Bytes,
    /// If not empty: exactly the keys with this prefix; `start` and `end` must be empty.
    pub prefix: Bytes,
    /// From the largest key to the smallest.
    pub reverse: bool,
    /// Most records to deliver; 0: all.
    pub limit: u64,
    /// Most records a page; 0: the p-node's default.
    pub page_records: u32,
}

impl ScanOptions {
    /// Exactly the keys that begin so.
    pub fn prefix(prefix: impl Into<Bytes>) -> Self {
        Self { prefix: prefix.into(), ..Self::default() }
    }

    /// From `start`, inclusive, to `end`, exclusive.
    pub fn range(start: impl Into<Bytes>, end: impl Into<Bytes>) -> Self {
        Self { start: start.into(), end: end.into(), ..Self::default() }
    }
}

/// A record that a scan has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScanRecord {
    /// Its key.
    pub key: Bytes,
    /// Its value.
    pub value: Bytes,
    /// Its version.
    pub seq: Seq,
    /// As in [`Record`](crate::Record).
    pub expires_at: Option<Tick>,
    /// Not plain: an object of the Redis protocol, whose elements are not here; `value` is empty.
    pub kind: Kind,
}

/// A page. Pages are not synchronised with each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScanPage {
    /// The partition of which the page is a snapshot; `None` if the page merges records of several partitions, which
    /// are not synchronised with each other.
    pub partition: Option<PartitionId>,
    /// No record of the page is newer. It is the published seq of the snapshot, if a leader was asked for it; otherwise it may be
    /// lower than that of the page before. 0 if the page has several partitions, or no leader was asked and there is nothing.
    pub snapshot_seq: Seq,
    /// In the order of their keys. None: the p-node found nothing for some time, as in a run of deleted records.
    pub records: Vec<ScanRecord>,
    /// Where the scan goes on: all that comes before that has been looked at. Whoever scans anew from there makes it the `start`, in
    /// reverse the `end`. None: behind the last record (the p-node is older, or this is the last page).
    pub goes_on_at: Option<Bytes>,
}

/// The pages of a scan: a [`Stream`], and for who has no use for one, [`Self::next_page`]. Ends after the first error.
pub struct ScanStream(BoxStream<'static, Result<ScanPage>>);

impl Stream for ScanStream {
    type Item = Result<ScanPage>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_next_unpin(cx)
    }
}

impl std::fmt::Debug for ScanStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ScanStream")
    }
}

impl ScanStream {
    /// The next page; `None`: that was all.
    pub async fn next_page(&mut self) -> Option<Result<ScanPage>> {
        self.0.next().await
    }

    /// Record by record.
    pub fn records(self) -> RecordStream {
        let records = self.0.flat_map(|page| match page {
            Ok(page) => stream::iter(page.records.into_iter().map(Ok).collect::<Vec<_>>()),
            Err(e) => stream::iter(vec![Err(e)]),
        });
        RecordStream(records.boxed())
    }

    /// All records, as one vector. For ranges that are known to be small.
    pub async fn collect_records(mut self) -> Result<Vec<ScanRecord>> {
        let mut records = Vec::new();
        while let Some(page) = self.0.next().await {
            records.extend(page?.records);
        }
        Ok(records)
    }
}

/// The records of a scan: a [`Stream`], and for who has no use for one, [`Self::next_record`]. Ends after the first error.
pub struct RecordStream(BoxStream<'static, Result<ScanRecord>>);

impl RecordStream {
    /// The next record; `None`: that was all.
    pub async fn next_record(&mut self) -> Option<Result<ScanRecord>> {
        self.0.next().await
    }
}

impl Stream for RecordStream {
    type Item = Result<ScanRecord>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_next_unpin(cx)
    }
}

impl std::fmt::Debug for RecordStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RecordStream")
    }
}

/// Where a scan stands.
struct Scan {
    client: Client,
    /// None: of what there is.
    snapshot: Option<u64>,
    /// What is still to come: after each page the range begins behind its last record, or where the page says.
    request: v1::KvScanRequest,
    pages: Option<tonic::Streaming<v1::KvScanPage>>,
    ended: bool,
}

impl Client {
    /// Scans a table, in key order. The client's deadline bounds the wait for each page; those without records count, so a run of
    /// deleted records may be as long as it is. If the p-node is lost, the scan goes on through another one, behind what was looked
    /// at, in the table that has the name then. Pages may be left unread for as long as it takes: other calls do not wait for that.
    ///
    /// ```no_run
    /// # async fn run(client: sextant_client::Client) -> sextant_client::Result<()> {
    /// use sextant_client::ScanOptions;
    ///
    /// let mut records = client.scan("", ScanOptions::prefix("user:")).records();
    /// while let Some(record) = records.next_record().await {
    ///     let record = record?;
    ///     println!("{:?}: {} bytes", record.key, record.value.len());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn scan(&self, table: &str, options: ScanOptions) -> ScanStream {
        self.scan_of(None, table, options)
    }

    pub(crate) fn scan_of(&self, snapshot: Option<u64>, table: &str, options: ScanOptions) -> ScanStream {
        let (start, end) = if options.prefix.is_empty() {
            (options.start, options.end)
        } else {
            let end = prefix_end(&options.prefix);
            (options.prefix, end)
        };
        let request = v1::KvScanRequest {
            table: table.to_owned(),
            start,
            end,
            prefix: Bytes::new(),
            reverse: options.reverse,
            limit: options.limit,
            page_records: options.page_records,
            only_partition: None,
        };
        let scan = Scan { client: self.clone(), snapshot, request, pages: None, ended: false };
        ScanStream(stream::unfold(scan, Scan::step).boxed())
    }
}

impl Scan {
    async fn step(mut self) -> Option<(Result<ScanPage>, Scan)> {
        if self.ended {
            return None;
        }
        let result = self.next_page().await.transpose()?;
        self.ended |= result.is_err();
        Some((result.map(page_from_wire), self))
    }

    async fn next_page(&mut self) -> Result<Option<v1::KvScanPage>> {
        let broken = match &mut self.pages {
            None => None,
            Some(pages) => match tokio::time::timeout(self.client.deadline(), pages.message()).await {
                Ok(Ok(page)) => return Ok(self.advance(page)),
                Ok(Err(status)) => Some(Failure::from_status(status)),
                Err(_) => Some(Failure::silence()),
            },
        };
        if let Some(failure) = broken
            && !failure.blames_endpoint
            && !failure.error.is_retryable()
        {
            return Err(failure.error);
        }
        let (pages, first) = self.client.first_page(self.snapshot, &self.request).await?;
        self.pages = Some(pages);
        Ok(self.advance(first))
    }

    /// Moves the range that is still to come behind a page.
    fn advance(&mut self, page: Option<v1::KvScanPage>) -> Option<v1::KvScanPage> {
        let page = page?;
        let delivered = page.records.len() as u64;
        if let Some(last) = page.records.last() {
            let behind = if self.request.reverse { last.key.clone() } else { successor(&last.key) };
            self.go_on_at(behind);
        }
        if !page.goes_on_at.is_empty() {
            self.go_on_at(page.goes_on_at.clone());
        }
        if self.request.limit > 0 {
            self.request.limit = self.request.limit.saturating_sub(delivered);
            // 0 would mean "no limit" to a scan that goes on.
            self.ended |= self.request.limit == 0;
        }
        Some(page)
    }

    /// Never back: what has been delivered is not delivered again.
    fn go_on_at(&mut self, bound: Bytes) {
        let v1::KvScanRequest { start, end, reverse, .. } = &mut self.request;
        match reverse {
            false if bound > *start => *start = bound,
            true if end.is_empty() || bound < *end => *end = bound,
            _ => {}
        }
    }
}

impl Client {
    /// Opens the stream and waits for its first page (`None`: the range is empty).
    async fn first_page(
        &self,
        snapshot: Option<u64>,
        request: &v1::KvScanRequest,
    ) -> Result<(tonic::Streaming<v1::KvScanPage>, Option<v1::KvScanPage>)> {
        let endpoints = &self.inner.endpoints;
        self.call_at(Repeat::Harmless, self.deadline(), async |at, _limit| {
            // No deadline for the call as a whole: a scan lasts as long as its range; every page has one.
            let (mut kv, scan) = (kv(endpoints.stream_channel(at)), request.clone());
            let mut pages = match snapshot {
                None => kv.scan(tonic::Request::new(scan)).await?.into_inner(),
                Some(snapshot) => {
                    let of = v1::KvScanSnapshotRequest { snapshot, scan: Some(scan) };
                    kv.scan_snapshot(tonic::Request::new(of)).await?.into_inner()
                }
            };
            let first = pages.message().await?;
            Ok((pages, first))
        })
        .await
    }
}

/// The smallest key above `key`.
fn successor(key: &[u8]) -> Bytes {
    let mut next = Vec::with_capacity(key.len() + 1);
    next.extend_from_slice(key);
    next.push(0);
    next.into()
}

fn page_from_wire(page: v1::KvScanPage) -> ScanPage {
    let partition = PartitionId(page.partition);
    ScanPage {
        partition: (partition != MANY_PARTITIONS).then_some(partition),
        snapshot_seq: Seq(page.snapshot_seq),
        records: page
            .records
            .into_iter()
            .map(|r| ScanRecord {
                key: r.key,
                value: r.value,
                seq: Seq(r.seq),
                expires_at: Tick::from_wire(r.expires_at),
                kind: u8::try_from(r.kind).ok().and_then(Kind::from_number).unwrap_or_default(),
            })
            .collect(),
        goes_on_at: (!page.goes_on_at.is_empty()).then_some(page.goes_on_at),
    }
}
