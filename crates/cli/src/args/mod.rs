//! The command line: the commands, and what those that talk to a cluster have in common. Each subject's own are in a file of it.

mod admin;
mod backup;
mod config;
mod records;
mod security;
mod servers;
mod tables;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use sextant_ycsb::YcsbArgs;

pub use admin::*;
pub use backup::*;
pub use config::*;
pub use records::*;
pub use security::*;
pub use servers::*;
pub use tables::*;

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

/// How a client command shows and checks certificates, in a cluster whose ports are encrypted.
// (Global, as those of users are: so they may stand behind `load` in `ycsb load`, too.)
#[derive(Clone, Debug, Default, Args)]
pub struct TlsArgs {
    /// Connect with TLS; authorities (PEM) of the servers' certificates [env: SEXTANT_TLS_CA]
    #[arg(long, global = true, value_name = "FILE")]
    pub tls_ca: Option<PathBuf>,
    /// The certificate to show (PEM) [env: SEXTANT_TLS_CERT]
    #[arg(long, global = true, value_name = "FILE")]
    pub tls_cert: Option<PathBuf>,
    /// Its private key (PEM) [env: SEXTANT_TLS_KEY]
    #[arg(long, global = true, value_name = "FILE")]
    pub tls_key: Option<PathBuf>,
}

/// Who a client command is, in a cluster that has users. The password is in the file, or in SEXTANT_PASSWORD.
#[derive(Clone, Debug, Default, Args)]
pub struct UserOptions {
    /// User; without, who the certificate names [env: SEXTANT_USER]
    #[arg(long, global = true, value_name = "NAME")]
    pub user: Option<String>,
    /// File whose first line is the user's password [env: SEXTANT_PASSWORD, the password itself]
    #[arg(long, global = true, value_name = "FILE")]
    pub password_file: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct YcsbCommand {
    #[command(flatten)]
    pub args: YcsbArgs,
    #[command(flatten)]
    pub tls: TlsArgs,
    #[command(flatten)]
    pub user: UserOptions,
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
            "ycsb load --records 1000 --resp h:1 --user app --password-file f",
            "ycsb --tls-ca ca.pem --user app --password-file f run --workload c --grpc h:1",
            "check history.jsonl --json",
            "config init --memtable a,b,c --sstable d,e,f --pnode g,h --ipv6",
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
    fn a_user_of_the_load_generator_may_be_named_before_its_phase_or_behind_it() {
        for line in [
            "ycsb --user app --tls-ca ca.pem load --resp h:1",
            "ycsb load --resp h:1 --tls-ca ca.pem --user app",
        ] {
            let args = std::iter::once("sextant").chain(line.split_whitespace());
            let Command::Ycsb(ycsb) = Cli::try_parse_from(args).unwrap().command else { panic!("{line}") };
            assert_eq!(ycsb.user.user.as_deref(), Some("app"), "{line}");
            assert_eq!(ycsb.tls.tls_ca, Some(PathBuf::from("ca.pem")), "{line}");
        }
    }

    #[test]
    fn dev_has_the_documented_defaults() {
        let Command::Dev(dev) = Cli::try_parse_from(["sextant", "dev"]).unwrap().command else { panic!() };
        assert_eq!((dev.pnodes, dev.resp, dev.grpc, dev.http), (2, 6380, 7400, 7480));
        assert_eq!(dev.data, PathBuf::from("./data/dev"));
    }
}
