//! `cargo xtask sim`: builds the simulation and runs it.
//!
//! It needs a flag (tokio's scheduler takes a seed only with it), a feature (mutants) and some optimisation. All packages are
//! selected, and one test with it, so that cargo gives everything that we depend on the same features as in a build of all tests:
//! where flags and target directory are the same too (`.ci/run`), nothing foreign is compiled twice.
//!
//! Mutants that are patches are built from a copy of the tree ([`crate::mutants`]).

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::mutants::{need_patches, patched_tree};
use crate::root;

pub const FEATURE: &str = "sextant-sim/simulation";
const FLAG: &str = "--cfg tokio_unstable";
/// Crates that a simulated cluster has on board and does not run: they are not optimised for it.
const IDLE: [&str; 3] = ["access", "resp", "tls"];

pub fn simulate(options: &[&str]) -> Result<(), String> {
    let binary = if need_patches(options)? { build_patched()? } else { build(Path::new(root()))? };
    if options == ["--build"] {
        return Ok(());
    }
    let mut run = Command::new(binary);
    run.arg("many").args(options).current_dir(root());
    done("run", run)
}

/// Where the simulation is built.
fn target() -> PathBuf {
    let target = std::env::var("SIM_TARGET_DIR").unwrap_or_else(|_| "target/sim".to_owned());
    Path::new(root()).join(target)
}

/// A simulation of servers with all patches. It shares the target directory, and so what is not ours; its program is put aside,
/// because the place where cargo puts it belongs to the tree itself.
fn build_patched() -> Result<PathBuf, String> {
    let dir = target().join("mutants");
    let tree = patched_tree(&dir)?;
    let built = build(&tree)?;
    let kept = dir.join("sextant-sim");
    // Not written over: a run may have it open.
    let new = dir.join("sextant-sim.new");
    std::fs::copy(&built, &new)
        .and_then(|_| std::fs::rename(&new, &kept))
        .and_then(|()| std::fs::remove_file(&built))
        .map_err(|e| format!("xtask: sim: {}: {e}", built.display()))?;
    Ok(kept)
}

fn build(tree: &Path) -> Result<PathBuf, String> {
    let mut build = cargo("build", tree);
    // Fast enough for hundreds of runs, with assertions. Foreign crates have their own level, here and elsewhere.
    build.args(["--config", "profile.dev.opt-level=1"]);
    for name in IDLE {
        build.arg("--config").arg(format!("profile.dev.package.sextant-{name}.opt-level=0"));
    }
    done("build", build)?;
    Ok(target().join("debug/sextant-sim"))
}

/// Whether all patches compile: a third of the time that their build takes, since what is not ours was checked for clippy.
pub fn check_patches() -> Result<(), String> {
    let tree = patched_tree(&target().join("mutants"))?;
    done("check of patches", cargo("check", &tree))
}

/// What is said of the simulation to cargo, which is to do this with it.
fn cargo(command: &str, tree: &Path) -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .args([command, "--locked", "--quiet", "--workspace", "--bin", "sextant-sim", "--test", "catalogue"])
        .args(["--features", FEATURE])
        .arg("--target-dir")
        .arg(target())
        .env("RUSTFLAGS", rustflags())
        .current_dir(tree);
    if tree != Path::new(root()) {
        cargo.env("SEXTANT_PATCHED", "1");
    }
    cargo
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
