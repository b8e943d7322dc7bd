//! What replies may and may not do to a view.

use std::sync::Arc;

use proptest::prelude::*;
use sextant_common::expiry::{Tick, Ticks};
use sextant_common::ids::{ManifestVersion, NodeId};
use sextant_common::manifest::ManifestChange;
use sextant_environment::Clock;
use sextant_environment::config::LeaseMode;
use sextant_simulated::ManualClock;

use super::*;
use crate::testing::{manifest, sst_meta, table_manifest};

const T1: TableId = TableId(1);
const EPOCH: Epoch = Epoch { term: 3, incarnation: 1 };
const MS: u64 = 1_000_000;

fn bits(generation: u64, hashes: &[u64]) -> Run {
    let hashes = hashes.iter().flat_map(|h| h.to_le_bytes()).collect::<Vec<_>>().into();
    Run::Hashes { table: T1, generation: Generation(generation), hashes }
}

fn freeze(generation: u64) -> Run {
    Run::Freeze { table: T1, generation: Generation(generation) }
}

fn invalidated(slots: &[u32]) -> Run {
    Run::Invalidated { slots: slots.iter().flat_map(|slot| slot.to_le_bytes()).collect::<Vec<_>>().into() }
}

const SLOTS: usize = 8;

/// Whole filters without bits or a manifest.
fn whole(epoch: Epoch, serial: u64) -> WholeFilters {
    let (serial, filters) = (Serial(serial), Vec::new());
    WholeFilters {
        epoch,
        serial,
        manifest: None,
        told: None,
        filters,
        registration_slots: SLOTS,
        tick: Tick(0),
    }
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
        told: None,
        grant: None,
        published: Tick(0),
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
        told: None,
        filters: vec![(T1, Generation(1), LayeredBloom::new())],
        registration_slots: SLOTS,
        tick: Tick(0),
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
    let (next, verdict) = apply_now(&old, update(10, vec![bits(1, &[77])]));
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
    let runs = vec![bits(1, &[1]), freeze(2), bits(2, &[2])];
    let copies = apply_now(&view, update(0, runs)).0.unwrap().copies.unwrap();
    let has = |generation, hash| copies.filter(T1, Generation(generation)).unwrap().contains(hash);
    assert!(has(1, 1) && !has(1, 2) && has(2, 2) && !has(2, 1));
    assert_eq!(copies.serial, Serial(3));
}

#[test]
fn invalidations_count_as_they_come_and_old_views_see_them_too() {
    let old = view_at(10);
    let over = |view: &PartitionView| {
        let slots = view.copies.as_ref().unwrap().slots.clone();
        (0..SLOTS).map(|slot| slots.over_at(slot).unwrap().0).collect::<Vec<_>>()
    };
    assert_eq!(over(&old), [10; SLOTS], "what was invalidated before whole filters is unknown");
    let runs = vec![invalidated(&[3, 1]), bits(1, &[7, 8]), invalidated(&[3])];
    let next = apply_now(&old, update(10, runs)).0.unwrap();
    assert_eq!(next.copies.as_ref().unwrap().serial, Serial(15));
    assert_eq!(over(&next), [10, 12, 10, 15, 10, 10, 10, 10]);
    assert_eq!(over(&old), over(&next));
    // Whole filters again, in the same epoch or in another: the same.
    for (epoch, serial) in [(EPOCH, 20), (Epoch { term: 4, incarnation: 1 }, 2)] {
        let installed = install_whole(&next, whole(epoch, serial)).unwrap();
        assert_eq!(over(&installed), [serial; SLOTS]);
    }
}

#[test]
fn filters_of_flushed_memtables_are_dropped_with_their_manifest() {
    let view = view_at(0);
    let (next, _) = apply_now(&view, update(0, vec![bits(1, &[1]), freeze(2), bits(2, &[2])]));
    let next = next.unwrap().with_news(Some(flushed(2, 1)), None).unwrap();
    let copies = next.copies.as_ref().unwrap();
    assert!(copies.filter(T1, Generation(1)).is_none());
    assert!(copies.contains(T1, 2) && !copies.contains(T1, 1));
    // Entries of the flushed memtable that arrive late count, but need no filter.
    let (late, verdict) = apply_now(&next, update(3, vec![bits(1, &[5])]));
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
    let of_new = Update { epoch: new_epoch, grant: grant(1), ..update(10, vec![bits(1, &[7])]) };
    let (next, verdict) = apply_now(&leased, of_new);
    assert_eq!(verdict, Verdict::NeedFilters);
    assert!(next.is_none(), "neither bits nor lease nor serial are taken");
    let installed = install_whole(&leased, whole(new_epoch, 2)).unwrap();
    assert!(installed.lease.is_none(), "a lease goes with the filters of its epoch");
    let copies = installed.copies.as_ref().unwrap();
    assert_eq!((copies.epoch, copies.serial), (new_epoch, Serial(2)));
    let old = leased.copies.as_ref().unwrap().filter(T1, Generation(1)).unwrap();
    let (next, _) = apply_now(&installed, Update { epoch: new_epoch, ..update(2, vec![bits(1, &[8])]) });
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
        ..update(10, vec![bits(1, &[3])])
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
    let (next, verdict) =
        apply(&view, Update { grant: grant(1), ..update(10, vec![]) }, restarted, Drift::of_each_clock(0));
    assert_eq!(verdict, Verdict::NeedFilters);
    assert!(next.is_none());
}

#[test]
fn a_gap_in_the_serials_needs_whole_filters() {
    for from in [9, 11, 500] {
        let (next, verdict) =
            apply_now(&view_at(10), Update { grant: grant(1), ..update(from, vec![bits(1, &[1])]) });
        assert_eq!(verdict, Verdict::NeedFilters);
        assert!(next.is_none());
    }
    let mut short = update(10, vec![bits(1, &[1])]);
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
    let newer = next.with_news(Some(flushed(3, 2)), None).unwrap();
    assert!(newer.leased_copies(&clock).is_some());
    let older_grant =
        apply(&newer, Update { grant: grant(2), ..update(0, vec![]) }, times(&clock), drift).0.unwrap();
    assert!(older_grant.leased_copies(&clock).is_some());
}

#[test]
fn manifest_versions_never_fall() {
    let view = view_at(0).with_news(Some(flushed(7, 3)), None).unwrap();
    assert!(view.with_news(Some(flushed(6, 2)), None).is_none());
    let whole = WholeFilters {
        epoch: Epoch { term: 9, incarnation: 1 },
        serial: Serial(0),
        manifest: Some(flushed(5, 2)),
        told: None,
        filters: vec![(T1, Generation(3), LayeredBloom::new()), (T1, Generation(4), LayeredBloom::new())],
        registration_slots: SLOTS,
        tick: Tick(0),
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
        apply(&view_at(0), Update { grant: grant(1), ..update(0, vec![]) }, times(&clock), drift).0.unwrap();
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
        apply(&view_at(0), Update { grant: grant(1), ..update(0, vec![]) }, times(&clock), drift).0.unwrap();
    let throttled = Update { status: UpdateStatus::Throttled, ..update(0, vec![bits(1, &[4])]) };
    let next = apply(&leased, throttled, times(&clock), drift).0.unwrap();
    assert!(next.lease.is_none());
    let newer_version = Update { grant: grant(2), ..update(0, vec![bits(1, &[4])]) };
    assert!(apply(&leased, newer_version, times(&clock), drift).0.unwrap().lease.is_none());
    assert!(install_whole(&leased, whole(EPOCH, 7)).unwrap().lease.is_none());
}

#[test]
fn old_whole_filters_do_not_replace_newer_copies() {
    let view = view_at(10);
    let whole = |term, serial| whole(Epoch { term, incarnation: 1 }, serial);
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
    let u = Update { manifest: Some(manifest(5, vec![table_manifest(1, vec![moved])])), ..update(0, vec![]) };
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
                        runs.push(bits(generation, &[*hash]));
                    }
                    None => {
                        generation += 1;
                        runs.push(freeze(generation));
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

#[test]
fn a_tick_is_announced_by_its_serial_and_published_when_the_leader_says_so() {
    let view = view_at(5);
    let known = |published, announced| Ticks { published: Tick(published), announced: Tick(announced) };
    assert_eq!(view.ticks(), known(0, 0));
    let ticks = Update { published: Tick(7), ..update(5, vec![Run::Ticks { newest: Tick(9), entries: 2 }]) };
    let (next, verdict) = apply_now(&view, ticks);
    let view = next.unwrap();
    assert_eq!((verdict, view.ticks()), (Verdict::Current, known(7, 9)));
    assert_eq!(view.copies.as_ref().unwrap().serial, Serial(7));
    // Of a reply that tells nothing of filters, what was published counts; and it never falls.
    let not_ready = |at| Update { status: UpdateStatus::NotReady, published: Tick(at), ..update(0, vec![]) };
    let (next, _) = apply_now(&view, not_ready(8));
    let view = next.unwrap();
    assert_eq!(view.ticks(), known(8, 9));
    assert!(apply_now(&view, not_ready(6)).0.is_none());
    // A new leader's filters: what it has announced is its own, what was published stays so.
    let later = Epoch { term: EPOCH.term + 1, ..EPOCH };
    let view = install_whole(&view, WholeFilters { tick: Tick(3), ..whole(later, 0) }).unwrap();
    assert_eq!(view.ticks(), known(8, 3));
}

/// Version 1 as [`view_at`] has it, and what a leader tells of the flushes after it.
fn told(versions: u64) -> ToldOfManifest {
    let mut leader = manifest(1, vec![table_manifest(1, vec![])]);
    let mut changes = Vec::new();
    for version in 2..=versions {
        let mut next = leader.clone();
        next.version = ManifestVersion(version);
        let table = next.table_mut(T1).unwrap();
        table.flushed_generation = Generation(version - 1);
        table.ssts.insert(0, sst_meta(version as u32, b"a", b"z"));
        changes.push(ManifestChange::between(&leader, &next).unwrap());
        leader = next;
    }
    ToldOfManifest { partition: leader.partition, version: leader.version, digest: leader.digest(), changes }
}

#[test]
fn a_view_follows_changes_from_where_it_is() {
    let told = told(5);
    let update = Update { told: Some(told.clone()), grant: grant(5), ..update(0, vec![bits(1, &[1])]) };
    let next = apply_now(&view_at(0), update.clone()).0.unwrap();
    assert_eq!((next.manifest.version, next.manifest.digest), (told.version, told.digest));
    assert!(next.lease.is_some() && !next.lacks(&told));
    assert_eq!(next.manifest.ssts().count(), 4);
    // Another answer has brought a part of it before: the rest is taken.
    let some = ToldOfManifest { changes: told.changes[..2].to_vec(), ..told.clone() };
    let ahead = view_at(0).with_news(None, Some(&some)).unwrap();
    assert_eq!(ahead.manifest.version, ManifestVersion(3));
    assert!(ahead.lacks(&some));
    let next = apply_now(&ahead, update).0.unwrap();
    assert_eq!((next.manifest.version, next.manifest.digest), (told.version, told.digest));
    assert!(next.with_news(None, Some(&told)).is_none(), "there is nothing new in it");
}

#[test]
fn what_changes_do_not_lead_to_is_not_used_nor_a_lease_of_it() {
    let told = told(4);
    let mut gap = told.clone();
    gap.changes.remove(1);
    let mut wrong = told.clone();
    wrong.changes[1].digest.0 += 1;
    let behind = ToldOfManifest { changes: Vec::new(), ..told };
    for (told, version) in [(gap, 2), (wrong, 2), (behind, 1)] {
        let update = Update { told: Some(told.clone()), grant: grant(4), ..update(0, vec![]) };
        let (next, verdict) = apply_now(&view_at(0), update);
        let next = next.unwrap();
        assert_eq!((verdict, next.manifest.version), (Verdict::Current, ManifestVersion(version)));
        assert!(next.lacks(&told), "the whole is fetched");
        assert!(next.lease.is_none(), "without the tables of its version it is none");
    }
}
