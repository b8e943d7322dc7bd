//! One server, as a process of its own.

use std::path::Path;
use std::sync::Arc;

use sextant_environment::clock::{SystemClock, WallSource};
use sextant_environment::config::load_role;
use sextant_environment::{Env, logging};
use sextant_memtable_server::{MemtableServer, MemtableServerConfig};
use sextant_pnode::{PNodeConfig, PNodeServer};
use sextant_sstable_server::{SstServer, SstServerConfig};

use crate::exit::{CommandResult, Exit, Failure};
use crate::process::{StopSignals, raise_file_limit};

pub async fn memtable(path: &Path) -> CommandResult {
    let config: MemtableServerConfig = load_role(path, "memtable")?;
    config.validate().map_err(|e| named(path, &e))?;
    let signals = begin()?;
    let server = MemtableServer::start(env(config.clock), config).await?;
    until_stopped(signals, server.shutdown()).await
}

pub async fn sstable(path: &Path) -> CommandResult {
    let config: SstServerConfig = load_role(path, "sstable")?;
    config.validate().map_err(|e| named(path, &e))?;
    let signals = begin()?;
    let server = SstServer::start(Env::real(), config).await?;
    until_stopped(signals, server.shutdown()).await
}

/// OS threads of a p-node. (What is wrong with its configuration is told when it starts.)
pub fn pnode_workers(path: &Path) -> Option<usize> {
    let config: PNodeConfig = load_role(path, "pnode").ok()?;
    let threads = Env::real().serving_threads(config.resp_threads);
    (threads == 1).then_some(1)
}

pub async fn pnode(path: &Path) -> CommandResult {
    let config: PNodeConfig = load_role(path, "pnode")?;
    config.validate().map_err(|e| named(path, &e))?;
    let signals = begin()?;
    let server = PNodeServer::start(env(config.clock), config).await?;
    until_stopped(signals, server.shutdown()).await
}

/// The real world, with the bound on the wall clock's error that the configuration states.
fn env(clock: WallSource) -> Env {
    Env { clock: Arc::new(SystemClock::new(clock)), ..Env::real() }
}

/// A bad value names its file, as a bad line does.
fn named(path: &Path, e: &sextant_common::Error) -> Failure {
    Failure::usage(format!("{}: {}", path.display(), e.message))
}

fn begin() -> Result<StopSignals, Failure> {
    logging::init();
    raise_file_limit();
    Ok(StopSignals::listen()?)
}

/// Waits for a signal, then drains. A second signal ends the process undrained.
async fn until_stopped(mut signals: StopSignals, shutdown: impl Future<Output = ()>) -> CommandResult {
    signals.wait().await;
    match signals.drain(shutdown).await {
        Some(()) => Ok(()),
        None => Err(Failure::silent(Exit::Negative)),
    }
}
