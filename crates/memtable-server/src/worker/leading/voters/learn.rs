//! New servers become learners and get the log, before they may become voters.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use openraft::ChangeMembers;
use openraft::async_runtime::WatchReceiver;
use openraft::raft::Precondition;
use sextant_common::error::{Error, Result};
use sextant_raft_log::{Member, TypeConfig};

use crate::raft::Raft;
use crate::replica::ReplicaState;

/// A server that lacks no more than so many entries has "nearly the whole log".
pub(super) const NEARLY: u64 = 256;
/// A new server whose log does not grow for so long, and that takes nothing new of a snapshot, is given up.
const STANDSTILL_NS: u64 = 5_000_000_000;
/// A new server that has not caught up after so long never will.
const LEARN_NS: u64 = 600_000_000_000;
/// How often a new server's progress is looked at.
const LEARN_POLL: Duration = Duration::from_millis(20);

/// Makes servers learners and waits until they have nearly the whole log. No set of voters changes.
pub(super) async fn learn(
    shared: &ReplicaState,
    raft: &Raft,
    term: u64,
    unknown: BTreeMap<u64, Member>,
    new: BTreeSet<u64>,
) -> Result<()> {
    new.iter().for_each(|node| shared.snapshots_out.expect(*node));
    if !unknown.is_empty() {
        let added = raft.change_membership_if(ChangeMembers::AddNodes(unknown), true, [in_term(term)]).await;
        added.map_err(|e| Error::retry(format!("Raft takes no learners: {e}")))?;
    }
    let metrics = raft.metrics();
    let started_ns = shared.env.clock.holder_ns();
    let (mut most, mut snapshots, mut grew_ns) = (0, Some(0), started_ns);
    loop {
        let (behind, have) = {
            let m = metrics.borrow_watched();
            let Some(replication) = m.replication.as_ref().filter(|_| m.current_term == term) else {
                return Err(Error::retry("leadership changed: the voters are as before"));
            };
            let at = |node: &u64| replication.get(node).and_then(|at| at.as_ref()).map(|id| id.index);
            let near = |node: &u64| at(node).is_some_and(|at| at + NEARLY >= m.last_log_index.unwrap_or(0));
            let behind: Vec<u64> = new.iter().copied().filter(|node| !near(node)).collect();
            let have: u64 = new.iter().map(|node| at(node).map_or(0, |index| index + 1)).sum();
            (behind, have)
        };
        if behind.is_empty() {
            return Ok(());
        }
        let now = shared.env.clock.holder_ns();
        let so_far = shared.snapshots_out.so_far(behind.iter().copied());
        if have > most || so_far != snapshots || so_far.is_none() {
            (most, snapshots, grew_ns) = (have.max(most), so_far, now);
        }
        if now.saturating_sub(grew_ns) > STANDSTILL_NS || now.saturating_sub(started_ns) > LEARN_NS {
            return Err(Error::invalid(format!(
                "servers {behind:?} do not catch up with the log: are they up? The voters are as before; learners that were \
                 added are let go"
            )));
        }
        tokio::time::sleep(LEARN_POLL).await;
    }
}

/// Raft is to do it in this term, or not at all.
pub(super) fn in_term(term: u64) -> Precondition<TypeConfig> {
    let committed_leader_id = openraft::alias::CommittedLeaderIdOf::<TypeConfig>::new(term);
    Precondition::CommittedLeaderId { committed_leader_id }
}
