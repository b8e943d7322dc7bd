//! Expiry, as far as it needs no state: the time of a partition, and what a record with an expiry is at such a time. Pure.
//!
//! Time that clients can see is replicated. A *tick* is a log entry that carries its leader's wall clock; the time at a position of
//! the log is the newest tick up to there, and whoever judges a record says of which position. So an expiry is a change like a
//! write, and nothing depends on whose clock is right.
//!
//! The exhaustive model of the protocol (`tests/model`) asks the very same functions.

/// The time of a partition: milliseconds since 1970 by the clocks of its leaders, or 0 before the first tick.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tick(pub u64);

impl Tick {
    /// As it travels and is stored: 0 is none.
    pub fn from_wire(ms: u64) -> Option<Tick> {
        (ms > 0).then_some(Tick(ms))
    }

    /// See [`Tick::from_wire`].
    pub fn to_wire(tick: Option<Tick>) -> u64 {
        tick.map_or(0, |tick| tick.0)
    }
}

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

/// The tick that a leader proposes now; None: time may rest. `last`: the newest in its log, committed or not; `next_expiry`: the
/// earliest time after it at which a record may expire.
///
/// Time never goes back. It rests until a record may expire, so that a partition whose records all live long costs nothing. A tick
/// may go as far as just before that, because nothing expires by it, and by a step beyond: so one bad reading of a clock lets
/// records expire too early by no more than a step.
#[inline]
pub fn due_tick(last: Tick, wall_ms: u64, next_expiry: Option<Tick>, step_max_ms: u64) -> Option<Tick> {
    let next = next_expiry?;
    if wall_ms < next.0 || wall_ms <= last.0 {
        return None;
    }
    let nothing_expires_by = last.0.max(next.0.saturating_sub(1));
    Some(Tick(wall_ms.min(nothing_expires_by.saturating_add(step_max_ms))))
}

/// When a record expires whose group follows the tick `newest`: by the later of that and the leader's wall clock, so that it does not
/// expire before its time because ticks are ahead of a new leader's clock, or behind it.
#[inline]
pub fn expires_at(newest: Tick, wall_ms: u64, time_to_live_ms: u64) -> Tick {
    Tick(newest.0.max(wall_ms).saturating_add(time_to_live_ms))
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
        let due = |wall_ms| due_tick(Tick(5000), wall_ms, Some(Tick(5001)), STEP_MAX_MS);
        assert_eq!([3000, 5000, 5100, u64::MAX].map(due), [None, None, Some(Tick(5100)), Some(Tick(6000))]);
        assert_eq!(due_tick(Tick(u64::MAX), u64::MAX, Some(Tick(u64::MAX)), STEP_MAX_MS), None);
    }

    #[test]
    fn time_rests_until_a_record_may_expire() {
        let due = |wall_ms, next| due_tick(Tick(5000), wall_ms, next, STEP_MAX_MS);
        assert_eq!(due(900_000, None), None);
        assert_eq!(due(899_999, Some(Tick(900_000))), None);
        assert_eq!(due(900_050, Some(Tick(900_000))), Some(Tick(900_050)));
        assert_eq!(due(u64::MAX, Some(Tick(900_000))), Some(Tick(900_999)), "a bad reading");
    }

    #[test]
    fn a_time_to_live_counts_from_the_later_of_tick_and_clock() {
        assert_eq!(expires_at(Tick(5000), 5050, 1000), Tick(6050));
        assert_eq!(expires_at(Tick(5000), 3000, 1000), Tick(6000));
        assert_eq!(expires_at(Tick(5000), 5050, u64::MAX), Tick(u64::MAX));
    }

    #[test]
    fn after_a_rest_of_any_length_a_record_lives_as_long_as_it_is_to() {
        let written_ms = 1_000_000 + 3_600_000;
        let mut tick = Tick(1_000_000);
        let at = expires_at(tick, written_ms, 5000);
        let mut wall_ms = written_ms;
        while !is_expired(Some(at), tick) {
            wall_ms += 100;
            tick = due_tick(tick, wall_ms, Some(at), STEP_MAX_MS).unwrap_or(tick);
        }
        assert_eq!(wall_ms - written_ms, 5000);
    }

    proptest! {
        /// Whatever the leaders' clocks show, no time goes back, and no record expires before the clock under which it was written has
        /// gone so far, or the ticks have.
        #[test]
        fn time_goes_forward_on_any_clocks(
            clocks in prop::collection::vec((any::<u64>(), any::<u64>()), 1..50),
            expiry: u64,
        ) {
            let (mut tick, mut expired) = (Tick(0), false);
            for (wall_ms, other) in clocks {
                let next_expiry = Tick(expiry.min(other).max(tick.0.saturating_add(1)));
                let due = due_tick(tick, wall_ms, Some(next_expiry), STEP_MAX_MS);
                prop_assert!(due.is_none_or(|due| due > tick && due.0 <= wall_ms));
                tick = due.unwrap_or(tick);
                let now = is_expired(Some(Tick(expiry)), tick);
                prop_assert!(now || !expired, "it is alive again");
                expired = now;
                let at = expires_at(tick, wall_ms, 1);
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
