//! `sextant-sim --seed N`: one run of the simulated cluster, one line of JSON.

use std::process::ExitCode;

#[cfg(not(tokio_unstable))]
fn main() -> ExitCode {
    eprintln!("sextant-sim: built without --cfg tokio_unstable; use `cargo xtask sim`");
    ExitCode::from(2)
}

#[cfg(tokio_unstable)]
fn main() -> ExitCode {
    let options = match options(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(message) => {
            eprintln!("sextant-sim: {message}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    if std::env::var_os("RUST_LOG").is_some() {
        tracing_subscriber::fmt()
            .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
            .with_writer(std::io::stderr)
            .without_time()
            .init();
    }
    let report = sextant_sim::run(&options);
    println!("{}", report.to_json());
    if report.verdict == sextant_sim::Verdict::Ok { ExitCode::SUCCESS } else { ExitCode::from(1) }
}

#[cfg(tokio_unstable)]
const USAGE: &str = "\
usage: sextant-sim --seed N [--profile mixed|quiet|lying-clocks] [--no-invariants] [--trace] [--history FILE]

  --trace          every event on stderr
  --history FILE   write the history of operations, for `sextant check`
  RUST_LOG=debug   the servers' logs on stderr";

#[cfg(tokio_unstable)]
fn options(mut arguments: impl Iterator<Item = String>) -> Result<sextant_sim::Options, String> {
    let mut seed = None;
    let mut options = sextant_sim::Options {
        seed: 0,
        profile: sextant_sim::Profile::Mixed,
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
            "--no-invariants" => options.invariants = false,
            "--trace" => options.trace = true,
            "--history" => options.history = Some(value()?.into()),
            other => return Err(format!("unknown argument {other:?}")),
        }
    }
    options.seed = seed.ok_or("--seed is missing")?;
    Ok(options)
}
