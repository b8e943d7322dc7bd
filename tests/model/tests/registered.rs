//! Registered reads, and loads: with all rules nothing goes wrong, and what is kept is used.

use sextant_model::bounds::{TOMBSTONES, VALUES};
use sextant_model::explore::Model;
use sextant_model::state::WriteKind::{self, Delete, Insert, Update};
use sextant_model::state::registered::Said;
use sextant_model::state::{Cell, State};
use sextant_model::{Action, Bounds, Mutant, Protocol, explore};
use sextant_rules::catalogue::Way;

/// A guard against bounds that grew: more would take too long for a test.
const STATES_MAX: u64 = 1_500_000;

fn assert_none(bounds: Bounds) {
    let explored = explore(&Protocol::new(bounds).unwrap(), STATES_MAX);
    println!("{} states, {} transitions, depth {}", explored.states, explored.transitions, explored.depth);
    if let Some(violation) = explored.violation {
        panic!("{}\n{}", violation.what, violation.trace.join("\n"));
    }
    assert!(explored.exhausted, "not exhausted after {} states", explored.states);
}

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
    assert_none(Bounds { freezes: 1, preloaded, ..registered(VALUES, 1, &[Update, Insert, Delete]) });
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
    assert_none(Bounds { writes: 1, kinds: vec![Insert], ..a_load(Cell::NOTHING) });
}

#[test]
fn drops_beside_the_cache() {
    let drops = Bounds { loaded: Cell::NOTHING, ..a_load(VALUES) };
    assert_none(Bounds { cache: true, ..drops.clone() });
    assert_none(Bounds { writes: 1, kinds: vec![Delete], ..drops });
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
    let tested = |mutant: Mutant| here.contains(&mutant) || in_exhaustive.contains(&mutant);
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

#[test]
fn everything_that_may_be_kept_is_used_also_after_a_flush() {
    let reached = |said: Said| {
        let protocol = Protocol::new(Bounds { freezes: 1, ..registered(VALUES, 1, &[Delete, Update]) }).unwrap();
        let found = move |protocol: &Protocol, s: &State| {
            let p = &s.pnodes[0];
            // Registered before the flush, used after it.
            let outlived = p.kept[0].serial < p.serial && protocol.manifest(s).loaded == 0 && p.manifest == 2;
            outlived && p.lease.is_some() && p.reader.is_none() && protocol.kept(s, 0, 0, true) == said
        };
        explore(&LooksFor { protocol, found }, STATES_MAX).violation.is_some()
    };
    assert!(reached(Said::Absent), "a tombstone");
    assert!(reached(Said::Value(Cell::value(0))), "a value");
    let protocol = Protocol::new(registered(VALUES, 0, &[Update])).unwrap();
    let found = |protocol: &Protocol, s: &State| {
        s.pnodes[0].reader.is_none() && protocol.kept(s, 0, 0, s.pnodes[0].lease.is_some()) == Said::Value(VALUES)
    };
    assert!(explore(&LooksFor { protocol, found }, STATES_MAX).violation.is_some(), "what the SSTables said");
    let protocol = Protocol::new(Bounds { pnodes: 1, ..registered(VALUES, 0, &[Update]) }).unwrap();
    let found = |_: &Protocol, s: &State| {
        s.pnodes[0].lease.is_some() && s.pnodes[0].reader.is_some_and(|r| r.keeps)
    };
    assert!(explore(&LooksFor { protocol, found }, STATES_MAX).violation.is_some(), "no entry");
}
