//! Records are written as a client does, several batches at once.

use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use sextant_client::Client;
use sextant_common::error::Result;
use sextant_common::sstable::RecordVersion;
use sextant_proto::v1;

use crate::records::Joined;

/// Of one import.
const RECORDS_MAX: usize = 1000;
const BYTES_MAX: usize = 1024 * 1024;
const AT_ONCE: usize = 4;

/// All of these records; how many they were.
pub async fn import(client: &Client, table: &str, mut records: Joined) -> Result<u64> {
    let (mut count, mut under_way) = (0, FuturesUnordered::new());
    loop {
        let page = records.next_page(RECORDS_MAX, BYTES_MAX)?;
        if page.is_empty() {
            break;
        }
        count += page.len() as u64;
        wait(&mut under_way, AT_ONCE - 1).await?;
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
