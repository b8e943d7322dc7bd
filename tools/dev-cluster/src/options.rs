//! What kind of cluster to start.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use sextant_environment::Env;
use sextant_environment::config::LeaseConfig;

use crate::in_process::LocalConfig;
use crate::ports::{LOOPBACK, loopback};
use crate::role::Role;

/// First port of each kind if nothing else is said; further p-nodes count up.
pub const RESP_PORT_DEFAULT: u16 = 6380;
pub const GRPC_PORT_DEFAULT: u16 = 7400;
pub const HTTP_PORT_DEFAULT: u16 = 7480;
/// Servers of a tier and p-nodes at the most: it is one machine.
pub const SERVERS_MAX: usize = 64;

/// A cluster to start. The number of partitions and of memtable and sstable servers is fixed when the data directory is
/// first used; `None` means as it is then, or the default.
#[derive(Clone, Debug)]
pub struct DevOptions {
    pub data: PathBuf,
    /// Default: 2.
    pub partitions: Option<u32>,
    /// Memtable servers. Default: 3.
    pub memtable: Option<usize>,
    /// sstable servers. Default: 3.
    pub sstable: Option<usize>,
    pub pnodes: usize,
    /// First RESP port; further p-nodes count up. 0: free ports, chosen once.
    pub resp_port: u16,
    /// First gRPC port of p-nodes; 0: free ports, chosen once.
    pub grpc_port: u16,
    /// First HTTP port: p-nodes first, then memtable servers, then sstable servers. 0: free ports, chosen once.
    pub http_port: u16,
    /// Runs each server as a child process of this binary (`<binary> memtable --config FILE`); `None`: in this process.
    pub processes: Option<PathBuf>,
    pub tuning: Tuning,
    /// Where the servers run, and what wraps their commands; `None`: all on loopback, without wrapping.
    pub placement: Option<Placement>,
    /// How long the cluster may take to be ready (a restart replays logs).
    pub ready_within: Duration,
}

/// Where each server runs, and in what: for tools that put the servers into namespaces of their own or wrap them in others, and
/// for tests that give each a disk of its own. What is not said is as for `sextant dev`.
pub trait Place: Send + Sync + 'static {
    /// The IP address that the server listens on.
    fn host(&self, _role: Role, _index: usize) -> String {
        LOOPBACK.to_owned()
    }

    /// Words that come before the command line of a server process. Asked at each start. The program named first must become
    /// the server's process (`exec`), because that process is the one that is signalled.
    fn wrap(&self, _role: Role, _index: usize) -> Vec<String> {
        Vec::new()
    }

    /// The environment of a server in this process, instead of the cluster's. Asked at each start.
    fn environment(&self, _role: Role, _index: usize, env: Env) -> Env {
        env
    }

    /// Changes what a server in this process is started with, after its file was read. Asked at each start. Addresses that
    /// other servers know must stay.
    fn configure(&self, _index: usize, _config: &mut LocalConfig) {}
}

/// A shared [`Place`].
#[derive(Clone)]
pub struct Placement(pub Arc<dyn Place>);

impl fmt::Debug for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Placement")
    }
}

/// Overrides of the servers' configurations.
#[derive(Clone, Debug, Default)]
pub struct Tuning {
    /// Lease lengths; taken when the data directory is first used, and kept.
    pub lease: Option<LeaseConfig>,
    /// Merged into the configuration of every memtable server, section by section.
    pub memtable: toml::Table,
    /// The same for sstable servers.
    pub sstable: toml::Table,
    /// The same for p-nodes.
    pub pnode: toml::Table,
}

impl DevOptions {
    /// What `sextant dev` starts by default.
    pub fn new(data: impl Into<PathBuf>) -> Self {
        Self {
            data: data.into(),
            partitions: None,
            memtable: None,
            sstable: None,
            pnodes: 2,
            resp_port: RESP_PORT_DEFAULT,
            grpc_port: GRPC_PORT_DEFAULT,
            http_port: HTTP_PORT_DEFAULT,
            processes: None,
            tuning: Tuning::default(),
            placement: None,
            ready_within: Duration::from_secs(120),
        }
    }

    /// Address of a server at a port.
    pub(crate) fn addr(&self, role: Role, index: usize, port: u16) -> String {
        match &self.placement {
            Some(placement) => format!("{}:{port}", placement.0.host(role, index)),
            None => loopback(port),
        }
    }

    /// The same on ports that nobody else uses: for tests.
    pub fn on_free_ports(data: impl Into<PathBuf>) -> Self {
        Self { resp_port: 0, grpc_port: 0, http_port: 0, ..Self::new(data) }
    }
}
