//! One table (LSM-tree) within a partition: its memtables and their filters.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use sextant_common::filter::LayeredBloom;
use sextant_common::ids::{Generation, LogPosition, ManifestVersion};

use crate::memtable::{Memtable, Version};

/// A memtable that a freeze ended and that is not yet durable as an SSTable.
#[derive(Debug)]
pub struct Frozen {
    pub memtable: Arc<Memtable>,
    pub filter: LayeredBloom,
    /// Position of the freeze entry.
    pub freeze: LogPosition,
}

/// A flushed memtable that still answers readers of manifest versions before its flush.
#[derive(Debug)]
pub struct Grace {
    pub memtable: Arc<Memtable>,
    /// The version that its flush made.
    pub flushed_at: ManifestVersion,
    /// When (grantor's clock).
    pub since_ns: u64,
}

#[derive(Debug)]
pub struct TableState {
    pub active: Arc<Memtable>,
    pub filter: LayeredBloom,
    /// Oldest first.
    pub frozen: VecDeque<Frozen>,
    /// Oldest first.
    pub grace: VecDeque<Grace>,
    /// Readers at an older version get `StaleManifest`: a memtable flushed at this version is gone.
    pub dropped_version: ManifestVersion,
    /// Memtables up to this generation are durable as SSTables: replay skips their writes.
    pub flushed_generation: Generation,
}

impl TableState {
    pub fn new(generation: Generation) -> Self {
        Self {
            active: Arc::new(Memtable::new(generation)),
            filter: LayeredBloom::new(),
            frozen: VecDeque::new(),
            grace: VecDeque::new(),
            dropped_version: ManifestVersion(0),
            flushed_generation: Generation(0),
        }
    }

    /// Of a table that was dropped, to which the log before that still writes: of none of its memtables anything is kept.
    pub fn gone(generation: Generation) -> Self {
        Self { flushed_generation: Generation(u64::MAX), ..Self::new(generation) }
    }

    /// Of the active memtable.
    pub fn generation(&self) -> Generation {
        self.active.generation
    }

    /// The newest appended version in any memtable that is not yet flushed.
    pub fn newest(&self, key: &Bytes) -> Option<Version> {
        self.active.newest(key).or_else(|| self.frozen.iter().rev().find_map(|f| f.memtable.newest(key)))
    }

    /// Removes a version of the active memtable: its entry was truncated. (Readers get a new view after a truncation.)
    pub fn take_back(&mut self, key: &[u8], seq: u64) {
        self.active.remove(key, seq);
        if self.active.is_empty() {
            // An empty memtable is not frozen: what removed versions leave would be held for ever.
            self.active = Arc::new(Memtable::new(self.generation()));
        }
    }

    /// Ends the active memtable.
    pub fn freeze(&mut self, at: LogPosition) {
        let next = self.active.successor();
        self.end_active(at, next);
    }

    /// Ends the active memtable, which is empty; numbers go on with this generation.
    pub fn jump(&mut self, at: LogPosition, next: Generation) {
        self.end_active(at, Memtable::new(next));
    }

    fn end_active(&mut self, at: LogPosition, next: Memtable) {
        let next = Arc::new(next);
        let memtable = std::mem::replace(&mut self.active, next);
        let filter = std::mem::take(&mut self.filter);
        self.frozen.push_back(Frozen { memtable, filter, freeze: at });
    }

    /// Undoes the newest freeze: the memtables are merged, the filters united. (The entries after the freeze were undone
    /// before it, so the active memtable is empty; only its filter can hold something.)
    pub fn unfreeze(&mut self) {
        if let Some(frozen) = self.frozen.pop_back() {
            debug_assert!(self.active.is_empty(), "entries after a truncated freeze are truncated before it");
            let later = std::mem::replace(&mut self.filter, frozen.filter);
            self.filter.union(later);
            self.active = frozen.memtable;
        }
    }

    /// Frozen memtables up to this generation are flushed, by this version: they go into their grace.
    pub fn end_frozen(&mut self, flushed: Generation, version: ManifestVersion, now_ns: u64) {
        self.flushed_generation = flushed;
        while self.frozen.front().is_some_and(|f| f.memtable.generation <= flushed) {
            let memtable = self.frozen.pop_front().map(|frozen| frozen.memtable);
            let grace = memtable.map(|memtable| Grace { memtable, flushed_at: version, since_ns: now_ns });
            self.grace.extend(grace);
        }
    }

    /// No reader of a version before this one is answered any more.
    pub fn end_grace(&mut self, version: ManifestVersion) {
        self.dropped_version = version;
        self.grace.clear();
    }

    /// Log index of the oldest entry that replay needs: it is only in memory. A frozen memtable that is empty still needs its
    /// freeze entry, because its flag is yet to come; an empty active one needs nothing.
    pub fn first_unflushed_index(&self) -> Option<u64> {
        match self.frozen.front() {
            Some(oldest) => Some(oldest.memtable.first_index().unwrap_or(oldest.freeze.index)),
            None => self.active.first_index(),
        }
    }

    /// Memory of what is not yet flushed, in bytes.
    pub fn unflushed_bytes(&self) -> usize {
        self.active.held_bytes() + self.frozen.iter().map(|f| f.memtable.held_bytes()).sum::<usize>()
    }
}
