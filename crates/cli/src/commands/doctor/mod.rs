//! `sextant doctor`: what servers need of this host and of the others, looked at before or after they are started.
//!
//! Owns: which checks there are, and what is good enough. Each part measures in a thin shell, and judges what it has measured in
//! pure code. Changes nothing: what it writes is a file without a name, in the directories that the servers write to.
//!
//! Invariant: whatever does not answer is waited for with a deadline, and becomes a finding, never an end.

mod certificates;
mod clocks;
mod disks;
mod figures;
mod machine;
mod others;
mod ports;
mod report;
mod stopwatch;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sextant_environment::Env;
use sextant_environment::clock::{SystemClock, WallSource};
use sextant_environment::env::{Network, Party};

use crate::args::DoctorArgs;
use crate::exit::{CommandResult, Exit, Failure};
use crate::server_file::{ServerFile, Variables};

use report::{Report, Verdict};
use stopwatch::Stopwatch;

/// A server of this host, as its configuration has it.
pub struct Patient {
    path: PathBuf,
    file: ServerFile,
    /// With the clock that the server would have.
    env: Env,
}

impl Patient {
    fn new(path: &Path, file: ServerFile) -> Self {
        let clock = SystemClock::new(file.clock().unwrap_or(WallSource::Unsynchronised));
        Self { path: path.to_owned(), file, env: Env { clock: Arc::new(clock), ..Env::real() } }
    }

    fn party(&self) -> Party {
        self.file.party()
    }

    /// How it talks to others, over a network of its own that is measured. Fails if its certificates are no good.
    fn way(&self) -> Result<Way, String> {
        let stopwatch = Arc::new(Stopwatch::new(self.env.clone()));
        let below = Env { net: stopwatch.clone(), ..self.env.clone() };
        let net: Arc<dyn Network> = match certificates::network(self, &below)? {
            Some(encrypted) => Arc::new(encrypted),
            None => stopwatch.clone(),
        };
        Ok(Way { net, stopwatch })
    }
}

struct Way {
    net: Arc<dyn Network>,
    stopwatch: Arc<Stopwatch>,
}

pub async fn run(args: &DoctorArgs) -> CommandResult {
    let patients = patients(&args.config)?;
    let mut checks = clocks::check(&patients);
    checks.extend(machine::check(&patients));
    checks.extend(patients.iter().filter_map(certificates::check));
    let ports = ports::check(&patients).await;
    checks.extend(ports.checks);
    checks.extend(others::check(&patients).await);
    // Last, so that it delays nobody who is measured.
    checks.extend(disks::check(&patients, ports.running).await);
    let report = Report::new(checks);
    let mut stdout = std::io::stdout().lock();
    match args.json {
        true => writeln!(stdout, "{}", report.json())?,
        false => write!(stdout, "{report}")?,
    }
    match report.verdict {
        Verdict::Bad => Err(Failure::silent(Exit::Negative)),
        Verdict::Ok | Verdict::Warning => Ok(()),
    }
}

/// All files are read before anything is looked at.
fn patients(paths: &[PathBuf]) -> Result<Vec<Patient>, Failure> {
    let read = |path: &PathBuf| {
        let file = ServerFile::read(path, Variables::Applied).map_err(Failure::usage)?;
        Ok(Patient::new(path, file))
    };
    paths.iter().map(read).collect()
}
