//! Read modes side by side: they alternate within one run, over the same p-nodes, with the same caches and the same
//! batching, so that a slow minute of the machine hits all of them.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use serde::Serialize;
use sextant_common::error::{Error, Result};
use sextant_common::operation::ReadMode;
use sextant_environment::Env;

use crate::args::CompareOptions;
use crate::cluster_file::Running;
use crate::counters::{Counters, Sources};
use crate::distribution::Permutation;
use crate::measure::Measurements;
use crate::phase::{Context, Driven, Pace, Reread, Transactions, drive};
use crate::report::{Parameters, Report};
use crate::sequence::Sequence;
use crate::settings::Settings;
use crate::target::Target;

/// One mode in one round.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
    pub round: u32,
    #[serde(flatten)]
    pub report: Report,
    /// Per 1000 point reads.
    pub per_1000_reads: BTreeMap<String, f64>,
}

/// Medians over the rounds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Median {
    pub mode: &'static str,
    pub throughput: f64,
    pub p50_us: f64,
    pub p99_us: f64,
    pub per_1000_reads: BTreeMap<String, f64>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    pub tool: &'static str,
    pub phase: &'static str,
    pub parameters: Parameters,
    /// Every record was read once in every mode before the first round.
    pub warmed: bool,
    pub runs: Vec<Run>,
    pub medians: Vec<Median>,
    /// Throughput of the first mode divided by that of each other.
    pub ratios: BTreeMap<String, f64>,
    pub errors: u64,
}

/// Runs the comparison.
pub async fn compare<T: Target>(
    env: &Env,
    target: &T,
    compare: &CompareOptions,
    settings: &Settings,
    context: &Context,
) -> Result<Comparison> {
    let modes = modes(compare)?;
    let sources = sources(compare);
    let mut errors = 0;
    if !compare.cold {
        for mode in &modes {
            let warmed = reread(env, target, *mode, settings, context).await?;
            errors += warmed.measured.error_count();
            stop_if_given_up(&warmed)?;
        }
    }
    let mut runs = Vec::new();
    for round in 1..=compare.rounds {
        for mode in &modes {
            let (before, cpu_before) =
                (sources.read(env, &target.metrics()).await, sources.memtable_cpu_seconds());
            let driven =
                transactions(env, target, *mode, settings, context, round, settings.options.operations)
                    .await?;
            let (after, cpu_after) =
                (sources.read(env, &target.metrics()).await, sources.memtable_cpu_seconds());
            stop_if_given_up(&driven)?;
            let cpu_seconds = cpu_before.iter().zip(&cpu_after).map(|(b, a)| a - b).reduce(f64::max);
            let reads = reads(&driven.measured);
            let mut parameters =
                settings.parameters(Some(settings.options.workload), settings.options.operations, None);
            parameters.mode = mode.name();
            let report = Report::new("run", parameters, driven.seconds, driven.gave_up, &driven.measured);
            errors += report.errors;
            let per_1000_reads = per_1000_reads(&after.since(&before), cpu_seconds, reads);
            eprintln!(
                "round {round} {mode}: {:.0} operations/s, {} errors",
                report.throughput, report.errors
            );
            runs.push(Run { round, report, per_1000_reads });
        }
    }
    let medians: Vec<Median> = modes.iter().map(|mode| median_of(*mode, &runs)).collect();
    let ratios = ratios(&medians);
    Ok(Comparison {
        tool: "sextant ycsb",
        phase: "compare",
        parameters: settings.parameters(Some(settings.options.workload), settings.options.operations, None),
        warmed: !compare.cold,
        runs,
        medians,
        ratios,
        errors,
    })
}

fn modes(compare: &CompareOptions) -> Result<Vec<ReadMode>> {
    let modes = compare.modes.clone();
    let mut different: Vec<_> = modes.iter().map(|m| m.name()).collect();
    different.sort_unstable();
    different.dedup();
    if different.len() != modes.len() || modes.is_empty() {
        return Err(Error::invalid("--modes names each mode once"));
    }
    Ok(modes)
}

fn sources(compare: &CompareOptions) -> Sources {
    if !compare.metrics.is_empty() {
        return Sources { http: compare.metrics.clone(), memtable_pids: Vec::new() };
    }
    let running = compare.options.cluster.as_deref().and_then(|file: &Path| Running::beside(file));
    running.map(|r| Sources::of_dev_cluster(&r)).unwrap_or_default()
}

fn stop_if_given_up(driven: &Driven) -> Result<()> {
    if driven.gave_up {
        return Err(Error::unavailable("the target did not answer any more"));
    }
    Ok(())
}

/// Reads every record once through each p-node.
pub async fn reread<T: Target>(
    env: &Env,
    target: &T,
    mode: ReadMode,
    settings: &Settings,
    context: &Context,
) -> Result<Driven> {
    let order = Permutation::new(settings.options.records, settings.options.seed);
    let p_nodes = target.p_nodes().min(settings.options.threads as usize);
    let next: Vec<_> = (0..p_nodes).map(|_| Arc::new(AtomicU64::new(0))).collect();
    let pace = Pace { seconds_max: None, rate: None, ..settings.pace("warming", u64::MAX) };
    let source = |index: usize| Reread { order, next: next[index % p_nodes].clone() };
    drive(env, target, mode, &format!("warming {mode}"), &pace, context, source).await
}

/// Runs the workload's mix. Each round has random numbers of its own; within a round all modes have the same.
pub async fn transactions<T: Target>(
    env: &Env,
    target: &T,
    mode: ReadMode,
    settings: &Settings,
    context: &Context,
    round: u32,
    operations: u64,
) -> Result<Driven> {
    let mut pace = settings.pace("transactions", operations);
    pace.seed = pace.seed.wrapping_add(u64::from(round) << 32);
    let chooser = settings.chooser(context.sequence.end());
    let source = |_| Transactions {
        context: context.clone(),
        workload: settings.options.workload,
        chooser: chooser.clone(),
    };
    let label = format!("workload {} {mode}", settings.options.workload.name());
    drive(env, target, mode, &label, &pace, context, source).await
}

/// Point reads among the measured operations.
fn reads(measured: &Measurements) -> u64 {
    use crate::workload::Operation;
    measured
        .kinds()
        .filter(|(operation, _)| matches!(operation, Operation::Read | Operation::ReadModifyWrite))
        .map(|(_, stats)| stats.latency_ns.len())
        .sum()
}

fn per_1000_reads(delta: &Counters, leader_cpu_seconds: Option<f64>, reads: u64) -> BTreeMap<String, f64> {
    let mut out = BTreeMap::new();
    if reads == 0 {
        return out;
    }
    let scale = 1000.0 / reads as f64;
    let mut put = |name: String, value: f64| *out.entry(name).or_insert(0.0) += value * scale;
    for (name, kind) in [("messages to leaders", "read"), ("messages to sstable servers", "get")] {
        if let Some(count) = delta.labelled("sextant_pnode_upstream_messages", "kind", kind) {
            put(name.to_owned(), count);
        }
    }
    for (cause, count) in delta.by_label("sextant_pnode_read_wrong_turns", "cause") {
        put(format!("wrong turns: {cause}"), count);
    }
    for (path, count) in delta.by_label("sextant_pnode_reads", "path") {
        put(format!("path: {path}"), count);
    }
    if let Some(seconds) = leader_cpu_seconds {
        put("CPU ms of the busiest memtable server".to_owned(), seconds * 1000.0);
    }
    out
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => 0.0,
        n if n % 2 == 1 => values[n / 2],
        n => (values[n / 2 - 1] + values[n / 2]) / 2.0,
    }
}

fn median_of(mode: ReadMode, runs: &[Run]) -> Median {
    let own: Vec<&Run> = runs.iter().filter(|r| r.report.parameters.mode == mode.name()).collect();
    let over = |value: &dyn Fn(&Run) -> f64| median(own.iter().map(|r| value(r)).collect());
    // The most frequent kind of operation stands for the mode: the reads, except in workload E.
    let main =
        |r: &Run| r.report.kinds.iter().max_by_key(|k| k.count).map(|k| k.latency_us).unwrap_or_default();
    let mut names: Vec<&String> = own.iter().flat_map(|r| r.per_1000_reads.keys()).collect();
    names.sort();
    names.dedup();
    Median {
        mode: mode.name(),
        throughput: over(&|r| r.report.throughput),
        p50_us: over(&|r| main(r).p50),
        p99_us: over(&|r| main(r).p99),
        per_1000_reads: names
            .into_iter()
            .map(|name| (name.clone(), over(&|r| r.per_1000_reads.get(name).copied().unwrap_or(0.0))))
            .collect(),
    }
}

fn ratios(medians: &[Median]) -> BTreeMap<String, f64> {
    let Some((first, others)) = medians.split_first() else { return BTreeMap::new() };
    others
        .iter()
        .filter(|other| other.throughput > 0.0)
        .map(|other| (format!("{}/{}", first.mode, other.mode), first.throughput / other.throughput))
        .collect()
}

impl Comparison {
    /// The table for people.
    pub fn table(&self) -> String {
        let mut out = String::new();
        let rounds = self.runs.iter().map(|r| r.round).max().unwrap_or(0);
        let _ = writeln!(
            out,
            "compare: {}; {} rounds, alternating, {}",
            self.parameters.summary_without_mode(),
            rounds,
            if self.warmed { "warmed by reading every record once" } else { "not warmed" }
        );
        let _ = write!(out, "{:<8}{:>12}{:>11}{:>11}  ", "mode", "median/s", "p50 us", "p99 us");
        let _ = writeln!(out, "each round");
        for m in &self.medians {
            let each: Vec<String> = self
                .runs
                .iter()
                .filter(|r| r.report.parameters.mode == m.mode)
                .map(|r| format!("{:.0}", r.report.throughput))
                .collect();
            let _ = writeln!(
                out,
                "{:<8}{:>12.0}{:>11.1}{:>11.1}  {}",
                m.mode,
                m.throughput,
                m.p50_us,
                m.p99_us,
                each.join(" ")
            );
        }
        for (name, ratio) in &self.ratios {
            let _ = writeln!(out, "{name}: {ratio:.2} x");
        }
        let mut names: Vec<&String> = self.medians.iter().flat_map(|m| m.per_1000_reads.keys()).collect();
        names.sort();
        names.dedup();
        if !names.is_empty() {
            let _ = write!(out, "{:<42}", "per 1000 reads");
            for m in &self.medians {
                let _ = write!(out, "{:>12}", m.mode);
            }
            out.push('\n');
            for name in names {
                let _ = write!(out, "{name:<42}");
                for m in &self.medians {
                    let _ = write!(out, "{:>12.3}", m.per_1000_reads.get(name).copied().unwrap_or(0.0));
                }
                out.push('\n');
            }
        }
        let _ = writeln!(out, "{} errors", self.errors);
        out
    }
}

/// What all threads of a run phase share; `existing` records exist.
pub fn context(settings: &Settings, existing: u64) -> Context {
    Context { layout: settings.layout, sequence: Arc::new(Sequence::new(existing)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::test_parameters;
    use crate::workload::Operation;

    fn run(round: u32, mode: &'static str, reads: u64, messages: f64) -> Run {
        let mut measured = Measurements::default();
        for _ in 0..reads {
            measured.succeeded(Operation::Read, 50_000);
        }
        let parameters = Parameters { mode, ..test_parameters() };
        let mut page = Counters::default();
        page.add_page(&format!("sextant_pnode_upstream_messages_total{{kind=\"read\"}} {messages}\n"));
        Run {
            round,
            report: Report::new("run", parameters, 1.0, false, &measured),
            per_1000_reads: per_1000_reads(&page, Some(0.002), reads),
        }
    }

    #[test]
    fn medians_and_ratios() {
        let runs = vec![
            run(1, "pda", 6000, 6.0),
            run(1, "nda", 1000, 1000.0),
            run(2, "pda", 7000, 7.0),
            run(2, "nda", 2000, 2000.0),
            run(3, "pda", 100, 0.1),
            run(3, "nda", 900, 900.0),
        ];
        let medians = vec![median_of(ReadMode::Pda, &runs), median_of(ReadMode::Nda, &runs)];
        assert_eq!((medians[0].throughput, medians[1].throughput), (6000.0, 1000.0));
        let leaders = |m: &Median| m.per_1000_reads["messages to leaders"];
        assert!((leaders(&medians[0]) - 1.0).abs() < 1e-9);
        assert!((leaders(&medians[1]) - 1000.0).abs() < 1e-9);
        assert_eq!(ratios(&medians), BTreeMap::from([("pda/nda".to_owned(), 6.0)]));
    }

    #[test]
    fn the_median_of_an_even_number_lies_between() {
        assert_eq!(median(vec![4.0, 1.0, 3.0, 2.0]), 2.5);
        assert_eq!(median(vec![]), 0.0);
    }
}
