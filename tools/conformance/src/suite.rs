//! redis-benchmark's whole default suite against a redis-server that keeps nothing, one that fsyncs every write, and a cluster: they take
//! turns, test by test, and the medians of all rounds are compared. An error reply to any command ends it.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::Args;
use crate::servers::{self, Server};

/// Commands that are sent before replies are read.
const PIPELINES: [u32; 2] = [1, 16];
const NAMES: [&str; 3] = ["redis", "redis, fsync", "sextant"];

/// A test, and requests per second of each round, by server.
type Rates = BTreeMap<(u32, usize, String), [Vec<f64>; 3]>;

pub fn run(args: &Args, dir: &Path) -> Result<(), String> {
    let appends = dir.join("appends");
    std::fs::create_dir(&appends).map_err(|e| e.to_string())?;
    let all = [
        servers::redis(dir, &[])?,
        servers::redis(&appends, &["--appendonly", "yes", "--appendfsync", "always"])?,
        servers::sextant(&args.sextant, dir)?,
    ];
    let mut rates = Rates::new();
    for round in 0..args.rounds {
        for pipeline in PIPELINES {
            for turn in 0..all.len() {
                let at = (round + turn) % all.len();
                eprintln!("suite: round {}, -P {pipeline}: {}", round + 1, NAMES[at]);
                for (place, (test, rate)) in
                    benchmark(&all[at], args.requests, pipeline)?.into_iter().enumerate()
                {
                    rates.entry((pipeline, place, test)).or_default()[at].push(rate);
                }
            }
        }
    }
    let page = page(args, &all, &rates);
    print!("{page}");
    match &args.write {
        Some(path) => std::fs::write(path, page).map_err(|e| format!("{}: {e}", path.display())),
        None => Ok(()),
    }
}

/// Tests, and requests per second.
fn benchmark(server: &Server, requests: u32, pipeline: u32) -> Result<Vec<(String, f64)>, String> {
    let (host, port) = server.address.rsplit_once(':').ok_or("an address without a port")?;
    let (requests, pipeline) = (requests.to_string(), pipeline.to_string());
    let mut command = Command::new("redis-benchmark");
    command.args(["-h", host, "-p", port, "-n", &requests, "-P", &pipeline, "--csv"]).stdin(Stdio::null());
    let output = command.output().map_err(|e| format!("redis-benchmark: {e}"))?;
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let failed = !output.status.success() || said.contains("Error from server") || errors.contains("Error");
    if failed {
        return Err(format!("redis-benchmark against {}: {said}{errors}", server.version));
    }
    let rates: Vec<(String, f64)> = said.lines().filter_map(rate).collect();
    if rates.is_empty() { Err(format!("redis-benchmark said nothing: {said}{errors}")) } else { Ok(rates) }
}

/// Of a line such as `"SET","98039.22","0.3",..`.
fn rate(line: &str) -> Option<(String, f64)> {
    let mut fields = line.trim().strip_prefix('"')?.strip_suffix('"')?.split("\",\"");
    Some((fields.next()?.to_owned(), fields.next()?.parse().ok()?))
}

fn median(rates: &[f64]) -> f64 {
    let mut rates = rates.to_vec();
    rates.sort_by(f64::total_cmp);
    rates.get(rates.len() / 2).copied().unwrap_or_default()
}

fn page(args: &Args, all: &[Server; 3], rates: &Rates) -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let model = model.map_or("unknown", |(_, model)| model);
    let mut page = format!(
        "# redis-benchmark beside redis-server\n\nWritten by `cargo xtask conformance --suite --rounds {} --requests {} --write ..`: \
         the whole default suite (50\nclients, values of 3 B, one key of each kind), the servers taking turns, medians of {} \
         rounds, requests per second.\n\n\
         * redis: {}, one thread, in memory; nothing reaches a disk\n\
         * redis, fsync: the same with `appendfsync always`\n\
         * sextant: {}, `sextant dev --partitions 1 --pnodes 1`: three memtable servers and three sstable servers in one process; \
         a write is\n  answered when two of three have fsynced it\n\n\
         Machine: {model}, {cores} cores, which servers and redis-benchmark share.\n",
        args.rounds, args.requests, args.rounds, all[0].version, all[2].version,
    );
    for pipeline in PIPELINES {
        let _ = write!(page, "\n## -P {pipeline}\n\n```\n");
        let _ = writeln!(
            page,
            "{:<38}{:>12}{:>14}{:>12}{:>12}{:>14}",
            "test", NAMES[0], NAMES[1], NAMES[2], "of redis", "of fsync"
        );
        for ((_, _, test), rates) in rates.iter().filter(|((of, ..), _)| *of == pipeline) {
            let [redis, fsync, sextant] = [0, 1, 2].map(|at| median(&rates[at]));
            let _ = writeln!(
                page,
                "{test:<38}{redis:>12.0}{fsync:>14.0}{sextant:>12.0}{:>12.2}{:>14.2}",
                sextant / redis.max(1.0),
                sextant / fsync.max(1.0)
            );
        }
        page.push_str("```\n");
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_and_medians_taken() {
        let line = r#""LRANGE_100 (first 100 elements)","12345.50","0.3","0.1""#;
        assert_eq!(rate(line), Some(("LRANGE_100 (first 100 elements)".into(), 12345.5)));
        assert_eq!(rate(r#""test","rps","avg_latency_ms""#), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
    }
}
