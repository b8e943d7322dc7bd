//! `docs/rules.md`: the catalogue and its measurements, to be read.

use std::fmt::Write as _;

use crate::catalogue::{Broken, RULES, Rule, Subject, Way, rules};
use crate::measured::{ELECTION, MODEL, SIMULATION, Simulated, Traced};

/// Where it stands, from the root of the repository.
pub const PATH: &str = "docs/rules.md";

/// Longest line of the document.
const LINE_MAX: usize = 118;

const HEAD: &[&str] = &[
    "Of each rule: what it says, what goes wrong otherwise, where it is kept, the tests that hold it, the builds that break it. \
     The first sentence and *Otherwise* are the rule; the rest is evidence. Words: [glossary](glossary.md). \
     Written by `cargo xtask rules` from `crates/rules/src/catalogue.rs` and `measured.rs`; change those.",
    "Sources: *design N* is section N of [design.md](design.md), *PDA N* of the paper on precise data access, *PASV* the paper on \
     one log ([design.md](design.md) names both).",
];

const TAIL: &[&str] = &[
    "The [model](model.md) breaks a rule in every order of events that its bounds allow, and gives the length of a shortest trace \
     to a violation: `cargo run --release -p sextant-model -- --mutant NAME --trace`, with the bounds of \
     `tests/model/tests/mutants.rs` (elections: `election.rs` there).",
    "The [simulation](simulation.md) breaks it in the servers' own code. An *operand* is one more condition, constant in every \
     other build. A *patch* is applied by the mutation run to a copy of the tree (`tests/sim/mutants`).",
    "A measurement of the simulation begins with the options of `cargo xtask sim --mutants NAME`. \
     \"First in run 2; of 6 by the blind check 4\" says: it was caught first in the second run; of six runs, four were convicted \
     by the check of the history that does not look at versions. *Clients*: by something else that they see (versions, half a \
     batch, a cluster that does not come back). *Servers*: by assertions of theirs or of openraft and, where nothing else helped, \
     by invariants. There are runs until the third conviction by the blind check, or until the last seed. \
     Nothing was tuned with these seeds.",
    "Without `--theme` a run has a given scene for its theme with probability 1/22, and meets any scene now and then besides. \
     The same mutant then takes about ten times as many runs.",
];

/// The whole document.
pub fn rules_md() -> String {
    let mut text = "# The protocol's rules\n".to_owned();
    for paragraph in HEAD {
        text.push('\n');
        wrap(&mut text, "", "", paragraph);
    }
    text.push('\n');
    let broken: Vec<&Broken> = rules().flat_map(|rule| rule.broken_by).collect();
    let simulated = broken.iter().filter(|b| b.ways.iter().any(|way| way.is_of_the_simulation())).count();
    let modelled = broken.iter().filter(|b| b.ways.iter().any(|way| !way.is_of_the_simulation())).count();
    let sum = format!(
        "{} rules, {} broken builds: {simulated} in the simulation, {modelled} in the models.",
        rules().count(),
        broken.len()
    );
    wrap(&mut text, "", "", &sum);
    text.push('\n');
    for subject in RULES {
        let links: Vec<String> = subject.rules.iter().map(|rule| format!("[{0}](#{0})", rule.name)).collect();
        wrap(&mut text, "* ", "  ", &format!("**{}**: {}", subject.title, links.join(", ")));
    }
    for Subject { title, rules } in RULES {
        let _ = write!(text, "\n## {title}\n");
        rules.iter().for_each(|rule| section(&mut text, rule));
    }
    text.push_str("\n## How it was measured\n");
    for paragraph in TAIL {
        text.push('\n');
        wrap(&mut text, "", "", paragraph);
    }
    text
}

fn section(text: &mut String, rule: &Rule) {
    let _ = write!(text, "\n### {}\n\n", rule.name);
    wrap(text, "", "", rule.says);
    text.push('\n');
    wrap(text, "* ", "  ", &format!("Otherwise: {}.", rule.otherwise));
    // The last folder says enough: the link has the rest.
    let short = |file: &'static str| file.rmatch_indices('/').nth(1).map_or(file, |(at, _)| &file[at + 1..]);
    let kept_in: Vec<String> =
        rule.kept_in.iter().map(|file| format!("[{}](../{file})", short(file))).collect();
    wrap(text, "* ", "  ", &format!("Source: {}. Kept in {}.", rule.source, kept_in.join(", ")));
    if !rule.tests.is_empty() {
        let tests: Vec<String> = rule.tests.iter().map(|name| format!("`{name}`")).collect();
        wrap(text, "* ", "  ", &format!("Tests: {}.", tests.join(", ")));
    }
    for broken in rule.broken_by {
        wrap(text, "* ", "  ", &format!("Broken by `{}`: {}", broken.name, broken.does));
        broken.ways.iter().for_each(|way| said_of(text, broken.name, *way));
    }
}

/// What a way to break a rule came to.
fn said_of(text: &mut String, name: &str, way: Way) {
    let said = match way {
        Way::Model => traced("Model", MODEL, name),
        Way::Election => traced("Model of elections", ELECTION, name),
        Way::Covered => "Model: no violation within the bounds explored.".to_owned(),
        Way::Operand => simulated("an operand".to_owned(), name),
        Way::Patch(patch) => simulated(format!("[a patch](../tests/sim/mutants/{patch}.patch)"), name),
    };
    wrap(text, "  * ", "    ", &said);
}

fn traced(model: &str, measured: &[Traced], name: &str) -> String {
    match measured.iter().find(|traced| traced.mutant == name) {
        Some(Traced { steps, to, .. }) => format!("{model}, {steps} steps: {to}."),
        None => format!("{model}: not measured."),
    }
}

fn simulated(by: String, name: &str) -> String {
    match SIMULATION.iter().find(|simulated| simulated.mutant == name) {
        Some(Simulated { options, runs, blind, clients, inside, first, .. }) => format!(
            "Simulation, {by}, `{options}`: first in run {first}; of {runs} by the blind check {blind}, clients {clients}, \
             servers {inside}."
        ),
        None => format!("Simulation, {by}: not measured."),
    }
}

/// A paragraph in lines that are not too long, if its words are not.
fn wrap(text: &mut String, first: &str, rest: &str, paragraph: &str) {
    let mut line = first.to_owned();
    let mut begun = false;
    for word in paragraph.split(' ') {
        if begun && line.chars().count() + 1 + word.chars().count() > LINE_MAX {
            text.push_str(&line);
            text.push('\n');
            line = rest.to_owned();
            begun = false;
        }
        if begun {
            line.push(' ');
        }
        line.push_str(word);
        begun = true;
    }
    text.push_str(&line);
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_line_is_too_long_and_each_begins_as_it_is_told() {
        let mut text = String::new();
        wrap(&mut text, "* ", "  ", &"word ".repeat(100));
        assert!(text.lines().all(|line| line.chars().count() <= LINE_MAX));
        assert!(text.lines().skip(1).all(|line| line.starts_with("  ")));
        let whole = rules_md();
        let long: Vec<&str> = whole.lines().filter(|line| line.chars().count() > 120).collect();
        assert!(long.is_empty(), "{long:#?}");
    }
}
