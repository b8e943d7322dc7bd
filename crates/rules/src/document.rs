//! `docs/rules.md`: the catalogue and its measurements, to be read.

use std::fmt::Write as _;

use crate::catalogue::{Broken, RULES, Rule, Subject, Way, rules};
use crate::measured::{ELECTION, MODEL, PLACEMENT, SIMULATION, Simulated, Traced};

/// Where it stands, from the root of the repository.
pub const PATH: &str = "docs/rules.md";

/// Longest line of the document.
const LINE_MAX: usize = 118;

/// Of a rule that more builds break, their names say what each leaves out.
const MANY: usize = 3;

const HEAD: &[&str] = &[
    "Of each rule: what it says, and what goes wrong otherwise; where it is kept, its source, tests that hold it; builds that break \
     it (a link: a patch). Written by `cargo xtask rules` from `crates/rules/src/catalogue/` and `measured.rs`: change those. \
     *§N* is a section of [design.md](design.md), which names the papers *PDA* and *PASV*. \
     A broken build that is no patch lives where its name is asked for: `grep -rn Mutant:: crates tests`.",
    "**model N**: steps of the shortest trace to a violation in the [model](model.md) (`tests/model/tests/mutants.rs`, \
     `election.rs`, `placement.rs`); what it leads to is said if *else* does not. \
     `cargo run --release -p sextant-model -- --mutant NAME --trace`",
    "**F/R B+C+S**: the [simulation](simulation.md) caught it first in run F of R: by the check of the history that is blind to \
     versions in B, by something else that clients see (versions, half a batch, a cluster that does not come back) in C, by \
     assertions of servers or openraft or, where nothing else helped, by invariants in S. Runs end with B's third or the last \
     seed; nothing was tuned with these seeds. `cargo xtask sim --mutants NAME --seeds R --first 30001`; a scene that is named: \
     `--first 70001 --theme SCENE`. Without it, as one run in 22 has it by chance, it takes about ten times as many.",
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
    for Subject { title, rules } in RULES {
        let _ = write!(text, "\n## {title}\n");
        rules.iter().for_each(|rule| section(&mut text, rule));
    }
    text
}

fn section(text: &mut String, rule: &Rule) {
    let _ = write!(text, "\n### {}\n\n", rule.name);
    wrap(text, "", "", &format!("{} *Else* {}.", rule.says, rule.otherwise));
    // The last folder says enough: the link has the rest.
    let short = |file: &'static str| file.rmatch_indices('/').nth(1).map_or(file, |(at, _)| &file[at + 1..]);
    let kept_in = rule.kept_in.iter().map(|file| format!("[{}](../{file})", short(file)));
    let tests = rule.tests.iter().map(|name| format!("`{name}`"));
    let source = rule.source.replace("design ", "§");
    let evidence: Vec<String> = kept_in.chain([source]).chain(tests).collect();
    wrap(text, "", "", &evidence.join(", "));
    text.push_str(if rule.broken_by.is_empty() { "" } else { "\n" });
    if rule.broken_by.len() > MANY {
        let all: Vec<String> = rule.broken_by.iter().map(|b| format!("{} {}", link(b), came_of(b))).collect();
        wrap(text, "* ", "  ", &all.join(", "));
    } else {
        let each = rule.broken_by.iter().map(|b| format!("{}: {} {}", link(b), b.does, came_of(b)));
        each.for_each(|said| wrap(text, "* ", "  ", &said));
    }
}

/// A broken build's name, which leads to its patch.
fn link(broken: &Broken) -> String {
    let patch = broken.ways.iter().find_map(|way| match way {
        Way::Patch(patch) => Some(patch),
        _ => None,
    });
    match patch {
        Some(patch) => format!("[{}](../tests/sim/mutants/{patch}.patch)", broken.name),
        None => format!("`{}`", broken.name),
    }
}

/// How soon it was noticed, in each way.
fn came_of(broken: &Broken) -> String {
    let name = broken.name;
    let came = broken.ways.iter().map(|way| match way {
        Way::Model => traced(MODEL, name),
        Way::Election => traced(ELECTION, name),
        Way::Placement => traced(PLACEMENT, name),
        Way::Covered => "model: no violation".to_owned(),
        Way::Operand | Way::Patch(_) => simulated(name),
    });
    came.collect::<Vec<String>>().join("; ")
}

fn traced(measured: &[Traced], name: &str) -> String {
    match measured.iter().find(|traced| traced.mutant == name) {
        Some(Traced { steps, to: Some(to), .. }) => format!("model {steps}: {to}"),
        Some(Traced { steps, to: None, .. }) => format!("model {steps}"),
        None => "model: not measured".to_owned(),
    }
}

fn simulated(name: &str) -> String {
    match SIMULATION.iter().find(|simulated| simulated.mutant == name) {
        Some(Simulated { options, runs, blind, clients, inside, first, .. }) => {
            format!("{first}/{runs} {blind}+{clients}+{inside}{}", seeds(options))
        }
        None => "not measured".to_owned(),
    }
}

/// The options without the number of seeds, as the head of the document abbreviates them.
fn seeds(options: &str) -> String {
    let seeds = options.strip_prefix("--seeds ").and_then(|rest| rest.split_once(' '));
    let options = seeds.map_or(options, |(_, rest)| rest);
    if options == "--first 30001" {
        return String::new();
    }
    match options.strip_prefix("--first 70001 --theme ") {
        Some(scene) => format!(" {scene}"),
        None => format!(" `{options}`"),
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
