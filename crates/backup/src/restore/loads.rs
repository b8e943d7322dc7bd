//! A piece of a table is loaded: its records become SSTables of the partition, past log and memtable, and are seen all at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::stream::{self, BoxStream, StreamExt};
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
        let (mut records, count) = ((self.records)()?, self.count.clone());
        count.store(0, Ordering::Relaxed);
        let next = move || match next_page(&mut records, RECORDS_MAX, BYTES_MAX) {
            Ok(page) if page.is_empty() => None,
            Ok(page) => {
                count.fetch_add(page.len() as u64, Ordering::Relaxed);
                Some(Ok(page.into_iter().filter_map(loaded).collect()))
            }
            Err(e) => Some(Err(e)),
        };
        Ok(stream::iter(std::iter::from_fn(next)).boxed())
    }
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
