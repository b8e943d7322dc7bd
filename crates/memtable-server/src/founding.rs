//! How a partition's Raft group begins, and how a server that has lost its memory gets back into it.
//!
//! One fixed server founds: the one with the lowest id, once every server of the configuration has answered that it has nothing of the
//! group, and every sstable server that it holds no table of the partition ([`crate::recover`]). The first membership names the incarnation
//! of each, so that a server whose disk is replaced later is not taken for the one that was a member. (Were there several founders, each might name other incarnations in its entry 0.)
//!
//! A server that has voted, or was told that the group means another incarnation of it, knows that there was a group. If all are
//! empty all the same, nobody founds: the gate says so, and an operator decides (`Verdict::Lost`).
//!
//! An empty server among others that are not waits: a group of its own could elect somebody who knows nothing of what the real
//! one has committed. If the group takes it for what it was before, it has lost its memory, and asks to be let in.

use std::collections::BTreeMap;
use std::time::Duration;

use openraft::async_runtime::WatchReceiver;
use sextant_environment::shutdown::Shutdown;
use sextant_raft_log::Member;

use crate::config::MemtableServerConfig;
use crate::raft::Raft;
use crate::raft::wire::Introduction;
use crate::recover::{Gate, Verdict};
use crate::replica::ReplicaState;

/// How soon the founder asks again.
const FOUNDING_POLL: Duration = Duration::from_millis(50);
/// The same while it takes an operator.
const LOST_POLL: Duration = Duration::from_secs(2);
/// How often a server asks to be let in, or looks whether it has to.
const ASK_POLL: Duration = Duration::from_millis(500);

/// What this server is to the partition's group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// The log has nothing, and says of nobody that it is a member.
    Nothing,
    /// The newest committed membership names this server, as what it is, among the voters.
    Voter,
    /// The log has something else.
    Other,
}

fn standing(raft: &Raft, shared: &ReplicaState) -> Standing {
    let metrics = raft.server_metrics();
    let m = metrics.borrow_watched();
    // What is not committed may be taken back: then somebody has to ask again.
    let committed = m.committed_membership_config.membership();
    let named = committed.get_node(&shared.node).map(|n| n.incarnation);
    if named == Some(shared.incarnation.id()) && committed.voter_ids().any(|v| v == shared.node) {
        Standing::Voter
    } else if m.membership_config.membership().nodes().next().is_none() {
        Standing::Nothing
    } else {
        Standing::Other
    }
}

/// The first membership, if this server is to found the group and everybody says that there is none.
pub fn first_members(
    config: &MemtableServerConfig,
    own: u64,
    said: &BTreeMap<u64, Introduction>,
) -> Option<BTreeMap<u64, Member>> {
    let servers = &config.cluster.memtable;
    let founder = servers.iter().map(|s| s.id).min()?;
    if founder != config.id {
        return None;
    }
    let member = |id: u64, addr: &str| {
        if id == config.id.0 {
            return Some((id, Member::new(addr, own)));
        }
        let said = said.get(&id).filter(|i| !i.founded && i.incarnation != 0)?;
        Some((id, Member::new(addr, said.incarnation)))
    };
    servers.iter().map(|s| member(s.id.0, &s.addr)).collect()
}

/// None: the server stops. Whoever waits for others has a part of the log, which somebody may open again then.
async fn unless_stopped<T>(shutdown: &mut Shutdown, work: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        () = shutdown.wait() => None,
        done = work => Some(done),
    }
}

/// Founds the group, or asks to be let into it, as long as that is to be done.
pub async fn found_or_ask(raft: Raft, config: MemtableServerConfig, gate: Gate, mut shutdown: Shutdown) {
    let (shared, network) = (gate.shared.clone(), gate.network.clone());
    let is_founder = config.cluster.memtable.iter().all(|s| s.id >= config.id);
    let mut pause = Duration::ZERO;
    loop {
        tokio::select! {
            () = shutdown.wait() => return,
            () = tokio::time::sleep(pause) => {}
        }
        pause = ASK_POLL;
        let standing = standing(&raft, &shared);
        let is_lost = shared.incarnation.is_lost(shared.id);
        if standing == Standing::Voter {
            if is_lost {
                shared.incarnation.regain(shared.id);
                shared.incarnation.store().await;
                tracing::info!(partition = %shared.id, "this server was let in again");
            }
            return;
        }
        if is_lost {
            let asked = network.introductions(network.others(), shared.incarnation.id());
            let Some(_) = unless_stopped(&mut shutdown, asked).await else { return };
            continue;
        }
        // If it has only a vote, or is lost, the gate's watch says why nothing happens.
        if !is_founder || standing != Standing::Nothing || !matches!(raft.is_initialized().await, Ok(false)) {
            continue;
        }
        pause = FOUNDING_POLL;
        let asked = network.introductions(network.others(), 0);
        let Some(said) = unless_stopped(&mut shutdown, asked).await else { return };
        let Some(members) = first_members(&config, shared.incarnation.id(), &said) else { continue };
        let Some(verdict) = unless_stopped(&mut shutdown, gate.check()).await else { return };
        match verdict {
            Verdict::New => {}
            // What this takes is an operator.
            Verdict::Lost(_) => {
                pause = LOST_POLL;
                continue;
            }
            Verdict::Unknown(_) | Verdict::Remembered(_) => continue,
        }
        // Not while an operator has the partition rebuilt.
        let Some(mut founded) = unless_stopped(&mut shutdown, gate.founder.lock()).await else { return };
        if *founded {
            continue;
        }
        match raft.initialize(members).await {
            Ok(()) => *founded = true,
            Err(e) => tracing::debug!("the Raft group exists already: {e}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use sextant_common::ids::NodeId;

    use super::*;

    fn config(id: u64) -> MemtableServerConfig {
        let text = format!(
            r#"
            id = {id}
            listen = "127.0.0.1:0"
            data_dir = "d"
            [cluster]
            id = "test"
            partitions = 1
            memtable = [{{ id = 2, addr = "b:1" }}, {{ id = 1, addr = "a:1" }}, {{ id = 3, addr = "c:1" }}]
            sstable = [{{ id = 1, addr = "s:1" }}]
            "#
        );
        let config: MemtableServerConfig = toml::from_str(&text).unwrap();
        assert_eq!(config.id, NodeId(id));
        config
    }

    fn says(founded: bool, incarnation: u64) -> Introduction {
        Introduction { founded, incarnation, format: 1, wall_ns: 0 }
    }

    #[test]
    fn one_fixed_server_founds_when_all_others_have_nothing() {
        let nothing: BTreeMap<u64, Introduction> = [(2, says(false, 20)), (3, says(false, 30))].into();
        let members = first_members(&config(1), 10, &nothing).unwrap();
        let incarnations: Vec<(u64, u64)> = members.iter().map(|(id, m)| (*id, m.incarnation)).collect();
        assert_eq!(incarnations, [(1, 10), (2, 20), (3, 30)]);
        assert_eq!(members[&3].addr, "c:1");
        let of_two: BTreeMap<u64, Introduction> = [(1, says(false, 10)), (3, says(false, 30))].into();
        assert_eq!(first_members(&config(2), 20, &of_two), None, "not the one with the lowest id");
        let founded: BTreeMap<u64, Introduction> = [(2, says(false, 20)), (3, says(true, 30))].into();
        assert_eq!(first_members(&config(1), 10, &founded), None);
        let silent: BTreeMap<u64, Introduction> = [(2, says(false, 20))].into();
        assert_eq!(first_members(&config(1), 10, &silent), None);
    }
}
