//! `storm`: bursts of work that no server can do at once, and what they do to everybody else.
//!
//! Each storm ([`load`]) falls upon one p-node of a fresh cluster of processes. Beside it, other clients make small reads and
//! writes one at a time ([`witness`]); and the servers' terms and memory are looked at before and after ([`servers`]). What is
//! promised: no write of unknown outcome, no change of leaders, memory within stated bounds, and the small requests go on.
//! [`report`] makes the table.

mod load;
mod report;
mod servers;
mod witness;

use std::path::PathBuf;
use std::time::Duration;

use sextant_common::error::{Error, Result};
use sextant_dev_cluster::{DevCluster, DevOptions, Tuning};
use sextant_environment::Env;

use crate::args::StormArgs;
use crate::run::{Place, interrupted};
use crate::testbed;

use load::Storm;
use report::{Report, Row};
use witness::Witnesses;

/// How long the witnesses are alone, for comparison.
const QUIET: Duration = Duration::from_secs(5);
/// After a storm: what it left to be done must not be counted for the next one.
const CALM: Duration = Duration::from_secs(4);

/// All storms, one after the other. `Ok(true)`: every promise was kept.
pub async fn run(args: StormArgs) -> Result<bool> {
    let env = Env::real();
    let storms = chosen(&args.only)?;
    let mut place = Place::new(args.keep.as_ref())?;
    let cluster = tokio::select! {
        started = start(&env, testbed::binary(args.binary.as_deref())?, &place) => started.inspect_err(|_| place.keep())?,
        () = interrupted() => return Err(Error::retry("interrupted")),
    };
    let measured = tokio::select! {
        report = measure(&env, &cluster, &storms) => Some(report),
        () = interrupted() => None,
    };
    let Some(report) = measured else {
        drop(cluster);
        return Err(Error::retry("interrupted"));
    };
    let report = report.inspect_err(|_| place.keep())?;
    let kept = report.promises_kept();
    println!("\n{}", report.markdown());
    if let Some(path) = &args.markdown {
        std::fs::write(path, report.markdown())?;
    }
    cluster.shutdown().await?;
    Ok(kept)
}

async fn start(env: &Env, binary: PathBuf, place: &Place) -> Result<DevCluster> {
    let options = DevOptions {
        processes: Some(binary),
        tuning: Tuning::default(),
        ..DevOptions::on_free_ports(place.dir.join("data"))
    };
    DevCluster::start(env.clone(), options).await
}

fn chosen(only: &[String]) -> Result<Vec<Storm>> {
    if let Some(unknown) = only.iter().find(|name| Storm::ALL.iter().all(|s| s.name() != name.as_str())) {
        return Err(Error::invalid(format!("no storm is called {unknown:?}")));
    }
    let wanted = |s: &Storm| only.is_empty() || only.iter().any(|name| name == s.name());
    Ok(Storm::ALL.into_iter().filter(wanted).collect())
}

async fn measure(env: &Env, cluster: &DevCluster, storms: &[Storm]) -> Result<Report> {
    let clock = env.clock.clone();
    let mut report = Report::default();
    let (resp, grpc) = (cluster.resp(0)?.to_owned(), cluster.grpc_addrs());
    let witnesses = Witnesses::start(env, &resp);
    witnesses.begin();
    tokio::time::sleep(QUIET).await;
    report.quiet = witnesses.end();
    println!("quiet: {}", report.quiet.line());
    for storm in storms {
        load::prepare(env, *storm, &resp, &grpc).await?;
        tokio::time::sleep(CALM).await;
        servers::forget_peaks(cluster);
        let before = servers::terms(env, cluster).await;
        witnesses.begin();
        let began_ns = clock.holder_ns();
        let outcomes = load::unleash(env, *storm, &resp, &grpc).await?;
        let seconds = clock.holder_ns().saturating_sub(began_ns) as f64 / 1e9;
        let witnessed = witnesses.end();
        let peaks = servers::peaks(cluster);
        tokio::time::sleep(CALM).await;
        let after = servers::terms(env, cluster).await;
        let row = Row { storm: *storm, outcomes, seconds, witnessed, peaks, terms: (before, after) };
        println!("{}", row.line());
        report.rows.push(row);
    }
    Ok(report)
}
