//! `failover`: how long service is gone, by fault.
//!
//! Probes go out at a fixed rate, whether or not the ones before were answered ([`probe`]). A fault is brought about, held,
//! and healed ([`scenario`]); what counts is the longest time without a success between ([`silence`], pure). [`report`] makes
//! the tables.

mod probe;
mod report;
mod scenario;
mod silence;

use std::sync::Arc;

use sextant_client::{Client, ClientOptions};
use sextant_common::error::{Error, Result};
use sextant_dev_cluster::Tuning;
use sextant_environment::Env;

use crate::args::FailoverArgs;
use crate::host::capability::Capabilities;
use crate::host::confine::Confined;
use crate::run::{Place, interrupted};
use crate::testbed::{self, Shape, Testbed};

use probe::Probes;
use report::Report;
use scenario::Scenario;

/// Everything as by default, but no record cache (a cold read is to be a read of an SSTable), and leaders stay where they are put.
fn tuning() -> Tuning {
    let parse = |text: &str| text.parse::<toml::Table>().unwrap_or_default();
    Tuning {
        memtable: parse("[tuning]\nlog_segment_bytes = 16777216\nbalance_ms = 0\n"),
        pnode: parse("cache_bytes = 0\n"),
        ..Tuning::default()
    }
}

/// All runs of all faults. `Ok(true)`: all were measured.
pub async fn run(args: FailoverArgs, confined: Confined) -> Result<bool> {
    let env = Env::real();
    let seed = args.seed.unwrap_or_else(|| env.rng.next_u64() >> 32);
    println!("failover: seed {seed}");
    let mut place = Place::new(args.keep.as_ref())?;
    let has = Capabilities::probe(&confined, &place.dir).await?;
    let shape = Shape {
        binary: testbed::binary(args.binary.as_deref())?,
        dir: place.dir.clone(),
        seed,
        clocks: None,
        volumes: false,
        tuning: tuning(),
    };
    let mut bed = Testbed::start(env.clone(), &has, shape).await.inspect_err(|_| place.keep())?;
    let measured = tokio::select! {
        report = measure(&mut bed, &args, seed, &has) => Some(report),
        () = interrupted() => None,
    };
    let Some(report) = measured else {
        bed.abandon().await;
        return Err(Error::retry("interrupted"));
    };
    let report = report.inspect_err(|_| place.keep())?;
    bed.finish().await?;
    println!("\n{}", report.markdown());
    if let Some(path) = &args.json {
        std::fs::write(path, report.json()?)?;
    }
    if let Some(path) = &args.markdown {
        std::fs::write(path, report.markdown())?;
    }
    Ok(true)
}

async fn measure(bed: &mut Testbed, args: &FailoverArgs, seed: u64, has: &Capabilities) -> Result<Report> {
    let env = bed.env.clone();
    let mut clients = Vec::new();
    for addr in bed.pnodes() {
        clients.push(Client::connect_in(env.clone(), vec![addr], ClientOptions::default()).await?);
    }
    let probes = Arc::new(Probes::prepare(env, clients, seed).await?);
    let beating = probes.start();
    let mut report = Report::default();
    for scenario in scenarios(&args.only, has)? {
        for run in 1..=args.runs {
            let silences = scenario::once(bed, &probes, scenario)
                .await
                .map_err(|e| Error::new(e.kind, format!("{}, run {run}: {}", scenario.name(), e.message)))?;
            println!("{} {run}/{}: {}", scenario.name(), args.runs, report::line(&silences));
            report.add(scenario, silences);
        }
    }
    drop(beating);
    Ok(report)
}

fn scenarios(only: &[String], has: &Capabilities) -> Result<Vec<Scenario>> {
    if let Some(unknown) = only.iter().find(|name| Scenario::ALL.iter().all(|s| s.name() != name.as_str())) {
        return Err(Error::invalid(format!("no fault is called {unknown:?}")));
    }
    let wanted = |s: &Scenario| only.is_empty() || only.iter().any(|name| name == s.name());
    let mut offered: Vec<Scenario> = Scenario::ALL.into_iter().filter(wanted).collect();
    offered.retain(|scenario| {
        let missing = scenario.needs().iter().find(|c| !has.has(**c));
        if let Some(missing) = missing {
            println!("SKIP({missing}): {} is not measured", scenario.name());
        }
        missing.is_none()
    });
    Ok(offered)
}
