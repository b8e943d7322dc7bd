//! A clock that tests set by hand.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sextant_environment::Clock;
use sextant_environment::clock::WallInterval;

/// Starts at one million seconds; wall and monotonic time move only when told to.
#[derive(Debug)]
pub struct ManualClock {
    wall_ns: AtomicU64,
    mono_ns: AtomicU64,
    /// Half the width of the wall interval; `u64::MAX`: unsynchronised.
    error_ns: AtomicU64,
}

impl Default for ManualClock {
    fn default() -> Self {
        Self {
            wall_ns: AtomicU64::new(1_000_000_000_000_000),
            mono_ns: AtomicU64::new(1_000_000_000_000_000),
            error_ns: AtomicU64::new(0),
        }
    }
}

impl ManualClock {
    /// Moves all clocks on.
    pub fn advance(&self, by: Duration) {
        self.wall_ns.fetch_add(by.as_nanos() as u64, Ordering::SeqCst);
        self.mono_ns.fetch_add(by.as_nanos() as u64, Ordering::SeqCst);
    }

    /// Moves only the monotonic clocks on.
    pub fn advance_mono(&self, by: Duration) {
        self.mono_ns.fetch_add(by.as_nanos() as u64, Ordering::SeqCst);
    }

    /// A step of the wall clock.
    pub fn set_wall_ns(&self, ns: u64) {
        self.wall_ns.store(ns, Ordering::SeqCst);
    }

    /// None: unsynchronised.
    pub fn set_error(&self, error: Option<Duration>) {
        self.error_ns.store(error.map_or(u64::MAX, |e| e.as_nanos() as u64), Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn wall(&self) -> WallInterval {
        let error = self.error_ns.load(Ordering::SeqCst);
        if error == u64::MAX {
            return WallInterval::UNSYNCHRONISED;
        }
        let now = self.wall_ns.load(Ordering::SeqCst);
        WallInterval { earliest_ns: now.saturating_sub(error), latest_ns: now.saturating_add(error) }
    }

    fn wall_guess_ns(&self) -> u64 {
        self.wall_ns.load(Ordering::SeqCst)
    }

    fn holder_ns(&self) -> u64 {
        self.mono_ns.load(Ordering::SeqCst)
    }

    fn grantor_ns(&self) -> u64 {
        self.mono_ns.load(Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_moves_only_when_told_to() {
        let clock = ManualClock::default();
        let (wall, mono) = (clock.wall_guess_ns(), clock.holder_ns());
        clock.advance(Duration::from_nanos(5));
        clock.advance_mono(Duration::from_nanos(7));
        assert_eq!((clock.wall_guess_ns() - wall, clock.holder_ns() - mono), (5, 12));
        assert_eq!(clock.grantor_ns(), clock.holder_ns());
        clock.set_wall_ns(100);
        assert_eq!(clock.wall(), WallInterval { earliest_ns: 100, latest_ns: 100 });
        clock.set_error(Some(Duration::from_nanos(200)));
        assert_eq!(clock.wall(), WallInterval { earliest_ns: 0, latest_ns: 300 });
        clock.set_error(None);
        assert_eq!(clock.wall(), WallInterval::UNSYNCHRONISED);
        assert_eq!(clock.holder_ns() - mono, 12, "a step of the wall clock moves nothing else");
    }
}
