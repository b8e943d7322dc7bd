//! `hosts`: the cluster as it is deployed, a container for each server, each with an address and a volume of its own.
//!
//! One server after the other is killed, paused, cut off, moved to another address and bereft of its volume; at the end all are
//! restarted in turn. Meanwhile clients of one p-node write down what they asked and were told, for the checker, and others that name
//! both ([`Probes`]) count errors and silences. The verdict fails if an answer was wrong, if the cluster did not come back, or if a
//! rolling restart was noticed. How long anything took is shown, not judged.

mod compose;
mod report;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use sextant_checker::Recorder;
use sextant_client::{Client, ClientOptions};
use sextant_common::error::{Error, Result};
use sextant_environment::Env;
use tokio::task::JoinSet;

use crate::args::HostsArgs;
use crate::rolling::probe::Probes;
use crate::run::converge;
use crate::run::{Place, interrupted};
use crate::workload::{self, Load};

use compose::Compose;
use report::{Report, Row};

const SERVICES: [&str; 8] =
    ["memtable-1", "memtable-2", "memtable-3", "sstable-1", "sstable-2", "sstable-3", "pnode-1", "pnode-2"];
/// Of each p-node alone.
const CLIENTS: usize = 3;
/// Short, so that clients do not spend a fault waiting.
const DEADLINE: Duration = Duration::from_millis(1_500);
const ATTEMPT: Duration = Duration::from_millis(400);
/// After a fault, before the next.
const CALM: Duration = Duration::from_secs(2);

/// What is done to a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Kill,
    Pause,
    Cut,
    /// It comes back under another address.
    Move,
    /// With what it had on disk.
    Wipe,
    /// As an operator does it, in turn.
    Restart,
}

impl Fault {
    const ALL: [Fault; 6] = [Fault::Kill, Fault::Pause, Fault::Cut, Fault::Move, Fault::Wipe, Fault::Restart];

    fn name(self) -> &'static str {
        match self {
            Fault::Kill => "kill",
            Fault::Pause => "pause",
            Fault::Cut => "cut",
            Fault::Move => "move",
            Fault::Wipe => "wipe",
            Fault::Restart => "restart",
        }
    }

    /// p-nodes have no volume.
    fn hits(self, service: &str) -> bool {
        self != Fault::Wipe || !service.starts_with("pnode")
    }
}

/// The whole round. `Ok(false)`: the verdict is bad.
pub async fn run(args: HostsArgs) -> Result<bool> {
    let env = Env::real();
    let faults = chosen(&args.only)?;
    let services: Vec<&str> = SERVICES
        .into_iter()
        .filter(|s| args.servers.is_empty() || args.servers.iter().any(|a| a == s))
        .collect();
    let root = args.root.clone().map_or_else(std::env::current_dir, Ok)?;
    let compose = Compose::probe(root).await?;
    let mut place = Place::new(args.keep.as_ref())?;
    let done = tokio::select! {
        report = torment(&env, &compose, &args, &faults, &services, &place.dir) => Some(report),
        () = interrupted() => None,
    };
    let report = done.unwrap_or_else(|| Err(Error::retry("interrupted")));
    let passed = report.as_ref().is_ok_and(Report::passed);
    if !passed {
        place.keep();
        let logs = place.dir.join("containers.log");
        std::fs::write(&logs, compose.logs().await.unwrap_or_default())?;
        println!("kept: {} (history.jsonl: `sextant check`; containers.log)", place.dir.display());
    }
    compose.down().await?;
    let report = report?;
    print!("{report}");
    if let Some(path) = &args.markdown {
        std::fs::write(path, report.markdown())?;
    }
    Ok(passed)
}

fn chosen(only: &[String]) -> Result<Vec<Fault>> {
    let known = |name: &String| Fault::ALL.into_iter().find(|f| f.name() == name.as_str());
    if let Some(unknown) = only.iter().find(|name| known(name).is_none()) {
        return Err(Error::invalid(format!("no fault is called {unknown:?}")));
    }
    Ok(match only.is_empty() {
        true => Fault::ALL.to_vec(),
        false => only.iter().filter_map(known).collect(),
    })
}

async fn torment(
    env: &Env,
    compose: &Compose,
    args: &HostsArgs,
    faults: &[Fault],
    services: &[&str],
    dir: &std::path::Path,
) -> Result<Report> {
    let began_ns = env.clock.holder_ns();
    let seconds = || env.clock.holder_ns().saturating_sub(began_ns) as f64 / 1e9;
    compose.up().await?;
    compose.wait_healthy(&SERVICES).await?;
    println!("[{:6.1} s] 8 containers are healthy", seconds());
    let mut report = Report::new(seconds());
    let history: PathBuf = dir.join("history.jsonl");
    let file = std::io::BufWriter::with_capacity(1 << 20, std::fs::File::create(&history)?);
    let load = Arc::new(Load::new(env.clone(), Recorder::new(env.clock.clone(), file)));
    let (mut clients, mut direct) = (JoinSet::new(), Vec::new());
    for addr in compose.pnodes() {
        let options =
            ClientOptions { deadline: DEADLINE, attempt_timeout: ATTEMPT, ..ClientOptions::default() };
        let client = Client::connect(env.clone(), vec![addr], options).await?;
        for _ in 0..CLIENTS {
            clients.spawn(workload::run_client(load.clone(), client.clone(), env.rng.next_u64()));
        }
        direct.push(client);
    }
    let probes = Probes::start(env, &compose.pnodes()).await?;
    tokio::time::sleep(CALM).await;
    report.quiet = probes.since_last();
    let mut moves = 0;
    for fault in faults {
        // Some records are in SSTables, some in memtables.
        compose.sextant("pnode-1", &["admin", "flush", "--deadline-ms", "60000"]).await?;
        for service in services.iter().filter(|service| fault.hits(service)) {
            load.recorder.fault(&format!("{} {service}", fault.name()));
            let _ = probes.since_last();
            let fault_ns = env.clock.holder_ns();
            apply(compose, *fault, service, Duration::from_secs_f64(args.hold), &mut moves).await?;
            compose.wait_healthy(&[service]).await?;
            let took_s = env.clock.holder_ns().saturating_sub(fault_ns) as f64 / 1e9;
            load.recorder.fault("healed");
            tokio::time::sleep(CALM).await;
            let row =
                Row { fault: fault.name(), server: (*service).to_owned(), took_s, seen: probes.since_last() };
            println!("[{:6.1} s] {}", seconds(), row.line());
            report.rows.push(row);
        }
    }
    compose.wait_healthy(&SERVICES).await?;
    report.converged = converge::wait_for(&direct).await;
    drop(probes);
    load.stop();
    while clients.join_next().await.is_some() {}
    println!("[{:6.1} s] reading every key through every p-node", seconds());
    if report.converged.is_ok() {
        report.last_reads = converge::read_everything(&load, &direct).await;
    }
    report.answered = load.answered();
    load.recorder.finish()?;
    report.check(&history)?;
    Ok(report)
}

/// Breaks a container, waits, and mends it.
async fn apply(compose: &Compose, fault: Fault, service: &str, hold: Duration, moves: &mut u8) -> Result<()> {
    match fault {
        Fault::Kill => {
            compose.docker(&["kill"], service).await?;
            tokio::time::sleep(hold).await;
            compose.docker(&["start"], service).await
        }
        Fault::Pause => {
            compose.docker(&["pause"], service).await?;
            tokio::time::sleep(hold).await;
            compose.docker(&["unpause"], service).await
        }
        Fault::Cut => {
            compose.disconnect(service).await?;
            tokio::time::sleep(hold).await;
            compose.connect(service, None).await
        }
        Fault::Move => {
            let before = compose.address(service).await?;
            compose.disconnect(service).await?;
            tokio::time::sleep(hold).await;
            *moves = (*moves + 1) % 50;
            compose.connect(service, Some(*moves)).await?;
            match compose.address(service).await? {
                after if after == before => {
                    Err(Error::internal(format!("{service} is where it was: {after}")))
                }
                _ => Ok(()),
            }
        }
        Fault::Wipe => {
            compose.remove(service).await?;
            tokio::time::sleep(hold).await;
            compose.up().await
        }
        Fault::Restart => compose.restart(service).await,
    }
}
