//! Late copies: a client that loses patience with its p-node and repeats its request through the other, while the first copy is
//! still on its way. It is answered; others write; then the copy arrives. It must have no effect.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use sextant_checker::Call;
use sextant_client::ReadMode;

use super::history::Known;
use super::{Book, Patience, Shared, connect};
use crate::host::{Host, mix};
use crate::plan::PNODES;

const IMPATIENT: Patience = Patience { deadline_ms: 3_000, attempt_ms: 60 };

pub async fn late_copies(shared: Arc<Shared>, host: Arc<Host>, number: usize) {
    let mut rng = fastrand::Rng::with_seed(mix(shared.world.seed, 5_000 + number as u64));
    let here = number % PNODES;
    let there = (here + 1) % PNODES;
    let impatient = connect(&host, &[here, there], true, IMPATIENT).await;
    let other = connect(&host, &[there], true, Patience::default()).await;
    shared.load_begins().await;
    let (mut mine, mut others) = (Book::new(&shared), Book::new(&shared));
    for round in 0.. {
        if !shared.loading() {
            break;
        }
        let table = shared.plan.tables[rng.usize(0..shared.plan.tables.len())].0.clone();
        let key = format!("copy{number}.{round:04}");
        // A condition that holds, or fails, or a write without any.
        let there_is_one = rng.u64(0..4) > 0;
        let value = others.value(0);
        if there_is_one && others.write(&other, &table, &key, Call::Put(&value)).await != Known::Done {
            continue;
        }
        let value = mine.value(rng.usize(0..=shared.plan.value_bytes));
        let known = match rng.u64(0..4) {
            0 => mine.write(&impatient, &table, &key, Call::Put(&value)).await,
            _ => mine.write(&impatient, &table, &key, Call::Insert(&value)).await,
        };
        if known != Known::Done {
            continue;
        }
        others.write(&other, &table, &key, Call::Delete).await;
        // The client writes nothing more for a while: its next request would say that it has the answer of this one.
        for _ in 0..rng.usize(2..8) {
            tokio::time::sleep(Duration::from_millis(rng.u64(5..150))).await;
            let _ = others.get(&other, &table, &key, ReadMode::Pda).await;
        }
    }
    shared.working.fetch_sub(1, Relaxed);
}
