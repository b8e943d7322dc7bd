//! Objects of the Redis protocol, counters, lifetimes and transactions, over RESP connections.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use sextant_objects::{Act, Client, Group, Known, Patience};

use super::Shared;
use crate::cluster::resp_addr;
use crate::host::{Host, mix};
use crate::plan::PNODES;

/// Longer than p-nodes try; and so short that what they do takes effect later, or never.
const ANSWERS_WITHIN_MS: [u64; 3] = [6_000, 2_000, 600];
const CONNECTS_WITHIN: Duration = Duration::from_millis(400);

fn client(shared: &Shared, host: &Arc<Host>, pnodes: &[usize], answer_ms: u64) -> Client {
    let addrs = pnodes.iter().map(|pnode| resp_addr(*pnode)).collect();
    let patience = Patience { connect: CONNECTS_WITHIN, answer: Duration::from_millis(answer_ms) };
    Client::new(host.boot(), addrs, patience, shared.new_client_id())
}

pub async fn objects(shared: Arc<Shared>, host: Arc<Host>, number: usize) {
    let mut rng = fastrand::Rng::with_seed(mix(shared.world.seed, 7_000 + number as u64));
    let pnodes: Vec<usize> = (0..PNODES).map(|i| (number + i) % PNODES).collect();
    let answer_ms = ANSWERS_WITHIN_MS[rng.usize(0..ANSWERS_WITHIN_MS.len())];
    let mut client = client(&shared, &host, &pnodes, answer_ms);
    shared.load_begins().await;
    while shared.loading() {
        let acts = client.act(&shared.recorder, &shared.groups, &mut rng).await;
        count(&shared, &mut client, &acts);
        tokio::time::sleep(Duration::from_millis(rng.u64(0..=shared.plan.think_ms))).await;
    }
    shared.working.fetch_sub(1, Relaxed);
}

fn count(shared: &Shared, client: &mut Client, acts: &[Act]) {
    for Act { name, known } in acts {
        match known {
            Known::Done => {
                shared.tally.ok.fetch_add(1, Relaxed);
                shared.count(match *name {
                    "command" => "object_commands",
                    "transaction" => "object_transactions",
                    _ => "object_watched_transactions",
                });
                if shared.world.is_faulty() {
                    shared.count("object_acts_under_faults");
                }
            }
            Known::Refused(_) => {
                shared.tally.failed.fetch_add(1, Relaxed);
                shared.count("object_acts_refused");
            }
            Known::Unknown(_) => {
                client.id = shared.new_client_id();
                shared.tally.unknown.fetch_add(1, Relaxed);
                shared.count("object_acts_unknown");
            }
        }
    }
}

/// All of a group through one p-node. What is the matter, if it cannot be read.
pub async fn look_at(shared: &Shared, host: &Arc<Host>, pnode: usize, group: &Group) -> Result<(), String> {
    let mut client = client(shared, host, &[pnode], ANSWERS_WITHIN_MS[0]);
    let acts = client.look_at(&shared.recorder, group).await;
    match acts.into_iter().find(|act| act.known != Known::Done) {
        None => Ok(()),
        Some(act) => Err(format!("{:?}: {:?}", group.name, act.known)),
    }
}
