//! Records are written as a client does, several batches at once.

use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use sextant_client::Client;
use sextant_common::error::Result;
use sextant_common::sstable::RecordVersion;
use sextant_proto::v1;

use crate::records::{bytes_of, next_page};

/// Of one import.
const RECORDS_MAX: usize = 1000;
const BYTES_MAX: usize = 1024 * 1024;
const AT_ONCE: usize = 4;

/// All of these records; how many they were.
pub async fn import(
    client: &Client,
    table: &str,
    mut records: impl Iterator<Item = Result<Option<RecordVersion>>>,
) -> Result<u64> {
    let (mut count, mut under_way) = (0, FuturesUnordered::new());
    while let Some(page) = next_page(&mut records, RECORDS_MAX, BYTES_MAX)? {
        if page.is_empty() {
            tokio::task::yield_now().await;
            continue;
        }
        count += page.len() as u64;
        wait(&mut under_way, AT_ONCE - 1).await?;
        under_way.push(written(client, table, page));
    }
    wait(&mut under_way, 0).await?;
    Ok(count)
}

/// Records that have each key once, tombstones among them; all are written when this returns.
pub async fn write(client: &Client, table: &str, records: Vec<RecordVersion>) -> Result<u64> {
    let (count, mut under_way) = (records.len() as u64, FuturesUnordered::new());
    let (mut page, mut bytes) = (Vec::new(), 0);
    for record in records {
        bytes += bytes_of(&record);
        page.push(record);
        if page.len() == RECORDS_MAX || bytes >= BYTES_MAX {
            wait(&mut under_way, AT_ONCE - 1).await?;
            under_way.push(written(client, table, std::mem::take(&mut page)));
            bytes = 0;
        }
    }
    if !page.is_empty() {
        under_way.push(written(client, table, page));
    }
    wait(&mut under_way, 0).await?;
    Ok(count)
}

type Import<'a> = BoxFuture<'a, Result<()>>;

fn written<'a>(client: &'a Client, table: &'a str, page: Vec<RecordVersion>) -> Import<'a> {
    let records = page.into_iter().map(v1::ScanRecord::from).collect::<Vec<_>>();
    Box::pin(async move { client.import(table, records).await.map(drop) })
}

async fn wait(under_way: &mut FuturesUnordered<Import<'_>>, at_most: usize) -> Result<()> {
    while under_way.len() > at_most {
        under_way.next().await.unwrap_or(Ok(()))?;
    }
    Ok(())
}
