//! Writes some records and reads a range of them: `cargo run -p sextant-client --example scan -- HOST:PORT`.

use sextant_client::{Client, Result, ScanOptions};

#[tokio::main]
async fn main() -> Result<()> {
    let addresses = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:7401".into());
    let client = Client::connect(addresses).await?;
    for day in 1..=9 {
        client.put("", format!("log:2026-01-0{day}"), format!("day {day}")).await?;
    }

    println!("three days:");
    let range = ScanOptions::range("log:2026-01-03", "log:2026-01-06");
    let mut records = client.scan("", range).records();
    while let Some(record) = records.next_record().await {
        let record = record?;
        println!("  {} = {}", text(&record.key), text(&record.value));
    }

    println!("the last two:");
    let last = ScanOptions { reverse: true, limit: 2, ..ScanOptions::prefix("log:") };
    for record in client.scan("", last).collect_records().await? {
        println!("  {} = {}", text(&record.key), text(&record.value));
    }
    Ok(())
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
