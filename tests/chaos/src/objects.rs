//! Objects of the Redis protocol, counters, lifetimes and transactions, over real RESP connections.

use std::sync::Arc;
use std::time::Duration;

use sextant_objects::{Act, Client, Group, Known, Patience};

use crate::workload::Load;

/// Longest pause between two turns of a client.
const THINK_MS: u64 = 40;
const PATIENCE: Patience =
    Patience { connect: Duration::from_millis(400), answer: Duration::from_millis(1_500) };
/// A last look that does not succeed is repeated.
const LOOKS: usize = 20;

/// One client: turns until the load stops. The first p-node is preferred.
pub async fn run_client(load: Arc<Load>, addrs: Vec<String>, seed: u64) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut client = Client::new(load.env.clone(), addrs, PATIENCE, load.client_id());
    while !load.is_over() {
        let acts = client.act(&load.recorder, &load.groups, &mut rng).await;
        for Act { name, known } in acts {
            match known {
                Known::Done => load.count(name, |tally| &mut tally.ok),
                Known::Refused(why) => {
                    load.note(name, "refused", why);
                    load.count(name, |tally| &mut tally.failed);
                }
                Known::Unknown(why) => {
                    load.note(name, "unknown", why);
                    load.count(name, |tally| &mut tally.unknown);
                    client.id = load.client_id();
                }
            }
        }
        tokio::time::sleep(Duration::from_millis(rng.u64(0..=THINK_MS))).await;
    }
}

/// Reads all objects through every p-node, into the history. How many looks, and how many did not succeed.
pub async fn look_at_everything(load: &Load, addrs: &[String]) -> (u64, u64) {
    let (mut looks, mut failed) = (0, 0);
    for addr in addrs {
        let mut client = Client::new(load.env.clone(), vec![addr.clone()], PATIENCE, load.client_id());
        for group in load.groups.all() {
            looks += 1;
            failed += u64::from(!is_seen(load, &mut client, &group).await);
        }
    }
    (looks, failed)
}

async fn is_seen(load: &Load, client: &mut Client, group: &Group) -> bool {
    for _ in 0..LOOKS {
        let acts = client.look_at(&load.recorder, group).await;
        if acts.iter().all(|act| act.known == Known::Done) {
            return true;
        }
    }
    false
}
