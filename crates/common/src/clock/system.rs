//! The operating system's clocks.

use std::time::Duration;

use super::{Clock, WallInterval};

/// Where the bound on the wall clock's error comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WallSource {
    /// No bound: leases rest on round trips alone. Always safe.
    #[default]
    Unsynchronised,
    /// The operator states a bound on the error.
    Fixed { error: Duration },
    /// The kernel's own estimate (`adjtimex`), but never less than `floor`, and none above `cap`.
    Kernel { floor: Duration, cap: Duration },
}

#[derive(Debug)]
pub struct SystemClock {
    source: WallSource,
    raw_start_ns: u64,
    boot_start_ns: u64,
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new(WallSource::default())
    }
}

impl SystemClock {
    pub fn new(source: WallSource) -> Self {
        Self {
            source,
            raw_start_ns: read(libc::CLOCK_MONOTONIC_RAW),
            boot_start_ns: read(libc::CLOCK_BOOTTIME),
        }
    }

    fn mono(&self) -> (u64, u64) {
        // An offset keeps 0 free for "never".
        const OFFSET_NS: u64 = 1_000_000_000;
        (
            read(libc::CLOCK_MONOTONIC_RAW) - self.raw_start_ns + OFFSET_NS,
            read(libc::CLOCK_BOOTTIME) - self.boot_start_ns + OFFSET_NS,
        )
    }
}

fn read(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for writing; the clock ids used here exist on every supported kernel.
    let result = unsafe { libc::clock_gettime(clock, &mut time) };
    assert_eq!(result, 0, "clock_gettime({clock}) failed");
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

impl Clock for SystemClock {
    fn wall(&self) -> WallInterval {
        match self.source {
            WallSource::Unsynchronised => WallInterval::UNSYNCHRONISED,
            WallSource::Fixed { error } => {
                let now = self.wall_guess_ns();
                let error = error.as_nanos() as u64;
                WallInterval { earliest_ns: now.saturating_sub(error), latest_ns: now.saturating_add(error) }
            }
            WallSource::Kernel { .. } => WallInterval::UNSYNCHRONISED,
        }
    }

    fn wall_guess_ns(&self) -> u64 {
        read(libc::CLOCK_REALTIME)
    }

    fn holder_ns(&self) -> u64 {
        let (raw, boot) = self.mono();
        raw.max(boot)
    }

    fn grantor_ns(&self) -> u64 {
        let (raw, boot) = self.mono();
        raw.min(boot)
    }
}
