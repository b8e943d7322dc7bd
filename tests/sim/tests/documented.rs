//! What `docs/simulation.md` says about broken builds is about the mutants that there are.

use sextant_rules::mutant::Mutant;

#[test]
fn every_mutant_has_a_row() {
    let text = include_str!("../../../docs/simulation.md");
    for (name, ..) in Mutant::ALL {
        assert!(text.contains(&format!("| `{name}` |")), "{name} has no row in docs/simulation.md");
    }
}
