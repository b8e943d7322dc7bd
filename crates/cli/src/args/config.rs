//! What servers need before they start, and what they say of themselves: `config`, `doctor`, `health`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::TlsArgs;

#[derive(Debug, Args)]
pub struct ConfigArgs {
    #[command(subcommand)]
    pub command: ConfigCommand,
}

#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Write the files of a new cluster: one that all servers share, and one for each server
    Init(ConfigInitArgs),
    /// Check the files of a cluster together
    Check(ConfigCheckArgs),
}

#[derive(Debug, Args)]
pub struct ConfigInitArgs {
    /// Hosts of the memtable servers: three, or five to survive two failures
    #[arg(long, value_name = "HOST[:PORT][@ZONE],..", required = true, value_delimiter = ',')]
    pub memtable: Vec<String>,
    /// Hosts of the sstable servers: three, or more; the copies of a table are spread over their zones
    #[arg(long, value_name = "HOST[:PORT][@ZONE],..", required = true, value_delimiter = ',')]
    pub sstable: Vec<String>,
    /// Hosts of the p-nodes
    #[arg(long, value_name = "HOST[:PORT],..", required = true, value_delimiter = ',')]
    pub pnode: Vec<String>,
    /// Name of the cluster
    #[arg(long, value_name = "NAME", default_value = "sextant")]
    pub id: String,
    /// Partitions, fixed when the cluster is first started
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub partitions: u32,
    /// Let servers whose hosts have names listen on IPv6, too (`[::]`); without: on IPv4
    #[arg(long)]
    pub ipv6: bool,
    /// Encrypt all connections, with the certificates (`sextant cert`) that the servers find here, on their hosts
    #[arg(long, value_name = "DIR")]
    pub tls: Option<PathBuf>,
    /// Where the servers keep their data, on their hosts
    #[arg(long, value_name = "DIR", default_value = "/var/lib/sextant")]
    pub data: PathBuf,
    /// Where the files go
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub out: PathBuf,
}

#[derive(Debug, Args)]
pub struct ConfigCheckArgs {
    /// Configuration files of servers of one cluster
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// With the SEXTANT_* environment variables over each file, as a server takes them: for one server's file, where it runs
    #[arg(long)]
    pub env: bool,
}

#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Configuration of a server on this host, with SEXTANT_* environment variables over it; without, only the machine is checked
    #[arg(long, value_name = "FILE")]
    pub config: Vec<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct HealthArgs {
    /// HTTP address of the server
    #[arg(long, value_name = "ADDR", required_unless_present = "config", conflicts_with = "config")]
    pub server: Option<String>,
    /// The configuration of a server on this host, which says its HTTP address
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Only whether it lives, not whether it is ready
    #[arg(long)]
    pub live: bool,
    /// How long to wait for the answer, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 2000, value_parser = clap::value_parser!(u64).range(1..))]
    pub deadline_ms: u64,
    #[command(flatten)]
    pub tls: TlsArgs,
}
