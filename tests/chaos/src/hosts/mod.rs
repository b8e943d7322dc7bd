//! `hosts`: the cluster as it is deployed, a container for each server, each with an address and a volume of its own.
//!
//! One server after the other is killed, paused, cut off, moved to another address and bereft of its volume; at the end all are
//! restarted in turn. Meanwhile clients of one p-node write down what they asked and were told, for the checker, and others that name
//! both ([`Probes`]) count errors and silences. The verdict fails if an answer was wrong, if the cluster did not come back, or if a
//! rolling restart was noticed. How long anything took is shown, not judged.
//!
//! [`zones`] spreads the same containers over two zones, and measures.

mod addresses;
mod certificates;
mod clients;
mod clocks;
mod compose;
mod fault;
mod image;
mod report;
mod stage;
mod zones;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use sextant_checker::Recorder;
use sextant_client::{Client, ClientOptions};
use sextant_common::error::Result;
use sextant_environment::Env;
use tokio::task::JoinSet;

use crate::args::{HostsArgs, HostsCommand};
use crate::rolling::probe::Probes;
use crate::run::converge;
use crate::workload::{self, Load};

use compose::Compose;
use fault::Fault;
use report::{Report, Row};
use stage::Stage;

const SERVICES: [&str; 8] =
    ["memtable-1", "memtable-2", "memtable-3", "sstable-1", "sstable-2", "sstable-3", "pnode-1", "pnode-2"];
/// Of each p-node alone.
const CLIENTS: usize = 3;
/// Short, so that clients do not spend a fault waiting.
const DEADLINE: Duration = Duration::from_millis(1_500);
const ATTEMPT: Duration = Duration::from_millis(400);
/// After a fault, before the next.
const CALM: Duration = Duration::from_secs(2);

/// What is done, in order, and how it is judged.
struct Plan {
    faults: Vec<(Fault, Vec<&'static str>)>,
    hold: Duration,
    /// Whether a rolling restart may not be noticed.
    strict: bool,
}

impl Plan {
    fn of(args: &HostsArgs) -> Result<Self> {
        if args.short {
            return Ok(Self::short());
        }
        let asked = |service: &&str| args.servers.is_empty() || args.servers.iter().any(|a| a == service);
        let of = |fault: Fault| SERVICES.into_iter().filter(asked).filter(|s| fault.hits(s)).collect();
        let faults = Fault::chosen(&args.only)?.into_iter().map(|fault| (fault, of(fault))).collect();
        Ok(Self { faults, hold: Duration::from_secs_f64(args.hold), strict: true })
    }

    /// For any build on any machine: a slow one may keep a client waiting for longer than it waits.
    fn short() -> Self {
        let faults = vec![
            (Fault::Kill, vec!["memtable-1"]),
            (Fault::Cut, vec!["pnode-2"]),
            (Fault::Restart, vec!["memtable-2"]),
        ];
        Self { faults, hold: Duration::from_secs(1), strict: false }
    }
}

/// The whole round. `Ok(false)`: the verdict is bad.
pub async fn run(args: HostsArgs) -> Result<bool> {
    if let Some(HostsCommand::Zones(args)) = args.command {
        return zones::run(args).await;
    }
    let plan = Plan::of(&args)?;
    let mut stage = Stage::set(&args.cluster).await?;
    if args.clocks {
        stage.compose.overrides.push(clocks::off(&stage.place.dir).await?);
    }
    let report = stage::until_interrupted(torment(&stage, &plan)).await;
    let passed = report.as_ref().is_ok_and(Report::passed);
    stage.strike(passed).await?;
    let report = report?;
    print!("{report}");
    if let Some(path) = &args.markdown {
        std::fs::write(path, report.markdown())?;
    }
    Ok(passed)
}

async fn torment(stage: &Stage, plan: &Plan) -> Result<Report> {
    let Stage { env, compose, place } = stage;
    let began_ns = env.clock.holder_ns();
    let seconds = || env.clock.holder_ns().saturating_sub(began_ns) as f64 / 1e9;
    compose.up().await?;
    compose.wait_healthy(&SERVICES).await?;
    println!("[{:6.1} s] 8 containers are healthy", seconds());
    let mut report = Report::new(seconds(), plan.strict);
    let history: PathBuf = place.dir.join("history.jsonl");
    let file = std::io::BufWriter::with_capacity(1 << 20, std::fs::File::create(&history)?);
    let load = Arc::new(Load::new(env.clone(), Recorder::new(env.clock.clone(), file)));
    let (mut clients, direct) = recorded_clients(env, compose, &load).await?;
    let probes = Probes::start(env, &compose.pnodes()).await?;
    tokio::time::sleep(CALM).await;
    report.quiet = probes.since_last();
    let mut moves = 0;
    for (fault, services) in &plan.faults {
        // Some records are in SSTables, some in memtables.
        compose.sextant("pnode-1", &["admin", "flush", "--deadline-ms", "60000"]).await?;
        for service in services {
            load.recorder.fault(&format!("{} {service}", fault.name()));
            let _ = probes.since_last();
            let fault_ns = env.clock.holder_ns();
            fault.apply(compose, service, plan.hold, &mut moves).await?;
            compose.wait_healthy(&[service]).await?;
            let took_s = env.clock.holder_ns().saturating_sub(fault_ns) as f64 / 1e9;
            load.recorder.fault("healed");
            tokio::time::sleep(CALM).await;
            let (fault, server) = (fault.name(), (*service).to_owned());
            let row = Row { fault, server, took_s, seen: probes.since_last() };
            println!("[{:6.1} s] {}", seconds(), row.line());
            report.rows.push(row);
        }
    }
    compose.wait_healthy(&SERVICES).await?;
    drop(probes);
    load.stop();
    while clients.join_next().await.is_some() {}
    // Nobody else asks for anything: what is slow now is not the load.
    report.converged = converge::wait_for(&direct).await;
    println!("[{:6.1} s] reading every key through every p-node", seconds());
    if report.converged.is_ok() {
        report.last_reads = converge::read_everything(&load, &direct).await;
    }
    report.answered = load.answered();
    load.recorder.finish()?;
    report.check(&history)?;
    Ok(report)
}

/// Those that write down what they see, and a client of each p-node.
async fn recorded_clients(
    env: &Env,
    compose: &Compose,
    load: &Arc<Load>,
) -> Result<(JoinSet<()>, Vec<Client>)> {
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
    Ok((clients, direct))
}
