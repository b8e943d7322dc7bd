//! The front end over a map in memory: `cargo run --release -p sextant-resp --example memory -- 127.0.0.1:7777 [threads]`.
//! For measuring the front end with `redis-benchmark`, and for trying clients.

#[path = "../tests/server/memory.rs"]
mod memory;

use prometheus_client::registry::Registry;
use sextant_environment::Env;
use sextant_resp::{RespConfig, RespMetrics, RespServer};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let listen = args.next().unwrap_or_else(|| "127.0.0.1:7777".into());
    let threads = args.next().map_or(Ok(1), |n| n.parse())?;
    let fast = args.next().is_none_or(|mode| mode != "slow");
    let config = RespConfig { listen, threads, ..RespConfig::default() };
    let metrics = RespMetrics::register(&mut Registry::default());
    let store = memory::MemoryStore::new(fast);
    let server = RespServer::start(Env::real(), config, store, metrics).await?;
    println!("listening on {}", server.local_addr());
    tokio::signal::ctrl_c().await?;
    server.shutdown().await;
    Ok(())
}
