//! A host's clocks: true time, seen through an offset, a drift, jumps and freezes.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use sextant_environment::Clock;
use sextant_environment::clock::WallInterval;

use crate::interpose::EPOCH_NS;
use crate::world::World;

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

pub struct SimClock {
    world: Weak<World>,
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
    pub fn new(world: &Arc<World>, quality: ClockQuality, offset_ns: u64) -> Self {
        Self {
            world: Arc::downgrade(world),
            state: Mutex::new(State { quality, offset_ns, frozen_at_ns: None }),
        }
    }

    fn true_ns(&self, state: &State) -> u64 {
        let now = self.world.upgrade().map_or(0, |w| w.now_ns());
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
pub struct TrueClock(pub Arc<World>);

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
