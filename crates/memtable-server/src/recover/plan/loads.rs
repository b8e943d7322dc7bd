//! Which SSTables of bulk loads count. A load's SSTables are written before it is committed, and nothing in them tells whether it was; but
//! the numbers of what came after it do: a generation is of one load, or behind it ([`LoadNumber`]).
//!
//! * A load was committed if any other SSTable begins or ends with a generation of its numbers: a flush goes on behind what the manifest
//!   has, and a compaction has what it named.
//! * It does not matter where newer SSTables span it: they have its records if it was committed, and otherwise not.
//! * Another load after it tells nothing: both may have been written when neither was committed.
//! * For any other the operator decides. Either answer may lose records, so there is no default.

use std::collections::{BTreeMap, BTreeSet};

use sextant_common::error::{Error, Result};
use sextant_common::ids::PartitionId;
use sextant_common::load::{LoadName, LoadNumber};
use sextant_common::recovery::{RecoveryOrder, UndecidedLoad};

use super::Candidate;

/// What an operator says of a partition's loads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Word {
    pub with: BTreeSet<LoadNumber>,
    pub without: BTreeSet<LoadNumber>,
}

impl Word {
    pub fn of(order: &RecoveryOrder, partition: PartitionId) -> Self {
        let of = |names: &[LoadName]| {
            names.iter().filter(|name| name.partition == partition).map(|name| name.number).collect()
        };
        Self { with: of(&order.with_loads), without: of(&order.without_loads) }
    }
}

/// A table's candidates, and what is to be said of its loads.
#[derive(Default)]
pub(super) struct Judged {
    pub accepted: Vec<Candidate>,
    /// Nothing tells whether they were committed.
    pub open: BTreeMap<LoadNumber, Vec<Candidate>>,
    /// As the operator said.
    pub left_out: BTreeMap<LoadNumber, Vec<Candidate>>,
    /// All that were found.
    pub found: BTreeSet<LoadNumber>,
}

pub(super) fn judge(candidates: Vec<Candidate>, word: &Word) -> Result<Judged> {
    let mut judged = Judged::default();
    let mut loads: BTreeMap<LoadNumber, Vec<Candidate>> = BTreeMap::new();
    for candidate in candidates {
        match LoadNumber::written_for(&candidate.chosen.meta) {
            Some(number) => loads.entry(number).or_default().push(candidate),
            None => judged.accepted.push(candidate),
        }
    }
    let ends = judged.accepted.iter().map(Candidate::range).flat_map(|range| [range.first, range.last]);
    let committed: BTreeSet<LoadNumber> = ends.filter_map(LoadNumber::of).collect();
    judged.found = loads.keys().copied().collect();
    for (number, ssts) in loads {
        let is_committed = committed.contains(&number);
        if is_committed && word.without.contains(&number) {
            let LoadNumber { term, count } = number;
            return Err(Error::invalid(format!(
                "load {term}-{count} cannot be left out: other SSTables tell that it was committed"
            )));
        } else if is_committed || word.with.contains(&number) {
            judged.accepted.extend(ssts);
        } else if word.without.contains(&number) {
            judged.left_out.insert(number, ssts);
        } else {
            judged.open.insert(number, ssts);
        }
    }
    Ok(judged)
}

/// Whether what was chosen for each interval spans all of a load.
pub(super) fn is_spanned(load: &[Candidate], chains: &[Vec<&Candidate>]) -> bool {
    let spans = |chain: &Vec<&Candidate>, sst: &Candidate| {
        chain.iter().any(|chosen| chosen.range().contains(&sst.range()))
    };
    chains.iter().all(|chain| load.iter().all(|sst| spans(chain, sst)))
}

pub(super) fn described(name: LoadName, ssts: &[Candidate]) -> UndecidedLoad {
    let sum = |of: fn(&Candidate) -> u64| ssts.iter().map(of).sum::<u64>();
    UndecidedLoad {
        name,
        table: ssts.first().map(|sst| sst.origin.name.clone()).unwrap_or_default(),
        ssts: ssts.len() as u64,
        records: sum(|sst| sst.chosen.meta.records),
        bytes: sum(|sst| sst.chosen.meta.file_bytes),
        copies: ssts.iter().map(|sst| sst.chosen.sound as u32).min().unwrap_or(0),
    }
}
