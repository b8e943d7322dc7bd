//! Watches a server's monotonic clock against our own: a drift beyond the stated bound shows in the replies to pulls.
//!
//! Owns a detector, pure. Between two replies of one server incarnation its clock moved by a known amount; ours moved by an
//! amount that is known up to the two round trips. If the two cannot be reconciled within the bound, one of the clocks is not
//! what leases assume. What follows is the caller's business: a holder whose clock is too slow must not use leases.
//!
//! The longer the base line, the smaller the drift that shows: with a minute between two replies and a millisecond of round
//! trips some 20 parts per million beyond the bound.

use sextant_environment::clock::CLOCK_DISAGREEMENT_NS;

use super::{Drift, PullTimes};

/// A base line is not longer than twice this: what a clock did long ago says little.
const BASE_LINE_NS: u64 = 60_000_000_000;

/// What two replies show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contradiction {
    /// The server's clock gained on ours by more than both may drift. Dangerous: we would use a lease for too long.
    OursIsSlow,
    /// Ours gained on the server's. Our leases end early, which is safe. Either the server's machine was suspended (it counts
    /// leases by the clock that stands still then, so that they last), or its clock is too slow, and it may believe in its own
    /// lease for too long.
    OursIsFast,
}

/// Of one server.
#[derive(Debug, Default)]
pub struct ClockWatch {
    /// Base lines: the older one is in use, the younger one takes its place.
    anchors: Option<(PullTimes, PullTimes)>,
}

impl ClockWatch {
    /// Looks at a reply. After a contradiction the watch starts anew.
    pub fn see(&mut self, now: PullTimes, drift: Drift) -> Option<Contradiction> {
        let Some((old, young)) = &mut self.anchors else {
            self.anchors = Some((now, now));
            return None;
        };
        if old.server_boot != now.server_boot {
            self.anchors = Some((now, now));
            return None;
        }
        // A clock that goes back has moved by nothing, and less.
        let theirs_ns = now.server_mono_ns.saturating_sub(old.server_mono_ns);
        let longest_ns = now.received_ns.saturating_sub(answered_after(old, drift)) + CLOCK_DISAGREEMENT_NS;
        let shortest_ns = answered_after(&now, drift).saturating_sub(old.received_ns + CLOCK_DISAGREEMENT_NS);
        let found = if drift.shortest(theirs_ns) > longest_ns {
            Some(Contradiction::OursIsSlow)
        } else if drift.shortest(shortest_ns) > theirs_ns {
            Some(Contradiction::OursIsFast)
        } else {
            None
        };
        if found.is_some() {
            self.anchors = Some((now, now));
        } else if now.received_ns.saturating_sub(young.received_ns) > BASE_LINE_NS {
            (*old, *young) = (*young, now);
        }
        found
    }
}

/// The earliest moment of our clock at which the server can have answered.
fn answered_after(times: &PullTimes, drift: Drift) -> u64 {
    let waited_ns = times.received_ns.saturating_sub(times.sent_ns);
    times.sent_ns + drift.shortest(times.parked_ns).min(waited_ns)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: u64 = 1_000_000;

    fn at(ns: u64, ppm: i64) -> u64 {
        (1 << 40) + (i128::from(ns) * i128::from(1_000_000 + ppm) / 1_000_000) as u64
    }

    /// Replies at the given true times; each takes a while there, is parked and takes a while back (in ns).
    fn replies(ours_ppm: i64, theirs_ppm: i64, exchanges: &[(u64, u64, u64, u64)]) -> Vec<PullTimes> {
        let mut now = 0;
        let times = exchanges.iter().map(|(pause, there, parked, back)| {
            let sent = now + pause;
            let answered = sent + there + parked;
            now = answered + back;
            PullTimes {
                sent_ns: at(sent, ours_ppm),
                received_ns: at(now, ours_ppm),
                parked_ns: at(answered, theirs_ppm) - at(sent + there, theirs_ppm),
                server_mono_ns: at(answered, theirs_ppm),
                server_boot: 7,
            }
        });
        times.collect()
    }

    fn exchanges() -> impl Strategy<Value = Vec<(u64, u64, u64, u64)>> {
        prop::collection::vec((0..20_000 * MS, 0..200 * MS, 0..100 * MS, 0..200 * MS), 2..20)
    }

    proptest! {
        #[test]
        fn clocks_within_the_bound_are_never_accused(
            rho in 0i64..10_000, ours in -1_000_000i64..=1_000_000, theirs in -1_000_000i64..=1_000_000, x in exchanges(),
        ) {
            let mut watch = ClockWatch::default();
            for reply in replies(rho * ours / 1_000_000, rho * theirs / 1_000_000, &x) {
                prop_assert_eq!(watch.see(reply, Drift::of_each_clock(rho as u64)), None);
            }
        }

        #[test]
        fn a_drift_well_beyond_the_bound_shows_within_seconds(ours_is_slow: bool) {
            let (ours, theirs) = if ours_is_slow { (-5_000, 5_000) } else { (5_000, -5_000) };
            let mut watch = ClockWatch::default();
            let x = vec![(0, MS, 50 * MS, MS); 100];
            let found = replies(ours, theirs, &x).into_iter().find_map(|r| watch.see(r, Drift::of_each_clock(500)));
            let expected = if ours_is_slow { Contradiction::OursIsSlow } else { Contradiction::OursIsFast };
            prop_assert_eq!(found, Some(expected));
        }
    }

    #[test]
    fn a_clock_that_stood_still_shows_in_the_next_reply() {
        let mut watch = ClockWatch::default();
        let mut x = replies(0, 0, &[(0, MS, 0, MS), (10 * MS, MS, 0, MS)]);
        // 300 ms passed for the server, and none of them for us.
        x[1].server_mono_ns += 300 * MS;
        assert_eq!(watch.see(x[0], Drift::of_each_clock(500)), None);
        assert_eq!(watch.see(x[1], Drift::of_each_clock(500)), Some(Contradiction::OursIsSlow));
    }

    #[test]
    fn another_incarnation_starts_anew() {
        let mut watch = ClockWatch::default();
        let x = replies(0, 0, &[(0, MS, 0, MS), (10 * MS, MS, 0, MS)]);
        let restarted = PullTimes { server_boot: 8, server_mono_ns: 5, ..x[1] };
        assert_eq!(watch.see(x[0], Drift::of_each_clock(500)), None);
        assert_eq!(watch.see(restarted, Drift::of_each_clock(500)), None);
    }
}
