//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

/// Breaks clusters of real processes on purpose.
#[derive(Debug, Parser)]
#[command(name = "sextant-chaos", max_term_width = 120)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Break a cluster under load in random ways, and check every answer
    Chaos(ChaosArgs),
    /// Measure how long service is gone for each kind of fault
    Failover(FailoverArgs),
    /// Overload a cluster with large values, pipelines, bulk reads and scans, and watch what other clients notice
    Storm(StormArgs),
    /// Restart one server after the other under load; any error that a client sees is a failure
    Rolling(RollingArgs),
    /// Break the containers of deploy/compose.yaml one after the other under load, and check every answer; needs Docker and
    /// the image (deploy/docker/build)
    Hosts(HostsArgs),
}

#[derive(Clone, Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct HostsArgs {
    #[command(subcommand)]
    pub command: Option<HostsCommand>,
    /// Only these faults: kill, pause, cut, move, wipe, restart
    #[arg(long, value_name = "FAULT,..", value_delimiter = ',')]
    pub only: Vec<String>,
    /// Only these servers, as compose.yaml names them
    #[arg(long, value_name = "SERVER,..", value_delimiter = ',')]
    pub servers: Vec<String>,
    /// Three faults of three servers, held for a second
    #[arg(long, conflicts_with_all = ["only", "servers", "hold"])]
    pub short: bool,
    /// How long each fault is held, in seconds
    #[arg(long, value_name = "S", default_value_t = 4.0)]
    pub hold: f64,
    /// Every server's clocks are off, within what the servers are told; needs --binary, one that is linked with the C library
    #[arg(long, requires = "binary")]
    pub clocks: bool,
    /// Write the table to this file
    #[arg(long, value_name = "FILE")]
    pub markdown: Option<PathBuf>,
    #[command(flatten)]
    pub cluster: ContainersArgs,
}

#[derive(Clone, Debug, Subcommand)]
pub enum HostsCommand {
    /// Spread the containers over two zones with a delay between them, and compare the modes of reading in both
    Zones(ZonesArgs),
}

/// Which containers.
#[derive(Clone, Debug, Args)]
pub struct ContainersArgs {
    /// With TLS and certificates on every port
    #[arg(long)]
    pub tls: bool,
    /// An image of this binary and the libraries that it is linked with; default: sextant:latest
    #[arg(long, value_name = "FILE")]
    pub binary: Option<PathBuf>,
    /// Keep what the run writes in this directory; default: a temporary one, kept on failure
    #[arg(long, value_name = "DIR")]
    pub keep: Option<PathBuf>,
    /// The repository; default: the working directory
    #[arg(long, value_name = "DIR")]
    pub root: Option<PathBuf>,
}

#[derive(Clone, Debug, Args)]
pub struct ZonesArgs {
    /// Between the zones
    #[arg(long, value_name = "MS", default_value_t = 5.0)]
    pub round_trip_ms: f64,
    /// Up to so much more for each frame
    #[arg(long, value_name = "MS", default_value_t = 0.0)]
    pub jitter_ms: f64,
    /// Of the frames, this share is lost
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    pub loss: f64,
    /// Of 1 kB each
    #[arg(long, value_name = "N", default_value_t = 50_000)]
    pub records: u64,
    /// Closed-loop clients of the p-node that is measured
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_value = "64,4")]
    pub threads: Vec<u32>,
    /// How often each is measured
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub rounds: u32,
    /// Each time, in each mode
    #[arg(long, value_name = "S", default_value_t = 3.0)]
    pub seconds: f64,
    /// p-nodes keep no records: what is in an SSTable is read there each time
    #[arg(long)]
    pub no_cache: bool,
    /// Write the tables to this file
    #[arg(long, value_name = "FILE")]
    pub markdown: Option<PathBuf>,
    #[command(flatten)]
    pub cluster: ContainersArgs,
}

#[derive(Clone, Debug, Args)]
pub struct ChaosArgs {
    /// How long faults are injected, in minutes; healing and checking come on top
    #[arg(long, value_name = "N", default_value_t = 10.0)]
    pub minutes: f64,
    /// Seed of faults and load; default: random, and printed
    #[arg(long, value_name = "S")]
    pub seed: Option<u64>,
    /// Only these kinds of faults, by the names that the table at the end has
    #[arg(long, value_name = "KIND,..", value_delimiter = ',')]
    pub only: Vec<String>,
    /// No memtable server loses its memory (emptied directories, older copies of them)
    #[arg(long)]
    pub no_wipes: bool,
    /// The mode of leases and the bound on drift are not changed
    #[arg(long)]
    pub no_modes: bool,
    /// Keep everything (history, logs, data) in this directory; default: a temporary one, kept on failure
    #[arg(long, value_name = "DIR")]
    pub keep: Option<PathBuf>,
    /// The server binary; default: `sextant` beside this program
    #[arg(long, value_name = "FILE")]
    pub binary: Option<PathBuf>,
}

#[derive(Clone, Debug, Args)]
pub struct FailoverArgs {
    /// Runs of each fault
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub runs: usize,
    /// Only these faults, by their names in the table
    #[arg(long, value_name = "NAME,..", value_delimiter = ',')]
    pub only: Vec<String>,
    /// Write every silence of every run as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write the tables as Markdown
    #[arg(long, value_name = "FILE")]
    pub markdown: Option<PathBuf>,
    /// Seed of the load's keys; default: random, and printed
    #[arg(long, value_name = "S")]
    pub seed: Option<u64>,
    /// Keep logs and data in this directory; default: a temporary one
    #[arg(long, value_name = "DIR")]
    pub keep: Option<PathBuf>,
    /// The server binary; default: `sextant` beside this program
    #[arg(long, value_name = "FILE")]
    pub binary: Option<PathBuf>,
}

#[derive(Clone, Debug, Args)]
pub struct StormArgs {
    /// Only these storms, by their names: large-sets, pipelines, bulk-reads, scans
    #[arg(long, value_name = "NAME,..", value_delimiter = ',')]
    pub only: Vec<String>,
    /// Write the table as Markdown
    #[arg(long, value_name = "FILE")]
    pub markdown: Option<PathBuf>,
    /// Keep logs and data in this directory; default: a temporary one, kept on failure
    #[arg(long, value_name = "DIR")]
    pub keep: Option<PathBuf>,
    /// The server binary; default: `sextant` beside this program
    #[arg(long, value_name = "FILE")]
    pub binary: Option<PathBuf>,
}

#[derive(Clone, Debug, Args)]
pub struct RollingArgs {
    /// Records that are loaded before
    #[arg(long, value_name = "N", default_value_t = 50_000)]
    pub records: u64,
    /// Write the table as Markdown
    #[arg(long, value_name = "FILE")]
    pub markdown: Option<PathBuf>,
    /// Keep logs and data in this directory; default: a temporary one, kept on failure
    #[arg(long, value_name = "DIR")]
    pub keep: Option<PathBuf>,
    /// The server binary; default: `sextant` beside this program
    #[arg(long, value_name = "FILE")]
    pub binary: Option<PathBuf>,
}
