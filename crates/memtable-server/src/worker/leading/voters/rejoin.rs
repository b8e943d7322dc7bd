//! Voters that have lost their memory are taken out and let in again, as new ones: what the leader does about what it hears.
//!
//! The rule is [`Strangers::next`](crate::leadership::Strangers::next); each step is an ordinary change of the voters
//! ([`super`]), so that leases, majorities and crashes half-way are theirs.

use std::collections::{BTreeMap, BTreeSet};

use openraft::ChangeMembers;
use sextant_raft_log::{Member, Membership};
use tokio::sync::oneshot;

use super::Memberships;
use crate::config::Rejoin;
use crate::leadership::Step;
use crate::worker::leading::Leading;
use crate::worker::replica::Replica;

/// Between two attempts.
const AGAIN_NS: u64 = 1_000_000_000;
/// A voter that answered so recently is there.
const ANSWERS_NS: u64 = 3_000_000_000;

impl Leading {
    /// Called when the membership is uniform, committed, and nobody changes it. True: something is under way now.
    pub fn see_to_strangers(&mut self, replica: &mut Replica, term: u64, memberships: &Memberships) -> bool {
        if !replica.shared.strangers.any() {
            replica.standing.rejoining.reported.clear();
            replica.standing.rejoining.doubled.clear();
            return false;
        }
        let now = replica.shared.env.clock.holder_ns();
        let membership = memberships.effective.membership();
        let lost = replica.shared.strangers.lost(membership, now);
        Self::report(replica, &lost);
        Self::report_doubled(replica, term, membership);
        if now < replica.standing.rejoining.next_ns {
            return false;
        }
        let answers = |node: u64| {
            let sent = replica.shared.lease.answered_ns(term, node);
            node == replica.shared.node || sent.is_some_and(|sent| now.saturating_sub(sent) < ANSWERS_NS)
        };
        // What is on its way into the log counts as well: an operator's choice is not overtaken.
        let is_left_out = |node: u64| replica.partition.configurations().any(|c| c.left_out.contains(&node));
        let step = replica.shared.strangers.next(membership, now, answers, is_left_out);
        let automatic = replica.tuning.rejoin == Rejoin::Automatic;
        let member = |id: &u64| membership.get_node(id).map(|m| (*id, m.clone()));
        match step {
            Step::TakeOut(voters) if automatic => {
                replica.standing.rejoining.next_ns = now + AGAIN_NS;
                self.change_to(replica, voters.iter().filter_map(member).collect());
            }
            // They never answer: nobody waits until they know.
            Step::LetGo(gone) => {
                replica.standing.rejoining.next_ns = now + AGAIN_NS;
                self.let_go(replica, term, gone, memberships);
                return true;
            }
            Step::LetIn(node, incarnation) if automatic => {
                replica.standing.rejoining.next_ns = now + AGAIN_NS;
                let Some(addr) = replica.network.peers.get(&node).map(|p| p.addr.clone()) else {
                    return false;
                };
                let voters = membership.voter_ids().collect::<BTreeSet<u64>>();
                let mut nodes: BTreeMap<u64, Member> = voters.iter().filter_map(member).collect();
                nodes.insert(node, Member::new(addr, incarnation));
                self.change_to(replica, nodes);
            }
            Step::Nothing | Step::TakeOut(_) | Step::LetIn(..) => return false,
        }
        self.voters.are_changing()
    }

    fn change_to(&mut self, replica: &Replica, nodes: BTreeMap<u64, Member>) {
        let (done, answer) = oneshot::channel();
        let (partition, to) = (replica.shared.id, nodes.keys().copied().collect::<Vec<u64>>());
        self.change_voters(replica, nodes, done);
        replica.background.spawn(async move {
            if let Ok(Err(e)) = answer.await {
                tracing::warn!(%partition, ?to, "a server without its memory waits: the voters were not changed: {e}");
            }
        });
    }

    fn let_go(&mut self, replica: &Replica, term: u64, gone: BTreeSet<u64>, memberships: &Memberships) {
        self.voters.lets_go(memberships.voters());
        let base = *memberships.effective.log_id();
        self.ask_raft(replica, term, ChangeMembers::RemoveNodes(gone), base);
    }

    /// Once for each server and incarnation.
    fn report_doubled(replica: &mut Replica, term: u64, membership: &Membership) {
        let answered_ns = |node| replica.shared.lease.answered_ns(term, node);
        let doubled = replica.shared.strangers.doubled(membership, answered_ns);
        for (node, is) in &doubled {
            if replica.standing.rejoining.doubled.get(node) != Some(is) {
                tracing::error!(
                    partition = %replica.shared.id,
                    "a memtable server {node} asks to be let in as incarnation {is:016x}, while the member {node} goes on: two \
                     servers with one id. The second one is not let in"
                );
            }
        }
        replica.standing.rejoining.doubled = doubled;
    }

    /// The alarm: once for each server and incarnation.
    fn report(replica: &mut Replica, lost: &BTreeMap<u64, u64>) {
        if *lost == replica.standing.rejoining.reported {
            return;
        }
        for (node, is) in lost {
            if replica.standing.rejoining.reported.get(node) != Some(is) {
                replica.metrics.lost_members.inc();
                tracing::error!(
                    partition = %replica.shared.id,
                    node,
                    "memtable server {node} has lost its memory (it is incarnation {is:016x} now, not the one that is a member): it votes \
                     for nobody and counts for nothing. rejoin = {:?}",
                    replica.tuning.rejoin
                );
            }
        }
        replica.standing.rejoining.reported.clone_from(lost);
    }
}
