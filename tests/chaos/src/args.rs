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
pub struct HostsArgs {
    /// Only these faults: kill, pause, cut, move, wipe, restart
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
    /// Keep the history in this directory; default: a temporary one, kept on failure
    #[arg(long, value_name = "DIR")]
    pub keep: Option<PathBuf>,
    /// The repository; default: the working directory
    #[arg(long, value_name = "DIR")]
    pub root: Option<PathBuf>,
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
