//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::hosts::Shape;
use crate::units;

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
    Hosts(Box<HostsArgs>),
}

#[derive(Clone, Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct HostsArgs {
    #[command(subcommand)]
    pub command: Option<HostsCommand>,
    #[command(flatten)]
    pub faults: FaultsArgs,
    /// Three faults of three servers, held for a second
    #[arg(long, conflicts_with_all = ["only", "servers", "hold"])]
    pub short: bool,
    /// Every server's clocks are off, within what the servers are told
    #[arg(long)]
    pub clocks: bool,
    #[command(flatten)]
    pub cluster: ContainersArgs,
}

/// What is broken, and for how long.
#[derive(Clone, Debug, Args)]
pub struct FaultsArgs {
    /// Only these faults: kill, pause, cut, move, wipe, restart; over zones also zone, leaders
    #[arg(long, value_name = "FAULT,..", value_delimiter = ',')]
    pub only: Vec<String>,
    /// Only these servers, as compose.yaml names them
    #[arg(long, value_name = "SERVER,..", value_delimiter = ',')]
    pub servers: Vec<String>,
    /// How long each fault is held, in seconds
    #[arg(long, value_name = "S", default_value_t = 4.0)]
    pub hold: f64,
    /// Write the table to this file
    #[arg(long, value_name = "FILE")]
    pub markdown: Option<PathBuf>,
}

#[derive(Clone, Debug, Subcommand)]
pub enum HostsCommand {
    /// Spread the containers over two zones with a delay between them, and compare the modes of reading in both
    Zones(ZonesArgs),
    /// Break them there: each container, the line between the zones, and that line while zone B leads
    ZoneFaults(ZoneFaultsArgs),
}

#[derive(Clone, Debug, Args)]
pub struct ZoneFaultsArgs {
    #[command(flatten)]
    pub faults: FaultsArgs,
    #[command(flatten)]
    pub line: LineArgs,
    #[command(flatten)]
    pub cluster: ContainersArgs,
}

/// What frames go through, between zones and within.
#[derive(Clone, Debug, Args)]
pub struct LineArgs {
    /// Between the zones, there and back
    #[arg(long, value_name = "TIME", default_value = "5ms", value_parser = units::nanoseconds)]
    pub round_trip: u64,
    /// How far the delay of a frame is from half of that
    #[arg(long, value_name = "TIME", default_value = "0ms", value_parser = units::nanoseconds)]
    pub jitter: u64,
    /// How delays are spread
    #[arg(long, value_name = "SHAPE", default_value = "uniform")]
    pub shape: Shape,
    /// Of the frames between the zones, this share is lost
    #[arg(long, value_name = "SHARE", default_value = "0%", value_parser = units::share)]
    pub loss: f64,
    /// Of them, this share overtakes all that are under way
    #[arg(long, value_name = "SHARE", default_value = "0%", value_parser = units::share)]
    pub reorder: f64,
    /// Between two servers of a zone, there and back; each has a cable of its own then
    #[arg(long, value_name = "TIME", default_value = "0ms", value_parser = units::nanoseconds)]
    pub within_round_trip: u64,
    /// As --jitter, between two servers of a zone
    #[arg(long, value_name = "TIME", default_value = "0ms", value_parser = units::nanoseconds)]
    pub within_jitter: u64,
    /// As --loss, between two servers of a zone
    #[arg(long, value_name = "SHARE", default_value = "0%", value_parser = units::share)]
    pub within_loss: f64,
    /// Seed of all that; default: random, and printed
    #[arg(long, value_name = "S")]
    pub line_seed: Option<u64>,
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
    #[command(flatten)]
    pub line: LineArgs,
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
