//! Chores of the repository: `cargo xtask <command>`.
//!
//! `verify` never changes a file; `fix` does. Standard library only, so that it builds in a second.

mod deny;
mod fuzz;
mod instructions;
mod metrics;
mod mutants;
mod nightly;
mod rules;
mod seeing;
mod sim;
mod suites;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

const USAGE: &str = "\
usage: cargo xtask <command>

  verify [step..]   check all that is checked before a merge, or only the steps named:
                      fmt      formatting
                      deny     what we depend on: licences, sources, bans, advisories, by deny.toml
                      clippy   lints, as errors
                      test     all tests
  test              all tests, as many programs at a time as there are cores
  fix               format, and let clippy mend what it can
  chaos [option..]  break a cluster of real processes under load, and check every answer; --help: options
  failover [option..]
                    measure how long service is gone for each kind of fault; --help: options
  storm [option..]  overload a cluster, and watch what other clients notice; --help: options
  rolling [option..]
                    restart one server after the other under load, and count what clients notice; --help: options
  hosts [option..]  build the image, break the containers of deploy/compose.yaml under load, and check every answer; skipped
                    where there is no Docker; --short: a minute of it; --help: options
  hosts zones [option..]
                    the same containers over two zones: what the modes of reading are worth at a distance; --help: options
  hosts zone-faults [option..]
                    break them there, and the line between the zones, which may lose, jitter and reorder; --help: options
  peers [option..]  compare with Redis and etcd on this machine; writes docs/benchmarks/peers.md; --help: options
  conformance [option..]
                    the same random commands against redis-server and Sextant, reply by reply; --help: options
  engines [--without-rocksdb] [option..]
                    the table format beside lsm-tree's and RocksDB's: docs/benchmarks/tables.md. RocksDB is compiled for it (ten
                    minutes on two cores), which needs a compiler of C++ and libclang (Debian: libclang-dev)
  instructions [--update]
                    count the instructions of the hottest functions, and fail if one takes more than 5 % more than in
                    tools/instructions/reference.txt; --update: write them there
  fuzz [--seconds N] [target]
                    fuzz all decoders, or one, so many seconds each: docs/fuzzing.md
  nightly [step..]  what takes hours, or only the steps named; --list: which there are
  sim [option..]    run the whole cluster in a deterministic simulation: --seeds N [--first S] [--twice] [--jobs J]
                    [--limit-seconds L] [--json FILE] [--profile P] [--theme SCENE] [--mutant M] [--no-invariants];
                    broken builds: --mutants all|M,M.. [--themed]; --build: only compile it
  patches           check that those broken builds that are patches compile
  metrics           write docs/metrics.md from a cluster that is started for it
  seeing            check that alerts and dashboards use metrics and labels that there are, and that promtool takes the alerts
  seeing --live [option..]
                    what the dashboards show of a cluster, asked of a running Prometheus (Python); --help: options
  rules             write docs/rules.md from the catalogue in crates/rules
  proto             write crates/proto/src/generated from the protobuf files
";

/// A step's name and the arguments of cargo.
type Step = (&'static str, &'static [&'static str]);

const VERIFY: [Step; 4] = [
    ("fmt", &["fmt", "--all", "--check"]),
    ("deny", &["xtask", "deny"]),
    // With the simulation, which is empty otherwise.
    (
        "clippy",
        &["clippy", "--workspace", "--all-targets", "--features", sim::FEATURE, "--", "-D", "warnings"],
    ),
    ("test", &["xtask", "test"]),
];

const PROTO: [Step; 1] = [("proto", &["run", "--quiet", "--package", "sextant-protogen"])];

const FIX: [Step; 2] = [
    ("clippy", &["clippy", "--workspace", "--all-targets", "--fix", "--allow-dirty", "--allow-staged"]),
    // After clippy, whose changes need formatting.
    ("fmt", &["fmt", "--all"]),
];

/// What cargo tells a program about itself that it runs. Passed on to another cargo, it looks as if build scripts had to run
/// again (that of `ring` does), and everything that stands on them would be compiled once more.
fn forget_who_runs_us() {
    const OURS: [&str; 5] =
        ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_CRATE_NAME", "CARGO_BIN_NAME", "CARGO_PRIMARY_PACKAGE"];
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    for name in names.filter(|name| OURS.iter().any(|ours| name.starts_with(ours))).collect::<Vec<_>>() {
        // SAFETY: there is no other thread yet.
        unsafe { std::env::remove_var(name) };
    }
}

fn main() -> ExitCode {
    forget_who_runs_us();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match arguments[..] {
        ["verify", ref names @ ..] => steps_named(names).and_then(|steps| run(&steps)),
        ["fix"] => run(&FIX),
        ["chaos" | "failover" | "storm" | "rolling", ..] => break_things(&arguments),
        ["hosts", ..] => hosts(&arguments),
        ["peers", ref options @ ..] => beside("sextant-peers", options),
        ["conformance", ref options @ ..] => beside("sextant-conformance", options),
        ["engines", "--without-rocksdb", ref options @ ..] => engines(&[], options),
        ["engines", ref options @ ..] => engines(&["--features", "rocksdb"], options),
        ["fuzz", ref arguments @ ..] => fuzz::fuzz(arguments),
        ["instructions"] => instructions::check(false),
        ["instructions", "--update"] => instructions::check(true),
        ["test"] => suites::run(Path::new(root()), &target()),
        ["deny"] => deny::check(),
        ["metrics", ref options @ ..] => metrics::write(options),
        ["seeing"] => seeing::check(),
        ["seeing", "--live", ref options @ ..] => seeing::live(options),
        ["nightly", ref options @ ..] => nightly::nightly(options),
        ["sim", ref options @ ..] => sim::simulate(options),
        ["patches"] => sim::check_patches(),
        ["rules"] => rules::write(),
        ["proto"] => run(&PROTO),
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
fn run(steps: &[(&str, &[&str])]) -> Result<(), String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    for (name, arguments) in steps {
        let shown = format!("cargo {}", arguments.join(" "));
        eprintln!("xtask: {shown}");
        let mut command = Command::new(&cargo);
        command.args(*arguments).current_dir(root());
        if arguments.contains(&sim::FEATURE) {
            command.env("RUSTFLAGS", sim::rustflags());
        }
        let status = command.status();
        match status {
            Ok(status) if status.success() => {}
            Ok(status) => return Err(format!("xtask: step {name} failed ({status}): {shown}")),
            Err(e) => return Err(format!("xtask: step {name}: cannot start {shown}: {e}")),
        }
    }
    Ok(())
}

/// Builds the servers and what breaks them, in one go so that they share what they depend on, and runs it. `CHAOS_PROGRAM`: what
/// was built already, with the servers beside it.
fn break_things(arguments: &[&str]) -> Result<(), String> {
    const BUILD: Step =
        ("build", &["build", "--release", "--package", "sextant", "--package", "sextant-chaos"]);
    let program = match std::env::var_os("CHAOS_PROGRAM") {
        Some(program) => PathBuf::from(program),
        None => {
            run(&[BUILD])?;
            target().join("release").join("sextant-chaos")
        }
    };
    let status = Command::new(&program).args(arguments).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("xtask: {} failed ({status})", arguments.join(" "))),
        Err(e) => Err(format!("xtask: cannot start {}: {e}", program.display())),
    }
}

/// Tables of several engines: a workspace of its own.
fn engines(features: &[&str], options: &[&str]) -> Result<(), String> {
    const RUN: [&str; 5] = ["run", "--locked", "--release", "--manifest-path", "tools/engines/Cargo.toml"];
    run(&[("engines", &[&RUN[..], features, &["--"], options].concat())])
}

/// The same for containers, of an image of this tree, or of the servers beside `CHAOS_PROGRAM`.
fn hosts(arguments: &[&str]) -> Result<(), String> {
    let answers = |words: &[&str]| {
        let quiet = Stdio::null;
        let asked = Command::new(words[0]).args(&words[1..]).stdout(quiet()).stderr(quiet()).status();
        asked.is_ok_and(|status| status.success())
    };
    if !answers(&["docker", "info"]) {
        println!("SKIP(docker): a cluster of containers: no Docker answers here");
        return Ok(());
    }
    if !answers(&["docker", "compose", "version"]) && !answers(&["docker-compose", "version"]) {
        println!("SKIP(compose): a cluster of containers: Docker has no compose here");
        return Ok(());
    }
    if let Some(program) = std::env::var_os("CHAOS_PROGRAM") {
        let binary = PathBuf::from(program).with_file_name("sextant");
        return break_things(&[arguments, &["--binary", &binary.to_string_lossy()]].concat());
    }
    let built = Command::new(Path::new(root()).join("deploy/docker/build")).status();
    match built {
        Ok(status) if status.success() => break_things(arguments),
        Ok(status) => Err(format!("xtask: deploy/docker/build failed ({status})")),
        Err(e) => Err(format!("xtask: cannot start deploy/docker/build: {e}")),
    }
}

/// Builds the servers and a tool that compares them with others, and runs it.
fn beside(tool: &str, options: &[&str]) -> Result<(), String> {
    run(&[("build", &["build", "--release", "--package", "sextant", "--package", tool])])?;
    let program = target().join("release").join(tool);
    let status = Command::new(&program).args(options).current_dir(root()).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("xtask: {tool} failed ({status})")),
        Err(e) => Err(format!("xtask: cannot start {}: {e}", program.display())),
    }
}

/// Where cargo builds.
fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| Path::new(root()).join("target"), PathBuf::from)
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
        assert_eq!(names(&[]).unwrap(), ["fmt", "deny", "clippy", "test"]);
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
