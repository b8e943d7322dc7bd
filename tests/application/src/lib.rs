//! What an application does with the client, with names of one crate only. That it compiles is the test: every type that it
//! has to name is to be had from `sextant_client`.

use std::time::Duration;

use sextant_client::{
    Addresses, Bytes, Client, ClientBuilder, Condition, Effect, Error, ErrorKind, Expected, Lifetime, NodeId,
    OpOutcome, Operation, PartitionId, ReadMode, Record, RecordStream, Result, Returns, ScanOptions,
    ScanPage, ScanRecord, ScanStream, Seq, TableId, TableInfo, TableOptions, Tick, Told, Update,
    WriteOutcome,
};

/// What an application may hold on to.
#[derive(Debug)]
pub struct Everything {
    pub client: Client,
    pub version: Seq,
    pub record: Option<Record>,
    pub several: Vec<Option<Record>>,
    pub outcome: OpOutcome,
    pub batch: WriteOutcome,
    pub pages: ScanStream,
    pub records: RecordStream,
    pub page: Option<ScanPage>,
    pub first: Option<ScanRecord>,
    pub expires_at: Option<Tick>,
    pub before: Option<Bytes>,
    pub table: (TableId, bool),
    pub tables: Vec<TableInfo>,
}

pub fn settings(addresses: impl Into<Addresses>) -> ClientBuilder {
    Client::builder(addresses)
        .deadline(Duration::from_millis(200))
        .attempt_timeout(Duration::from_millis(100))
        .read_mode(ReadMode::Pda)
        .sessions(true)
        .connections(2)
        .user("app", "secret")
}

pub async fn everything(client: Client, table: &str) -> Result<Everything> {
    let version: Seq = client.put(table, "k", "v").await?;
    client.put_for(table, "k", vec![1, 2, 3], Duration::from_secs(60)).await?;
    client.expire(table, "k", Lifetime::Unlimited).await?;
    let record = client.get(table, "k").await?;
    let several = client.multi_get(table, vec!["k".into(), Bytes::from_static(b"l")]).await?;
    client.insert(table, "l", "w").await?;
    let swap = Effect::Put("x".into());
    let outcome = client.compare_and_set(table, "k", Expected::Seq(version), swap).await?;
    client.delete_checked(table, "l").await?;
    client.delete(table, "m").await?;
    let _: (i64, u64) = (client.increment(table, "n", 1).await?, client.append(table, "a", "b").await?);
    let before = client.get_and_put(table, "k", "y").await?;
    let appended = Operation::update(table, "{t}a", Update::Append("z".into())).returning(Returns::After);
    let batch =
        client.batch(vec![Operation::put(table, "{t}b", "1").only_if(Condition::Absent), appended]).await?;
    if let Some(Told::Value(value)) = batch.results.get(1).map(|result| &result.told) {
        println!("{} bytes", value.len());
    }
    let mut pages = client.scan(table, ScanOptions::prefix("k"));
    let page = pages.next_page().await.transpose()?;
    let _: Option<PartitionId> = page.as_ref().and_then(|page| page.partition);
    let mut records = client.scan(table, ScanOptions::range("a", "z")).records();
    let first = records.next_record().await.transpose()?;
    let expires_at = first.as_ref().and_then(|record| record.expires_at);
    let table = client.create_table(table, &TableOptions::default()).await?;
    let tables = client.list_tables().await?;
    Ok(Everything {
        client,
        version,
        record,
        several,
        outcome,
        batch,
        pages,
        records,
        page,
        first,
        expires_at,
        before,
        table,
        tables,
    })
}

/// An operator's program.
pub async fn operate(client: &Client) -> Result<Vec<NodeId>> {
    client.transfer(PartitionId(0), NodeId(2)).await?;
    client.flush(None).await?;
    client.change_voters(PartitionId(0), &[NodeId(1), NodeId(2), NodeId(3)]).await
}

/// What an application decides by.
pub fn is_worth_another_try(error: &Error) -> bool {
    error.is_retryable() || error.kind == ErrorKind::Unavailable
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn where_nobody_listens_it_is_told_so_within_its_deadline() {
        // Nobody gets this port who does not ask for it.
        let client = settings("127.0.0.1:1").connect().await.unwrap();
        let error = everything(client.clone(), "").await.unwrap_err();
        assert!(error.kind == ErrorKind::Unavailable && is_worth_another_try(&error), "{error}");
        assert_eq!(operate(&client).await.unwrap_err().kind, ErrorKind::Unavailable);
    }
}
