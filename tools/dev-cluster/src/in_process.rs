//! A server inside this process.

use std::path::Path;
use std::sync::Arc;

use futures::future::BoxFuture;
use sextant_common::error::{Error, Result};
use sextant_environment::Env;
use sextant_environment::clock::{SystemClock, WallSource};
use sextant_environment::config::{ConfigError, load};
use sextant_memtable_server::{MemtableServer, MemtableServerConfig};
use sextant_pnode::{PNodeConfig, PNodeServer};
use sextant_sstable_server::{SstServer, SstServerConfig};

use crate::role::Role;

/// What a server in this process is started with.
#[derive(Clone, Debug)]
pub enum LocalConfig {
    Memtable(MemtableServerConfig),
    Sstable(SstServerConfig),
    PNode(PNodeConfig),
}

impl LocalConfig {
    /// Reads a file, as a process of its own would.
    pub fn load(role: Role, path: &Path) -> Result<Self> {
        let read = || -> std::result::Result<Self, ConfigError> {
            Ok(match role {
                Role::Memtable => Self::Memtable(load(path)?),
                Role::Sstable => Self::Sstable(load(path)?),
                Role::PNode => Self::PNode(load(path)?),
            })
        };
        read().map_err(|e| Error::invalid(e.to_string()))
    }
}

pub enum LocalServer {
    Memtable(MemtableServer),
    Sstable(SstServer),
    PNode(PNodeServer),
}

impl LocalServer {
    pub fn start(env: Env, config: LocalConfig) -> BoxFuture<'static, Result<Self>> {
        Box::pin(async move {
            // The clock of the environment stays, unless a configuration asks for one.
            let with_clock = |source| match source {
                WallSource::Unsynchronised => env.clone(),
                source => Env { clock: Arc::new(SystemClock::new(source)), ..env.clone() },
            };
            Ok(match config {
                LocalConfig::Memtable(config) => {
                    LocalServer::Memtable(MemtableServer::start(with_clock(config.clock), config).await?)
                }
                LocalConfig::Sstable(config) => LocalServer::Sstable(SstServer::start(env, config).await?),
                LocalConfig::PNode(config) => {
                    LocalServer::PNode(PNodeServer::start(with_clock(config.clock), config).await?)
                }
            })
        })
    }

    /// Drains and stops it.
    pub fn shutdown(self) -> BoxFuture<'static, ()> {
        Box::pin(self.shut_down())
    }

    async fn shut_down(self) {
        match self {
            LocalServer::Memtable(server) => server.shutdown().await,
            LocalServer::Sstable(server) => server.shutdown().await,
            LocalServer::PNode(server) => server.shutdown().await,
        }
    }
}
