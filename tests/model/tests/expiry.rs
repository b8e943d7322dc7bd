//! Expiry: with all rules nothing goes wrong, and p-nodes do say by themselves what has expired and what has not.

mod support;

use sextant_model::bounds::{TOMBSTONES, VALUES};
use sextant_model::state::Cell;
use sextant_model::state::WriteKind::{self, Delete, Insert, Put, Replace, Update};
use sextant_model::{Bounds, Mutant};

use support::assert_none;

/// Preloaded values expire at the only tick, and what is written there or never.
fn a_tick(writes: usize, kinds: &[WriteKind]) -> Bounds {
    let (preloaded, kinds, expiries) = (vec![VALUES], kinds.to_vec(), vec![0, 1]);
    Bounds { ticks: 1, preloaded_expiry: 1, expiries, preloaded, writes, kinds, ..Bounds::small() }
}

/// What is written does not expire.
fn only_preloaded(bounds: Bounds) -> Bounds {
    Bounds { expiries: vec![0], ..bounds }
}

#[test]
fn reads_of_records_that_expire() {
    assert_none(Bounds { ticks: 2, ..a_tick(0, &[Update]) });
    let preloaded = vec![VALUES, TOMBSTONES, Cell::NOTHING];
    assert_none(Bounds { preloaded, ..a_tick(1, &[Update, Insert, Delete]) });
}

#[test]
fn expiry_at_two_pnodes() {
    assert_none(Bounds { pnodes: 2, ..a_tick(0, &[Update]) });
}

/// Two keys whose values expire at once: who finds one of them expired finds neither afterwards.
#[test]
fn time_is_the_same_for_all_keys() {
    assert_none(Bounds { keys: 2, pnodes: 2, ..a_tick(0, &[Update]) });
    assert_none(Bounds { keys: 2, ..a_tick(1, &[Update]) });
}

#[test]
fn expiry_over_a_failover() {
    assert_none(Bounds { failovers: 1, ..a_tick(1, &[Update]) });
    assert_none(Bounds { ticks: 2, preloaded_expiry: 2, failovers: 1, ..a_tick(0, &[Update]) });
    assert_none(only_preloaded(Bounds { failovers: 1, ..a_tick(1, &[Insert, Replace]) }));
}

#[test]
fn expiry_in_halves() {
    let halves = Bounds { grace: true, split_reads: true, ..a_tick(1, &[Update]) };
    assert_none(only_preloaded(Bounds { freezes: 1, ..halves }));
}

#[test]
fn expiry_where_every_write_leaves_a_bit() {
    assert_none(Bounds { filter_inserts: true, cache: true, ..a_tick(1, &[Update, Insert]) });
}

#[test]
fn registered_reads_of_records_that_expire() {
    assert_none(only_preloaded(Bounds { registered: true, ..a_tick(1, &[Update]) }));
    assert_none(only_preloaded(Bounds { registered: true, filter_inserts: true, ..a_tick(1, &[Insert]) }));
}

#[test]
fn conditions_on_records_that_expire() {
    assert_none(a_tick(1, &[Put, Insert, Replace, Delete]));
    assert_none(Bounds { preloaded: vec![Cell::NOTHING], ..a_tick(2, &[Insert, Replace]) });
    assert_none(Bounds { shared_groups: true, ..only_preloaded(a_tick(2, &[Replace])) });
}

#[test]
fn expiry_over_a_flush() {
    for buries in [false, true] {
        assert_none(Bounds { freezes: 1, preloaded_expiry: 0, buries, ..a_tick(1, &[Update]) });
    }
    assert_none(Bounds { freezes: 1, ..only_preloaded(a_tick(1, &[Insert])) });
}

#[test]
fn expiry_over_a_merge() {
    assert_none(Bounds { compactions: 1, ..a_tick(0, &[Update]) });
    assert_none(only_preloaded(Bounds { compactions: 1, cache: true, ..a_tick(1, &[Insert]) }));
}

#[test]
fn ticks_that_are_refused_and_new_rings() {
    assert_none(Bounds { refusals: 1, mode_changes: 1, ..a_tick(0, &[Update]) });
}

/// An INSERT over an expired record is published after the tick, so whoever holds a lease knows of that, and asks the leader. A T that
/// is too high makes p-nodes ask, too.
#[test]
fn rules_of_expiry_that_others_cover_for() {
    let leaves_no_bit = |bounds: Bounds| assert_none(bounds.with(Mutant::ExpiredLeavesNoBit));
    leaves_no_bit(a_tick(1, &[Insert, Put]));
    leaves_no_bit(only_preloaded(Bounds { compactions: 1, cache: true, ..a_tick(1, &[Insert]) }));
    leaves_no_bit(only_preloaded(Bounds { freezes: 1, ..a_tick(1, &[Insert]) }));
    let refused = Bounds { ticks: 2, preloaded_expiry: 1, refusals: 1, ..a_tick(0, &[Update]) };
    assert_none(refused.with(Mutant::RefusedTickKeepsRing));
}
