//! How long a lease can be: what a leader can promise, as long as nobody else can be elected.
//!
//! Invariant: a lease is counted from a time that was taken *before* the leader's own lease was asked: a process that is paused in
//! between must not grant what it no longer has.

use sextant_environment::clock::CLOCK_DISAGREEMENT_NS;

use super::grantor::Now;

/// What can be granted.
#[derive(Clone, Copy, Debug)]
pub struct Offer {
    /// From here a lease counts.
    pub now: Now,
    /// The term, and the length in nanoseconds; None: no lease can be granted.
    pub grantable: Option<(u64, u64)>,
}

/// What a leader has to offer, asked at some moment.
#[derive(Clone, Copy, Debug)]
pub struct Claim {
    pub term: u64,
    /// Of the leader's own lease.
    pub left_ns: u64,
    pub drift_ppm: u64,
    /// How long a lease is to be.
    pub wanted_ns: u64,
}

impl Claim {
    fn grantable(self) -> Option<(u64, u64)> {
        length_ns(self.left_ns, self.drift_ppm, self.wanted_ns).map(|ns| (self.term, ns))
    }
}

impl Offer {
    /// `now` reads the grantor's clocks; `claim` asks the leader's own lease (None: it does not lead). `paused`: what may happen to
    /// the process in between.
    pub async fn of(
        now: impl Fn() -> Now,
        claim: impl Fn() -> Option<Claim>,
        paused: impl Future<Output = ()>,
    ) -> Self {
        let now = now();
        paused.await;
        Self { now, grantable: claim().and_then(Claim::grantable) }
    }
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
    use std::cell::Cell;

    use sextant_environment::clock::WallInterval;

    use super::*;

    const MS: u64 = 1_000_000;

    #[tokio::test]
    async fn a_lease_counts_from_before_the_leaders_own_was_asked_however_long_the_process_is_paused_in_between()
     {
        let clock = Cell::new(100 * MS);
        let now = || Now { mono_ns: clock.get(), wall: WallInterval { earliest_ns: 0, latest_ns: 0 } };
        let ends_at = 1000 * MS;
        let claim = || {
            let left_ns = ends_at - clock.get();
            Some(Claim { term: 3, left_ns, drift_ppm: 0, wanted_ns: 600 * MS })
        };
        let offer = Offer::of(now, claim, async { clock.set(700 * MS) }).await;
        assert_eq!(offer.now.mono_ns, 100 * MS);
        let (term, length_ns) = offer.grantable.unwrap();
        assert_eq!((term, length_ns), (3, 300 * MS - CLOCK_DISAGREEMENT_NS));
        assert!(clock.get() + length_ns <= ends_at, "not even if it counted from now");
        assert!(Offer::of(now, || None, async {}).await.grantable.is_none());
    }

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
