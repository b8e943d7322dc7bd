//! A section of an open table (its top index block, its filter, its dictionary): in memory if there is room, read again if not.
//!
//! Invariants: one thread at a time reads a section of a table. What was evicted stays with whoever has it, and counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arc_swap::{ArcSwapOption, Guard};
use parking_lot::Mutex;
use sextant_common::error::Result;

use super::block_cache::BlockCache;
use super::budget::{Evictable, Evicted, Kind};

/// Bytes of a section beyond what it holds: its place in the clock, counters.
const SECTION_BYTES: u64 = 128;

/// Room in the budget; given back when dropped.
pub(super) struct Charge {
    cache: Arc<BlockCache>,
    kind: Kind,
    bytes: u64,
    /// Too large for the budget: not counted.
    oversized: bool,
}

impl Charge {
    /// Waits until there is room.
    pub fn take(cache: &Arc<BlockCache>, kind: Kind, bytes: u64) -> Self {
        let (budget, blocks) = cache.budget();
        let oversized = budget.take(kind, bytes, blocks);
        Self { cache: cache.clone(), kind, bytes, oversized }
    }

    /// For what has to be kept in any case.
    pub fn add(cache: &Arc<BlockCache>, kind: Kind, bytes: u64) -> Self {
        let (budget, blocks) = cache.budget();
        budget.add(kind, bytes, blocks);
        Self { cache: cache.clone(), kind, bytes, oversized: false }
    }

    /// Keeps so many bytes.
    fn shrink(&mut self, bytes: u64) {
        let too_many = self.bytes.saturating_sub(bytes);
        if too_many > 0 && !self.oversized {
            let (budget, blocks) = self.cache.budget();
            budget.give_back(self.kind, too_many, blocks);
        }
        self.bytes -= too_many;
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let (budget, blocks) = self.cache.budget();
        match self.oversized {
            true => budget.give_back_oversized(),
            false => budget.give_back(self.kind, self.bytes, blocks),
        }
    }
}

/// A section in memory.
pub(super) struct Loaded<T> {
    pub part: T,
    _charge: Charge,
}

/// Whether what had to be read stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keep {
    IfThereIsRoom,
    No,
}

/// A section's place.
pub(super) struct Section<T> {
    kind: Kind,
    loaded: ArcSwapOption<Loaded<T>>,
    used: AtomicBool,
    /// What it has in memory; 0: nothing. (For whoever must not drop it.)
    bytes: AtomicU64,
    /// Held by whoever reads it.
    loading: Mutex<()>,
}

impl<T: Send + Sync + 'static> Section<T> {
    pub fn new(kind: Kind) -> Arc<Self> {
        let (loaded, used, bytes) = (ArcSwapOption::empty(), AtomicBool::new(false), AtomicU64::new(0));
        Arc::new(Self { kind, loaded, used, bytes, loading: Mutex::new(()) })
    }

    /// If it is in memory.
    #[inline]
    pub fn get(&self) -> Guard<Option<Arc<Loaded<T>>>> {
        let loaded = self.loaded.load();
        if !self.used.load(Ordering::Relaxed) {
            self.used.store(true, Ordering::Relaxed);
        }
        loaded
    }

    /// `bytes`: what reading it takes at most. `read`: it, and how many bytes it has in memory.
    pub fn get_or_read(
        self: &Arc<Self>,
        cache: &Arc<BlockCache>,
        keep: Keep,
        bytes: u64,
        read: impl FnOnce() -> Result<(T, u64)>,
    ) -> Result<Arc<Loaded<T>>> {
        if let Some(loaded) = &*self.get() {
            return Ok(loaded.clone());
        }
        let _one = self.loading.lock();
        if let Some(loaded) = &*self.get() {
            return Ok(loaded.clone());
        }
        let mut charge = Charge::take(cache, self.kind, bytes + SECTION_BYTES);
        cache.count_load(self.kind);
        let (part, bytes) = read()?;
        charge.shrink(bytes + SECTION_BYTES);
        let (bytes, is_kept) = (charge.bytes, keep == Keep::IfThereIsRoom && !charge.oversized);
        let loaded = Arc::new(Loaded { part, _charge: charge });
        if is_kept {
            self.bytes.store(bytes, Ordering::Relaxed);
            self.loaded.store(Some(loaded.clone()));
            cache.budget().0.keep(self.clone());
        }
        Ok(loaded)
    }

    /// Its table is gone.
    pub fn clear(&self) {
        self.bytes.store(0, Ordering::Relaxed);
        self.loaded.store(None);
    }
}

impl<T: Send + Sync + 'static> Evictable for Section<T> {
    fn was_used(&self) -> bool {
        self.used.swap(false, Ordering::Relaxed)
    }

    fn evict(&self) -> Option<Evicted> {
        self.bytes.store(0, Ordering::Relaxed);
        Some(self.loaded.swap(None)?)
    }

    fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}
