//! `sextant-fuzz`: what `cargo xtask fuzz` uses beside libFuzzer.

use std::process::ExitCode;

use sextant_environment::Clock;
use sextant_environment::clock::SystemClock;
use sextant_environment::rng::{Rng, SeededRng};
use sextant_fuzz::{TARGETS, Target, corpus, run, target};

const USAGE: &str = "\
usage: sextant-fuzz <command>

  list                                       names of the targets
  seeds                                      write the seeds of all targets into corpus/
  mutate [--seconds N] [--seed N] [target]   mutate the kept inputs, of one target or of all
  replay <target> <file>..                   run files
";
const SECONDS_DEFAULT: u64 = 10;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match arguments[..] {
        ["list"] => {
            TARGETS
                .iter()
                .for_each(|target| println!("{}\t{}\t{}", target.name, target.input_bytes_max, target.about));
            Ok(())
        }
        ["seeds"] => seeds(),
        ["mutate", ref options @ ..] => mutate(options),
        ["replay", name, ref files @ ..] => named(name).and_then(|target| replay(target, files)),
        _ => Err(USAGE.to_owned()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{}", message.trim_end());
            ExitCode::FAILURE
        }
    }
}

fn named(name: &str) -> Result<&'static Target, String> {
    target(name).ok_or_else(|| format!("no target {name:?}: see `sextant-fuzz list`"))
}

fn seeds() -> Result<(), String> {
    for target in TARGETS {
        let count = corpus::write_seeds(target).map_err(|e| format!("{}: {e}", target.name))?;
        println!("{}: {count} seeds", target.name);
    }
    Ok(())
}

fn replay(target: &Target, files: &[&str]) -> Result<(), String> {
    for file in files {
        let input = std::fs::read(file).map_err(|e| format!("{file}: {e}"))?;
        run::once(target, &input).map_err(|what| format!("{file}: {what}"))?;
        println!("{file}: ok");
    }
    Ok(())
}

fn mutate(options: &[&str]) -> Result<(), String> {
    let (mut seconds, mut seed, mut chosen) = (SECONDS_DEFAULT, SeededRng::from_os().next_u64(), None);
    let mut options = options.iter();
    while let Some(option) = options.next() {
        let mut number = || {
            let value = options.next().ok_or_else(|| format!("{option} needs a number"))?;
            value.parse::<u64>().map_err(|_| format!("{option}: {value:?} is not a number"))
        };
        match *option {
            "--seconds" => seconds = number()?,
            "--seed" => seed = number()?,
            name => chosen = Some(named(name)?),
        }
    }
    let targets: Vec<&Target> = TARGETS.iter().filter(|t| chosen.is_none_or(|c| c.name == t.name)).collect();
    let clock = SystemClock::default();
    let mut broken = 0;
    for target in targets {
        let until_ns = clock.holder_ns() + seconds * 1_000_000_000;
        let enough = |runs: u64| runs.is_multiple_of(16) && clock.holder_ns() >= until_ns;
        let searched = run::search(target, seed, enough).map_err(|e| format!("{}: {e}", target.name))?;
        println!("{}: {} runs, seed {seed}", target.name, searched.runs);
        if let Some((input, what)) = searched.broken {
            broken += 1;
            let kept = corpus::keep(target, &input).map_err(|e| e.to_string())?;
            println!("{}: BROKEN, kept as {}: {what}", target.name, kept.display());
        }
    }
    if broken == 0 { Ok(()) } else { Err(format!("{broken} targets broke a promise")) }
}
