//! Servers that lose their memory: with all rules no later leader lacks an acknowledged write, and each rule is needed.

use sextant_model::election::{Bounds, Election};
use sextant_model::{Mutant, explore};
use sextant_rules::catalogue::Way;

/// A guard against bounds that grew: more would take too long for a test.
const STATES_MAX: u64 = 3_000_000;

fn assert_none(bounds: Bounds) {
    let explored = explore(&Election::new(bounds), STATES_MAX);
    println!("{} states, {} transitions, depth {}", explored.states, explored.transitions, explored.depth);
    if let Some(violation) = explored.violation {
        panic!("{}\n{}", violation.what, violation.trace.join("\n"));
    }
    assert!(explored.exhausted, "not exhausted after {} states", explored.states);
}

fn assert_found(mutant: Mutant, bounds: Bounds) {
    let explored = explore(&Election::new(Bounds { mutant: Some(mutant), ..bounds }), STATES_MAX);
    let violation = explored.violation.unwrap_or_else(|| panic!("nothing in {} states", explored.states));
    println!("{mutant:?}: {} steps: {}", violation.trace.len(), violation.what);
    violation.trace.iter().enumerate().for_each(|(n, line)| println!("{:4}. {line}", n + 1));
}

const ONE_WIPE: Bounds = Bounds { writes: 1, wipes: 1, campaigns: 2, changes: 3, mutant: None };

#[test]
fn a_server_that_was_wiped_is_let_in_again_and_no_acknowledged_write_is_lost() {
    assert_none(ONE_WIPE);
}

#[test]
fn one_after_the_other_is_wiped_and_let_in_again() {
    assert_none(Bounds { writes: 2, wipes: 2, changes: 8, ..ONE_WIPE });
}

#[test]
fn three_campaigns_and_two_wipes() {
    assert_none(Bounds { wipes: 2, campaigns: 3, changes: 6, ..ONE_WIPE });
}

#[test]
fn an_amnesiac_that_votes_elects_a_leader_without_an_acknowledged_write() {
    assert_found(Mutant::AmnesiacVotes, ONE_WIPE);
}

#[test]
fn a_blank_vote_for_a_blank_candidate_elects_a_leader_without_an_acknowledged_write() {
    assert_found(Mutant::IncarnationNotNamed, ONE_WIPE);
}

#[test]
fn a_new_incarnation_let_in_before_the_old_one_is_out_serves_an_old_leader() {
    assert_found(Mutant::ReadmittedBeforeRemoval, ONE_WIPE);
}

#[test]
fn a_group_founded_by_anybody_is_founded_twice() {
    assert_found(Mutant::FoundedByAnybody, ONE_WIPE);
}

#[test]
fn every_mutant_has_a_test() {
    let tested = [
        Mutant::IncarnationNotNamed,
        Mutant::AmnesiacVotes,
        Mutant::ReadmittedBeforeRemoval,
        Mutant::FoundedByAnybody,
    ];
    assert_eq!(Mutant::all_in(Way::Election).collect::<Vec<_>>(), tested);
}
