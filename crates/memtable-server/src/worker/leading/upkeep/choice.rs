//! Which SSTables of a table are compacted, and why. Pure.
//!
//! A table is a tree of *columns*: ranges of keys, each with the SSTables that answer for exactly this range ([`super::columns`]).
//! Flushes answer for all keys; what lies below is cut ever finer, and older. Each column is compacted for itself:
//!
//! * Its tables become one by tiers, as long as they stay in their column: a new table is merged with those before it as long as
//!   these are not much larger than all newer ones together. So a record is written again about as often as the data has doubled
//!   since, not with every compaction; and there are about as many tables as doublings.
//! * When a column that lies above others has a quarter of the target for each piece that it would be cut into, all of it is *pushed
//!   down*: merged, and cut where the columns below it end, or groups of these if they are many ([`FAN_OUT`]).
//! * In a column with nothing below, the oldest table is an input when the newer ones have come to its size, when half of the records
//!   are tombstones, or when much has expired: then tombstones are dropped, and space comes back. If that is more than a table of
//!   the target's size, the outputs are cut, and the column with them.
//!
//! * When nothing has been flushed for a while the table *rests*: what lies above the oldest tables of the lowest columns goes down and
//!   into them, those first that waste most, until it is a tenth of what these have. Under writes that would be thrown away: a record
//!   would be written again each time that a little more has come.
//!
//! So what one compaction reads is bounded by the target, whatever the size of the table. Of several columns the one with the most
//! bytes to be compacted goes first; columns are compacted at the same time, since their inputs are different tables.
//!
//! Sizes are *weights* ([`weight`]): few bytes of tiny records are many hashes, and whoever writes an SSTable has all of its own in
//! memory.
//!
//! All tables that were ever planned as outputs lie, for each key, by their memtables within each other or apart, or reach down to
//! the first memtable (but for tiers of tiny records that were planned and never took effect, which end at a number of hashes): what a
//! lost manifest is rebuilt from (`recover/plan.rs`).

use std::collections::HashMap;
use std::ops::Range;

use bytes::Bytes;
use sextant_common::expiry::Tick;
use sextant_common::ids::{Generation, SstId};
use sextant_common::key_range::KeyRange;
use sextant_common::limits::{COMPACTION_INPUTS_MAX, COMPACTION_OUTPUTS_MAX};
use sextant_common::manifest::{Generations, SstMeta, TableManifest, large, weight};

use super::columns::Columns;

/// Of the records of a column so many (one in this) have expired when that is a reason to compact it.
const EXPIRED_SHARE: u64 = 4;
/// So many (one in this) are tombstones when that is.
const TOMBSTONES_SHARE: u64 = 2;
/// An older table joins a compaction if it is at most so much larger than all newer ones together, in percent.
const JOINS_PERCENT: u64 = 150;
/// A column is cut into about so many.
const FAN_OUT: usize = 16;
/// A column above others is pushed down when a piece has this part of the target. (So what lies above columns is a quarter of what they
/// have, for each level, and space is not wasted there.)
const PIECE_SHARE: u64 = 4;
/// Or when it has so many times the target, in however many pieces.
const PUSHED_TARGETS: u64 = 4;
/// Or when its hashes alone weigh so many times the target: all of them may go into one piece.
const PUSHED_HASHES_TARGETS: u64 = 2;
/// More of them are not pushed down at once.
const PUSHED_HASHES_MAX_TARGETS: u64 = 3;

/// Of a table that rests so much may lie above the oldest tables, in percent of what these have: at most so much is superseded.
const WASTE_PERCENT: u64 = 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::worker) enum Reason {
    /// There are as many tables of one tier as the trigger says.
    Tier,
    /// A column has become too large for its place: what it has goes to the columns below.
    Push,
    /// The newer tables have as many bytes as the oldest: as much may be superseded.
    Space,
    Tombstones,
    Expired,
    /// Nothing is written, and there is space to be had.
    Rest,
    /// Somebody wants it.
    Demand,
}

impl Reason {
    pub fn name(self) -> &'static str {
        match self {
            Reason::Tier => "tier",
            Reason::Push => "push",
            Reason::Space => "space",
            Reason::Tombstones => "tombstones",
            Reason::Expired => "expired",
            Reason::Rest => "rest",
            Reason::Demand => "demand",
        }
    }
}

/// What the choice goes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::worker) struct Limits {
    /// How many tables of a tier become one (1 counts as 2).
    pub trigger: usize,
    /// Of a table: what it is to weigh.
    pub target_bytes: u64,
    /// Without anything written for so long, or up to twice as long, a table rests; 0: it never does.
    pub rests_after_ns: u64,
    /// A published tick.
    pub expired_by: Tick,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::worker) struct Choice<'t> {
    /// Newest first, all of this range.
    pub inputs: Vec<&'t SstMeta>,
    pub range: &'t KeyRange,
    pub reason: Reason,
    /// No older table of the range is left out, which a tombstone could hide: none is needed in the result.
    pub reaches_the_oldest: bool,
    /// Where the outputs are cut, rising.
    pub cuts: Vec<Bytes>,
    /// And when they weigh about so much; 0: not by size.
    pub output_bytes: u64,
    /// Of the inputs.
    pub bytes: u64,
}

/// A table's columns, and what their SSTables weigh.
pub(in crate::worker) struct Tree<'t> {
    entry: &'t TableManifest,
    columns: Columns<'t>,
    /// How many entries there are of an SSTable, if not one: each answers for a part of its bytes.
    shared: HashMap<SstId, u64>,
}

impl<'t> Tree<'t> {
    pub fn new(entry: &'t TableManifest) -> Self {
        let mut shared: HashMap<SstId, u64> = HashMap::new();
        entry.ssts.iter().for_each(|sst| *shared.entry(sst.id).or_default() += 1);
        shared.retain(|_, entries| *entries > 1);
        Self { entry, columns: Columns::new(&entry.ssts), shared }
    }

    pub fn columns(&self) -> usize {
        self.columns.len()
    }

    /// All SSTables of the column that a choice is of.
    pub fn column_of(&self, choice: &Choice<'_>) -> impl Iterator<Item = &'t SstMeta> {
        let range = choice.range.clone();
        self.entry.ssts.iter().filter(move |sst| sst.range == range)
    }

    /// Among how many entries what an SSTable has is divided.
    fn entries(&self, sst: &SstMeta) -> u64 {
        self.shared.get(&sst.id).copied().unwrap_or(1)
    }

    fn bytes(&self, sst: &SstMeta) -> u64 {
        sst.file_bytes / self.entries(sst)
    }

    /// Of what it adds to the filter of an output at most.
    fn weight_of_hashes(&self, sst: &SstMeta) -> u64 {
        weight(0, self.entry.options.hashes_max(sst.records) / self.entries(sst))
    }

    fn weight(&self, sst: &SstMeta) -> u64 {
        self.bytes(sst).max(self.weight_of_hashes(sst))
    }

    fn weight_of(&self, ssts: &[&SstMeta]) -> u64 {
        ssts.iter().map(|sst| self.weight(sst)).sum()
    }

    /// What is due, most bytes first. `is_busy`: an input of a compaction that is under way.
    pub fn due(&self, limits: &Limits, is_busy: impl Fn(&SstMeta) -> bool) -> Vec<Choice<'t>> {
        let mut due: Vec<Choice<'t>> = (0..self.columns.len())
            .filter(|at| !self.columns.ssts(*at).any(&is_busy))
            .filter_map(|at| self.choose(at, limits))
            .collect();
        due.sort_by_key(|choice| std::cmp::Reverse(choice.bytes));
        due
    }

    /// What is due of a table that rests, and has nothing else that is due: from above, then where most is wasted. `waits`: its
    /// range is not to be tried now.
    pub fn due_at_rest(
        &self,
        limits: &Limits,
        is_busy: impl Fn(&SstMeta) -> bool,
        waits: impl Fn(&SstMeta) -> bool,
    ) -> Vec<Choice<'t>> {
        let columns = || 0..self.columns.len();
        let oldest =
            columns().filter(|at| self.columns.is_lowest(*at)).filter_map(|at| self.columns.ssts(at).last());
        let oldest = self.amount(oldest);
        let all = self.amount(self.entry.ssts.iter());
        if oldest.wasted_by(&all.without(&oldest)).saturating_mul(100)
            <= oldest.bytes.saturating_mul(WASTE_PERCENT)
        {
            return Vec::new();
        }
        let is_there = |at: &usize| !self.columns.ssts(*at).any(&waits);
        let above: Vec<usize> = columns()
            .filter(|at| !self.columns.is_lowest(*at) && self.columns.above(*at).next().is_none())
            .filter(is_there)
            .collect();
        let is_free = |at: &usize| !self.columns.ssts(*at).any(&is_busy);
        let mut pushes: Vec<Choice<'t>> = above
            .iter()
            .copied()
            .filter(is_free)
            .filter_map(|at| self.all(at, limits, Reason::Rest))
            .collect();
        if !pushes.is_empty() || !above.iter().all(is_free) {
            pushes.sort_by_key(|choice| std::cmp::Reverse(choice.bytes));
            return pushes;
        }
        let mut wasteful: Vec<(u64, usize)> = columns()
            .filter(|at| self.columns.is_lowest(*at))
            .filter(is_there)
            .filter(is_free)
            .filter_map(|at| {
                let oldest = self.amount(self.columns.ssts(at).last());
                let newer = self.amount(self.columns.ssts(at)).without(&oldest);
                let wasted = oldest.wasted_by(&newer);
                (wasted > 0).then(|| (wasted.saturating_mul(1000) / oldest.bytes.max(1), at))
            })
            .collect();
        wasteful.sort_by_key(|(waste, _)| std::cmp::Reverse(*waste));
        wasteful.into_iter().filter_map(|(_, at)| self.all(at, limits, Reason::Rest)).collect()
    }

    fn amount<'s>(&self, ssts: impl IntoIterator<Item = &'s SstMeta>) -> Amount {
        ssts.into_iter().fold(Amount::default(), |sum, sst| Amount {
            bytes: sum.bytes + self.bytes(sst),
            records: sum.records + sst.records / self.entries(sst),
        })
    }

    /// Whatever has one of these SSTables becomes new ones, from above: once nothing of them is left, nothing that was there is.
    pub fn demanded(
        &self,
        limits: &Limits,
        is_wanted: impl Fn(&SstMeta) -> bool,
        is_busy: impl Fn(&SstMeta) -> bool,
    ) -> Vec<Choice<'t>> {
        let wanted: Vec<bool> =
            (0..self.columns.len()).map(|at| self.columns.ssts(at).any(&is_wanted)).collect();
        (0..self.columns.len())
            .filter(|at| wanted[*at] && !self.columns.above(*at).any(|above| wanted[above]))
            .filter(|at| !self.columns.ssts(*at).any(&is_busy))
            .filter_map(|at| self.all(at, limits, Reason::Demand))
            .collect()
    }

    fn choose(&self, column: usize, limits: &Limits) -> Option<Choice<'t>> {
        let ssts: Vec<&SstMeta> = self.columns.ssts(column).collect();
        let is_lowest = self.columns.is_lowest(column);
        let all = |reason| self.all(column, limits, reason);
        if is_expired(&ssts, limits.expired_by) {
            return all(Reason::Expired);
        }
        let below_records;
        let (oldest, newer) = if is_lowest {
            let (oldest, newer) = ssts.split_last()?;
            below_records = oldest.records;
            (Some(oldest), newer)
        } else {
            below_records = self.columns.below(column).map(|sst| sst.records).sum();
            (None, &ssts[..])
        };
        if has_many_tombstones(newer, below_records) {
            return all(Reason::Tombstones);
        }
        let weight = self.weight_of(&ssts);
        // Where tables of older versions do not say what they hold, a part of them could not either.
        let are_known = ssts.iter().all(|sst| sst.generations.are_known());
        let least = limits.trigger.max(2);
        match oldest {
            Some(oldest) => {
                // What is too large for one table is not left lying: it becomes more with every push.
                let is_large = weight > large(limits.target_bytes);
                let least = if is_large { 2 } else { least };
                let is_doubled = self.weight_of(newer) >= self.weight(oldest) || !are_known;
                if ssts.len() >= least && is_doubled || ssts.len() > COMPACTION_INPUTS_MAX {
                    return all(Reason::Space);
                }
            }
            None => {
                let pieces = self.columns.cuts(column, FAN_OUT).len() as u64 + 1;
                let enough = (limits.target_bytes / PIECE_SHARE).saturating_mul(pieces);
                let of_hashes: u64 = ssts.iter().map(|sst| self.weight_of_hashes(sst)).sum();
                let is_due = weight >= enough.min(limits.target_bytes.saturating_mul(PUSHED_TARGETS))
                    || of_hashes >= limits.target_bytes.saturating_mul(PUSHED_HASHES_TARGETS);
                if is_due || ssts.len() > COMPACTION_INPUTS_MAX / 2 {
                    return all(Reason::Push);
                }
            }
        }
        let inputs = self.tier(&ssts, limits);
        if inputs.len() < least || !are_known {
            return None;
        }
        let reaches_the_oldest = is_lowest && inputs.len() == ssts.len();
        self.choice(column, 0..inputs.len(), Reason::Tier, reaches_the_oldest, limits)
    }

    /// All SSTables of a column, or as many of the oldest as a compaction takes; pushed down if there are columns below. (Then outputs
    /// are not cut by what they weigh, and what has been waiting for a push may be much.)
    fn all(&self, column: usize, limits: &Limits, reason: Reason) -> Option<Choice<'t>> {
        let ssts: Vec<&SstMeta> = self.columns.ssts(column).collect();
        let is_lowest = self.columns.is_lowest(column);
        let mut of_hashes = 0u64;
        let is_taken = |sst: &&&SstMeta| {
            of_hashes = of_hashes.saturating_add(self.weight_of_hashes(sst));
            is_lowest || of_hashes <= limits.target_bytes.saturating_mul(PUSHED_HASHES_MAX_TARGETS)
        };
        let most = ssts.iter().rev().take_while(is_taken).count().clamp(1, COMPACTION_INPUTS_MAX);
        let inputs = ssts.len().saturating_sub(most)..ssts.len();
        let mut choice = self.choice(column, inputs, reason, is_lowest, limits)?;
        if !is_lowest {
            choice.cuts = self.columns.cuts(column, FAN_OUT);
            thin_out(&mut choice.cuts, COMPACTION_OUTPUTS_MAX - 1);
            // (What is not cut stays where it is.)
            if choice.cuts.is_empty() {
                return None;
            }
        }
        Some(choice)
    }

    /// None: they are no neighbours for each of their keys, which no list that compactions make says of a column.
    fn choice(
        &self,
        column: usize,
        inputs: Range<usize>,
        reason: Reason,
        reaches_the_oldest: bool,
        limits: &Limits,
    ) -> Option<Choice<'t>> {
        if !self.columns.are_neighbours(column, inputs.clone(), reaches_the_oldest) {
            return None;
        }
        let inputs: Vec<&SstMeta> = self.columns.ssts(column).skip(inputs.start).take(inputs.len()).collect();
        let range = &inputs.first()?.range;
        let (bytes, weight) = (inputs.iter().map(|sst| self.bytes(sst)).sum(), self.weight_of(&inputs));
        let is_cut = reaches_the_oldest && weight > large(limits.target_bytes);
        let most = COMPACTION_OUTPUTS_MAX as u64 / 2;
        let output_bytes = if is_cut { limits.target_bytes.max(weight / most) } else { 0 };
        Some(Choice { inputs, range, reason, reaches_the_oldest, cuts: Vec::new(), output_bytes, bytes })
    }

    /// The newest tables, up to one that is much larger than all newer ones together, or whose hashes would be too many for one output
    /// (it is not cut).
    fn tier<'s>(&self, ssts: &'s [&'t SstMeta], limits: &Limits) -> &'s [&'t SstMeta] {
        let (mut weight, mut of_hashes) = (0u64, 0u64);
        let joins = |sst: &&&SstMeta| {
            let own = self.weight(sst);
            of_hashes = of_hashes.saturating_add(self.weight_of_hashes(sst));
            let joins = weight == 0
                || own.saturating_mul(100) <= weight.saturating_mul(JOINS_PERCENT)
                    && of_hashes <= large(limits.target_bytes);
            weight += own;
            joins
        };
        &ssts[..ssts.iter().take_while(joins).count()]
    }

    /// What the results of these inputs stand for: from the oldest of them, or the first memtable, up to the newest.
    pub fn generations(&self, choice: &Choice<'_>) -> Generations {
        let ends = choice.inputs.first().zip(choice.inputs.last());
        let Some((newest, oldest)) = ends.map(|(n, o)| (n.generations, o.generations)) else {
            return Generations::default();
        };
        let overlaps = |sst: &&SstMeta| sst.range.overlaps(choice.range);
        let newest_of_range = self.entry.ssts.iter().find(overlaps);
        let has_newer = newest_of_range.map(|sst| sst.id) != choice.inputs.first().map(|sst| sst.id);
        let last = match newest.are_known() {
            true => newest.last,
            false if !has_newer => self.entry.flushed_generation.max(Generation(1)),
            // Old tables, between newer ones: nobody knows.
            false => return Generations::default(),
        };
        let first = if choice.reaches_the_oldest { Generation(1) } else { oldest.first };
        Generations { first, last }
    }
}

/// Of SSTables together.
#[derive(Clone, Copy, Debug, Default)]
struct Amount {
    bytes: u64,
    records: u64,
}

impl Amount {
    fn without(&self, part: &Amount) -> Amount {
        Amount {
            bytes: self.bytes.saturating_sub(part.bytes),
            records: self.records.saturating_sub(part.records),
        }
    }

    /// How many bytes less there may be when newer SSTables have gone into these: their own, if they are of the same keys; or those of
    /// the records that they hide, which may be longer (a tombstone is short).
    fn wasted_by(&self, newer: &Amount) -> u64 {
        let hidden = newer.records.saturating_mul(self.bytes / self.records.max(1));
        newer.bytes.max(hidden.min(self.bytes))
    }
}

/// Leaves so many: any of them may be missing, what lies between two is cut by the next compaction.
fn thin_out(cuts: &mut Vec<Bytes>, most: usize) {
    let every = cuts.len().div_ceil(most).max(1);
    let mut at = 0;
    cuts.retain(|_| {
        at += 1;
        at % every == 0
    });
}

/// Whether much has expired: SSTables all of whose records that can have.
fn is_expired(ssts: &[&SstMeta], by: Tick) -> bool {
    let records: u64 = ssts.iter().map(|sst| sst.records).sum();
    let over = ssts.iter().map(|sst| sst.expiring).filter(|e| e.records > 0 && e.last <= by);
    let expired: u64 = over.map(|expiring| expiring.records).sum();
    expired > 0 && expired.saturating_mul(EXPIRED_SHARE) >= records
}

/// Whether many records hide others, or nothing. (Those of the oldest table hide nothing: they stay until there is something to
/// merge it with.)
fn has_many_tombstones(newer: &[&SstMeta], older_records: u64) -> bool {
    let tombstones: u64 = newer.iter().map(|sst| sst.tombstones).sum();
    let records: u64 = newer.iter().map(|sst| sst.records).sum::<u64>() + older_records;
    tombstones > 0 && tombstones.saturating_mul(TOMBSTONES_SHARE) >= records
}

#[cfg(test)]
mod simulator;
#[cfg(test)]
mod tests;
