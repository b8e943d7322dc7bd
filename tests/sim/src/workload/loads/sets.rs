//! Sets of keys that are loaded together, and by nobody else: what was seen of them, and whether that can be.
//!
//! Loads of a set are numbered; each writes all of its keys. The one after another is asked for when that is seen or has come to nothing,
//! so numbers rise.

use std::collections::{BTreeMap, BTreeSet};

use parking_lot::Mutex;
use sextant_client::{PartitionId, Record};

use super::text;
use crate::workload::Shared;

/// Keys with one tag: of one partition.
#[derive(Clone, Debug)]
pub struct Set {
    /// Where its table stands in the plan.
    pub table: usize,
    pub name: String,
    pub partition: PartitionId,
    pub tag: String,
    pub keys: Vec<String>,
}

/// All sets of a run, and how they are.
#[derive(Default)]
pub struct Sets(Mutex<BTreeMap<String, (Set, State)>>);

#[derive(Debug, Default)]
struct State {
    /// Loads that were begun.
    last: u64,
    /// The newest that was asked to be seen.
    asked: u64,
    /// Reads that begin now see this one, or one after it.
    least: u64,
    nothing: BTreeSet<u64>,
    /// One for all records of a load.
    seqs: BTreeMap<u64, u64>,
}

impl Sets {
    pub(super) fn begin(&self, set: Set) -> Set {
        self.0.lock().insert(set.tag.clone(), (set.clone(), State::default()));
        set
    }

    pub(in crate::workload) fn all(&self) -> Vec<Set> {
        self.0.lock().values().map(|(set, _)| set.clone()).collect()
    }
}

impl Set {
    fn with<T>(&self, sets: &Sets, what: impl FnOnce(&mut State) -> T) -> T {
        let mut all = sets.0.lock();
        let (_, state) = all.entry(self.tag.clone()).or_insert_with(|| (self.clone(), State::default()));
        what(state)
    }

    /// The number of a load that begins.
    pub(super) fn next(&self, sets: &Sets) -> u64 {
        self.with(sets, |state| {
            state.last += 1;
            state.last
        })
    }

    pub(super) fn last(&self, sets: &Sets) -> u64 {
        self.with(sets, |state| state.last)
    }

    pub(super) fn asked(&self, sets: &Sets, n: u64) {
        self.with(sets, |state| state.asked = n);
    }

    pub(super) fn committed(&self, sets: &Sets, n: u64) {
        self.with(sets, |state| state.least = state.least.max(n));
    }

    pub(super) fn came_to_nothing(&self, sets: &Sets, n: u64) {
        self.with(sets, |state| state.nothing.insert(n));
    }

    pub(super) fn least(&self, sets: &Sets) -> u64 {
        self.with(sets, |state| state.least)
    }

    /// If somebody has seen it.
    pub(super) fn seq(&self, sets: &Sets, n: u64) -> Option<u64> {
        self.with(sets, |state| state.seqs.get(&n).copied())
    }

    /// Records of some of its keys. `least`: as it was when they were asked for; `at_once`: they are of one moment, and all.
    pub(super) fn saw(&self, shared: &Shared, least: u64, records: &[Option<Record>], at_once: bool) {
        for record in records.iter().flatten() {
            let (n, seq) = (number(&text(&record.value)), record.seq.0);
            let known = self.with(&shared.loads, |state| *state.seqs.entry(n).or_insert(seq));
            if known != seq {
                let text = format!("load {n} of {}/{} has seqs {known} and {seq}", self.name, self.tag);
                shared.world.violation(text);
            }
        }
        let values: Vec<String> =
            records.iter().map(|r| r.as_ref().map_or_else(String::new, |r| text(&r.value))).collect();
        let values: Vec<_> =
            records.iter().zip(&values).map(|(r, value)| r.as_ref().map(|_| value.as_str())).collect();
        self.saw_values(shared, least, &values, at_once);
    }

    pub(super) fn saw_values(&self, shared: &Shared, least: u64, values: &[Option<&str>], at_once: bool) {
        let numbers: Vec<u64> = values.iter().map(|value| value.map_or(0, number)).collect();
        if numbers.iter().any(|n| *n > 0) {
            shared.count("reads_of_loads");
        }
        if let Err(why) = self.with(&shared.loads, |state| state.see(least, &numbers, at_once)) {
            shared.world.violation(format!("loads of {}/{}: {why}", self.name, self.tag));
        }
    }
}

fn number(value: &str) -> u64 {
    value.split_once('.').and_then(|(n, _)| n.parse().ok()).unwrap_or(u64::MAX)
}

impl State {
    fn see(&mut self, least: u64, numbers: &[u64], at_once: bool) -> Result<(), String> {
        let newest = numbers.iter().copied().max().unwrap_or(least);
        if at_once && numbers.iter().any(|n| *n != newest) {
            return Err(format!("one is seen by halves: {numbers:?}"));
        }
        if let Some(n) = numbers.iter().find(|n| **n < least) {
            return Err(format!("{n} was seen where {least} had been: {numbers:?}"));
        }
        if newest > self.asked {
            return Err(format!("{newest} was seen before anybody asked for it: {numbers:?}"));
        }
        if let Some(n) = numbers.iter().find(|n| self.nothing.contains(n)) {
            return Err(format!("{n} was seen, which came to nothing: {numbers:?}"));
        }
        self.least = self.least.max(newest);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(n: u64) -> State {
        State { asked: n, ..State::default() }
    }

    #[test]
    fn what_was_seen_at_one_key_is_there_at_all_from_then_on() {
        let mut state = asked(2);
        // While it becomes visible reads of several keys may meet both, one after the other.
        state.see(0, &[1, 2], false).unwrap();
        assert_eq!(state.least, 2);
        state.see(0, &[1], false).unwrap();
        state.see(2, &[2, 2], true).unwrap();
        for (numbers, at_once, what) in [
            (vec![1, 1], true, "1 was seen where 2 had been"),
            (vec![2, 1], true, "by halves"),
            (vec![3], false, "before anybody asked"),
        ] {
            let why = state.see(2, &numbers, at_once).unwrap_err();
            assert!(why.contains(what), "{why}");
        }
    }

    #[test]
    fn what_came_to_nothing_is_never_seen() {
        let mut state = asked(2);
        state.nothing.insert(1);
        assert!(state.see(0, &[1], false).unwrap_err().contains("came to nothing"));
        state.see(0, &[2], false).unwrap();
    }
}
