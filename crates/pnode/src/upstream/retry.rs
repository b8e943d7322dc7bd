//! Deadlines and backoff.

use std::future::Future;
use std::time::Duration;

use sextant_common::{Error, ErrorKind, Result};
use sextant_environment::Clock;
use sextant_environment::rng::Rng;

/// How long one server may take before the next is asked. The fakes of unit tests answer, however slow the machine is.
pub(crate) const fn unhurried(limit: Duration) -> Duration {
    if cfg!(test) { Duration::from_secs(60) } else { limit }
}

/// The instant, on the holder's clock, at which an operation stops waiting.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    at_ns: u64,
}

impl Deadline {
    pub fn after(clock: &dyn Clock, time: Duration) -> Self {
        Self { at_ns: clock.holder_ns().saturating_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)) }
    }

    /// On `Clock::holder_ns`.
    pub fn at_ns(self) -> u64 {
        self.at_ns
    }

    pub fn left(self, clock: &dyn Clock) -> Duration {
        Duration::from_nanos(self.at_ns.saturating_sub(clock.holder_ns()))
    }

    pub fn is_over(self, clock: &dyn Clock) -> bool {
        clock.holder_ns() >= self.at_ns
    }

    /// Waits for `work` until the deadline, but for `at_most` in any case.
    pub async fn limit<T>(
        self,
        clock: &dyn Clock,
        at_most: Duration,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        match tokio::time::timeout(self.left(clock).min(at_most), work).await {
            Ok(result) => result,
            Err(_) => Err(Error::unavailable("no answer in time")),
        }
    }
}

/// The error that is worth reporting when the time is over: what is known to be damaged, or busy, says more than that the last
/// attempt found no time.
pub(crate) fn more_telling(before: &mut Option<Error>, now: Error) -> Error {
    if now.kind == ErrorKind::Unavailable
        && let Some(known) = before
    {
        return known.clone();
    }
    let is_damage = |e: &Error| e.kind == ErrorKind::Corrupt;
    if is_damage(&now) || (now.kind == ErrorKind::Overloaded && !before.as_ref().is_some_and(is_damage)) {
        *before = Some(now.clone());
    }
    now
}

/// First wait before a retry: a few round trips.
const FIRST_WAIT: Duration = Duration::from_millis(2);
/// Longest: well below an election, so that its end is noticed soon.
const LONGEST_WAIT: Duration = Duration::from_millis(50);

/// Waits that double, with jitter so that callers do not retry in step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Backoff {
    next: Duration,
    longest: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { next: FIRST_WAIT, longest: LONGEST_WAIT }
    }
}

impl Backoff {
    pub fn up_to(longest: Duration) -> Self {
        Self { next: FIRST_WAIT, longest }
    }

    /// The next wait: half to all of the current step.
    pub fn step(&mut self, rng: &dyn Rng) -> Duration {
        let half = self.next / 2;
        let wait = half + Duration::from_nanos(rng.below(half.as_nanos() as u64 + 1));
        self.next = (self.next * 2).min(self.longest);
        wait
    }

    /// Waits, but not beyond the deadline. False: the deadline is over.
    pub async fn wait(&mut self, clock: &dyn Clock, rng: &dyn Rng, deadline: Deadline) -> bool {
        let wait = self.step(rng).min(deadline.left(clock));
        tokio::time::sleep(wait).await;
        !deadline.is_over(clock)
    }

    pub fn reset(&mut self) {
        self.next = FIRST_WAIT;
    }
}

#[cfg(test)]
mod tests {
    use sextant_environment::rng::SeededRng;
    use sextant_simulated::ManualClock;

    use super::*;

    #[test]
    fn waits_double_up_to_the_longest() {
        let rng = SeededRng::new(1);
        let mut backoff = Backoff::default();
        let mut bound = FIRST_WAIT;
        for _ in 0..12 {
            let wait = backoff.step(&rng);
            assert!(wait >= bound / 2 && wait <= bound, "{wait:?} {bound:?}");
            bound = (bound * 2).min(LONGEST_WAIT);
        }
    }

    #[test]
    fn what_is_known_is_reported_even_if_the_last_attempt_found_no_time() {
        let mut damage = None;
        let unavailable = || Error::unavailable("no answer in time");
        let busy = || Error::new(ErrorKind::Overloaded, "no room");
        assert_eq!(more_telling(&mut damage, unavailable()).kind, ErrorKind::Unavailable);
        assert_eq!(more_telling(&mut damage, busy()).kind, ErrorKind::Overloaded);
        assert_eq!(more_telling(&mut damage, unavailable()).kind, ErrorKind::Overloaded);
        assert_eq!(more_telling(&mut damage, Error::corrupt("SSTable 7")).kind, ErrorKind::Corrupt);
        assert_eq!(more_telling(&mut damage, busy()).kind, ErrorKind::Overloaded);
        assert_eq!(more_telling(&mut damage, unavailable()).message, "SSTable 7");
        assert_eq!(more_telling(&mut damage, Error::invalid("x")).kind, ErrorKind::Invalid);
    }

    #[test]
    fn a_deadline_follows_the_injected_clock() {
        let clock = ManualClock::default();
        let deadline = Deadline::after(&clock, Duration::from_millis(5));
        clock.advance_mono(Duration::from_millis(3));
        assert_eq!(deadline.left(&clock), Duration::from_millis(2));
        assert!(!deadline.is_over(&clock));
        clock.advance_mono(Duration::from_millis(2));
        assert!(deadline.is_over(&clock));
    }
}
