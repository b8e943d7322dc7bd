//! `chaos`: faults under load, then healing, then the verdict.
//!
//! The verdict fails if an answer was wrong (the checker's two checks), if that could not be decided, if the cluster did not
//! come back to service after healing, or if a server ended that nobody ended. How long anything took is not judged.

pub(crate) mod converge;
mod report;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sextant_checker::Recorder;
use sextant_client::{Client, ClientOptions, ConfigurationChange, LeaseMode};
use sextant_common::error::{Error, Result};
use sextant_common::ids::{NodeId, PartitionId};
use sextant_dev_cluster::{Role, Tuning};
use sextant_environment::Env;
use sextant_environment::rng::{Rng, SeededRng};
use tokio::task::JoinSet;

use crate::args::ChaosArgs;
use crate::fault::{self, Kind, Plan};
use crate::host::capability::Capabilities;
use crate::host::confine::Confined;
use crate::host::memory;
use crate::injection;
use crate::objects;
use crate::server::{Id, MEMTABLE_SERVERS};
use crate::testbed::{self, Clocks, PARTITIONS, Shape, Testbed};
use crate::workload::{self, Load};

pub use report::Report;

/// Clients of each p-node alone, and clients that know both.
const CLIENTS_PER_PNODE: usize = 5;
const CLIENTS_OF_ALL: usize = 3;
/// Clients of the Redis protocol.
const CLIENTS_OF_OBJECTS: usize = 4;
/// Short, so that clients do not spend a fault waiting.
const DEADLINE: Duration = Duration::from_millis(1_500);
const ATTEMPT: Duration = Duration::from_millis(400);
/// A flush or a compaction that takes longer is left alone.
const MAINTENANCE_WITHIN: Duration = Duration::from_secs(5);
const CLOCKS: Clocks = Clocks { bound_ms: 60, drift_ppm: 450 };

/// Small memtables, so that flushes and compactions happen all the time.
fn tuning() -> Tuning {
    let parse = |text: &str| text.parse::<toml::Table>().unwrap_or_default();
    Tuning {
        memtable: parse(
            "[tuning]\nlog_segment_bytes = 4194304\nmemtable_bytes = 131072\nmemory_bytes = 67108864\n\
             freeze_age_ms = 4000\ncompaction_trigger = 4\nsst_delete_grace_ms = 2000\n",
        ),
        ..Tuning::default()
    }
}

/// Where a run keeps its files.
pub struct Place {
    pub dir: PathBuf,
    /// Removed at the end, unless the run fails.
    temporary: Option<tempfile::TempDir>,
}

impl Place {
    pub fn new(keep: Option<&PathBuf>) -> Result<Self> {
        if let Some(dir) = keep {
            std::fs::create_dir_all(dir)?;
            let dir = std::path::absolute(dir)?;
            if std::fs::read_dir(&dir)?.next().is_some() {
                return Err(Error::invalid(format!("{} is not empty", dir.display())));
            }
            return Ok(Self { dir, temporary: None });
        }
        let temporary = tempfile::Builder::new().prefix("sextant-chaos-").tempdir()?;
        Ok(Self { dir: temporary.path().to_owned(), temporary: Some(temporary) })
    }

    /// Leaves everything where it is.
    pub fn keep(&mut self) {
        if let Some(temporary) = self.temporary.take() {
            let _ = temporary.keep();
        }
    }
}

/// The whole run. `Ok(false)`: the verdict is bad.
pub async fn run(args: ChaosArgs, confined: Confined) -> Result<bool> {
    let env = Env::real();
    let seed = args.seed.unwrap_or_else(|| env.rng.next_u64() >> 32);
    println!("chaos: seed {seed}");
    let mut place = Place::new(args.keep.as_ref())?;
    let has = Capabilities::probe(&confined, &place.dir).await?;
    let kinds: Vec<Kind> = offered(&args, &has)?;
    let shape = Shape {
        binary: testbed::binary(args.binary.as_deref())?,
        dir: place.dir.clone(),
        seed,
        clocks: Some(CLOCKS),
        volumes: true,
        tuning: tuning(),
    };
    let bed = Testbed::start(env.clone(), &has, shape).await;
    let mut bed = bed.inspect_err(|_| place.keep())?;
    let history = place.dir.join("history.jsonl");
    let tormented = tokio::select! {
        report = torment(&mut bed, &args, seed, kinds, &history) => Some(report),
        () = interrupted() => None,
    };
    let Some(report) = tormented else {
        bed.abandon().await;
        return Err(Error::retry("interrupted"));
    };
    let mut report = report.inspect_err(|_| place.keep())?;
    report.skips = has.skips();
    report.check(&history)?;
    print!("{report}");
    if report.passed() && args.keep.is_none() {
        bed.finish().await?;
    } else {
        // Disks included: what is on them may explain something.
        bed.cluster.shutdown().await?;
        place.keep();
    }
    if !report.passed() || args.keep.is_some() {
        println!("kept: {} (history.jsonl: `sextant check`)", place.dir.display());
        println!("again: cargo xtask chaos --minutes {} --seed {seed}", args.minutes);
    }
    Ok(report.passed())
}

/// An interrupt from the terminal, or a request to end.
pub async fn interrupted() {
    let Ok(mut terminate) = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()) else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = terminate.recv() => {}
    }
}

/// The kinds that the machine can do, of those that are asked for.
fn offered(args: &ChaosArgs, has: &Capabilities) -> Result<Vec<Kind>> {
    let only = &args.only;
    let wipes = if !args.no_wipes { &Kind::WIPES[..] } else { &[] };
    let all = [&Kind::ALL[..], wipes].concat();
    if let Some(unknown) = only.iter().find(|name| all.iter().all(|k| k.name() != name.as_str())) {
        return Err(Error::invalid(format!("no kind of fault is called {unknown:?}")));
    }
    let kinds: Vec<Kind> = all
        .into_iter()
        .filter(|kind| kind.needs().iter().all(|c| has.has(*c)))
        .filter(|kind| only.is_empty() || only.iter().any(|name| name == kind.name()))
        .collect();
    if kinds.is_empty() { Err(Error::invalid("none of these faults can be done here")) } else { Ok(kinds) }
}

/// Load and faults for the given time, then healing and last reads.
async fn torment(
    bed: &mut Testbed,
    args: &ChaosArgs,
    seed: u64,
    kinds: Vec<Kind>,
    history: &std::path::Path,
) -> Result<Report> {
    let env = bed.env.clone();
    let file = std::io::BufWriter::with_capacity(1 << 20, std::fs::File::create(history)?);
    let load = Arc::new(Load::new(env.clone(), Recorder::new(env.clock.clone(), file)));
    let pnodes = bed.pnodes();
    let mut clients = JoinSet::new();
    let mut direct = Vec::new();
    for (at, addr) in pnodes.iter().enumerate() {
        let client = connect(&env, vec![addr.clone()]).await?;
        for i in 0..CLIENTS_PER_PNODE {
            let seed = seed ^ ((at * CLIENTS_PER_PNODE + i) as u64 + 1) << 40;
            clients.spawn(workload::run_client(load.clone(), client.clone(), seed));
        }
        direct.push(client);
    }
    for i in 0..CLIENTS_OF_ALL {
        let mut addrs = pnodes.clone();
        addrs.rotate_left(i % pnodes.len());
        let client = connect(&env, addrs).await?;
        clients.spawn(workload::run_client(load.clone(), client, seed ^ (i as u64 + 1) << 50));
    }
    let resp = bed.resp_addrs()?;
    for i in 0..CLIENTS_OF_OBJECTS {
        let mut addrs = resp.clone();
        addrs.rotate_left(i % resp.len());
        clients.spawn(objects::run_client(load.clone(), addrs, seed ^ (i as u64 + 1) << 56));
    }
    let mut upkeep = JoinSet::new();
    let transfers = Arc::new(AtomicU64::new(0));
    upkeep.spawn(maintain(direct.clone(), seed, transfers.clone()));
    let modes = Arc::new(AtomicU64::new(0));
    if !args.no_modes {
        upkeep.spawn(change_modes(direct.clone(), seed, modes.clone()));
    }

    let mut report = Report::new(seed);
    let started_ns = env.clock.holder_ns();
    let seconds = || (env.clock.holder_ns() - started_ns) as f64 / 1e9;
    let mut plan = Plan::new(seed, kinds);
    while seconds() < args.minutes * 60.0 {
        let step = plan.next_step();
        for fault in &step.faults {
            println!("[{:7.1} s] {fault}, {} ms", seconds(), step.hold.as_millis());
            load.recorder.fault(&fault.to_string());
            *report.faults.entry(fault.kind()).or_default() += 1;
        }
        let before = load.answered();
        if !args.no_wipes {
            report.wipes_survived += bed.survivors().await;
            copy_directories(bed);
        }
        injection::apply(bed, &step.faults).await?;
        tokio::time::sleep(step.hold).await;
        let expected: Vec<Id> =
            step.faults.iter().filter(|f| f.ends_servers()).flat_map(fault::Fault::servers).collect();
        note_deaths(bed, &expected, &mut report).await?;
        injection::heal(bed, &step.faults).await?;
        load.recorder.fault("healed");
        tokio::time::sleep(step.calm).await;
        note_deaths(bed, &[], &mut report).await?;
        println!(
            "[{:7.1} s]   healed; {} operations answered meanwhile",
            seconds(),
            load.answered() - before
        );
    }

    upkeep.shutdown().await;
    println!("[{:7.1} s] healing", seconds());
    for id in Id::all() {
        if bed.cluster.pid(id.role, id.index)?.is_none() {
            bed.cluster.relaunch(id.role, id.index).await?;
        }
    }
    report.converged = converge::wait(bed, &direct).await;
    if !args.no_wipes {
        report.wipes_survived += bed.survivors().await;
    }
    report.modes = modes.load(Ordering::Relaxed);
    note_deaths(bed, &[], &mut report).await?;
    load.stop();
    while clients.join_next().await.is_some() {}
    println!("[{:7.1} s] reading every key through every p-node", seconds());
    if report.converged.is_ok() {
        let (reads, failed) = converge::read_everything(&load, &direct).await;
        let (looks, unseen) = objects::look_at_everything(&load, &resp).await;
        report.last_reads = (reads + looks, failed + unseen);
    }
    report.transfers = transfers.load(Ordering::Relaxed);
    report.operations = load.tallies();
    report.reasons = load.reasons();
    load.recorder.finish()?;
    Ok(report)
}

async fn connect(env: &Env, addrs: Vec<String>) -> Result<Client> {
    let options = ClientOptions { deadline: DEADLINE, attempt_timeout: ATTEMPT, ..ClientOptions::default() };
    Client::connect_in(env.clone(), addrs, options).await
}

/// Freezes, flushes, compactions and transfers of leadership, in the middle of everything.
async fn maintain(clients: Vec<Client>, seed: u64, transfers: Arc<AtomicU64>) {
    let rng: Arc<dyn Rng> = Arc::new(SeededRng::new(seed ^ 0x6d61_696e));
    loop {
        tokio::time::sleep(Duration::from_millis(500 + rng.below(3_000))).await;
        let client = &clients[rng.below(clients.len() as u64) as usize];
        let work = async {
            match rng.below(5) {
                0 => client.freeze(None).await.map(|_| ()),
                1 => client.compact(None).await.map(|_| ()),
                2 => {
                    let partition = PartitionId(rng.below(u64::from(PARTITIONS)) as u32);
                    let to = NodeId(rng.below(MEMTABLE_SERVERS as u64) + 1);
                    let moved = client.transfer(partition, to).await.is_ok_and(|leader| leader == to);
                    transfers.fetch_add(u64::from(moved), Ordering::Relaxed);
                    Ok(())
                }
                _ => client.flush(None).await.map(|_| ()),
            }
        };
        // Refusals and timeouts are as good: the servers decide what they can do.
        let _ = tokio::time::timeout(MAINTENANCE_WITHIN, work).await;
    }
}

/// A copy of each memtable server's directories, while it runs; where files come and go meanwhile, there is none.
fn copy_directories(bed: &Testbed) {
    for id in Id::tier(Role::Memtable) {
        let _ = memory::copy(&bed.data_dir(id));
    }
}

/// Changes the mode of leases and the bound on drift, of all partitions.
async fn change_modes(clients: Vec<Client>, seed: u64, done: Arc<AtomicU64>) {
    let rng: Arc<dyn Rng> = Arc::new(SeededRng::new(seed ^ 0x6d6f_6465));
    loop {
        tokio::time::sleep(Duration::from_millis(1_000 + rng.below(4_000))).await;
        let client = &clients[rng.below(clients.len() as u64) as usize];
        let change = ConfigurationChange {
            mode: Some(if rng.below(2) == 0 { LeaseMode::Timed } else { LeaseMode::Ack }),
            // Never less than what the clocks do.
            drift_ppm: Some(500 + rng.below(4) * 500),
            ..ConfigurationChange::default()
        };
        let work = client.configure(&change);
        if let Ok(Ok(_)) = tokio::time::timeout(MAINTENANCE_WITHIN, work).await {
            done.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Servers that ended although nothing was done to them; they are started again. `expected`: those that a fault ends.
async fn note_deaths(bed: &mut Testbed, expected: &[Id], report: &mut Report) -> Result<()> {
    for (id, how) in bed.ended() {
        if expected.contains(&id) {
            continue;
        }
        if matches!(bed.wiped_to(id), Some(Kind::WipeLog | Kind::WipeData | Kind::OlderCopy)) {
            // Its directories do not belong together, and it says so: an operator empties the rest.
            println!("            {id} {how}: emptied");
            report.refused_starts += 1;
            memory::empty(&bed.data_dir(id))?;
            bed.wiped(Kind::Wipe, id);
            bed.cluster.relaunch(id.role, id.index).await?;
            continue;
        }
        let log = bed.log(id)?;
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        let tail: Vec<&str> = text.lines().rev().take(3).collect();
        let tail: Vec<&str> = tail.into_iter().rev().collect();
        println!("!! {id} {how}: {}", tail.join(" | "));
        report.deaths.push(format!("{id} {how}: {}", tail.last().unwrap_or(&"")));
        bed.cluster.relaunch(id.role, id.index).await?;
    }
    Ok(())
}

/// Counts by kind.
pub type Counts = BTreeMap<Kind, u64>;
