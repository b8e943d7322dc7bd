//! What operators do: `status`, `admin`.

use clap::{Args, Subcommand};
use sextant_client::LoadName;

use super::Connection;

#[derive(Debug, Args)]
pub struct StatusArgs {
    /// Print the whole document as JSON
    #[arg(long)]
    pub json: bool,
    /// Print everything in the document, readable
    #[arg(long, conflicts_with = "json")]
    pub full: bool,
    #[command(flatten)]
    pub connection: Connection,
}

#[derive(Debug, Args)]
pub struct AdminArgs {
    #[command(subcommand)]
    pub command: AdminCommand,
}

#[derive(Debug, Subcommand)]
pub enum AdminCommand {
    /// End the active memtables
    Freeze(MaintenanceArgs),
    /// Make what is in memory durable as SSTables; returns when it is
    Flush(MaintenanceArgs),
    /// Compact the SSTables; returns when it is done
    Compact(MaintenanceArgs),
    /// Change what the replicas of each partition agree on: lease lengths, memory limit
    Configure(ConfigureArgs),
    /// Empty sstable servers: their tables move to others; returns when that is decided
    Drain(DrainArgs),
    /// Move the leadership of a partition; its writes wait for about half a second
    Transfer(TransferArgs),
    /// Change which memtable servers vote in a partition; reads and writes go on
    Voters(VotersArgs),
    /// After an upgrade of all memtable servers: let them write what only the new version reads
    RaiseFormat(RaiseFormatArgs),
    /// All memtable servers have lost their disks: rebuild the partitions from the sstable servers' tables
    Recover(RecoverArgs),
}

#[derive(Debug, Args)]
#[group(id = "drained", required = true, multiple = false, args = ["sstable", "none"])]
pub struct DrainArgs {
    /// All sstable servers that are to hold no tables; others are filled again
    #[arg(long, value_name = "NODE,...", value_delimiter = ',', value_parser = clap::value_parser!(u64).range(1..))]
    pub sstable: Vec<u64>,
    /// None is to be empty (any more)
    #[arg(long)]
    pub none: bool,
    #[command(flatten)]
    pub connection: Connection,
}

#[derive(Debug, Args)]
pub struct RecoverArgs {
    /// Do it; without this the command only says what it would do, and what would be missing
    #[arg(long)]
    pub yes: bool,
    /// sstable servers that are gone for good, with what only they had
    #[arg(long, value_name = "NODE,...", value_delimiter = ',', value_parser = clap::value_parser!(u64).range(1..))]
    pub without_sstable: Vec<u64>,
    /// Go on although flushed records are missing
    #[arg(long)]
    pub accept_loss: bool,
    /// Bulk loads that were committed, of those of which nothing tells (`UNDECIDED`)
    #[arg(long, value_name = "LOAD,...", value_delimiter = ',')]
    pub with_load: Vec<LoadName>,
    /// And those that were not: what their SSTables have is lost
    #[arg(long, value_name = "LOAD,...", value_delimiter = ',')]
    pub without_load: Vec<LoadName>,
    #[command(flatten)]
    pub connection: Connection,
}

#[derive(Debug, Args)]
pub struct RaiseFormatArgs {
    /// The format; default: the newest that the leaders can read
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub to: Option<u32>,
    /// Only say which format there is, and who cannot read a newer one
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub connection: Connection,
}

#[derive(Debug, Args)]
pub struct TransferArgs {
    #[arg(long, value_name = "P")]
    pub partition: u32,
    /// Memtable server that is to lead
    #[arg(long, value_name = "NODE", value_parser = clap::value_parser!(u64).range(1..))]
    pub to: u64,
    #[command(flatten)]
    pub connection: Connection,
}

#[derive(Debug, Args)]
pub struct VotersArgs {
    #[arg(long, value_name = "P")]
    pub partition: u32,
    /// All memtable servers that are to vote: those that are not named are removed, new ones get the log first
    #[arg(long, value_name = "NODE,...", required = true, value_delimiter = ',', value_parser = clap::value_parser!(u64).range(1..))]
    pub voters: Vec<u64>,
    #[command(flatten)]
    pub connection: Connection,
}

#[derive(Debug, Args)]
pub struct MaintenanceArgs {
    /// Only this table; default: all
    #[arg(long, value_name = "NAME")]
    pub table: Option<String>,
    #[command(flatten)]
    pub connection: Connection,
}

#[derive(Debug, Args)]
#[group(id = "changes", required = true, multiple = true, args = ["mode", "lease_ms", "leader_lease_ms", "drift_ppm", "memory_bytes"])]
pub struct ConfigureArgs {
    /// How leases are kept: holders acknowledge (ack), or leases are short and writes wait (timed)
    #[arg(long, value_name = "MODE", value_parser = ["ack", "timed"])]
    pub mode: Option<String>,
    /// Longest lease of a query node, in milliseconds
    #[arg(long, value_name = "N")]
    pub lease_ms: Option<u64>,
    /// How long a leader may serve after a majority answered it, in milliseconds
    #[arg(long, value_name = "N")]
    pub leader_lease_ms: Option<u64>,
    /// Bound on the drift of clocks, in parts per million
    #[arg(long, value_name = "N")]
    pub drift_ppm: Option<u64>,
    /// Memory for what is not yet flushed, of each partition on every replica
    #[arg(long, value_name = "BYTES")]
    pub memory_bytes: Option<u64>,
    #[command(flatten)]
    pub connection: Connection,
}
