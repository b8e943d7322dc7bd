//! No faster than so many bytes a second.

use std::time::Duration;

use parking_lot::Mutex;
use sextant_environment::Env;

pub struct Pace {
    env: Env,
    bytes_per_second: Option<u64>,
    /// From when on more may come (holder's clock).
    free_at_ns: Mutex<u64>,
}

impl Pace {
    /// None: as fast as it goes.
    pub fn new(env: &Env, bytes_per_second: Option<u64>) -> Self {
        Self { env: env.clone(), bytes_per_second, free_at_ns: Mutex::new(0) }
    }

    /// Of so many more bytes.
    pub async fn take(&self, bytes: usize) {
        let Some(rate) = self.bytes_per_second else { return };
        let now_ns = self.env.clock.holder_ns();
        let cost_ns = (bytes as u128 * 1_000_000_000 / u128::from(rate.max(1))) as u64;
        let wait_ns = {
            let mut free_at_ns = self.free_at_ns.lock();
            let begins_ns = (*free_at_ns).max(now_ns);
            *free_at_ns = begins_ns.saturating_add(cost_ns);
            begins_ns - now_ns
        };
        if wait_ns > 0 {
            tokio::time::sleep(Duration::from_nanos(wait_ns)).await;
        }
    }
}
