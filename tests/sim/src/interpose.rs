//! What the C library would take from the operating system: random bytes and the time, replaced for this process.
//!
//! Owns two symbols. Rust's standard library seeds its hash maps with `getrandom`, and reads clocks with `clock_gettime`; some
//! dependencies do both where no injected clock or generator reaches (the `date` header of HTTP/2, time stamps of reset
//! streams). Defined here, the linker prefers them to the C library's. So a run depends on its seed alone.
//!
//! Until [`start`] the real ones answer. The simulation has one thread, so relaxed atomics are enough.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

static STARTED: AtomicBool = AtomicBool::new(false);
static RANDOM: AtomicU64 = AtomicU64::new(0);
static NOW_NS: AtomicU64 = AtomicU64::new(0);

/// 2026-01-01: when every simulation begins.
pub const EPOCH_NS: u64 = 1_767_225_600_000_000_000;
/// The monotonic clock's start: some uptime, so that subtractions stay positive.
const BOOT_NS: u64 = 1_000_000_000_000;

/// From now on the process lives in simulated time, with random bytes from the seed.
pub fn start(seed: u64) {
    RANDOM.store(seed, Relaxed);
    STARTED.store(true, Relaxed);
}

/// Moves the process' clocks.
pub fn set_now_ns(now_ns: u64) {
    NOW_NS.store(now_ns, Relaxed);
}

/// The operating system's monotonic clock, in nanoseconds: how long a run really takes.
pub fn real_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is a valid timespec for the call to fill.
    unsafe { libc::syscall(libc::SYS_clock_gettime, libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn next_random() -> u64 {
    let state = RANDOM.load(Relaxed).wrapping_add(0x9e37_79b9_7f4a_7c15);
    RANDOM.store(state, Relaxed);
    let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The C library's `getrandom`.
///
/// # Safety
/// `buffer` must be valid for writes of `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getrandom(buffer: *mut libc::c_void, length: usize, flags: libc::c_uint) -> isize {
    if !STARTED.load(Relaxed) {
        // SAFETY: passed on as it came.
        return unsafe { libc::syscall(libc::SYS_getrandom, buffer, length, flags) as isize };
    }
    for at in 0..length {
        // SAFETY: within the buffer, by the caller's promise.
        unsafe { buffer.cast::<u8>().add(at).write(next_random() as u8) };
    }
    length as isize
}

/// The C library's `clock_gettime`.
///
/// # Safety
/// `to` must be valid for the write of a timespec.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_gettime(clock: libc::clockid_t, to: *mut libc::timespec) -> libc::c_int {
    if !STARTED.load(Relaxed) {
        // SAFETY: passed on as it came.
        return unsafe { libc::syscall(libc::SYS_clock_gettime, clock, to) as libc::c_int };
    }
    let wall = matches!(clock, libc::CLOCK_REALTIME | libc::CLOCK_REALTIME_COARSE);
    let now = NOW_NS.load(Relaxed) + if wall { EPOCH_NS } else { BOOT_NS };
    let time = libc::timespec {
        tv_sec: (now / 1_000_000_000) as libc::time_t,
        tv_nsec: (now % 1_000_000_000) as libc::c_long,
    };
    // SAFETY: by the caller's promise.
    unsafe { to.write(time) };
    0
}
