//! What the tests that explore have in common.

use sextant_model::{Bounds, Protocol, explore};

/// A guard against bounds that grew: more would take too long for a test.
pub const STATES_MAX: u64 = 1_500_000;

/// With all rules nothing goes wrong within the bounds, and all of them were explored.
pub fn assert_none(bounds: Bounds) {
    let explored = explore(&Protocol::new(bounds).unwrap(), STATES_MAX);
    println!("{} states, {} transitions, depth {}", explored.states, explored.transitions, explored.depth);
    if let Some(violation) = explored.violation {
        panic!("{}\n{}", violation.what, violation.trace.join("\n"));
    }
    assert!(explored.exhausted, "not exhausted after {} states", explored.states);
}
