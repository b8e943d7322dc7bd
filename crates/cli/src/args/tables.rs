//! Tables, and what is loaded into them: `create-table`, `alter-table`, `drop-table`, `load`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use sextant_common::manifest::Compression;

use super::{Connection, TableArgs};

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub enum BlockCompression {
    None,
    #[default]
    Lz4,
    Zstd,
}

impl From<BlockCompression> for Compression {
    fn from(compression: BlockCompression) -> Self {
        match compression {
            BlockCompression::None => Compression::None,
            BlockCompression::Lz4 => Compression::Lz4,
            BlockCompression::Zstd => Compression::Zstd,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LoadFormat {
    Csv,
    Tsv,
    Jsonl,
}

#[derive(Debug, Args)]
pub struct LoadArgs {
    /// Records; `-`: standard input
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// csv, tsv: key, value and perhaps a lifetime in ms. jsonl: objects with `key`, `value` and perhaps `ttl_ms` [default: by
    /// the file's name]
    #[arg(long, value_enum)]
    pub format: Option<LoadFormat>,
    /// Keys and values are in base64
    #[arg(long)]
    pub base64: bool,
    /// Fail if two lines have the same key, instead of taking the last one
    #[arg(long)]
    pub refuse_duplicates: bool,
    /// Go on with a load of this file that was broken off
    #[arg(long)]
    pub resume: bool,
    /// Memory for sorting, in MiB; what does not fit goes to files
    #[arg(long, value_name = "MIB", default_value_t = 256, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=1_048_576))]
    pub memory: usize,
    /// Where these files go: they need as much room as the records twice [default: the system's]
    #[arg(long, value_name = "DIR")]
    pub tmp: Option<PathBuf>,
    /// Partitions that are sent to at a time
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=64))]
    pub parallel: usize,
    /// No progress bar
    #[arg(long)]
    pub quiet: bool,
    #[command(flatten)]
    pub table: TableArgs,
}

#[derive(Debug, Args)]
pub struct CreateTableArgs {
    pub name: String,
    /// Every write of a new key leaves a bit in the filters: looking for missing keys then asks no server
    #[arg(long)]
    pub filter_inserts: bool,
    /// The first so many bytes of a key decide its partition, so that a scan of such a prefix stays in one
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    pub partition_prefix: u32,
    /// The filters of what is on disk also know the first so many bytes of keys: a scan of keys that begin alike, by at least as many,
    /// passes over files that have none of them. 0: they do not
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    pub filter_prefix: u32,
    /// Of blocks on disk. `zstd`: what compactions write where nothing older lies below, the rest with LZ4; smaller, slower to read
    #[arg(long, value_enum, default_value_t)]
    pub compression: BlockCompression,
    #[command(flatten)]
    pub connection: Connection,
}

#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("change").required(true).multiple(true).args(["filter_inserts", "compression", "filter_prefix"])))]
pub struct AlterTableArgs {
    pub name: String,
    /// See create-table
    #[arg(long, value_name = "on|off")]
    pub filter_inserts: Option<Switch>,
    /// Of blocks on disk. What is stored is rewritten as it is compacted
    #[arg(long, value_enum)]
    pub compression: Option<BlockCompression>,
    /// See create-table. Files have it when they are compacted
    #[arg(long, value_name = "BYTES")]
    pub filter_prefix: Option<u32>,
    #[command(flatten)]
    pub connection: Connection,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Switch {
    On,
    Off,
}

#[derive(Debug, Args)]
pub struct DropTableArgs {
    pub name: String,
    /// Do not ask
    #[arg(long)]
    pub yes: bool,
    #[command(flatten)]
    pub connection: Connection,
}
