//! Many tasks add to one counter, and none is counted twice, whatever happens on the way:
//! `cargo run -p sextant-client --example counter -- HOST:PORT`.

use sextant_client::{Client, Result};

const TASKS: i64 = 20;
const ADDITIONS: i64 = 50;

#[tokio::main]
async fn main() -> Result<()> {
    let addresses = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:7401".into());
    let client = Client::connect(addresses).await?;
    client.put("", "visits", "0").await?;
    let tasks: Vec<_> = (0..TASKS)
        .map(|_| {
            // Clones share connections.
            let client = client.clone();
            tokio::spawn(async move {
                for _ in 0..ADDITIONS {
                    client.increment("", "visits", 1).await?;
                }
                Ok::<_, sextant_client::Error>(())
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("the task does not panic")?;
    }
    let visits = client.increment("", "visits", 0).await?;
    println!("{visits} visits");
    assert_eq!(visits, TASKS * ADDITIONS);
    Ok(())
}
