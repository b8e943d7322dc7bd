//! The holder's arithmetic: until when, by this p-node's own clocks, is the *leader's* clock certainly before the expiry?
//!
//! Owns the two bounds of the design (section 6); pure. Does not own filters, serials or manifests: the view pairs them.
//!
//! * Round trip, against the leader's monotonic clock. The pull left at local time s, the leader parked it for p and
//!   answered when its clock showed T. So at local time m, at most m - s - p(1 - r) of local time has passed since T, and the
//!   leader's clock shows at most T + (m - s - p(1 - r))(1 + r). With the expiry E, that is below E as long as
//!   m < s + p(1 - r) + (E - T)/(1 + r): one number, computed once, rounded down.
//! * Wall clock: `latest` < the wall expiry, if the leader gave one and our clock is synchronised.
//!
//! Either is enough: each proves that the leader's clock has not reached the expiry. They share nothing, so a step of the
//! wall clock cannot move the first.
//!
//! Both clocks may drift by rho against *true* time, in opposite directions; r is the drift of one against the other:
//! 1 + r = (1 + rho)/(1 - rho).
//!
//! Invariant: whatever the delays and the drifts within rho, [`Lease::is_usable`] is false once the grantor's clock has
//! reached the expiry.

use sextant_common::ids::ManifestVersion;
use sextant_environment::Clock;
use sextant_environment::clock::CLOCK_DISAGREEMENT_NS;
use sextant_environment::config::LeaseMode;

const PPM: u128 = 1_000_000;

/// The bound on the drift of one monotonic clock against another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drift {
    /// rho, of each clock against true time, in parts per million.
    ppm: u64,
}

impl Drift {
    /// `ppm`: the bound of each clock against true time. At most 10 % ([`sextant_environment::config::ClusterConfig::validate`]).
    pub fn of_each_clock(ppm: u64) -> Self {
        Self { ppm: ppm.min(500_000) }
    }

    /// The least that an interval of `ns` on one clock takes on the other: ns / (1 + r), rounded down. As 1 - r <= 1/(1 + r),
    /// it also serves for the parked time.
    pub(super) fn shortest(self, ns: u64) -> u64 {
        let rho = u128::from(self.ppm);
        (u128::from(ns) * (PPM - rho) / (PPM + rho)) as u64
    }

    /// The most that an interval of `ns` on one clock takes on the other, rounded up.
    fn longest(self, ns: u64) -> u64 {
        let rho = u128::from(self.ppm);
        u64::try_from((u128::from(ns) * (PPM + rho)).div_ceil(PPM - rho)).unwrap_or(u64::MAX)
    }

    /// The larger of two bounds.
    pub fn or_more(self, ppm: u64) -> Self {
        Self::of_each_clock(self.ppm.max(ppm))
    }
}

/// When a pull travelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PullTimes {
    /// `holder_ns` taken before the request left.
    pub sent_ns: u64,
    /// `holder_ns` taken when the reply was here.
    pub received_ns: u64,
    /// How long the server held the request, on its monotonic clock.
    pub parked_ns: u64,
    /// The server's monotonic clock when it answered.
    pub server_mono_ns: u64,
    /// The incarnation of that clock.
    pub server_boot: u64,
}

/// A grant as it came over the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    pub manifest_version: ManifestVersion,
    /// On the server's monotonic clock.
    pub expiry_mono_ns: u64,
    /// Nanoseconds since 1970; 0: not given.
    pub expiry_wall_ns: u64,
    /// The drift bound that the grantor counts with, in parts per million.
    pub drift_ppm: u64,
    /// Whether the grantor waits for acknowledgements. Its partition's replicated configuration says so: this p-node's file only
    /// seeds new clusters.
    pub mode: LeaseMode,
}

/// A lease with its expiry on this p-node's clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    pub manifest_version: ManifestVersion,
    pub mode: LeaseMode,
    server_boot: u64,
    expiry_mono_ns: u64,
    /// On our `holder_ns`: usable strictly before.
    usable_until_ns: u64,
    /// On our `holder_ns`: from then on the server's clock is certainly past the expiry, whatever wall clocks say.
    over_from_ns: u64,
    expiry_wall_ns: u64,
}

impl Lease {
    /// `drift`: our own bound; the grantor's counts if it is larger.
    pub fn new(grant: Grant, times: PullTimes, drift: Drift) -> Self {
        let drift = drift.or_more(grant.drift_ppm);
        // A server cannot have parked a request for longer than we waited; a smaller number only ends the lease sooner.
        let waited_ns = times.received_ns.saturating_sub(times.sent_ns);
        let parked_ns = drift.shortest(times.parked_ns).min(waited_ns);
        let left_ns = drift.shortest(grant.expiry_mono_ns.saturating_sub(times.server_mono_ns));
        Self {
            manifest_version: grant.manifest_version,
            mode: grant.mode,
            server_boot: times.server_boot,
            expiry_mono_ns: grant.expiry_mono_ns,
            usable_until_ns: times
                .sent_ns
                .saturating_add(parked_ns)
                .saturating_add(left_ns)
                .saturating_sub(CLOCK_DISAGREEMENT_NS),
            over_from_ns: times
                .received_ns
                .saturating_add(drift.longest(grant.expiry_mono_ns.saturating_sub(times.server_mono_ns)))
                .saturating_add(CLOCK_DISAGREEMENT_NS),
            expiry_wall_ns: grant.expiry_wall_ns,
        }
    }

    /// This lease, helped by what an earlier one of the same epoch proved. The earlier one is usable while the same server's
    /// clock is below *its* expiry, which is not above ours: as long as it is usable, so are we. (A slow round trip then
    /// does not shorten a renewal.)
    pub fn after(mut self, earlier: &Lease) -> Self {
        if earlier.server_boot == self.server_boot && earlier.expiry_mono_ns <= self.expiry_mono_ns {
            self.usable_until_ns = self.usable_until_ns.max(earlier.usable_until_ns);
        }
        self
    }

    /// Whether the leader's clock is certainly before the expiry. Reads the clock now, always.
    #[inline]
    pub fn is_usable(&self, clock: &dyn Clock) -> bool {
        let now_ns = clock.holder_ns();
        if now_ns < self.usable_until_ns {
            return true;
        }
        now_ns < self.over_from_ns && self.wall_says_usable(clock)
    }

    fn wall_says_usable(&self, clock: &dyn Clock) -> bool {
        self.expiry_wall_ns != 0 && {
            let wall = clock.wall();
            wall.is_synchronised() && wall.latest_ns < self.expiry_wall_ns
        }
    }

    /// Whether the wall clocks say that the lease lasts, although it is certainly over: one of them is beyond its bound.
    pub fn contradicts_wall_clocks(&self, clock: &dyn Clock) -> bool {
        clock.holder_ns() >= self.over_from_ns && self.wall_says_usable(clock)
    }

    /// Until when it is usable by the round-trip bound, on our `holder_ns`. For a simulation's invariants.
    pub fn usable_until_ns(&self) -> u64 {
        self.usable_until_ns
    }

    /// How long the lease still lasts by the round-trip bound, in nanoseconds.
    pub fn left_ns(&self, clock: &dyn Clock) -> u64 {
        self.usable_until_ns.saturating_sub(clock.holder_ns())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;
    use sextant_simulated::ManualClock;

    use super::*;

    const MS: u64 = 1_000_000;

    fn times(sent_ns: u64, received_ns: u64, parked_ns: u64, server_mono_ns: u64) -> PullTimes {
        PullTimes { sent_ns, received_ns, parked_ns, server_mono_ns, server_boot: 7 }
    }

    fn grant(expiry_mono_ns: u64) -> Grant {
        Grant {
            manifest_version: ManifestVersion(3),
            expiry_mono_ns,
            expiry_wall_ns: 0,
            drift_ppm: 0,
            mode: LeaseMode::Ack,
        }
    }

    /// A clock that runs at `1 + ppm/1e6` times true time, rounded to whole nanoseconds.
    #[derive(Clone, Copy, Debug)]
    struct Drifting {
        start_ns: u64,
        ppm: i64,
    }

    impl Drifting {
        fn at(self, true_ns: u64) -> u64 {
            self.start_ns + (i128::from(true_ns) * i128::from(1_000_000 + self.ppm) / 1_000_000) as u64
        }
    }

    fn drifting(rho: i64) -> impl Strategy<Value = Drifting> {
        (0..1u64 << 50, -rho..=rho).prop_map(|(start_ns, ppm)| Drifting { start_ns, ppm })
    }

    #[derive(Debug)]
    struct Exchange {
        sent: u64,
        arrived: u64,
        answered: u64,
        received: u64,
    }

    /// True times of a pull: sent, arrived at the server, answered, received.
    fn exchange() -> impl Strategy<Value = Exchange> {
        (0..10_000 * MS, 0..200 * MS, 0..300 * MS, 0..200 * MS).prop_map(|(sent, there, parked, back)| {
            Exchange {
                sent,
                arrived: sent + there,
                answered: sent + there + parked,
                received: sent + there + parked + back,
            }
        })
    }

    fn seen(x: &Exchange, holder: Drifting, server: Drifting) -> PullTimes {
        times(
            holder.at(x.sent),
            holder.at(x.received),
            server.at(x.answered) - server.at(x.arrived),
            server.at(x.answered),
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        /// The safety property, for any delays and any drifts within rho.
        #[test]
        fn the_holder_never_believes_beyond_the_grantors_expiry(
            rho in prop_oneof![Just(0i64), Just(500), Just(100_000), 0..100_000i64],
            seed in (0..1u64 << 50, 0..1u64 << 50, -1_000_000i64..=1_000_000, -1_000_000i64..=1_000_000),
            x in exchange(),
            lease_ns in 0..1000 * MS,
        ) {
            let holder = Drifting { start_ns: seed.0, ppm: rho * seed.2 / 1_000_000 };
            let server = Drifting { start_ns: seed.1, ppm: rho * seed.3 / 1_000_000 };
            let expiry = server.at(x.answered) + lease_ns;
            let lease = Lease::new(grant(expiry), seen(&x, holder, server), Drift::of_each_clock(rho as u64));
            // Any true instant at which the holder's clock still shows a usable time: the server's clock is below the expiry.
            // Without the margin for the clock's own error: drifts and delays must not live on it.
            let believed_ns = (lease.usable_until_ns + CLOCK_DISAGREEMENT_NS - 1).saturating_sub(holder.start_ns);
            let rate = i128::from(1_000_000 + holder.ppm);
            // The last true nanosecond that the holder's (rounding) clock shows as `believed_ns`.
            let true_ns = (((i128::from(believed_ns) + 1) * 1_000_000 - 1) / rate) as u64;
            if lease.usable_until_ns > holder.at(x.received) && true_ns >= x.received {
                // One nanosecond of slack for the rounding of the test's own clocks (parked, T and m are rounded).
                prop_assert!(server.at(true_ns) <= expiry + 1, "{} > {expiry}", server.at(true_ns));
            }
        }

        /// A lease that helped another never outlasts what the server promised.
        #[test]
        fn a_renewal_helped_by_an_earlier_proof_stays_within_its_own_expiry(
            holder in drifting(500), server in drifting(500),
            x in exchange(), y in exchange(),
            first_ns in 0..1000 * MS, second_ns in 0..1000 * MS,
        ) {
            let drift = Drift::of_each_clock(500);
            let (e1, e2) = (server.at(x.answered) + first_ns, server.at(y.answered) + second_ns);
            let first = Lease::new(grant(e1), seen(&x, holder, server), drift);
            let renewed = Lease::new(grant(e2), seen(&y, holder, server), drift).after(&first);
            let believed_ns = (renewed.usable_until_ns + CLOCK_DISAGREEMENT_NS - 1).saturating_sub(holder.start_ns);
            let rate = i128::from(1_000_000 + holder.ppm);
            let true_ns = (((i128::from(believed_ns) + 1) * 1_000_000 - 1) / rate) as u64;
            if true_ns >= x.received.max(y.received) {
                prop_assert!(server.at(true_ns) <= e2 + 1);
            }
        }

        /// Nothing that a server may say makes the arithmetic overflow or outlast the round trip plus the stated lease.
        #[test]
        fn no_numbers_make_it_panic(sent in any::<u64>(), received in any::<u64>(), parked in any::<u64>(),
                                    mono in any::<u64>(), expiry in any::<u64>()) {
            let lease = Lease::new(grant(expiry), times(sent, received, parked, mono), Drift::of_each_clock(500));
            let most = received.max(sent).saturating_add(expiry.saturating_sub(mono));
            prop_assert!(lease.usable_until_ns <= most);
        }

        /// Liveness: without drift and with no delay nothing of the lease is lost but for the clock's own error.
        #[test]
        fn nothing_is_given_away_without_drift_and_delay(sent in 0..1u64 << 40, parked in 0..300 * MS, lease_ns in 0..300 * MS) {
            let lease = Lease::new(grant(5000 + lease_ns), times(sent, sent + parked, parked, 5000), Drift::of_each_clock(0));
            prop_assert_eq!(lease.usable_until_ns, (sent + parked + lease_ns).saturating_sub(CLOCK_DISAGREEMENT_NS));
        }
    }

    #[test]
    fn a_lease_that_is_over_when_it_arrives_is_not_usable() {
        let clock = ManualClock::default();
        let now = clock.holder_ns();
        let lease = Lease::new(grant(1000), times(now - 10 * MS, now, 0, 1000), Drift::of_each_clock(500));
        assert!(!lease.is_usable(&clock));
    }

    #[test]
    fn a_step_of_the_wall_clock_does_not_move_the_round_trip_bound() {
        let clock = ManualClock::default();
        let now = clock.holder_ns();
        let lease = Lease::new(grant(300 * MS), times(now, now, 0, 0), Drift::of_each_clock(500));
        for step in [0, 1, u64::MAX / 2] {
            clock.set_wall_ns(step);
            assert!(lease.is_usable(&clock));
        }
        clock.advance_mono(Duration::from_millis(300));
        clock.set_wall_ns(0);
        assert!(!lease.is_usable(&clock), "a wall clock set back revives nothing");
    }

    #[test]
    fn the_wall_bound_alone_suffices_but_only_if_both_sides_are_synchronised() {
        let clock = ManualClock::default();
        let now = clock.holder_ns();
        let wall = clock.wall_guess_ns();
        // By the round trip usable for no time at all; certainly over only in a second.
        let walled = Grant { expiry_wall_ns: wall + 10 * MS, ..grant(1000 * MS) };
        let lease = Lease::new(walled, times(now - 2000 * MS, now, 0, 0), Drift::of_each_clock(500));
        clock.set_error(Some(Duration::from_millis(9)));
        assert!(lease.is_usable(&clock));
        clock.set_error(Some(Duration::from_millis(10)));
        assert!(!lease.is_usable(&clock), "`latest` counts, not the best guess");
        clock.set_error(None);
        assert!(!lease.is_usable(&clock), "unsynchronised means infinite");
        let unwalled = Lease::new(grant(0), times(now, now, 0, 0), Drift::of_each_clock(500));
        clock.set_error(Some(Duration::ZERO));
        assert!(!unwalled.is_usable(&clock), "0: the server gave none");
    }

    #[test]
    fn a_wall_clock_cannot_keep_a_lease_that_is_certainly_over() {
        let clock = ManualClock::default();
        let now = clock.holder_ns();
        clock.set_error(Some(Duration::ZERO));
        let walled = Grant { expiry_wall_ns: clock.wall_guess_ns() + 3_600_000 * MS, ..grant(100 * MS) };
        let lease = Lease::new(walled, times(now - 200 * MS, now, 0, 0), Drift::of_each_clock(500));
        assert!(lease.is_usable(&clock), "by the wall clock");
        clock.advance_mono(Duration::from_millis(101));
        assert!(!lease.is_usable(&clock) && lease.contradicts_wall_clocks(&clock));
    }

    #[test]
    fn the_grantors_larger_drift_bound_counts() {
        let grant = Grant { drift_ppm: 100_000, ..grant(100 * MS) };
        let lease = Lease::new(grant, times(0, 0, 0, 0), Drift::of_each_clock(500));
        assert_eq!(
            lease.usable_until_ns,
            Drift::of_each_clock(100_000).shortest(100 * MS) - CLOCK_DISAGREEMENT_NS
        );
    }

    #[test]
    fn a_reply_of_another_boot_never_extends() {
        let drift = Drift::of_each_clock(0);
        let earlier = Lease::new(grant(1000 * MS), times(0, 0, 0, 0), drift);
        let mut other = times(10 * MS, 10 * MS, 0, 1000 * MS);
        other.server_boot = 8;
        let later = Lease::new(grant(1001 * MS), other, drift).after(&earlier);
        assert_eq!(
            later.usable_until_ns,
            11 * MS - CLOCK_DISAGREEMENT_NS,
            "clocks of different boots cannot be compared"
        );
        let same = Lease::new(grant(1001 * MS), times(10 * MS, 10 * MS, 0, 1000 * MS), drift).after(&earlier);
        assert_eq!(same.usable_until_ns, 1000 * MS - CLOCK_DISAGREEMENT_NS);
    }

    #[test]
    fn an_earlier_lease_with_a_later_expiry_does_not_extend() {
        let drift = Drift::of_each_clock(0);
        let earlier = Lease::new(grant(1000 * MS), times(0, 0, 0, 0), drift);
        let later = Lease::new(grant(20 * MS), times(0, 0, 0, 10 * MS), drift).after(&earlier);
        assert_eq!(later.usable_until_ns, 10 * MS - CLOCK_DISAGREEMENT_NS);
    }
}
