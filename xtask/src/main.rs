//! Chores of the repository: `cargo xtask <command>`.
//!
//! `verify` never changes a file; `fix` does. Standard library only, so that it builds in a second.

mod fuzz;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

const USAGE: &str = "\
usage: cargo xtask <command>

  verify [step..]   check all that is checked before a merge, or only the steps named:
                      fmt      formatting
                      clippy   lints, as errors
                      test     all tests
  fix               format, and let clippy mend what it can
  chaos [option..]  break a cluster of real processes under load, and check every answer; --help: options
  failover [option..]
                    measure how long service is gone for each kind of fault; --help: options
  fuzz [--seconds N] [target]
                    fuzz all decoders, or one, so many seconds each: docs/fuzzing.md
  sim [option..]    run the whole cluster in a deterministic simulation: --seeds N [--first S] [--twice] [--jobs J]
                    [--limit-seconds L] [--json FILE] [--profile P] [--theme SCENE] [--mutant M] [--no-invariants]
";

/// A step's name and the arguments of cargo.
type Step = (&'static str, &'static [&'static str]);

const VERIFY: [Step; 3] = [
    ("fmt", &["fmt", "--all", "--check"]),
    ("clippy", &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]),
    ("test", &["test", "--workspace", "--no-fail-fast"]),
];

const FIX: [Step; 2] = [
    ("clippy", &["clippy", "--workspace", "--all-targets", "--fix", "--allow-dirty", "--allow-staged"]),
    // After clippy, whose changes need formatting.
    ("fmt", &["fmt", "--all"]),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match arguments[..] {
        ["verify", ref names @ ..] => steps_named(names).and_then(|steps| run(&steps)),
        ["fix"] => run(&FIX),
        ["chaos" | "failover", ..] => break_things(&arguments),
        ["fuzz", ref arguments @ ..] => fuzz::fuzz(arguments),
        ["sim", ref options @ ..] => simulate(options),
        _ => Err(USAGE.to_owned()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{}", message.trim_end());
            ExitCode::FAILURE
        }
    }
}

/// All steps of `verify`, or those named, in the order of [`VERIFY`].
fn steps_named(names: &[&str]) -> Result<Vec<Step>, String> {
    if let Some(unknown) = names.iter().find(|name| VERIFY.iter().all(|(known, _)| known != *name)) {
        return Err(format!("verify has no step {unknown:?}\n\n{USAGE}"));
    }
    Ok(VERIFY.into_iter().filter(|(name, _)| names.is_empty() || names.contains(name)).collect())
}

/// Runs the steps in order; the first that fails ends it.
fn run(steps: &[Step]) -> Result<(), String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    for (name, arguments) in steps {
        let shown = format!("cargo {}", arguments.join(" "));
        eprintln!("xtask: {shown}");
        let status = Command::new(&cargo).args(*arguments).current_dir(root()).status();
        match status {
            Ok(status) if status.success() => {}
            Ok(status) => return Err(format!("xtask: step {name} failed ({status}): {shown}")),
            Err(e) => return Err(format!("xtask: step {name}: cannot start {shown}: {e}")),
        }
    }
    Ok(())
}

/// Builds the servers and what breaks them, in one go so that they share what they depend on, and runs it.
fn break_things(arguments: &[&str]) -> Result<(), String> {
    const BUILD: Step =
        ("build", &["build", "--release", "--package", "sextant", "--package", "sextant-chaos"]);
    run(&[BUILD])?;
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| Path::new(root()).join("target"), PathBuf::from);
    let program = target.join("release").join("sextant-chaos");
    let status = Command::new(&program).args(arguments).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("xtask: {} failed ({status})", arguments.join(" "))),
        Err(e) => Err(format!("xtask: cannot start {}: {e}", program.display())),
    }
}

/// Builds the simulation, which needs a flag that the rest of the workspace does not have and so a target directory of its own,
/// and runs it.
fn simulate(options: &[&str]) -> Result<(), String> {
    let target = std::env::var("SIM_TARGET_DIR").unwrap_or_else(|_| "target/sim".to_owned());
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(&cargo);
    build
        .args(["build", "--locked", "--quiet", "--package", "sextant-sim", "--profile", "sim"])
        .args(["--target-dir", &target])
        .env("RUSTFLAGS", "--cfg tokio_unstable")
        .current_dir(root());
    let binary = std::path::Path::new(root()).join(&target).join("sim/sextant-sim");
    let mut run = Command::new(&binary);
    run.arg("many").args(options).current_dir(root());
    for (what, mut command) in [("build", build), ("run", run)] {
        match command.status() {
            Ok(status) if status.success() => {}
            Ok(status) => return Err(format!("xtask: sim: {what} failed ({status})")),
            Err(e) => return Err(format!("xtask: sim: cannot {what}: {e}")),
        }
    }
    Ok(())
}

/// The root of the workspace, wherever the command was started.
fn root() -> &'static str {
    concat!(env!("CARGO_MANIFEST_DIR"), "/..")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_run_in_their_own_order_and_unknown_ones_are_named() {
        let names =
            |given: &[&str]| steps_named(given).map(|s| s.iter().map(|(name, _)| *name).collect::<Vec<_>>());
        assert_eq!(names(&[]).unwrap(), ["fmt", "clippy", "test"]);
        assert_eq!(names(&["test", "fmt"]).unwrap(), ["fmt", "test"]);
        assert!(names(&["tset"]).unwrap_err().contains("no step \"tset\""));
    }

    #[test]
    fn verify_never_writes() {
        for (name, arguments) in VERIFY {
            assert!(!arguments.contains(&"--fix"), "{name}");
            assert!(name != "fmt" || arguments.contains(&"--check"));
        }
    }
}
