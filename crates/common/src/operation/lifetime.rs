//! How long a record is there.

use super::Effect;
use crate::expiry::{self, Tick};

/// Of the record that an operation leaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lifetime {
    /// It does not expire.
    #[default]
    Unlimited,
    /// As long as the record that was there: unlimited, if there was none.
    Kept,
    /// So many milliseconds from when the sequencer decides.
    Milliseconds(u64),
    /// Until this time, in milliseconds since 1970. If that is over, the record is removed at once.
    Until(Tick),
}

/// What is asked of the lifetime of the record that is there. A lifetime without limit is longer than any other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LifetimeTest {
    Unlimited,
    Limited,
    /// Than the one that the operation gives.
    Shorter,
    Longer,
    LimitedAndLonger,
}

impl Lifetime {
    /// Where nothing is said: what changes a record leaves its lifetime as it was.
    pub fn usual(effect: &Effect) -> Self {
        match effect {
            Effect::Put(_) | Effect::Delete | Effect::Check => Lifetime::Unlimited,
            Effect::Update(_) => Lifetime::Kept,
        }
    }

    /// When a record expires that gets this lifetime. `before`: when the one that is there does; `newest`: the newest appended tick;
    /// `wall_ms`: the leader's clock.
    pub fn ends_at(self, before: Option<Tick>, newest: Tick, wall_ms: u64) -> Option<Tick> {
        match self {
            Lifetime::Unlimited => None,
            Lifetime::Kept => before,
            Lifetime::Milliseconds(ms) => Some(expiry::expires_at(newest, wall_ms, ms)),
            Lifetime::Until(at) => Some(at),
        }
    }

    /// Whether a record that gets this lifetime is gone already.
    pub fn is_over(self, newest: Tick, wall_ms: u64) -> bool {
        match self {
            Lifetime::Unlimited | Lifetime::Kept => false,
            Lifetime::Milliseconds(ms) => ms == 0,
            Lifetime::Until(at) => at <= Tick(newest.0.max(wall_ms)),
        }
    }
}

impl LifetimeTest {
    /// `present`, `new`: when the record that is there expires, and the one that would take its place.
    pub fn holds(self, present: Option<Tick>, new: Option<Tick>) -> bool {
        let (present_ms, new_ms) = (end_ms(present), end_ms(new));
        match self {
            LifetimeTest::Unlimited => present.is_none(),
            LifetimeTest::Limited => present.is_some(),
            LifetimeTest::Shorter => present_ms < new_ms,
            LifetimeTest::Longer => present_ms > new_ms,
            LifetimeTest::LimitedAndLonger => present.is_some() && present_ms > new_ms,
        }
    }
}

/// That there is none is later than any.
fn end_ms(at: Option<Tick>) -> u128 {
    at.map_or(u128::MAX, |at| u128::from(at.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lifetime_without_limit_is_the_longest() {
        use LifetimeTest::{Limited, LimitedAndLonger, Longer, Shorter, Unlimited};
        let all = [Unlimited, Limited, Shorter, Longer, LimitedAndLonger];
        let of = |present: Option<u64>, new: Option<u64>| {
            all.map(|test| test.holds(present.map(Tick), new.map(Tick)))
        };
        assert_eq!(of(None, Some(5)), [true, false, false, true, false]);
        assert_eq!(of(Some(5), Some(5)), [false, true, false, false, false]);
        assert_eq!(of(Some(5), Some(6)), [false, true, true, false, false]);
        assert_eq!(of(Some(6), Some(5)), [false, true, false, true, true]);
        assert_eq!(of(Some(u64::MAX), None), [false, true, true, false, false]);
    }

    #[test]
    fn what_is_over_by_tick_or_clock_is_gone_at_once() {
        let is_over = |lifetime: Lifetime| lifetime.is_over(Tick(100), 200);
        assert!(is_over(Lifetime::Until(Tick(100))) && is_over(Lifetime::Until(Tick(200))));
        assert!(!is_over(Lifetime::Until(Tick(201))) && !is_over(Lifetime::Milliseconds(1)));
        assert!(is_over(Lifetime::Milliseconds(0)));
        assert!(!is_over(Lifetime::Kept) && !is_over(Lifetime::Unlimited));
    }

    #[test]
    fn a_lifetime_counts_from_the_later_of_tick_and_clock() {
        let ends_at = |lifetime: Lifetime| lifetime.ends_at(Some(Tick(7)), Tick(100), 50);
        assert_eq!(ends_at(Lifetime::Unlimited), None);
        assert_eq!(ends_at(Lifetime::Kept), Some(Tick(7)));
        assert_eq!(ends_at(Lifetime::Milliseconds(5)), Some(Tick(105)));
        assert_eq!(ends_at(Lifetime::Until(Tick(3))), Some(Tick(3)));
    }
}
