//! Expiry, as far as it needs no state: the time of a partition, and what a record with an expiry is at such a time. Pure.
//!
//! Time that clients can see is replicated. A *tick* is a log entry that carries its leader's wall clock; the time at a position of
//! the log is the newest tick up to there, and whoever judges a record says of which position. So an expiry is a change like a
//! write, and nothing depends on whose clock is right.
//!
//! No server has records that expire yet: the exhaustive model of the protocol (`tests/model`) asks these functions.

use std::time::Duration;

/// The time of a partition: milliseconds since 1970 by the clocks of its leaders, or 0 before the first tick.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tick(pub u64);

/// What somebody knows of a partition's time when he consults his view: loaded before the view or with it, never after.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ticks {
    /// D: the newest tick that is known to be published.
    pub published: Tick,
    /// T: the newest tick of which an entry of the log of bits came up to the view's serial. No newer one is published while the
    /// view's lease is usable.
    pub announced: Tick,
}

impl Ticks {
    /// For whoever has the whole log up to the position that he speaks of.
    pub fn exactly(at: Tick) -> Self {
        Self { published: at, announced: at }
    }
}

/// What a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    Alive,
    /// For whoever reads, routes or checks a condition: a tombstone.
    Expired,
    /// It depends on whether a tick is published: the leader has to be asked.
    Unknown,
}

/// What a record is by what somebody knows of the time. `expires_at`: None: never.
#[inline]
pub fn judge(expires_at: Option<Tick>, ticks: Ticks) -> Life {
    match expires_at {
        Some(at) if at <= ticks.published => Life::Expired,
        Some(at) if at <= ticks.announced => Life::Unknown,
        Some(_) | None => Life::Alive,
    }
}

/// Whether a record has expired at a position of the log whose newest tick is `at`. The sequencer asks of the newest *appended*
/// position, a read at the leader of the published position that it reads at, a merge of the newest published one.
#[inline]
pub fn is_expired(expires_at: Option<Tick>, at: Tick) -> bool {
    judge(expires_at, Ticks::exactly(at)) == Life::Expired
}

/// The tick that a leader proposes while records can expire. `last`: the newest in its log, committed or not. Time never goes back,
/// and one bad reading of a clock moves it by no more than `step_max_ms`.
#[inline]
pub fn next_tick(last: Tick, wall_ms: u64, step_max_ms: u64) -> Tick {
    Tick(wall_ms.clamp(last.0, last.0.saturating_add(step_max_ms)))
}

/// The tick that has to be in the log before the first record that can expire: since the last one nothing could, so no step is too
/// long.
#[inline]
pub fn fresh_tick(last: Tick, wall_ms: u64) -> Tick {
    Tick(wall_ms.max(last.0))
}

/// When a record expires whose group follows the tick `newest`: by the later of that and the leader's wall clock, so that it does not
/// expire before its time because ticks are ahead of a new leader's clock, or behind it.
#[inline]
pub fn expires_at(newest: Tick, wall_ms: u64, time_to_live: Duration) -> Tick {
    let ms = u64::try_from(time_to_live.as_millis()).unwrap_or(u64::MAX);
    Tick(newest.0.max(wall_ms).saturating_add(ms))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const STEP_MAX_MS: u64 = 1000;

    #[test]
    fn between_what_is_published_and_what_is_announced_nobody_but_the_leader_knows() {
        let ticks = Ticks { published: Tick(10), announced: Tick(20) };
        let judged = [9, 10, 11, 20, 21].map(|at| judge(Some(Tick(at)), ticks));
        use Life::{Alive, Expired, Unknown};
        assert_eq!(judged, [Expired, Expired, Unknown, Unknown, Alive]);
        assert_eq!(judge(None, ticks), Alive);
    }

    #[test]
    fn what_is_published_is_expired_also_if_the_announcement_is_late() {
        let ticks = Ticks { published: Tick(20), announced: Tick(10) };
        assert_eq!([20, 21].map(|at| judge(Some(Tick(at)), ticks)), [Life::Expired, Life::Alive]);
    }

    #[test]
    fn a_clock_that_is_behind_or_jumps_ahead_moves_time_by_nothing_or_a_step() {
        assert_eq!(next_tick(Tick(5000), 3000, STEP_MAX_MS), Tick(5000));
        assert_eq!(next_tick(Tick(5000), 5100, STEP_MAX_MS), Tick(5100));
        assert_eq!(next_tick(Tick(5000), u64::MAX, STEP_MAX_MS), Tick(6000));
        assert_eq!(next_tick(Tick(u64::MAX), 0, STEP_MAX_MS), Tick(u64::MAX));
        assert_eq!(fresh_tick(Tick(5000), 900_000), Tick(900_000));
        assert_eq!(fresh_tick(Tick(5000), 3000), Tick(5000));
    }

    #[test]
    fn a_time_to_live_counts_from_the_later_of_tick_and_clock() {
        let second = Duration::from_secs(1);
        assert_eq!(expires_at(Tick(5000), 5050, second), Tick(6050));
        assert_eq!(expires_at(Tick(5000), 3000, second), Tick(6000));
        assert_eq!(expires_at(Tick(5000), 5050, Duration::MAX), Tick(u64::MAX));
    }

    /// When a record with a time to live of 5 s expires on a perfect clock, if it is the first since `rest_ms`.
    fn lives_ms(rest_ms: u64, first: fn(Tick, u64) -> Tick) -> u64 {
        let written_ms = 1_000_000 + rest_ms;
        let mut tick = first(Tick(1_000_000), written_ms);
        let at = expires_at(tick, written_ms, Duration::from_secs(5));
        let mut wall_ms = written_ms;
        while !is_expired(Some(at), tick) {
            wall_ms += 100;
            tick = next_tick(tick, wall_ms, STEP_MAX_MS);
        }
        wall_ms - written_ms
    }

    #[test]
    fn without_a_fresh_tick_the_first_record_after_a_rest_lives_too_long() {
        let hour_ms = 3_600_000;
        assert_eq!(lives_ms(hour_ms, fresh_tick), 5000);
        // Ticks have an hour to catch up with, ten seconds a second.
        let without = lives_ms(hour_ms, |last, _| last);
        assert!(without > 300_000, "{without}");
    }

    proptest! {
        /// Whatever the leaders' clocks show, no time goes back, and no record expires before the clock under which it was written has
        /// gone so far, or the ticks have.
        #[test]
        fn time_goes_forward_on_any_clocks(
            clocks in prop::collection::vec((any::<u64>(), any::<bool>()), 1..50),
            expiry: u64,
        ) {
            let (mut tick, mut expired) = (Tick(0), false);
            for (wall_ms, fresh) in clocks {
                let next = if fresh { fresh_tick(tick, wall_ms) } else { next_tick(tick, wall_ms, STEP_MAX_MS) };
                prop_assert!(next >= tick);
                tick = next;
                let now = is_expired(Some(Tick(expiry)), tick);
                prop_assert!(now || !expired, "it is alive again");
                expired = now;
                let ttl = Duration::from_millis(1);
                let at = expires_at(tick, wall_ms, ttl);
                prop_assert!(tick.0 == u64::MAX || !is_expired(Some(at), tick));
            }
        }

        /// D and T are bounds of the published tick of the moment: whoever goes by them says what the leader would, or asks it.
        #[test]
        fn whoever_knows_bounds_says_what_the_leader_would(
            published in 0u64..50, behind in 0u64..50, ahead in 0u64..50, expiry in 0u64..100,
        ) {
            let ticks = Ticks {
                published: Tick(published.saturating_sub(behind)),
                announced: Tick(published + ahead),
            };
            let expired = is_expired(Some(Tick(expiry)), Tick(published));
            match judge(Some(Tick(expiry)), ticks) {
                Life::Alive => prop_assert!(!expired),
                Life::Expired => prop_assert!(expired),
                Life::Unknown => {}
            }
        }
    }
}
