//! `cargo xtask sim`: builds the simulation and runs it.
//!
//! It needs a flag (tokio's scheduler takes a seed only with it), a feature (mutants) and some optimisation. All packages are
//! selected, and one test with it, so that cargo gives everything that we depend on the same features as in a build of all tests:
//! where flags and target directory are the same too (`.ci/run`), nothing foreign is compiled twice.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::root;

pub const FEATURE: &str = "sextant-sim/simulation";
const FLAG: &str = "--cfg tokio_unstable";

pub fn simulate(options: &[&str]) -> Result<(), String> {
    let binary = build()?;
    let mut run = Command::new(binary);
    run.arg("many").args(options).current_dir(root());
    done("run", run)
}

fn build() -> Result<PathBuf, String> {
    let target = std::env::var("SIM_TARGET_DIR").unwrap_or_else(|_| "target/sim".to_owned());
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build
        .args(["build", "--locked", "--quiet", "--workspace", "--bin", "sextant-sim", "--test", "documented"])
        .args(["--features", FEATURE, "--target-dir", &target])
        // Fast enough for hundreds of runs, with assertions. Foreign crates have their own level, here and elsewhere.
        .args(["--config", "profile.dev.opt-level=1"])
        .env("RUSTFLAGS", rustflags())
        .current_dir(root());
    done("build", build)?;
    Ok(Path::new(root()).join(target).join("debug/sextant-sim"))
}

fn done(what: &str, mut command: Command) -> Result<(), String> {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("xtask: sim: {what} failed ({status})")),
        Err(e) => Err(format!("xtask: sim: cannot {what}: {e}")),
    }
}

/// The compiler's flags with ours among them; as they are if it is there already, so that nothing is compiled again.
pub fn rustflags() -> OsString {
    let given = std::env::var_os("RUSTFLAGS").unwrap_or_default();
    match given.to_str() {
        Some(text) if text.contains(FLAG) => given,
        Some("") => FLAG.into(),
        _ => {
            let mut flags = given;
            flags.push(" ");
            flags.push(FLAG);
            flags
        }
    }
}
