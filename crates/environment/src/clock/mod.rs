//! Time. Three clocks behind one trait, because leases need to know which way an error hurts (design, section 9).
//!
//! * [`Clock::wall`]: wall time as an interval that contains the true time (PTP style). Unsynchronised means infinite.
//! * [`Clock::holder_ns`]: monotonic time for whoever *holds* a lease: never slower than MONOTONIC_RAW and BOOTTIME.
//! * [`Clock::grantor_ns`]: monotonic time for whoever *granted* one: never faster than either.
//!
//! Both monotonic clocks drift from true time by at most the drift bound rho, which the lease configuration states.

mod kernel;
mod others;
mod simulated;
mod source;
mod system;
mod wrong;

use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use kernel::KernelClock;
pub use others::OtherClocks;
pub use simulated::SimulatedErrorClock;
pub use source::WallSource;
pub use system::SystemClock;
pub use wrong::{ClockError, WrongClock};

/// Two threads' readings of one monotonic clock at the same moment may differ by so much ([`SystemClock`] says why). Whoever
/// compares a time with one that another thread has taken allows for it.
pub const CLOCK_DISAGREEMENT_NS: u64 = 50_000;

/// An interval of wall time, nanoseconds since 1970, that contains the true time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WallInterval {
    pub earliest_ns: u64,
    /// `u64::MAX` if the clock is not synchronised.
    pub latest_ns: u64,
}

impl WallInterval {
    pub const UNSYNCHRONISED: WallInterval = WallInterval { earliest_ns: 0, latest_ns: u64::MAX };

    pub fn is_synchronised(&self) -> bool {
        self.latest_ns != u64::MAX
    }
}

/// What a server's status says of its wall clock, so that others can compare it with theirs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WallReading {
    /// Microseconds since 1970: the best single guess.
    pub unix_us: u64,
    /// The most by which the guess is wrong, as far as the server knows; none: it knows no bound.
    pub error_us: Option<u64>,
}

impl WallReading {
    pub fn of(clock: &dyn Clock) -> Self {
        let (interval, now_ns) = (clock.wall(), clock.wall_guess_ns());
        let error_ns = now_ns.abs_diff(interval.earliest_ns).max(now_ns.abs_diff(interval.latest_ns));
        let error_us = interval.is_synchronised().then(|| error_ns.div_ceil(1000));
        Self { unix_us: now_ns / 1000, error_us }
    }
}

pub trait Clock: Send + Sync + 'static {
    /// Wall time as an interval.
    fn wall(&self) -> WallInterval;

    /// The best single guess of the wall time, nanoseconds since 1970: for logs, time stamps and session expiry, never for
    /// leases.
    fn wall_guess_ns(&self) -> u64;

    /// Monotonic nanoseconds since some start; the larger of MONOTONIC_RAW and BOOTTIME.
    fn holder_ns(&self) -> u64;

    /// Monotonic nanoseconds since some start; the smaller of MONOTONIC_RAW and BOOTTIME.
    fn grantor_ns(&self) -> u64;
}

pub type SharedClock = Arc<dyn Clock>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reading_says_how_wrong_it_may_be() {
        let fixed = WallReading::of(&SystemClock::new(WallSource::Fixed { error_us: 20_000_000 }));
        assert!(fixed.error_us.is_some_and(|error_us| error_us >= 20_000_000), "{fixed:?}");
        assert_eq!(WallReading::of(&SystemClock::default()).error_us, None);
    }
}
