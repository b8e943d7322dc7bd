//! `hosts zones`: the containers over two zones with a delay between them, and what the modes of reading are worth in each.
//!
//! Zone A has two of three memtable servers, which lead all partitions, two of three sstable servers, and a p-node; zone B has
//! one of each. Owns: the line between the zones ([`line`]), the cluster over it ([`apart`]), what is measured ([`measure`]), the
//! tables ([`report`]). Fails if a client saw an error. How long anything took is shown, not judged.
//!
//! `hosts zone-faults` breaks the same cluster; that is [`super`]'s work.

pub mod apart;
pub mod delay;
pub mod line;
mod measure;
mod pump;
pub mod relay;
mod report;
mod tap;

use std::path::{Path, PathBuf};

use sextant_common::error::Result;
use sextant_environment::Env;

use super::SERVICES;
use super::compose::Compose;
use super::stage::{Stage, until_interrupted};
use crate::args::{LineArgs, ZonesArgs};

use apart::Apart;
use delay::Quality;
use line::{Line, Qualities};
use measure::Measure;
use report::Report;

const ZONE_B: [&str; 3] = ["memtable-3", "sstable-3", "pnode-2"];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Zone {
    A,
    B,
}

impl Zone {
    pub const ALL: [Zone; 2] = [Zone::A, Zone::B];

    pub fn of(service: &str) -> Self {
        if ZONE_B.contains(&service) { Zone::B } else { Zone::A }
    }

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

    /// The ids of its memtable servers.
    pub fn memtables(self) -> &'static [u64] {
        match self {
            Zone::A => &[1, 2],
            Zone::B => &[3],
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
    stage.compose.overrides.push(leaders_stay(&stage.place.dir)?);
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

/// Each direction has half of what there and back has; from server to server within a zone there are two cables.
pub fn qualities(args: &LineArgs, env: &Env) -> Qualities {
    let between = Quality {
        delay_ns: args.round_trip / 2,
        jitter_ns: args.jitter,
        shape: args.shape,
        loss: args.loss,
        reorder: args.reorder,
    };
    let own = Quality {
        delay_ns: args.within_round_trip / 4,
        jitter_ns: args.within_jitter / 2,
        shape: args.shape,
        loss: args.within_loss / 2.0,
        reorder: 0.0,
    };
    Qualities { between, own, seed: args.line_seed.unwrap_or_else(|| env.rng.next_u64() >> 32) }
}

/// The compose file with which nobody spreads the leaders that are all to be in one zone.
fn leaders_stay(dir: &Path) -> Result<PathBuf> {
    let file = dir.join("compose.leaders-stay.yaml");
    let servers = Zone::ALL.iter().flat_map(|zone| zone.memtables());
    let of =
        |id: &u64| format!("  memtable-{id}:\n    environment: {{ SEXTANT_TUNING__BALANCE_MS: \"0\" }}\n");
    std::fs::write(&file, format!("services:\n{}", servers.map(of).collect::<String>()))?;
    Ok(file)
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
    compose.up().await?;
    compose.wait_healthy(&SERVICES).await?;
    let apart = Apart::set(env, compose, qualities(&args.line, env)).await?;
    let mut report = Report { round_trips: apart.round_trips.clone(), ..Report::default() };
    let out = dir.join("out");
    measure::writable(&out)?;
    let measure = Measure { env, compose, args, out: &out };
    measure.prepare(&mut report).await?;
    measure.workloads(&mut report).await?;
    measure.redis(&mut report).await?;
    measure.reads(&mut report).await?;
    report.leaders = apart::leaders(compose).await?;
    report.line = apart.line.how();
    Ok(report)
}
