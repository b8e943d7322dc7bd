//! `hosts`: the cluster as it is deployed, a container for each server, each with an address and a volume of its own.
//!
//! One server after the other is killed, paused, cut off, moved to another address and bereft of its volume; at the end all are
//! restarted in turn. Meanwhile clients of one p-node write down what they asked and were told, for the checker, and others that name
//! both ([`Probes`]) count errors and silences. The verdict fails if an answer was wrong, if the cluster did not come back, or if a
//! rolling restart was noticed. How long anything took is shown, not judged.
//!
//! [`zones`] spreads the same containers over two zones, and measures; or they are broken there, and so is the line between: then
//! clients of both kinds are in either zone, and a cut-off zone has some, too.

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

use crate::args::{FaultsArgs, HostsArgs, HostsCommand};
use crate::rolling::probe::{Probes, Seen};
use crate::run::converge;
use crate::workload::{self, Load};

use compose::Compose;
use fault::Fault;
use report::{Report, Row};
use stage::Stage;
use zones::Zone;
use zones::apart::{Apart, lead_from};
use zones::line::{Line, Qualities};
use zones::relay::Relay;

pub use zones::delay::Shape;

const SERVICES: [&str; 8] =
    ["memtable-1", "memtable-2", "memtable-3", "sstable-1", "sstable-2", "sstable-3", "pnode-1", "pnode-2"];
/// Of each p-node alone.
const CLIENTS: usize = 3;
/// Short, so that clients do not spend a fault waiting.
const DEADLINE: Duration = Duration::from_millis(1_500);
const ATTEMPT: Duration = Duration::from_millis(400);
/// So that what is written from now on is in memtables, and the rest is not.
const FLUSH: [&str; 4] = ["admin", "flush", "--deadline-ms", "60000"];
/// After a fault, before the next.
const CALM: Duration = Duration::from_secs(2);

/// What is done, in order, and how it is judged.
struct Plan {
    faults: Vec<(Fault, Vec<&'static str>)>,
    hold: Duration,
    /// Whether a rolling restart may not be noticed.
    strict: bool,
    /// Over two zones, with cables like these.
    zones: Option<Qualities>,
}

impl Plan {
    fn of(args: &FaultsArgs, zones: Option<Qualities>) -> Result<Self> {
        let asked = |service: &&str| args.servers.is_empty() || args.servers.iter().any(|a| a == service);
        let of = |fault: Fault| {
            let services = SERVICES.into_iter().filter(asked).chain([fault::LINE]);
            services.filter(|s| fault.hits(s)).collect()
        };
        let chosen = Fault::chosen(&args.only, zones.is_some())?;
        let faults = chosen.into_iter().map(|fault| (fault, of(fault))).collect();
        // Clients of one p-node notice that it is restarted.
        Ok(Self { faults, hold: Duration::from_secs_f64(args.hold), strict: zones.is_none(), zones })
    }

    /// For any build on any machine: a slow one may keep a client waiting for longer than it waits.
    fn short() -> Self {
        let faults = vec![
            (Fault::Kill, vec!["memtable-1"]),
            (Fault::Cut, vec!["pnode-2"]),
            (Fault::Restart, vec!["memtable-2"]),
        ];
        Self { faults, hold: Duration::from_secs(1), strict: false, zones: None }
    }
}

/// The whole round. `Ok(false)`: the verdict is bad.
pub async fn run(args: HostsArgs) -> Result<bool> {
    match args.command {
        Some(HostsCommand::Zones(args)) => return zones::run(args).await,
        Some(HostsCommand::ZoneFaults(args)) => {
            let mut stage = Stage::set(&args.cluster).await?;
            let plan = Plan::of(&args.faults, Some(zones::qualities(&args.line, &stage.env)))?;
            let done = round(&mut stage, &plan, &args.faults).await;
            let struck = stage.strike(matches!(done, Ok(true))).await;
            return Line::remove_all().await.and(struck).and(done);
        }
        None => {}
    }
    let plan = if args.short { Plan::short() } else { Plan::of(&args.faults, None)? };
    let mut stage = Stage::set(&args.cluster).await?;
    if args.clocks {
        stage.compose.overrides.push(clocks::off(&stage.place.dir)?);
    }
    let done = round(&mut stage, &plan, &args.faults).await;
    stage.strike(matches!(done, Ok(true))).await.and(done)
}

async fn round(stage: &mut Stage, plan: &Plan, args: &FaultsArgs) -> Result<bool> {
    let report = stage::until_interrupted(torment(stage, plan)).await?;
    print!("{report}");
    if let Some(path) = &args.markdown {
        std::fs::write(path, report.markdown())?;
    }
    Ok(report.passed())
}

/// The cluster over two zones, and a way to zone B's p-node that stays when the zones are cut off from each other.
struct Zones {
    apart: Apart,
    relay: Relay,
}

impl Zones {
    async fn set(env: &Env, compose: &Compose, qualities: Qualities) -> Result<Self> {
        let apart = Apart::set(env, compose, qualities).await?;
        let relay = apart.relay(compose).await?;
        Ok(Self { apart, relay })
    }

    /// Leaders are where they were before the last fault, or all in zone B.
    async fn prepare(&self, env: &Env, compose: &Compose, fault: Fault) -> Result<()> {
        let zone = if fault == Fault::Leaders { Zone::B } else { Zone::A };
        lead_from(env, compose, zone).await.map(drop)
    }
}

/// Breaks something, waits, and mends it: until all that was hit is healthy again.
async fn strike(
    compose: &Compose,
    zones: Option<&Zones>,
    (fault, service): (Fault, &str),
    hold: Duration,
    moves: &mut u8,
) -> Result<()> {
    if let (Some(zones), true) = (zones, fault.is_of_line()) {
        zones.apart.part(hold).await?;
        return compose.wait_healthy(&SERVICES).await;
    }
    fault.apply(compose, service, hold, moves).await?;
    if let (Some(zones), true) = (zones, fault != Fault::Pause) {
        zones.apart.settle(compose, service, &zones.relay).await?;
    }
    compose.wait_healthy(&[service]).await
}

/// Clients beside the load: of all p-nodes, or in each zone those of its own.
async fn beside(env: &Env, addrs: &[String], zones: bool) -> Result<Vec<Probes>> {
    if !zones {
        return Ok(vec![Probes::start(env, addrs).await?]);
    }
    for (n, zone) in Zone::ALL.into_iter().enumerate() {
        Probes::write_cold(env, &addrs[(n + 1) % addrs.len()], zone.name()).await?;
    }
    let mut probes = Vec::new();
    for (addr, zone) in addrs.iter().zip(Zone::ALL) {
        probes.push(Probes::start_with_cold(env, addr, zone.name()).await?);
    }
    Ok(probes)
}

async fn torment(stage: &Stage, plan: &Plan) -> Result<Report> {
    let Stage { env, compose, place } = stage;
    let began_ns = env.clock.holder_ns();
    let seconds = || env.clock.holder_ns().saturating_sub(began_ns) as f64 / 1e9;
    compose.up().await?;
    compose.wait_healthy(&SERVICES).await?;
    println!("[{:6.1} s] 8 containers are healthy", seconds());
    let mut report = Report::new(seconds(), plan.strict);
    let zones = match plan.zones {
        Some(qualities) => Some(Zones::set(env, compose, qualities).await?),
        None => None,
    };
    let mut addrs = compose.pnodes();
    if let (Some(zones), Some(last)) = (&zones, addrs.last_mut()) {
        last.clone_from(&zones.relay.addr);
    }
    let history: PathBuf = place.dir.join("history.jsonl");
    let file = std::io::BufWriter::with_capacity(1 << 20, std::fs::File::create(&history)?);
    let load = Arc::new(Load::new(env.clone(), Recorder::new(env.clock.clone(), file)));
    let probes = beside(env, &addrs, zones.is_some()).await?;
    let (mut clients, direct) = recorded_clients(env, &addrs, &load).await?;
    // What they ask for first takes longer.
    tokio::time::sleep(CALM).await;
    if zones.is_some() {
        compose.sextant("pnode-1", &FLUSH).await?;
        since_last(&probes);
        tokio::time::sleep(CALM).await;
    }
    report.quiet = since_last(&probes);
    let mut moves = 0;
    for (fault, services) in &plan.faults {
        // Some records are in SSTables, some in memtables.
        compose.sextant("pnode-1", &FLUSH).await?;
        for service in services {
            if let Some(zones) = &zones {
                zones.prepare(env, compose, *fault).await?;
            }
            load.recorder.fault(&format!("{} {service}", fault.name()));
            since_last(&probes);
            let fault_ns = env.clock.holder_ns();
            strike(compose, zones.as_ref(), (*fault, service), plan.hold, &mut moves).await?;
            let mended_ns = env.clock.holder_ns();
            let took_s = mended_ns.saturating_sub(fault_ns) as f64 / 1e9;
            load.recorder.fault("healed");
            tokio::time::sleep(CALM).await;
            for probes in &probes {
                probes.alive_since(mended_ns).await?;
            }
            let (fault, server) = (fault.name(), (*service).to_owned());
            let row = Row { fault, server, took_s, seen: since_last(&probes) };
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
    report.line = zones.map(|zones| zones.apart.line.how());
    load.recorder.finish()?;
    report.check(&history)?;
    Ok(report)
}

fn since_last(probes: &[Probes]) -> Vec<Seen> {
    probes.iter().map(Probes::since_last).collect()
}

/// Those that write down what they see, and a client of each p-node.
async fn recorded_clients(
    env: &Env,
    addrs: &[String],
    load: &Arc<Load>,
) -> Result<(JoinSet<()>, Vec<Client>)> {
    let (mut clients, mut direct) = (JoinSet::new(), Vec::new());
    for addr in addrs {
        let options =
            ClientOptions { deadline: DEADLINE, attempt_timeout: ATTEMPT, ..ClientOptions::default() };
        let client = Client::connect_in(env.clone(), vec![addr.clone()], options).await?;
        for _ in 0..CLIENTS {
            clients.spawn(workload::run_client(load.clone(), client.clone(), env.rng.next_u64()));
        }
        direct.push(client);
    }
    Ok((clients, direct))
}
