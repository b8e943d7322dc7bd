//! `rolling`: what clients notice of a rolling restart.
//!
//! A cluster of processes, everything by default, does `sextant ycsb run --workload a` for clients that name both p-nodes;
//! beside it, probes ([`probe`]) write and read one small record after the other. One server after the other gets SIGTERM, is
//! started again, and is waited for until it is ready, as an operator does it. Promised: no error, at any client. Measured: the
//! longest silence of each probe, and the longest operation.

pub(crate) mod probe;
mod report;

use std::path::{Path, PathBuf};
use std::time::Duration;

use sextant_client::{Client, ClientOptions};
use sextant_common::error::{Error, Result};
use sextant_dev_cluster::{DevCluster, DevOptions, Role};
use sextant_environment::Env;

use crate::args::RollingArgs;
use crate::run::{Place, interrupted};
use crate::testbed;

use probe::Probes;
use report::{Load, Report, Row};

/// The order in which an operator would do it.
const ROLES: [Role; 3] = [Role::Sstable, Role::Memtable, Role::PNode];
/// Before the first restart, and after each: what it left to be done is not to be counted for the next one.
const BETWEEN: Duration = Duration::from_secs(3);
/// Threads of the load generator.
const THREADS: u32 = 16;
/// One run of the load generator; there are as many as the restarts take.
const LOAD_SECONDS: u32 = 30;
/// More than can be done in that time.
const OPERATIONS_MAX: u64 = 1_000_000_000;

/// The whole round. `Ok(true)`: no client saw an error.
pub async fn run(args: RollingArgs) -> Result<bool> {
    let env = Env::real();
    let binary = testbed::binary(args.binary.as_deref())?;
    let mut place = Place::new(args.keep.as_ref())?;
    let options =
        DevOptions { processes: Some(binary.clone()), ..DevOptions::on_free_ports(place.dir.join("data")) };
    let cluster = tokio::select! {
        started = DevCluster::start(env.clone(), options) => started.inspect_err(|_| place.keep())?,
        () = interrupted() => return Err(Error::retry("interrupted")),
    };
    let mut bed = Bed { env, binary, dir: place.dir.clone(), records: args.records, cluster };
    let measured = tokio::select! {
        report = measure(&mut bed) => Some(report),
        () = interrupted() => None,
    };
    let Some(report) = measured else {
        drop(bed);
        return Err(Error::retry("interrupted"));
    };
    let report = report.inspect_err(|_| place.keep())?;
    println!("\n{}", report.markdown());
    if let Some(path) = &args.markdown {
        std::fs::write(path, report.markdown())?;
    }
    let clean = report.clean();
    if !clean {
        place.keep();
    }
    bed.cluster.shutdown().await?;
    Ok(clean)
}

struct Bed {
    env: Env,
    binary: PathBuf,
    dir: PathBuf,
    records: u64,
    cluster: DevCluster,
}

async fn measure(bed: &mut Bed) -> Result<Report> {
    let addrs = bed.cluster.grpc_addrs();
    let mut report = Report { records: bed.records, ..Report::default() };
    let loaded = generate(bed, "load", &[]).await?;
    println!("loaded: {}", loaded.line());
    let operator = Client::connect_in(bed.env.clone(), addrs.clone(), ClientOptions::default()).await?;
    let flushed = operator.flush(None).await?;
    if !flushed.errors.is_empty() {
        return Err(Error::unavailable(flushed.errors.join("; ")));
    }
    let probes = Probes::start(&bed.env, &addrs).await?;
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let generating = tokio::spawn(generate_until(
        bed.env.clone(),
        bed.binary.clone(),
        bed.dir.clone(),
        load_args(bed),
        stopped,
    ));
    tokio::time::sleep(BETWEEN).await;
    report.quiet = probes.since_last();
    println!("before: {}", report.quiet.line());
    for role in ROLES {
        for index in 0..bed.cluster.count(role) {
            let began_ns = bed.env.clock.holder_ns();
            bed.cluster.restart(role, index).await?;
            let seconds = bed.env.clock.holder_ns().saturating_sub(began_ns) as f64 / 1e9;
            tokio::time::sleep(BETWEEN).await;
            let row =
                Row { server: format!("{} {}", role.name(), index + 1), seconds, seen: probes.since_last() };
            println!("{}", row.line());
            report.rows.push(row);
        }
    }
    stop.send_replace(true);
    report.load = generating.await.map_err(|e| Error::internal(e.to_string()))??;
    println!("ycsb run --workload a: {}", report.load.line());
    Ok(report)
}

fn load_args(bed: &Bed) -> Vec<String> {
    let words = [
        "--workload",
        "a",
        "--quiet",
        "--records",
        &bed.records.to_string(),
        "--threads",
        &THREADS.to_string(),
    ];
    let mut args: Vec<String> = words.iter().map(|w| (*w).to_owned()).collect();
    args.extend(["--grpc".into(), bed.cluster.grpc_addrs().join(",")]);
    args
}

async fn generate(bed: &Bed, phase: &'static str, more: &[String]) -> Result<Load> {
    let mut args = load_args(bed);
    args.extend_from_slice(more);
    ycsb(&bed.env, &bed.binary, &bed.dir, phase, args).await
}

/// Runs follow one another until it is enough; what they saw together.
async fn generate_until(
    env: Env,
    binary: PathBuf,
    dir: PathBuf,
    mut args: Vec<String>,
    stopped: tokio::sync::watch::Receiver<bool>,
) -> Result<Load> {
    args.extend([
        "--operations".into(),
        OPERATIONS_MAX.to_string(),
        "--seconds".into(),
        LOAD_SECONDS.to_string(),
    ]);
    let mut all = Load::default();
    while !*stopped.borrow() {
        all.add(ycsb(&env, &binary, &dir, "run", args.clone()).await?);
    }
    Ok(all)
}

/// `sextant ycsb`, with its own deadlines and retries; what it says.
async fn ycsb(env: &Env, binary: &Path, dir: &Path, phase: &'static str, args: Vec<String>) -> Result<Load> {
    let json = dir.join(format!("ycsb-{phase}.json"));
    let mut command = std::process::Command::new(binary);
    command.args(["ycsb", phase]).args(args).arg("--json").arg(&json);
    let output =
        env.blocking(move || command.output()).await.ok_or_else(|| Error::internal("no output"))??;
    // It ends with an error if operations failed: that is counted, not fatal.
    let said = [&output.stdout[..], &output.stderr].map(String::from_utf8_lossy).concat();
    let text = std::fs::read_to_string(&json)
        .map_err(|e| Error::unavailable(format!("ycsb {phase}: {e}: {said}")))?;
    std::fs::remove_file(&json)?;
    Load::parse(&text)
}
