//! Elections: openraft's own timer is off; this one campaigns only when the vote guard is open.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use openraft::ServerState;
use openraft::async_runtime::WatchReceiver;
use sextant_common::config::LeaseConfig;
use sextant_common::shutdown::Shutdown;
use sextant_raft_log::{LogId, RaftLog, StoredMembership};

use super::Raft;
use crate::shared::Shared;

const TICK: Duration = Duration::from_millis(10);
/// What must fit into the log for a campaign: a leader begins with an entry, and Raft cannot go on if the log refuses it. Far
/// less than what makes the log refuse writes, so that servers that filled up together still elect one of them.
const LOG_ROOM_BYTES: u64 = 32 * 1024;
/// Between two attempts of one node: a vote round with its fsyncs, and some.
const ATTEMPT_MS: u64 = 120;
/// The same for a node that the last leader has named as its successor: the others' guards open within a heartbeat or so.
const HEIR_ATTEMPT_MS: u64 = 30;

/// The device that a vote would have to be written to.
pub struct Device {
    pub log: Arc<RaftLog>,
    /// After a write that takes so long, the device counts as hung. 0: never.
    pub stall_ms: u64,
}

impl Device {
    fn hangs(&self) -> bool {
        self.stall_ms > 0 && self.log.stalled_ns() > self.stall_ms * 500_000
    }
}

/// Whether a node may campaign: as a voter of the newest membership in its log; or, as long as it does not know that one to be
/// committed, of the one before. (Otherwise a removed node that alone has the entry could block those that lack it.) A partition that
/// was not founded has no voters.
fn may_campaign(
    node: u64,
    newest: &StoredMembership,
    before: &StoredMembership,
    committed: Option<&LogId>,
) -> bool {
    let votes_in = |m: &StoredMembership| m.membership().voter_ids().any(|voter| voter == node);
    votes_in(newest) || (committed < newest.log_id().as_ref() && votes_in(before))
}

/// Campaigns when no leader was heard for the lease plus a random jitter. `rank`: 0 for the node that is to lead the partition
/// by preference (leaders are spread that way); the others wait a little longer.
pub async fn election_loop(
    raft: Raft,
    shared: Arc<Shared>,
    lease: LeaseConfig,
    device: Device,
    rank: u64,
    mut shutdown: Shutdown,
) {
    let clock = shared.env.clock.clone();
    let draw = || shared.env.rng.below(lease.election_jitter_ms + 1) * 1_000_000;
    // A rank's worth of patience: long enough for a vote round in between, short against the lease.
    let patience = rank * lease.election_jitter_ms.min(100) * 1_000_000 / 2;
    let mut jitter = draw();
    let mut next_attempt = 0;
    loop {
        tokio::select! {
            () = shutdown.wait() => return,
            () = tokio::time::sleep(TICK) => {}
        }
        let (state, may_lead, term) = {
            let metrics = raft.metrics();
            let m = metrics.borrow_watched();
            let committed = m.last_applied.as_ref();
            let before = &m.committed_membership_config;
            (m.state, may_campaign(shared.node, &m.membership_config, before, committed), m.current_term)
        };
        if matches!(state, ServerState::Leader | ServerState::Shutdown) {
            continue;
        }
        let now = clock.grantor_ns();
        // Named by the leader of the term that this node still knows as the newest.
        let is_heir = term != 0 && shared.heir_of.load(Ordering::Acquire) == term;
        let wait = if is_heir { 0 } else { jitter + patience };
        // A candidate whose device hangs could not even write its own vote down.
        if !may_lead
            || now < next_attempt
            || now < shared.guard.opens_at_ns().saturating_add(wait)
            || device.hangs()
        {
            continue;
        }
        if device.log.check_room(LOG_ROOM_BYTES).is_err() {
            continue;
        }
        // Its own vote is a vote too: answers to what it sent as a leader of an earlier term come too late from here on.
        if !shared.lease.forswear(term, clock.holder_ns()) || clock.grantor_ns() < shared.guard.opens_at_ns()
        {
            continue;
        }
        if raft.trigger().elect(true).await.is_err() {
            return;
        }
        jitter = draw();
        next_attempt =
            now + if is_heir { HEIR_ATTEMPT_MS * 1_000_000 } else { ATTEMPT_MS * 1_000_000 + draw() };
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use openraft::BasicNode;
    use sextant_raft_log::{Membership, log_id};

    use super::*;

    fn stored(index: u64, voters: &[u64], learners: &[u64]) -> StoredMembership {
        let set: BTreeSet<u64> = voters.iter().copied().collect();
        let nodes: BTreeMap<u64, BasicNode> =
            voters.iter().chain(learners).map(|n| (*n, BasicNode::new("a:1"))).collect();
        StoredMembership::new(Some(log_id(1, index)), Membership::new(vec![set], nodes).unwrap())
    }

    #[test]
    fn only_a_voter_campaigns() {
        let (before, newest) = (stored(0, &[1, 2, 3], &[]), stored(7, &[2, 3, 4], &[1]));
        let (not_yet, committed) = (log_id(1, 6), log_id(1, 7));
        assert!(may_campaign(4, &newest, &before, Some(&not_yet)), "it counts from when it is in the log");
        assert!(may_campaign(1, &newest, &before, Some(&not_yet)), "the others may not have the entry");
        assert!(!may_campaign(1, &newest, &before, Some(&committed)), "removed, and a learner");
        assert!(!may_campaign(1, &newest, &newest, Some(&not_yet)));
        assert!(!may_campaign(5, &newest, &before, None), "never was one");
        let nothing = StoredMembership::default();
        assert!(!may_campaign(1, &nothing, &nothing, None), "not founded");
    }
}
