//! The command: see the library.

use std::process::ExitCode;

use clap::Parser;
use sextant_chaos::args::{Cli, Command};
use sextant_chaos::host::confine::{self, Confined};
use sextant_chaos::{failover, hosts, rolling, run, storm};

fn main() -> ExitCode {
    let cli = Cli::parse();
    // Before there are threads: the process may be replaced.
    let confined = match &cli.command {
        Command::Storm(_) | Command::Rolling(_) | Command::Hosts(_) => {
            Confined::No("nothing is broken that would need it".into())
        }
        _ => confine::enter(),
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(runtime) => runtime,
        Err(e) => {
            eprintln!("sextant-chaos: no runtime: {e}");
            return ExitCode::from(2);
        }
    };
    let result = runtime.block_on(async {
        match cli.command {
            Command::Chaos(args) => run::run(args, confined).await,
            Command::Failover(args) => failover::run(args, confined).await,
            Command::Storm(args) => storm::run(args).await,
            Command::Rolling(args) => rolling::run(args).await,
            Command::Hosts(args) => hosts::run(*args).await,
        }
    });
    runtime.shutdown_background();
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("sextant-chaos: {e}");
            ExitCode::from(2)
        }
    }
}
