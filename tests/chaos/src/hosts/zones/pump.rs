//! The cable, where the kernel cannot delay: frames that enter at one interface leave at the other some time later.
//!
//! One thread, which the scheduler prefers to all others if it may: the delay is to be the line's, not the machine's.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use sextant_environment::Env;
use sextant_environment::rng::{Rng, SeededRng};

use super::delay::{DelayLine, Quality};
use super::tap::{FRAME_BYTES_MAX, Tap};

/// How often it looks whether it is to end.
const LOOK_AGAIN_NS: u64 = 20_000_000;
/// Frames that are taken before those that are due are looked at.
const AT_ONCE: usize = 64;

/// What a timer may be late by: more is the machine's doing.
const LATE_NS: u64 = 500_000;

/// What went through, all cables and both directions together.
#[derive(Debug, Default)]
pub struct Passed {
    frames: AtomicU64,
    /// On the way, as the cable's quality has it.
    lost: AtomicU64,
    /// By the far end: it is down, or its queue is full.
    refused: AtomicU64,
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
            "{frames} frames crossed, {} were lost, {} found the far end cut off; \
             {:.1} % were late by more than {} us, by {:.1} ms at most",
            of(&self.lost),
            of(&self.refused),
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

/// Both ends of a cable, and what each direction does to frames.
pub struct Cable {
    pub taps: [Tap; 2],
    pub quality: Quality,
}

impl Pump {
    /// `seed`: of what is lost and how late the rest is.
    pub fn start(env: &Env, cables: Vec<Cable>, seed: u64) -> Self {
        let (stop, passed) = (Arc::new(AtomicBool::new(false)), Arc::new(Passed::default()));
        let rng: Arc<dyn Rng> = Arc::new(SeededRng::new(seed));
        let line = |quality| DelayLine::new(quality, rng.clone());
        let ends = cables.into_iter().map(|cable| cable.taps.map(|tap| (tap, line(cable.quality)))).collect();
        let work = carry(env.clone(), ends, stop.clone(), passed.clone());
        env.workers.dedicated("line", Box::pin(work));
        Self { stop, passed }
    }
}

impl Drop for Pump {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
    }
}

/// Of each cable: each interface with what has entered there.
async fn carry(env: Env, mut cables: Vec<[(Tap, DelayLine); 2]>, stop: Arc<AtomicBool>, passed: Arc<Passed>) {
    prefer_this_thread();
    let mut buffer = vec![0; FRAME_BYTES_MAX];
    let watched = cables.iter().flatten().map(|(tap, _)| tap.fd());
    let mut polled: Vec<_> =
        watched.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 }).collect();
    while !stop.load(Ordering::SeqCst) {
        let mut busy = false;
        for [end_a, end_b] in &mut cables {
            for (tap, line) in [&mut *end_a, &mut *end_b] {
                for _ in 0..AT_ONCE {
                    let Ok(Some(bytes)) = tap.read(&mut buffer) else { break };
                    busy = true;
                    if !line.push(env.clock.holder_ns(), &buffer[..bytes]) {
                        passed.lost.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
            let (tap_a, line_a) = end_a;
            let (tap_b, line_b) = end_b;
            for (line, to) in [(line_a, tap_b), (line_b, tap_a)] {
                let now_ns = env.clock.holder_ns();
                while let Some((due_ns, frame)) = line.pop(now_ns) {
                    passed.count(now_ns - due_ns);
                    if !to.write(&frame) {
                        passed.refused.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
        }
        if !busy {
            let next_ns = cables.iter().flatten().filter_map(|(_, line)| line.next_ns()).min();
            let now_ns = env.clock.holder_ns();
            let ns = next_ns.map_or(LOOK_AGAIN_NS, |ns| ns.saturating_sub(now_ns)).min(LOOK_AGAIN_NS);
            wait(&mut polled, ns);
        }
    }
}

/// Until a frame enters, or so long.
fn wait(polled: &mut [libc::pollfd], ns: u64) {
    let time = libc::timespec { tv_sec: 0, tv_nsec: ns.min(999_999_999) as libc::c_long };
    // SAFETY: as many descriptors as it says, and a time, all valid for the call. Whatever it says, the caller looks.
    unsafe { libc::ppoll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, &time, std::ptr::null()) };
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
