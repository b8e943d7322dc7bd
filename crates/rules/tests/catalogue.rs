//! The catalogue speaks of what there is: files, tests, mutants, patches; and `docs/rules.md` is what it says.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use sextant_rules::catalogue::{Broken, Way, rules};
use sextant_rules::measured::{ELECTION, MODEL, PLACEMENT, SIMULATION};
use sextant_rules::mutant::Mutant;
use sextant_rules::{catalogue, document};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// All Rust files below.
fn rust_files(dir: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display())) {
        let path = entry.unwrap().path();
        if path.is_dir() && path.file_name().is_some_and(|name| name != "target") {
            rust_files(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            into.push(path);
        }
    }
}

fn broken() -> impl Iterator<Item = &'static Broken> {
    rules().flat_map(|rule| rule.broken_by)
}

/// The patches, and the mutants that each says it is for, in its line "mutants: ..".
fn patches() -> BTreeMap<String, BTreeSet<String>> {
    let dir = root().join("tests/sim/mutants");
    let files = fs::read_dir(&dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    let files = files.map(|entry| entry.unwrap().path());
    files
        .filter(|path| path.extension().is_some_and(|extension| extension == "patch"))
        .map(|path| {
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            let text = read(&path);
            let named = text.lines().find_map(|line| line.strip_prefix("mutants: "));
            let named = named.unwrap_or_else(|| panic!("{name}: for which mutants?"));
            (name, named.split(' ').map(str::to_owned).collect())
        })
        .collect()
}

#[test]
fn the_document_is_what_the_catalogue_says() {
    let there = read(&root().join(document::PATH));
    assert!(there == document::rules_md(), "{} is out of date: run `cargo xtask rules`", document::PATH);
}

#[test]
fn names_are_unique_and_read_like_names() {
    let all = rules().map(|rule| rule.name);
    let mut seen = BTreeSet::new();
    for name in all.chain(broken().map(|b| b.name)) {
        assert!(seen.insert(name), "{name} is there twice");
        assert!(name.chars().all(|c| c.is_ascii_lowercase() || c == '-'), "{name}");
    }
    for mutant in Mutant::ALL {
        assert_eq!(Mutant::named(mutant.name()), Some(*mutant));
    }
    assert_eq!(Mutant::ALL.len(), broken().count());
}

#[test]
fn files_and_tests_that_are_named_are_there() {
    let mut files = Vec::new();
    ["crates", "tests"].iter().for_each(|dir| rust_files(&root().join(dir), &mut files));
    let text: String = files.iter().map(|path| read(path)).collect();
    for rule in rules() {
        for file in rule.kept_in {
            assert!(root().join(file).is_file(), "{}: there is no {file}", rule.name);
        }
        for test in rule.tests {
            assert!(text.contains(&format!("fn {test}(")), "{}: there is no test {test}", rule.name);
        }
    }
}

#[test]
fn a_rule_is_kept_somewhere_and_shown_by_a_test_or_a_broken_build() {
    for rule in rules() {
        assert!(!rule.kept_in.is_empty(), "{}", rule.name);
        assert!(!rule.tests.is_empty() || !rule.broken_by.is_empty(), "{}", rule.name);
    }
    assert!(broken().all(|b| !b.ways.is_empty()));
}

#[test]
fn every_broken_build_is_measured_and_nothing_else_is() {
    let named = |is: fn(&Way) -> bool| -> BTreeSet<&str> {
        broken().filter(|b| b.ways.iter().any(is)).map(|b| b.name).collect()
    };
    let model: BTreeSet<&str> = MODEL.iter().map(|m| m.mutant).collect();
    let election: BTreeSet<&str> = ELECTION.iter().map(|m| m.mutant).collect();
    let placement: BTreeSet<&str> = PLACEMENT.iter().map(|m| m.mutant).collect();
    let simulation: BTreeSet<&str> = SIMULATION.iter().map(|m| m.mutant).collect();
    assert_eq!(model, named(|way| *way == Way::Model));
    assert_eq!(election, named(|way| *way == Way::Election));
    assert_eq!(placement, named(|way| *way == Way::Placement));
    assert_eq!(simulation, named(|way| way.is_of_the_simulation()));
    assert_eq!(SIMULATION.len(), simulation.len(), "one row each");
}

#[test]
fn operands_are_asked_for_in_the_code_and_nothing_else_is() {
    let mut files = Vec::new();
    ["crates", "tests/simulated"].iter().for_each(|dir| rust_files(&root().join(dir), &mut files));
    files.retain(|path| !path.starts_with(root().join("crates/rules")));
    let text: String = files.iter().map(|path| read(path)).collect();
    for mutant in Mutant::ALL {
        let path = format!("Mutant::{mutant:?}");
        let mut after = text.split(path.as_str()).skip(1);
        let asked = after.any(|rest| rest.chars().next().is_none_or(|c| !c.is_alphanumeric()));
        assert_eq!(asked, mutant.ways().contains(&Way::Operand), "{mutant:?}");
    }
}

#[test]
fn patches_are_there_for_exactly_the_mutants_that_need_one() {
    let mut wanted: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for mutant in Mutant::ALL {
        if let Some(patch) = mutant.patch() {
            wanted.entry(patch.to_owned()).or_default().insert(mutant.name().to_owned());
        }
    }
    assert_eq!(patches(), wanted);
}

#[test]
fn subjects_have_rules() {
    assert!(catalogue::RULES.iter().all(|subject| !subject.rules.is_empty()));
}
