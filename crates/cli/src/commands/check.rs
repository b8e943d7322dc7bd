//! Checking recorded histories.

use std::io::Write;

use sextant_checker::{Options, Verdict, check_file};

use crate::args::CheckArgs;
use crate::exit::{CommandResult, Exit, Failure};

pub fn run(args: CheckArgs) -> CommandResult {
    let mut options = Options::default();
    if let Some(steps) = args.steps_per_key {
        options.steps_per_key = steps;
    }
    let report = check_file(&args.history, &options)?;
    let mut stdout = std::io::stdout().lock();
    if args.json {
        writeln!(stdout, "{}", report.to_json())?;
    } else {
        writeln!(stdout, "{report}")?;
    }
    match report.verdict() {
        Verdict::Linearizable => Ok(()),
        // The report has said why. Undecided is not a pass.
        Verdict::Violation | Verdict::BudgetExceeded => Err(Failure::silent(Exit::Negative)),
    }
}
