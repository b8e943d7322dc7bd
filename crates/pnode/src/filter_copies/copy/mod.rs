//! What a reply does to a view.

use bytes::Bytes;
use sextant_common::expiry::Tick;
use sextant_common::filter::LayeredBloom;
use sextant_common::ids::{Epoch, Generation, Serial, TableId};
use sextant_common::manifest::Manifest;
use sextant_proto::convert::manifest_change::ToldOfManifest;
use sextant_rules::mutant::{self, Mutant};

use crate::lease::{Drift, Grant, Lease, PullTimes};
use crate::view::{FilterCopies, ManifestView, PartitionView, SlotSerials};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UpdateStatus {
    Ok,
    NotLeader,
    NeedFilters,
    /// Leader, but not in a state to grant.
    NotReady,
    /// This holder acknowledged too late: no leases for a while.
    Throttled,
}

/// A run of bf-log entries of one kind.
#[derive(Clone, Debug)]
pub(crate) enum Run {
    /// The memtable `generation` begins: counts one serial.
    Freeze { table: TableId, generation: Generation },
    /// 8 bytes a hash, little-endian: each counts one serial.
    Hashes { table: TableId, generation: Generation, hashes: Bytes },
    /// Registration slots, 4 bytes each, little-endian: each counts one serial.
    Invalidated { slots: Bytes },
    /// So many ticks: each counts one serial.
    Ticks { newest: Tick, entries: u64 },
}

impl Run {
    fn serials(&self) -> u64 {
        match self {
            Run::Freeze { .. } => 1,
            Run::Hashes { hashes, .. } => (hashes.len() / 8) as u64,
            Run::Invalidated { slots } => (slots.len() / 4) as u64,
            Run::Ticks { entries, .. } => *entries,
        }
    }

    /// The memtable that it is about, if it is about one.
    fn memtable(&self) -> Option<(TableId, Generation)> {
        match self {
            Run::Freeze { table, generation } | Run::Hashes { table, generation, .. } => {
                Some((*table, *generation))
            }
            Run::Invalidated { .. } | Run::Ticks { .. } => None,
        }
    }
}

/// One partition's part of a reply to a pull.
#[derive(Clone, Debug)]
pub(crate) struct Update {
    pub status: UpdateStatus,
    pub epoch: Epoch,
    pub serial_from: Serial,
    pub serial_to: Serial,
    pub runs: Vec<Run>,
    pub manifest: Option<Manifest>,
    /// What there is of the manifest, if it is not what we have.
    pub told: Option<ToldOfManifest>,
    pub grant: Option<Grant>,
    /// The newest tick that the leader has published; 0: none that is known.
    pub published: Tick,
}

/// What has to happen besides installing the view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The view uses what the reply brought.
    Current,
    /// Whole filters have to be fetched. Until then the view keeps what it has: an old lease is good until it expires.
    NeedFilters,
    /// The reply told nothing about filters.
    Nothing,
    /// The reply is of an older epoch than the view.
    Outdated,
}

/// Applies a reply: bits first; the returned view (None: no change) is what may be installed and then acknowledged.
pub(crate) fn apply(
    view: &PartitionView,
    update: Update,
    times: PullTimes,
    drift: Drift,
) -> (Option<PartitionView>, Verdict) {
    // A manifest is committed state: it is good whatever became of epochs and serials.
    let with_manifest = view.with_news(update.manifest, update.told.as_ref());
    // So is a published tick.
    let changed = with_manifest.is_some() || update.published > view.published;
    let mut next = with_manifest.unwrap_or_else(|| view.clone());
    next.published = next.published.max(update.published);
    let only_manifest = |next: PartitionView, verdict| (changed.then_some(next), verdict);
    match update.status {
        UpdateStatus::NotLeader | UpdateStatus::NotReady => return only_manifest(next, Verdict::Nothing),
        UpdateStatus::NeedFilters => {
            let outdated = view.copies.as_ref().is_some_and(|c| update.epoch < c.epoch);
            let verdict = if outdated { Verdict::Outdated } else { Verdict::NeedFilters };
            return only_manifest(next, verdict);
        }
        UpdateStatus::Ok | UpdateStatus::Throttled => {}
    }
    let Some(copies) = &mut next.copies else { return only_manifest(next, Verdict::NeedFilters) };
    if update.epoch < copies.epoch && !mutant::active(Mutant::SerialsGoOn) {
        return only_manifest(next, Verdict::Outdated);
    }
    let same_source = mutant::active(Mutant::SerialsGoOn)
        || update.epoch == copies.epoch && copies.boot.is_none_or(|boot| boot == times.server_boot);
    let serials = update.runs.iter().map(Run::serials).fold(0, u64::saturating_add);
    let continues = update.serial_from == copies.serial
        && update.serial_from.0.checked_add(serials) == Some(update.serial_to.0);
    if !same_source || !continues {
        return only_manifest(next, Verdict::NeedFilters);
    }

    let mut serial = update.serial_from.0;
    for run in &update.runs {
        take(copies, &next.manifest, run, serial);
        serial += run.serials();
    }
    let moved_on = copies.serial != update.serial_to;
    copies.serial = update.serial_to;
    copies.boot = Some(times.server_boot);
    // A lease without the tables of its version is no lease.
    let grant = update.grant.filter(|g| g.manifest_version <= next.manifest.version);
    next.lease = match (grant, next.lease.take()) {
        (Some(grant), Some(earlier)) => Some(Lease::new(grant, times, drift).after(&earlier)),
        (Some(grant), None) => Some(Lease::new(grant, times, drift)),
        // To acknowledge a serial ends the grants below it: a view that moves on needs a lease for where it stands.
        (None, Some(_)) if moved_on && !mutant::active(Mutant::LeaseOutlivesItsSerial) => None,
        (None, earlier) => earlier,
    };
    // This is the leader: it has none but ours, unless it has told of another.
    next.manifest_known |= !update.told.is_some_and(|told| next.lacks(&told));
    (Some(next), Verdict::Current)
}

/// Takes over what a run says. `serial`: before its first entry.
fn take(copies: &mut FilterCopies, manifest: &ManifestView, run: &Run, serial: u64) {
    if let Run::Invalidated { slots } = run {
        let slots = slots.chunks_exact(4).map(|b| u32::from_le_bytes(b.try_into().unwrap_or_default()));
        copies.slots.invalidate(slots.map(|slot| slot as usize), Serial(serial));
    }
    if let Run::Ticks { newest, .. } = run {
        copies.announced = copies.announced.max(*newest);
    }
    let Some((table, generation)) = run.memtable() else { return };
    // What the manifest has flushed needs no filter any more; its entries count all the same.
    if manifest.table(table).is_some_and(|t| generation <= t.flushed_generation) {
        return;
    }
    let filter = copies.filter_or_new(table, generation);
    if let Run::Hashes { hashes, .. } = run {
        let hashes = hashes.chunks_exact(8).map(|b| u64::from_le_bytes(b.try_into().unwrap_or_default()));
        filter.insert_all(hashes);
    }
}

/// Whole filters as fetched.
pub(crate) struct WholeFilters {
    pub epoch: Epoch,
    pub serial: Serial,
    pub manifest: Option<Manifest>,
    /// What there is of it.
    pub told: Option<ToldOfManifest>,
    pub filters: Vec<(TableId, Generation, LayeredBloom)>,
    /// That the leader has in this epoch: 0 or a power of two.
    pub registration_slots: usize,
    /// The newest that is out in the ring up to `serial`, or was in the log before.
    pub tick: Tick,
}

/// Installs whole filters as new objects: readers of the old view keep theirs. None: the view is ahead of them already.
///
/// The old lease goes with its filters: it is of another epoch or of an older serial, and ends when the new one is
/// acknowledged.
pub(crate) fn install_whole(view: &PartitionView, whole: WholeFilters) -> Option<PartitionView> {
    if let Some(copies) = &view.copies
        && (whole.epoch, whole.serial) < (copies.epoch, copies.serial)
    {
        return None;
    }
    let mut next = view.with_news(whole.manifest, whole.told.as_ref()).unwrap_or_else(|| view.clone());
    // Whatever was invalidated before is unknown, in a new epoch too: its leader may have answered before its filters came.
    let mut copies = FilterCopies::new(whole.epoch, whole.serial, whole.registration_slots, whole.filters);
    copies.announced = whole.tick;
    mutant_slots(view, &mut copies);
    next.copies = Some(copies);
    next.lease = None;
    next.drop_flushed_filters();
    Some(next)
}

/// What broken builds take for the serials of slots.
fn mutant_slots(view: &PartitionView, copies: &mut FilterCopies) {
    let before = view.copies.as_ref().filter(|before| before.epoch == copies.epoch);
    match before {
        Some(before) if mutant::active(Mutant::KeptOverWholeFilters) => copies.slots = before.slots.clone(),
        None if mutant::active(Mutant::KeptOverFirstFilters) => {
            copies.slots = SlotSerials::new(copies.slots.len(), Serial(0)).into();
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests;
