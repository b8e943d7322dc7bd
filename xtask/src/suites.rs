//! All tests, as many programs at a time as there are cores: most of them wait for clusters of their own.
//! What a program prints comes in one piece, in the form of `cargo test`, when it has ended.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread;

/// A program of tests, or those in documentation, which cargo runs.
enum Tests {
    Program { path: PathBuf, source: String, package: PathBuf },
    Documentation,
}

/// Builds them and runs them all, also after one has failed.
pub fn run(root: &Path, target: &Path) -> Result<(), String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut waiting = build(Command::new(&cargo).current_dir(root))?;
    // The largest first: they start clusters, and nothing should be left to wait for at the end but what is short.
    waiting.sort_by_key(|(size, _)| *size);
    let waiting = Mutex::new(waiting);
    let failed = Mutex::new(Vec::new());
    // Of programs that are at it.
    let logs = target.join("tests");
    std::fs::create_dir_all(&logs).map_err(|e| format!("xtask: {}: {e}", logs.display()))?;
    let lanes = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for lane in 0..lanes {
            let (waiting, failed, cargo) = (&waiting, &failed, &cargo);
            let log = logs.join(format!("{lane}.log"));
            scope.spawn(move || {
                loop {
                    let next = waiting.lock().expect("nobody panics with it").pop();
                    let Some((_, tests)) = next else { break };
                    let mut command = tests.command(cargo, root);
                    let ended = run_one(&tests, &mut command, &log);
                    if let Err(message) = ended {
                        failed.lock().expect("nobody panics with it").push(message);
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().expect("nobody panics with it");
    if failed.is_empty() { Ok(()) } else { Err(format!("xtask: tests failed:\n  {}", failed.join("\n  "))) }
}

/// The programs with their sizes.
fn build(cargo: &mut Command) -> Result<Vec<(u64, Tests)>, String> {
    cargo.args(["test", "--workspace", "--no-run", "--message-format=json-render-diagnostics"]);
    let output =
        cargo.stderr(Stdio::inherit()).output().map_err(|e| format!("xtask: cannot start cargo: {e}"))?;
    if !output.status.success() {
        return Err(format!("xtask: the tests cannot be built ({})", output.status));
    }
    let messages = String::from_utf8_lossy(&output.stdout);
    let mut found = vec![(0, Tests::Documentation)];
    for message in messages.lines() {
        if let Some(tests) = program(message)? {
            let Tests::Program { path, .. } = &tests else { unreachable!("a program") };
            let size = std::fs::metadata(path).map_err(|e| format!("xtask: {}: {e}", path.display()))?.len();
            found.push((size, tests));
        }
    }
    if found.len() == 1 {
        return Err(
            "xtask: cargo named no program of tests: has the form of its messages changed?".to_owned()
        );
    }
    Ok(found)
}

/// What cargo says of one program: a line of JSON, of which three texts are wanted.
fn program(message: &str) -> Result<Option<Tests>, String> {
    let profile = message.split_once("\"profile\":{").map_or("", |(_, rest)| rest);
    let profile = profile.split_once('}').map_or("", |(profile, _)| profile);
    if !profile.contains("\"test\":true") {
        return Ok(None);
    }
    let text = |name: &str| {
        let (_, rest) = message.split_once(&format!("\"{name}\":\""))?;
        let (text, _) = rest.split_once('"')?;
        (!text.contains('\\')).then_some(text)
    };
    let (Some(path), Some(manifest), Some(source)) =
        (text("executable"), text("manifest_path"), text("src_path"))
    else {
        return Err(format!("xtask: not understood: {message}"));
    };
    let package = Path::new(manifest).parent().expect("a file's folder").to_owned();
    Ok(Some(Tests::Program { path: path.into(), source: source.to_owned(), package }))
}

impl Tests {
    fn command(&self, cargo: &std::ffi::OsStr, root: &Path) -> Command {
        match self {
            Tests::Program { path, package, .. } => {
                let mut command = Command::new(path);
                command.current_dir(package).env("CARGO_MANIFEST_DIR", package);
                command
            }
            Tests::Documentation => {
                let mut command = Command::new(cargo);
                command.args(["test", "--workspace", "--doc", "--no-fail-fast"]).current_dir(root);
                command
            }
        }
    }

    fn name(&self) -> &str {
        match self {
            Tests::Program { source, .. } => source,
            Tests::Documentation => "documentation",
        }
    }
}

/// Its output is in `log` while it runs: whoever ends a run that hangs finds there what it was at.
fn run_one(tests: &Tests, command: &mut Command, log: &Path) -> Result<(), String> {
    let told = |e: io::Error| format!("{}: {e}", tests.name());
    let mut file = File::create(log).map_err(told)?;
    if let Tests::Program { path, source, .. } = tests {
        writeln!(file, "     Running {source} ({})", path.display()).map_err(told)?;
    }
    let errors = file.try_clone().map_err(told)?;
    let status = command.stdin(Stdio::null()).stdout(file).stderr(errors).status().map_err(told)?;
    let printed = std::fs::read(log).map_err(told)?;
    io::stdout().lock().write_all(&printed).map_err(told)?;
    std::fs::remove_file(log).map_err(told)?;
    if status.success() { Ok(()) } else { Err(format!("{} ({status})", tests.name())) }
}
