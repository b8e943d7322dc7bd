//! A clock with a simulated reading error, for the paper's figure 13.

use std::sync::Arc;
use std::time::Duration;

use super::{Clock, WallInterval};
use crate::rng::Rng;

/// Wraps a clock that is taken for exact: each wall reading is off by a truncated normal error within ±delta (standard
/// deviation delta / 2), and the interval is the reading ±delta, so that it always contains the true time.
pub struct SimulatedErrorClock {
    inner: Arc<dyn Clock>,
    rng: Arc<dyn Rng>,
    delta_ns: u64,
}

impl SimulatedErrorClock {
    pub fn new(inner: Arc<dyn Clock>, rng: Arc<dyn Rng>, delta: Duration) -> Self {
        Self { inner, rng, delta_ns: delta.as_nanos() as u64 }
    }

    fn error_ns(&self) -> i64 {
        loop {
            // Box-Muller; redrawn when outside of ±delta.
            let u = self.rng.unit_f64().max(f64::MIN_POSITIVE);
            let v = self.rng.unit_f64();
            let normal = (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos();
            let error = normal * 0.5 * self.delta_ns as f64;
            if error.abs() <= self.delta_ns as f64 {
                return error as i64;
            }
        }
    }
}

impl Clock for SimulatedErrorClock {
    fn wall(&self) -> WallInterval {
        let reading = self.inner.wall_guess_ns().saturating_add_signed(self.error_ns());
        WallInterval {
            earliest_ns: reading.saturating_sub(self.delta_ns),
            latest_ns: reading.saturating_add(self.delta_ns),
        }
    }

    fn wall_guess_ns(&self) -> u64 {
        self.inner.wall_guess_ns()
    }

    fn holder_ns(&self) -> u64 {
        self.inner.holder_ns()
    }

    fn grantor_ns(&self) -> u64 {
        self.inner.grantor_ns()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use proptest::prelude::*;

    use super::*;
    use crate::rng::SeededRng;

    /// Exact, and moved by hand.
    struct Truth(AtomicU64);

    impl Truth {
        fn advance(&self, by: Duration) {
            self.0.fetch_add(by.as_nanos() as u64, Ordering::Relaxed);
        }
    }

    impl Clock for Truth {
        fn wall(&self) -> WallInterval {
            WallInterval { earliest_ns: self.wall_guess_ns(), latest_ns: self.wall_guess_ns() }
        }
        fn wall_guess_ns(&self) -> u64 {
            self.0.load(Ordering::Relaxed)
        }
        fn holder_ns(&self) -> u64 {
            self.wall_guess_ns()
        }
        fn grantor_ns(&self) -> u64 {
            self.wall_guess_ns()
        }
    }

    fn clock(seed: u64, delta: Duration) -> (Arc<Truth>, SimulatedErrorClock) {
        let truth = Arc::new(Truth(AtomicU64::new(1_000_000_000_000_000)));
        (truth.clone(), SimulatedErrorClock::new(truth, Arc::new(SeededRng::new(seed)), delta))
    }

    proptest! {
        #[test]
        fn the_interval_contains_the_true_time_and_is_two_delta_wide(
            seed: u64,
            delta_ns in 0..10_000_000_000u64,
            steps in prop::collection::vec(0..1_000_000_000u64, 1..50),
        ) {
            let (truth, clock) = clock(seed, Duration::from_nanos(delta_ns));
            for step in steps {
                truth.advance(Duration::from_nanos(step));
                let (interval, now) = (clock.wall(), truth.wall_guess_ns());
                prop_assert!(interval.earliest_ns <= now && now <= interval.latest_ns);
                prop_assert_eq!(interval.latest_ns - interval.earliest_ns, 2 * delta_ns);
                prop_assert_eq!((clock.holder_ns(), clock.grantor_ns()), (truth.holder_ns(), truth.grantor_ns()));
            }
        }
    }

    #[test]
    fn the_error_is_a_truncated_normal_one() {
        const DELTA_NS: i64 = 1_000_000;
        let (truth, clock) = clock(5, Duration::from_nanos(DELTA_NS as u64));
        let errors: Vec<i64> = (0..20_000)
            .map(|_| (clock.wall().earliest_ns as i64 + DELTA_NS) - truth.wall_guess_ns() as i64)
            .collect();
        let mean = errors.iter().sum::<i64>() / errors.len() as i64;
        assert!(mean.abs() < DELTA_NS / 50, "{mean}");
        // Within one standard deviation, delta / 2: 68.3 % of 95.4 %.
        let near = errors.iter().filter(|e| e.abs() < DELTA_NS / 2).count();
        assert!((14_000..14_700).contains(&near), "{near} of 20000");
        assert!(
            errors.iter().any(|e| e.abs() > DELTA_NS * 9 / 10) && errors.iter().all(|e| e.abs() <= DELTA_NS)
        );
    }
}
