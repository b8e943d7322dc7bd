//! Snapshots: a client that writes its numbers in pairs, and looks at them through snapshots, while the load goes on. What a snapshot has
//! is one state: no half of a pair, nothing older than what was acknowledged before it was opened, nothing newer than what was begun; and
//! it is the same however often, and through whichever p-node, it is looked at.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use sextant_client::{Client, ErrorKind, Operation, ScanOptions};

use super::{Shared, connect_to};
use crate::host::{Host, mix};
use crate::plan::PNODES;

/// How long one that cannot be had is waited for.
const OPEN_MAX: Duration = Duration::from_secs(3);
const LEASE: Duration = Duration::from_secs(2);

/// Of what it has written.
#[derive(Clone, Copy, Default)]
struct Written {
    acknowledged: u64,
    begun: u64,
}

pub async fn snapshots(shared: Arc<Shared>, host: Arc<Host>, number: usize) {
    let mut rng = fastrand::Rng::with_seed(mix(shared.world.seed, 8_000 + number as u64));
    let mut clients = Vec::new();
    for pnode in 0..PNODES {
        clients.push(connect_to(&host, pnode).await);
    }
    shared.load_begins().await;
    let table = shared.plan.tables[number % shared.plan.tables.len()].0.clone();
    let mut written = Written::default();
    while shared.loading() {
        let client = &clients[rng.usize(0..PNODES)];
        write(client, &table, &mut written, rng.u64(1..6)).await;
        let before = written;
        let Ok(Ok(snapshot)) = tokio::time::timeout(OPEN_MAX, client.open_snapshot(LEASE)).await else {
            shared.count("snapshots_not_opened");
            continue;
        };
        let mut first: Option<(u64, u64)> = None;
        for _ in 0..rng.usize(1..5) {
            write(client, &table, &mut written, rng.u64(0..4)).await;
            let looking = &clients[rng.usize(0..PNODES)];
            match look(looking, &table, snapshot.id).await {
                Ok(pair) => {
                    shared.count("looks_at_snapshots");
                    let is_good = pair.0 == pair.1 && (before.acknowledged..=before.begun).contains(&pair.0);
                    if !is_good || first.is_some_and(|first| first != pair) {
                        let text = format!(
                            "snapshot {:016x} of {table} shows {pair:?}, after {first:?}; {} was acknowledged, {} begun",
                            snapshot.id, before.acknowledged, before.begun
                        );
                        shared.world.violation(text);
                    }
                    first = Some(pair);
                }
                // It has ended.
                Err(ErrorKind::Invalid) => break,
                Err(_) => shared.count("snapshots_not_read"),
            }
            if rng.bool() {
                let _ = looking.renew_snapshot(snapshot.id).await;
            }
        }
        if rng.bool() {
            let _ = client.close_snapshot(snapshot.id).await;
        }
    }
    shared.working.fetch_sub(1, Relaxed);
}

fn keys() -> [&'static str; 2] {
    ["{pair}a", "{pair}b"]
}

async fn write(client: &Client, table: &str, written: &mut Written, times: u64) {
    for _ in 0..times {
        written.begun += 1;
        let text = written.begun.to_string();
        let pair = keys().map(|key| Operation::put(table, key, text.clone()));
        if client.batch(pair.to_vec()).await.is_ok() {
            written.acknowledged = written.begun;
        }
    }
}

/// What it has of the pair; 0: no record.
async fn look(client: &Client, table: &str, snapshot: u64) -> Result<(u64, u64), ErrorKind> {
    let records = client.scan_snapshot(snapshot, table, ScanOptions::prefix("{pair}")).collect_records();
    let records = records.await.map_err(|e| e.kind)?;
    let number = |key: &str| {
        let record = records.iter().find(|record| record.key == key);
        record.map_or(0, |r| String::from_utf8_lossy(&r.value).parse().unwrap_or(u64::MAX))
    };
    let [a, b] = keys().map(number);
    Ok((a, b))
}
