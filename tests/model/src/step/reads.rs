//! A read: the consult, the memtable half, the SSTable half.

use sextant_common::expiry::Life;
use sextant_common::ids::ManifestVersion;
use sextant_memtable_server::partition::rules;
use sextant_pnode::ReadMode;
use sextant_pnode::rules::{Answer, Carry, Facts, Found, Progress, Step, carry_stamp, route};

use super::{Action, Protocol};
use crate::Mutant;
use crate::state::log::{EntryKind, NO_SST};
use crate::state::pnode::{Cached, Reader, Times};
use crate::state::registered::{Registration, Said};
use crate::state::{Cell, State};

fn found(cell: Cell) -> Found {
    match cell {
        c if c.is_value() => Found::Value,
        c if c.is_tombstone() => Found::Tombstone,
        _ => Found::NoEntry,
    }
}

impl Protocol {
    pub(super) fn read_actions(&self, s: &State, out: &mut Vec<Action>) {
        for pnode in 0..self.bounds.pnodes {
            let p = &s.pnodes[pnode];
            if self.bounds.scans {
                // (Others ask the leader, for all that it has of one position.)
                let trusted = p.lease.is_some() || p.epoch > 0 && self.is(Mutant::PrefixWithoutLease);
                if trusted && !p.in_filters(0) && !p.announced {
                    out.push(Action::Scan { pnode });
                }
                continue;
            }
            match p.reader {
                None => {
                    for key in 0..self.bounds.keys {
                        out.push(Action::Consult { pnode, key, precise: false });
                        if p.lease.is_some() {
                            out.push(Action::Consult { pnode, key, precise: true });
                        }
                    }
                }
                Some(reader) if reader.step == Step::AskSstables => out.push(Action::AskSstables { pnode }),
                Some(reader) => {
                    if self.registration_actions(s, pnode, &reader, out) {
                        continue;
                    }
                    if self.bounds.split_reads && reader.loaded == 0 {
                        out.push(Action::LoadPublished { pnode });
                    } else if self.serves(s) || self.is(Mutant::FreshLeaderReads) {
                        out.push(Action::AskMemtables { pnode });
                    }
                }
            }
        }
    }

    /// A scan of a prefix that no memtable's filter has: what the SSTables of the view have of it. They never change, so it does not
    /// matter when they are asked.
    pub(super) fn scan(&self, s: &mut State, pnode: usize) -> Result<(), String> {
        let (version, times) = (s.pnodes[pnode].manifest, s.pnodes[pnode].times);
        let cells: Vec<Cell> = (0..self.bounds.keys).map(|key| self.search(s, version, key, times)).collect();
        self.check_scan(s, &cells)
    }

    /// What the SSTables of a version say: newest first, the first that has the key ends the search.
    pub(super) fn search(&self, s: &State, version: u8, key: usize, times: Times) -> Cell {
        let manifest = self.manifest_of(s, version);
        let mut cells = manifest.tables().iter().map(|sst| s.ssts[usize::from(*sst)][key]);
        let past = self.is(Mutant::SearchPastTombstone);
        let skips = |c: Cell| self.is(Mutant::ExpiredIsNoEntry) && self.life(s, c, times) == Life::Expired;
        cells.find(|c| c.is_value() && !skips(*c) || (c.is_tombstone() && !past)).unwrap_or_default()
    }

    /// What a cached record is worth at the p-node's manifest.
    pub(super) fn carried(&self, s: &State, pnode: usize, key: usize) -> Carry {
        let p = &s.pnodes[pnode];
        let manifest = self.manifest_of(s, p.manifest);
        // What was loaded may lack what is in the cache.
        let is_flush = |at: u8| at != manifest.loaded || self.is(Mutant::StampOverLoad);
        let ruled_out = |sst: u8| {
            let swallowed = !manifest.tables().contains(&sst);
            let known = p.seen & (1u8.checked_shl(u32::from(sst)).unwrap_or(0)) != 0;
            match sst {
                NO_SST => true,
                _ if swallowed && self.is(Mutant::StampPastSwallowed) => true,
                // Its filter came while it was in a manifest, or not at all.
                _ if !known => false,
                _ => s.ssts[usize::from(sst)][key] == Cell::NOTHING,
            }
        };
        let version = |v: u8| ManifestVersion(u64::from(v));
        let ruled_out = |at: u8, sst: u8| move || is_flush(at) && ruled_out(sst);
        let flushes = manifest.flushes().iter().map(|(at, sst)| (version(*at), ruled_out(*at, *sst)));
        carry_stamp(
            version(p.cache[key].stamp),
            version(p.manifest),
            version(manifest.last_flush),
            version(0),
            flushes,
        )
    }

    pub(super) fn consult(
        &self,
        s: &mut State,
        pnode: usize,
        key: usize,
        precise: bool,
    ) -> Result<(), String> {
        let kept = self.kept(s, pnode, key, precise);
        if let Said::Value(_) | Said::Absent = kept {
            let got = if let Said::Value(value) = kept { value } else { Cell::NOTHING };
            match self.life(s, got, s.pnodes[pnode].times) {
                Life::Alive => return self.check_read(s, key, s.floor[key], got),
                Life::Expired if self.is(Mutant::KeptIsNotJudged) => {
                    return self.check_read(s, key, s.floor[key], got);
                }
                Life::Expired => return self.check_read(s, key, s.floor[key], Cell::NOTHING),
                // Only the leader can say.
                Life::Unknown => {}
            }
        }
        let unknown = kept != Said::Nothing && kept != Said::NoEntry;
        let no_entry = kept == Said::NoEntry;
        let cached = self.cached(s, pnode, key);
        match cached {
            Some((_, stamp)) => s.pnodes[pnode].cache[key].stamp = stamp,
            None if s.pnodes[pnode].cache[key].cell != Cell::NOTHING
                && self.carried(s, pnode, key) == Carry::Drop =>
            {
                s.pnodes[pnode].cache[key] = Cached::default();
            }
            None => {}
        }
        let searched = s.pnodes[pnode].manifest;
        let manifest = self.manifest_of(s, searched);
        let has = |sst: &u8| s.ssts[usize::from(*sst)][key] != Cell::NOTHING;
        let plan = route(Facts {
            mode: if precise { ReadMode::Pda } else { ReadMode::Bda },
            leased: precise,
            in_memtable_filter: s.pnodes[pnode].in_filters(key) || s.pnodes[pnode].announced || unknown,
            sst_candidates: cached.is_some() || manifest.tables().iter().any(has),
            filter_inserts: self.bounds.filter_inserts,
            no_entry,
        });
        let mut progress = Progress::new(plan);
        let step = progress.start();
        let cached = cached.map_or(Cell::NOTHING, |(cell, _)| cell);
        let floor = s.floor[key];
        let (loaded, registration, keeps) = (0, Registration::default(), no_entry);
        let key = key as u8;
        let (times, undecided) = (s.pnodes[pnode].times, Cell::NOTHING);
        let reader = Reader {
            progress,
            step,
            key,
            floor,
            searched,
            cached,
            loaded,
            registration,
            keeps,
            times,
            undecided,
        };
        s.pnodes[pnode].reader = Some(reader);
        self.go_on(s, pnode, step, Cell::NOTHING)
    }

    /// The reader's next step, or its end. `last`: what the tier that was asked just said.
    fn go_on(&self, s: &mut State, pnode: usize, step: Step, last: Cell) -> Result<(), String> {
        let Some(reader) = &mut s.pnodes[pnode].reader else { return Ok(()) };
        let Step::Done(answer) = step else {
            reader.step = step;
            reader.loaded = 0;
            return Ok(());
        };
        let (key, floor) = (usize::from(reader.key), reader.floor);
        s.pnodes[pnode].reader = None;
        let answer = if answer == Answer::Value { last } else { Cell::NOTHING };
        self.check_read(s, key, floor, answer)
    }

    pub(super) fn ask_memtables(&self, s: &mut State, pnode: usize) -> Result<(), String> {
        let Some(mut reader) = s.pnodes[pnode].reader else { return Ok(()) };
        let key = usize::from(reader.key);
        let named = match reader.progress.asked_sstables() && self.is(Mutant::RereadNamesNewest) {
            true => s.pnodes[pnode].manifest,
            false => reader.searched,
        };
        let up_to = if reader.loaded == 0 { s.published } else { reader.loaded - 1 };
        let Some(cell) = self.read_memtables(s, key, named, up_to) else {
            // The answer carries the manifest; the read starts again.
            s.pnodes[pnode].reader = None;
            self.refresh(s, pnode);
            return Ok(());
        };
        // Nobody can know better than the leader what it says of that moment.
        let now = self.time_of_read(s, up_to);
        reader.times = Times::exactly(now);
        let times = &mut s.pnodes[pnode].times;
        times.published = times.published.max(now);
        let mut said = self.found(s, cell, reader.times);
        if said == Found::Tombstone && cell.is_value() && self.is(Mutant::ExpiredIsNoEntry) {
            said = Found::NoEntry;
        }
        if self.is(Mutant::MemtableTombstoneIsNoEntry) && said == Found::Tombstone {
            said = Found::NoEntry;
        }
        if self.is(Mutant::CacheHoldsMemtableValues) && cell.is_value() {
            s.pnodes[pnode].cache[key] = Cached { cell, stamp: reader.searched };
        }
        let mut step = reader.progress.memtables_said(said);
        let (mut last, undecided) = (cell, std::mem::take(&mut reader.undecided));
        if said == Found::NoEntry && undecided != Cell::NOTHING {
            let alive = self.found(s, undecided, reader.times) == Found::Value;
            step = Step::Done(if alive { Answer::Value } else { Answer::Absent });
            last = undecided;
        }
        self.keep(s, pnode, &mut reader, up_to, (step, last));
        s.pnodes[pnode].reader = Some(reader);
        self.go_on(s, pnode, step, last)
    }

    /// What a tier's record is, for who knows whether it has expired.
    fn found(&self, s: &State, cell: Cell, times: Times) -> Found {
        if cell.is_value() && self.life(s, cell, times) == Life::Expired {
            Found::Tombstone
        } else {
            found(cell)
        }
    }

    /// What the leader's memtables have of a key up to a position, for a reader of the SSTables of version `named`; None: that is
    /// stale.
    pub fn read_memtables(&self, s: &State, key: usize, named: u8, up_to: u8) -> Option<Cell> {
        if self.is_stale(s, named) {
            return None;
        }
        let manifest = self.manifest(s);
        let flushed_at = |generation: u8| {
            let flag = s.entries().find(|(at, e)| {
                *at <= s.known_committed && e.kind == EntryKind::Flush && e.generation == generation
            });
            flag.map_or(0, |(at, _)| s.manifest_at(at, self.reading).version)
        };
        let searched = |generation: u8| {
            if !manifest.is_flushed(generation) {
                return true;
            }
            let at = flushed_at(generation);
            let version = |v: u8| ManifestVersion(u64::from(v));
            at > s.dropped && rules::needs_flushed(version(named), version(at))
        };
        let mut generations = (1..=s.generation()).rev().filter(|g| searched(*g));
        let newest = generations.find_map(|generation| s.newest(key, up_to, |g| g == generation));
        Some(newest.map_or(Cell::NOTHING, |version| version.cell))
    }

    /// The staleness rule.
    fn is_stale(&self, s: &State, named: u8) -> bool {
        if self.is(Mutant::NoStaleManifest) {
            return false;
        }
        let version = |v: u8| ManifestVersion(u64::from(v));
        if !self.is(Mutant::StaleOnlyIfFrozen) {
            return rules::is_stale(version(named), version(s.dropped));
        }
        // Only for memtables that were frozen when the reader's version was the newest.
        s.entries().any(|(at, e)| {
            let made = s.manifest_at(at, self.reading).version;
            let flushed_since = at <= s.known_committed && e.kind == EntryKind::Flush && made > named;
            let frozen_at = s.freeze_of(e.generation).map_or(0, |f| s.manifest_at(f, self.reading).version);
            flushed_since && made <= s.dropped && frozen_at <= named
        })
    }

    pub(super) fn ask_sstables(&self, s: &mut State, pnode: usize) -> Result<(), String> {
        let Some(mut reader) = s.pnodes[pnode].reader else { return Ok(()) };
        let key = usize::from(reader.key);
        let cell = match reader.cached {
            Cell::NOTHING => {
                let cell = self.search(s, reader.searched, key, reader.times);
                if self.bounds.cache && cell != Cell::NOTHING {
                    let arrival = self.is(Mutant::StampAtArrival);
                    let stamp = if arrival { s.pnodes[pnode].manifest } else { reader.searched };
                    s.pnodes[pnode].cache[key] = Cached { cell, stamp };
                }
                cell
            }
            cached => cached,
        };
        if self.is(Mutant::JudgedByNewestView) {
            reader.times = s.pnodes[pnode].times;
        }
        let life = self.life(s, cell, reader.times);
        let said = match life {
            Life::Unknown => Found::Undecided,
            Life::Alive | Life::Expired => self.found(s, cell, reader.times),
        };
        let mut step = reader.progress.sstables_said(said);
        if said == Found::Undecided {
            reader.undecided = cell;
        }
        if self.is(Mutant::ExpiredIsFinal) && life == Life::Expired {
            step = Step::Done(Answer::Absent);
        }
        if self.is(Mutant::SstTombstoneFinal) && cell.is_tombstone() {
            step = Step::Done(Answer::Absent);
        }
        if reader.keeps {
            self.keep_sstables(s, pnode, key, cell);
        }
        s.pnodes[pnode].reader = Some(reader);
        self.go_on(s, pnode, step, cell)
    }
}
