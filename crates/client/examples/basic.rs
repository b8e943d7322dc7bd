//! Writes, reads and deletes a record: `cargo run -p sextant-client --example basic -- HOST:PORT`.
//! `sextant dev` prints an address.

use std::time::Duration;

use sextant_client::{Client, Effect, ErrorKind, Expected, Operation, Result};

#[tokio::main]
async fn main() -> Result<()> {
    let addresses = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:7401".into());
    let client = Client::builder(addresses).deadline(Duration::from_secs(2)).connect().await?;

    let version = client.put("", "greeting", "hello").await?;
    println!("written as version {version}");
    if let Some(record) = client.get("", "greeting").await? {
        println!("read: {:?}", record.value);
    }
    let is_new = client.insert("", "greeting", "hi").await?.applied;
    println!("inserted again: {is_new}");
    let swapped = client
        .compare_and_set("", "greeting", Expected::Value("hello".into()), Effect::Put("good morning".into()))
        .await?;
    println!("swapped: {}", swapped.applied);

    // All of it or nothing, visible at once: the keys have the same {tag}, so they are of one partition.
    let transfer =
        vec![Operation::put("", "{account}:alice", "90"), Operation::put("", "{account}:bob", "110")];
    client.batch(transfer).await?;

    match client.delete("", "greeting").await {
        Ok(version) => println!("deleted by version {version}"),
        // What to do is said by the kind.
        Err(e) if e.kind == ErrorKind::OutcomeUnknown => println!("it may be gone: {e}"),
        Err(e) => return Err(e),
    }
    Ok(())
}
