//! The leader's own lease, from send times that the network layer takes.
//!
//! Invariant: once a vote of this node for a later term has left it, no lease of an earlier term is alive or comes alive again.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

/// Quorums of a membership: one set of voters, or two while it changes (joint consensus).
pub type Quorums = Vec<Vec<u64>>;

/// How long the lease is, and what a follower's answer must show to count for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// Already shortened by the drift margin. 0: there is no lease (no configuration is committed yet).
    pub lease_ns: u64,
    /// The follower was asked to abstain from votes for at least so long.
    pub abstention_ns: u64,
    /// The follower has the log up to here durably: the entry that a restarted one knows the lease's length from.
    pub configured_at: u64,
}

/// An append that a follower accepted.
#[derive(Clone, Copy, Debug)]
pub struct Ack {
    pub term: u64,
    pub node: u64,
    /// When it was sent.
    pub sent_ns: u64,
    /// What it asked for.
    pub abstention_ns: u64,
    /// Index up to which the follower's log agrees; None: the answer does not say.
    pub matched: Option<u64>,
}

#[derive(Debug, Default)]
struct Rounds {
    terms: Terms,
    term: u64,
    me: u64,
    voters: Quorums,
    /// Send time of the newest append that the node acknowledged in this term.
    acked: HashMap<u64, u64>,
    /// Up to where the node's log is known to agree in this term.
    matched: HashMap<u64, u64>,
    /// The highest term in which a vote of this node left it. Acknowledgements of earlier terms come too late.
    forsworn: u64,
}

impl Rounds {
    fn counts(&self, term: u64) -> bool {
        self.term == term && term >= self.forsworn
    }

    fn is_alone(&self) -> bool {
        !self.voters.is_empty() && self.voters.iter().all(|v| v.iter().all(|n| *n == self.me))
    }
}

/// Times are nanoseconds of `Clock::holder_ns`: the leader *holds* the promise of its followers not to vote.
#[derive(Debug, Default)]
pub struct LeaderLease {
    rounds: Mutex<Rounds>,
    valid_until_ns: AtomicU64,
    /// 0 while this node does not lead.
    term: AtomicU64,
}

impl LeaderLease {
    /// The lease's terms from now on. What was acknowledged under others keeps its length, and counts for nothing new.
    pub fn set_terms(&self, terms: Terms) {
        let mut rounds = self.rounds.lock();
        if rounds.terms != terms {
            if terms.abstention_ns > rounds.terms.abstention_ns {
                rounds.acked.clear();
            }
            rounds.terms = terms;
        }
    }

    /// This node leads `term`.
    pub fn begin(&self, term: u64, me: u64, voters: Quorums) {
        let mut rounds = self.rounds.lock();
        if rounds.term == term && rounds.voters == voters && self.term.load(Ordering::Acquire) == term {
            return;
        }
        if rounds.term != term {
            rounds.acked.clear();
            rounds.matched.clear();
        }
        (rounds.term, rounds.me, rounds.voters) = (term, me, voters);
        self.valid_until_ns.store(0, Ordering::Release);
        self.term.store(term, Ordering::Release);
    }

    /// From now on the lease of `term` is counted from a majority of each of these sets. How long it lasts already stays: see
    /// `worker::leading::voters`.
    pub fn count(&self, term: u64, voters: &Quorums) {
        let mut rounds = self.rounds.lock();
        if rounds.term == term && rounds.voters != *voters {
            rounds.voters.clone_from(voters);
        }
    }

    /// A node that is no member: what it acknowledged in an earlier life counts for nothing in the next.
    pub fn forget(&self, node: u64) {
        let mut rounds = self.rounds.lock();
        rounds.acked.remove(&node);
        rounds.matched.remove(&node);
    }

    /// Send time of the newest append of `term` that a node has acknowledged, voter or not.
    pub fn answered_ns(&self, term: u64, node: u64) -> Option<u64> {
        let rounds = self.rounds.lock();
        if rounds.term == term { rounds.acked.get(&node).copied() } else { None }
    }

    /// How many entries of the log a node has acknowledged in `term`, counted from index 0: what it may not have forgotten.
    pub fn acknowledged_by(&self, term: u64, node: u64) -> u64 {
        let rounds = self.rounds.lock();
        if rounds.term == term { rounds.matched.get(&node).map_or(0, |at| at.saturating_add(1)) } else { 0 }
    }

    /// This node no longer leads.
    pub fn end(&self) {
        self.term.store(0, Ordering::Release);
        self.valid_until_ns.store(0, Ordering::Release);
    }

    /// This node's vote for a leader of `term` is about to leave it. False: a lease of an earlier term is alive, and the vote
    /// must stay here. True: none is, and none comes alive again, whatever acknowledgements are still on their way: the lease
    /// would count from when an append was sent, and this node counts itself for it.
    #[must_use]
    pub fn forswear(&self, term: u64, now_ns: u64) -> bool {
        let mut rounds = self.rounds.lock();
        let leads = self.term.load(Ordering::Acquire);
        if leads != 0 && leads < term && self.valid_until_ns.load(Ordering::Acquire) > now_ns {
            return false;
        }
        rounds.forsworn = rounds.forsworn.max(term);
        true
    }

    /// Whether what is acknowledged in `term` counts for anything.
    pub fn counts(&self, term: u64) -> bool {
        self.rounds.lock().counts(term)
    }

    pub fn acknowledged(&self, ack: Ack) {
        let mut rounds = self.rounds.lock();
        if !rounds.counts(ack.term) {
            return;
        }
        if let Some(matched) = ack.matched {
            let at = rounds.matched.entry(ack.node).or_insert(0);
            *at = (*at).max(matched);
        }
        if ack.abstention_ns < rounds.terms.abstention_ns || rounds.terms.lease_ns == 0 {
            return;
        }
        let at = rounds.acked.entry(ack.node).or_insert(0);
        *at = (*at).max(ack.sent_ns);
        if let Some(quorum) = quorum_time(&rounds) {
            self.valid_until_ns.fetch_max(quorum + rounds.terms.lease_ns, Ordering::AcqRel);
        }
    }

    /// This node's own log is durable up to `index`: only then does it count itself, for it may restart too.
    pub fn durable(&self, term: u64, index: u64) {
        let mut rounds = self.rounds.lock();
        if rounds.term == term {
            let me = rounds.me;
            let at = rounds.matched.entry(me).or_insert(0);
            *at = (*at).max(index);
        }
    }

    /// A leader that is the only voter needs nobody: its lease runs from any moment.
    pub fn renew_if_alone(&self, now_ns: u64) {
        let rounds = self.rounds.lock();
        if rounds.terms.lease_ns > 0 && rounds.term >= rounds.forsworn && rounds.is_alone() {
            self.valid_until_ns.fetch_max(now_ns + rounds.terms.lease_ns, Ordering::AcqRel);
        }
    }

    /// Whether this node is the only voter: nobody's answer renews its lease.
    pub fn is_alone(&self) -> bool {
        self.rounds.lock().is_alone()
    }

    /// How long the lease of `term` still lasts; 0 if it is over or of another term.
    pub fn left_ns(&self, term: u64, now_ns: u64) -> u64 {
        let until = self.valid_until_ns.load(Ordering::Acquire);
        if term == 0 || self.term.load(Ordering::Acquire) != term { 0 } else { until.saturating_sub(now_ns) }
    }

    pub fn is_valid(&self, term: u64, now_ns: u64) -> bool {
        self.left_ns(term, now_ns) > 0
    }
}

/// The latest time such that a majority of every set of voters has acknowledged an append sent then or later, of those who
/// have the configuration durably.
fn quorum_time(rounds: &Rounds) -> Option<u64> {
    let of_set = |voters: &Vec<u64>| {
        let mut times: Vec<u64> = voters
            .iter()
            .map(|n| {
                if rounds.matched.get(n).copied().unwrap_or(0) < rounds.terms.configured_at {
                    return 0;
                }
                if *n == rounds.me { u64::MAX } else { rounds.acked.get(n).copied().unwrap_or(0) }
            })
            .collect();
        times.sort_unstable_by(|a, b| b.cmp(a));
        times.get(voters.len() / 2).copied()
    };
    let time = rounds.voters.iter().map(of_set).min().flatten()?;
    (time != 0 && time != u64::MAX).then_some(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(lease_ns: u64) -> LeaderLease {
        let lease = LeaderLease::default();
        lease.set_terms(Terms { lease_ns, abstention_ns: lease_ns + 1, configured_at: 0 });
        lease
    }

    /// An acknowledgement by a follower that has everything and was asked for as much as there is.
    fn ack(term: u64, node: u64, sent_ns: u64) -> Ack {
        Ack { term, node, sent_ns, abstention_ns: u64::MAX, matched: Some(u64::MAX) }
    }

    #[test]
    fn the_lease_counts_from_the_send_time_that_a_majority_acknowledged() {
        let lease = lease(1000);
        lease.begin(4, 1, vec![vec![1, 2, 3]]);
        assert!(!lease.is_valid(4, 0), "nothing acknowledged yet");
        lease.acknowledged(ack(4, 2, 100));
        assert!(lease.is_valid(4, 1099));
        assert!(!lease.is_valid(4, 1100));
        assert!(!lease.is_valid(5, 500), "another term");
        lease.acknowledged(ack(3, 3, 5000));
        assert!(!lease.is_valid(4, 1100), "an acknowledgement of another term does not count");
        lease.end();
        assert!(!lease.is_valid(4, 200));
    }

    #[test]
    fn after_a_vote_no_late_acknowledgement_brings_the_lease_back() {
        let lease = lease(1000);
        lease.begin(4, 1, vec![vec![1, 2, 3]]);
        lease.acknowledged(ack(4, 2, 100));
        assert!(!lease.forswear(5, 1099), "alive: the vote stays here");
        // Node 2 has taken an append that was sent at 1200; its answer is on its way while node 3 is elected.
        assert!(lease.forswear(5, 1300));
        lease.acknowledged(ack(4, 2, 1200));
        assert!(!lease.is_valid(4, 1301), "node 3 may lead by now");
        lease.renew_if_alone(1302);
        assert!(!lease.is_valid(4, 1303));
        lease.begin(6, 1, vec![vec![1, 2, 3]]);
        lease.acknowledged(ack(6, 2, 2000));
        assert!(lease.is_valid(6, 2500), "its own later term is another matter");
        assert!(lease.forswear(6, 2500), "as is a vote of the very term that it leads");
    }

    #[test]
    fn five_nodes_need_two_others_and_joint_consensus_both_sets() {
        let lease = lease(1000);
        lease.begin(1, 1, vec![vec![1, 2, 3, 4, 5]]);
        lease.acknowledged(ack(1, 2, 300));
        assert!(!lease.is_valid(1, 301));
        lease.acknowledged(ack(1, 3, 200));
        assert_eq!(lease.left_ns(1, 200), 1000);
        lease.begin(1, 1, vec![vec![1, 2, 3], vec![1, 6, 7]]);
        lease.acknowledged(ack(1, 2, 900));
        assert!(!lease.is_valid(1, 901), "the new voters have not answered");
        lease.acknowledged(ack(1, 7, 950));
        assert!(lease.is_valid(1, 1000));
    }

    #[test]
    fn while_voters_change_both_sets_are_counted_and_what_lasts_already_stays() {
        let lease = lease(1000);
        let (old, new) = (vec![1, 2, 3], vec![1, 4, 5]);
        lease.begin(1, 1, vec![old.clone()]);
        lease.acknowledged(ack(1, 2, 100));
        lease.count(1, &vec![old.clone(), new.clone()]);
        assert_eq!(lease.left_ns(1, 100), 1000, "promised by the old ones, who elect nobody meanwhile");
        lease.acknowledged(ack(1, 3, 500));
        lease.acknowledged(ack(1, 2, 500));
        assert_eq!(lease.left_ns(1, 100), 1000, "the old ones alone do not renew it");
        lease.acknowledged(ack(1, 4, 300));
        assert_eq!(lease.left_ns(1, 300), 1000, "a majority of each, the earlier one counts");
        lease.count(1, &vec![new.clone()]);
        lease.acknowledged(ack(1, 2, 900));
        assert_eq!(lease.left_ns(1, 300), 1000, "a removed voter does not count");
        lease.acknowledged(ack(1, 5, 900));
        assert_eq!(lease.left_ns(1, 900), 1000);
        lease.count(2, &vec![old]);
        lease.acknowledged(ack(1, 4, 1000));
        assert_eq!(lease.left_ns(1, 1000), 1000, "another term's voters are none of this one's");
    }

    #[test]
    fn a_leader_that_is_no_voter_does_not_count_itself() {
        let lease = lease(1000);
        lease.begin(1, 1, vec![vec![2, 3]]);
        lease.acknowledged(ack(1, 2, 100));
        assert!(!lease.is_valid(1, 100));
        lease.acknowledged(ack(1, 3, 200));
        assert_eq!(lease.left_ns(1, 100), 1000);
    }

    #[test]
    fn one_alone_needs_nobody() {
        let lease = lease(1000);
        lease.begin(1, 1, vec![vec![1]]);
        lease.renew_if_alone(10);
        assert_eq!(lease.left_ns(1, 10), 1000);
    }

    #[test]
    fn without_a_configuration_there_is_no_lease() {
        let lease = LeaderLease::default();
        lease.begin(1, 1, vec![vec![1, 2, 3]]);
        lease.acknowledged(ack(1, 2, 10));
        assert!(!lease.is_valid(1, 10));
        lease.begin(2, 1, vec![vec![1]]);
        lease.renew_if_alone(10);
        assert!(!lease.is_valid(2, 10));
    }

    #[test]
    fn a_longer_lease_counts_only_with_followers_that_have_its_entry_and_were_asked_for_it() {
        let lease = lease(1000);
        lease.begin(1, 1, vec![vec![1, 2, 3]]);
        let asked =
            |sent_ns, abstention_ns, matched| Ack { term: 1, node: 2, sent_ns, abstention_ns, matched };
        lease.acknowledged(asked(100, 1001, Some(5)));
        assert_eq!(lease.left_ns(1, 100), 1000);
        lease.set_terms(Terms { lease_ns: 3000, abstention_ns: 3001, configured_at: 9 });
        assert_eq!(lease.left_ns(1, 100), 1000, "earlier promises keep their length");
        lease.acknowledged(asked(200, 1001, Some(9)));
        assert_eq!(lease.left_ns(1, 100), 1000, "the follower was asked for less");
        lease.acknowledged(Ack { node: 3, ..asked(300, 3001, Some(8)) });
        assert_eq!(lease.left_ns(1, 100), 1000, "the follower may forget what it does not have in its log");
        lease.acknowledged(asked(300, 3001, None));
        assert_eq!(lease.left_ns(1, 100), 1000, "the leader itself may forget it");
        lease.durable(1, 9);
        lease.acknowledged(asked(300, 3001, None));
        assert_eq!(lease.left_ns(1, 300), 3000, "it had the entry before");
    }

    #[test]
    fn a_shorter_lease_is_used_at_once() {
        let lease = lease(1000);
        lease.begin(1, 1, vec![vec![1, 2, 3]]);
        lease.set_terms(Terms { lease_ns: 200, abstention_ns: 201, configured_at: 0 });
        lease.acknowledged(ack(1, 2, 100));
        assert_eq!(lease.left_ns(1, 100), 200);
    }
}
