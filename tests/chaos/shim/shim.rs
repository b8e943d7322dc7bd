//! A library that is loaded into a server before the C library (LD_PRELOAD) and stands between it and the kernel: fsyncs that
//! fail, hang or are slow, and clocks that are off or drift. Compiled by the run that uses it, with plain `rustc`.
//!
//! Told what to do by the environment:
//!
//! * `CHAOS_FSYNC`: a file that is read at each fsync. `fail`: EIO; `hang`: wait until it says something else; `slow N`: wait
//!   for N milliseconds first; anything else, or no file: nothing special.
//! * `CHAOS_WALL_NS`: added to the wall clock. `CHAOS_DRIFT_PPM`: how much faster (slower, if negative) monotonic clocks run.

use std::ffi::{c_int, c_long};
use std::sync::OnceLock;
use std::time::Duration;

#[cfg(target_arch = "x86_64")]
mod number {
    pub const FSYNC: i64 = 74;
    pub const FDATASYNC: i64 = 75;
    pub const CLOCK_GETTIME: i64 = 228;
}
#[cfg(target_arch = "aarch64")]
mod number {
    pub const FSYNC: i64 = 82;
    pub const FDATASYNC: i64 = 83;
    pub const CLOCK_GETTIME: i64 = 113;
}

const EIO: c_int = 5;
const CLOCK_REALTIME: c_int = 0;
const CLOCK_REALTIME_COARSE: c_int = 5;
/// MONOTONIC, MONOTONIC_RAW, MONOTONIC_COARSE, BOOTTIME.
const MONOTONIC: [c_int; 4] = [1, 4, 6, 7];

#[repr(C)]
pub struct Timespec {
    seconds: i64,
    nanoseconds: i64,
}

unsafe extern "C" {
    fn syscall(number: c_long, ...) -> c_long;
    fn __errno_location() -> *mut c_int;
}

/// What is to be done with fsyncs now.
fn before_sync() -> bool {
    static FILE: OnceLock<Option<String>> = OnceLock::new();
    let Some(file) = FILE.get_or_init(|| std::env::var("CHAOS_FSYNC").ok()) else { return true };
    loop {
        let order = std::fs::read_to_string(file).unwrap_or_default();
        let mut words = order.split_whitespace();
        match (words.next(), words.next().and_then(|n| n.parse().ok())) {
            (Some("fail"), _) => return false,
            (Some("hang"), _) => std::thread::sleep(Duration::from_millis(2)),
            (Some("slow"), Some(ms)) => {
                std::thread::sleep(Duration::from_millis(ms));
                return true;
            }
            _ => return true,
        }
    }
}

fn sync(number: i64, fd: c_int) -> c_int {
    if before_sync() {
        // SAFETY: the system call that the caller meant to make.
        return unsafe { syscall(number, fd as c_long) as c_int };
    }
    // SAFETY: the C library's own thread-local.
    unsafe { *__errno_location() = EIO };
    -1
}

#[unsafe(no_mangle)]
pub extern "C" fn fsync(fd: c_int) -> c_int {
    sync(number::FSYNC, fd)
}

#[unsafe(no_mangle)]
pub extern "C" fn fdatasync(fd: c_int) -> c_int {
    sync(number::FDATASYNC, fd)
}

struct Skew {
    wall_ns: i64,
    drift_ppm: i64,
    /// First reading of each monotonic clock: drift counts from here.
    base_ns: [i64; 4],
}

fn read_clock(clock: c_int, time: *mut Timespec) -> c_int {
    // SAFETY: the system call that the caller meant to make, with its own argument.
    unsafe { syscall(number::CLOCK_GETTIME, clock as c_long, time) as c_int }
}

fn skew() -> &'static Skew {
    static SKEW: OnceLock<Skew> = OnceLock::new();
    SKEW.get_or_init(|| {
        let number = |name| std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(0);
        let base_ns = MONOTONIC.map(|clock| {
            let mut now = Timespec { seconds: 0, nanoseconds: 0 };
            read_clock(clock, &mut now);
            now.seconds * 1_000_000_000 + now.nanoseconds
        });
        Skew { wall_ns: number("CHAOS_WALL_NS"), drift_ppm: number("CHAOS_DRIFT_PPM"), base_ns }
    })
}

/// # Safety
/// As the C library's: `time` points to a `struct timespec`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_gettime(clock: c_int, time: *mut Timespec) -> c_int {
    let result = read_clock(clock, time);
    if result != 0 || time.is_null() {
        return result;
    }
    let skew = skew();
    // SAFETY: the kernel has just written to it.
    let time = unsafe { &mut *time };
    let now = time.seconds * 1_000_000_000 + time.nanoseconds;
    let shown = match clock {
        CLOCK_REALTIME | CLOCK_REALTIME_COARSE => now + skew.wall_ns,
        _ => match MONOTONIC.iter().position(|c| *c == clock) {
            Some(at) => now + (now - skew.base_ns[at]) / 1_000 * skew.drift_ppm / 1_000,
            None => now,
        },
    };
    time.seconds = shown.div_euclid(1_000_000_000);
    time.nanoseconds = shown.rem_euclid(1_000_000_000);
    0
}
