//! Who may come in: `cert`, `user`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::Connection;

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
    /// Replace certificates that are there; host names of theirs are kept, addresses are to be named again
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
