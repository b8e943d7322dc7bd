//! What a reply does to a view.

use bytes::Bytes;
use sextant_common::filter::LayeredBloom;
use sextant_common::ids::{Epoch, Generation, Serial, TableId};
use sextant_common::manifest::Manifest;
use sextant_rules::mutant::{self, Mutant};

use crate::lease::{Drift, Grant, Lease, PullTimes};
use crate::view::{FilterCopies, PartitionView};

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

/// A run of bf-log entries of one memtable.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    pub table: TableId,
    pub generation: Generation,
    pub kind: RunKind,
}

#[derive(Clone, Debug)]
pub(crate) enum RunKind {
    /// The memtable `generation` begins: counts one serial.
    Freeze,
    /// 8 bytes a hash, little-endian: each counts one serial.
    Hashes(Bytes),
}

impl Run {
    fn serials(&self) -> u64 {
        match &self.kind {
            RunKind::Freeze => 1,
            RunKind::Hashes(bytes) => (bytes.len() / 8) as u64,
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
    pub grant: Option<Grant>,
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
///
/// `tables` of the manifest are not looked at here: the caller learns names.
pub(crate) fn apply(
    view: &PartitionView,
    update: Update,
    times: PullTimes,
    drift: Drift,
) -> (Option<PartitionView>, Verdict) {
    // A manifest is committed state: it is good whatever became of epochs and serials.
    let with_manifest = update.manifest.and_then(|m| view.with_manifest(m));
    let changed = with_manifest.is_some();
    let mut next = with_manifest.unwrap_or_else(|| view.clone());
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
    let serials = update.runs.iter().map(Run::serials).sum::<u64>();
    let continues = update.serial_from == copies.serial
        && update.serial_from.0.checked_add(serials) == Some(update.serial_to.0);
    if !same_source || !continues {
        return only_manifest(next, Verdict::NeedFilters);
    }

    for run in &update.runs {
        // What the manifest has flushed needs no filter any more; its entries count all the same.
        let flushed = next.manifest.table(run.table).is_some_and(|t| run.generation <= t.flushed_generation);
        if flushed {
            continue;
        }
        let filter = copies.filter_or_new(run.table, run.generation);
        if let RunKind::Hashes(bytes) = &run.kind {
            let hashes = bytes.chunks_exact(8).map(|b| u64::from_le_bytes(b.try_into().unwrap_or_default()));
            filter.insert_all(hashes);
        }
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
    // No manifest came although this is the leader: it has none newer than ours.
    next.manifest_known = true;
    (Some(next), Verdict::Current)
}

/// Whole filters as fetched.
pub(crate) struct WholeFilters {
    pub epoch: Epoch,
    pub serial: Serial,
    pub manifest: Option<Manifest>,
    pub filters: Vec<(TableId, Generation, LayeredBloom)>,
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
    let mut next = whole.manifest.and_then(|m| view.with_manifest(m)).unwrap_or_else(|| view.clone());
    next.copies = Some(FilterCopies::new(whole.epoch, whole.serial, whole.filters));
    next.lease = None;
    next.drop_flushed_filters();
    Some(next)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;
    use sextant_common::ids::{ManifestVersion, NodeId};
    use sextant_environment::Clock;
    use sextant_environment::config::LeaseMode;
    use sextant_simulated::ManualClock;

    use super::*;
    use crate::testing::{manifest, sst_meta, table_manifest};

    const T1: TableId = TableId(1);
    const EPOCH: Epoch = Epoch { term: 3, incarnation: 1 };
    const MS: u64 = 1_000_000;

    fn hashes(h: &[u64]) -> RunKind {
        RunKind::Hashes(h.iter().flat_map(|h| h.to_le_bytes()).collect::<Vec<_>>().into())
    }

    fn run(generation: u64, kind: RunKind) -> Run {
        Run { table: T1, generation: Generation(generation), kind }
    }

    fn update(from: u64, runs: Vec<Run>) -> Update {
        let to = from + runs.iter().map(Run::serials).sum::<u64>();
        Update {
            status: UpdateStatus::Ok,
            epoch: EPOCH,
            serial_from: Serial(from),
            serial_to: Serial(to),
            runs,
            manifest: None,
            grant: None,
        }
    }

    fn grant(version: u64) -> Option<Grant> {
        Some(Grant {
            manifest_version: ManifestVersion(version),
            expiry_mono_ns: 300 * MS,
            expiry_wall_ns: 0,
            drift_ppm: 0,
            mode: LeaseMode::Ack,
        })
    }

    fn times(clock: &ManualClock) -> PullTimes {
        let now = clock.holder_ns();
        PullTimes { sent_ns: now, received_ns: now, parked_ns: 0, server_mono_ns: 0, server_boot: 5 }
    }

    fn apply_now(view: &PartitionView, update: Update) -> (Option<PartitionView>, Verdict) {
        apply(view, update, times(&ManualClock::default()), Drift::of_each_clock(500))
    }

    /// A view with filters of [`EPOCH`] at a serial, memtable 1 active, manifest version 1.
    fn view_at(serial: u64) -> PartitionView {
        let whole = WholeFilters {
            epoch: EPOCH,
            serial: Serial(serial),
            manifest: Some(manifest(1, vec![table_manifest(1, vec![])])),
            filters: vec![(T1, Generation(1), LayeredBloom::new())],
        };
        install_whole(&PartitionView::empty(), whole).unwrap()
    }

    fn flushed(version: u64, generation: u64) -> Manifest {
        let mut table = table_manifest(1, vec![sst_meta(9, b"a", b"z")]);
        table.flushed_generation = Generation(generation);
        table.last_flush_version = ManifestVersion(version);
        manifest(version, vec![table])
    }

    #[test]
    fn bits_are_in_before_the_view_that_claims_them() {
        let old = view_at(10);
        let (next, verdict) = apply_now(&old, update(10, vec![run(1, hashes(&[77]))]));
        assert_eq!(verdict, Verdict::Current);
        // Also a reader that still holds the old view sees the bit: nothing can be missed between the two.
        assert!(old.copies.as_ref().unwrap().contains(T1, 77));
        let copies = next.unwrap().copies.unwrap();
        assert!(copies.contains(T1, 77));
        assert_eq!(copies.serial, Serial(11));
    }

    #[test]
    fn a_freeze_starts_the_next_generations_filter() {
        let view = view_at(0);
        let runs = vec![run(1, hashes(&[1])), run(2, RunKind::Freeze), run(2, hashes(&[2]))];
        let copies = apply_now(&view, update(0, runs)).0.unwrap().copies.unwrap();
        let has = |generation, hash| copies.filter(T1, Generation(generation)).unwrap().contains(hash);
        assert!(has(1, 1) && !has(1, 2) && has(2, 2) && !has(2, 1));
        assert_eq!(copies.serial, Serial(3));
    }

    #[test]
    fn filters_of_flushed_memtables_are_dropped_with_their_manifest() {
        let view = view_at(0);
        let (next, _) = apply_now(
            &view,
            update(0, vec![run(1, hashes(&[1])), run(2, RunKind::Freeze), run(2, hashes(&[2]))]),
        );
        let next = next.unwrap().with_manifest(flushed(2, 1)).unwrap();
        let copies = next.copies.as_ref().unwrap();
        assert!(copies.filter(T1, Generation(1)).is_none());
        assert!(copies.contains(T1, 2) && !copies.contains(T1, 1));
        // Entries of the flushed memtable that arrive late count, but need no filter.
        let (late, verdict) = apply_now(&next, update(3, vec![run(1, hashes(&[5]))]));
        assert_eq!(verdict, Verdict::Current);
        let late = late.unwrap().copies.unwrap();
        assert!(late.filter(T1, Generation(1)).is_none());
        assert_eq!(late.serial, Serial(4));
    }

    #[test]
    fn whole_filters_at_new_epoch() {
        let clock = ManualClock::default();
        let view = view_at(10);
        let leased = apply(
            &view,
            Update { grant: grant(1), ..update(10, vec![]) },
            times(&clock),
            Drift::of_each_clock(0),
        )
        .0
        .unwrap();
        assert!(leased.leased_copies(&clock).is_some());
        // The new leader's serials happen to continue ours: they mean something else.
        let new_epoch = Epoch { term: 4, incarnation: 1 };
        let of_new = Update { epoch: new_epoch, grant: grant(1), ..update(10, vec![run(1, hashes(&[7]))]) };
        let (next, verdict) = apply_now(&leased, of_new);
        assert_eq!(verdict, Verdict::NeedFilters);
        assert!(next.is_none(), "neither bits nor lease nor serial are taken");
        let whole = WholeFilters { epoch: new_epoch, serial: Serial(2), manifest: None, filters: vec![] };
        let installed = install_whole(&leased, whole).unwrap();
        assert!(installed.lease.is_none(), "a lease goes with the filters of its epoch");
        let copies = installed.copies.as_ref().unwrap();
        assert_eq!((copies.epoch, copies.serial), (new_epoch, Serial(2)));
        let old = leased.copies.as_ref().unwrap().filter(T1, Generation(1)).unwrap();
        let (next, _) =
            apply_now(&installed, Update { epoch: new_epoch, ..update(2, vec![run(1, hashes(&[8]))]) });
        let new = next.unwrap().copies.unwrap();
        assert!(
            !Arc::ptr_eq(old, new.filter(T1, Generation(1)).unwrap()),
            "a new epoch makes new filter objects"
        );
    }

    #[test]
    fn a_reply_of_an_older_epoch_changes_no_filter_and_extends_nothing() {
        let view = view_at(10);
        let stale = Update {
            epoch: Epoch { term: 2, incarnation: 9 },
            grant: grant(1),
            ..update(10, vec![run(1, hashes(&[3]))])
        };
        let (next, verdict) = apply_now(&view, stale);
        assert_eq!(verdict, Verdict::Outdated);
        assert!(next.is_none());
        assert!(!view.copies.as_ref().unwrap().contains(T1, 3));
    }

    #[test]
    fn a_reply_of_another_boot_needs_whole_filters() {
        let clock = ManualClock::default();
        let view = apply_now(&view_at(10), update(10, vec![])).0.unwrap();
        let restarted = PullTimes { server_boot: 6, ..times(&clock) };
        let (next, verdict) = apply(
            &view,
            Update { grant: grant(1), ..update(10, vec![]) },
            restarted,
            Drift::of_each_clock(0),
        );
        assert_eq!(verdict, Verdict::NeedFilters);
        assert!(next.is_none());
    }

    #[test]
    fn a_gap_in_the_serials_needs_whole_filters() {
        for from in [9, 11, 500] {
            let (next, verdict) = apply_now(
                &view_at(10),
                Update { grant: grant(1), ..update(from, vec![run(1, hashes(&[1]))]) },
            );
            assert_eq!(verdict, Verdict::NeedFilters);
            assert!(next.is_none());
        }
        let mut short = update(10, vec![run(1, hashes(&[1]))]);
        short.serial_to = Serial(12);
        assert_eq!(apply_now(&view_at(10), short).1, Verdict::NeedFilters, "an entry is missing");
    }

    #[test]
    fn lease_is_paired_with_its_manifest_version() {
        let clock = ManualClock::default();
        let drift = Drift::of_each_clock(0);
        let view = view_at(0);
        // A lease for version 2 without the manifest of version 2 is no lease.
        let (next, _) = apply(&view, Update { grant: grant(2), ..update(0, vec![]) }, times(&clock), drift);
        assert!(next.unwrap().lease.is_none());
        // With it, it is; and SSTables newer than its version are as good.
        let with = Update { grant: grant(2), manifest: Some(flushed(2, 1)), ..update(0, vec![]) };
        let next = apply(&view, with, times(&clock), drift).0.unwrap();
        assert!(next.leased_copies(&clock).is_some());
        let newer = next.with_manifest(flushed(3, 2)).unwrap();
        assert!(newer.leased_copies(&clock).is_some());
        let older_grant =
            apply(&newer, Update { grant: grant(2), ..update(0, vec![]) }, times(&clock), drift).0.unwrap();
        assert!(older_grant.leased_copies(&clock).is_some());
    }

    #[test]
    fn manifest_versions_never_fall() {
        let view = view_at(0).with_manifest(flushed(7, 3)).unwrap();
        assert!(view.with_manifest(flushed(6, 2)).is_none());
        let whole = WholeFilters {
            epoch: Epoch { term: 9, incarnation: 1 },
            serial: Serial(0),
            manifest: Some(flushed(5, 2)),
            filters: vec![(T1, Generation(3), LayeredBloom::new()), (T1, Generation(4), LayeredBloom::new())],
        };
        let installed = install_whole(&view, whole).unwrap();
        assert_eq!(installed.manifest.version, ManifestVersion(7), "a new leader's manifest may lag");
        let copies = installed.copies.unwrap();
        assert!(copies.filter(T1, Generation(3)).is_none() && copies.filter(T1, Generation(4)).is_some());
    }

    #[test]
    fn a_reply_without_news_and_lease_keeps_the_old_lease_until_it_expires() {
        let clock = ManualClock::default();
        let drift = Drift::of_each_clock(0);
        let leased =
            apply(&view_at(0), Update { grant: grant(1), ..update(0, vec![]) }, times(&clock), drift)
                .0
                .unwrap();
        let next = apply(&leased, update(0, vec![]), times(&clock), drift).0.unwrap();
        assert!(next.leased_copies(&clock).is_some());
        clock.advance_mono(std::time::Duration::from_millis(300));
        assert!(next.leased_copies(&clock).is_none());
    }

    /// The next pull acknowledges the new serial, and that ends the grants below it.
    #[test]
    fn a_view_that_moves_on_needs_a_lease_for_where_it_stands() {
        let clock = ManualClock::default();
        let drift = Drift::of_each_clock(0);
        let leased =
            apply(&view_at(0), Update { grant: grant(1), ..update(0, vec![]) }, times(&clock), drift)
                .0
                .unwrap();
        let throttled = Update { status: UpdateStatus::Throttled, ..update(0, vec![run(1, hashes(&[4]))]) };
        let next = apply(&leased, throttled, times(&clock), drift).0.unwrap();
        assert!(next.lease.is_none());
        let newer_version = Update { grant: grant(2), ..update(0, vec![run(1, hashes(&[4]))]) };
        assert!(apply(&leased, newer_version, times(&clock), drift).0.unwrap().lease.is_none());
        let whole = WholeFilters { epoch: EPOCH, serial: Serial(7), manifest: None, filters: vec![] };
        assert!(install_whole(&leased, whole).unwrap().lease.is_none());
    }

    #[test]
    fn old_whole_filters_do_not_replace_newer_copies() {
        let view = view_at(10);
        let whole = |term, serial| WholeFilters {
            epoch: Epoch { term, incarnation: 1 },
            serial: Serial(serial),
            manifest: None,
            filters: vec![],
        };
        assert!(install_whole(&view, whole(3, 9)).is_none());
        assert!(install_whole(&view, whole(2, 900)).is_none());
        assert!(install_whole(&view, whole(3, 50)).is_some());
        assert!(install_whole(&view, whole(4, 0)).is_some());
    }

    #[test]
    fn replies_without_filters_still_bring_manifests() {
        for status in [UpdateStatus::NotReady, UpdateStatus::NeedFilters, UpdateStatus::NotLeader] {
            let u = Update { status, manifest: Some(flushed(4, 1)), ..update(0, vec![]) };
            let (next, _) = apply_now(&view_at(0), u);
            assert_eq!(next.unwrap().manifest.version, ManifestVersion(4));
        }
        let mut moved = sst_meta(9, b"a", b"z");
        moved.replicas = vec![NodeId(4)];
        let u =
            Update { manifest: Some(manifest(5, vec![table_manifest(1, vec![moved])])), ..update(0, vec![]) };
        let (next, verdict) = apply_now(&PartitionView::empty(), u);
        assert_eq!(verdict, Verdict::NeedFilters, "the first filters are always whole");
        assert_eq!(next.unwrap().manifest.version, ManifestVersion(5));
    }

    proptest! {
        /// Any split of a bf-log into replies gives the same filters as the leader's, and no bit is ever missing.
        #[test]
        fn copies_contain_everything_up_to_their_serial(
            entries in prop::collection::vec(prop_oneof![9 => any::<u64>().prop_map(Some), 1 => Just(None)], 0..200),
            cuts in prop::collection::vec(0usize..200, 0..8),
        ) {
            let mut cuts: Vec<usize> = cuts.into_iter().map(|c| c.min(entries.len())).collect();
            cuts.push(entries.len());
            cuts.sort_unstable();
            let mut view = view_at(0);
            let (mut generation, mut done) = (1, 0);
            let mut leader: Vec<(u64, u64)> = Vec::new();
            for cut in cuts {
                let mut runs = Vec::new();
                for entry in &entries[done..cut] {
                    match entry {
                        Some(hash) => {
                            leader.push((generation, *hash));
                            runs.push(run(generation, hashes(&[*hash])));
                        }
                        None => {
                            generation += 1;
                            runs.push(run(generation, RunKind::Freeze));
                        }
                    }
                }
                let (next, verdict) = apply_now(&view, update(done as u64, runs));
                prop_assert_eq!(verdict, Verdict::Current);
                view = next.unwrap();
                done = cut;
                let copies = view.copies.as_ref().unwrap();
                prop_assert_eq!(copies.serial, Serial(done as u64));
                for (generation, hash) in &leader {
                    prop_assert!(copies.filter(T1, Generation(*generation)).unwrap().contains(*hash));
                }
            }
        }
    }
}
