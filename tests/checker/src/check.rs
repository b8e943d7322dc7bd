//! Both checks on every key, and what they come to.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use sextant_common::{Error, Result};

use crate::certificate::{Certificate, certify};
use crate::history::History;
use crate::objects::{self, Expiry};
use crate::report::{CheckKind, Explanation, Report, Undecided};
use crate::search::{Found, search};

/// How much a check may cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Operations that the search may look at for one key, before the key counts as undecided. The default is some seconds
    /// and at most some hundred megabytes for a key that is hopeless; a key of 10,000 operations usually needs as many
    /// times its concurrency.
    pub steps_per_key: u64,
    /// The same for one group of objects, in operations tried: each costs some microseconds.
    pub steps_per_group: u64,
    /// How exactly objects expire.
    pub expiry: Expiry,
}

impl Default for Options {
    fn default() -> Self {
        Self { steps_per_key: 20_000_000, steps_per_group: 1_000_000, expiry: Expiry::default() }
    }
}

/// Checks a history. The first key with a violation, in the order of the history, is explained; all keys are counted.
///
/// A key that the certificate proves linearizable is searched too (the search shares no code with it), but a search that
/// gives up on such a key does not make it undecided.
pub fn check(history: &History, options: &Options) -> Report {
    let mut report = Report {
        operations: history.operations,
        keys: history.keys() as u64,
        groups: history.objects.len() as u64,
        unknown: history.unknown,
        notes: history.notes,
        ..Report::default()
    };
    for (key, ops) in history.by_key() {
        let certificate = certify(ops);
        let certified = certificate == Certificate::Certified;
        report.certified += u64::from(certified);
        match search(ops, options.steps_per_key) {
            Found::Illegal(evidence) => {
                report.violations += 1;
                report.illegal += 1;
                if report.explanation.is_none() {
                    report.explanation = Some(match certificate {
                        // It names the rule, which is easier to follow than the end of a search.
                        Certificate::Violated { rule, culprits } => {
                            Explanation::new(history, key, ops, CheckKind::Both, rule.to_owned(), &culprits)
                        }
                        _ => Explanation::of_search(history, key, ops, &evidence),
                    });
                }
                continue;
            }
            Found::BudgetExceeded if !certified => {
                report.undecided.push(Undecided { key: key.to_owned(), operations: ops.len() as u64 });
            }
            Found::BudgetExceeded | Found::Legal => {}
        }
        if let Certificate::Violated { rule, culprits } = certificate {
            report.violations += 1;
            if report.explanation.is_none() {
                report.explanation = Some(Explanation::new(
                    history,
                    key,
                    ops,
                    CheckKind::Certificate,
                    rule.to_owned(),
                    &culprits,
                ));
            }
        }
    }
    check_groups(history, options, &mut report);
    report
}

fn check_groups(history: &History, options: &Options, report: &mut Report) {
    for (group, ops) in history.objects.iter() {
        match objects::search(ops, options.expiry, options.steps_per_group) {
            objects::Found::Legal => {}
            objects::Found::BudgetExceeded => {
                report.undecided.push(Undecided { key: group.to_owned(), operations: ops.len() as u64 });
            }
            objects::Found::Illegal(dead_end) => {
                report.violations += 1;
                report.illegal += 1;
                let explain = || Explanation::of_objects(group, ops, &dead_end);
                report.explanation.get_or_insert_with(explain);
            }
        }
    }
}

/// Reads and checks a history in the format of `docs/formats/history.md`.
///
/// # Errors
/// `Invalid` if a line cannot be understood, `Disk` if reading fails.
pub fn check_reader(input: impl BufRead, options: &Options) -> Result<Report> {
    Ok(check(&History::read(input)?, options))
}

/// The same for a file.
///
/// # Errors
/// As [`check_reader`].
pub fn check_file(path: &Path, options: &Options) -> Result<Report> {
    let file =
        File::open(path).map_err(|e| Error::invalid(format!("cannot open {}: {e}", path.display())))?;
    check_reader(BufReader::with_capacity(1 << 20, file), options)
}
