//! Which tables, from the newest memtable down to the first, tell an interval's keys: a chain, and what it is worth.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use sextant_common::ids::Generation;
use sextant_common::key_range::KeyRange;
use sextant_common::load::LoadNumber;
use sextant_common::manifest::Generations;

use super::Candidate;

impl Candidate {
    /// The memtables whose records of these keys it holds. Tables of a load have rising keys: what comes before one of them has no key
    /// behind its first one, so it stands for those too.
    fn range_in(&self, interval: &KeyRange) -> Generations {
        let (range, meta) = (self.range(), &self.chosen.meta);
        let begins = LoadNumber::written_for(meta).and_then(LoadNumber::first);
        match begins.filter(|_| meta.min_key <= interval.start) {
            Some(first) => Generations { first, ..range },
            None => range,
        }
    }
}

/// Where a generation stands among those that there may have been: without the numbers that loads jumped over.
///
/// Just before a load stands the newest memtable that any table tells of. (One that was lost after it, before the load, is not missed.)
#[derive(Debug, Default)]
pub(super) struct Places {
    /// Rising: the last generation known before a load's first one, and that one.
    jumps: Vec<(u64, u64)>,
}

impl Places {
    pub(super) fn of<'c>(candidates: impl IntoIterator<Item = &'c Candidate> + Clone) -> Self {
        let ranges = || candidates.clone().into_iter().map(Candidate::range);
        let ends = ranges().flat_map(|range| [range.first, range.last]);
        let loads: BTreeSet<Generation> =
            ends.filter_map(|end| LoadNumber::of(end).and_then(LoadNumber::first)).collect();
        // What begins with a generation that is no load's first one follows another.
        let follows = |range: &Generations| !loads.contains(&range.first);
        let before = ranges().filter(follows).map(|range| range.first.0 - 1);
        // (A load that was merged into others has its first number, even if no table ends or begins there.)
        let firsts = loads.iter().map(|first| first.0);
        let known: BTreeSet<u64> = ranges().map(|range| range.last.0).chain(before).chain(firsts).collect();
        let jump =
            |first: &Generation| (known.range(..first.0).next_back().map_or(0, |known| *known), first.0);
        Self { jumps: loads.iter().map(jump).collect() }
    }

    fn place(&self, generation: u64) -> u64 {
        let mut skipped = 0;
        for (known, first) in &self.jumps {
            if generation < *first {
                return generation.min(*known) - skipped;
            }
            skipped += first - 1 - known;
        }
        generation - skipped
    }

    /// The newest memtable that may have been before this one.
    fn before(&self, generation: u64) -> u64 {
        let jump = self.jumps.iter().find(|(_, first)| *first == generation);
        jump.map_or(generation - 1, |(known, _)| *known)
    }
}

/// How good a chain of tables is: the less, the better; what is said first counts first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Cost {
    /// Memtables that no table holds.
    missing: u64,
    /// Tables with no sound copy.
    damaged: u32,
    /// Memtables that several tables hold.
    twice: u64,
    /// How many tables have one sound copy, two, ..: the rarest count first, and few tables are better than many.
    by_copies: [u32; COPIES_MAX],
}

/// More sound copies than this are no better.
const COPIES_MAX: usize = 8;

impl Cost {
    fn of(candidate: &Candidate) -> Self {
        let mut cost = Self { missing: 0, damaged: 0, twice: 0, by_copies: [0; COPIES_MAX] };
        match candidate.chosen.sound {
            0 => cost.damaged = 1,
            sound => cost.by_copies[sound.min(COPIES_MAX) - 1] = 1,
        }
        cost
    }

    fn and(self, other: Self) -> Self {
        Self {
            missing: self.missing.saturating_add(other.missing),
            damaged: self.damaged + other.damaged,
            twice: self.twice.saturating_add(other.twice),
            by_copies: std::array::from_fn(|at| self.by_copies[at] + other.by_copies[at]),
        }
    }

    /// The same with an older table, or the beginning, after this one: what is between them, or in both.
    fn before(self, newer: Generations, older_last: u64, places: &Places) -> Self {
        let (next, older) = (places.place(newer.first.0 - 1), places.place(older_last));
        Self {
            missing: self.missing.saturating_add(next.saturating_sub(older)),
            twice: self.twice.saturating_add(older.saturating_sub(next)),
            ..self
        }
    }
}

/// The best chain of tables from the newest memtable down to the first, newest first, for an interval of keys that all candidates hold.
pub(super) fn best_chain<'c>(
    candidates: impl Iterator<Item = &'c Candidate>,
    interval: &KeyRange,
    places: &Places,
) -> Vec<&'c Candidate> {
    // Of those that hold the same, one.
    let mut by_range: BTreeMap<(Reverse<Generation>, Generation), &Candidate> = BTreeMap::new();
    for candidate in candidates {
        let Generations { first, last } = candidate.range_in(interval);
        let best = by_range.entry((Reverse(last), first)).or_insert(candidate);
        if candidate.rank() > best.rank() {
            *best = candidate;
        }
    }
    let range = |((Reverse(last), first), candidate)| (Generations { first, last }, candidate);
    let all: Vec<(Generations, &Candidate)> = by_range.into_iter().map(range).collect();
    let Some(newest) = all.first().map(|(range, _)| range.last) else { return vec![] };
    // For each: the best chain that ends with it, and what comes before it there.
    let mut chains: Vec<Option<(Cost, Option<usize>)>> = Vec::with_capacity(all.len());
    for (at, (range, candidate)) in all.iter().enumerate() {
        let own = Cost::of(candidate);
        let begins = (range.last == newest).then_some((own, None));
        let newer = all[..at].iter().zip(&chains).enumerate();
        let goes_on = newer.filter_map(|(newer, ((above, _), chain))| {
            let cost = (*chain)?.0;
            // (What lies within the other one adds nothing.)
            (range.first < above.first && range.last < above.last)
                .then(|| (cost.before(*above, range.last.0, places).and(own), Some(newer)))
        });
        chains.push(begins.into_iter().chain(goes_on).min());
    }
    let ends = chains.iter().zip(&all).enumerate();
    let whole =
        ends.filter_map(|(at, (chain, (range, _)))| Some(((*chain)?.0.before(*range, 0, places), at)));
    let mut at = whole.min().map(|(_, at)| at);
    let mut chain = Vec::new();
    while let Some(here) = at {
        chain.push(all[here].1);
        at = chains[here].and_then(|(_, before)| before);
    }
    chain.reverse();
    chain
}

/// Memtables that no table holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Gap {
    pub first: Generation,
    pub last: Generation,
}

/// What these, newest first, leave out of all memtables up to this one, for an interval of keys.
pub(super) fn gaps(
    chosen: &[&Candidate],
    interval: &KeyRange,
    newest: Generation,
    places: &Places,
) -> Vec<Gap> {
    let mut gaps = Vec::new();
    // The oldest generation that is covered so far, from above.
    let mut covered = newest.0 + 1;
    for next in chosen.iter().map(|candidate| Some(candidate.range_in(interval))).chain([None]) {
        let last = places.before(covered);
        let older = next.map_or(0, |range| range.last.0);
        if older < last {
            gaps.push(Gap { first: Generation(older + 1), last: Generation(last) });
        }
        covered = next.map_or(covered, |range| covered.min(range.first.0));
    }
    gaps
}
