//! The servers that are compared: how each is started, and what it promises.
//!
//! A server that cannot be started is left out, with the reason; the others are compared.

mod etcd;
mod redis;
mod sextant;

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use serde::Serialize;
use sextant_common::error::{Error, Result};

use crate::install::is_there;
use crate::process;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    Sextant,
    Redis,
    RedisFsync,
    Etcd,
}

impl Kind {
    /// Sextant first: the others are its peers.
    pub const ALL: [Kind; 4] = [Kind::Sextant, Kind::Redis, Kind::RedisFsync, Kind::Etcd];

    pub fn name(self) -> &'static str {
        match self {
            Kind::Sextant => "sextant",
            Kind::Redis => "redis",
            Kind::RedisFsync => "redis-fsync",
            Kind::Etcd => "etcd",
        }
    }

    /// Whether a write survives what, and what a read may show.
    pub fn promises(self) -> &'static str {
        match self {
            Kind::Sextant => {
                "8 processes: 3 memtable servers, 3 sstable servers, 2 p-nodes. A write is fsynced on 2 of 3 replicas \
                 before it is answered; reads are linearizable."
            }
            Kind::Redis => {
                "One process, one copy, no disk: `--save '' --appendonly no`. A crash loses everything; with one copy, \
                 reads are linearizable."
            }
            Kind::RedisFsync => {
                "One process, one copy: `--appendonly yes --appendfsync always`. A write is fsynced on the one disk before \
                 it is answered; if that is lost, so is everything."
            }
            Kind::Etcd => {
                "3 processes, a member each. A write is fsynced on 2 of 3 before it is answered; reads are linearizable \
                 (the default: a round of heartbeats behind each batch of reads). Every version is kept until compacted, \
                 which is not done here."
            }
        }
    }

    /// Programs that have to be there, and the Debian packages that have them.
    pub fn needs(self) -> &'static [(&'static str, &'static str)] {
        match self {
            // What it is driven with beside our own clients.
            Kind::Sextant => &[("redis-benchmark", "redis-tools")],
            Kind::Redis | Kind::RedisFsync => {
                &[("redis-server", "redis-server"), ("redis-benchmark", "redis-tools")]
            }
            Kind::Etcd => &[("etcd", "etcd-server")],
        }
    }
}

/// What starting one needs.
pub struct Setting {
    /// The program `sextant`.
    pub sextant: PathBuf,
    /// The directory for all data.
    pub data: PathBuf,
}

/// Where clients go.
#[derive(Clone, Debug)]
pub enum Addresses {
    /// `host:port`: a p-node, or Redis.
    Resp(Vec<String>),
    /// `http://host:port`, etcd's leader first.
    Etcd(Vec<String>),
}

/// A server that answers.
pub struct Running {
    started: Vec<process::Server>,
    /// All its processes.
    pub pids: Vec<u32>,
    pub addresses: Addresses,
    /// For Sextant: a p-node's gRPC address and the program, for administration.
    admin: Option<(PathBuf, String)>,
}

pub struct Server {
    pub kind: Kind,
    pub version: String,
    pub running: Option<Running>,
    /// Why it is not compared.
    pub left_out: Option<String>,
}

/// All servers, or those named, in the order of [`Kind::ALL`].
pub fn chosen(only: &[Kind]) -> Vec<Server> {
    let wanted = |kind: &Kind| only.is_empty() || only.contains(kind);
    let server = |kind| Server { kind, version: String::new(), running: None, left_out: None };
    Kind::ALL.into_iter().filter(wanted).map(server).collect()
}

impl Server {
    pub fn name(&self) -> &'static str {
        self.kind.name()
    }

    /// Starts it and waits until it answers; if it cannot be, says so in `left_out`.
    pub async fn start(&mut self, setting: &Setting) {
        match self.try_start(setting).await {
            Ok((version, running)) => (self.version, self.running) = (version, Some(running)),
            Err(e) => self.left_out = Some(e.message.to_string()),
        }
    }

    async fn try_start(&self, setting: &Setting) -> Result<(String, Running)> {
        self.needs_are_there()?;
        let dir = setting.data.join(self.name());
        std::fs::create_dir_all(&dir)?;
        match self.kind {
            Kind::Sextant => sextant::start(&setting.sextant, &dir).await,
            Kind::Redis => redis::start(&dir, &["--appendonly", "no"]).await,
            Kind::RedisFsync => redis::start(&dir, &["--appendonly", "yes", "--appendfsync", "always"]).await,
            Kind::Etcd => etcd::start(&dir).await,
        }
    }

    fn needs_are_there(&self) -> Result<()> {
        // The first is the server itself; Sextant's we have built.
        match self.kind.needs().first() {
            Some((program, package)) if self.kind != Kind::Sextant && !is_there(program) => {
                Err(Error::unavailable(format!("there is no `{program}` here (Debian package {package})")))
            }
            _ => Ok(()),
        }
    }

    /// Puts what it has in memory where it belongs at rest.
    pub async fn settle(&self) -> Result<()> {
        match self.running.as_ref().and_then(|running| running.admin.as_ref()) {
            Some((program, address)) => sextant::flush(program, address).await,
            None => Ok(()),
        }
    }

    pub async fn stop(&mut self) {
        if let Some(running) = self.running.take() {
            for server in running.started {
                server.stop().await;
            }
            process::gone(&running.pids).await;
        }
    }
}

impl Running {
    /// Where a number of clients go, in turn.
    pub fn addresses(&self, spread: bool) -> &[String] {
        let (Addresses::Resp(all) | Addresses::Etcd(all)) = &self.addresses;
        if spread { all } else { &all[..1] }
    }
}

/// Fails with the last line that a server has said if it has ended.
fn must_run(server: &mut process::Server, log: &Path) -> Result<()> {
    if !server.has_ended() {
        return Ok(());
    }
    let said = std::fs::read_to_string(log).unwrap_or_default();
    let last = said.trim().lines().last().unwrap_or("it said nothing");
    Err(Error::unavailable(format!("it ended before it was ready: {last}")))
}
