//! `cargo xtask nightly`: what takes hours. CI (`.ci/run`) runs the same things for minutes.
//!
//! All steps are run, whatever becomes of the others; the last lines say which failed.

use std::process::Command;
use std::time::Instant;

use crate::root;

/// A name, and the words of a command line. Steps of one name belong together.
type Step = (&'static str, &'static [&'static str]);

const STEPS: [Step; 22] = [
    ("verify", &["cargo", "xtask", "verify"]),
    ("release", &["cargo", "build", "--release", "--locked"]),
    ("instructions", &["cargo", "xtask", "instructions"]),
    // Its own tests.
    (
        "sim",
        &[
            "env",
            "RUSTFLAGS=--cfg tokio_unstable",
            "cargo",
            "test",
            "--locked",
            "--package",
            "sextant-sim",
            "--features",
            "simulation",
            "--lib",
        ],
    ),
    ("sim", &["cargo", "xtask", "sim", "--seeds", "1000", "--limit-seconds", "600"]),
    ("sim", &["cargo", "xtask", "sim", "--seeds", "200", "--first", "5001", "--twice"]),
    ("sim", &["cargo", "xtask", "sim", "--profile", "lying-clocks", "--seeds", "200"]),
    (
        "mutants",
        &["cargo", "xtask", "sim", "--seeds", "100", "--first", "70001", "--themed", "--mutants", "all"],
    ),
    ("chaos", &["cargo", "xtask", "chaos", "--minutes", "10"]),
    ("failover", &["cargo", "xtask", "failover", "--runs", "5"]),
    ("storm", &["cargo", "xtask", "storm"]),
    ("hosts", &["cargo", "xtask", "hosts"]),
    ("hosts", &["cargo", "xtask", "hosts", "--tls", "--only", "kill,cut,move,restart"]),
    ("hosts", &["cargo", "xtask", "hosts", "--clocks", "--only", "kill,pause,cut"]),
    ("zones", &["cargo", "xtask", "hosts", "zones", "--rounds", "1"]),
    (
        "zones",
        &[
            "cargo",
            "xtask",
            "hosts",
            "zone-faults",
            "--only",
            "kill,zone,leaders",
            "--loss",
            "0.1%",
            "--jitter",
            "1ms",
        ],
    ),
    ("rolling", &["cargo", "xtask", "rolling"]),
    ("conformance", &["cargo", "xtask", "conformance", "--commands", "200000"]),
    ("fuzz", &["cargo", "xtask", "fuzz", "--seconds", "60"]),
    ("model", &["cargo", "run", "--release", "--package", "sextant-model", "--", "election"]),
    // A compaction of the newer tables only.
    (
        "model",
        &[
            "cargo",
            "run",
            "--release",
            "--package",
            "sextant-model",
            "--",
            "--writes",
            "2",
            "--freezes",
            "2",
            "--compactions",
            "1",
            "--kinds",
            "delete",
            "--preloaded",
            "values",
        ],
    ),
    (
        "model",
        &[
            "cargo",
            "run",
            "--release",
            "--package",
            "sextant-model",
            "--",
            "--pnodes",
            "2",
            "--writes",
            "2",
            "--failovers",
            "1",
            "--kinds",
            "update,insert,delete",
            "--preloaded",
            "values",
        ],
    ),
];

pub fn nightly(options: &[&str]) -> Result<(), String> {
    if options == ["--list"] {
        for (name, words) in STEPS {
            println!("{name:<12} {}", words.join(" "));
        }
        return Ok(());
    }
    let steps = steps_named(options)?;
    let mut said = Vec::new();
    for (name, words) in steps {
        let shown = words.join(" ");
        println!("\n== {name}: {shown}");
        #[allow(clippy::disallowed_methods, reason = "a tool that says how long its steps took")]
        let started = Instant::now();
        let status = Command::new(words[0]).args(&words[1..]).current_dir(root()).status();
        let well = status.as_ref().is_ok_and(std::process::ExitStatus::success);
        let how = match status {
            Ok(status) if well => format!("ok ({status})"),
            Ok(status) => format!("FAILED ({status})"),
            Err(e) => format!("FAILED (cannot start: {e})"),
        };
        said.push((well, format!("{name:<12} {how}, {} s: {shown}", started.elapsed().as_secs())));
    }
    println!("\n== nightly");
    said.iter().for_each(|(_, line)| println!("{line}"));
    match said.iter().filter(|(well, _)| !well).count() {
        0 => Ok(()),
        failed => Err(format!("xtask: {failed} of {} commands failed", said.len())),
    }
}

/// All steps, or those named.
fn steps_named(names: &[&str]) -> Result<Vec<Step>, String> {
    if let Some(unknown) = names.iter().find(|name| STEPS.iter().all(|(known, _)| known != *name)) {
        return Err(format!("nightly has no step {unknown:?}; `--list` says which there are"));
    }
    Ok(STEPS.into_iter().filter(|(name, _)| names.is_empty() || names.contains(name)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_run_by_name_and_unknown_ones_are_named() {
        assert_eq!(steps_named(&[]).unwrap().len(), STEPS.len());
        assert_eq!(steps_named(&["sim"]).unwrap().len(), 4);
        assert!(steps_named(&["dney"]).unwrap_err().contains("no step \"dney\""));
    }
}
