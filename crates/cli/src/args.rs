//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use sextant_client::{LoadName, ReadMode};
use sextant_common::manifest::Compression;
use sextant_ycsb::{YcsbArgs, read_modes};

/// Sextant, a distributed log-structured database.
///
/// Exit codes: 0 success; 1 the answer is no (no such key, a condition failed, a check or a run found errors); 2 wrong
/// arguments or configuration; 3 the request failed and was not executed, as far as known; 4 a write may or may not have
/// taken effect. Servers also: 70 what it has must not go on, 76 its data are of a newer version.
#[derive(Debug, Parser)]
#[command(
    name = "sextant",
    version,
    max_term_width = 120,
    subcommand_required = true,
    arg_required_else_help = true
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a whole cluster on this machine
    Dev(DevArgs),
    /// Run a memtable server
    Memtable(ServerArgs),
    /// Run an sstable server
    Sstable(ServerArgs),
    /// Run a p-node
    Pnode(ServerArgs),
    /// Print the value of a key
    Get(GetArgs),
    /// Print several keys and their values, a line each
    Mget(MgetArgs),
    /// Write a record
    Put(PutArgs),
    /// Write a record only if its key does not exist
    Insert(PutArgs),
    /// Delete a record
    Delete(DeleteArgs),
    /// Change a record only if it is as expected
    Cas(CasArgs),
    /// Print the keys of a range and their values, a line each
    Scan(ScanArgs),
    /// Load a file of records into a table: faster than writing them, and seen all at once in each partition
    Load(LoadArgs),
    /// Create a table
    CreateTable(CreateTableArgs),
    /// Change options of a table that is in use
    AlterTable(AlterTableArgs),
    /// Drop a table, with all its records
    DropTable(DropTableArgs),
    /// List the tables
    Tables(Connection),
    /// Show the state of the cluster
    Status(StatusArgs),
    /// Maintenance
    Admin(AdminArgs),
    /// Open, renew or close a snapshot of all tables, for `scan --snapshot`
    Snapshot(SnapshotArgs),
    /// Make, check, restore and prune backups
    Backup(BackupArgs),
    /// Have the sstable servers read every SSTable and check it, and compare what they hold with the manifests. 1: something is bad
    Verify(Connection),
    /// Generate load (YCSB's workloads A to F)
    Ycsb(YcsbCommand),
    /// Check a recorded history for linearizability
    Check(CheckArgs),
    /// Write or check the configuration files of a cluster
    Config(ConfigArgs),
    /// Make a private authority, and certificates for servers and users
    Cert(CertArgs),
    /// Make, change and list the cluster's users
    User(UserArgs),
    /// Ask a server whether it is ready (for container health checks)
    Health(HealthArgs),
    /// Check what servers need of this host and of the others: clocks, disks, memory, ports, network. 1: something is bad
    Doctor(DoctorArgs),
}

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

/// How a client command shows and checks certificates, in a cluster whose ports are encrypted.
#[derive(Clone, Debug, Default, Args)]
pub struct TlsArgs {
    /// Connect with TLS; authorities (PEM) of the servers' certificates [env: SEXTANT_TLS_CA]
    #[arg(long, value_name = "FILE")]
    pub tls_ca: Option<PathBuf>,
    /// The certificate to show (PEM) [env: SEXTANT_TLS_CERT]
    #[arg(long, value_name = "FILE")]
    pub tls_cert: Option<PathBuf>,
    /// Its private key (PEM) [env: SEXTANT_TLS_KEY]
    #[arg(long, value_name = "FILE")]
    pub tls_key: Option<PathBuf>,
}

/// Who a client command is, in a cluster that has users. The password is in the file, or in SEXTANT_PASSWORD.
#[derive(Clone, Debug, Default, Args)]
pub struct UserOptions {
    /// User; without, who the certificate names [env: SEXTANT_USER]
    #[arg(long, value_name = "NAME")]
    pub user: Option<String>,
    /// File whose first line is the user's password [env: SEXTANT_PASSWORD, the password itself]
    #[arg(long, value_name = "FILE")]
    pub password_file: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct UserArgs {
    #[command(subcommand)]
    pub command: UserCommand,
}

#[derive(Debug, Subcommand)]
pub enum UserCommand {
    /// Print the hash of the password on standard input, for `superusers` in a p-node's configuration
    Hash,
    /// Make or change a user
    Set(UserSetArgs),
    /// Remove a user
    Remove(UserRemoveArgs),
    /// List users and their rules
    List(UserListArgs),
}

#[derive(Debug, Args)]
pub struct UserSetArgs {
    pub name: String,
    /// on, off, '~app:*', '%R~shared:*', resetkeys, 'table=*', +@read, +@write, +@admin, +@all, -@all, nopass, resetpass, .. (docs/security.md)
    #[arg(value_name = "RULE")]
    pub rules: Vec<String>,
    /// Add the password on standard input (an argument would be seen in the process list)
    #[arg(long)]
    pub password_stdin: bool,
    #[command(flatten)]
    pub connection: Connection,
}

#[derive(Debug, Args)]
pub struct UserRemoveArgs {
    pub name: String,
    #[command(flatten)]
    pub connection: Connection,
}

#[derive(Debug, Args)]
pub struct UserListArgs {
    #[command(flatten)]
    pub connection: Connection,
}

#[derive(Debug, Args)]
pub struct YcsbCommand {
    #[command(flatten)]
    pub args: YcsbArgs,
    #[command(flatten)]
    pub tls: TlsArgs,
}

#[derive(Debug, Args)]
pub struct CertArgs {
    #[command(subcommand)]
    pub command: CertCommand,
}

#[derive(Debug, Subcommand)]
pub enum CertCommand {
    /// Make the authority of a cluster: ca.pem, which everybody gets, and ca.key, which nobody else gets
    Init(CertInitArgs),
    /// Issue the certificates of servers: memtable-1.pem and memtable-1.key, and so on
    Server(CertServerArgs),
    /// Issue the certificate of a user: user-NAME.pem and user-NAME.key
    User(CertUserArgs),
}

#[derive(Debug, Args)]
pub struct CertInitArgs {
    /// Name of the cluster, as in its configuration
    #[arg(long, value_name = "NAME", default_value = "sextant")]
    pub cluster: String,
    /// Where the files go
    #[arg(long, value_name = "DIR", default_value = "certs")]
    pub dir: PathBuf,
    /// How long it is valid
    #[arg(long, value_name = "N", default_value_t = 3650)]
    pub days: u64,
}

#[derive(Debug, Args)]
pub struct IssueArgs {
    /// Where the authority is, and where the certificates go
    #[arg(long, value_name = "DIR", default_value = "certs")]
    pub dir: PathBuf,
    /// How long a certificate is valid
    #[arg(long, value_name = "N", default_value_t = 365)]
    pub days: u64,
    /// Replace certificates that are there
    #[arg(long)]
    pub renew: bool,
}

#[derive(Debug, Args)]
pub struct CertServerArgs {
    /// Configuration files of the servers
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Further names and addresses under which clients reach them; those in the files, and the local ones, need not be named
    #[arg(long, value_name = "HOST,..", value_delimiter = ',')]
    pub host: Vec<String>,
    #[command(flatten)]
    pub issue: IssueArgs,
}

#[derive(Debug, Args)]
pub struct CertUserArgs {
    pub name: String,
    #[command(flatten)]
    pub issue: IssueArgs,
}

/// How a client command reaches the cluster.
#[derive(Clone, Debug, Args)]
pub struct Connection {
    /// p-nodes to ask: host:port, or unix:/path of a socket; further ones are for failover
    #[arg(long, value_name = "ADDR,..", value_delimiter = ',', default_value = "127.0.0.1:7400")]
    pub server: Vec<String>,
    /// How long the command may take, in milliseconds; administration that takes longer by nature has its own minimum
    #[arg(long, value_name = "MS", default_value_t = 5000, value_parser = clap::value_parser!(u64).range(1..))]
    pub deadline_ms: u64,
    #[command(flatten)]
    pub tls: TlsArgs,
    #[command(flatten)]
    pub user: UserOptions,
}

#[derive(Clone, Debug, Args)]
pub struct TableArgs {
    /// Table; default: the default table
    #[arg(long, value_name = "NAME", default_value = "")]
    pub table: String,
    #[command(flatten)]
    pub connection: Connection,
}

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

/// As it is printed.
fn snapshot_id(text: &str) -> Result<u64, String> {
    u64::from_str_radix(text, 16).map_err(|e| e.to_string())
}

#[derive(Debug, Args)]
pub struct SnapshotArgs {
    #[command(subcommand)]
    pub command: SnapshotCommand,
}

#[derive(Debug, Subcommand)]
pub enum SnapshotCommand {
    /// Print the id of a new snapshot: each partition at one position of its log, not all of them at one moment
    Open(SnapshotOpenArgs),
    /// Hold it on, for as long as it was opened for
    Renew(SnapshotIdArgs),
    /// Let go what it holds
    Close(SnapshotIdArgs),
}

#[derive(Debug, Args)]
pub struct SnapshotOpenArgs {
    /// How long it is held without a renewal, in seconds
    #[arg(long, value_name = "S", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=600))]
    pub lease_s: u64,
    #[command(flatten)]
    pub connection: Connection,
}

#[derive(Debug, Args)]
pub struct SnapshotIdArgs {
    #[arg(value_parser = snapshot_id)]
    pub id: u64,
    #[command(flatten)]
    pub connection: Connection,
}

#[derive(Debug, Args)]
pub struct BackupArgs {
    #[command(subcommand)]
    pub command: BackupCommand,
    /// Authorities (PEM) of the store's certificate, for s3://, beside Mozilla's [env: SEXTANT_STORE_CA]
    #[arg(long, global = true, value_name = "FILE")]
    pub store_ca: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub enum BackupCommand {
    /// Copy what the repository does not have yet, of each partition at one position of its log, while all goes on
    Create(BackupCreateArgs),
    /// Archive the log of all partitions as it grows, until it is stopped: so backups can be restored to a later time
    Follow(BackupFollowArgs),
    /// List the backups of a repository, and until when the log after each reaches
    List(RepositoryArgs),
    /// Read every file of a backup, and of the log after it, to its end; with --against-cluster compare its records with a cluster's. 1: something is bad
    Verify(BackupVerifyArgs),
    /// Write a backup's records into a cluster, of any number of partitions; with --to-time what was written after it, too
    Restore(BackupRestoreArgs),
    /// Remove all backups but the newest, and the files and the log that none of them needs
    Prune(BackupPruneArgs),
}

#[derive(Debug, Args)]
pub struct RepositoryArgs {
    /// The repository: a directory, which should be on another machine, or s3://BUCKET/PREFIX
    #[arg(value_name = "REPOSITORY")]
    pub repository: String,
}

#[derive(Debug, Args)]
pub struct BackupCreateArgs {
    /// The repository: a directory, which should be on another machine, or s3://BUCKET/PREFIX
    #[arg(long, value_name = "REPOSITORY")]
    pub to: String,
    /// Its name; without, the time (UTC)
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Only this table, and the database's own; may be repeated
    #[arg(long, value_name = "TABLE")]
    pub table: Vec<String>,
    /// Copy no faster than so many bytes a second
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub bytes_per_second: Option<u64>,
    #[command(flatten)]
    pub connection: Connection,
}

#[derive(Debug, Args)]
pub struct BackupFollowArgs {
    /// The repository: a directory, which should be on another machine, or s3://BUCKET/PREFIX
    #[arg(long, value_name = "REPOSITORY")]
    pub to: String,
    /// How often what was written is put there, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub every: u64,
    #[command(flatten)]
    pub connection: Connection,
}

#[derive(Debug, Args)]
pub struct BackupVerifyArgs {
    #[command(flatten)]
    pub repository: RepositoryArgs,
    /// Its name; without, the newest of all tables
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Compare its records with what a cluster has now, key by key
    #[arg(long)]
    pub against_cluster: bool,
    /// Where files are put while they are read
    #[arg(long, value_name = "DIR")]
    pub work_dir: Option<PathBuf>,
    #[command(flatten)]
    pub connection: Connection,
}

#[derive(Debug, Args)]
pub struct BackupRestoreArgs {
    /// The repository
    #[arg(long, value_name = "REPOSITORY")]
    pub from: String,
    /// Its name; without, the newest of all tables
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// What was written until then, too, by the archived log: RFC 3339, 2026-11-25T20:00:00Z. Without --name: of the newest backup before
    #[arg(long, value_name = "TIME")]
    pub to_time: Option<String>,
    /// Only this table, with the elements of its objects; may be repeated
    #[arg(long, value_name = "TABLE")]
    pub table: Vec<String>,
    /// Also into tables that have records: they stay, unless the backup has the key
    #[arg(long)]
    pub into_existing: bool,
    /// Users and their rights too: they take the place of those of the same name
    #[arg(long)]
    pub users: bool,
    /// Write all records as clients do. Without: what is more than a few MiB is loaded, which is faster
    #[arg(long)]
    pub as_writes: bool,
    /// Partitions that are written at a time
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub parallel: usize,
    /// Where files are put while they are read: room for some 3 GB for each partition that is written at a time
    #[arg(long, value_name = "DIR")]
    pub work_dir: Option<PathBuf>,
    #[command(flatten)]
    pub connection: Connection,
}

#[derive(Debug, Args)]
pub struct BackupPruneArgs {
    #[command(flatten)]
    pub repository: RepositoryArgs,
    /// So many backups of all tables stay: the newest, and those of some tables that are no older
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub keep: u32,
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

#[derive(Debug, Args)]
pub struct CheckArgs {
    /// History as JSON lines (docs/formats/history.md)
    pub history: PathBuf,
    /// How much may be searched for each key before it counts as undecided
    #[arg(long, value_name = "N")]
    pub steps_per_key: Option<u64>,
    /// Print the report as JSON
    #[arg(long)]
    pub json: bool,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn documented_command_lines_are_understood() {
        for line in [
            "dev",
            "dev --data /tmp/x --partitions 2 --memtable 3 --sstable 3 --pnodes 2 --resp 6380 --grpc 7400 --http 7480 --processes --json",
            "memtable --config FILE",
            "sstable --config FILE",
            "pnode --config FILE",
            "get a --server 127.0.0.1:7401",
            "put a 1",
            "put a -1",
            "put a --stdin",
            "insert a 1 --server h:1,h:2",
            "delete a --check",
            "cas a 1 2",
            "cas a 2 --seq 7",
            "cas a --seq 7 --delete",
            "cas a 1 --absent",
            "mget a b c",
            "scan --prefix user --reverse --limit 10",
            "scan user --keys-only",
            "scan --start a --end b",
            "status --json",
            "admin freeze",
            "admin flush --table t",
            "admin compact --server h:1",
            "admin voters --partition 0 --voters 1,2,3",
            "admin recover",
            "admin raise-format --dry-run",
            "admin raise-format --to 1 --server h:1",
            "admin recover --yes --without-sstable 2,3 --accept-loss --server h:1",
            "admin recover --yes --with-load 0-3-1,2-3-1 --without-load 1-3-2",
            "create-table t --filter-inserts",
            "alter-table t --filter-inserts off --compression zstd",
            "drop-table t --yes --server h:1",
            "ycsb load --records 1000",
            "ycsb run --workload a --records 1000 --operations 1000 --threads 8 --mode bda --distribution zipfian --theta 0.99 --grpc h:1",
            "ycsb update --share 0.05 --embedded --cluster f --cache off --coalesce off",
            "check history.jsonl --json",
            "config init --memtable a,b,c --sstable d,e,f --pnode g,h",
            "config check memtable-1.toml pnode-1.toml",
            "memtable --config FILE --insecure",
            "cert init --cluster prod --dir certs",
            "cert server memtable-1.toml pnode-1.toml --host db.example.org --days 90 --renew",
            "cert user alice",
            "get a --server h:1 --tls-ca certs/ca.pem --tls-cert certs/user-alice.pem --tls-key certs/user-alice.key",
            "user hash",
            "user set alice on ~app:* +@read --password-stdin --server h:1",
            "user remove alice",
            "user list --user root --password-file f",
            "get a --user alice --password-file f",
            "health --server 127.0.0.1:7390",
            "health --config memtable-1.toml --live",
            "doctor",
            "doctor --config memtable-1.toml --config pnode-1.toml --json",
            "config check --env memtable-1.toml",
        ] {
            let args = std::iter::once("sextant").chain(line.split_whitespace());
            if let Err(e) = Cli::try_parse_from(args) {
                panic!("{line}: {e}");
            }
        }
    }

    #[test]
    fn dev_has_the_documented_defaults() {
        let Command::Dev(dev) = Cli::try_parse_from(["sextant", "dev"]).unwrap().command else { panic!() };
        assert_eq!((dev.pnodes, dev.resp, dev.grpc, dev.http), (2, 6380, 7400, 7480));
        assert_eq!(dev.data, PathBuf::from("./data/dev"));
    }
}
