//! The command line.

use std::path::PathBuf;

use clap::Parser;
use sextant_common::error::{Error, Result};

use crate::load::{Load, Shape};
use crate::servers::Kind;

/// Compares Sextant with Redis and etcd on this machine: the same clients, taking turns. Wants an otherwise idle machine.
#[derive(Clone, Debug, Parser)]
#[command(name = "peers", max_term_width = 120)]
pub struct Args {
    /// Rounds; what is reported is the median [default: 5, quick: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub rounds: Option<u16>,
    /// How long each server is driven with each load [default: 2, quick: 0.3]
    #[arg(long, value_name = "N", value_parser = seconds)]
    pub seconds: Option<f64>,
    /// Records of 100 bytes that are there before [default: 100000, quick: 2000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    pub records: Option<u64>,
    /// Only these servers
    #[arg(long, value_name = "NAME,..", value_delimiter = ',')]
    pub only: Vec<Kind>,
    /// Only these loads
    #[arg(long, value_name = "NAME,..", value_delimiter = ',')]
    pub loads: Vec<Load>,
    /// Numbers of clients
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_values_t = [1, 64, 256], value_parser = clap::value_parser!(u16).range(1..))]
    pub clients: Vec<u16>,
    /// How many operations a client has under way at once
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_values_t = [1, 16], value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub pipeline: Vec<u16>,
    /// Connections that all clients of an etcd member share, at most; gRPC multiplexes, and etcd is fastest with few
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    pub etcd_connections: u16,
    /// Clients go to all p-nodes and all members in turn, not to the first p-node and to etcd's leader only
    #[arg(long)]
    pub spread: bool,
    /// Directory on the disk (or tmpfs) that all data goes to; default: that of temporary files
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Where the page and its JSON go [default: docs/benchmarks, quick: target/peers]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// A smoke run: shows that it works, measures nothing
    #[arg(long)]
    pub quick: bool,
    /// Install nothing; what is missing is left out
    #[arg(long)]
    pub no_install: bool,
    /// No runs of redis-benchmark
    #[arg(long)]
    pub no_redis_benchmark: bool,
    /// The server binary; default: `sextant` beside this program
    #[arg(long, value_name = "FILE")]
    pub binary: Option<PathBuf>,
}

/// Long enough for the ticks that the kernel counts CPU time in.
fn seconds(text: &str) -> std::result::Result<f64, String> {
    text.parse().ok().filter(|n| (0.1..=3600.0).contains(n)).ok_or_else(|| "0.1 to 3600".to_owned())
}

impl Args {
    pub fn rounds(&self) -> usize {
        self.rounds.map_or(if self.quick { 1 } else { 5 }, usize::from)
    }

    pub fn seconds(&self) -> f64 {
        self.seconds.unwrap_or(if self.quick { 0.3 } else { 2.0 })
    }

    pub fn records(&self) -> u64 {
        self.records.unwrap_or(if self.quick { 2_000 } else { 100_000 })
    }

    /// A smoke run does not write over measurements.
    pub fn out(&self) -> PathBuf {
        let default = if self.quick { "target/peers" } else { "docs/benchmarks" };
        self.out.clone().unwrap_or_else(|| default.into())
    }

    pub fn loads(&self) -> Vec<Load> {
        Load::ALL.into_iter().filter(|load| self.loads.is_empty() || self.loads.contains(load)).collect()
    }

    pub fn shapes(&self) -> Vec<Shape> {
        let clients = |pipeline: u16| {
            self.clients
                .iter()
                .map(move |clients| Shape { clients: usize::from(*clients), pipeline: usize::from(pipeline) })
        };
        self.pipeline.iter().flat_map(|pipeline| clients(*pipeline)).collect()
    }

    pub fn sextant(&self) -> Result<PathBuf> {
        let beside = || Some(std::env::current_exe().ok()?.with_file_name("sextant"));
        self.binary.clone().or_else(beside).ok_or_else(|| Error::invalid("where is sextant? --binary FILE"))
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn what_is_not_said_is_measured_and_a_smoke_run_writes_elsewhere() {
        let args = Args::parse_from(["peers"]);
        assert_eq!((args.rounds(), args.shapes().len(), args.loads().len()), (5, 6, Load::ALL.len()));
        assert_eq!(args.out(), PathBuf::from("docs/benchmarks"));
        let args = Args::parse_from(["peers", "--quick", "--only", "redis,etcd", "--clients", "8"]);
        assert_eq!((args.rounds(), args.only.len(), args.shapes().len()), (1, 2, 2));
        assert_eq!(args.out(), PathBuf::from("target/peers"));
        assert!(Args::try_parse_from(["peers", "--seconds", "0"]).is_err());
    }
}
