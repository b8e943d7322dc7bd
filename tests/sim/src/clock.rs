//! True time, and what hosts see of it: through an offset, a drift, jumps and freezes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;
use sextant_environment::Clock;
use sextant_environment::clock::WallInterval;

use crate::interpose::{self, EPOCH_NS};

/// True time since the start of the run.
#[derive(Default)]
pub struct TrueTime {
    now_ns: AtomicU64,
    /// A host's code is running, so turmoil knows the time within the step.
    stepping: AtomicBool,
}

impl TrueTime {
    /// In nanoseconds.
    pub fn now_ns(&self) -> u64 {
        let within = if self.stepping.load(Relaxed) { turmoil::sim_elapsed() } else { None };
        within.map_or_else(|| self.now_ns.load(Relaxed), |d| d.as_nanos() as u64)
    }

    /// Around each step of the simulation, which begins at `now_ns`.
    pub fn step<T>(&self, now_ns: u64, step: impl FnOnce() -> T) -> T {
        self.step_idle(now_ns);
        self.stepping.store(true, Relaxed);
        let result = step();
        self.stepping.store(false, Relaxed);
        result
    }

    /// When the current step began.
    pub fn last_step_ns(&self) -> u64 {
        self.now_ns.load(Relaxed)
    }

    /// Between two steps.
    pub fn step_idle(&self, now_ns: u64) {
        self.now_ns.store(now_ns, Relaxed);
        interpose::set_now_ns(now_ns);
    }
}

/// How good a host's clocks are.
#[derive(Clone, Copy, Debug)]
pub struct ClockQuality {
    /// Drift of MONOTONIC_RAW and of BOOTTIME against true time, in parts per million.
    pub raw_ppm: i64,
    pub boot_ppm: i64,
    /// Error of the wall clock, and the bound that it claims; None: unsynchronised.
    pub wall_error_ns: i64,
    pub wall_bound_ns: Option<u64>,
    /// Whether the bound may be wrong: then an error beyond it is not admitted.
    pub lies: bool,
}

/// A host's clocks.
pub struct SimClock {
    time: Arc<TrueTime>,
    state: Mutex<State>,
}

struct State {
    quality: ClockQuality,
    /// What the monotonic clocks showed at true time 0.
    offset_ns: u64,
    /// The true time at which all clocks of the host stand still.
    frozen_at_ns: Option<u64>,
}

impl SimClock {
    pub fn new(time: Arc<TrueTime>, quality: ClockQuality, offset_ns: u64) -> Self {
        Self { time, state: Mutex::new(State { quality, offset_ns, frozen_at_ns: None }) }
    }

    fn true_ns(&self, state: &State) -> u64 {
        let now = self.time.now_ns();
        state.frozen_at_ns.map_or(now, |at| at.min(now))
    }

    /// All clocks stand still, or go on from the true time.
    pub fn freeze(&self, freeze: bool) {
        let mut state = self.state.lock();
        state.frozen_at_ns = if freeze { Some(self.true_ns(&state)) } else { None };
    }

    /// The wall clock is set: its error changes by so much.
    pub fn jump_wall(&self, by_ns: i64) {
        let mut state = self.state.lock();
        state.quality.wall_error_ns = state.quality.wall_error_ns.saturating_add(by_ns);
    }

    /// The host's machine was switched off and on: its monotonic clocks start elsewhere.
    pub fn reboot(&self, offset_ns: u64) {
        self.state.lock().offset_ns = offset_ns;
    }

    /// What `holder_ns` shows at a true time, for invariants. A pause does not count: whoever is paused does nothing with the
    /// time that it shows.
    pub fn holder_at_ns(&self, true_ns: u64) -> u64 {
        let state = self.state.lock();
        monotonic(&state, true_ns, state.quality.raw_ppm.max(state.quality.boot_ppm))
    }
}

fn monotonic(state: &State, true_ns: u64, ppm: i64) -> u64 {
    state.offset_ns + (i128::from(true_ns) * i128::from(1_000_000 + ppm) / 1_000_000) as u64
}

impl Clock for SimClock {
    fn wall(&self) -> WallInterval {
        let state = self.state.lock();
        let q = state.quality;
        let Some(bound) = q.wall_bound_ns else { return WallInterval::UNSYNCHRONISED };
        if q.wall_error_ns.unsigned_abs() > bound && !q.lies {
            return WallInterval::UNSYNCHRONISED;
        }
        let shown = (EPOCH_NS + self.true_ns(&state)).saturating_add_signed(q.wall_error_ns);
        WallInterval { earliest_ns: shown - bound, latest_ns: shown + bound }
    }

    fn wall_guess_ns(&self) -> u64 {
        let state = self.state.lock();
        (EPOCH_NS + self.true_ns(&state)).saturating_add_signed(state.quality.wall_error_ns)
    }

    fn holder_ns(&self) -> u64 {
        let state = self.state.lock();
        monotonic(&state, self.true_ns(&state), state.quality.raw_ppm.max(state.quality.boot_ppm))
    }

    fn grantor_ns(&self) -> u64 {
        let state = self.state.lock();
        monotonic(&state, self.true_ns(&state), state.quality.raw_ppm.min(state.quality.boot_ppm))
    }
}

/// True time itself: for histories.
pub struct TrueClock(pub Arc<TrueTime>);

impl Clock for TrueClock {
    fn wall(&self) -> WallInterval {
        let now = EPOCH_NS + self.0.now_ns();
        WallInterval { earliest_ns: now, latest_ns: now }
    }

    fn wall_guess_ns(&self) -> u64 {
        EPOCH_NS + self.0.now_ns()
    }

    fn holder_ns(&self) -> u64 {
        self.0.now_ns()
    }

    fn grantor_ns(&self) -> u64 {
        self.0.now_ns()
    }
}
