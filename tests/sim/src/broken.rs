//! Broken builds: each mutant is run on seed after seed until the version-blind check of the history has caught it often enough.
//!
//! Owns the table of how many seeds it takes, from which the rows of `docs/rules.md` are (`sextant_rules::measured`). Invariants are switched off, so that the clients' own view
//! is what convicts; only a mutant that the history never shows is run again with everything that a run can notice.

use serde_json::Value;
use sextant_rules::mutant::Mutant;

use crate::interpose::real_ns;
use crate::many::{ManyOptions, Said, run_all};
use crate::plan::Scene;

/// How often a mutant is to be caught, if there are seeds enough: the first seed may be luck.
const CATCHES: usize = 3;

/// Who noticed that something was wrong. In the order of preference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Catcher {
    /// No legal order of what clients saw, whatever the versions; or a record that is there after its time was over.
    Blind,
    /// Versions contradict results or real time; or a client saw half a batch, or the cluster did not come back.
    Clients,
    /// An invariant, or an assertion of the servers.
    Inside,
}

impl Catcher {
    fn name(self) -> &'static str {
        match self {
            Catcher::Blind => "blind to versions",
            Catcher::Clients => "clients otherwise",
            Catcher::Inside => "servers, invariants",
        }
    }

    fn of(said: &Said) -> Option<Self> {
        let Ok(report) = &said.report else { return Some(Catcher::Clients) };
        match report["verdict"].as_str() {
            Some("ok") => None,
            _ if report["illegal_keys"].as_u64().unwrap_or(0) > 0 => Some(Catcher::Blind),
            Some("panic") => Some(Catcher::Inside),
            _ if is(report, crate::workload::OF_A_MAYFLY) => Some(Catcher::Blind),
            _ if is(report, "invariant") => Some(Catcher::Inside),
            _ => Some(Catcher::Clients),
        }
    }
}

/// Whether what a run ended with begins so.
fn is(report: &Value, begins: &str) -> bool {
    report["text"].as_str().is_some_and(|text| text.starts_with(begins))
}

fn catches(said: &[Said], by: Catcher) -> usize {
    said.iter().filter(|s| Catcher::of(s) == Some(by)).count()
}

/// The mutants of this build. Those that are patches are in none but that of a patched tree (`cargo xtask sim` makes one).
pub fn mutants() -> impl Iterator<Item = Mutant> {
    let is_patched = option_env!("SEXTANT_PATCHED").is_some();
    Mutant::all_simulated().filter(move |mutant| is_patched || mutant.patch().is_none())
}

/// The mutant of that name, if this build has it.
pub fn mutant_named(name: &str) -> Result<Mutant, String> {
    mutants().find(|mutant| mutant.name() == name).ok_or_else(|| match Mutant::named(name) {
        Some(mutant) if mutant.is_simulated() => {
            format!("mutant {name:?} is a patch, which this build is without; use `cargo xtask sim`")
        }
        _ => format!("no mutant {name:?}"),
    })
}

/// Scenes that mutants are about: without its own, one is caught in a tenth as many runs.
const THEMES: [(&str, Scene); 27] = [
    ("duplicate-at-once", Scene::FlushUnderLease),
    ("duplicate-table-not-undone", Scene::ThereAndBack),
    ("epoch-and-serial-apart", Scene::SlowAnswers),
    ("failed-at-once", Scene::FlushUnderLease),
    ("failed-forgotten", Scene::LateCopies),
    ("filter-says-in-memtable", Scene::RefusedProposals),
    ("filters-of-committed-only", Scene::Laggard),
    ("flush-before-published", Scene::FlushUnderLease),
    ("forswear-skipped", Scene::LateConfirmation),
    ("fresh-leader-reads", Scene::Laggard),
    ("incarnation-forgets-leases", Scene::RefusedProposals),
    ("leader-lease-asked-first", Scene::HungUnderLease),
    ("kept-at-arrival", Scene::SlowAnswers),
    ("lease-from-receipt", Scene::Asleep),
    ("lease-outlives-its-serial", Scene::SlowPNode),
    ("lease-timed-late", Scene::Asleep),
    ("load-keeps-ring", Scene::LoadUnderLease),
    ("load-under-lease", Scene::LoadUnderLease),
    ("new-voters-only", Scene::AloneBySentence),
    ("proposal-keeps-serial", Scene::ModeInFlight),
    ("read-without-leader-lease", Scene::Asleep),
    ("serial-after-bit", Scene::SlowAnswers),
    ("serials-go-on", Scene::HandoverUnderLease),
    ("snapshot-without-membership", Scene::Laggard),
    ("snapshot-without-results", Scene::LateCopies),
    ("stamp-at-arrival", Scene::LateSstables),
    ("tick-not-published", Scene::RefusedProposals),
];

/// Those that only a change of a table shows.
const CHANGES: [&str; 1] = ["options-over-memtable"];

/// Runs the mutants and prints a table (Markdown). Whether each was caught.
pub fn broken(options: &ManyOptions, mutants: &[Mutant]) -> std::io::Result<bool> {
    let started_ns = real_ns();
    let mut well = true;
    let by = [Catcher::Blind, Catcher::Clients, Catcher::Inside].map(Catcher::name).join(" | ");
    println!("| mutant | what it does | runs | {by} | first caught in run |\n|---|---|---|---|---|---|---|");
    for mutant in mutants {
        let name = mutant.name();
        let mut arguments = options.arguments.clone();
        arguments.extend(["--mutant".to_owned(), name.to_owned()]);
        if CHANGES.contains(&name) {
            arguments.push("--changes".to_owned());
        }
        let theme = THEMES.iter().find(|(of, _)| options.themed && *of == name);
        if let Some((_, scene)) = theme {
            arguments.extend(["--theme".to_owned(), scene.name().to_owned()]);
        }
        let mut blind = arguments.clone();
        blind.push("--no-invariants".to_owned());
        let mut said = run_all(options, &blind, |said| catches(said, Catcher::Blind) >= CATCHES)?;
        if said.iter().all(|s| Catcher::of(s).is_none()) {
            let anybody = |said: &[Said]| said.iter().any(|s| Catcher::of(s).is_some());
            said = run_all(options, &arguments, anybody)?;
        }
        said.sort_by_key(|s| s.seed);
        let first = said.iter().position(|s| Catcher::of(s).is_some());
        well &= first.is_some();
        println!(
            "| `{name}` | {} | {} | {} | {} | {} | {} |",
            mutant.does(),
            said.len(),
            catches(&said, Catcher::Blind),
            catches(&said, Catcher::Clients),
            catches(&said, Catcher::Inside),
            first.map_or("**never**".to_owned(), |at| (at + 1).to_string()),
        );
        if let Some(path) = &options.json {
            use std::io::Write as _;
            let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path)?;
            for one in &said {
                let mut report = one.report.clone().unwrap_or_else(Value::from);
                if let Value::Object(fields) = &mut report {
                    fields.insert("mutant".to_owned(), Value::from(name));
                }
                writeln!(file, "{report}")?;
            }
        }
    }
    println!("\n{} s of real time", (real_ns() - started_ns) / 1_000_000_000);
    Ok(well)
}
