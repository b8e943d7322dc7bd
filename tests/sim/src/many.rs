//! Many seeds: one process each, several at a time, and their sum.
//!
//! Owns the minima that coverage has to reach: a simulation that no longer meets what it is there for must not pass.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::interpose::real_ns;

#[derive(Clone, Debug)]
pub struct ManyOptions {
    pub seeds: u64,
    pub first: u64,
    pub jobs: usize,
    /// Each seed is run twice, and both traces have to be the same.
    pub twice: bool,
    /// Most real time for one run.
    pub limit: Duration,
    /// Where the reports are written as JSON lines.
    pub json: Option<std::path::PathBuf>,
    /// Passed on to every run.
    pub arguments: Vec<String>,
    /// A mutant is to be caught: coverage has no minima.
    pub mutant: bool,
    /// Coverage has its minima in the profile `mixed` without a theme.
    pub minima: bool,
    /// Each mutant is run with its scene.
    pub themed: bool,
}

/// How often what has to happen in a hundred runs of the profile `mixed`, at least. About a fifth of what was measured.
const MINIMA: [(&str, u64); 50] = [
    // Reads answered without the leader.
    ("sstable_only_reads", 14_000),
    ("cache_reads", 3_800),
    ("reads_of_nobody", 4_500),
    ("scan_pages_without_leader", 1_000),
    // Answers of leaders that were kept: asked for, refused, used, ended by writes, and found to be over.
    ("registered_reads", 16_000),
    ("registrations_refused", 3_000),
    ("kept_reads", 12_000),
    ("invalidations", 4_000),
    ("kept_over", 7_000),
    // Records that expired before somebody's eyes, and those that somebody inserted again thereupon.
    ("mayflies_gone", 1_300),
    ("mayflies_again", 950),
    // Objects: what clients were answered, also while something was broken, and what was swept behind them.
    ("object_commands", 4_000),
    ("object_transactions", 600),
    ("object_watched_transactions", 350),
    ("object_acts_under_faults", 1_500),
    ("swept_elements", 150),
    // Reads that had to start again, and conditions that a flush voided.
    ("stale_reads", 2_000),
    ("stale_writes", 240),
    ("tombstone_turns", 3_200),
    ("gone_turns", 160),
    ("truncated_groups", 22),
    ("truncated_freezes", 4),
    ("expired_lease_reads", 25_000),
    ("whole_filters", 330),
    ("flushes_under_faults", 200),
    ("compactions_under_faults", 100),
    ("elections", 180),
    ("transfers", 100),
    ("handovers", 60),
    // The operator changes modes instead, half of the time; and voters in half of the runs.
    ("lease_lengths_changed", 10),
    ("voters_changed", 15),
    ("modes_changed", 20),
    ("drifts_changed", 20),
    // Memory that is lost, in half of the runs: rare, so that these are far below a fifth.
    ("wipe", 4),
    ("wipe_survived", 4),
    ("lost_members", 4),
    ("leader_lost_after_wipe", 6),
    ("partial_wipe_refused", 1),
    ("full_laggard", 2),
    // Retries that cross a restart of a memtable server, or a snapshot that one has installed.
    ("late_retries_over_restarts", 100),
    ("late_retries_over_snapshots", 20),
    // Bulk loads, in half of the runs: committed, also where the leader has changed since they began, and seen.
    ("loads_committed", 10),
    ("loads_over_elections", 1),
    ("reads_of_loads", 1_000),
    // Tables that change, in a third of the runs.
    ("tables_dropped", 20),
    ("tables_altered", 20),
    ("refused_proposals", 3_000),
    ("votes_dropped", 280),
    ("snapshots_installed", 15),
    ("pauses_at_points", 2_000),
];

/// Fewer runs than this are too few to expect anything of.
const SEEDS_FOR_MINIMA: u64 = 40;

/// The same in a thousand runs, for what is so rare, or comes so unevenly, that a hundred may have none of it.
const RARE_MINIMA: [(&str, u64); 5] = [
    // (Of 300 seeds some have it often, and 50 had none.)
    ("rings_renewed_over_groups", 30),
    ("wipe_to_older_copy", 20),
    ("older_copy_noticed", 10),
    ("snapshots_refused", 20),
    ("sst_corrupt_reads", 10),
];

/// The same for these.
const SEEDS_FOR_RARE_MINIMA: u64 = 300;
const POLL: Duration = Duration::from_millis(10);

struct Running {
    seed: u64,
    child: Child,
    started_ns: u64,
}

/// What a run said.
pub(crate) struct Said {
    pub seed: u64,
    pub report: Result<Value, String>,
}

/// Runs the seeds and prints the sum. Whether all is well.
pub fn many(options: &ManyOptions) -> std::io::Result<bool> {
    let started_ns = real_ns();
    let mut said = run_all(options, &options.arguments, |_| false)?;
    said.sort_by_key(|s| s.seed);
    if let Some(path) = &options.json {
        let lines: String =
            said.iter().filter_map(|s| s.report.as_ref().ok()).map(|r| format!("{r}\n")).collect();
        std::fs::write(path, lines)?;
    }
    let (text, well) = sum_up(options, &said);
    println!("{text}{} s of real time", (real_ns() - started_ns) / 1_000_000_000);
    Ok(well)
}

/// Runs the seeds, one process each, until they are done or `enough` says so of those that are.
#[allow(clippy::disallowed_methods, reason = "a tool that waits for child processes")]
pub(crate) fn run_all(
    options: &ManyOptions,
    arguments: &[String],
    enough: impl Fn(&[Said]) -> bool,
) -> std::io::Result<Vec<Said>> {
    let program = std::env::current_exe()?;
    let mut waiting: VecDeque<u64> = (options.first..options.first + options.seeds).collect();
    if options.twice {
        waiting = waiting.into_iter().flat_map(|seed| [seed, seed]).collect();
    }
    let mut running: Vec<Running> = Vec::new();
    let mut said = Vec::new();
    while !waiting.is_empty() || !running.is_empty() {
        if enough(&said) {
            waiting.clear();
        }
        while running.len() < options.jobs
            && let Some(seed) = waiting.pop_front()
        {
            let mut command = Command::new(&program);
            command.args(["--seed", &seed.to_string()]).args(arguments);
            let child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
            running.push(Running { seed, child, started_ns: real_ns() });
        }
        std::thread::sleep(POLL);
        let mut still = Vec::new();
        for mut run in running {
            let limit_ns = options.limit.as_nanos() as u64;
            match run.child.try_wait()? {
                Some(_) => said.push(finished(run)),
                None if real_ns() - run.started_ns > limit_ns => {
                    run.child.kill()?;
                    run.child.wait()?;
                    let text = format!("no end after {} s of real time", options.limit.as_secs());
                    said.push(Said { seed: run.seed, report: Err(text) });
                }
                None => still.push(run),
            }
        }
        running = still;
    }
    Ok(said)
}

fn finished(mut run: Running) -> Said {
    let mut text = String::new();
    let read = run.child.stdout.take().map(|mut out| out.read_to_string(&mut text));
    let report = match read {
        Some(Ok(_)) => {
            serde_json::from_str(text.trim()).map_err(|e| format!("it said nothing readable: {e}"))
        }
        _ => Err("its output is lost".to_owned()),
    };
    Said { seed: run.seed, report }
}

fn number(report: &Value, field: &str) -> f64 {
    report.get(field).and_then(Value::as_f64).unwrap_or(0.0)
}

fn add(sums: &mut BTreeMap<String, u64>, report: &Value, field: &str) {
    for (name, count) in report.get(field).and_then(Value::as_object).into_iter().flatten() {
        *sums.entry(name.clone()).or_default() += count.as_u64().unwrap_or(0);
    }
}

fn sum_up(options: &ManyOptions, said: &[Said]) -> (String, bool) {
    let (mut text, mut bad) = (String::new(), Vec::new());
    let (mut faults, mut coverage, mut kept) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
    let mut hashes: BTreeMap<u64, &str> = BTreeMap::new();
    let (mut seconds, mut operations) = (0.0, [0.0; 3]);
    for Said { seed, report } in said {
        let report = match report {
            Ok(report) => report,
            Err(why) => {
                bad.push((*seed, why.clone()));
                continue;
            }
        };
        seconds += number(report, "sim_seconds");
        for (sum, field) in operations.iter_mut().zip(["ok", "failed", "unknown"]) {
            *sum += number(report, field);
        }
        add(&mut faults, report, "faults");
        add(&mut coverage, report, "coverage");
        let used = report["coverage"]["kept_reads"].as_u64().unwrap_or(0);
        for (fault, _) in
            report["faults"].as_object().into_iter().flatten().filter(|(_, n)| n.as_u64() > Some(0))
        {
            *kept.entry(fault.clone()).or_insert(0) += used;
        }
        let verdict = report["verdict"].as_str().unwrap_or("nothing");
        if verdict != "ok" {
            bad.push((*seed, format!("{verdict}: {}", report["text"].as_str().unwrap_or_default())));
        }
        let hash = report["trace_hash"].as_str().unwrap_or_default();
        if *hashes.entry(*seed).or_insert(hash) != hash {
            bad.push((*seed, "the same seed left two different traces".to_owned()));
        }
    }
    let _ = writeln!(
        text,
        "{} runs, {:.2} simulated hours; operations: {} answered, {} refused, {} of unknown outcome",
        said.len(),
        seconds / 3600.0,
        operations[0],
        operations[1],
        operations[2]
    );
    for (title, sums) in
        [("faults", &faults), ("coverage", &coverage), ("kept answers used in runs with", &kept)]
    {
        let _ = writeln!(text, "{title}:");
        for (name, count) in sums {
            let _ = writeln!(text, "  {name:<28} {count:>10}");
        }
    }
    if options.minima && !options.mutant {
        let common = MINIMA.iter().map(|(name, n)| (*name, n * said.len() as u64 / 100));
        let rare = RARE_MINIMA.iter().map(|(name, n)| (*name, n * said.len() as u64 / 1000));
        let common = common.filter(|_| options.seeds >= SEEDS_FOR_MINIMA);
        let rare = rare.filter(|_| options.seeds >= SEEDS_FOR_RARE_MINIMA);
        for (name, least) in common.chain(rare) {
            let count = coverage.get(name).or(faults.get(name)).copied().unwrap_or(0);
            if count < least {
                bad.push((0, format!("coverage: {name} is {count}, at least {least} are expected")));
            }
        }
    }
    for (seed, why) in &bad {
        let command = format!("cargo xtask sim --seeds 1 --first {seed} {}", options.arguments.join(" "));
        let _ =
            writeln!(text, "FAILED {}: {why}", if *seed == 0 { "as a whole" } else { command.trim_end() });
    }
    let _ = writeln!(text, "{} failures in {} runs", bad.len(), said.len());
    (text, bad.is_empty())
}
