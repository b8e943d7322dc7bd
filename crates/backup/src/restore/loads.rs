//! A piece of a table is loaded: its records become SSTables of the partition, past log and memtable, and are seen all at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::stream::{self, BoxStream, Stream, StreamExt};
use sextant_client::{Client, Load, LoadRecord, LoadSource};
use sextant_common::error::Result;
use sextant_common::ids::{LoadId, PartitionId};
use sextant_common::sstable::RecordVersion;

use super::renaming::Renamed;
use crate::records::{Joined, next_page};

/// Of a message.
const RECORDS_MAX: usize = 4000;
const BYTES_MAX: usize = 512 * 1024;

/// Makes the records of a piece once more. Their keys rise.
pub type Again<'a> = &'a (dyn Fn() -> Result<Renamed<Joined>> + Send + Sync);

struct Piece<'a> {
    records: Again<'a>,
    /// Of the last attempt.
    count: Arc<AtomicU64>,
}

impl LoadSource for Piece<'_> {
    fn records(&self, _partition: PartitionId) -> Result<BoxStream<'static, Result<Vec<LoadRecord>>>> {
        let (records, count) = ((self.records)()?, self.count.clone());
        count.store(0, Ordering::Relaxed);
        Ok(messages(records, count).boxed())
    }
}

/// One without records says that it goes on, where many are passed over: nobody waits for long without a word.
fn messages(
    records: impl Iterator<Item = Result<Option<RecordVersion>>>,
    count: Arc<AtomicU64>,
) -> impl Stream<Item = Result<Vec<LoadRecord>>> {
    stream::unfold((records, count), async |(mut records, count)| {
        // (Others have their turn: files are read, and nothing else waits.)
        tokio::task::yield_now().await;
        let page = next_page(&mut records, RECORDS_MAX, BYTES_MAX).transpose()?;
        let message = page.map(|page| {
            count.fetch_add(page.len() as u64, Ordering::Relaxed);
            page.into_iter().filter_map(loaded).collect()
        });
        Some((message, (records, count)))
    })
}

/// (There are no tombstones among them.)
fn loaded(record: RecordVersion) -> Option<LoadRecord> {
    Some(LoadRecord { key: record.key, value: record.value?, marks: record.marks })
}

/// How many records it had.
pub async fn load(
    client: &Client,
    table: &str,
    id: LoadId,
    partition: PartitionId,
    records: Again<'_>,
) -> Result<u64> {
    let piece = Piece { records, count: Arc::default() };
    let load = Load { table: table.to_owned(), id, partitions: vec![partition], parallel: 1 };
    client.load(&load, &piece).await.map_err(|failed| failed.error)?;
    Ok(piece.count.load(Ordering::Relaxed))
}

#[cfg(test)]
mod tests {
    use sextant_common::ids::Seq;

    use super::*;

    #[tokio::test]
    async fn whoever_takes_the_records_hears_of_those_that_are_passed_over() {
        let record = |key: &'static str| {
            let (key, value) = (key.into(), Some("v".into()));
            Ok(Some(RecordVersion { key, seq: Seq(1), value, marks: Default::default() }))
        };
        let records = vec![record("a"), Ok(None), Ok(None), record("b")];
        let count = Arc::new(AtomicU64::new(0));
        let messages: Vec<_> = messages(records.into_iter(), count.clone()).collect().await;
        let sizes: Vec<usize> = messages.into_iter().map(|message| message.unwrap().len()).collect();
        assert_eq!((sizes, count.load(Ordering::Relaxed)), (vec![1, 0, 1], 2));
    }
}
