//! The cable, where the kernel cannot delay: frames that enter at one interface leave at the other some time later.
//!
//! One thread, which the scheduler prefers to all others if it may: the delay is to be the line's, not the machine's.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use sextant_environment::Env;

use super::delay::{DelayLine, Quality};
use super::tap::{FRAME_BYTES_MAX, Tap};

/// How often it looks whether it is to end.
const LOOK_AGAIN_NS: u64 = 20_000_000;
/// Frames that are taken before those that are due are looked at.
const AT_ONCE: usize = 64;

/// What a timer may be late by: more is the machine's doing.
const LATE_NS: u64 = 500_000;

/// What went through, both directions together.
#[derive(Debug, Default)]
pub struct Passed {
    pub frames: AtomicU64,
    pub lost: AtomicU64,
    /// By more than [`LATE_NS`].
    late: AtomicU64,
    late_ns_max: AtomicU64,
}

impl Passed {
    fn count(&self, late_ns: u64) {
        self.frames.fetch_add(1, Ordering::Relaxed);
        self.late.fetch_add(u64::from(late_ns > LATE_NS), Ordering::Relaxed);
        self.late_ns_max.fetch_max(late_ns, Ordering::Relaxed);
    }

    pub fn line(&self) -> String {
        let of = |n: &AtomicU64| n.load(Ordering::Relaxed);
        let frames = of(&self.frames);
        format!(
            "{frames} frames crossed, {} were lost; {:.1} % were late by more than {} us, by {:.1} ms at most",
            of(&self.lost),
            of(&self.late) as f64 / frames.max(1) as f64 * 100.0,
            LATE_NS / 1_000,
            of(&self.late_ns_max) as f64 / 1e6
        )
    }
}

/// Ends when it is dropped, and its interfaces with it.
pub struct Pump {
    stop: Arc<AtomicBool>,
    pub passed: Arc<Passed>,
}

impl Pump {
    pub fn start(env: &Env, taps: [Tap; 2], quality: Quality) -> Self {
        let (stop, passed) = (Arc::new(AtomicBool::new(false)), Arc::new(Passed::default()));
        let lines = taps.map(|tap| (tap, DelayLine::new(quality, env.rng.clone())));
        let work = carry(env.clone(), lines, stop.clone(), passed.clone());
        env.workers.dedicated("line", Box::pin(work));
        Self { stop, passed }
    }
}

impl Drop for Pump {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
    }
}

/// Each interface with what has entered there.
async fn carry(env: Env, mut ends: [(Tap, DelayLine); 2], stop: Arc<AtomicBool>, passed: Arc<Passed>) {
    prefer_this_thread();
    let mut buffer = vec![0; FRAME_BYTES_MAX];
    while !stop.load(Ordering::SeqCst) {
        let mut busy = false;
        for (tap, line) in &mut ends {
            for _ in 0..AT_ONCE {
                let Ok(Some(bytes)) = tap.read(&mut buffer) else { break };
                busy = true;
                if !line.push(env.clock.holder_ns(), &buffer[..bytes]) {
                    passed.lost.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        let [(tap_a, line_a), (tap_b, line_b)] = &mut ends;
        for (line, to) in [(line_a, tap_b), (line_b, tap_a)] {
            let now_ns = env.clock.holder_ns();
            while let Some((due_ns, frame)) = line.pop(now_ns) {
                passed.count(now_ns - due_ns);
                if !to.write(&frame) {
                    passed.lost.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        if !busy {
            let next_ns = ends.iter().filter_map(|(_, line)| line.next_ns()).min();
            let now_ns = env.clock.holder_ns();
            let ns = next_ns.map_or(LOOK_AGAIN_NS, |ns| ns.saturating_sub(now_ns)).min(LOOK_AGAIN_NS);
            wait([ends[0].0.fd(), ends[1].0.fd()], ns);
        }
    }
}

/// Until a frame enters, or so long.
fn wait(fds: [libc::c_int; 2], ns: u64) {
    let mut polled = fds.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
    let time = libc::timespec { tv_sec: 0, tv_nsec: ns.min(999_999_999) as libc::c_long };
    // SAFETY: two descriptors and a time, all valid for the call. Whatever it says, the caller looks.
    unsafe { libc::ppoll(polled.as_mut_ptr(), 2, &time, std::ptr::null()) };
}

/// Without the right to it, the delay is less even: the run says how much.
fn prefer_this_thread() {
    let first = libc::sched_param { sched_priority: 1 };
    // SAFETY: 0 is this thread; the parameters are valid for the calls.
    unsafe {
        if libc::sched_setscheduler(0, libc::SCHED_FIFO, &first) != 0 {
            libc::setpriority(libc::PRIO_PROCESS, 0, -20);
        }
        libc::prctl(libc::PR_SET_TIMERSLACK, 1 as libc::c_ulong);
    }
}
