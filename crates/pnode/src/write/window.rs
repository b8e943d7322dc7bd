//! How many writes of a session may be on their way: enough for the leader to have a batch at work and another at hand, and no
//! more, because nobody can overtake what is there. Pure.
//!
//! A leader takes what has come together as one group, so the more is on its way the longer an answer takes, and from some point on
//! nothing is gained by it. That point is told by the time that an answer takes, beside what it takes when hardly anything is
//! under way: that is what disks and network need, on this machine, now.

use std::time::Duration;

/// What may always be under way. With no more than that, an answer takes as long as it has to.
pub(super) const FEW: usize = 64;
/// Where a session begins.
pub(super) const FIRST: usize = 256;
/// An answer may take so many times what it takes with few writes under way ..
const SLOWDOWN_MAX: u64 = 3;
/// .. and may take this in any case: a turn or two of whoever has to do with it, on a busy machine.
const QUICK_NS: u64 = Duration::from_millis(20).as_nanos() as u64;
/// With few writes under way, a quicker answer counts at once for one part in so many ..
const QUICKER: u64 = 8;
/// .. and a slower one, which may be one of a burst, for one in so many.
const SLOWER: u64 = 512;
/// After so many rounds of answers that were all among many, a look is taken at what they take among few.
const BLIND_ROUNDS_MAX: u32 = 200;
/// So many answers are a look.
const LOOK: u32 = 64;

#[derive(Debug)]
pub(super) struct Window {
    most: usize,
    limit: usize,
    /// What an answer takes with few writes under way, smoothed. 0: not known.
    unhurried_ns: u64,
    /// Rounds since it was last seen.
    blind_rounds: u32,
    /// Answers still to be seen before there may be more than [`FEW`] again.
    looking: u32,
    /// Since the limit was looked at.
    answers: usize,
    answers_ns: u64,
    some_waited: bool,
}

impl Window {
    /// Never more than `most`, which is at least [`FEW`].
    pub fn up_to(most: usize) -> Self {
        let limit = FIRST.min(most);
        Self {
            most,
            limit,
            unhurried_ns: 0,
            blind_rounds: 0,
            looking: 0,
            answers: 0,
            answers_ns: 0,
            some_waited: false,
        }
    }

    /// Writes that may be under way.
    pub fn limit(&self) -> usize {
        if self.looking > 0 { FEW } else { self.limit }
    }

    /// Somebody has to wait because the limit is reached.
    pub fn is_short(&mut self) {
        self.some_waited = true;
    }

    /// A write has ended after `took_ns`, which `beside` others may have made longer: those that were under way when it began, and those
    /// that have begun since.
    pub fn ended(&mut self, beside: usize, took_ns: u64) {
        if beside < 2 * FEW {
            self.unhurried(took_ns);
        }
        if self.looking > 0 {
            return;
        }
        self.answers += 1;
        self.answers_ns = self.answers_ns.saturating_add(took_ns);
        if self.answers >= self.limit {
            self.adapt();
        }
    }

    fn unhurried(&mut self, took_ns: u64) {
        let before = if self.unhurried_ns == 0 { took_ns } else { self.unhurried_ns };
        let weight = if took_ns < before { QUICKER } else { SLOWER };
        self.unhurried_ns = before - before / weight + took_ns / weight;
        self.blind_rounds = 0;
        self.looking = self.looking.saturating_sub(1);
    }

    fn adapt(&mut self) {
        self.blind_rounds += 1;
        if self.blind_rounds >= BLIND_ROUNDS_MAX {
            self.blind_rounds = 0;
            self.looking = LOOK;
        }
        let mean_ns = self.answers_ns / self.answers as u64;
        let bearable_ns = self.unhurried_ns.saturating_mul(SLOWDOWN_MAX).max(QUICK_NS);
        if mean_ns > bearable_ns {
            // In proportion, as far as one round of answers can be trusted.
            let fitting = (self.limit as u128 * u128::from(bearable_ns) / u128::from(mean_ns)) as usize;
            self.limit = fitting.max(self.limit / 2).max(FEW);
        } else if self.some_waited {
            self.limit = (self.limit + self.limit / 8).min(self.most);
        }
        self.answers = 0;
        self.answers_ns = 0;
        self.some_waited = false;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: u64 = 1_000_000;
    const MOST: usize = 1024;

    /// A leader that takes all that is there at once: a group takes `fixed_ns` and `each_ns` a write. `writers` always have another.
    /// The last groups' size and time, on average.
    fn saturated(window: &mut Window, fixed_ns: u64, each_ns: u64, writers: usize) -> (u64, u64) {
        let mut last = (0, 0);
        let groups = 400;
        let counted = 50;
        for group in 0..groups {
            let size = window.limit().min(writers);
            let took_ns = fixed_ns + each_ns * size as u64;
            for _ in 0..size {
                if writers > window.limit() {
                    window.is_short();
                }
                window.ended(size - 1, took_ns);
            }
            if group >= groups - counted {
                last = (last.0 + size as u64, last.1 + took_ns);
            }
        }
        (last.0 / counted, last.1 / counted)
    }

    #[test]
    fn a_quick_leader_is_given_all_that_fits_its_session() {
        let mut window = Window::up_to(MOST);
        let (size, _) = saturated(&mut window, MS, 1_000, 10_000);
        assert_eq!(size, MOST as u64);
    }

    #[test]
    fn a_busy_leader_is_given_what_it_answers_soon() {
        let mut window = Window::up_to(MOST);
        // 50 us a write: with a thousand under way an answer takes 51 ms, for a hundredth more of writes in a second.
        let (size, took_ns) = saturated(&mut window, MS, 50_000, 10_000);
        assert!(took_ns < QUICK_NS * 9 / 8 && size >= 128, "{size} a group, {took_ns} ns");
    }

    #[test]
    fn a_slow_disk_is_given_large_groups() {
        let mut window = Window::up_to(MOST);
        let (size, _) = saturated(&mut window, 40 * MS, 10_000, 10_000);
        assert_eq!(size, MOST as u64, "it takes 40 ms however few there are");
    }

    #[test]
    fn a_disk_that_turns_slow_is_known_in_the_end() {
        let mut window = Window::up_to(MOST);
        saturated(&mut window, MS, 1_000, 10_000);
        let (size, _) = saturated(&mut window, 40 * MS, 10_000, 10_000);
        assert_eq!(size, MOST as u64);
    }

    #[test]
    fn whoever_has_enough_is_given_no_more() {
        let mut window = Window::up_to(MOST);
        saturated(&mut window, MS, 1_000, 100);
        assert_eq!(window.limit(), FIRST);
    }

    proptest! {
        /// Whatever it is told, there is room for a few, and never for more than the session has.
        #[test]
        fn the_limit_keeps_its_bounds(
            most in FEW..5_000,
            told in prop::collection::vec((any::<bool>(), 1usize..3_000, any::<u64>()), 0..3_000),
        ) {
            let mut window = Window::up_to(most);
            for (waits, beside, took_ns) in told {
                if waits {
                    window.is_short();
                }
                window.ended(beside, took_ns);
                prop_assert!((FEW..=most).contains(&window.limit()));
            }
        }
    }
}
