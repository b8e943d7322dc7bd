//! A server inside this process.

use std::path::Path;
use std::sync::Arc;

use sextant_common::error::{Error, Result};
use sextant_environment::Env;
use sextant_environment::clock::{SystemClock, WallSource};
use sextant_environment::config::load;
use sextant_memtable_server::{MemtableServer, MemtableServerConfig};
use sextant_pnode::{PNode, PNodeConfig, PNodeServer};
use sextant_sstable_server::{SstServer, SstServerConfig};

use crate::role::Role;

pub enum LocalServer {
    Memtable(MemtableServer),
    Sstable(SstServer),
    PNode(PNodeServer),
}

impl LocalServer {
    /// Starts a server with the configuration in a file, as a process of its own would.
    pub async fn start(env: &Env, role: Role, config: &Path) -> Result<Self> {
        let bad = |e: sextant_environment::config::ConfigError| Error::invalid(e.to_string());
        // The clock of the environment stays, unless a configuration asks for one.
        let with_clock = |source| match source {
            WallSource::Unsynchronised => env.clone(),
            source => Env { clock: Arc::new(SystemClock::new(source)), ..env.clone() },
        };
        Ok(match role {
            Role::Memtable => {
                let config: MemtableServerConfig = load(config).map_err(bad)?;
                LocalServer::Memtable(MemtableServer::start(with_clock(config.clock), config).await?)
            }
            Role::Sstable => {
                let config: SstServerConfig = load(config).map_err(bad)?;
                LocalServer::Sstable(SstServer::start(env.clone(), config).await?)
            }
            Role::PNode => {
                let config: PNodeConfig = load(config).map_err(bad)?;
                LocalServer::PNode(PNodeServer::start(with_clock(config.clock), config).await?)
            }
        })
    }

    pub fn engine(&self) -> Option<&PNode> {
        match self {
            LocalServer::PNode(server) => Some(server.engine()),
            _ => None,
        }
    }

    /// Drains and stops it.
    pub async fn shutdown(self) {
        match self {
            LocalServer::Memtable(server) => server.shutdown().await,
            LocalServer::Sstable(server) => server.shutdown().await,
            LocalServer::PNode(server) => server.shutdown().await,
        }
    }
}
