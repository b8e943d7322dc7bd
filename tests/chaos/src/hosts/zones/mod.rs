//! `hosts zones`: the containers over two zones with a delay between them, and what the modes of reading are worth in each.
//!
//! Zone A has two of three memtable servers, which lead all partitions, two of three sstable servers, and a p-node; zone B has
//! one of each. Owns: the line between the zones ([`Line`]), what is measured over it ([`measure`]), the tables ([`report`]).
//! Fails if a client saw an error. How long anything took is shown, not judged.

mod delay;
mod line;
mod measure;
mod pump;
mod report;
mod tap;

use std::path::{Path, PathBuf};
use std::time::Duration;

use sextant_common::error::{Error, Result};
use sextant_environment::Env;

use super::SERVICES;
use super::compose::Compose;
use super::stage::{Stage, until_interrupted};
use crate::args::ZonesArgs;

use delay::Quality;
use line::Line;
use measure::Measure;
use report::Report;

const ZONE_B: [&str; 3] = ["memtable-3", "sstable-3", "pnode-2"];
/// Of p-nodes: HTTP, which answers without asking anybody.
const HTTP_PORT: u16 = 7480;
const LEADERS_WITHIN: Duration = Duration::from_secs(60);
const LOOK_AGAIN: Duration = Duration::from_millis(500);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Zone {
    A,
    B,
}

impl Zone {
    pub const ALL: [Zone; 2] = [Zone::A, Zone::B];

    pub fn name(self) -> &'static str {
        match self {
            Zone::A => "A",
            Zone::B => "B",
        }
    }

    pub fn pnode(self) -> &'static str {
        match self {
            Zone::A => "pnode-1",
            Zone::B => "pnode-2",
        }
    }

    /// Beside which server clients are: a host apart from the p-node's.
    pub fn clients(self) -> &'static str {
        match self {
            Zone::A => "sstable-1",
            Zone::B => "sstable-3",
        }
    }
}

/// `Ok(false)`: a client saw an error.
pub async fn run(args: ZonesArgs) -> Result<bool> {
    let mut stage = Stage::set(&args.cluster).await?;
    if args.no_cache {
        stage.compose.overrides.push(without_cache(&stage.place.dir)?);
    }
    let work = spread(&stage.env, &stage.compose, &args, &stage.place.dir);
    let report = until_interrupted(work).await;
    let passed = report.as_ref().is_ok_and(Report::passed);
    let struck = stage.strike(passed).await;
    Line::remove_all().await.and(struck)?;
    let report = report?;
    print!("{report}");
    if let Some(path) = &args.markdown {
        std::fs::write(path, report.to_string())?;
    }
    Ok(passed)
}

/// The compose file that takes the p-nodes' caches away.
fn without_cache(dir: &Path) -> Result<PathBuf> {
    let file = dir.join("compose.no-cache.yaml");
    let of =
        |zone: Zone| format!("  {}:\n    environment: {{ SEXTANT__CACHE_BYTES: \"0\" }}\n", zone.pnode());
    std::fs::write(&file, format!("services:\n{}", Zone::ALL.map(of).concat()))?;
    Ok(file)
}

async fn spread(env: &Env, compose: &Compose, args: &ZonesArgs, dir: &Path) -> Result<Report> {
    let ns = |ms: f64| (ms * 1e6) as u64;
    let quality =
        Quality { delay_ns: ns(args.round_trip_ms) / 2, jitter_ns: ns(args.jitter_ms), loss: args.loss };
    compose.up().await?;
    compose.wait_healthy(&SERVICES).await?;
    let line = Line::lay(env, &compose.bridge().await?, quality).await?;
    for service in ZONE_B {
        line.take(&compose.container(service).await?).await?;
    }
    let mut report = Report::default();
    for zone in Zone::ALL {
        let took = line::round_trip(env, compose, zone.pnode(), HTTP_PORT).await?;
        println!("from this machine to zone {}: {:.2} ms", zone.name(), took.as_secs_f64() * 1e3);
        report.round_trips.push((zone, took));
    }
    compose.wait_healthy(&SERVICES).await?;
    lead_from_zone_a(env, compose).await?;
    let out = dir.join("out");
    measure::writable(&out)?;
    let measure = Measure { env, compose, args, out: &out };
    measure.prepare(&mut report).await?;
    measure.workloads(&mut report).await?;
    measure.redis(&mut report).await?;
    measure.reads(&mut report).await?;
    report.leaders = leaders(compose).await?;
    report.line = line.how();
    Ok(report)
}

/// Which memtable server leads which partition, as p-node 1 sees it.
async fn leaders(compose: &Compose) -> Result<Vec<(u64, Option<u64>)>> {
    let status = compose.sextant("pnode-1", &["status", "--json"]).await?;
    let status: serde_json::Value =
        serde_json::from_str(&status).map_err(|e| Error::internal(format!("the status: {e}")))?;
    let partitions = status["pnode"]["partitions"].as_array().cloned().unwrap_or_default();
    let leader = |p: &serde_json::Value| Some((p["partition"].as_u64()?, p["leader"].as_u64()));
    Ok(partitions.iter().filter_map(leader).collect())
}

/// Whoever leads in zone B hands it over. How many partitions that were.
async fn lead_from_zone_a(env: &Env, compose: &Compose) -> Result<usize> {
    let began_ns = env.clock.holder_ns();
    let mut moved = 0;
    loop {
        let found = leaders(compose).await?;
        let elsewhere: Vec<u64> =
            found.iter().filter(|(_, leader)| !matches!(leader, Some(1 | 2))).map(|(p, _)| *p).collect();
        if elsewhere.is_empty() && !found.is_empty() {
            return Ok(moved);
        }
        moved = moved.max(elsewhere.len());
        if env.clock.holder_ns() - began_ns > LEADERS_WITHIN.as_nanos() as u64 {
            return Err(Error::unavailable(format!("partitions {elsewhere:?} are not led from zone A")));
        }
        for partition in elsewhere {
            let (number, to) = (partition.to_string(), (1 + partition % 2).to_string());
            let words = ["admin", "transfer", "--partition", &number, "--to", &to];
            if let Err(e) = compose.sextant("pnode-1", &words).await {
                println!("partition {partition}: {}", e.message);
            }
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}
