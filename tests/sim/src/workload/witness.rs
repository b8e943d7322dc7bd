//! Witnesses: readers that look at a key while it is written, through one p-node and the other in turn.
//!
//! What one of them has seen, the next must see: a write that shows anywhere before it is published, or that is answered before
//! what it saw is, is convicted by the other p-node, whose filters do not have it yet. Keys are fresh, or of earlier rounds and
//! flushed since.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use sextant_checker::Call;
use sextant_client::{Client, ReadMode};

use super::{Book, Patience, Shared, connect};
use crate::host::{Host, mix};
use crate::plan::{PNODES, Scene};

/// So many keys of earlier rounds are kept.
const EARLIER: usize = 32;
const READERS: usize = 2;
/// A p-node that is cut off is not waited for: the key is of interest now.
const PATIENCE: Patience = Patience { deadline_ms: 400, attempt_ms: 400 };
const WRITERS_PATIENCE: Patience = Patience { deadline_ms: 1_200, attempt_ms: 600 };
/// Of witnesses that do not stand before a p-node that has to ask a leader and cannot: what the other one shows is of
/// interest for as long as a lease lives.
const IMPATIENCE: Patience = Patience { deadline_ms: 50, attempt_ms: 50 };
const WRITERS_IMPATIENCE: Patience = Patience { deadline_ms: 500, attempt_ms: 400 };

struct Round<'r> {
    shared: &'r Arc<Shared>,
    readers: &'r [Client],
    writers: &'r [Client],
    table: String,
    key: String,
    written: Cell<bool>,
}

pub async fn witness(shared: Arc<Shared>, host: Arc<Host>, number: usize) {
    let mut rng = fastrand::Rng::with_seed(mix(shared.world.seed, 4_000 + number as u64));
    let (patience, writers_patience) = match number % 2 {
        0 => (PATIENCE, WRITERS_PATIENCE),
        _ => (IMPATIENCE, WRITERS_IMPATIENCE),
    };
    let (mut readers, mut writers) = (Vec::new(), Vec::new());
    for pnode in 0..PNODES {
        readers.push(connect(&host, &[pnode], true, patience).await);
        writers.push(connect(&host, &[pnode], true, writers_patience).await);
    }
    shared.load_begins().await;
    let mut earlier: VecDeque<(String, String)> = VecDeque::new();
    for round in 0.. {
        if !shared.loading() {
            break;
        }
        let fresh = if shared.plan.theme == Some(Scene::HungUnderLease) { 9 } else { 4 };
        let known = earlier.len() >= EARLIER && rng.u64(0..12) >= fresh;
        let (table, key) = match known {
            true => earlier[rng.usize(0..EARLIER * 3 / 4)].clone(),
            false => {
                let table = shared.plan.tables[rng.usize(0..shared.plan.tables.len())].0.clone();
                (table, format!("seen{number}.{round:04}"))
            }
        };
        let round = Round {
            shared: &shared,
            readers: &readers,
            writers: &writers,
            table,
            key,
            written: Cell::new(false),
        };
        let reading = futures::future::join_all((0..READERS).map(|at| round.read(at, rng.fork())));
        // Through both p-nodes: if one of them is not heard, the other's write is what has to wait for it.
        let at = rng.usize(0..PNODES);
        let (first, second) = (rng.fork(), rng.fork());
        let writing = async {
            tokio::join!(round.write(at, first), round.condition((at + 1) % PNODES, second));
            round.written.set(true);
        };
        tokio::join!(writing, reading);
        if !known {
            earlier.push_back((round.table, round.key));
            if earlier.len() > EARLIER {
                earlier.pop_front();
            }
        }
    }
    shared.working.fetch_sub(1, Relaxed);
}

impl Round<'_> {
    async fn write(&self, at: usize, mut rng: fastrand::Rng) {
        let mut book = Book::new(self.shared);
        let client = &self.writers[at];
        let (table, key) = (&self.table, &self.key);
        let value = book.value(rng.usize(0..=self.shared.plan.value_bytes));
        match rng.u64(0..6) {
            0..=2 => book.write(client, table, key, Call::Put(&value)).await,
            3 | 4 => book.write(client, table, key, Call::Insert(&value)).await,
            _ => book.delete_checked(client, table, key).await,
        };
    }

    /// Often a condition that the write decides: its answer tells what it has seen.
    async fn condition(&self, at: usize, mut rng: fastrand::Rng) {
        let mut book = Book::new(self.shared);
        let client = &self.writers[at];
        tokio::time::sleep(Duration::from_millis(rng.u64(0..60))).await;
        let value = book.value(0);
        match rng.u64(0..4) {
            0 | 1 => book.write(client, &self.table, &self.key, Call::Insert(&value)).await,
            2 => book.write(client, &self.table, &self.key, Call::Put(&value)).await,
            _ => book.delete_checked(client, &self.table, &self.key).await,
        };
        for _ in 0..2 {
            for client in self.readers {
                let _ = book.get(client, &self.table, &self.key, ReadMode::Pda).await;
            }
        }
    }

    async fn read(&self, at: usize, mut rng: fastrand::Rng) {
        let mut book = Book::new(self.shared);
        let mut left = 2 * PNODES;
        for n in at.. {
            if self.written.get() {
                left -= 1;
            }
            if left == 0 || !self.shared.loading() {
                return;
            }
            let mode = if rng.u64(0..4) == 0 { ReadMode::Bda } else { ReadMode::Pda };
            let _ = book.get(&self.readers[n % PNODES], &self.table, &self.key, mode).await;
            tokio::time::sleep(Duration::from_millis(rng.u64(0..6))).await;
        }
    }
}
