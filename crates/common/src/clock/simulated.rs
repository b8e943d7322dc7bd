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
