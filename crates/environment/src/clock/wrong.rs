//! Clocks that are off on purpose: for tests of whole servers, whose binary may be static and cannot be given others from outside.

use std::str::FromStr;
use std::sync::Arc;

use sextant_common::error::{Error, Result};

use super::{Clock, WallInterval};

const PPM: i128 = 1_000_000;
/// Far beyond what any bound allows.
const DRIFT_PPM_MAX: i64 = 100_000;

/// How far off. As text: `wall_us=-54000,drift_ppm=450`; what is left out is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClockError {
    /// The wall clock is so much ahead, in microseconds.
    pub wall_us: i64,
    /// Monotonic clocks run so much faster, in parts per million.
    pub drift_ppm: i64,
}

impl FromStr for ClockError {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let bad = || Error::invalid(format!("{text:?} is not wall_us=N,drift_ppm=N"));
        let mut error = Self::default();
        for part in text.split(',') {
            let (name, value) = part.split_once('=').ok_or_else(bad)?;
            let value: i64 = value.trim().parse().map_err(|_| bad())?;
            match name.trim() {
                "wall_us" => error.wall_us = value,
                "drift_ppm" if value.abs() <= DRIFT_PPM_MAX => error.drift_ppm = value,
                _ => return Err(bad()),
            }
        }
        Ok(error)
    }
}

/// Another clock, with an error that it does not know of: intervals of wall time are as wide as they were.
pub struct WrongClock {
    inner: Arc<dyn Clock>,
    wall_ns: i64,
    drift_ppm: i64,
    /// From here on it is fast or slow.
    holder_ns: u64,
    grantor_ns: u64,
}

impl WrongClock {
    pub fn new(inner: Arc<dyn Clock>, error: ClockError) -> Self {
        let (holder_ns, grantor_ns) = (inner.holder_ns(), inner.grantor_ns());
        let wall_ns = error.wall_us.saturating_mul(1_000);
        Self { inner, wall_ns, drift_ppm: error.drift_ppm, holder_ns, grantor_ns }
    }

    fn drifted(&self, start_ns: u64, now_ns: u64) -> u64 {
        let passed_ns =
            i128::from(now_ns.saturating_sub(start_ns)) * (PPM + i128::from(self.drift_ppm)) / PPM;
        start_ns.saturating_add(u64::try_from(passed_ns).unwrap_or(u64::MAX))
    }
}

impl Clock for WrongClock {
    fn wall(&self) -> WallInterval {
        let interval = self.inner.wall();
        if !interval.is_synchronised() {
            return interval;
        }
        WallInterval {
            earliest_ns: interval.earliest_ns.saturating_add_signed(self.wall_ns),
            latest_ns: interval.latest_ns.saturating_add_signed(self.wall_ns),
        }
    }

    fn wall_guess_ns(&self) -> u64 {
        self.inner.wall_guess_ns().saturating_add_signed(self.wall_ns)
    }

    fn holder_ns(&self) -> u64 {
        self.drifted(self.holder_ns, self.inner.holder_ns())
    }

    fn grantor_ns(&self) -> u64 {
        self.drifted(self.grantor_ns, self.inner.grantor_ns())
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;

    /// Wall time and both monotonic clocks, in nanoseconds.
    struct At(Mutex<(WallInterval, u64)>);

    impl Clock for At {
        fn wall(&self) -> WallInterval {
            self.0.lock().0
        }
        fn wall_guess_ns(&self) -> u64 {
            self.0.lock().0.earliest_ns
        }
        fn holder_ns(&self) -> u64 {
            self.0.lock().1
        }
        fn grantor_ns(&self) -> u64 {
            self.0.lock().1 / 2
        }
    }

    #[test]
    fn it_is_as_wrong_as_it_is_told_to_be_and_claims_what_it_claimed() {
        let interval = WallInterval { earliest_ns: 5_000_000, latest_ns: 7_000_000 };
        let truth = Arc::new(At(Mutex::new((interval, 1_000_000_000))));
        let clock = WrongClock::new(truth.clone(), "wall_us=-2000, drift_ppm=450".parse().unwrap());
        assert_eq!(clock.wall(), WallInterval { earliest_ns: 3_000_000, latest_ns: 5_000_000 });
        assert_eq!((clock.wall_guess_ns(), clock.holder_ns()), (3_000_000, 1_000_000_000));
        *truth.0.lock() = (WallInterval::UNSYNCHRONISED, 3_000_000_000);
        assert_eq!(clock.wall(), WallInterval::UNSYNCHRONISED);
        // Two seconds, and one.
        assert_eq!((clock.holder_ns(), clock.grantor_ns()), (3_000_900_000, 1_500_450_000));
        let slow = WrongClock::new(truth.clone(), "drift_ppm=-100000".parse().unwrap());
        truth.0.lock().1 = 4_000_000_000;
        assert_eq!(slow.holder_ns(), 3_900_000_000);
    }

    #[test]
    fn an_error_is_two_numbers_or_one() {
        let parse = |text: &str| text.parse::<ClockError>();
        assert_eq!(
            parse("wall_us=54000,drift_ppm=-450").unwrap(),
            ClockError { wall_us: 54_000, drift_ppm: -450 }
        );
        assert_eq!(parse("drift_ppm=1").unwrap(), ClockError { wall_us: 0, drift_ppm: 1 });
        for bad in
            ["", "54000", "wall_us=x", "wall_us=1;drift_ppm=2", "drift_ppm=100001", "wall_ms=1", "wall_us=1,"]
        {
            assert!(parse(bad).unwrap_err().message.contains("wall_us=N,drift_ppm=N"), "{bad}");
        }
    }
}
