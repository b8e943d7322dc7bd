//! The lease trap: what one p-node believes to be absent is written through the other.
//!
//! A key is read as absent on one p-node, inserted through the other, and read again at the first as soon as the insert is
//! acknowledged; then deleted, inserted again across flushes, updated. Each key is used for a short while only, so that every
//! round begins with a key that no memtable and no SSTable has.
//!
//! The other half of the trap are keys of earlier rounds, which have been flushed since: no filter of a memtable has them, so
//! that the first update of one is exactly what a lease is there for.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use sextant_checker::Call;
use sextant_client::ReadMode;

use super::{Book, Shared, connect_to};
use crate::host::{Host, mix};

/// So many keys of earlier rounds are kept.
const EARLIER: usize = 24;

pub async fn lease_trap(shared: Arc<Shared>, host: Arc<Host>, number: usize) {
    let mut rng = fastrand::Rng::with_seed(mix(shared.world.seed, 2_000 + number as u64));
    let clients = [connect_to(&host, 0).await, connect_to(&host, 1).await];
    shared.load_begins().await;
    let mut book = Book::new(&shared);
    let mut round = 0;
    let mut earlier: VecDeque<(String, String)> = VecDeque::new();
    while shared.loading() {
        let table = shared.plan.tables[rng.usize(0..shared.plan.tables.len())].0.clone();
        let key = format!("trap{number}.{round:04}");
        round += 1;
        let here = rng.usize(0..2);
        let (near, far) = (&clients[here], &clients[1 - here]);
        if earlier.len() >= EARLIER && rng.bool() {
            for _ in 0..rng.usize(1..6) {
                let (table, key) = &earlier[rng.usize(0..EARLIER / 2)];
                let _ = book.get(near, table, key, ReadMode::Pda).await;
                let value = book.value(rng.usize(0..=shared.plan.value_bytes));
                book.write(far, table, key, Call::Put(&value)).await;
                for _ in 0..rng.usize(1..4) {
                    let _ = book.get(near, table, key, ReadMode::Pda).await;
                }
            }
        }
        for _ in 0..rng.usize(2..8) {
            let _ = book.get(near, &table, &key, ReadMode::Pda).await;
            let value = book.value(rng.usize(0..=shared.plan.value_bytes));
            match rng.u64(0..6) {
                0..=2 => book.write(far, &table, &key, Call::Insert(&value)).await,
                3 => book.write(far, &table, &key, Call::Delete).await,
                4 => book.write(far, &table, &key, Call::Put(&value)).await,
                _ => book.delete_checked(far, &table, &key).await,
            };
            let _ = book.get(near, &table, &key, ReadMode::Pda).await;
            if rng.u64(0..3) == 0 {
                // Time for a flush to come between.
                tokio::time::sleep(Duration::from_millis(rng.u64(0..400))).await;
            }
        }
        earlier.push_back((table, key));
        if earlier.len() > EARLIER {
            earlier.pop_front();
        }
    }
    shared.working.fetch_sub(1, Relaxed);
}
