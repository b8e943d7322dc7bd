//! Servers, and clusters of them: `dev`, `memtable`, `sstable`, `pnode`.

use std::path::PathBuf;

use clap::Args;

#[derive(Debug, Args)]
pub struct DevArgs {
    /// Data directory; a cluster that is there already is started again
    #[arg(long, value_name = "DIR", default_value = "./data/dev")]
    pub data: PathBuf,
    /// Partitions, fixed when the directory is first used [default: 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub partitions: Option<u32>,
    /// Memtable servers, fixed when the directory is first used [default: 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub memtable: Option<u16>,
    /// sstable servers, fixed when the directory is first used [default: 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub sstable: Option<u16>,
    /// p-nodes
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub pnodes: u16,
    /// First RESP port, one up for each further p-node; 0: free ports, then kept
    #[arg(long, value_name = "PORT", default_value_t = 6380)]
    pub resp: u16,
    /// First gRPC port, one up for each further p-node; 0: free ports, then kept
    #[arg(long, value_name = "PORT", default_value_t = 7400)]
    pub grpc: u16,
    /// First HTTP port: p-nodes first, then memtable servers, then sstable servers; 0: free ports, then kept
    #[arg(long, value_name = "PORT", default_value_t = 7480)]
    pub http: u16,
    /// Run each server as a process of its own
    #[arg(long)]
    pub processes: bool,
    /// Print one line of JSON when ready, and nothing else on standard output
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct ServerArgs {
    /// Configuration (TOML); SEXTANT_* environment variables go over it
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// Start although others than this machine can reach it and nobody has to show who they are
    #[arg(long)]
    pub insecure: bool,
}
