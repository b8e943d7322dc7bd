//! Where SSTables are: with all rules every server that is named has its copy, and each rule is needed.

use sextant_model::placement::{Bounds, Placement};
use sextant_model::{Mutant, explore};
use sextant_rules::catalogue::Way;

/// A guard against bounds that grew: more would take too long for a test.
const STATES_MAX: u64 = 3_000_000;

const SMALL: Bounds =
    Bounds { elections: 1, copies: 2, changes: 2, cuts: 0, releases: 1, wipes: 0, mutant: None };

fn assert_none(bounds: Bounds) {
    let explored = explore(&Placement::new(bounds), STATES_MAX);
    println!("{} states, {} transitions, depth {}", explored.states, explored.transitions, explored.depth);
    if let Some(violation) = explored.violation {
        panic!("{}\n{}", violation.what, violation.trace.join("\n"));
    }
    assert!(explored.exhausted, "not exhausted after {} states", explored.states);
}

fn assert_found(mutant: Mutant) {
    assert_found_within(Bounds { mutant: Some(mutant), copies: 3, wipes: 1, ..SMALL }, mutant);
}

fn assert_found_within(bounds: Bounds, mutant: Mutant) {
    let explored = explore(&Placement::new(bounds), STATES_MAX);
    let violation = explored.violation.unwrap_or_else(|| panic!("nothing in {} states", explored.states));
    println!("{mutant:?}: {} steps: {}", violation.trace.len(), violation.what);
    violation.trace.iter().enumerate().for_each(|(n, line)| println!("{:4}. {line}", n + 1));
}

#[test]
fn a_table_moves_and_every_server_that_is_named_has_it() {
    assert_none(SMALL);
}

#[test]
fn disks_are_lost_meanwhile() {
    assert_none(Bounds { wipes: 1, ..SMALL });
}

#[test]
fn a_table_moves_there_and_back() {
    assert_none(Bounds { copies: 3, changes: 3, ..SMALL });
}

#[test]
fn a_server_that_is_named_before_it_has_copied_has_no_copy() {
    assert_found(Mutant::NamedBeforeDurable);
}

#[test]
fn what_is_released_while_it_is_proposed_is_named_without_a_copy() {
    assert_found(Mutant::ReleasedWhileProposed);
}

#[test]
fn an_old_order_that_is_obeyed_takes_a_copy_that_is_named() {
    assert_found(Mutant::ReleaseUnfenced);
}

#[test]
fn a_question_that_is_not_remembered_lets_an_old_order_take_what_was_counted() {
    assert_found(Mutant::QuestionUnfenced);
}

/// With a cut, its end, and a compaction.
const WITH_CUTS: Bounds = Bounds { cuts: 1, changes: 3, copies: 1, ..SMALL };

#[test]
fn what_a_cut_names_stays_where_it_is() {
    assert_none(WITH_CUTS);
}

#[test]
fn what_a_cut_names_stays_while_the_table_moves_and_disks_are_lost() {
    assert_none(Bounds { changes: 3, copies: 2, wipes: 1, ..WITH_CUTS });
}

#[test]
fn a_deletion_that_asks_no_cut_takes_what_one_names() {
    let mutant = Mutant::HoldIgnored;
    assert_found_within(Bounds { mutant: Some(mutant), ..WITH_CUTS }, mutant);
}

#[test]
fn a_cut_that_a_deposed_leaders_clock_ends_loses_its_tables() {
    let mutant = Mutant::HoldEndedByClock;
    assert_found_within(Bounds { mutant: Some(mutant), ..WITH_CUTS }, mutant);
}

#[test]
fn every_mutant_has_a_test() {
    let tested = [
        Mutant::NamedBeforeDurable,
        Mutant::ReleasedWhileProposed,
        Mutant::ReleaseUnfenced,
        Mutant::QuestionUnfenced,
        Mutant::HoldIgnored,
        Mutant::HoldEndedByClock,
    ];
    assert_eq!(Mutant::all_in(Way::Placement).collect::<Vec<_>>(), tested);
}
