//! One server, as a process of its own.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use sextant_common::Error;
use sextant_environment::clock::{ClockError, SharedClock, SystemClock, WallSource, WrongClock};
use sextant_environment::config::load_role;
use sextant_environment::env::{Network, Party, Reaching};
use sextant_environment::{Env, logging};
use sextant_memtable_server::{MemtableServer, MemtableServerConfig};
use sextant_pnode::{PNodeConfig, PNodeServer};
use sextant_sstable_server::{SstServer, SstServerConfig};

use super::alone::nobody_else;
use crate::args::ServerArgs;
use crate::exit::{CommandResult, Exit, Failure};
use crate::network::Posture;
use crate::notify;
use crate::process::{StopSignals, raise_file_limit};

pub async fn memtable(args: &ServerArgs) -> CommandResult {
    let path = &args.config;
    let config: MemtableServerConfig = load_role(path, "memtable")?;
    config.validate().map_err(|e| named(path, &e))?;
    let mut signals = begin()?;
    let me = Party::memtable(config.id);
    let posture = Posture {
        path,
        tls: config.tls.as_ref(),
        cluster: &config.cluster.id,
        me,
        listens: listens([Some(&config.listen), config.http.as_ref()]),
        has_users: false,
        insecure: args.insecure,
    };
    let net = posture.network()?;
    let env = env(net.clone(), config.clock)?;
    let starting = async move {
        let named = config.cluster.memtable.iter().find(|server| server.id == config.id);
        nobody_else(&net, &config.cluster, me, named).await?;
        MemtableServer::start(env, config).await
    };
    let Some(server) = started(&mut signals, starting).await? else { return Ok(()) };
    serves([Some(server.addr()), server.http_addr()]);
    until_stopped(signals, server.shutdown()).await
}

pub async fn sstable(args: &ServerArgs) -> CommandResult {
    let path = &args.config;
    let config: SstServerConfig = load_role(path, "sstable")?;
    config.validate().map_err(|e| named(path, &e))?;
    let mut signals = begin()?;
    let me = Party::sstable(config.id);
    let posture = Posture {
        path,
        tls: config.tls.as_ref(),
        cluster: &config.cluster.id,
        me,
        listens: listens([Some(&config.listen), config.http.as_ref()]),
        has_users: false,
        insecure: args.insecure,
    };
    let net = posture.network()?;
    let env = env(net.clone(), WallSource::default())?;
    let starting = async move {
        let named = config.cluster.sstable.iter().find(|server| server.id == config.id);
        nobody_else(&net, &config.cluster, me, named).await?;
        SstServer::start(env, config).await
    };
    let Some(server) = started(&mut signals, starting).await? else { return Ok(()) };
    serves([Some(server.addr()), server.http_addr()]);
    until_stopped(signals, server.shutdown()).await
}

/// OS threads of a p-node. (What is wrong with its configuration is told when it starts.)
pub fn pnode_workers(path: &Path) -> Option<usize> {
    let config: PNodeConfig = load_role(path, "pnode").ok()?;
    let threads = Env::real().serving_threads(config.resp_threads);
    (threads == 1).then_some(1)
}

pub async fn pnode(args: &ServerArgs) -> CommandResult {
    let path = &args.config;
    let config: PNodeConfig = load_role(path, "pnode")?;
    config.validate().map_err(|e| named(path, &e))?;
    let mut signals = begin()?;
    let admin = config.admin_addr();
    let posture = Posture {
        path,
        tls: config.tls.as_ref(),
        cluster: &config.cluster.id,
        me: Party::pnode(config.id),
        listens: listens([Some(&config.grpc), Some(&admin), config.resp.as_ref(), config.http.as_ref()]),
        has_users: config.access.is_some(),
        insecure: args.insecure,
    };
    let env = env(posture.network()?, config.clock)?;
    let sockets = [&config.grpc_unix, &config.resp_unix];
    let sockets: Vec<_> = sockets.into_iter().flatten().map(|path| path.display().to_string()).collect();
    let Some(server) = started(&mut signals, PNodeServer::start(env, config)).await? else { return Ok(()) };
    serves_also([Some(server.grpc_addr()), server.resp_addr(), server.http_addr()], sockets);
    until_stopped(signals, server.shutdown()).await
}

fn listens<'a>(addrs: impl IntoIterator<Item = Option<&'a String>>) -> Vec<&'a str> {
    addrs.into_iter().flatten().map(|addr| &**addr).collect()
}

/// Tells whoever started the process where it listens.
fn serves(addrs: impl IntoIterator<Item = Option<SocketAddr>>) {
    serves_also(addrs, Vec::new());
}

/// `sockets`: paths.
fn serves_also(addrs: impl IntoIterator<Item = Option<SocketAddr>>, sockets: Vec<String>) {
    let addrs = addrs.into_iter().flatten().map(|addr| addr.to_string());
    notify::serves(&addrs.chain(sockets).collect::<Vec<_>>());
}

/// Tests only: how far this server's clocks are off ([`ClockError`]).
const TEST_CLOCK: &str = "SEXTANT_TEST_CLOCK";

/// The real world, with this network, which says whom it does not reach, and with the bound on the wall clock's error that the
/// configuration states.
fn env(net: Arc<dyn Network>, clock: WallSource) -> Result<Env, Failure> {
    let mut clock: SharedClock = Arc::new(SystemClock::new(clock));
    if let Ok(text) = std::env::var(TEST_CLOCK) {
        let error: ClockError =
            text.parse().map_err(|e: Error| Failure::usage(format!("{TEST_CLOCK}: {}", e.message)))?;
        tracing::warn!("{TEST_CLOCK}: clocks are wrong on purpose, for a test: {error:?}");
        clock = Arc::new(WrongClock::new(clock, error));
    }
    Ok(Env { net: Reaching::told(net, clock.clone()), clock, ..Env::real() })
}

/// A bad value names its file, as a bad line does.
fn named(path: &Path, e: &sextant_common::Error) -> Failure {
    Failure::usage(format!("{}: {}", path.display(), e.message))
}

fn begin() -> Result<StopSignals, Failure> {
    logging::init();
    raise_file_limit();
    let signals = StopSignals::listen()?;
    notify::starts();
    Ok(signals)
}

/// A server that has started; `None`: it was told to stop before. Nobody has been promised anything then, so it is left as it is:
/// what it reads may take minutes.
async fn started<T: Send + 'static>(
    signals: &mut StopSignals,
    starting: impl Future<Output = Result<T, Error>> + Send + 'static,
) -> Result<Option<T>, Failure> {
    // By itself: reading a log back keeps a thread busy for long.
    let starting = tokio::spawn(starting);
    tokio::select! {
        biased;
        started = starting => match started {
            Ok(started) => started.map(Some).map_err(Failure::of_start),
            Err(e) => std::panic::resume_unwind(e.into_panic()),
        },
        () = signals.wait() => {
            notify::stops();
            Ok(None)
        }
    }
}

/// Waits for a signal, then drains. A second signal ends the process undrained.
async fn until_stopped(mut signals: StopSignals, shutdown: impl Future<Output = ()>) -> CommandResult {
    signals.wait().await;
    notify::stops();
    match signals.drain(shutdown).await {
        Some(()) => Ok(()),
        None => Err(Failure::silent(Exit::Negative)),
    }
}
