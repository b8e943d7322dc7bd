//! The operating system's clocks.
//!
//! Monotonic time. MONOTONIC_RAW is never slewed but stops in suspend; BOOTTIME counts suspend but is slewed by whoever
//! disciplines the clock. For an interval the holder wants the larger of the two, the grantor the smaller. Taken over the
//! whole life of a process, the larger of both would hide a suspend behind an earlier slew. So both are compared from an
//! [`Anchor`] on that moves forward every [`ANCHOR_AGE_NS`], and the larger (smaller) pieces are added up. What one piece can
//! hide is its age times the slew, at most 50 us; by so much two threads may also disagree while an anchor moves.
//!
//! Wall time. The kernel's bound on its own error is asked for once in [`BOUND_AGE_NS`], since the call costs a microsecond and
//! a clock reading 20 ns; in between it grows by the most that a clock may drift. A step of the wall clock (REALTIME moved
//! against BOOTTIME) voids it at once.
//!
//! Invariant: no reading takes a lock or waits for another thread.

use std::sync::Arc;

use arc_swap::ArcSwap;

use super::{Clock, KernelClock, WallInterval, WallSource};

/// Keeps 0 free for "never".
const START_NS: u64 = 1_000_000_000;
/// At the kernel's fastest slew (500 ppm) the two monotonic clocks part by 50 us in this time.
const ANCHOR_AGE_NS: u64 = 100_000_000;
/// An anchor whose two clocks were read further apart (the thread was interrupted) would count the gap twice.
const ANCHOR_GAP_NS: u64 = 5_000;
/// The kernel itself updates its bound once a second.
const BOUND_AGE_NS: u64 = 1_000_000_000;
/// The most by which a wall clock drifts from the true time between two looks at the kernel's bound; the kernel's own figure.
const DRIFT_PPM: u64 = 500;
/// REALTIME and BOOTTIME are read some 20 ns apart and otherwise move alike: more than this is a step, or an interruption
/// between the two readings, which costs one needless look.
const STEP_NS: u64 = 10_000;

pub struct SystemClock {
    source: WallSource,
    anchor: ArcSwap<Anchor>,
    bound: ArcSwap<Bound>,
}

impl std::fmt::Debug for SystemClock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SystemClock {{ source: {:?} }}", self.source)
    }
}

/// Where all four monotonic clocks stood at one moment.
#[derive(Debug)]
struct Anchor {
    raw_ns: u64,
    boot_ns: u64,
    holder_ns: u64,
    grantor_ns: u64,
}

impl Anchor {
    fn holder_ns(&self, raw_ns: u64, boot_ns: u64) -> u64 {
        self.holder_ns + raw_ns.saturating_sub(self.raw_ns).max(boot_ns.saturating_sub(self.boot_ns))
    }

    fn grantor_ns(&self, raw_ns: u64, boot_ns: u64) -> u64 {
        self.grantor_ns + raw_ns.saturating_sub(self.raw_ns).min(boot_ns.saturating_sub(self.boot_ns))
    }

    fn moved_to(&self, raw_ns: u64, boot_ns: u64) -> Anchor {
        Anchor {
            raw_ns,
            boot_ns,
            holder_ns: self.holder_ns(raw_ns, boot_ns),
            grantor_ns: self.grantor_ns(raw_ns, boot_ns),
        }
    }
}

/// What the kernel last said about its wall clock, and when.
#[derive(Clone, Copy, Debug)]
struct Bound {
    /// None: not synchronised.
    error_ns: Option<u64>,
    real_ns: u64,
    boot_ns: u64,
}

impl Bound {
    /// The interval for a reading of both clocks; `Err` if the bound must be asked for again.
    fn interval(&self, real_ns: u64, boot_ns: u64) -> Result<WallInterval, Stale> {
        let age_ns = boot_ns.saturating_sub(self.boot_ns);
        let expected_ns = self.real_ns.saturating_add(age_ns);
        if age_ns > BOUND_AGE_NS || real_ns.abs_diff(expected_ns) > STEP_NS {
            return Err(Stale);
        }
        Ok(match self.error_ns {
            Some(error_ns) => around(real_ns, error_ns + age_ns * DRIFT_PPM / 1_000_000 + 1),
            None => WallInterval::UNSYNCHRONISED,
        })
    }
}

struct Stale;

fn around(now_ns: u64, error_ns: u64) -> WallInterval {
    WallInterval { earliest_ns: now_ns.saturating_sub(error_ns), latest_ns: now_ns.saturating_add(error_ns) }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new(WallSource::default())
    }
}

impl SystemClock {
    pub fn new(source: WallSource) -> Self {
        let anchor = Anchor {
            raw_ns: read(libc::CLOCK_MONOTONIC_RAW),
            boot_ns: read(libc::CLOCK_BOOTTIME),
            holder_ns: START_NS,
            grantor_ns: START_NS,
        };
        // Stale from the start: the first reading asks.
        let bound = Bound { error_ns: None, real_ns: 0, boot_ns: 0 };
        Self { source, anchor: ArcSwap::from_pointee(anchor), bound: ArcSwap::from_pointee(bound) }
    }

    fn mono(&self, combine: fn(&Anchor, u64, u64) -> u64) -> u64 {
        loop {
            let anchor = self.anchor.load();
            let (raw_ns, boot_ns) = (read(libc::CLOCK_MONOTONIC_RAW), read(libc::CLOCK_BOOTTIME));
            let is_fresh = boot_ns.saturating_sub(anchor.boot_ns) <= ANCHOR_AGE_NS;
            if is_fresh || read(libc::CLOCK_MONOTONIC_RAW).saturating_sub(raw_ns) > ANCHOR_GAP_NS {
                return combine(&anchor, raw_ns, boot_ns);
            }
            let next = Arc::new(anchor.moved_to(raw_ns, boot_ns));
            let before = self.anchor.compare_and_swap(&*anchor, next);
            if Arc::ptr_eq(&before, &anchor) {
                return combine(&anchor, raw_ns, boot_ns);
            }
            // Another thread was faster: its anchor is fresh.
        }
    }

    fn kernel_wall(&self, floor_us: u64, cap_us: u64) -> WallInterval {
        for _ in 0..2 {
            let bound = **self.bound.load();
            if let Ok(interval) = bound.interval(read(libc::CLOCK_REALTIME), read(libc::CLOCK_BOOTTIME)) {
                return interval;
            }
            // The clocks are read before the kernel is asked: a step in between shows at the next reading.
            let (real_ns, boot_ns) = (read(libc::CLOCK_REALTIME), read(libc::CLOCK_BOOTTIME));
            let error_ns = KernelClock::ask().and_then(|kernel| kernel.error_ns(floor_us, cap_us));
            self.bound.store(Arc::new(Bound { error_ns, real_ns, boot_ns }));
        }
        WallInterval::UNSYNCHRONISED
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
            WallSource::Fixed { error_us } => around(self.wall_guess_ns(), error_us.saturating_mul(1000)),
            WallSource::Kernel { floor_us, cap_us } => self.kernel_wall(floor_us, cap_us),
        }
    }

    fn wall_guess_ns(&self) -> u64 {
        read(libc::CLOCK_REALTIME)
    }

    fn holder_ns(&self) -> u64 {
        self.mono(Anchor::holder_ns)
    }

    fn grantor_ns(&self) -> u64 {
        self.mono(Anchor::grantor_ns)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_cached_bound_grows_and_a_step_voids_it() {
        let bound = Bound { error_ns: Some(1_000_000), real_ns: 5_000_000_000, boot_ns: 700 };
        let later = bound.interval(5_500_000_000, 500_000_700).ok().unwrap();
        // Half a second at 500 ppm is 250 us.
        assert_eq!(later, around(5_500_000_000, 1_250_001));
        assert!(bound.interval(5_500_000_000 + STEP_NS + 1, 500_000_700).is_err(), "stepped forward");
        assert!(bound.interval(5_500_000_000 - STEP_NS - 1, 500_000_700).is_err(), "stepped back");
        assert!(bound.interval(6_000_000_001, 1_000_000_701).is_err(), "too old");
        let unsynchronised = Bound { error_ns: None, ..bound };
        assert_eq!(unsynchronised.interval(5_000_000_000, 700).ok(), Some(WallInterval::UNSYNCHRONISED));
    }

    #[test]
    fn the_kernel_answers() {
        let clock = SystemClock::new(WallSource::Kernel { floor_us: 1_000, cap_us: u64::MAX });
        let interval = clock.wall();
        let synchronised = KernelClock::ask().and_then(|kernel| kernel.error_ns(1_000, u64::MAX)).is_some();
        assert_eq!(interval.is_synchronised(), synchronised);
        if synchronised {
            let now = clock.wall_guess_ns();
            assert!(interval.earliest_ns < now && now - interval.earliest_ns < 40_000_000_000);
        }
    }

    #[test]
    fn a_fixed_bound_surrounds_the_reading() {
        let clock = SystemClock::new(WallSource::Fixed { error_us: 20_000_000 });
        let (interval, now) = (clock.wall(), clock.wall_guess_ns());
        assert_eq!(interval.latest_ns - interval.earliest_ns, 40_000_000_000);
        assert!(interval.earliest_ns < now && now < interval.latest_ns);
        assert!(!SystemClock::default().wall().is_synchronised());
    }

    #[test]
    fn monotonic_time_moves_on() {
        let clock = SystemClock::default();
        let (holder, grantor) = (clock.holder_ns(), clock.grantor_ns());
        assert!(holder >= START_NS && grantor >= START_NS);
        while clock.holder_ns() == holder || clock.grantor_ns() == grantor {}
    }

    #[test]
    fn threads_agree_on_the_order_of_readings() {
        use std::sync::atomic::{AtomicU64, Ordering};
        type Reading = fn(&SystemClock) -> u64;
        let clock = SystemClock::default();
        for reading in [SystemClock::holder_ns as Reading, SystemClock::grantor_ns] {
            let newest = AtomicU64::new(0);
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| {
                        // Until the anchor has moved a few times.
                        while newest.load(Ordering::SeqCst) < START_NS + 4 * ANCHOR_AGE_NS {
                            let before = newest.load(Ordering::SeqCst);
                            let now = reading(&clock);
                            // At any slew: never by more than one piece.
                            assert!(now + ANCHOR_AGE_NS >= before, "{now} after {before}");
                            newest.fetch_max(now, Ordering::SeqCst);
                        }
                    });
                }
            });
        }
        assert!(clock.anchor.load().holder_ns > START_NS);
    }

    #[test]
    fn a_suspend_is_not_hidden_by_an_earlier_slew() {
        // RAW got a second ahead of BOOTTIME, then half a second of suspend that only BOOTTIME counts.
        let mut anchor = Anchor { raw_ns: 0, boot_ns: 0, holder_ns: START_NS, grantor_ns: START_NS };
        anchor = anchor.moved_to(11_000_000_000, 10_000_000_000);
        let before = (
            anchor.holder_ns(11_000_000_000, 10_000_000_000),
            anchor.grantor_ns(11_000_000_000, 10_000_000_000),
        );
        let after = (
            anchor.holder_ns(11_000_000_000, 10_500_000_000),
            anchor.grantor_ns(11_000_000_000, 10_500_000_000),
        );
        assert_eq!((after.0 - before.0, after.1 - before.1), (500_000_000, 0));
    }

    proptest! {
        /// However both clocks run, and wherever anchors are set: at an anchor, the holder has seen at least what either clock
        /// saw, the grantor at most, and neither ever goes back.
        #[test]
        fn the_holder_is_never_slower_and_the_grantor_never_faster(
            pieces in prop::collection::vec((0..1_000_000_000u64, 0..1_000_000_000u64, any::<bool>()), 1..40),
        ) {
            let mut anchor = Anchor { raw_ns: 5, boot_ns: 9, holder_ns: START_NS, grantor_ns: START_NS };
            let (mut raw, mut boot) = (5, 9);
            let (mut holder, mut grantor) = (START_NS, START_NS);
            for (by_raw, by_boot, move_anchor) in pieces {
                raw += by_raw;
                boot += by_boot;
                let now = (anchor.holder_ns(raw, boot), anchor.grantor_ns(raw, boot));
                prop_assert!(now.0 >= holder && now.1 >= grantor);
                prop_assert!(now.0 - START_NS >= (raw - 5).max(boot - 9));
                prop_assert!(now.1 - START_NS <= (raw - 5).min(boot - 9));
                (holder, grantor) = now;
                if move_anchor {
                    anchor = anchor.moved_to(raw, boot);
                    prop_assert_eq!((anchor.holder_ns(raw, boot), anchor.grantor_ns(raw, boot)), now);
                }
            }
        }
    }
}
