//! The command line of `sextant ycsb`.

use std::path::PathBuf;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand, ValueEnum};
use sextant_common::operation::ReadMode;

use crate::distribution::{Distribution, THETA_DEFAULT};
use crate::workload::Workload;

/// Load generator with YCSB's workloads, keys and fields.
///
/// A thread is a closed-loop client with one operation at a time (a tokio task, not an OS thread).
#[derive(Clone, Debug, Args)]
pub struct YcsbArgs {
    #[command(subcommand)]
    pub phase: PhaseArgs,
}

#[derive(Clone, Debug, Subcommand)]
pub enum PhaseArgs {
    /// Insert the records 0 to --records.
    Load(Options),
    /// Run a workload's mix of operations on loaded records.
    Run(Options),
    /// Rewrite a share of the records, chosen uniformly, each once.
    Update(Options),
    /// Run a workload in several read modes, alternating, and compare the medians.
    Compare(CompareOptions),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    On,
    Off,
}

impl Switch {
    pub fn is_on(self) -> bool {
        self == Switch::On
    }
}

/// The read modes as values of an option.
pub fn read_modes() -> impl TypedValueParser<Value = ReadMode> {
    let value = |mode: ReadMode| {
        PossibleValue::new(mode.name()).help(match mode {
            ReadMode::Pda => "Filters of both tiers",
            ReadMode::Bda => "Filters of SSTables only",
            ReadMode::Nda => "No filters",
        })
    };
    // The case does not matter to the parser if it does not matter to the option.
    PossibleValuesParser::new(ReadMode::ALL.map(value))
        .try_map(|name| name.to_lowercase().parse::<ReadMode>())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum InsertMode {
    /// Checked: the record must not exist.
    Insert,
    /// Blind: overwrites what is there, so that a load can be repeated.
    Put,
}

/// How a record is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Kept {
    /// As one value.
    Value,
    /// As a hash, with an index of all keys: as YCSB's Redis binding does.
    Hash,
}

#[derive(Clone, Debug, Args)]
pub struct Options {
    /// YCSB's workload a to f
    #[arg(long, default_value = "a", ignore_case = true)]
    pub workload: Workload,
    /// How many records the load phase writes
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub records: u64,
    /// How many operations the run phase does
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub operations: u64,
    /// Ends the phase after so many seconds, whatever is left
    #[arg(long, value_name = "S")]
    pub seconds: Option<f64>,
    /// Closed-loop clients, one operation at a time each
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub threads: u32,
    /// OS threads of the generator; default: one a core
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub workers: Option<u32>,
    /// Read mode (grpc and embedded)
    #[arg(long, default_value = "pda", ignore_case = true, value_parser = read_modes())]
    pub mode: ReadMode,
    /// Which records are touched; default: the workload's own
    #[arg(long, ignore_case = true)]
    pub distribution: Option<Distribution>,
    /// Skew of zipfian and latest, between 0 and 1
    #[arg(long, default_value_t = THETA_DEFAULT)]
    pub theta: f64,
    /// Share of the records that the update phase rewrites
    #[arg(long, default_value_t = 0.05)]
    pub share: f64,
    /// Record cache of the embedded p-nodes [default: on]
    #[arg(long, value_name = "on|off", ignore_case = true)]
    pub cache: Option<Switch>,
    /// Size of the record cache of each embedded p-node, in bytes [default: 268435456]
    #[arg(long, value_name = "BYTES")]
    pub cache_bytes: Option<u64>,
    /// Whether embedded p-nodes put concurrent requests to a server into one message [default: on]
    #[arg(long, value_name = "on|off", ignore_case = true)]
    pub coalesce: Option<Switch>,
    /// Bytes of a record's fields together
    #[arg(long, value_name = "BYTES", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=8_000_000))]
    pub value_bytes: u32,
    /// Fields of a record
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u8).range(1..))]
    pub fields: u8,
    /// How the load phase writes
    #[arg(long, default_value = "insert")]
    pub insert_mode: InsertMode,
    /// Table; default: the default table
    #[arg(long, default_value = "")]
    pub table: String,
    /// The same seed chooses the same records
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Offers so many operations per second, whatever the answers take; latencies count from when an operation was due
    #[arg(long, value_name = "OPS")]
    pub rate: Option<f64>,
    /// Operations before the measured ones, with the same mix
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub warmup: u64,
    /// p-nodes to talk to over gRPC [default: 127.0.0.1:7400]
    #[arg(long, value_name = "ADDR,..", value_delimiter = ',')]
    pub grpc: Vec<String>,
    /// p-nodes to talk to over RESP
    #[arg(long, value_name = "ADDR,..", value_delimiter = ',')]
    pub resp: Vec<String>,
    /// How records are kept (hash: with resp) [default: value]
    #[arg(long)]
    pub layout: Option<Kept>,
    /// Put p-nodes into the generator
    #[arg(long)]
    pub embedded: bool,
    /// How many embedded p-nodes
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub pnodes: u32,
    /// The cluster of the embedded p-nodes: a file with a [cluster] section, such as DATA/cluster.toml of `sextant dev`
    #[arg(long, value_name = "FILE")]
    pub cluster: Option<PathBuf>,
    /// HTTP/2 connections to each p-node (grpc)
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub connections: u32,
    /// Deadline of each operation, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub deadline_ms: u64,
    /// Writes the results and all parameters to a file
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// No progress bar
    #[arg(long)]
    pub quiet: bool,
}

#[derive(Clone, Debug, Args)]
pub struct CompareOptions {
    /// The modes to compare; ratios are those of the first to each other
    #[arg(
        long,
        value_name = "MODE,..",
        value_delimiter = ',',
        default_value = "pda,bda,nda",
        ignore_case = true,
        value_parser = read_modes()
    )]
    pub modes: Vec<ReadMode>,
    /// How often each mode is run
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,
    /// Skip reading every record once in every mode before the first round
    #[arg(long)]
    pub cold: bool,
    /// HTTP addresses whose /metrics are read before and after [default: those of the dev cluster of --cluster]
    #[arg(long, value_name = "ADDR,..", value_delimiter = ',')]
    pub metrics: Vec<String>,
    #[command(flatten)]
    pub options: Options,
}

impl PhaseArgs {
    pub fn options(&self) -> &Options {
        match self {
            PhaseArgs::Load(options) | PhaseArgs::Run(options) | PhaseArgs::Update(options) => options,
            PhaseArgs::Compare(compare) => &compare.options,
        }
    }

    pub fn name(&self) -> &'static str {
        match self {
            PhaseArgs::Load(_) => "load",
            PhaseArgs::Run(_) => "run",
            PhaseArgs::Update(_) => "update",
            PhaseArgs::Compare(_) => "compare",
        }
    }
}

impl YcsbArgs {
    /// OS threads that the runtime of the generator should have; `None`: one a core.
    pub fn workers(&self) -> Option<usize> {
        self.phase.options().workers.map(|n| n as usize)
    }
}
