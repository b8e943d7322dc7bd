//! What a compaction does to the list of a table's SSTables. Pure.
//!
//! An SSTable answers for a range of keys, so a key sees a stack: the entries whose range has it, newest first. The list as a whole
//! has no order but this one: of two entries whose ranges overlap, the first is the newer one. A compaction takes entries of one
//! range that are neighbours in the stack of each of its keys, and its outputs share that range: so each key's stack has one entry
//! (or none, if they had nothing there) where there were several, and is as if there were no other keys.

use std::sync::Arc;

use sextant_common::command::Compaction;
use sextant_common::ids::SstId;
use sextant_common::key_range::KeyRange;
use sextant_common::manifest::{SstList, SstMeta};

/// A table's SSTables after a compaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replaced {
    pub ssts: SstList,
    /// The inputs, newest first.
    pub removed: Vec<SstMeta>,
}

/// None: it does not fit (any more). It does if all inputs are there, newest first, and
///
/// * no other entry that lies between them overlaps their range: it would be newer than some of what the outputs hold, and older
///   than the rest;
/// * the outputs are apart, and in the range;
/// * with tombstones dropped, no entry that is older than all of them overlaps the range: what they hid would come back.
///
/// The outputs go to the place of the oldest input.
pub fn replaced(ssts: &SstList, compaction: &Compaction) -> Option<Replaced> {
    let Compaction { inputs, range, outputs, tombstones_dropped, .. } = compaction;
    let places = places(ssts, inputs.iter().map(|id| (*id, range)))?;
    let (first, last) = (*places.first()?, *places.last()?);
    let between = ssts.iter().enumerate().take(last).skip(first);
    let mut lies_between = between.filter(|(at, _)| places.binary_search(at).is_err());
    if lies_between.any(|(_, sst)| sst.range.overlaps(range)) {
        return None;
    }
    if !are_apart_in(range, outputs) {
        return None;
    }
    if *tombstones_dropped && has_older(ssts, last, range) {
        return None;
    }
    let removed = places.iter().filter_map(|place| ssts.get(*place).cloned()).collect();
    let mut left = ssts.clone();
    for place in places.into_iter().rev() {
        let added = if place == last { &outputs[..] } else { &[] };
        left.splice(place, 1, added.iter().cloned().map(Arc::new));
    }
    Some(Replaced { ssts: left, removed })
}

/// Whether they have keys of the range only, each others, and by rising range. (Where no record was left none needs to answer.)
fn are_apart_in(range: &KeyRange, outputs: &[SstMeta]) -> bool {
    let follows =
        |pair: &[SstMeta]| !pair[0].range.end.is_empty() && pair[0].range.end <= pair[1].range.start;
    outputs.iter().all(|sst| !sst.range.is_empty() && range.covers(&sst.range))
        && outputs.windows(2).all(follows)
}

/// Where these entries are, if they are in this order.
fn places<'r>(ssts: &SstList, entries: impl Iterator<Item = (SstId, &'r KeyRange)>) -> Option<Vec<usize>> {
    let mut rest = ssts.iter().enumerate();
    let place = |(id, range): (SstId, &KeyRange)| {
        rest.find(|(_, sst)| sst.id == id && sst.range == *range).map(|(place, _)| place)
    };
    entries.map(place).collect()
}

/// Whether an entry after this place has keys of the range.
pub fn has_older(ssts: &SstList, place: usize, range: &KeyRange) -> bool {
    ssts.iter().skip(place + 1).any(|sst| sst.range.overlaps(range))
}

#[cfg(test)]
mod tests;
