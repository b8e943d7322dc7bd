//! With all rules nothing goes wrong: every state within the bounds is looked at. Larger bounds are for the binary
//! (`docs/model.md`).

mod support;

use sextant_model::bounds::{TOMBSTONES, VALUES};
use sextant_model::state::Cell;
use sextant_model::state::WriteKind::{Delete, Insert, Put, Replace, Update};
use sextant_model::{Bounds, Mutant};

use support::assert_none;

fn one_write() -> Bounds {
    Bounds { writes: 1, ..Bounds::small() }
}

#[test]
fn two_writes_of_every_kind() {
    assert_none(Bounds { kinds: vec![Update, Put, Insert, Replace, Delete], ..Bounds::small() });
}

#[test]
fn a_flush_and_a_merge() {
    assert_none(Bounds { freezes: 1, compactions: 1, kinds: vec![Update, Insert, Delete], ..one_write() });
}

#[test]
fn two_pnodes_and_a_flush() {
    let kinds = vec![Update];
    assert_none(Bounds { pnodes: 2, freezes: 1, kinds, preloaded: vec![VALUES], ..one_write() });
}

#[test]
fn two_pnodes_and_a_failover() {
    let kinds = vec![Update, Insert];
    assert_none(Bounds { pnodes: 2, failovers: 1, kinds, preloaded: vec![VALUES], ..one_write() });
}

#[test]
fn two_writes_and_two_failovers() {
    let kinds = vec![Update];
    assert_none(Bounds { failovers: 2, two_replies: true, kinds, preloaded: vec![VALUES], ..one_write() });
    let kinds = vec![Insert, Delete];
    assert_none(Bounds { failovers: 1, kinds, preloaded: vec![VALUES], ..Bounds::small() });
}

#[test]
fn two_keys_in_one_group() {
    let (kinds, preloaded) = (vec![Update], vec![VALUES]);
    assert_none(Bounds { keys: 2, batches: true, kinds, preloaded, ..one_write() });
}

#[test]
fn requests_that_share_a_group() {
    assert_none(Bounds { shared_groups: true, preloaded: vec![VALUES, Cell::NOTHING], ..Bounds::small() });
}

#[test]
fn a_retried_request_over_a_failover() {
    let kinds = vec![Update, Insert];
    assert_none(Bounds { sessions: true, retries: 2, failovers: 1, kinds, ..one_write() });
}

#[test]
fn a_failed_condition_whose_delayed_copy_arrives_under_another_leader() {
    let (kinds, preloaded) = (vec![Insert, Delete], vec![VALUES]);
    let bounds = Bounds { sessions: true, retries: 1, failovers: 1, kinds, preloaded, ..Bounds::small() };
    assert_none(bounds);
}

#[test]
fn a_session_that_expires_while_copies_of_its_request_are_on_their_way() {
    let kinds = vec![Update, Insert];
    let bounds = Bounds { sessions: true, session_expiries: 1, retries: 1, kinds, ..one_write() };
    assert_none(Bounds { failovers: 1, ..bounds.clone() });
    assert_none(Bounds { writes: 2, kinds: vec![Insert, Delete], preloaded: vec![VALUES], ..bounds });
}

#[test]
fn the_cache_over_a_flush_and_a_merge() {
    let (kinds, preloaded) = (vec![Update, Delete], vec![VALUES]);
    assert_none(Bounds { cache: true, freezes: 1, compactions: 1, kinds, preloaded, ..one_write() });
}

#[test]
fn graces_and_reads_in_halves() {
    let (kinds, preloaded) = (vec![Update, Insert], vec![VALUES, TOMBSTONES]);
    assert_none(Bounds { grace: true, split_reads: true, freezes: 1, kinds, preloaded, ..one_write() });
}

#[test]
fn refused_groups_and_freezes_that_slip_in() {
    let (kinds, preloaded) = (vec![Update], vec![VALUES]);
    assert_none(Bounds { refusals: 1, slips: true, freezes: 1, kinds, preloaded, ..one_write() });
}

#[test]
fn changes_of_the_mode_of_leases() {
    let kinds = vec![Update, Insert];
    assert_none(Bounds { mode_changes: 2, freezes: 1, kinds: kinds.clone(), ..one_write() });
    assert_none(Bounds { mode_changes: 1, failovers: 1, kinds, ..one_write() });
    let (kinds, preloaded) = (vec![Update], vec![VALUES]);
    assert_none(Bounds { mode_changes: 2, kinds, preloaded, ..Bounds::small() });
}

#[test]
fn every_write_leaves_a_bit() {
    let kinds = vec![Insert, Delete];
    assert_none(Bounds {
        filter_inserts: true,
        preloaded: vec![TOMBSTONES, Cell::NOTHING],
        kinds,
        ..Bounds::small()
    });
}

/// Scans of keys that begin alike, which ask the leader only if a filter has the prefix.
#[test]
fn scans_of_a_prefix() {
    let scans = Bounds { scans: true, keys: 2, ..Bounds::small() };
    let kinds = vec![Update, Insert, Delete];
    assert_none(Bounds { freezes: 1, kinds: vec![Update, Delete], ..scans.clone() });
    assert_none(Bounds { batches: true, shared_groups: true, kinds: vec![Update, Insert], ..scans.clone() });
    assert_none(Bounds { writes: 1, failovers: 1, refusals: 1, freezes: 1, kinds, ..scans });
}

/// Bits that a refused group left behind are only false positives, unless the next update of the key takes them for its own: it
/// then leaves none, and is published without waiting for those who have not pulled the old one. (With registered reads one of the
/// two is not enough: `mutants.rs`.)
#[test]
fn rules_that_cover_for_each_other() {
    for mutant in [Mutant::RefusedBitsStay, Mutant::FilterSaysWithNewRing] {
        let (kinds, preloaded) = (vec![Update, Insert], vec![VALUES]);
        assert_none(Bounds { refusals: 1, kinds, preloaded, ..Bounds::small() }.with(mutant));
    }
}
