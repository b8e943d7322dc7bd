//! When this node may vote, pre-vote or campaign.

use std::sync::atomic::{AtomicU64, Ordering};

/// Times are nanoseconds of `Clock::grantor_ns`: a voter *grants* leaders its abstention.
#[derive(Debug)]
pub struct VoteGuard {
    /// Leader lease, stretched by the drift bound.
    lease_ns: u64,
    /// The newest of: process start, last append or snapshot accepted from a leader, own last acknowledged round.
    bound_ns: AtomicU64,
}

impl VoteGuard {
    /// A process starts bound: it has forgotten what it promised before.
    pub fn new(lease_ns: u64, start_ns: u64) -> Self {
        Self { lease_ns, bound_ns: AtomicU64::new(start_ns) }
    }

    /// An append or a snapshot was accepted under a leader's vote, or a majority acknowledged this node's own round.
    pub fn bind(&self, now_ns: u64) {
        self.bound_ns.fetch_max(now_ns, Ordering::AcqRel);
    }

    /// From when on this node may vote or campaign.
    pub fn opens_at_ns(&self) -> u64 {
        self.bound_ns.load(Ordering::Acquire) + self.lease_ns
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
        guard.bind(1500);
        assert!(!guard.is_open(1899));
        guard.bind(1200);
        assert_eq!(guard.opens_at_ns(), 1900, "an older sign does not open it");
    }
}
