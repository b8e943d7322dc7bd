//! A key in a memtable, found once: what is there, and what the writer does to it.

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use super::arena::{At, NOWHERE, Record, Writing};
use super::index::{self, Found};
use super::{KEY_BYTES, Memtable, NewVersion, Seen, VERSION_BYTES, versions};

/// Where a key is in a memtable, or would be.
#[derive(Debug)]
pub struct Slot<'m, 'k> {
    memtable: &'m Memtable,
    key: &'k [u8],
    hash: u64,
    record: Option<Record<'m>>,
    /// Of the record; [`NOWHERE`]: not known.
    place: At,
}

/// Where a key was found, or that it was not: for a write of it that comes later.
#[derive(Clone, Copy, Debug)]
pub struct Bookmark {
    /// Number of the memtable.
    memtable: u64,
    /// [`NOWHERE`]: it was not there.
    place: At,
}

impl<'m, 'k> Slot<'m, 'k> {
    pub(super) fn find(memtable: &'m Memtable, key: &'k [u8]) -> Self {
        let hash = index::hash(key);
        let (place, record) = match memtable.index.find(&memtable.arena, hash, key) {
            Found::Here(place, record) => (place, Some(record)),
            Found::Nowhere => (NOWHERE, None),
            Found::Unknown => (NOWHERE, memtable.order.find(&memtable.arena, key)),
        };
        Self { memtable, key, hash, record, place }
    }

    /// To write a key that was sought before. A bookmark of another memtable, or of another key, is as good as none.
    pub(super) fn at(memtable: &'m Memtable, key: &'k [u8], bookmark: &Bookmark) -> Self {
        if bookmark.memtable != memtable.number {
            return Self::find(memtable, key);
        }
        let place = bookmark.place;
        // That it came meanwhile is seen when it is added to the order.
        let record = (place != NOWHERE).then(|| memtable.arena.record(place));
        if record.is_some_and(|record| record.key() != key) {
            return Self::find(memtable, key);
        }
        Self { memtable, key, hash: index::hash(key), record, place }
    }

    /// None: it would have to be sought again.
    pub fn bookmark(&self) -> Option<Bookmark> {
        let is_known = self.record.is_none() || self.place != NOWHERE;
        is_known.then_some(Bookmark { memtable: self.memtable.number, place: self.place })
    }

    /// The newest version with a seq of at most `at`.
    pub fn newest_at(&self, at: u64) -> Option<Seen<'m>> {
        versions::newest(self.record?, at)
    }

    /// The newest version, published or not: for the sequencer only.
    pub fn newest(&self) -> Option<Seen<'m>> {
        self.newest_at(u64::MAX)
    }

    /// Adds a version, if there is none with this seq. `log_index` and `log_bytes` say where in the log it came from.
    pub fn insert(&mut self, seq: u64, new: NewVersion<'_>, log_index: u64, log_bytes: u64) {
        let memtable = self.memtable;
        let mut writing = memtable.arena.write();
        let is_new_key = self.record.is_none() && self.add_key(&mut writing, seq, &new);
        if is_new_key {
            add(&memtable.bytes, self.key_bytes());
        } else if let Some(record) = self.record {
            let had_versions = self.newest().is_some();
            if !versions::add(&mut writing, record, seq, &new) {
                return;
            }
            if !had_versions {
                // The key was left by a version that was removed.
                sub(&memtable.left_bytes, self.key_bytes());
                add(&memtable.bytes, self.key_bytes());
            }
        }
        add(&memtable.bytes, VERSION_BYTES + new.bytes());
        memtable.expiring.add(new.marks.expires_at());
        if memtable.is_empty() {
            memtable.first_index.store(log_index, Relaxed);
            memtable.first_log_bytes.store(log_bytes, Relaxed);
        }
        add(&memtable.entries, 1);
    }

    /// Adds a record for the key. False: another slot of this key did so meanwhile.
    fn add_key(&mut self, writing: &mut Writing<'m>, seq: u64, new: &NewVersion<'_>) -> bool {
        let Memtable { arena, order, index, .. } = self.memtable;
        let (at, record) = writing.put(new.record(Some(self.key), seq, NOWHERE));
        let here = order.insert(arena, &record);
        self.record = Some(here);
        if !here.is_same(&record) {
            return false;
        }
        self.place = at;
        // In the order first: who may miss it here looks there.
        index.insert(arena, self.hash, at);
        true
    }

    /// Takes a version back.
    pub(super) fn remove(&self, seq: u64) {
        let (memtable, Some(record)) = (self.memtable, self.record) else { return };
        let writing = memtable.arena.write();
        let Some(removed) = versions::remove(&writing, record, seq) else { return };
        let key_bytes = if self.newest().is_none() { self.key_bytes() } else { 0 };
        let removed = NewVersion { value: removed.value(), marks: removed.marks() };
        let bytes = VERSION_BYTES + removed.bytes() + key_bytes;
        sub(&memtable.bytes, bytes);
        add(&memtable.left_bytes, bytes);
        sub(&memtable.entries, 1);
        if memtable.is_empty() {
            memtable.first_index.store(0, Relaxed);
        }
    }

    fn key_bytes(&self) -> usize {
        KEY_BYTES + self.key.len()
    }
}

// Only the writer counts, so these need not be one step.

fn add(count: &AtomicUsize, more: usize) {
    count.store(count.load(Relaxed) + more, Relaxed);
}

fn sub(count: &AtomicUsize, less: usize) {
    count.store(count.load(Relaxed) - less, Relaxed);
}
