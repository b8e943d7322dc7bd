//! `cargo xtask instructions`: what the hottest functions execute, counted by callgrind, against figures that are checked in.
//!
//! Counts do not depend on what else the machine does, and are the same to a few instructions in a million from run to run.
//! They do depend on compiler, libc, callgrind and on what the processor can: the reference names them, and where one
//! differs, what is found is reported and fails nothing.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::{root, run, target};

const REFERENCE: &str = "tools/instructions/reference.txt";
/// More than this many per cent more is an error.
const MORE_PERCENT: f64 = 5.0;
const BUILD: crate::Step = (
    "build",
    &["build", "--release", "--locked", "--package", "sextant", "--package", "sextant-instructions"],
);
const HEAD: &str = "\
# Instructions an operation, counted by callgrind: `cargo xtask instructions` compares, `--update` writes this file.
# First what they were counted with; where that differs, a difference is no error.
";

/// Instructions an operation, by function; and what they were counted with.
#[derive(Clone, Debug, Default, PartialEq)]
struct Figures {
    with: BTreeMap<String, String>,
    counts: BTreeMap<String, f64>,
}

pub fn check(update: bool) -> Result<(), String> {
    if !valgrind_is_there() {
        println!(
            "SKIP(valgrind): instructions are not counted: there is no valgrind, and it could not be installed"
        );
        return Ok(());
    }
    run(&[BUILD])?;
    let (counted, skipped) = count()?;
    for line in &skipped {
        println!("SKIP: {line}");
    }
    let path = Path::new(root()).join(REFERENCE);
    if update {
        if !skipped.is_empty() {
            return Err(format!("xtask: instructions: {REFERENCE} is not written: some were not counted"));
        }
        std::fs::write(&path, counted.text()).map_err(|e| format!("xtask: {REFERENCE}: {e}"))?;
        print!("{}", counted.text());
        return Ok(());
    }
    let text = std::fs::read_to_string(&path).map_err(|e| format!("xtask: {REFERENCE}: {e}"))?;
    let (said, failed) = compare(&Figures::parse(&text)?, &counted);
    print!("{said}");
    if failed {
        return Err(format!(
            "xtask: instructions: more than {MORE_PERCENT} % more; if that is meant: cargo xtask instructions --update"
        ));
    }
    Ok(())
}

/// The valgrind of the machine, or one that is installed now.
fn valgrind_is_there() -> bool {
    let works = || quietly(Command::new("valgrind").arg("--version"));
    works() || {
        let apt = |arguments: &[&str]| {
            quietly(Command::new("apt-get").args(arguments).env("DEBIAN_FRONTEND", "noninteractive"))
        };
        // Fails without root; an update also where one source of many is not reached.
        apt(&["update", "-qq"]);
        apt(&["install", "-y", "-qq", "--no-install-recommends", "valgrind"]) && works()
    }
}

fn quietly(command: &mut Command) -> bool {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Counts everything; and lines on what could not be counted.
fn count() -> Result<(Figures, Vec<String>), String> {
    let release = target().join("release");
    let profile = target().join("callgrind.out");
    let output = Command::new("valgrind")
        .args(["--quiet", "--tool=callgrind", "--toggle-collect=counted_*", "--dump-line=no"])
        .args(["--compress-strings=no", "--compress-pos=no"])
        .arg(format!("--callgrind-out-file={}", profile.display()))
        .arg(release.join("sextant-instructions"))
        .arg("--sextant")
        .arg(absolute(&release.join("sextant"))?)
        .stdin(Stdio::null())
        .output()
        .map_err(|e| format!("xtask: instructions: cannot start valgrind: {e}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("xtask: instructions: {}: {}", output.status, said.trim()));
    }
    let text = std::fs::read_to_string(&profile).map_err(|e| format!("xtask: {}: {e}", profile.display()))?;
    let instructions = inclusive(&text);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut figures = Figures { with: with(), ..Figures::default() };
    for (name, operations) in operations(&said) {
        let sum = instructions.get(&name).ok_or(format!("xtask: instructions: callgrind knows no {name}"))?;
        figures.counts.insert(name, *sum as f64 / operations as f64);
    }
    let skipped = said.lines().filter_map(|line| line.strip_prefix("skipped ")).map(str::to_owned).collect();
    Ok((figures, skipped))
}

fn absolute(path: &Path) -> Result<PathBuf, String> {
    std::fs::canonicalize(path).map_err(|e| format!("xtask: {}: {e}", path.display()))
}

/// What the program says of itself: names and numbers of operations.
fn operations(said: &str) -> BTreeMap<String, u64> {
    let line = |line: &str| {
        let (name, operations) = line.strip_prefix("counted_")?.split_once(' ')?;
        Some((name.to_owned(), operations.parse().ok().filter(|operations| *operations > 0)?))
    };
    said.lines().filter_map(line).collect()
}

/// Instructions of each counted function with all that it calls. In callgrind's format a function's part has a line for what it
/// executes itself and one for each function that it calls, what that executes included; the last number is the cost.
fn inclusive(profile: &str) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    let mut function = None;
    for line in profile.lines() {
        if let Some(name) = line.strip_prefix("fn=") {
            function = name.strip_prefix("counted_");
        } else if let Some(name) = function
            && line.starts_with(|c: char| c.is_ascii_digit() || c == '+' || c == '-' || c == '*')
            && let Some(cost) = line.rsplit(' ').next().and_then(|cost| cost.parse::<u64>().ok())
        {
            *sums.entry(name.to_owned()).or_default() += cost;
        }
    }
    sums
}

/// What counts depend on.
fn with() -> BTreeMap<String, String> {
    let first_line = |program: &str| {
        let output = Command::new(program).arg("--version").current_dir(root()).output().ok()?;
        Some(String::from_utf8_lossy(&output.stdout).lines().next()?.to_owned())
    };
    let last_word = |line: String| line.split(' ').next_back().map(str::to_owned);
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let unknown = || "unknown".to_owned();
    BTreeMap::from([
        ("valgrind".to_owned(), first_line("valgrind").unwrap_or_else(unknown)),
        ("libc".to_owned(), first_line("ldd").and_then(last_word).unwrap_or_else(unknown)),
        ("rustc".to_owned(), first_line("rustc").unwrap_or_else(unknown)),
        ("processor".to_owned(), processor(&cpuinfo)),
    ])
}

/// What memory is copied and compared with.
fn processor(cpuinfo: &str) -> String {
    let flags = cpuinfo.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
    let has = ["avx2", "erms", "fsrm"].into_iter().filter(|flag| flags.split(' ').any(|f| f == *flag));
    [std::env::consts::ARCH].into_iter().chain(has).collect::<Vec<_>>().join(" ")
}

impl Figures {
    fn text(&self) -> String {
        let mut text = HEAD.to_owned();
        for (what, version) in &self.with {
            let _ = writeln!(text, "with {what}: {version}");
        }
        for (name, count) in &self.counts {
            let _ = writeln!(text, "{name} {count:.1}");
        }
        text
    }

    fn parse(text: &str) -> Result<Self, String> {
        let mut figures = Figures::default();
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let bad = || format!("xtask: {REFERENCE}: not understood: {line}");
            if let Some(with) = line.strip_prefix("with ") {
                let (what, version) = with.split_once(": ").ok_or_else(bad)?;
                figures.with.insert(what.to_owned(), version.to_owned());
            } else {
                let (name, count) = line.split_once(' ').ok_or_else(bad)?;
                figures.counts.insert(name.to_owned(), count.parse().map_err(|_| bad())?);
            }
        }
        Ok(figures)
    }
}

/// A line for each function, and whether it is an error.
fn compare(reference: &Figures, counted: &Figures) -> (String, bool) {
    let mut text = String::new();
    let mut failed = false;
    for (name, count) in &counted.counts {
        let Some(before) = reference.counts.get(name) else {
            let _ = writeln!(text, "{name:<24} {:>9} {count:>9.1}  new: --update", "-");
            continue;
        };
        // To a tenth, as it is shown; and no "-0.0".
        let percent = ((count - before) * 1000.0 / before).round() / 10.0 + 0.0;
        let more = percent > MORE_PERCENT;
        failed |= more;
        let verdict = match percent {
            _ if more => "  MORE",
            less if less < -MORE_PERCENT => "  less: --update keeps it so",
            _ => "",
        };
        let _ = writeln!(text, "{name:<24} {before:>9.1} {count:>9.1} {percent:>+6.1} %{verdict}");
    }
    for name in reference.counts.keys().filter(|name| !counted.counts.contains_key(*name)) {
        let _ = writeln!(text, "{name:<24} was not counted");
    }
    let other: Vec<_> =
        reference.with.iter().filter(|(what, version)| counted.with.get(*what) != Some(version)).collect();
    for (what, version) in &other {
        let now = counted.with.get(*what).map_or("unknown", String::as_str);
        let _ =
            writeln!(text, "counted with another {what} ({now}) than the reference ({version}): no error");
    }
    (text, failed && other.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(libc: &str, counts: &[(&str, f64)]) -> Figures {
        Figures {
            with: BTreeMap::from([("libc".to_owned(), libc.to_owned())]),
            counts: counts.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect(),
        }
    }

    #[test]
    fn a_function_s_instructions_are_its_own_and_those_of_what_it_calls() {
        let profile = "events: Ir\n\nfn=main\n0 7\ncfn=counted_a\ncalls=1 0\n0 160\n\nfl=x.rs\nfn=counted_a\n0 10\n\
            cfi=y.rs\ncfn=other\ncalls=3 0\n0 100\nfi=z.rs\n0 50\n\nfn=other\n0 100\n\nfn=counted_b\n+4 9\n\ntotals: 9\n";
        assert_eq!(inclusive(profile), BTreeMap::from([("a".to_owned(), 160), ("b".to_owned(), 9)]));
        let said = "counted_a 16\nskipped b: why\ncounted_c 0\ncounted_d x\n";
        assert_eq!(operations(said), BTreeMap::from([("a".to_owned(), 16)]));
    }

    #[test]
    fn more_is_an_error_unless_it_was_counted_with_something_else() {
        let reference = figures("2.36", &[("get", 100.0), ("set", 100.0), ("gone", 1.0)]);
        let (said, failed) =
            compare(&reference, &figures("2.36", &[("get", 105.0), ("set", 90.0), ("x", 1.0)]));
        assert!(
            !failed && said.contains("less") && said.contains("new") && said.contains("not counted"),
            "{said}"
        );
        let (said, failed) = compare(&reference, &figures("2.36", &[("get", 105.1)]));
        assert!(failed && said.contains("MORE"), "{said}");
        let (said, failed) = compare(&reference, &figures("2.41", &[("get", 200.0)]));
        assert!(!failed && said.contains("MORE") && said.contains("another libc (2.41)"), "{said}");
    }

    #[test]
    fn the_reference_is_read_as_it_is_written() {
        let written = figures("2.36", &[("get", 100.5)]);
        assert_eq!(Figures::parse(&written.text()).unwrap(), written);
        assert!(Figures::parse("get many").unwrap_err().contains("get many"));
        let checked_in = std::fs::read_to_string(Path::new(root()).join(REFERENCE)).unwrap();
        assert!(Figures::parse(&checked_in).unwrap().counts.contains_key("memtable_get"));
    }

    #[test]
    fn a_processor_is_what_copies_memory() {
        assert!(processor("flags\t\t: fpu avx2 erms x").ends_with(" avx2 erms"));
    }
}
