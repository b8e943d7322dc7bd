//! `sextant-sim --seed N`: one run of the simulated cluster, one line of JSON.

use std::process::ExitCode;

#[cfg(feature = "simulation")]
use sextant_rules::mutant::Mutant;

#[cfg(not(feature = "simulation"))]
fn main() -> ExitCode {
    eprintln!("sextant-sim: built without its feature; use `cargo xtask sim`");
    ExitCode::from(2)
}

#[cfg(feature = "simulation")]
fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some("many") {
        return many();
    }
    let options = match options(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(message) => {
            eprintln!("sextant-sim: {message}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    if std::env::var_os("RUST_LOG").is_some() {
        sextant_environment::logging::init_timeless();
    }
    let report = sextant_sim::run(&options);
    println!("{}", report.to_json());
    if report.verdict == sextant_sim::Verdict::Ok { ExitCode::SUCCESS } else { ExitCode::from(1) }
}

#[cfg(feature = "simulation")]
fn many() -> ExitCode {
    let done = many_options(std::env::args().skip(2)).map(|(options, mutants)| match mutants {
        Some(mutants) => sextant_sim::broken(&options, &mutants),
        None => sextant_sim::many(&options),
    });
    match done {
        Ok(Ok(true)) => ExitCode::SUCCESS,
        Ok(Ok(false)) => ExitCode::from(1),
        Ok(Err(e)) => {
            eprintln!("sextant-sim: {e}");
            ExitCode::from(2)
        }
        Err(message) => {
            eprintln!("sextant-sim: {message}\n\n{USAGE}");
            ExitCode::from(2)
        }
    }
}

#[cfg(feature = "simulation")]
#[allow(clippy::type_complexity, reason = "used once")]
fn many_options(
    mut arguments: impl Iterator<Item = String>,
) -> Result<(sextant_sim::ManyOptions, Option<Vec<Mutant>>), String> {
    let mut mutants = None;
    let mut many = sextant_sim::ManyOptions {
        seeds: 1,
        first: 1,
        jobs: std::thread::available_parallelism().map_or(1, |n| n.get()),
        twice: false,
        limit: std::time::Duration::from_secs(300),
        json: None,
        arguments: Vec::new(),
        mutant: false,
        minima: true,
        themed: false,
    };
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or_else(|| format!("{argument} needs a value"));
        let number = |text: String| text.parse::<u64>().map_err(|_| format!("{text:?} is no number"));
        match argument.as_str() {
            "--seeds" => many.seeds = number(value()?)?,
            "--first" => many.first = number(value()?)?,
            "--jobs" => many.jobs = number(value()?)?.max(1) as usize,
            "--limit-seconds" => many.limit = std::time::Duration::from_secs(number(value()?)?),
            "--twice" => many.twice = true,
            "--mutants" => {
                let names = value()?;
                mutants = Some(match names.as_str() {
                    "all" => sextant_sim::mutants().collect(),
                    names => names.split(',').map(sextant_sim::mutant_named).collect::<Result<_, _>>()?,
                });
            }
            "--json" => many.json = Some(value()?.into()),
            "--mutant" | "--profile" | "--theme" => {
                let value = value()?;
                many.mutant |= argument == "--mutant";
                many.minima &= argument == "--mutant" || value == "mixed";
                many.arguments.extend([argument, value]);
            }
            "--wipes" | "--no-wipes" | "--no-modes" | "--changes" => {
                // Rarer then is something that the minima count.
                many.minima = false;
                many.arguments.push(argument);
            }
            "--themed" => many.themed = true,
            "--no-invariants" => many.arguments.push(argument),
            other => return Err(format!("unknown argument {other:?}")),
        }
    }
    Ok((many, mutants))
}

#[cfg(feature = "simulation")]
const USAGE: &str = "\
usage: sextant-sim --seed N [--profile mixed|quiet|lying-clocks] [--theme SCENE] [--wipes|--no-wipes] [--no-modes] [--changes] [--mutant NAME]
                   [--no-invariants] [--trace] [--history FILE]
       sextant-sim many --seeds N [--first S] [--twice] [--jobs J] [--limit-seconds L] [--json FILE] [--profile P] [--theme SCENE]
                        [--wipes|--no-wipes] [--no-modes] [--changes] [--mutant M] [--mutants all|M,M.. [--themed]] [--no-invariants]

  --theme SCENE    a scene that runs come back to, whatever their seeds say
  --trace          every event on stderr
  --history FILE   write the history of operations, for `sextant check`
  --wipes          in every run memtable servers lose their memory, and followers that need a snapshot have no room for it; in half of
                   them otherwise, and in none with --no-wipes: in these voters change
  --no-modes       the operator does not change the mode of leases and the bound on drift
  --changes        in every run tables are dropped, made and altered; in a third of them otherwise
  --themed         each mutant with the scene that it is about, if there is one
  --mutants        broken builds, each on seed after seed until it is caught: a table
  RUST_LOG=debug   the servers' logs on stderr";

#[cfg(feature = "simulation")]
fn options(mut arguments: impl Iterator<Item = String>) -> Result<sextant_sim::Options, String> {
    let mut seed = None;
    let mut options = sextant_sim::Options {
        seed: 0,
        profile: sextant_sim::Profile::Mixed,
        theme: None,
        wipes: None,
        modes: None,
        changes: false,
        mutant: None,
        invariants: true,
        trace: false,
        history: None,
    };
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or_else(|| format!("{argument} needs a value"));
        match argument.as_str() {
            "--seed" => {
                let text = value()?;
                seed = Some(text.parse().map_err(|_| format!("--seed: {text:?} is no number"))?);
            }
            "--profile" => {
                let name = value()?;
                options.profile =
                    sextant_sim::Profile::named(&name).ok_or_else(|| format!("no profile {name:?}"))?;
            }
            "--theme" => {
                let name = value()?;
                let scene = sextant_sim::Scene::named(&name);
                options.theme = Some(scene.ok_or_else(|| format!("no scene {name:?}"))?);
            }
            "--mutant" => {
                let name = value()?;
                options.mutant = Some(sextant_sim::mutant_named(&name)?);
            }
            "--wipes" => options.wipes = Some(true),
            "--no-wipes" => options.wipes = Some(false),
            "--no-modes" => options.modes = Some(false),
            "--changes" => options.changes = true,
            "--no-invariants" => options.invariants = false,
            "--trace" => options.trace = true,
            "--history" => options.history = Some(value()?.into()),
            other => return Err(format!("unknown argument {other:?}")),
        }
    }
    options.seed = seed.ok_or("--seed is missing")?;
    Ok(options)
}
