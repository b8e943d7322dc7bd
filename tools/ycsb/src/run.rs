//! The entry: from a command line to results.

use std::path::Path;

use futures::future::BoxFuture;
use serde::Serialize;
use sextant_client::{ClientOptions, Credentials};
use sextant_common::error::{Error, Result};
use sextant_environment::Env;

use crate::args::{PhaseArgs, YcsbArgs};
use crate::compare::{Comparison, compare, context, transactions};
use crate::distribution::Permutation;
use crate::keys::key;
use crate::phase::{Driven, Load, Update, drive, find_end};
use crate::report::Report;
use crate::settings::{Settings, TargetSettings};
use crate::target::embedded::Embedded;
use crate::target::grpc::Grpc;
use crate::target::hash::Hashes;
use crate::target::resp::Resp;
use crate::target::{Target, Thread};

/// The results of a phase.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub enum RunReport {
    Phase(Box<Report>),
    Comparison(Box<Comparison>),
}

impl RunReport {
    /// Operations that failed, or were answered wrongly.
    pub fn errors(&self) -> u64 {
        match self {
            RunReport::Phase(report) => report.errors,
            RunReport::Comparison(comparison) => comparison.errors,
        }
    }

    /// The phase was not given up for lack of answers.
    pub fn is_complete(&self) -> bool {
        match self {
            RunReport::Phase(report) => !report.gave_up,
            RunReport::Comparison(_) => true,
        }
    }

    /// For people.
    pub fn table(&self) -> String {
        match self {
            RunReport::Phase(report) => report.table(),
            RunReport::Comparison(comparison) => comparison.table(),
        }
    }
}

/// Runs a phase and writes its JSON file if one was asked for. `Invalid`: the command line contradicts itself.
///
/// `credentials`: who the generator is, over gRPC and RESP. (Nobody asks who uses an embedded p-node.)
pub fn run(env: Env, args: &YcsbArgs, credentials: Option<Credentials>) -> BoxFuture<'_, Result<RunReport>> {
    Box::pin(async move {
        let phase = &args.phase;
        let runs = matches!(phase, PhaseArgs::Run(_) | PhaseArgs::Compare(_));
        let settings = Settings::new(phase.options(), runs)?;
        if let (PhaseArgs::Compare(_), TargetSettings::Resp { .. }) = (phase, &settings.target) {
            return Err(Error::invalid(
                "modes cannot be chosen over RESP: compare with --grpc or --embedded",
            ));
        }
        let o = &settings.options;
        let outcome = match &settings.target {
            TargetSettings::Grpc { addrs, connections } => {
                let options = ClientOptions {
                    deadline: settings.deadline,
                    connections: *connections,
                    credentials,
                    ..ClientOptions::default()
                };
                let target = Grpc::new(&env, addrs, &o.table, options).await?;
                run_on(&env, &target, phase, &settings).await?
            }
            TargetSettings::Resp { addrs, hashes: true } => {
                let target = Hashes(Resp::new(addrs, settings.deadline, credentials)?);
                run_on(&env, &target, phase, &settings).await?
            }
            TargetSettings::Resp { addrs, hashes: false } => {
                let target = Resp::new(addrs, settings.deadline, credentials)?;
                run_on(&env, &target, phase, &settings).await?
            }
            TargetSettings::Embedded { cluster, pnodes, cache_bytes, coalesce } => {
                let target = Embedded::start(
                    &env,
                    cluster,
                    *pnodes,
                    *cache_bytes,
                    *coalesce,
                    &o.table,
                    settings.deadline,
                )
                .await?;
                let outcome = run_on(&env, &target, phase, &settings).await;
                target.shutdown().await;
                outcome?
            }
        };
        if let Some(path) = &o.json {
            write_json(path, &outcome)?;
        }
        Ok(outcome)
    })
}

async fn run_on<T: Target>(
    env: &Env,
    target: &T,
    phase: &PhaseArgs,
    settings: &Settings,
) -> Result<RunReport> {
    let o = &settings.options;
    let mut first = target.thread(0, settings.mode).await?;
    // Whether anybody is there at all: better one clear line than a thousand errors.
    first.read(key(0)).await?;
    let report = match phase {
        PhaseArgs::Load(_) => {
            let context = context(settings, 0);
            let source = |_| Load { context: context.clone(), blind: settings.blind_inserts() };
            let driven = drive(
                env,
                target,
                settings.mode,
                "load",
                &settings.pace("load", o.records),
                &context,
                source,
            )
            .await?;
            report(phase, settings, o.records, None, driven)
        }
        PhaseArgs::Update(_) => {
            let context = context(settings, o.records);
            let order = Permutation::new(o.records, o.seed);
            let source = |_| Update { context: context.clone(), order };
            let operations = settings.updated_records();
            let driven = drive(
                env,
                target,
                settings.mode,
                "update",
                &settings.pace("update", operations),
                &context,
                source,
            )
            .await?;
            report(phase, settings, operations, Some(o.share), driven)
        }
        PhaseArgs::Run(_) => {
            let context = context(settings, existing(&mut first, settings).await?);
            if o.warmup > 0 {
                // Round 0: other random numbers than the measured round.
                transactions(env, target, settings.mode, settings, &context, 0, o.warmup).await?;
            }
            let driven =
                transactions(env, target, settings.mode, settings, &context, 1, o.operations).await?;
            report(phase, settings, o.operations, None, driven)
        }
        PhaseArgs::Compare(options) => {
            let context = context(settings, existing(&mut first, settings).await?);
            let comparison = compare(env, target, options, settings, &context).await?;
            return Ok(RunReport::Comparison(Box::new(comparison)));
        }
    };
    Ok(RunReport::Phase(Box::new(report)))
}

/// How many records there are: those of the load phase, and those that earlier runs inserted behind them.
async fn existing<T: Thread>(thread: &mut T, settings: &Settings) -> Result<u64> {
    let records = settings.options.records;
    if thread.read(key(records - 1)).await?.is_none() {
        return Err(Error::invalid(format!(
            "record {} does not exist: load as many records first (`ycsb load --records {records}`)",
            records - 1
        )));
    }
    if settings.options.workload.inserts() { find_end(thread, records).await } else { Ok(records) }
}

fn report(
    phase: &PhaseArgs,
    settings: &Settings,
    operations: u64,
    share: Option<f64>,
    driven: Driven,
) -> Report {
    let workload = matches!(phase, PhaseArgs::Run(_)).then_some(settings.options.workload);
    let parameters = settings.parameters(workload, operations, share);
    Report::new(phase.name(), parameters, driven.seconds, driven.gave_up, &driven.measured)
}

fn write_json(path: &Path, outcome: &RunReport) -> Result<()> {
    let mut text = serde_json::to_string_pretty(outcome).map_err(|e| Error::internal(e.to_string()))?;
    text.push('\n');
    std::fs::write(path, text)
        .map_err(|e| Error::new(sextant_common::ErrorKind::Disk, format!("{}: {e}", path.display())))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::target::memory::Memory;
    use crate::workload::Operation;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        ycsb: YcsbArgs,
    }

    async fn ycsb(target: &Memory, line: &str) -> Result<RunReport> {
        let args = std::iter::once("ycsb").chain(line.split_whitespace());
        let phase = Cli::parse_from(args).ycsb.phase;
        let settings =
            Settings::new(phase.options(), !matches!(phase, PhaseArgs::Load(_) | PhaseArgs::Update(_)))?;
        run_on(&Env::real(), target, &phase, &settings).await
    }

    fn phase(outcome: RunReport) -> Report {
        match outcome {
            RunReport::Phase(report) => *report,
            RunReport::Comparison(_) => panic!("a comparison"),
        }
    }

    fn count(report: &Report, operation: Operation) -> u64 {
        report.kinds.iter().find(|k| k.operation == operation.name()).map_or(0, |k| k.count)
    }

    #[tokio::test]
    async fn all_workloads_run_on_what_was_loaded() {
        let target = Memory::default();
        let loaded = phase(ycsb(&target, "load --records 1000 --threads 7").await.unwrap());
        assert_eq!((loaded.operations, loaded.errors), (1000, 0));
        assert_eq!(target.0.lock().records.len(), 1000);
        for workload in ["a", "b", "c", "d", "e", "f"] {
            // Twice: the second run finds what the first one inserted.
            for round in 0..2 {
                let line = format!(
                    "run --workload {workload} --records 1000 --operations 999 --threads 5 --seed {round}"
                );
                let report = phase(ycsb(&target, &line).await.unwrap());
                assert_eq!((report.operations, report.errors), (999, 0), "{workload}: {}", report.table());
            }
        }
        let inserted = target.0.lock().records.len() - 1000;
        assert!((100..300).contains(&inserted), "{inserted}: D and E insert 5 % of 999, twice each");
    }

    #[tokio::test]
    async fn update_rewrites_exactly_its_share() {
        let target = Memory::default();
        ycsb(&target, "load --records 2000").await.unwrap();
        let before = target.0.lock().records.clone();
        let report = phase(ycsb(&target, "update --records 2000 --share 0.05 --threads 9").await.unwrap());
        assert_eq!((count(&report, Operation::Update), report.errors), (100, 0));
        let after = target.0.lock().records.clone();
        assert_eq!(after.len(), before.len());
        let changed = before.iter().filter(|(key, value)| after.get(*key) != Some(*value)).count();
        assert_eq!(changed, 100);
    }

    #[tokio::test]
    async fn wrong_and_missing_answers_are_errors() {
        let target = Memory::default();
        ycsb(&target, "load --records 100").await.unwrap();
        target.0.lock().records.remove(&key(3));
        // The two reads before the phase ask whether anybody and the last record are there.
        let reads = target.0.lock().reads;
        target.0.lock().wrong_read = Some(reads + 10);
        let line = "run --workload c --records 100 --operations 2000 --distribution uniform";
        let report = phase(ycsb(&target, line).await.unwrap());
        let errors = &report.kinds[0].errors;
        assert_eq!(errors["wrong-value"], 1);
        assert!(errors["missing"] > 0);
        assert_eq!(report.operations + report.errors, 2000);
    }

    #[tokio::test]
    async fn refused_inserts_are_counted_once_and_loading_twice_finds_what_exists() {
        let target = Memory::default();
        target.0.lock().refuse_every = Some(10);
        let report = phase(ycsb(&target, "load --records 100").await.unwrap());
        assert_eq!((report.operations, report.errors), (90, 10));
        target.0.lock().refuse_every = None;
        let report = phase(ycsb(&target, "load --records 100").await.unwrap());
        assert_eq!((report.operations, report.kinds[0].errors["exists"]), (10, 90));
        let report = phase(ycsb(&target, "load --records 100 --insert-mode put").await.unwrap());
        assert_eq!((report.operations, report.errors), (100, 0));
    }

    #[tokio::test]
    async fn a_run_without_records_says_what_to_do() {
        let error = ycsb(&Memory::default(), "run --records 10").await.unwrap_err();
        assert!(error.message.contains("load"), "{error}");
    }

    #[tokio::test]
    async fn modes_are_compared_in_turns() {
        let target = Memory::default();
        ycsb(&target, "load --records 50").await.unwrap();
        let reads_before = target.0.lock().reads;
        let line =
            "compare --workload c --records 50 --operations 200 --rounds 2 --modes pda,nda --threads 4";
        let RunReport::Comparison(comparison) = ycsb(&target, line).await.unwrap() else { panic!("a phase") };
        let order: Vec<_> = comparison.runs.iter().map(|r| (r.round, r.report.parameters.mode)).collect();
        assert_eq!(order, [(1, "pda"), (1, "nda"), (2, "pda"), (2, "nda")]);
        assert_eq!(comparison.errors, 0);
        assert!(comparison.ratios.contains_key("pda/nda"));
        // Two reads to begin with, every record through both p-nodes in both modes, four runs.
        assert_eq!(target.0.lock().reads - reads_before, 2 + 2 * 2 * 50 + 4 * 200);
        let table = comparison.table();
        assert!(table.contains("pda/nda"), "{table}");
    }

    #[tokio::test]
    async fn the_same_seed_reads_the_same_records() {
        let run = async |seed: u64| {
            let target = Memory::default();
            ycsb(&target, "load --records 100 --seed 5").await.unwrap();
            let line = format!("run --workload a --records 100 --operations 500 --threads 1 --seed {seed}");
            ycsb(&target, &line).await.unwrap();
            std::mem::take(&mut target.0.lock().records)
        };
        let one = run(1).await;
        assert_eq!(one, run(1).await);
        assert_ne!(one, run(2).await);
    }
}
