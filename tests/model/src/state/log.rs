//! The log, and what follows from it: memtables, the duplicate table, the value of a key at a position.

use sextant_common::expiry;

use super::{Cell, Keys, State, tick};

/// Entries that the log has room for.
pub const LOG: usize = 16;
/// No SSTable: nothing was left to write.
pub const NO_SST: u8 = 255;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum EntryKind {
    #[default]
    None,
    /// A leader's own first entry.
    First,
    Group,
    Freeze,
    Flush,
    Merge,
    /// By the time that it carries, the session of a request has expired.
    Forget,
    /// The leases' mode changes: acknowledged, timed, and back.
    Configure,
    /// A load is to come.
    Announce,
    /// Everything up to here is replaced by a table from outside.
    Load,
    /// The partition's time goes on.
    Tick,
}

impl EntryKind {
    fn ends_a_memtable(self) -> bool {
        matches!(self, EntryKind::Freeze | EntryKind::Load)
    }
}

/// A request in a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// 1 + the write; 0: none.
    pub who: u8,
    /// False: its condition failed, and the entry only records that.
    pub applied: bool,
    /// The leader that proposed it still leads, and will answer.
    pub waits: bool,
    /// Keys for which it left a bf-log entry.
    pub bits: Keys,
}

impl Asked {
    pub fn write(self) -> Option<usize> {
        (self.who != 0).then(|| usize::from(self.who) - 1)
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    pub kind: EntryKind,
    /// Group: the memtable that it went into. Freeze, load: the one that it ends. Flush: the one that is durable.
    pub generation: u8,
    /// Of its last bf-log entry, in the leader's epoch; 0: it waits for nobody.
    pub serial: u8,
    pub asked: [Asked; 2],
    pub sst: u8,
    /// Merge: of which tables. Forget: the requests, a set. Tick: the time.
    pub inputs: u8,
}

impl Entry {
    pub fn asked(&self) -> impl Iterator<Item = (usize, Asked)> {
        self.asked.into_iter().filter_map(|a| a.write().map(|w| (w, a)))
    }
}

/// A version of a key in a memtable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    pub at: u8,
    pub generation: u8,
    pub cell: Cell,
}

impl State {
    /// Entries with their positions, oldest first.
    pub fn entries(&self) -> impl DoubleEndedIterator<Item = (u8, &Entry)> {
        self.log[..usize::from(self.len)].iter().enumerate().map(|(i, e)| (i as u8 + 1, e))
    }

    /// False: the log has no more room (the bounds are too wide).
    pub fn append(&mut self, entry: Entry) -> bool {
        let at = usize::from(self.len);
        if at >= LOG {
            return false;
        }
        self.log[at] = entry;
        self.len += 1;
        true
    }

    /// Of the active memtable.
    pub fn generation(&self) -> u8 {
        self.generation_at(self.len)
    }

    /// Of the memtable that is active up to a position.
    pub fn generation_at(&self, position: u8) -> u8 {
        1 + self.entries().filter(|(at, e)| *at <= position && e.kind.ends_a_memtable()).count() as u8
    }

    /// Position of the freeze, or load, that ended a memtable.
    pub fn freeze_of(&self, generation: u8) -> Option<u8> {
        self.entries().find(|(_, e)| e.kind.ends_a_memtable() && e.generation == generation).map(|(at, _)| at)
    }

    /// The newest version of a key up to a position, in the memtables for which `searched` is true.
    pub fn newest(&self, key: usize, up_to: u8, searched: impl Fn(u8) -> bool) -> Option<Version> {
        let groups = self.entries().rev().filter(|(at, e)| *at <= up_to && e.kind == EntryKind::Group);
        groups.filter(|(_, e)| searched(e.generation)).find_map(|(at, e)| {
            let last = e.asked().filter(|(w, a)| a.applied && self.writes[*w].keys & (1 << key) != 0).last();
            last.map(|(w, _)| Version { at, generation: e.generation, cell: self.cell_of(w) })
        })
    }

    /// A key's value in the log up to a position: what an operation at that moment has to see.
    pub fn value_at(&self, key: usize, position: u8) -> Cell {
        let cell = self.record_at(key, position);
        if self.has_expired(cell, position) { Cell::NOTHING } else { cell }
    }

    /// Whether a record that was there at a position had expired by then: for good, whatever ticks follow. This is what operations are
    /// checked against.
    pub fn has_expired(&self, cell: Cell, position: u8) -> bool {
        let newest = || self.ticks(position).max().unwrap_or_default();
        self.expires_at(cell).is_some_and(|at| expiry::is_expired(Some(at), tick(newest())))
    }

    /// The ticks up to a position, oldest first.
    fn ticks(&self, position: u8) -> impl DoubleEndedIterator<Item = u8> {
        let up_to = self.entries().filter(move |(at, _)| *at <= position);
        up_to.filter(|(_, e)| e.kind == EntryKind::Tick).map(|(_, e)| e.inputs)
    }

    /// The time at a position, for whoever has the log up to there; 0: before the first tick.
    pub fn time_at(&self, position: u8) -> u8 {
        self.ticks(position).next_back().unwrap_or_default()
    }

    /// The record of a key, expired or not.
    fn record_at(&self, key: usize, position: u8) -> Cell {
        let load = self.entries().find(|(at, e)| e.kind == EntryKind::Load && *at <= position);
        match (self.newest(key, position, |_| true), load) {
            (Some(version), Some((at, load))) if version.at < at => self.loaded_cell(load.sst, key),
            (Some(version), _) => version.cell,
            (None, Some((_, load))) => self.loaded_cell(load.sst, key),
            (None, None) => self.preloaded,
        }
    }

    fn loaded_cell(&self, sst: u8, key: usize) -> Cell {
        if sst == NO_SST { Cell::NOTHING } else { self.ssts[usize::from(sst)][key] }
    }

    /// Whether a memtable holds anything.
    pub fn is_empty(&self, generation: u8) -> bool {
        !self.entries().any(|(_, e)| {
            e.kind == EntryKind::Group && e.generation == generation && e.asked().any(|(_, a)| a.applied)
        })
    }

    /// The duplicate table: whether an entry has a request, and how it went.
    pub fn remembered_in_log(&self, write: usize) -> Option<(u8, bool)> {
        self.entries().find_map(|(at, e)| e.asked().find(|(w, _)| *w == write).map(|(_, a)| (at, a.applied)))
    }

    /// Whether the session of a request is forgotten.
    pub fn is_forgotten(&self, write: usize) -> bool {
        self.entries().any(|(_, e)| e.kind == EntryKind::Forget && e.inputs & (1 << write) != 0)
    }

    /// Whether leases are timed, as far as the leader knows: then no acknowledgement ends one.
    pub fn is_timed(&self) -> bool {
        let known = self.log[..usize::from(self.known_committed)].iter();
        known.filter(|e| e.kind == EntryKind::Configure).count() % 2 == 1
    }

    /// The entries in which a write took effect.
    pub fn effects_of(&self, write: usize) -> impl Iterator<Item = u8> {
        self.entries().filter(move |(_, e)| e.asked().any(|(w, a)| w == write && a.applied)).map(|(at, _)| at)
    }
}
