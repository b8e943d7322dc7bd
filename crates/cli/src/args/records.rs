//! Records: `get`, `mget`, `put`, `insert`, `delete`, `cas`, `scan`.

use std::ffi::OsString;

use clap::Args;
use sextant_client::ReadMode;
use sextant_ycsb::read_modes;

use super::TableArgs;
use super::backup::snapshot_id;

#[derive(Debug, Args)]
pub struct GetArgs {
    pub key: OsString,
    /// How the p-node finds the record; every mode is linearizable
    #[arg(long, default_value = "pda", ignore_case = true, value_parser = read_modes())]
    pub mode: ReadMode,
    /// Print exactly the value's bytes, without a line feed behind them
    #[arg(long)]
    pub no_newline: bool,
    /// Print the version on standard error
    #[arg(long)]
    pub seq: bool,
    #[command(flatten)]
    pub table: TableArgs,
}

#[derive(Debug, Args)]
pub struct MgetArgs {
    #[arg(required = true, value_name = "KEY")]
    pub keys: Vec<OsString>,
    /// How the p-node finds the records; every mode is linearizable
    #[arg(long, default_value = "pda", ignore_case = true, value_parser = read_modes())]
    pub mode: ReadMode,
    #[command(flatten)]
    pub table: TableArgs,
}

#[derive(Debug, Args)]
pub struct PutArgs {
    pub key: OsString,
    /// The value; `--stdin` reads it from standard input instead
    #[arg(required_unless_present = "stdin", conflicts_with = "stdin", allow_negative_numbers = true)]
    pub value: Option<OsString>,
    /// Read the value from standard input
    #[arg(long)]
    pub stdin: bool,
    #[command(flatten)]
    pub table: TableArgs,
}

#[derive(Debug, Args)]
pub struct DeleteArgs {
    pub key: OsString,
    /// Fail if the key does not exist (costs a check)
    #[arg(long)]
    pub check: bool,
    #[command(flatten)]
    pub table: TableArgs,
}

/// `cas KEY EXPECTED NEW`, `cas KEY NEW --seq N`, `cas KEY NEW --absent`; with --delete instead of NEW the record is
/// deleted.
#[derive(Debug, Args)]
pub struct CasArgs {
    pub key: OsString,
    /// The expected value; with --seq or --absent the new value
    #[arg(value_name = "EXPECTED", allow_negative_numbers = true)]
    pub first: Option<OsString>,
    /// The new value
    #[arg(value_name = "NEW", allow_negative_numbers = true)]
    pub second: Option<OsString>,
    /// Expect this version instead of a value
    #[arg(long, value_name = "N", conflicts_with = "absent", value_parser = clap::value_parser!(u64).range(1..))]
    pub seq: Option<u64>,
    /// Expect that the key does not exist
    #[arg(long)]
    pub absent: bool,
    /// Delete the record instead of writing a new value
    #[arg(long)]
    pub delete: bool,
    #[command(flatten)]
    pub table: TableArgs,
}

#[derive(Debug, Args)]
pub struct ScanArgs {
    /// First key of the range (inclusive)
    #[arg(long, value_name = "KEY", conflicts_with = "prefix")]
    pub start: Option<OsString>,
    /// End of the range (exclusive)
    #[arg(long, value_name = "KEY", conflicts_with = "prefix")]
    pub end: Option<OsString>,
    /// Only keys that begin with this
    #[arg(value_name = "PREFIX", conflicts_with = "prefix")]
    pub prefix_argument: Option<OsString>,
    /// Only keys that begin with this
    #[arg(long, value_name = "PREFIX")]
    pub prefix: Option<OsString>,
    /// From the largest key to the smallest
    #[arg(long)]
    pub reverse: bool,
    /// At most so many records; 0: all
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub limit: u64,
    /// Print keys only
    #[arg(long)]
    pub keys_only: bool,
    /// Of what a snapshot has (`sextant snapshot open`)
    #[arg(long, value_name = "ID", value_parser = snapshot_id)]
    pub snapshot: Option<u64>,
    #[command(flatten)]
    pub table: TableArgs,
}
