//! The manifest that follows from a prefix of the log.

use super::log::{EntryKind, NO_SST};
use super::{GENERATIONS, KEYS, SSTS, State};
use crate::Mutant;

/// A state of the manifest. Version 1 is the beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Manifest {
    pub version: u8,
    /// Memtables that are durable as SSTables: a set (of generations in order, unless a mutant is at work).
    pub flushed: u8,
    pub last_flush: u8,
    /// The version that a load made; 0: none did.
    pub loaded: u8,
    count: u8,
    /// Newest first.
    tables: [u8; SSTS],
    flushes: [(u8, u8); GENERATIONS],
    flush_count: u8,
}

impl Manifest {
    fn start(preloaded: bool) -> Self {
        let (tables, flushes) = ([0; SSTS], [(1, 0); GENERATIONS]);
        let one = u8::from(preloaded);
        let loaded = 0;
        Self {
            version: 1,
            flushed: 0,
            last_flush: one,
            loaded,
            count: one,
            tables,
            flushes,
            flush_count: one,
        }
    }

    pub fn tables(&self) -> &[u8] {
        &self.tables[..usize::from(self.count)]
    }

    pub fn is_flushed(&self, generation: u8) -> bool {
        self.flushed & (1 << generation) != 0
    }

    /// The memtable whose flag comes next.
    pub fn next_to_flush(&self) -> u8 {
        (1..).find(|g| !self.is_flushed(*g)).unwrap_or(1)
    }

    /// (version that it made, its table), oldest first.
    pub fn flushes(&self) -> &[(u8, u8)] {
        &self.flushes[..usize::from(self.flush_count)]
    }

    /// Flags of one table go strictly in freeze order; one for a memtable that was flushed already is ignored.
    fn flush(&mut self, generation: u8, sst: u8, in_any_order: bool) {
        let fits =
            if in_any_order { !self.is_flushed(generation) } else { generation == self.next_to_flush() };
        if !fits {
            return;
        }
        self.version += 1;
        self.flushed |= 1 << generation;
        self.last_flush = self.version;
        if sst != NO_SST {
            self.tables.copy_within(0..usize::from(self.count), 1);
            self.tables[0] = sst;
            self.count += 1;
        }
        self.flushes[usize::from(self.flush_count)] = (self.version, sst);
        self.flush_count += 1;
    }

    /// Memtables and tables are gone, and there is nothing but what was loaded.
    fn load(&mut self, generation: u8, sst: u8) {
        self.version += 1;
        (1..=generation).for_each(|g| self.flushed |= 1 << g);
        (self.last_flush, self.loaded) = (self.version, self.version);
        (self.count, self.tables[0]) = (u8::from(sst != NO_SST), if sst == NO_SST { 0 } else { sst });
        self.flushes[usize::from(self.flush_count)] = (self.version, sst);
        self.flush_count += 1;
    }

    /// Applies only if all inputs are in the manifest, next to each other. (What reached down to the oldest table when it was planned, and
    /// dropped tombstones, still does: nothing older comes.)
    fn merge(&mut self, inputs: u8, output: u8) {
        let is_input = |sst: &u8| inputs & (1 << sst) != 0;
        let tables = self.tables();
        let Some(start) = tables.iter().position(is_input) else { return };
        let n = tables[start..].iter().take_while(|s| is_input(s)).count();
        if n != inputs.count_ones() as usize {
            return;
        }
        let rest: Vec<u8> = tables[start + n..].to_vec();
        let kept = tables[..start].to_vec();
        let output = (output != NO_SST).then_some(output);
        self.version += 1;
        self.count = 0;
        for sst in kept.into_iter().chain(output).chain(rest) {
            self.tables[usize::from(self.count)] = sst;
            self.count += 1;
        }
    }
}

/// How the rules read the log.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reading {
    pub flags_in_any_order: bool,
}

impl Reading {
    pub fn of(mutant: Option<Mutant>) -> Self {
        Self { flags_in_any_order: mutant == Some(Mutant::FlagsOutOfOrder) }
    }
}

fn names_a_table(kind: EntryKind) -> bool {
    matches!(kind, EntryKind::Flush | EntryKind::Merge | EntryKind::Load)
}

impl State {
    fn manifests(&self, up_to: u8, reading: Reading, mut until: impl FnMut(&Manifest) -> bool) -> Manifest {
        let mut manifest = Manifest::start(self.preloaded != super::Cell::NOTHING);
        for (at, entry) in self.entries() {
            if at > up_to || until(&manifest) {
                break;
            }
            match entry.kind {
                EntryKind::Flush => {
                    manifest.flush(entry.generation, entry.sst, reading.flags_in_any_order);
                }
                EntryKind::Merge => manifest.merge(entry.inputs, entry.sst),
                EntryKind::Load => manifest.load(entry.generation, entry.sst),
                _ => {}
            }
        }
        manifest
    }

    /// As of a position.
    pub fn manifest_at(&self, position: u8, reading: Reading) -> Manifest {
        self.manifests(position, reading, |_| false)
    }

    /// The manifest of a version that somebody has seen (so it is committed).
    pub fn manifest_of(&self, version: u8, reading: Reading) -> Manifest {
        self.manifests(self.committed, reading, |m| m.version == version)
    }

    /// An id for a new table: the first that neither the log nor a job names.
    pub fn free_sst(&self) -> Option<u8> {
        let in_log = |sst: u8| self.entries().any(|(_, e)| names_a_table(e.kind) && e.sst == sst);
        let in_job = |sst: u8| self.jobs.iter().any(|j| j.phase != super::JobPhase::None && j.sst == sst);
        (1..SSTS as u8).find(|sst| !in_log(*sst) && !in_job(*sst))
    }

    /// Forgets the contents of tables that nobody can name any more.
    pub fn forget_orphans(&mut self) {
        for sst in 1..SSTS as u8 {
            let named = self.entries().any(|(_, e)| names_a_table(e.kind) && e.sst == sst)
                || self.jobs.iter().any(|j| j.phase != super::JobPhase::None && j.sst == sst);
            if !named {
                self.ssts[usize::from(sst)] = [super::Cell::NOTHING; KEYS];
            }
        }
    }
}
