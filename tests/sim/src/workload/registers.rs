//! Registers: hot and cold keys, all kinds of single-record operations, multi-gets, scans, batches, counters.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use sextant_checker::Call;
use sextant_client::{Client, ReadMode};

use super::{Book, Patience, Shared, connect};
use crate::host::{Host, mix};
use crate::plan::{PNODES, pick};

/// Pairs of keys that are only ever written together.
const PAIRS: u64 = 6;
/// Keys of a multi-get.
const MANY: usize = 8;

/// A client: operations one after the other until the load ends. `number` decides which p-node it prefers.
pub async fn registers(shared: Arc<Shared>, host: Arc<Host>, number: usize) {
    let mut rng = fastrand::Rng::with_seed(mix(shared.world.seed, 1_000 + number as u64));
    // Some clients fail over between p-nodes, some know one only; some have no sessions.
    let pnodes = match rng.u64(0..3) {
        0 => vec![number % PNODES],
        _ => (0..PNODES).map(|i| (number + i) % PNODES).collect(),
    };
    let client = connect(&host, &pnodes, rng.u64(0..4) > 0, Patience::default()).await;
    shared.load_begins().await;
    let mut book = Book::new(&shared);
    while shared.loading() {
        one(&mut book, &client, &mut rng).await;
        let think_ms = shared.plan.think_ms;
        if think_ms > 0 {
            tokio::time::sleep(Duration::from_millis(rng.u64(0..=think_ms))).await;
        }
    }
    shared.working.fetch_sub(1, Relaxed);
}

fn a_table(shared: &Shared, rng: &mut fastrand::Rng) -> String {
    shared.plan.tables[rng.usize(0..shared.plan.tables.len())].0.clone()
}

fn a_key(shared: &Shared, rng: &mut fastrand::Rng) -> String {
    if rng.u64(0..5) < 3 {
        format!("h{}", rng.u64(0..shared.plan.hot_keys))
    } else {
        format!("c{:03}", rng.u64(0..shared.plan.cold_keys))
    }
}

fn pair(n: u64) -> [String; 2] {
    [format!("p{{{n}}}a"), format!("p{{{n}}}b")]
}

fn a_mode(rng: &mut fastrand::Rng) -> ReadMode {
    match rng.u64(0..10) {
        0 => ReadMode::Bda,
        1 => ReadMode::Nda,
        _ => ReadMode::Pda,
    }
}

async fn one(book: &mut Book, client: &Client, rng: &mut fastrand::Rng) {
    let shared = book.shared.clone();
    let (table, key) = (a_table(&shared, rng), a_key(&shared, rng));
    let bytes = rng.usize(0..=shared.plan.value_bytes);
    match rng.u64(0..42) {
        0..=14 => {
            let _ = book.get(client, &table, &key, a_mode(rng)).await;
        }
        15..=20 => {
            let value = book.value(bytes);
            book.write(client, &table, &key, Call::Put(&value)).await;
        }
        21..=25 => {
            let value = book.value(bytes);
            book.write(client, &table, &key, Call::Insert(&value)).await;
        }
        26..=28 => {
            book.write(client, &table, &key, Call::Delete).await;
        }
        29 => {
            book.delete_checked(client, &table, &key).await;
        }
        30..=33 => compare_and_set(book, client, rng, &table, &key, bytes).await,
        34 | 35 => {
            let keys: Vec<String> = (0..MANY).map(|_| a_key(&shared, rng)).collect();
            let _ = book.multi_get(client, &table, &keys).await;
        }
        36 => {
            // All keys of a kind: every one of them counts as read.
            let prefix = *pick(rng, &["h", "c"]);
            let keys: Vec<String> = match prefix {
                "h" => (0..shared.plan.hot_keys).map(|n| format!("h{n}")).collect(),
                _ => (0..shared.plan.cold_keys).map(|n| format!("c{n:03}")).collect(),
            };
            let page = *pick(rng, &[0, 3, 17]);
            let _ = book.scan(client, &table, prefix, &keys, page, rng.bool()).await;
        }
        37 | 38 => {
            let value = book.value(bytes);
            book.put_all(client, &table, &pair(rng.u64(0..PAIRS)), &value).await;
        }
        39 => see_a_pair(book, client, rng, &table).await,
        40 => {
            let value = book.value(bytes);
            book.swap(client, &table, &key, &value).await;
        }
        _ => {
            // Hot: several clients meet at each, also in one group.
            for _ in 0..4 {
                book.increment(client, &table, &format!("n{}", rng.u64(0..2))).await;
            }
        }
    }
}

async fn compare_and_set(
    book: &mut Book,
    client: &Client,
    rng: &mut fastrand::Rng,
    table: &str,
    key: &str,
    bytes: usize,
) {
    let Ok(seen) = book.get(client, table, key, ReadMode::Pda).await else { return };
    let value = book.value(bytes);
    let new = if rng.u64(0..4) > 0 { Some(value.as_str()) } else { None };
    if seen.is_none() && new.is_none() {
        return;
    }
    book.write(client, table, key, Call::Cas { expected: seen.as_deref(), new }).await;
}

/// A page of one partition is a snapshot: both halves of a pair are of the same batch.
async fn see_a_pair(book: &mut Book, client: &Client, rng: &mut fastrand::Rng, table: &str) {
    let n = rng.u64(0..PAIRS);
    let keys = pair(n);
    let Ok(seen) = book.scan(client, table, &format!("p{{{n}}}"), &keys, 0, false).await else { return };
    let halves: Vec<_> = keys.iter().map(|k| seen.iter().find(|(key, _)| key == k).map(|(_, v)| v)).collect();
    if halves[0] != halves[1] {
        let text = format!("a batch is seen by halves: {table}/{keys:?} hold {halves:?}");
        book.shared.world.violation(text);
    }
}
