//! The leader's own lease, from send times that the network layer takes.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

/// Quorums of a membership: one set of voters, or two while it changes (joint consensus).
pub type Voters = Vec<Vec<u64>>;

#[derive(Debug, Default)]
struct Rounds {
    term: u64,
    me: u64,
    voters: Voters,
    /// Send time of the newest append that the node acknowledged in this term.
    acked: HashMap<u64, u64>,
}

/// Times are nanoseconds of `Clock::holder_ns`: the leader *holds* the promise of its followers not to vote.
#[derive(Debug)]
pub struct LeaderLease {
    /// Already shortened by the drift margin.
    lease_ns: u64,
    rounds: Mutex<Rounds>,
    valid_until_ns: AtomicU64,
    /// 0 while this node does not lead.
    term: AtomicU64,
}

impl LeaderLease {
    pub fn new(lease_ns: u64, drift_ppm: u64) -> Self {
        let margin = lease_ns * 2 * drift_ppm / 1_000_000 + 1;
        Self {
            lease_ns: lease_ns.saturating_sub(margin),
            rounds: Mutex::default(),
            valid_until_ns: AtomicU64::new(0),
            term: AtomicU64::new(0),
        }
    }

    /// This node leads `term`.
    pub fn begin(&self, term: u64, me: u64, voters: Voters) {
        let mut rounds = self.rounds.lock();
        if rounds.term == term && rounds.voters == voters && self.term.load(Ordering::Acquire) == term {
            return;
        }
        if rounds.term != term {
            rounds.acked.clear();
        }
        *rounds = Rounds { term, me, voters, acked: std::mem::take(&mut rounds.acked) };
        self.valid_until_ns.store(0, Ordering::Release);
        self.term.store(term, Ordering::Release);
    }

    /// This node no longer leads.
    pub fn end(&self) {
        self.term.store(0, Ordering::Release);
        self.valid_until_ns.store(0, Ordering::Release);
    }

    /// A follower accepted an append of this term that was sent at `sent_ns`.
    pub fn acknowledged(&self, term: u64, node: u64, sent_ns: u64) {
        let mut rounds = self.rounds.lock();
        if rounds.term != term {
            return;
        }
        let at = rounds.acked.entry(node).or_insert(0);
        *at = (*at).max(sent_ns);
        if let Some(quorum) = quorum_time(&rounds) {
            self.valid_until_ns.fetch_max(quorum + self.lease_ns, Ordering::AcqRel);
        }
    }

    /// A leader that is the only voter needs nobody: its lease runs from any moment.
    pub fn renew_if_alone(&self, now_ns: u64) {
        let rounds = self.rounds.lock();
        if !rounds.voters.is_empty() && rounds.voters.iter().all(|v| v.iter().all(|n| *n == rounds.me)) {
            self.valid_until_ns.fetch_max(now_ns + self.lease_ns, Ordering::AcqRel);
        }
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

/// The latest time such that a majority of every set of voters has acknowledged an append sent then or later.
fn quorum_time(rounds: &Rounds) -> Option<u64> {
    let of_set = |voters: &Vec<u64>| {
        let mut times: Vec<u64> = voters
            .iter()
            .map(|n| if *n == rounds.me { u64::MAX } else { rounds.acked.get(n).copied().unwrap_or(0) })
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

    #[test]
    fn the_lease_counts_from_the_send_time_that_a_majority_acknowledged() {
        let lease = LeaderLease::new(1000, 0);
        lease.begin(4, 1, vec![vec![1, 2, 3]]);
        assert!(!lease.is_valid(4, 0), "nothing acknowledged yet");
        lease.acknowledged(4, 2, 100);
        assert!(lease.is_valid(4, 1098));
        assert!(!lease.is_valid(4, 1099));
        assert!(!lease.is_valid(5, 500), "another term");
        lease.acknowledged(3, 3, 5000);
        assert!(!lease.is_valid(4, 1099), "an acknowledgement of another term does not count");
        lease.end();
        assert!(!lease.is_valid(4, 200));
    }

    #[test]
    fn five_nodes_need_two_others_and_joint_consensus_both_sets() {
        let lease = LeaderLease::new(1001, 0);
        lease.begin(1, 1, vec![vec![1, 2, 3, 4, 5]]);
        lease.acknowledged(1, 2, 300);
        assert!(!lease.is_valid(1, 301));
        lease.acknowledged(1, 3, 200);
        assert_eq!(lease.left_ns(1, 200), 1000);
        lease.begin(1, 1, vec![vec![1, 2, 3], vec![1, 6, 7]]);
        lease.acknowledged(1, 2, 900);
        assert!(!lease.is_valid(1, 901), "the new voters have not answered");
        lease.acknowledged(1, 7, 950);
        assert!(lease.is_valid(1, 1000));
    }

    #[test]
    fn drift_shortens_it_and_one_alone_needs_nobody() {
        let lease = LeaderLease::new(1_000_000, 1000);
        lease.begin(1, 1, vec![vec![1]]);
        lease.renew_if_alone(10);
        assert!(lease.left_ns(1, 10) < 998_001);
        assert!(lease.left_ns(1, 10) > 990_000);
    }
}
