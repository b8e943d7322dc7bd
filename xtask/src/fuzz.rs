//! `cargo xtask fuzz`: libFuzzer on nightly Rust where it is to be had, the mutator on stable Rust where not.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::root;

const SECONDS_DEFAULT: u64 = 30;

/// What to run, and for how long each.
#[derive(Debug, PartialEq, Eq)]
struct Options {
    seconds: u64,
    /// None: all.
    target: Option<String>,
}

pub fn fuzz(arguments: &[&str]) -> Result<(), String> {
    let options = parse(arguments)?;
    let names = names()?;
    if let Some(target) = &options.target
        && !names.contains(target)
    {
        return Err(format!("no target {target:?}: there are {}", names.join(", ")));
    }
    match coverage_guided() {
        Ok(()) => libfuzzer(&options, names),
        Err(reason) => {
            println!("SKIP({reason}; mutating on stable Rust instead");
            mutate(&options)
        }
    }
}

fn parse(arguments: &[&str]) -> Result<Options, String> {
    let mut options = Options { seconds: SECONDS_DEFAULT, target: None };
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        match *argument {
            "--seconds" => {
                let value = rest.next().ok_or("--seconds needs a number")?;
                options.seconds =
                    value.parse().map_err(|_| format!("--seconds: {value:?} is not a number"))?;
            }
            name if !name.starts_with('-') && options.target.is_none() => {
                options.target = Some(name.to_owned())
            }
            other => return Err(format!("fuzz: {other:?} is one too many")),
        }
    }
    Ok(options)
}

/// The targets: each has a folder of kept inputs.
fn names() -> Result<Vec<String>, String> {
    let corpus = path("tests/fuzz/corpus");
    let folders = std::fs::read_dir(&corpus).map_err(|e| format!("{}: {e}", corpus.display()))?;
    let mut names: Vec<String> =
        folders.filter_map(|folder| Some(folder.ok()?.file_name().to_string_lossy().into_owned())).collect();
    names.sort();
    Ok(names)
}

fn path(name: &str) -> PathBuf {
    Path::new(root()).join(name)
}

/// `Err`: which capability is missing, and why, as `capability): reason`.
fn coverage_guided() -> Result<(), String> {
    let listed = Command::new("rustup").args(["toolchain", "list"]).output();
    let listed = listed.map_err(|e| format!("nightly): cannot start rustup: {e}"))?;
    if !String::from_utf8_lossy(&listed.stdout).lines().any(|line| line.starts_with("nightly")) {
        return Err("nightly): `rustup toolchain install nightly` has not been run".into());
    }
    if succeeds(nightly().args(["fuzz", "--version"]).stdout(Stdio::null()).stderr(Stdio::null())) {
        return Ok(());
    }
    if succeeds(nightly().args(["install", "cargo-fuzz", "--locked"])) {
        return Ok(());
    }
    Err("cargo-fuzz): it could not be installed".into())
}

fn nightly() -> Command {
    let mut command = Command::new("rustup");
    command.args(["run", "nightly", "cargo"]).current_dir(root());
    command
}

fn succeeds(command: &mut Command) -> bool {
    command.status().is_ok_and(|status| status.success())
}

fn libfuzzer(options: &Options, names: Vec<String>) -> Result<(), String> {
    // No sanitizer: there is no unsafe code behind the targets but a few dependencies', and without it twice as much is tried.
    let build = ["fuzz", "build", "--fuzz-dir", "tests/fuzz/libfuzzer", "--sanitizer", "none", "any"];
    if !succeeds(nightly().args(build)) {
        return Err("xtask: the fuzz targets do not build on nightly".into());
    }
    let mut broken = Vec::new();
    for name in names.into_iter().filter(|name| options.target.as_ref().is_none_or(|only| only == name)) {
        // What is new goes into the first folder.
        let (found, kept) =
            (path("tests/fuzz/libfuzzer/corpus").join(&name), path("tests/fuzz/corpus").join(&name));
        let artifacts = path("tests/fuzz/libfuzzer/artifacts").join(&name);
        for folder in [&found, &artifacts] {
            std::fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        }
        println!("xtask: {name} for {} s", options.seconds);
        let mut run = nightly();
        run.args(["fuzz", "run", "--fuzz-dir", "tests/fuzz/libfuzzer", "--sanitizer", "none", "any"])
            .args([&found, &kept]);
        run.arg("--").arg(format!("-max_total_time={}", options.seconds));
        run.arg(format!("-artifact_prefix={}/", artifacts.display()));
        run.args(["-rss_limit_mb=4096", "-timeout=20", "-print_final_stats=1"]);
        if !succeeds(run.env("SEXTANT_FUZZ_TARGET", &name)) {
            println!("xtask: {name} is BROKEN: see {}", artifacts.display());
            broken.push(name);
        }
    }
    if broken.is_empty() { Ok(()) } else { Err(format!("xtask: broken: {}", broken.join(", "))) }
}

fn mutate(options: &Options) -> Result<(), String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut run = Command::new(cargo);
    run.args(["run", "--quiet", "--package", "sextant-fuzz", "--", "mutate", "--seconds"]);
    run.arg(options.seconds.to_string()).args(&options.target).current_dir(root());
    if succeeds(&mut run) { Ok(()) } else { Err("xtask: a target broke a promise".into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_and_nonsense_is_refused() {
        let options = |seconds, target: Option<&str>| Options { seconds, target: target.map(str::to_owned) };
        assert_eq!(parse(&[]), Ok(options(SECONDS_DEFAULT, None)));
        assert_eq!(parse(&["--seconds", "5", "config"]), Ok(options(5, Some("config"))));
        assert_eq!(parse(&["config", "--seconds", "5"]), Ok(options(5, Some("config"))));
        for wrong in [&["--seconds"][..], &["--seconds", "x"], &["a", "b"], &["--minutes"]] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn every_target_has_a_folder_of_inputs() {
        assert!(names().unwrap().contains(&"config".to_owned()));
    }
}
