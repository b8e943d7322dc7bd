//! How long a lease can be: what a leader can promise, as long as nobody else can be elected.
//!
//! Invariant: a lease is counted from a time that was taken *before* the leader's own lease was asked: a process that is paused in
//! between must not grant what it no longer has.

use sextant_environment::clock::CLOCK_DISAGREEMENT_NS;
use sextant_environment::config::LeaseMode;
use sextant_rules::probe::PausePoint;

use super::grantor::Now;
use crate::replica::ReplicaState;

/// What can be granted.
#[derive(Clone, Copy, Debug)]
pub struct Offer {
    /// From here a lease counts.
    pub now: Now,
    /// The term, and the length in nanoseconds; None: no lease can be granted.
    pub grantable: Option<(u64, u64)>,
}

impl Offer {
    /// `group_interval_ns`: how often this leader forms groups (for leases of the `timed` mode).
    pub async fn of(state: &ReplicaState, group_interval_ns: u64) -> Self {
        let now = state.now();
        state.env.pause_point(PausePoint::LeaseTimed).await;
        Self { now, grantable: grantable(state, group_interval_ns) }
    }
}

fn grantable(state: &ReplicaState, group_interval_ns: u64) -> Option<(u64, u64)> {
    let configuration = state.configuration.load();
    let term = state.desk.epoch()?.term;
    let left_ns = state.lease.left_ns(term, state.env.clock.holder_ns());
    let wanted_ns = match configuration.mode {
        LeaseMode::Ack => configuration.lease_ns(),
        LeaseMode::Timed => group_interval_ns + state.log_write_lower_bound_ns(),
    };
    length_ns(left_ns, configuration.drift_ppm, wanted_ns).map(|ns| (term, ns))
}

/// The length of a lease of which `wanted_ns` are wanted, while the leader's own lease has `left_ns` left. None: it is over.
fn length_ns(left_ns: u64, drift_ppm: u64, wanted_ns: u64) -> Option<u64> {
    // Both ends' drift: the holder's clock and ours; and the threads on which our own two clocks are read.
    let drift_ns = left_ns * 2 * drift_ppm / 1_000_000;
    let safe_ns = left_ns.saturating_sub(drift_ns).saturating_sub(CLOCK_DISAGREEMENT_NS);
    (safe_ns > 0).then(|| wanted_ns.min(safe_ns))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_lease_ends_before_the_leaders_own_whatever_is_wanted() {
        assert_eq!(length_ns(1000 * MS, 500, 300 * MS), Some(300 * MS));
        // A thousandth for the two clocks' drift, and what threads disagree about.
        let longest = 999 * MS - CLOCK_DISAGREEMENT_NS;
        assert_eq!(length_ns(1000 * MS, 500, 5000 * MS), Some(longest));
        assert_eq!(length_ns(CLOCK_DISAGREEMENT_NS, 0, 300 * MS), None);
        assert_eq!(length_ns(0, 500, 300 * MS), None);
    }
}
