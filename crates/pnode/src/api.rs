//! What callers ask of a p-node and what they get.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use sextant_common::Result;
use sextant_common::ids::{PartitionId, Seq};
use tokio::sync::mpsc;

/// A record as a read sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub value: Bytes,
    /// Its version: rises with each write, unique within the partition.
    pub seq: Seq,
}

/// How a point read finds the tier. For measurement: every mode is linearizable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ReadMode {
    /// Precise data access: the filters of both tiers.
    #[default]
    Pda,
    /// Filters of SSTables only: the memtables are always asked first.
    Bda,
    /// No filters: the memtables first, then every SSTable whose range holds the key.
    Nda,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct ReadOptions {
    pub mode: ReadMode,
    /// None: the configured default.
    pub deadline: Option<Duration>,
}

/// One operation of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchOp {
    /// "" or "default": the default table.
    pub table: String,
    pub key: Bytes,
    pub kind: OpKind,
    pub condition: OpCondition,
    /// A failed condition skips this operation only; otherwise it fails the whole batch.
    pub skip_on_failure: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpKind {
    Put(Bytes),
    Delete,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum OpCondition {
    #[default]
    None,
    /// The key does not exist: makes the operation an INSERT.
    Absent,
    Present,
    /// The key exists with exactly this value.
    ValueEquals(Bytes),
    /// The key's version is this one; 0: the key does not exist.
    SeqEquals(Seq),
}

impl BatchOp {
    pub fn put(table: &str, key: impl Into<Bytes>, value: impl Into<Bytes>) -> Self {
        Self {
            table: table.to_owned(),
            key: key.into(),
            kind: OpKind::Put(value.into()),
            condition: OpCondition::None,
            skip_on_failure: false,
        }
    }

    /// Puts only if the key does not exist.
    pub fn insert(table: &str, key: impl Into<Bytes>, value: impl Into<Bytes>) -> Self {
        Self { condition: OpCondition::Absent, ..Self::put(table, key, value) }
    }

    pub fn delete(table: &str, key: impl Into<Bytes>) -> Self {
        Self { kind: OpKind::Delete, ..Self::put(table, key, Bytes::new()) }
    }

    /// Deletes and reports whether the key existed: skipped if it does not.
    pub fn delete_checked(table: &str, key: impl Into<Bytes>) -> Self {
        Self { condition: OpCondition::Present, skip_on_failure: true, ..Self::delete(table, key) }
    }
}

/// Makes a retried write take effect once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestId {
    /// From [`crate::PNode::open_session`].
    pub session: u64,
    /// Rising within the session; a retry repeats it.
    pub number: u64,
    /// The caller has had all answers below this number.
    pub acked_below: u64,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct WriteOptions {
    /// None: the p-node uses a session of its own.
    pub request: Option<RequestId>,
    /// None: the configured default.
    pub deadline: Option<Duration>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriteOutcome {
    /// False: a condition failed and nothing took effect.
    pub applied: bool,
    /// One for each operation, in their order.
    pub results: Vec<OpOutcome>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpOutcome {
    pub applied: bool,
    /// Whether the key existed before, as far as the condition had to find out.
    pub existed: bool,
    /// The new version if applied, else the version that failed the condition (0: absent).
    pub seq: Seq,
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
}

impl ScanRange {
    /// All keys that begin with `prefix`.
    pub fn prefix(prefix: impl Into<Bytes>) -> Self {
        let start = prefix.into();
        let end = prefix_end(&start);
        Self { start, end, ..Self::default() }
    }
}

/// The smallest key above all keys that begin with `prefix`; empty: there is none.
pub fn prefix_end(prefix: &[u8]) -> Bytes {
    let kept = prefix.iter().rposition(|b| *b != 0xff).map_or(0, |at| at + 1);
    let mut end = prefix[..kept].to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    end.into()
}

/// The partition of a page whose records come from several partitions.
pub const MANY_PARTITIONS: PartitionId = PartitionId(u32::MAX);

/// A page of a scan.
///
/// If one partition took part, the page is a snapshot of it at `snapshot_seq`. If several did, their records are merged in
/// key order: `partition` is [`MANY_PARTITIONS`], `snapshot_seq` is 0, and the records of each partition are snapshots that are
/// not synchronised with each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScanPage {
    pub partition: PartitionId,
    pub snapshot_seq: Seq,
    pub records: Vec<(Bytes, Record)>,
}

/// Pages of a scan. Dropping it ends the scan; pages are fetched only as fast as they are taken.
#[derive(Debug)]
pub struct ScanStream {
    pages: mpsc::Receiver<Result<ScanPage>>,
}

impl ScanStream {
    pub(crate) fn new(pages: mpsc::Receiver<Result<ScanPage>>) -> Self {
        Self { pages }
    }

    /// The next page; None at the end. After an error the scan is over.
    pub async fn next_page(&mut self) -> Option<Result<ScanPage>> {
        self.pages.recv().await
    }
}

impl futures::Stream for ScanStream {
    type Item = Result<ScanPage>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.pages.poll_recv(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_prefix_is_above_all_its_keys() {
        assert_eq!(prefix_end(b"ab"), Bytes::from_static(b"ac"));
        assert_eq!(prefix_end(b"a\xff\xff"), Bytes::from_static(b"b"));
        assert_eq!(prefix_end(b"\xff"), Bytes::new());
        assert_eq!(prefix_end(b""), Bytes::new());
    }
}
