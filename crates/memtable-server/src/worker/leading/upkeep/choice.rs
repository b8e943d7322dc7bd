//! Which SSTables of a table become one, and why. Pure.
//!
//! Inputs are neighbours in age, and tiers: a new table is merged with those before it as long as these are not much larger
//! than all newer ones together. So a record is written again about as often as the data has doubled since, not with every
//! compaction; and there are about as many tables as doublings. The oldest table is an input when the newer ones have come to its
//! size, when half of the records are tombstones, or when much has expired: then tombstones are dropped, and space comes back.
//!
//! All tables that were ever planned as outputs lie, by their memtables, within each other or apart, or reach down to the first
//! memtable: what a lost manifest is rebuilt from (`recover/plan.rs`).

use sextant_common::expiry::Tick;
use sextant_common::ids::Generation;
use sextant_common::limits::COMPACTION_INPUTS_MAX;
use sextant_common::manifest::{Generations, SstMeta, TableManifest};

/// Of the records of a table so many (one in this) have expired when that is a reason to compact it.
const EXPIRED_SHARE: u64 = 4;
/// So many (one in this) are tombstones when that is.
const TOMBSTONES_SHARE: u64 = 2;
/// An older table joins a compaction if it is at most so much larger than all newer ones together, in percent.
const JOINS_PERCENT: u64 = 150;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::worker) enum Reason {
    /// There are as many tables of one tier as the trigger says.
    Tier,
    /// The newer tables have as many bytes as the oldest: as much may be superseded.
    Space,
    Tombstones,
    Expired,
    /// Somebody wants it.
    Demand,
}

impl Reason {
    pub fn name(self) -> &'static str {
        match self {
            Reason::Tier => "tier",
            Reason::Space => "space",
            Reason::Tombstones => "tombstones",
            Reason::Expired => "expired",
            Reason::Demand => "demand",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::worker) struct Choice<'t> {
    /// Newest first.
    pub inputs: &'t [SstMeta],
    pub reason: Reason,
    /// No older table is left out, which a tombstone could hide: none is needed in the result.
    pub reaches_the_oldest: bool,
}

/// `trigger`: how many tables of a tier become one (1 counts as 2); `expired_by`: a published tick.
pub(in crate::worker) fn choose(
    entry: &TableManifest,
    trigger: usize,
    expired_by: Tick,
) -> Option<Choice<'_>> {
    let ssts = &entry.ssts[..];
    if is_expired(ssts, expired_by) {
        return all(entry, Reason::Expired);
    }
    let (oldest, newer) = ssts.split_last()?;
    if has_many_tombstones(oldest, newer) {
        return all(entry, Reason::Tombstones);
    }
    let least = trigger.max(2);
    if ssts.len() < least {
        return None;
    }
    let newer_bytes: u64 = newer.iter().map(|sst| sst.file_bytes).sum();
    // Where tables of older versions do not say what they hold, a part of them could not either.
    let are_known = ssts.iter().all(|sst| sst.generations.are_known());
    if newer_bytes >= oldest.file_bytes || !are_known || ssts.len() > COMPACTION_INPUTS_MAX {
        return all(entry, Reason::Space);
    }
    let inputs = tier(ssts);
    (inputs.len() >= least).then_some(Choice {
        inputs,
        reason: Reason::Tier,
        reaches_the_oldest: inputs.len() == ssts.len(),
    })
}

/// All SSTables of the table, or as many of the oldest as a compaction takes.
pub(in crate::worker) fn all(entry: &TableManifest, reason: Reason) -> Option<Choice<'_>> {
    let inputs = &entry.ssts[entry.ssts.len().saturating_sub(COMPACTION_INPUTS_MAX)..];
    (!inputs.is_empty()).then_some(Choice { inputs, reason, reaches_the_oldest: true })
}

/// The newest tables, up to one that is much larger than all newer ones together.
fn tier(ssts: &[SstMeta]) -> &[SstMeta] {
    let mut bytes = 0u64;
    let joins = |sst: &&SstMeta| {
        let joins = bytes == 0 || sst.file_bytes.saturating_mul(100) <= bytes.saturating_mul(JOINS_PERCENT);
        bytes += sst.file_bytes;
        joins
    };
    &ssts[..ssts.iter().take_while(joins).count()]
}

/// Whether much of a table has expired: SSTables all of whose records that can have.
fn is_expired(ssts: &[SstMeta], by: Tick) -> bool {
    let records: u64 = ssts.iter().map(|sst| sst.records).sum();
    let over = ssts.iter().map(|sst| sst.expiring).filter(|e| e.records > 0 && e.last <= by);
    let expired: u64 = over.map(|expiring| expiring.records).sum();
    expired > 0 && expired.saturating_mul(EXPIRED_SHARE) >= records
}

/// Whether many records hide others, or nothing. (Those of the oldest table hide nothing: they stay until there is something to
/// merge it with.)
fn has_many_tombstones(oldest: &SstMeta, newer: &[SstMeta]) -> bool {
    let tombstones: u64 = newer.iter().map(|sst| sst.tombstones).sum();
    let records: u64 = newer.iter().map(|sst| sst.records).sum::<u64>() + oldest.records;
    tombstones > 0 && tombstones.saturating_mul(TOMBSTONES_SHARE) >= records
}

/// What the result of these inputs stands for: from the oldest of them, or the first memtable, up to the newest.
pub(in crate::worker) fn generations(entry: &TableManifest, choice: &Choice<'_>) -> Generations {
    let ends = choice.inputs.first().zip(choice.inputs.last());
    let Some((newest, oldest)) = ends.map(|(n, o)| (n.generations, o.generations)) else {
        return Generations::default();
    };
    let has_newer = entry.ssts.first().map(|sst| sst.id) != choice.inputs.first().map(|sst| sst.id);
    let last = match newest.are_known() {
        true => newest.last,
        false if !has_newer => entry.flushed_generation.max(Generation(1)),
        // Old tables, between newer ones: nobody knows.
        false => return Generations::default(),
    };
    let first = if choice.reaches_the_oldest { Generation(1) } else { oldest.first };
    Generations { first, last }
}

#[cfg(test)]
mod tests;
