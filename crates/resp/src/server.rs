//! The server: accepts connections, hands them to the threads that serve them, and stops in order.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use sextant_access::{Allowances, Desk};
use sextant_common::Result;
use sextant_environment::Env;
use sextant_environment::env::{self, DetachedConnection, Door, Listener, cannot_listen};
use sextant_environment::room::Room;
use sextant_environment::shutdown::{self, Shutdown, ShutdownTrigger};
use sextant_environment::slow_log::SlowLog;
use tokio::io::AsyncWriteExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::{JoinError, JoinSet};

use crate::clients::Clients;
use crate::config::RespConfig;
use crate::connection::{Connection, Turns};
use crate::element_turns::ElementTurns;
use crate::metrics::{Metrics, RespMetrics};
use crate::queued::QueuedRoom;
use crate::remembered::Remembered;
use crate::replies::Replies;
use crate::shared::{Databases, Server, Shared};
use crate::store::Store;
use crate::waiters::Waiters;

/// Accepted connections that wait for their thread: a burst that comes while it is busy.
const HANDOVER_MAX: usize = 64;
/// How long open connections get to finish their commands when the server stops.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a refused client gets to read why.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(1);
/// Refused clients that are being told: more are dropped in silence, or refusing would need as much as serving.
const REFUSALS_MAX: usize = 64;
/// Pause after a failed accept (no file descriptors left, usually).
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// A running server. Dropping it stops it without waiting.
#[derive(Debug)]
pub struct RespServer {
    local_addr: SocketAddr,
    stop: ShutdownTrigger,
    /// Ends when everything that served has ended.
    ended: mpsc::Receiver<()>,
}

/// What a front end has in common with others.
pub struct Common {
    /// Long requests take their room from it.
    pub large: Room,
    /// With one, clients have to be users.
    pub access: Option<Arc<Desk>>,
    pub slow: SlowLog,
    /// What each user may take.
    pub allowances: Arc<Allowances>,
}

/// A thread that serves connections, or the caller's runtime.
struct Lane {
    handover: mpsc::Sender<(DetachedConnection, Place)>,
    load: Arc<AtomicUsize>,
}

/// A connection's place, given back when it closes.
struct Place {
    lane: Arc<AtomicUsize>,
    total: Arc<AtomicUsize>,
    metrics: Arc<Metrics>,
}

impl RespServer {
    /// As [`RespServer::start_with`], with room of its own for long requests, without users and without a slow log.
    pub async fn start<S: Store>(
        env: Env,
        config: RespConfig,
        store: S,
        metrics: RespMetrics,
    ) -> Result<RespServer> {
        let large = Room::new(config.max_large_bytes);
        let (slow, allowances) = (SlowLog::off(env.clock.clone()), Allowances::none(env.clock.clone()));
        Self::start_with(env, config, store, metrics, Common { large, access: None, slow, allowances }).await
    }

    /// Listens and serves in the background. Must be called within a tokio runtime, which accepts the connections; they
    /// are served by `config.threads` threads of their own.
    pub async fn start_with<S: Store>(
        env: Env,
        config: RespConfig,
        store: S,
        metrics: RespMetrics,
        common: Common,
    ) -> Result<RespServer> {
        let Common { large, access, slow, allowances } = common;
        config.validate()?;
        let mut listeners = Vec::new();
        // As of a port that is off.
        let mut local_addr = SocketAddr::from(([0, 0, 0, 0], 0));
        if !config.listen.is_empty() {
            let bound = env.net.bind(config.listen.clone(), Door::Resp).await;
            let listener = bound.map_err(|e| cannot_listen(Door::Resp.name(), &e))?;
            local_addr = listener.local_addr()?;
            listeners.push(listener);
        }
        if let Some(unix) = config.unix_listen() {
            let bound = env.net.bind_unix(unix).await;
            listeners.push(bound.map_err(|e| cannot_listen("resp_unix", &e))?);
        }
        let (stop, stopping) = shutdown::channel();
        let (serving, ended) = mpsc::channel(1);
        let server = Server {
            clients: Clients::new(local_addr),
            started_ns: env.clock.holder_ns(),
            key_seed: env.rng.next_u64(),
            large,
            ahead: Room::new(config.max_large_bytes),
            queued: QueuedRoom::new(config.max_large_bytes),
            access,
            slow,
            allowances,
            replies: Replies::new(config.max_reply_bytes, config.patience.reply),
            remembered: Remembered::new(config.max_remembered_bytes),
            cursors: Arc::default(),
            keys_turns: Arc::default(),
            turns: Turns::new(config.max_commands),
            gathering: Room::new(config.max_gathered_bytes),
            elements: ElementTurns::default(),
            waiters: Waiters::new(config.max_large_bytes),
            metrics: metrics.0,
            env,
            config,
            local_addr,
        };
        let databases = Shared::databases(server, &store);
        let shared = databases[0].clone();
        let lanes: Arc<[Lane]> = (0..shared.config.threads.max(1))
            .map(|i| {
                let (handover, arriving) = mpsc::channel(HANDOVER_MAX);
                let lane = serve(databases.clone(), arriving, stopping.clone(), serving.clone());
                if shared.config.threads == 0 {
                    tokio::spawn(lane);
                } else {
                    shared.env.dedicated(&format!("resp-{i}"), lane);
                }
                Lane { handover, load: Arc::default() }
            })
            .collect();
        let total = Arc::new(AtomicUsize::new(0));
        for listener in listeners {
            let (lanes, total) = (lanes.clone(), total.clone());
            tokio::spawn(accept(shared.clone(), listener, (lanes, total), stopping.clone(), serving.clone()));
        }
        Ok(RespServer { local_addr, stop, ended })
    }

    /// The address that was bound; port 0: none was.
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Accepts and reads no more, answers what was received, closes. Returns when all that is done, at the latest after
    /// some seconds.
    pub fn shutdown(self) -> BoxFuture<'static, ()> {
        Box::pin(self.shut_down())
    }

    async fn shut_down(mut self) {
        self.stop.trigger();
        let _ = self.ended.recv().await;
    }
}

async fn accept<S: Store>(
    shared: Arc<Shared<S>>,
    mut listener: Box<dyn Listener>,
    (lanes, total): (Arc<[Lane]>, Arc<AtomicUsize>),
    mut stopping: Shutdown,
    _serving: mpsc::Sender<()>,
) {
    let refusals = Arc::new(Semaphore::new(REFUSALS_MAX));
    loop {
        let accepted = tokio::select! {
            biased;
            () = stopping.wait() => return,
            accepted = listener.accept() => accepted,
        };
        let connection = match accepted {
            Ok(connection) => connection,
            Err(e) => {
                tracing::warn!("accept failed: {e}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        if let Some(after) = shared.config.tcp_keepalive()
            && let Err(e) = connection.keep_alive(after)
        {
            tracing::debug!("a connection is not kept alive: {e}");
        }
        if total.load(Ordering::Relaxed) >= shared.config.max_connections {
            shared.metrics.refused.inc();
            if let Ok(permit) = refusals.clone().try_acquire_owned() {
                tokio::spawn(refuse(connection, permit));
            }
            continue;
        }
        // The least busy lane; the first of them if they are equally busy.
        let Some(lane) = lanes.iter().min_by_key(|lane| lane.load.load(Ordering::Relaxed)) else { return };
        let place = Place::take(&lane.load, &total, &shared.metrics);
        match connection.detach() {
            Ok(connection) => {
                if lane.handover.send((connection, place)).await.is_err() {
                    tracing::error!("a thread that serves connections has ended");
                    return;
                }
            }
            Err(e) => tracing::warn!("a connection was lost: {e}"),
        }
    }
}

/// Serves the connections that arrive, until no more can arrive and all are closed.
async fn serve<S: Store>(
    databases: Databases<S>,
    mut arriving: mpsc::Receiver<(DetachedConnection, Place)>,
    stopping: Shutdown,
    _serving: mpsc::Sender<()>,
) {
    let mut connections = JoinSet::new();
    let had_its_turn = Arc::new(AtomicU64::new(0));
    loop {
        tokio::select! {
            arrived = arriving.recv() => {
                let Some((connection, place)) = arrived else { break };
                match connection.attach() {
                    Ok(io) => {
                        let (databases, mut stopping) = (databases.clone(), stopping.clone());
                        let had_its_turn = had_its_turn.clone();
                        connections.spawn(async move {
                            let established = tokio::select! {
                                biased;
                                established = io.established() => established,
                                () = stopping.wait() => return,
                            };
                            if let Ok(io) = established {
                                Connection::new(databases, io, had_its_turn).run(stopping).await;
                            }
                            drop(place);
                        });
                    }
                    Err(e) => tracing::warn!("a connection was lost: {e}"),
                }
            }
            Some(ended) = connections.join_next() => report(ended),
        }
    }
    let drained = tokio::time::timeout(DRAIN_TIMEOUT, async {
        while let Some(ended) = connections.join_next().await {
            report(ended);
        }
    });
    if drained.await.is_err() {
        tracing::warn!("{} connections were cut off with commands under way", connections.len());
        connections.shutdown().await;
    }
}

fn report(ended: std::result::Result<(), JoinError>) {
    if let Err(e) = ended {
        tracing::error!("serving a connection failed: {e}");
    }
}

async fn refuse(connection: env::Connection, _permit: OwnedSemaphorePermit) {
    let _ = tokio::time::timeout(REFUSAL_TIMEOUT, async {
        let mut connection = connection.established().await?;
        connection.write_all(b"-ERR max number of clients reached\r\n").await?;
        connection.shutdown().await
    })
    .await;
}

impl Place {
    fn take(lane: &Arc<AtomicUsize>, total: &Arc<AtomicUsize>, metrics: &Arc<Metrics>) -> Self {
        lane.fetch_add(1, Ordering::Relaxed);
        total.fetch_add(1, Ordering::Relaxed);
        metrics.accepted.inc();
        metrics.connections.inc();
        Self { lane: lane.clone(), total: total.clone(), metrics: metrics.clone() }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.lane.fetch_sub(1, Ordering::Relaxed);
        self.total.fetch_sub(1, Ordering::Relaxed);
        self.metrics.connections.dec();
    }
}
