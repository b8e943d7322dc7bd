//! When this node may vote, pre-vote or campaign.

use std::sync::atomic::{AtomicU64, Ordering};

use sextant_environment::config::LEASE_MS_MAX;

/// The longest lease that can be configured, stretched by any drift bound.
const ABSTENTION_NS_MAX: u64 = 2 * LEASE_MS_MAX * 1_000_000;

/// Times are nanoseconds of `Clock::grantor_ns`: a voter *grants* leaders its abstention.
#[derive(Debug)]
pub struct VoteGuard {
    /// How long this node abstains, as far as it knows the configuration: the leader lease, stretched by the drift bound.
    abstention_ns: AtomicU64,
    opens_at_ns: AtomicU64,
}

impl VoteGuard {
    /// A process starts bound: it has forgotten what it promised before.
    pub fn new(abstention_ns: u64, start_ns: u64) -> Self {
        Self {
            abstention_ns: AtomicU64::new(abstention_ns),
            opens_at_ns: AtomicU64::new(start_ns + abstention_ns),
        }
    }

    /// The longest abstention of the configurations in the log. Earlier promises keep their length.
    pub fn set_abstention_ns(&self, abstention_ns: u64) {
        self.abstention_ns.store(abstention_ns, Ordering::Release);
    }

    /// What this node, as a leader, asks of those who accept its appends.
    pub fn abstention_ns(&self) -> u64 {
        self.abstention_ns.load(Ordering::Acquire)
    }

    /// An append or a snapshot was accepted under the vote of a leader that asks for `asked_ns`, or a majority acknowledged this
    /// node's own round. (An entry with a longer lease may not have reached the partition's worker yet: so the leader says it.)
    /// Nobody can ask for more than the longest lease there can be.
    pub fn bind(&self, now_ns: u64, asked_ns: u64) {
        let asked_ns = asked_ns.min(ABSTENTION_NS_MAX);
        let until = now_ns.saturating_add(self.abstention_ns().max(asked_ns));
        self.opens_at_ns.fetch_max(until, Ordering::AcqRel);
    }

    /// From when on this node may vote or campaign.
    pub fn opens_at_ns(&self) -> u64 {
        self.opens_at_ns.load(Ordering::Acquire)
    }

    pub fn is_open(&self, now_ns: u64) -> bool {
        now_ns >= self.opens_at_ns()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closed_after_start_and_after_every_sign_of_a_leader() {
        let guard = VoteGuard::new(400, 1000);
        assert!(!guard.is_open(1399));
        assert!(guard.is_open(1400));
        guard.bind(1500, 0);
        assert!(!guard.is_open(1899));
        guard.bind(1200, 0);
        assert_eq!(guard.opens_at_ns(), 1900, "an older sign does not open it");
    }

    #[test]
    fn a_promise_keeps_its_length_and_a_leader_may_ask_for_more() {
        let guard = VoteGuard::new(400, 0);
        guard.bind(1000, 700);
        assert_eq!(guard.opens_at_ns(), 1700);
        guard.set_abstention_ns(100);
        guard.bind(1100, 0);
        assert_eq!(guard.opens_at_ns(), 1700, "a shorter lease does not shorten what was promised");
        guard.bind(2000, 50);
        assert_eq!(guard.opens_at_ns(), 2100, "nor does a leader that asks for less");
        guard.bind(3000, u64::MAX);
        assert_eq!(
            guard.opens_at_ns(),
            3000 + ABSTENTION_NS_MAX,
            "a damaged message does not close it for ever"
        );
    }
}
