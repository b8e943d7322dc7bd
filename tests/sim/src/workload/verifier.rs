//! The verifier: makes the tables at the start; at the end, when nothing is wrong any more, reads every key that was ever
//! written through every p-node, within a bound of time. What it reads goes into the history: an acknowledged write that is
//! lost shows there.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use sextant_checker::Call;
use sextant_common::error::Error;
use sextant_common::operation::parse_integer;

use super::increments::judge;
use super::{Book, Shared, connect_to};
use crate::host::Host;
use crate::plan::PNODES;
use crate::world::Phase;

/// From a cold start to the first write: elections, tables, sessions.
const BOOT_MAX: Duration = Duration::from_secs(60);
/// From the last fault to a cluster that serves everything.
const HEAL_MAX: Duration = Duration::from_secs(60);
/// Keys of one read.
const KEYS_AT_ONCE: usize = 64;
const PAUSE: Duration = Duration::from_millis(20);

pub async fn verify(shared: Arc<Shared>, host: Arc<Host>) {
    let mut clients = Vec::new();
    for pnode in 0..PNODES {
        clients.push(connect_to(&host, pnode).await);
    }
    let mut book = Book::new(&shared);
    let tables = &shared.plan.tables;
    let boot = async {
        for (name, options) in tables {
            retried(async || clients[0].create_table(name, options).await.map(|_| ())).await;
            // Every p-node knows the table, and every one can write.
            for client in &clients {
                retried(async || client.put(name, "boot", "up").await.map(|_| ())).await;
            }
        }
    };
    if tokio::time::timeout(BOOT_MAX, boot).await.is_err() {
        shared.world.violation(format!("the cluster did not come up within {BOOT_MAX:?}"));
        shared.world.set_phase(Phase::Done);
        return;
    }
    shared.world.set_phase(Phase::Load);
    while shared.world.phase() < Phase::Heal || shared.working.load(Relaxed) > 0 {
        if shared.world.phase() == Phase::Done {
            return;
        }
        tokio::time::sleep(PAUSE).await;
    }

    let mut stuck = String::new();
    let heal = async {
        // Everybody can write again ...
        for (at, client) in clients.iter().enumerate() {
            for (table, _) in tables {
                for n in 0..u64::from(shared.plan.partitions) * 4 {
                    let key = format!("healed{at}.{n}");
                    stuck = format!("a put of {table}/{key} through p{}", at + 1);
                    loop {
                        let value = book.value(0);
                        let known = book.write(client, table, &key, Call::Put(&value)).await;
                        if known == super::history::Known::Done {
                            break;
                        }
                        tokio::time::sleep(PAUSE).await;
                    }
                }
            }
        }
        // ... and shows what was written.
        for pnode in 0..PNODES {
            for group in shared.groups.all() {
                while let Err(why) = super::objects::look_at(&shared, &host, pnode, &group).await {
                    stuck = format!("a read of objects through p{}: {why}", pnode + 1);
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
        for (at, client) in clients.iter().enumerate() {
            for set in shared.loads.all() {
                while let Err(e) = super::loads::look_at_all(&shared, &set, &[], client, &mut book).await {
                    stuck = format!("a scan of {}/{} through p{}: {e}", set.name, set.tag, at + 1);
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
        let keys: Vec<(String, String)> = shared.keys.lock().iter().cloned().collect();
        for (at, client) in clients.iter().enumerate() {
            for (table, _) in tables {
                let counters = shared.increments.lock().clone();
                for (counter, increments) in counters {
                    if counter.0 != *table {
                        continue;
                    }
                    let last = loop {
                        match client.get(table, counter.1.clone()).await {
                            Ok(record) => break record.map_or(Some(0), |r| parse_integer(&r.value)),
                            Err(e) => stuck = format!("a read of {counter:?} through p{}: {e}", at + 1),
                        }
                        tokio::time::sleep(PAUSE).await;
                    };
                    let judged = last.ok_or("it is no number".to_owned()).and_then(|n| judge(&increments, n));
                    if let Err(why) = judged {
                        let text = format!("counter {counter:?} through p{}: {why}", at + 1);
                        shared.world.violation(text);
                    }
                }
                let of_table: Vec<String> =
                    keys.iter().filter(|(t, _)| t == table).map(|(_, key)| key.clone()).collect();
                for keys in of_table.chunks(KEYS_AT_ONCE) {
                    while let Err(e) = book.multi_get(client, table, keys).await {
                        stuck = format!("a read of {table}/{} and others through p{}: {e}", keys[0], at + 1);
                        tokio::time::sleep(PAUSE).await;
                    }
                }
            }
        }
    };
    let healed = tokio::time::timeout(HEAL_MAX, heal).await;
    if healed.is_err() {
        let text = format!("not healed {HEAL_MAX:?} after the last fault; stuck at {stuck}");
        shared.world.violation(text);
    }
    shared.world.set_phase(Phase::Done);
}

/// Until it succeeds.
async fn retried(mut attempt: impl AsyncFnMut() -> Result<(), Error>) {
    while attempt().await.is_err() {
        tokio::time::sleep(PAUSE).await;
    }
}
