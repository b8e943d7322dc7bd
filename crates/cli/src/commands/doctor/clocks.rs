//! This machine's clocks, beside what configurations assume of them.

use sextant_environment::clock::{KernelClock, WallSource};

use super::Patient;
use super::figures::duration;
use super::report::{Check, Finding};

const SOURCE_FILE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
/// A reading of these takes a microsecond or more; servers read the clock for every message.
const SLOW_SOURCES: [&str; 5] = ["hpet", "acpi_pm", "pit", "jiffies", "refined-jiffies"];

pub fn check(patients: &[Patient]) -> Vec<Check> {
    let source = std::fs::read_to_string(SOURCE_FILE).ok();
    let source = source.as_deref().map(str::trim);
    let kernel = KernelClock::ask();
    let mut checks = vec![judge_source(source).about("clock source"), kernel_check(kernel.as_ref())];
    for patient in patients {
        let party = patient.party();
        let Some(wall) = patient.file.clock() else { continue };
        let found = judge_wall(wall, kernel.as_ref());
        checks.push(found.about(format!("wall clock for {party}")));
        let drift_ppm = patient.file.cluster().lease.drift_ppm;
        let found = judge_drift(drift_ppm, kernel.as_ref());
        checks.push(found.about(format!("drift for {party}")).with("assumed_ppm", drift_ppm));
    }
    checks
}

fn judge_source(name: Option<&str>) -> Finding {
    match name {
        None => Finding::warning("the kernel does not say which it has"),
        Some(name) if SLOW_SOURCES.contains(&name) => {
            Finding::warning(format!("{name}: reading it is slow, and servers read it for every message"))
        }
        Some(name) => Finding::ok(name),
    }
}

fn kernel_check(kernel: Option<&KernelClock>) -> Check {
    let subject = "kernel clock";
    let Some(kernel) = kernel else { return Finding::warning(UNTOLD).about(subject) };
    let figures = format!(
        "error {} (at most {}), still to be corrected {}",
        duration(us_to_ns(kernel.esterror_us)),
        duration(us_to_ns(kernel.maxerror_us)),
        duration(kernel.offset_ns.unsigned_abs())
    );
    let found = match kernel.is_synchronised() {
        true => Finding::ok(format!("synchronised; {figures}")),
        false => Finding::warning("not synchronised: is chronyd, ntpd or systemd-timesyncd running?"),
    };
    let check = found.about(subject).with("synchronised", kernel.is_synchronised());
    let check = check.with("error_us", kernel.esterror_us).with("error_max_us", kernel.maxerror_us);
    check.with("offset_ns", kernel.offset_ns).with("rate_ppm", kernel.rate_ppm)
}

const UNTOLD: &str = "the kernel does not tell (adjtimex is forbidden here)";

fn us_to_ns(us: i64) -> u64 {
    us.unsigned_abs().saturating_mul(1000)
}

/// `[clock]` beside the kernel's own opinion.
fn judge_wall(wall: WallSource, kernel: Option<&KernelClock>) -> Finding {
    match wall {
        WallSource::Unsynchronised => {
            Finding::ok("source = \"unsynchronised\": leases rest on round trips, whatever the time of day")
        }
        WallSource::Kernel { floor_us, cap_us } => judge_kernel_source(floor_us, cap_us, kernel),
        WallSource::Fixed { error_us } => judge_promise(error_us, kernel),
    }
}

fn judge_kernel_source(floor_us: u64, cap_us: u64, kernel: Option<&KernelClock>) -> Finding {
    let Some(kernel) = kernel else { return Finding::warning(UNTOLD) };
    let rest = "until then leases rest on round trips";
    match kernel.error_ns(floor_us, cap_us) {
        Some(error_ns) => {
            Finding::ok(format!("source = \"kernel\": wrong by at most {}", duration(error_ns)))
        }
        None if !kernel.is_synchronised() => {
            Finding::warning(format!("source = \"kernel\", and the kernel's is not synchronised; {rest}"))
        }
        None if kernel.maxerror_us == 0 => {
            Finding::warning(format!("source = \"kernel\", which states no error: set floor_us; {rest}"))
        }
        None => {
            let error = duration(us_to_ns(kernel.maxerror_us));
            Finding::warning(format!(
                "source = \"kernel\", whose error ({error}) is above cap_us, {cap_us} us; {rest}"
            ))
        }
    }
}

/// Leases rest on it: what the operator has promised has to be so.
fn judge_promise(error_us: u64, kernel: Option<&KernelClock>) -> Finding {
    let promised = format!("source = \"fixed\", error_us = {error_us}");
    let Some(kernel) = kernel else { return Finding::warning(format!("{promised}: {UNTOLD}")) };
    let within = |us: i64| us.unsigned_abs() <= error_us;
    if !kernel.is_synchronised() {
        return Finding::bad(format!(
            "{promised}, and nobody sets the kernel's clock: leases rest on that promise"
        ));
    }
    let (likely, most) = (kernel.esterror_us, kernel.maxerror_us);
    match (within(likely), within(most)) {
        (_, true) => Finding::ok(format!("{promised}; the kernel says at most {most} us")),
        (true, false) => {
            Finding::warning(format!("{promised}; the kernel says {likely} us, at most {most} us"))
        }
        (false, false) => {
            Finding::bad(format!("{promised}, and the kernel says {likely} us, at most {most} us"))
        }
    }
}

/// By how much the oscillator is wrong is known where somebody corrects it.
fn judge_drift(drift_ppm: u64, kernel: Option<&KernelClock>) -> Finding {
    let assumed = format!("drift_ppm = {drift_ppm}");
    let Some(kernel) = kernel.filter(|kernel| kernel.is_synchronised()) else {
        return Finding::ok(format!(
            "{assumed} is assumed; what it is cannot be told of a clock that nobody sets"
        ));
    };
    let rate_ppm = kernel.rate_ppm.abs();
    let figures = format!("{rate_ppm:.1} ppm are corrected, {assumed} is assumed");
    match rate_ppm {
        rate if rate > drift_ppm as f64 => Finding::bad(figures),
        rate if rate * 2.0 > drift_ppm as f64 => Finding::warning(figures),
        _ => Finding::ok(figures),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::report::Verdict::{self, Bad, Ok, Warning};

    fn kernel(synchronised: bool, esterror_us: i64, maxerror_us: i64, rate_ppm: f64) -> KernelClock {
        let state = if synchronised { libc::TIME_OK } else { libc::TIME_ERROR };
        KernelClock { state, status: 0, maxerror_us, esterror_us, offset_ns: 0, rate_ppm }
    }

    #[test]
    fn a_clock_that_is_slow_to_read_is_noticed() {
        let verdict = |name| judge_source(name).verdict;
        assert_eq!(
            [Some("tsc"), Some("kvm-clock"), Some("hpet"), None].map(verdict),
            [Ok, Ok, Warning, Warning]
        );
    }

    #[test]
    fn what_the_configuration_says_of_the_wall_clock_is_held_against_the_kernel() {
        let (good, ptp) = (kernel(true, 50, 2_000, 0.0), kernel(true, 0, 0, 0.0));
        let unsynchronised = kernel(false, 0, 16_000_000, 0.0);
        let from_kernel = |floor_us, cap_us| WallSource::Kernel { floor_us, cap_us };
        let fixed = |error_us| WallSource::Fixed { error_us };
        let cases: [(WallSource, Option<&KernelClock>, Verdict, &str); 11] = [
            (WallSource::Unsynchronised, None, Ok, "round trips"),
            (from_kernel(0, 150_000), Some(&good), Ok, "at most 2.5 ms"),
            (from_kernel(0, 1_000), Some(&good), Warning, "above cap_us, 1000 us"),
            (from_kernel(0, 150_000), Some(&unsynchronised), Warning, "not synchronised"),
            (from_kernel(0, 150_000), Some(&ptp), Warning, "set floor_us"),
            (from_kernel(0, 150_000), None, Warning, "does not tell"),
            (fixed(5_000), Some(&good), Ok, "at most 2000 us"),
            (fixed(1_000), Some(&good), Warning, "at most 2000 us"),
            (fixed(10), Some(&good), Bad, "says 50 us"),
            (fixed(5_000), Some(&unsynchronised), Bad, "nobody sets"),
            (fixed(5_000), None, Warning, "does not tell"),
        ];
        for (wall, kernel, verdict, why) in cases {
            let found = judge_wall(wall, kernel);
            assert!(found.verdict == verdict && found.why.contains(why), "{wall:?}: {found:?}");
        }
    }

    #[test]
    fn an_oscillator_beyond_the_assumed_drift_is_bad() {
        let verdict = |rate_ppm| judge_drift(500, Some(&kernel(true, 0, 10, rate_ppm))).verdict;
        assert_eq!([0.0, -250.0, 251.0, -499.0, 501.0].map(verdict), [Ok, Ok, Warning, Warning, Bad]);
        assert_eq!(judge_drift(500, Some(&kernel(false, 0, 10, 900.0))).verdict, Ok);
        assert_eq!(judge_drift(500, None).verdict, Ok);
    }
}
