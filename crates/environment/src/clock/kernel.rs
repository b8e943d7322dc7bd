//! What the kernel knows of its own clock (`adjtimex`).

/// As the kernel says it; all that disciplines its clock (chronyd, ntpd, systemd-timesyncd, ptp4l) tells it.
#[derive(Clone, Copy, Debug)]
pub struct KernelClock {
    /// `TIME_OK`, a leap second ahead or going on, or `TIME_ERROR`.
    pub state: i32,
    /// `STA_UNSYNC`, `STA_NANO` and others.
    pub status: i32,
    /// The most by which the clock is wrong.
    pub maxerror_us: i64,
    /// By how much it is likely to be wrong.
    pub esterror_us: i64,
    /// What is still to be slewed.
    pub offset_ns: i64,
    /// By how much the clock is made to run faster than the machine's oscillator, in parts per million.
    pub rate_ppm: f64,
}

/// The kernel's bound where nobody has disciplined the clock for long, or ever.
const MAXERROR_LIMIT_US: i64 = 16_000_000;
/// The kernel adds to its bound once a second, 500 us: the reading may be so much behind.
const UPDATE_LAG_NS: u64 = 500_000;
/// A tick of `adjtimex` has so many microseconds, as long as nobody changes that; one more is 100 ppm.
const TICK_US: i64 = 10_000;
const PPM_PER_TICK_US: f64 = 100.0;
/// Fractions of a ppm in `timex.freq`.
const FREQUENCY_UNIT: f64 = 65_536.0;

impl KernelClock {
    /// None: the kernel does not tell (a system call that is forbidden).
    pub fn ask() -> Option<Self> {
        // SAFETY: all zeroes is a valid `timex`; with no modes set the kernel only fills it in.
        let (state, timex) = unsafe {
            let mut timex: libc::timex = std::mem::zeroed();
            (libc::adjtimex(&mut timex), timex)
        };
        if state < 0 {
            return None;
        }
        let unit_ns = if timex.status & libc::STA_NANO != 0 { 1 } else { 1000 };
        Some(Self {
            state,
            status: timex.status,
            maxerror_us: timex.maxerror,
            esterror_us: timex.esterror,
            offset_ns: timex.offset.saturating_mul(unit_ns),
            rate_ppm: timex.freq as f64 / FREQUENCY_UNIT
                + timex.tick.saturating_sub(TICK_US) as f64 * PPM_PER_TICK_US,
        })
    }

    /// Whether somebody disciplines it, and no leap second is near.
    pub fn is_synchronised(&self) -> bool {
        // A leap second moves clocks by a second, not all at the same moment: while one is announced there is no bound.
        self.state == libc::TIME_OK
            && self.status & libc::STA_UNSYNC == 0
            && (0..MAXERROR_LIMIT_US).contains(&self.maxerror_us)
    }

    /// A bound on the wall clock's error; None: there is none, or it is above `cap_us`.
    pub fn error_ns(&self, floor_us: u64, cap_us: u64) -> Option<u64> {
        // An error of 0 is no estimate: daemons that serve PTP clear the field. The operator must know better.
        if !self.is_synchronised() || (self.maxerror_us == 0 && floor_us == 0) {
            return None;
        }
        let estimate_ns = self.maxerror_us as u64 * 1000 + UPDATE_LAG_NS + self.offset_ns.unsigned_abs();
        let error_ns = estimate_ns.max(floor_us.saturating_mul(1000));
        (error_ns <= cap_us.saturating_mul(1000)).then_some(error_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: KernelClock = KernelClock {
        state: libc::TIME_OK,
        status: 0,
        maxerror_us: 2_000,
        esterror_us: 100,
        offset_ns: -300,
        rate_ppm: 0.0,
    };

    #[test]
    fn the_kernels_bound_is_taken_with_its_lag_and_offset() {
        assert_eq!(GOOD.error_ns(0, 100_000), Some(2_500_300));
        assert_eq!(GOOD.error_ns(5_000, 100_000), Some(5_000_000), "the floor");
        assert_eq!(GOOD.error_ns(0, 2_500), None, "above the cap");
        let ptp = KernelClock { maxerror_us: 0, ..GOOD };
        assert_eq!(ptp.error_ns(0, 100_000), None, "no estimate");
        assert_eq!(ptp.error_ns(50, 100_000), Some(500_300));
    }

    #[test]
    fn an_unsynchronised_kernel_gives_no_bound() {
        for kernel in [
            KernelClock { state: libc::TIME_ERROR, ..GOOD },
            KernelClock { state: libc::TIME_INS, ..GOOD },
            KernelClock { state: libc::TIME_OOP, ..GOOD },
            KernelClock { status: libc::STA_UNSYNC | libc::STA_NANO, ..GOOD },
            KernelClock { maxerror_us: MAXERROR_LIMIT_US, ..GOOD },
            KernelClock { maxerror_us: -1, ..GOOD },
        ] {
            assert_eq!(kernel.error_ns(0, u64::MAX), None, "{kernel:?}");
            assert!(!kernel.is_synchronised(), "{kernel:?}");
        }
        assert!(GOOD.is_synchronised());
    }
}
