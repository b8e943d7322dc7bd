//! Registered reads, and loads: with all rules nothing goes wrong, and what is kept is used.

mod support;

use sextant_model::bounds::{TOMBSTONES, VALUES};
use sextant_model::explore::Model;
use sextant_model::state::WriteKind::{self, Delete, Insert, Update};
use sextant_model::state::registered::Said;
use sextant_model::state::{Cell, State};
use sextant_model::{Action, Bounds, Mutant, Protocol, explore};
use sextant_rules::catalogue::Way;

use support::{STATES_MAX, assert_none};

fn registered(beginning: Cell, writes: usize, kinds: &[WriteKind]) -> Bounds {
    let (preloaded, kinds) = (vec![beginning], kinds.to_vec());
    Bounds { registered: true, preloaded, writes, kinds, ..Bounds::small() }
}

fn a_load(beginning: Cell) -> Bounds {
    Bounds { loads: 1, ..registered(beginning, 0, &[Update]) }
}

#[test]
fn registered_reads_of_two_writes() {
    assert_none(registered(VALUES, 2, &[Update, Insert, Delete]));
}

#[test]
fn registered_reads_of_keys_that_share_a_slot() {
    for shared_slot in [true, false] {
        assert_none(Bounds { keys: 2, batches: true, shared_slot, ..registered(VALUES, 1, &[Update]) });
    }
}

#[test]
fn registered_reads_at_two_pnodes() {
    assert_none(Bounds { pnodes: 2, ..registered(VALUES, 1, &[Update]) });
}

#[test]
fn registered_reads_and_a_failover() {
    assert_none(Bounds { failovers: 1, ..registered(VALUES, 2, &[Update]) });
    assert_none(Bounds { failovers: 2, ..registered(VALUES, 1, &[Update, Insert]) });
}

#[test]
fn registered_reads_and_new_rings() {
    assert_none(Bounds { mode_changes: 2, ..registered(VALUES, 1, &[Update]) });
    assert_none(Bounds { refusals: 1, ..registered(VALUES, 1, &[Update]) });
    assert_none(Bounds { refusals: 1, ..registered(Cell::NOTHING, 1, &[Insert]) });
}

#[test]
fn registered_reads_and_groups_that_are_ignored() {
    assert_none(Bounds { slips: true, freezes: 1, ..registered(Cell::NOTHING, 1, &[Insert]) });
}

#[test]
fn registered_reads_and_whole_filters_within_an_epoch() {
    assert_none(Bounds { overflows: true, ..registered(VALUES, 2, &[Update]) });
}

#[test]
fn registered_reads_and_a_flush() {
    let preloaded = vec![VALUES, TOMBSTONES, Cell::NOTHING];
    let bounds = Bounds { freezes: 1, preloaded, ..registered(VALUES, 1, &[Update, Insert, Delete]) };
    assert_none(bounds.clone());
    assert_none(Bounds { sstables_not_kept: true, preloaded: vec![VALUES], kinds: vec![Update], ..bounds });
}

#[test]
fn registered_reads_in_halves_and_graces() {
    let (grace, split_reads) = (true, true);
    assert_none(Bounds { grace, split_reads, freezes: 1, ..registered(VALUES, 1, &[Update]) });
}

#[test]
fn loads_beside_reads_and_writes() {
    assert_none(Bounds { failovers: 1, ..a_load(VALUES) });
    assert_none(Bounds { refusals: 1, ..a_load(VALUES) });
    assert_none(Bounds { sstables_not_kept: true, ..a_load(VALUES) });
    assert_none(Bounds { writes: 1, kinds: vec![Insert], ..a_load(Cell::NOTHING) });
}

/// What the servers do.
#[test]
fn loads_that_are_adopted_while_no_lease_lives() {
    let adopted = |beginning| Bounds { adopted: true, ..a_load(beginning) };
    assert_none(adopted(VALUES));
    assert_none(Bounds { failovers: 1, ..adopted(VALUES) });
    assert_none(Bounds { cache: true, grace: true, ..adopted(VALUES) });
    assert_none(Bounds { writes: 1, freezes: 1, kinds: vec![Insert, Update], ..adopted(Cell::NOTHING) });
}

#[test]
fn drops_beside_the_cache() {
    let drops = Bounds { loaded: Cell::NOTHING, ..a_load(VALUES) };
    assert_none(Bounds { cache: true, ..drops.clone() });
    assert_none(Bounds { writes: 1, kinds: vec![Insert], ..drops });
}

/// What the servers do: what memtables hold goes with the table.
#[test]
fn drops_while_no_lease_lives() {
    let drops = |beginning| Bounds { adopted: true, loaded: Cell::NOTHING, ..a_load(beginning) };
    assert_none(Bounds { cache: true, grace: true, ..drops(VALUES) });
    assert_none(Bounds { failovers: 1, ..drops(VALUES) });
    assert_none(Bounds { writes: 1, freezes: 1, kinds: vec![Update, Insert], ..drops(VALUES) });
    assert_none(Bounds { writes: 1, failovers: 1, kinds: vec![Insert], ..drops(Cell::NOTHING) });
}

/// The published seq may be loaded before the bit is set: the slot's seq is compared with what was loaded. A fresh leader answers
/// nothing before all that it found is published. And a load waits for its own ring entries anyway.
#[test]
fn rules_of_registered_reads_that_others_cover_for() {
    assert_none(registered(VALUES, 2, &[Update]).with(Mutant::PublishedBeforeBit));
    let bounds = Bounds { failovers: 1, ..registered(VALUES, 1, &[Update, Insert]) };
    assert_none(bounds.with(Mutant::SlotsStartAtNothing));
    assert_none(Bounds { failovers: 1, ..a_load(VALUES) }.with(Mutant::LoadProposedEarly));
    for bounds in [Bounds { failovers: 1, ..a_load(VALUES) }, Bounds { refusals: 1, ..a_load(VALUES) }] {
        assert_none(bounds.with(Mutant::LoadAnnouncesItself));
    }
}

#[test]
fn every_mutant_that_changes_nothing_has_a_test() {
    let here = [
        Mutant::PublishedBeforeBit,
        Mutant::SlotsStartAtNothing,
        Mutant::LoadProposedEarly,
        Mutant::LoadAnnouncesItself,
    ];
    let in_exhaustive = [Mutant::FilterSaysWithNewRing];
    let in_expiry = [Mutant::ExpiredLeavesNoBit, Mutant::RefusedTickKeepsRing];
    let tested =
        |mutant| [&here[..], &in_exhaustive, &in_expiry].iter().any(|mutants| mutants.contains(&mutant));
    for mutant in Mutant::ALL {
        assert_eq!(mutant.ways().contains(&Way::Covered), tested(*mutant), "{}", mutant.name());
    }
}

/// Looks for a state.
struct LooksFor<F> {
    protocol: Protocol,
    found: F,
}

impl<F: Fn(&Protocol, &State) -> bool> Model for LooksFor<F> {
    type State = State;
    type Action = Action;

    fn roots(&self) -> Vec<State> {
        self.protocol.roots()
    }

    fn actions(&self, state: &State, out: &mut Vec<Action>) {
        self.protocol.actions(state, out);
    }

    fn step(&self, state: &State, action: Action) -> Result<State, String> {
        self.protocol.step(state, action)
    }

    fn check(&self, state: &State) -> Result<(), String> {
        if (self.found)(&self.protocol, state) { Err("found".into()) } else { Ok(()) }
    }

    fn describe(&self, state: &State, action: Action) -> String {
        self.protocol.describe(state, action)
    }
}

/// Whether the p-node may use this, kept from before a flush whose manifest it uses by now.
fn is_used_after_a_flush(protocol: &Protocol, s: &State, said: Said) -> bool {
    let p = &s.pnodes[0];
    let usable = p.reader.is_none() && p.lease.is_some() && protocol.kept(s, 0, 0, true) == said;
    // The newest ring entry is the freeze's.
    usable && p.manifest > 1 && p.kept[0].serial < s.serial
}

#[test]
fn everything_that_may_be_kept_is_used_also_after_a_flush() {
    let frozen = |kind| Bounds { freezes: 1, ..registered(VALUES, 1, &[kind]) };
    let empty = Bounds { slips: true, freezes: 1, ..registered(VALUES, 0, &[Update]) };
    let no_entry = Bounds { sstables_not_kept: true, ..empty.clone() };
    let what = [
        ("a value of a memtable", Said::Value(Cell::value(0)), frozen(Update)),
        ("a tombstone", Said::Absent, frozen(Delete)),
        ("what SSTables said where no memtable had an entry", Said::Value(VALUES), empty),
        ("that no memtable has an entry", Said::NoEntry, no_entry),
    ];
    for (name, said, bounds) in what {
        let protocol = Protocol::new(bounds).unwrap();
        let found = |protocol: &Protocol, s: &State| is_used_after_a_flush(protocol, s, said);
        let explored = explore(&LooksFor { protocol, found }, STATES_MAX);
        let trace = explored.violation.unwrap_or_else(|| panic!("{name} is never used")).trace;
        println!("{name}: {} steps, {} states", trace.len(), explored.states);
    }
}
