//! The end of a run: nothing is broken any more, so everything must work.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use sextant_client::{Client, ReadMode};

use crate::server::Id;
use crate::testbed::Testbed;
use crate::workload::{self, Load};

/// A cluster that does not serve after this long, with nothing broken, has hung.
const CONVERGE_WITHIN: Duration = Duration::from_secs(120);
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// Enough keys that every partition has several.
const PROBE_KEYS: u64 = 48;
/// Last reads that are under way together.
const READERS: usize = 12;
/// A last read that does not succeed is repeated.
const READ_TRIES: usize = 20;

/// Waits until every partition takes writes and answers reads through every p-node.
///
/// # Errors
/// What was the matter last.
pub async fn wait(bed: &Testbed, clients: &[Client]) -> Result<(), String> {
    let converged = wait_for(clients).await;
    if converged.is_err() {
        for id in Id::all() {
            let status = bed.status(id).await;
            println!("{id}: {}", status.map_or_else(|| "does not answer".into(), |s| s.to_string()));
        }
    }
    converged
}

/// The same, by what clients see. `clients`: one of each p-node.
pub async fn wait_for(clients: &[Client]) -> Result<(), String> {
    let mut last = String::new();
    let converged = async {
        while let Err(why) = serves(clients).await {
            last = why;
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    };
    let in_time = tokio::time::timeout(CONVERGE_WITHIN, converged).await.is_ok();
    if in_time { Ok(()) } else { Err(last) }
}

/// Keys of its own: outside of the history.
async fn serves(clients: &[Client]) -> Result<(), String> {
    for (at, client) in clients.iter().enumerate() {
        for i in 0..PROBE_KEYS {
            let key = format!("probe{at}.{i}");
            let failed = |what: &str, e| format!("{what} through p-node {}: {e}", at + 1);
            let seq = client.put("", key.clone(), "x").await.map_err(|e| failed("put", e))?;
            for (other, client) in clients.iter().enumerate() {
                let read = client.get("", key.clone()).await.map_err(|e| failed("get", e))?;
                if read.as_ref().is_none_or(|r| r.seq < seq) {
                    return Err(format!("p-node {} does not show {key} of p-node {}", other + 1, at + 1));
                }
            }
        }
    }
    Ok(())
}

/// Reads every key of the history through every p-node in every mode, into the history: so the checker sees whether
/// everything acknowledged is still there. Returns how many reads, and how many keys could not be read.
pub async fn read_everything(load: &Arc<Load>, clients: &[Client]) -> (u64, u64) {
    let keys = load.keys();
    let wanted = keys.iter().flat_map(|key| {
        clients
            .iter()
            .enumerate()
            .flat_map(move |(at, client)| ReadMode::ALL.map(|mode| (key, at, client.with_mode(mode))))
    });
    let reads = wanted.map(|(key, at, client)| async move {
        for _ in 0..READ_TRIES {
            // Ids far from those of the load; one reads one key at a time.
            let id = (1 << 40) + at as u64;
            if workload::get(load, &client, id, "last get", key).await.is_some() {
                return true;
            }
        }
        false
    });
    let answered: Vec<bool> = futures::stream::iter(reads).buffer_unordered(READERS).collect().await;
    (answered.len() as u64, answered.iter().filter(|ok| !**ok).count() as u64)
}
