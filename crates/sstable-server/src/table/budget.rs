//! One budget in bytes for all that tables keep in memory: *sections* (indexes, filters, dictionaries), and blocks, which have
//! what sections leave.
//!
//! A section is loaded when it is needed. Room for it is taken before it is read, and given back when the last reader lets go
//! of it: so whatever is being loaded, or was evicted under a reader, is counted too. Sections go by a clock with a second
//! chance: its hand moves when there is no room, and as blocks come in ([`Budget::age`]), so that what nobody uses makes room
//! for blocks; but a section outlives blocks of several times its size, because what replaces it is one read of all of it.
//!
//! Invariants: sections and blocks together never have more bytes than the budget, but for what every open table keeps
//! ([`Kind::Table`]), and one section at a time that is larger than all that sections may have. Whoever waits for room holds no
//! section: so somebody always goes on.

use std::any::Any;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Condvar, Mutex, MutexGuard};

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    Index,
    Filter,
    Dictionary,
    /// What stays as long as a table is open, whatever the budget is; also a filter that its file does not have.
    Table,
}

impl Kind {
    pub const ALL: [Kind; 4] = [Kind::Index, Kind::Filter, Kind::Dictionary, Kind::Table];
    /// What comes and goes.
    pub const SECTIONS: [Kind; 3] = [Kind::Index, Kind::Filter, Kind::Dictionary];

    /// As metrics name it.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Index => "index",
            Kind::Filter => "filter",
            Kind::Dictionary => "dictionary",
            Kind::Table => "table",
        }
    }
}

/// Blocks always have one part in so many.
const BLOCKS_PART: u64 = 8;
/// What blocks may have changes by one part in so many: their cache is told seldom.
const STEPS: u64 = 64;
/// A section that is not used while blocks of so many times its bytes (and of all others') come in goes.
const PREFERENCE: u64 = 8;
/// Places of the clock that may be empty, beside as many as are taken.
const EMPTY_PLACES: usize = 64;

/// A place for a section, which can be emptied.
pub(super) trait Evictable: Send + Sync {
    /// Whether it was used since the last question.
    fn was_used(&self) -> bool;
    fn evict(&self) -> Option<Evicted>;
    fn bytes(&self) -> u64;
}

/// To be dropped without the lock: that gives its room back.
pub(super) type Evicted = Arc<dyn Any + Send + Sync>;

/// A lock is held neither while bytes are read nor while a section is dropped.
#[derive(Default)]
struct State {
    /// Without blocks.
    used: [u64; Kind::ALL.len()],
    clock: VecDeque<Arc<dyn Evictable>>,
    /// A section that is too large for the budget is in use.
    oversized: bool,
    /// What blocks may have; 0: not said yet.
    blocks_max: u64,
    /// Bytes of blocks that came in since the clock's hand moved for them.
    aging: u64,
}

/// See the module's head.
pub(super) struct Budget {
    capacity: u64,
    /// All that sections may have.
    sections_max: u64,
    state: Mutex<State>,
    given_back: Condvar,
    /// Bytes of blocks that came in, and are not in [`State::aging`] yet.
    came_in: AtomicU64,
}

impl std::fmt::Debug for Budget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Budget({})", self.capacity)
    }
}

/// Whoever is told what blocks may have.
pub(super) trait Blocks {
    fn set_capacity(&self, bytes: u64);
    fn used_bytes(&self) -> u64;
}

impl State {
    fn used(&self) -> u64 {
        self.used.iter().sum()
    }

    fn fixed(&self) -> u64 {
        self.used[Kind::Table as usize]
    }

    /// Empties the next place that was not used since the hand came by; after one round any that is not empty.
    fn evict(&mut self) -> Option<Evicted> {
        let places = self.clock.len();
        for passed in 0..2 * places {
            let place = self.clock.pop_front()?;
            if place.was_used() && passed < places {
                self.clock.push_back(place);
            } else if let Some(evicted) = place.evict() {
                return Some(evicted);
            }
        }
        None
    }
}

impl Budget {
    pub fn new(capacity: u64) -> Self {
        Self {
            capacity,
            sections_max: capacity - capacity / BLOCKS_PART,
            state: Mutex::default(),
            given_back: Condvar::new(),
            came_in: AtomicU64::new(0),
        }
    }

    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Waits until there is room for a section; evicts others for it. True: it is larger than all that sections may have, and is
    /// the only such one until it is given back; it is not to be kept.
    pub fn take(&self, kind: Kind, bytes: u64, blocks: &dyn Blocks) -> bool {
        let mut state = self.state.lock();
        loop {
            if state.used() + bytes <= self.sections_max {
                state.used[kind as usize] += bytes;
                self.tell(&mut state, blocks);
                return false;
            }
            if state.fixed() + bytes > self.sections_max {
                if !state.oversized {
                    state.oversized = true;
                    return true;
                }
            } else if let Some(evicted) = state.evict() {
                MutexGuard::unlocked(&mut state, || drop(evicted));
                continue;
            }
            self.given_back.wait(&mut state);
        }
    }

    /// Counts what has to be kept, whether there is room for it or not.
    pub fn add(&self, kind: Kind, bytes: u64, blocks: &dyn Blocks) {
        let mut state = self.state.lock();
        state.used[kind as usize] += bytes;
        self.tell(&mut state, blocks);
    }

    pub fn give_back(&self, kind: Kind, bytes: u64, blocks: &dyn Blocks) {
        let mut state = self.state.lock();
        state.used[kind as usize] -= bytes;
        self.tell(&mut state, blocks);
        self.given_back.notify_all();
    }

    pub fn give_back_oversized(&self) {
        self.state.lock().oversized = false;
        self.given_back.notify_all();
    }

    /// A place was filled, and may be emptied from now on.
    pub fn keep(&self, place: Arc<dyn Evictable>) {
        let mut state = self.state.lock();
        if state.clock.len() >= state.clock.capacity().max(EMPTY_PLACES) {
            // Places of tables that are gone.
            state.clock.retain(|place| place.bytes() > 0);
            let as_many = state.clock.len() + EMPTY_PLACES;
            state.clock.reserve(as_many);
        }
        state.clock.push_back(place);
        // Whoever waits may evict it.
        self.given_back.notify_all();
    }

    /// A block came in. Once blocks have all that they may, sections that nobody uses go for them.
    pub fn age(&self, bytes: u64, blocks: &dyn Blocks) {
        let step = (self.capacity / STEPS).max(1);
        if self.came_in.fetch_add(bytes, Ordering::Relaxed) + bytes < step {
            return;
        }
        let came_in = self.came_in.swap(0, Ordering::Relaxed);
        let blocks_bytes = blocks.used_bytes();
        let mut gone = Vec::new();
        let mut state = self.state.lock();
        if blocks_bytes + 2 * step < state.blocks_max {
            return;
        }
        state.aging += came_in;
        for _ in 0..state.clock.len() {
            let Some(place) = state.clock.front().cloned() else { break };
            let Some(left) = state.aging.checked_sub(PREFERENCE * place.bytes()) else { break };
            state.aging = left;
            state.clock.pop_front();
            if place.was_used() {
                state.clock.push_back(place);
            } else {
                gone.extend(place.evict());
            }
        }
        if state.clock.is_empty() {
            state.aging = 0;
        }
        drop(state);
        drop(gone);
    }

    /// Blocks have what is left, in steps: more only if it is much, less at once.
    fn tell(&self, state: &mut State, blocks: &dyn Blocks) {
        let step = (self.capacity / STEPS).max(1);
        let left = self.capacity.saturating_sub(state.used().div_ceil(step) * step);
        let blocks_max = left.max(self.capacity / BLOCKS_PART);
        if state.blocks_max != blocks_max {
            state.blocks_max = blocks_max;
            blocks.set_capacity(blocks_max);
        }
    }

    pub fn used_bytes(&self, kind: Kind) -> u64 {
        self.state.lock().used[kind as usize]
    }

    /// Of sections and blocks, at one moment.
    #[cfg(test)]
    pub fn used_now(&self, blocks: &dyn Blocks) -> u64 {
        let state = self.state.lock();
        state.used() - state.fixed() + blocks.used_bytes()
    }
}

#[cfg(test)]
mod tests;
