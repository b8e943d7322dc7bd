//! How callers ask a p-node, and how scans are answered. What is asked is everybody's: [`sextant_common::operation`].

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use sextant_common::ids::{PartitionId, Seq};
use sextant_common::key::prefix_end;
use sextant_common::operation::{Lane, ReadMode, Record, RequestId};
use sextant_common::{Error, Result};
use tokio::sync::mpsc;

#[derive(Clone, Copy, Debug, Default)]
pub struct ReadOptions {
    pub mode: ReadMode,
    /// None: the configured default.
    pub deadline: Option<Duration>,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct WriteOptions {
    /// None: the p-node uses a session of its own.
    pub request: Option<RequestId>,
    /// None: the configured default.
    pub deadline: Option<Duration>,
    /// Where it waits, if it has to.
    pub lane: Lane,
}

/// A range of keys to scan. Records come in key order (reverse: falling) over all partitions that take part.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScanRange {
    /// Inclusive; empty: from the first key.
    pub start: Bytes,
    /// Exclusive; empty: to the last key.
    pub end: Bytes,
    pub reverse: bool,
    /// 0: no limit.
    pub limit: u64,
    /// Records a page at the most; 0: the default.
    pub page_records: u32,
    /// Only this partition: then every page is one snapshot and says which.
    pub partition: Option<PartitionId>,
    /// Of one partition: it ends with the first page that has records. Pages without any come too, so that each is told of that was
    /// read.
    pub first_page: bool,
    /// If about so long nothing is found, or for many pages of the servers, a page without records comes, too: so it is seen that the
    /// scan gets on, and how far it is. None: such pages do not come.
    pub silence_max: Option<Duration>,
}

impl ScanRange {
    /// All keys that begin with `prefix`.
    pub fn prefix(prefix: impl Into<Bytes>) -> Self {
        let start = prefix.into();
        let end = prefix_end(&start);
        Self { start, end, ..Self::default() }
    }
}

/// A page of a scan.
///
/// If one partition took part, the page is a snapshot of it at `snapshot_seq`; if its leader was not asked, no record of it is newer
/// than that, which is all that is known (0: there is none). If several did, their records are merged
/// in key order: `partition` is [`MANY_PARTITIONS`](sextant_common::ids::MANY_PARTITIONS), `snapshot_seq` is 0, and the
/// records of each partition are snapshots that are not synchronised with each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScanPage {
    pub partition: PartitionId,
    pub snapshot_seq: Seq,
    pub records: Vec<(Bytes, Record)>,
    /// Of one partition: whether the range goes on, and the limit is not reached.
    pub has_more: bool,
    /// Where the scan goes on: all that comes before that has been looked at, and had no records but those that are sent. It is the
    /// `start` of a range that goes on there; in reverse the `end`. None: nothing comes behind this page, or it is not known.
    pub goes_on_at: Option<Bytes>,
    /// Of one partition: nothing was found at one moment or more before this page's, and passed over.
    pub passed_over: bool,
}

/// Pages of a scan. Dropping it ends the scan; pages are fetched only as fast as they are taken.
#[derive(Debug)]
pub struct ScanStream {
    pages: mpsc::Receiver<Result<ScanPage>>,
    /// Set before the pages end, unless who makes them was lost.
    whole: Arc<AtomicBool>,
}

impl ScanStream {
    pub(crate) fn new(pages: mpsc::Receiver<Result<ScanPage>>, whole: Arc<AtomicBool>) -> Self {
        Self { pages, whole }
    }

    /// The next page; None at the end. After an error the scan is over.
    pub async fn next_page(&mut self) -> Option<Result<ScanPage>> {
        std::future::poll_fn(|cx| self.poll(cx)).await
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<ScanPage>>> {
        let page = ready!(self.pages.poll_recv(cx));
        // (Told once.)
        let is_cut_off = page.is_none() && !self.whole.swap(true, Ordering::Acquire);
        Poll::Ready(page.or_else(|| is_cut_off.then(|| Err(Error::internal("the scan was cut off")))))
    }
}

impl futures::Stream for ScanStream {
    type Item = Result<ScanPage>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn pages_that_end_before_the_scan_does_end_with_an_error() {
        for is_whole in [true, false] {
            let (pages, taken) = mpsc::channel(1);
            let mut stream = ScanStream::new(taken, Arc::new(AtomicBool::new(is_whole)));
            drop(pages);
            if !is_whole {
                assert!(stream.next_page().await.unwrap().is_err());
            }
            assert!(stream.next_page().await.is_none());
        }
    }
}
