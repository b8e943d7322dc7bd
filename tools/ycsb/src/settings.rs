//! What the command line asks for, checked. An `Err` here is one clear line for the user.

use std::time::Duration;

use sextant_common::error::{Error, Result};
use sextant_common::limits;
use sextant_common::operation::ReadMode;
use sextant_environment::config::ClusterConfig;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::args::{InsertMode, Kept, Options};
use crate::cluster_file::ClusterFile;
use crate::distribution::{Chooser, Distribution};
use crate::keys::key;
use crate::phase::Pace;
use crate::record::Layout;
use crate::report::Parameters;
use crate::target::no_scans;
use crate::workload::Workload;

/// Where an operation goes if nothing else is said.
const GRPC_DEFAULT: &str = "127.0.0.1:7400";
/// Size of the record cache of an embedded p-node: the p-node's own default.
const CACHE_BYTES_DEFAULT: u64 = 256 * 1024 * 1024;

#[derive(Clone, Debug)]
pub enum TargetSettings {
    Grpc { addrs: Vec<String>, connections: usize },
    Resp { addrs: Vec<String>, hashes: bool },
    Embedded { cluster: ClusterConfig, pnodes: usize, cache_bytes: u64, coalesce: bool },
}

/// A phase, ready to run.
#[derive(Clone, Debug)]
pub struct Settings {
    pub options: Options,
    pub target: TargetSettings,
    pub layout: Layout,
    pub mode: ReadMode,
    pub distribution: Distribution,
    pub deadline: Duration,
    pub workers: usize,
}

impl Settings {
    /// `runs`: the phase runs a workload (and does not only load or update).
    pub fn new(options: &Options, runs: bool) -> Result<Self> {
        let bad = |what: &str| Err(Error::invalid(what.to_owned()));
        let layout = Layout::new(options.value_bytes, options.fields)
            .ok_or_else(|| Error::invalid("--value-bytes must be at least --fields: one byte a field"))?;
        if !options.table.is_empty() {
            limits::check_table_name(&options.table)?;
        }
        if !(options.theta > 0.0 && options.theta < 1.0) {
            return bad("--theta must lie between 0 and 1");
        }
        if !(options.share > 0.0 && options.share <= 1.0) {
            return bad("--share must be above 0 and at most 1");
        }
        if options.rate.is_some_and(|rate| !(rate > 0.0 && rate.is_finite())) {
            return bad("--rate must be above 0");
        }
        if options.seconds.is_some_and(|s| !(s > 0.0 && s.is_finite())) {
            return bad("--seconds must be above 0");
        }
        let target = target(options)?;
        if runs && options.workload.scans() && matches!(target, TargetSettings::Resp { hashes: false, .. }) {
            return Err(no_scans());
        }
        let mode = options.mode;
        if matches!(target, TargetSettings::Resp { .. }) && mode != ReadMode::Pda {
            return bad("--mode cannot be chosen over RESP: use --grpc or --embedded");
        }
        let workers = options.workers.map_or_else(
            || std::thread::available_parallelism().map_or(1, usize::from),
            |workers| workers as usize,
        );
        Ok(Self {
            options: options.clone(),
            target,
            layout,
            mode,
            distribution: options.distribution.unwrap_or(options.workload.distribution()),
            deadline: Duration::from_millis(options.deadline_ms),
            workers,
        })
    }

    /// The pace of a phase. The random numbers of `phase` are its own: an update that drew the same ones as the load before
    /// it would write some records again as they are.
    pub fn pace(&self, phase: &str, operations: u64) -> Pace {
        let o = &self.options;
        Pace {
            threads: o.threads as usize,
            operations,
            seconds_max: o.seconds,
            rate: o.rate,
            seed: xxh3_64_with_seed(phase.as_bytes(), o.seed),
            quiet: o.quiet,
        }
    }

    /// The thread's generator of record numbers, of which `existing` exist.
    pub fn chooser(&self, existing: u64) -> Chooser {
        let inserts = self.options.workload.expected_inserts(self.options.operations);
        Chooser::new(self.distribution, self.options.theta, existing, inserts)
    }

    pub fn blind_inserts(&self) -> bool {
        self.options.insert_mode == InsertMode::Put
    }

    /// How many records the update phase rewrites.
    pub fn updated_records(&self) -> u64 {
        ((self.options.records as f64 * self.options.share).round() as u64).clamp(1, self.options.records)
    }

    /// `workload`: None for load and update.
    pub fn parameters(&self, workload: Option<Workload>, operations: u64, share: Option<f64>) -> Parameters {
        let o = &self.options;
        let (target, servers, pnodes) = match &self.target {
            TargetSettings::Grpc { addrs, .. } => ("grpc", addrs.clone(), addrs.len()),
            TargetSettings::Resp { addrs, hashes } => {
                (if *hashes { "resp, hashes" } else { "resp" }, addrs.clone(), addrs.len())
            }
            TargetSettings::Embedded { cluster, pnodes, .. } => {
                let servers = cluster.memtable.iter().chain(&cluster.sstable).map(|s| s.addr.clone());
                ("embedded", servers.collect(), *pnodes)
            }
        };
        let (cache_bytes, coalesce) = match &self.target {
            TargetSettings::Embedded { cache_bytes, coalesce, .. } => (Some(*cache_bytes), Some(*coalesce)),
            _ => (None, None),
        };
        let record_bytes = key(0).len() + self.layout.value_bytes();
        let skewed = workload.is_some() && self.distribution != Distribution::Uniform;
        Parameters {
            workload,
            records: o.records,
            data_bytes: o.records * record_bytes as u64,
            operations,
            threads: o.threads as usize,
            workers: self.workers,
            target,
            servers,
            pnodes,
            mode: self.mode.name(),
            distribution: workload.map(|_| self.distribution),
            theta: skewed.then_some(o.theta),
            share,
            cache: cache_bytes.map(|bytes| bytes > 0),
            cache_bytes,
            coalesce,
            fields: self.layout.fields,
            field_bytes: self.layout.field_bytes,
            table: o.table.clone(),
            seed: o.seed,
            rate: o.rate,
            seconds_max: o.seconds,
            warmup: o.warmup,
            connections: match &self.target {
                TargetSettings::Grpc { connections, .. } => Some(*connections),
                _ => None,
            },
            deadline_ms: o.deadline_ms,
        }
    }
}

fn target(options: &Options) -> Result<TargetSettings> {
    let chosen =
        [!options.grpc.is_empty(), !options.resp.is_empty(), options.embedded].iter().filter(|c| **c).count();
    if chosen > 1 {
        return Err(Error::invalid("choose one of --grpc, --resp and --embedded"));
    }
    let hashes = options.layout == Some(Kept::Hash);
    if hashes && options.resp.is_empty() {
        return Err(Error::invalid("--layout hash needs --resp"));
    }
    if !options.embedded {
        for (flag, given) in [
            ("--cache", options.cache.is_some()),
            ("--cache-bytes", options.cache_bytes.is_some()),
            ("--coalesce", options.coalesce.is_some()),
        ] {
            if given {
                return Err(Error::invalid(format!(
                    "{flag} is for --embedded: a p-node server is configured in its own file"
                )));
            }
        }
    }
    if options.embedded {
        let file = options.cluster.as_ref().ok_or_else(|| {
            Error::invalid(
                "--embedded needs --cluster FILE, for example ./data/dev/cluster.toml of `sextant dev`",
            )
        })?;
        let cache = options.cache.is_none_or(|switch| switch.is_on());
        let cache_bytes = if cache { options.cache_bytes.unwrap_or(CACHE_BYTES_DEFAULT) } else { 0 };
        return Ok(TargetSettings::Embedded {
            cluster: ClusterFile::read(file)?.cluster,
            pnodes: options.pnodes as usize,
            cache_bytes,
            coalesce: options.coalesce.is_none_or(|switch| switch.is_on()),
        });
    }
    if !options.resp.is_empty() {
        if !options.table.is_empty() {
            return Err(Error::invalid("--table cannot be chosen over RESP"));
        }
        return Ok(TargetSettings::Resp { addrs: options.resp.clone(), hashes });
    }
    let addrs = if options.grpc.is_empty() { vec![GRPC_DEFAULT.to_owned()] } else { options.grpc.clone() };
    Ok(TargetSettings::Grpc { addrs, connections: options.connections as usize })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{PhaseArgs, YcsbArgs};

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        ycsb: YcsbArgs,
    }

    fn settings(line: &str) -> Result<Settings> {
        let args = std::iter::once("ycsb").chain(line.split_whitespace());
        let phase = Cli::try_parse_from(args).map_err(|e| Error::invalid(e.to_string()))?.ycsb.phase;
        Settings::new(phase.options(), matches!(phase, PhaseArgs::Run(_) | PhaseArgs::Compare(_)))
    }

    #[test]
    fn the_documented_command_lines_are_understood() {
        let s = settings(
            "run --workload C --records 200000 --operations 500000 --threads 64 --mode nda --distribution uniform \
             --theta 0.5 --grpc a:1,b:2",
        )
        .unwrap();
        assert_eq!(s.mode, ReadMode::Nda);
        assert_eq!(s.distribution, Distribution::Uniform);
        assert!(matches!(&s.target, TargetSettings::Grpc { addrs, .. } if addrs.len() == 2));
        let p = s.parameters(Some(Workload::C), 500_000, None);
        assert_eq!(p.data_bytes, 200_000 * (23 + 1014));
        assert_eq!((p.theta, p.cache, p.coalesce), (None, None, None));

        let s = settings("update --share 0.05 --records 200000").unwrap();
        assert_eq!(s.updated_records(), 10_000);
        let s = settings("run --workload d").unwrap();
        assert_eq!(s.distribution, Distribution::Latest);
        assert!(settings("compare --modes pda,bda --rounds 3 --workload c").is_ok());
    }

    #[test]
    fn contradictions_are_one_clear_line() {
        for (line, expected) in [
            ("run --grpc a:1 --resp b:2", "choose one of"),
            ("run --cache off", "--cache is for --embedded"),
            ("run --embedded", "--embedded needs --cluster"),
            ("run --workload e --resp a:1", "RESP has no command"),
            ("run --layout hash --grpc a:1", "--layout hash needs --resp"),
            ("run --mode bda --resp a:1", "--mode cannot be chosen over RESP"),
            ("run --theta 1", "--theta must lie"),
            ("update --share 0", "--share must be"),
            ("load --value-bytes 5", "--value-bytes must be at least --fields"),
            ("run --embedded --cluster /nonexistent.toml", "/nonexistent.toml: No such file"),
        ] {
            let message = settings(line).unwrap_err().message;
            assert!(message.contains(expected), "{line}: {message}");
            assert_eq!(message.lines().count(), 1, "{line}: {message}");
        }
        assert!(settings("load --resp a:1 --workload e").is_ok(), "loading needs no scans");
        assert!(settings("run --resp a:1 --workload e --layout hash").is_ok(), "an index can be scanned");
    }
}
