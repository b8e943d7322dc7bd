//! Whose answers the leader's lease is counted from.
//!
//! Invariant: while the old set, both, or the new one may elect somebody, this leader's lease is counted from a majority of each.
//! [`counted`] is the union of: every set of the newest membership in the log, every set of the newest one known to be
//! committed, and, from *before* Raft is asked, the set that it is asked for. Nothing is dropped from it before Raft has answered and
//! the membership is uniform and committed; how long that takes, or what became of the answer, does not matter.
//!
//! So no p-node's lease (which never outlives the leader's) is alive when somebody else is elected. Let S be the old voters, S' the
//! new ones, and look at the *first* later leader: its log's memberships are this leader's, or older. Whoever accepts an append is
//! bound by its vote guard for at least as long as a lease counted from it lasts; two majorities of a set share a voter.
//! * Elected under S (its log ends before the joint entry), or under both (before the last entry, the uniform one): a majority of S
//!   voted. S is counted until the uniform entry is committed, so one of them was bound. From then on a majority of S has the joint
//!   entry and a majority of S' the uniform one, and they vote for no log that ends before.
//! * Elected under S' alone: its log has the uniform entry, which is proposed only when the joint one is committed. So a majority of
//!   S' accepted the joint entry, after the lease began to count S'. What the lease was counted from S alone was sent before that,
//!   and so ends before they are free; what came later was counted from a majority of S' too. Either way one of those that
//!   voted was bound. (That is also why the lease need not be cut when the sets change.)
//! * A learner's acknowledgements count once it is among the counted voters, earlier ones too: an append binds whoever accepts it.
//! * A next change, from S' to S'', is proposed by Raft only when the one before is committed, and counted as this one is. A next
//!   leader counts what its own log says, and was elected when this lease was over.
//! * A removed server that does not know it asks for votes in vain: guards drop its requests while a leader lives, and its log lacks
//!   entries that a majority of S' has.

use std::collections::BTreeSet;
use std::sync::Arc;

use openraft::async_runtime::WatchReceiver;
use sextant_raft_log::StoredMembership;

use crate::leadership::Quorums;
use crate::raft::Raft;
use crate::replica::Members;
use crate::worker::standing::Standing;

/// Raft's two memberships: the newest in the log, and the newest known to be committed.
#[derive(Clone)]
pub(in crate::worker) struct Memberships {
    pub effective: Arc<StoredMembership>,
    pub committed: Arc<StoredMembership>,
}

impl Memberships {
    pub fn of(raft: &Raft) -> Self {
        let metrics = raft.server_metrics();
        let m = metrics.borrow_watched();
        Self { effective: m.membership_config.clone(), committed: m.committed_membership_config.clone() }
    }

    pub fn index(&self) -> u64 {
        self.effective.log_id().as_ref().map_or(0, |id| id.index)
    }

    pub fn is_committed(&self) -> bool {
        self.effective.log_id() == self.committed.log_id()
    }

    pub fn is_joint(&self) -> bool {
        self.effective.membership().get_joint_config().len() > 1
    }

    /// Who votes when the change under way, if any, is done.
    pub fn voters(&self) -> BTreeSet<u64> {
        self.effective.membership().get_joint_config().last().cloned().unwrap_or_default()
    }

    pub fn members(&self) -> Members {
        let membership = self.effective.membership();
        Members { voters: membership.voter_ids().collect(), learners: membership.learner_ids().collect() }
    }
}

/// The sets of voters that a lease has to be counted from. `asked`: what Raft was asked for.
pub(super) fn counted<'a>(
    effective: &'a StoredMembership,
    committed: &'a StoredMembership,
    asked: impl IntoIterator<Item = &'a BTreeSet<u64>>,
) -> Quorums {
    let mut sets: Quorums = Vec::new();
    let known = [effective, committed].into_iter().flat_map(|m| m.membership().get_joint_config());
    for set in known.chain(asked) {
        let set: Vec<u64> = set.iter().copied().collect();
        if !set.is_empty() && !sets.contains(&set) {
            sets.push(set);
        }
    }
    sets
}

impl Standing {
    /// The sets that the lease of this term is counted from. `asked`: what Raft was asked for since it began.
    pub fn counted(&self, term: u64, memberships: &Memberships, asked: Option<&BTreeSet<u64>>) -> Quorums {
        let asked = asked.into_iter().chain(self.left_behind(term));
        counted(&memberships.effective, &memberships.committed, asked)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use sextant_raft_log::{Member, Membership, log_id};

    use super::*;

    fn stored(index: u64, sets: &[&[u64]]) -> StoredMembership {
        let sets: Vec<BTreeSet<u64>> = sets.iter().map(|s| s.iter().copied().collect()).collect();
        let nodes: BTreeMap<u64, Member> =
            sets.iter().flatten().map(|n| (*n, Member::new("a:1", 1))).collect();
        StoredMembership::new(Some(log_id(1, index)), Membership::new(sets, nodes).unwrap())
    }

    #[test]
    fn every_set_that_may_elect_somebody_is_counted() {
        let (old, new) = (stored(0, &[&[1, 2, 3]]), stored(9, &[&[2, 3, 4]]));
        let joint = stored(8, &[&[1, 2, 3], &[2, 3, 4]]);
        let (s, t) = (vec![1, 2, 3], vec![2, 3, 4]);
        let target: BTreeSet<u64> = t.iter().copied().collect();
        assert_eq!(counted(&old, &old, None), std::slice::from_ref(&s), "at rest");
        assert_eq!(counted(&old, &old, Some(&target)), [s.clone(), t.clone()], "before Raft does anything");
        assert_eq!(counted(&joint, &old, Some(&target)), [s.clone(), t.clone()]);
        assert_eq!(counted(&joint, &joint, None), [s.clone(), t.clone()], "a leader elected in the middle");
        assert_eq!(counted(&new, &joint, None).len(), 2, "the new set is not committed yet");
        assert_eq!(counted(&new, &new, None), std::slice::from_ref(&t));
        assert_eq!(counted(&new, &new, Some(&target)), [t]);
        let nothing = StoredMembership::default();
        assert_eq!(counted(&old, &nothing, None), [s], "a log whose commits are not known");
    }

    #[test]
    fn what_raft_was_asked_for_in_a_term_counts_when_the_node_leads_again_in_it() {
        let memberships = |at: &StoredMembership| {
            let at = Arc::new(at.clone());
            Memberships { effective: at.clone(), committed: at }
        };
        let old = memberships(&stored(0, &[&[1, 2, 3]]));
        let mut standing = Standing::default();
        standing.leave_behind(7, [2, 3, 4].into());
        assert_eq!(standing.counted(7, &old, None).len(), 2);
        assert_eq!(standing.counted(8, &old, None).len(), 1, "another term's Raft does not do it any more");
    }
}
