//! The server: accepts connections, hands them to the threads that serve them, and stops in order.
//!
//! Whoever has not shown yet that it may come in has no place among the connections, and cannot keep others from theirs.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use sextant_access::{Allowances, Desk};
use sextant_common::Result;
use sextant_environment::Env;
use sextant_environment::env::{self, DetachedConnection, Door, HANDSHAKES_MAX, Listener, cannot_listen};
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
    handover: mpsc::Sender<Arrival>,
    load: Arc<AtomicUsize>,
}

/// A connection on its way to its thread.
struct Arrival {
    connection: DetachedConnection,
    load: Load,
    /// Until it is established.
    handshake: OwnedSemaphorePermit,
}

/// One more connection of a lane, also if it has no place yet; until it is dropped.
struct Load(Arc<AtomicUsize>);

/// How many are connected, by all listeners.
struct Entrance {
    max: usize,
    total: AtomicUsize,
    /// Those that are told that they may not be.
    refusals: Semaphore,
    metrics: Arc<Metrics>,
}

/// A connection's place, given back when it closes.
struct Place(Arc<Entrance>);

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
        let entrance = Arc::new(Entrance {
            max: shared.config.max_connections,
            total: AtomicUsize::new(0),
            refusals: Semaphore::new(REFUSALS_MAX),
            metrics: shared.metrics.clone(),
        });
        let lanes: Arc<[Lane]> = (0..shared.config.threads.max(1))
            .map(|i| {
                let (handover, arriving) = mpsc::channel(HANDOVER_MAX);
                let (databases, entrance) = (databases.clone(), entrance.clone());
                let lane = serve(databases, arriving, entrance, stopping.clone(), serving.clone());
                if shared.config.threads == 0 {
                    tokio::spawn(lane);
                } else {
                    shared.env.dedicated(&format!("resp-{i}"), lane);
                }
                Lane { handover, load: Arc::default() }
            })
            .collect();
        for listener in listeners {
            let inside = (lanes.clone(), entrance.clone());
            tokio::spawn(accept(shared.clone(), listener, inside, stopping.clone(), serving.clone()));
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
    (lanes, entrance): (Arc<[Lane]>, Arc<Entrance>),
    mut stopping: Shutdown,
    _serving: mpsc::Sender<()>,
) {
    let handshakes = Arc::new(Semaphore::new(HANDSHAKES_MAX));
    loop {
        let accepted = tokio::select! {
            biased;
            () = stopping.wait() => return,
            accepted = next(&mut *listener, &handshakes) => accepted,
        };
        let (connection, handshake) = match accepted {
            Ok(accepted) => accepted,
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
        // (When it is established, it may find no place all the same.)
        if entrance.is_full() {
            let entrance = entrance.clone();
            tokio::spawn(async move { entrance.refuse(connection).await });
            continue;
        }
        // The least busy lane; the first of them if they are equally busy.
        let Some(lane) = lanes.iter().min_by_key(|lane| lane.load.load(Ordering::Relaxed)) else { return };
        let load = Load::of(lane);
        match connection.detach() {
            Ok(connection) => {
                if lane.handover.send(Arrival { connection, load, handshake }).await.is_err() {
                    tracing::error!("a thread that serves connections has ended");
                    return;
                }
            }
            Err(e) => tracing::warn!("a connection was lost: {e}"),
        }
    }
}

/// The next connection, when there may be one more handshake. All others wait in the kernel's queue.
async fn next(
    listener: &mut dyn Listener,
    handshakes: &Arc<Semaphore>,
) -> io::Result<(env::Connection, OwnedSemaphorePermit)> {
    let handshake = handshakes.clone().acquire_owned().await.map_err(io::Error::other)?;
    Ok((listener.accept().await?, handshake))
}

/// Serves the connections that arrive, until no more can arrive and all are closed.
async fn serve<S: Store>(
    databases: Databases<S>,
    mut arriving: mpsc::Receiver<Arrival>,
    entrance: Arc<Entrance>,
    stopping: Shutdown,
    _serving: mpsc::Sender<()>,
) {
    let mut connections = JoinSet::new();
    let had_its_turn = Arc::new(AtomicU64::new(0));
    loop {
        tokio::select! {
            arrived = arriving.recv() => {
                let Some(Arrival { connection, load, handshake }) = arrived else { break };
                match connection.attach() {
                    Ok(io) => {
                        let (databases, mut stopping) = (databases.clone(), stopping.clone());
                        let (entrance, had_its_turn) = (entrance.clone(), had_its_turn.clone());
                        connections.spawn(async move {
                            let established = tokio::select! {
                                biased;
                                established = io.established() => established,
                                () = stopping.wait() => return,
                            };
                            drop(handshake);
                            let Ok(io) = established else { return };
                            if let Some(place) = entrance.enter() {
                                Connection::new(databases, io, had_its_turn).run(stopping).await;
                                drop(place);
                            } else {
                                entrance.refuse(io).await;
                            }
                            drop(load);
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

impl Entrance {
    fn is_full(&self) -> bool {
        self.total.load(Ordering::Relaxed) >= self.max
    }

    /// None: there is no place left.
    fn enter(self: &Arc<Self>) -> Option<Place> {
        let one_more = |total| (total < self.max).then_some(total + 1);
        self.total.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).ok()?;
        self.metrics.accepted.inc();
        self.metrics.connections.inc();
        Some(Place(self.clone()))
    }

    /// Tells a client that there is no place, unless too many are being told.
    async fn refuse(&self, connection: env::Connection) {
        self.metrics.refused.inc();
        let Ok(_refusal) = self.refusals.try_acquire() else { return };
        let _ = tokio::time::timeout(REFUSAL_TIMEOUT, async {
            let mut connection = connection.established().await?;
            connection.write_all(b"-ERR max number of clients reached\r\n").await?;
            connection.shutdown().await
        })
        .await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let Self(entrance) = self;
        entrance.total.fetch_sub(1, Ordering::Relaxed);
        entrance.metrics.connections.dec();
    }
}

impl Load {
    fn of(lane: &Lane) -> Self {
        lane.load.fetch_add(1, Ordering::Relaxed);
        Self(lane.load.clone())
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use parking_lot::Mutex;
    use prometheus_client::registry::Registry;
    use sextant_access::{AccessConfig, Keeper, Outcomes, Stored};
    use sextant_common::database::Database;
    use sextant_common::operation::{Lane, Operation, Put, Record, WriteOutcome};
    use sextant_environment::env::{Handshake, Network, Whom};
    use tokio::io::{AsyncReadExt, DuplexStream};

    use super::*;
    use crate::store::{ElementPage, ElementRange, Look, Named, Position, SetCondition, Walk};

    /// Nobody asks for anything in it.
    #[derive(Clone)]
    struct Nothing;

    impl Store for Nothing {
        type Missed = ();

        fn database(&self, _: Database) -> Self {
            Self
        }

        fn open(&self, _: bool) -> impl Future<Output = Result<bool>> + Send + 'static {
            std::future::ready(Ok(true))
        }

        async fn databases(&self) -> Result<Vec<Database>> {
            unimplemented!()
        }

        fn look(&self, _: &[u8]) -> Look<()> {
            unimplemented!()
        }

        async fn get(&self, _: Bytes, (): ()) -> Result<Option<Record>> {
            unimplemented!()
        }

        async fn multi_get(&self, _: Vec<Bytes>, (): ()) -> Result<Vec<Option<Record>>> {
            unimplemented!()
        }

        async fn set(&self, _: Put, _: SetCondition, _: Lane) -> Result<bool> {
            unimplemented!()
        }

        async fn multi_set(&self, _: Vec<(Bytes, Bytes)>, _: Lane) -> Result<()> {
            unimplemented!()
        }

        async fn delete(&self, _: Vec<Bytes>, _: Lane) -> Result<u64> {
            unimplemented!()
        }

        async fn exists(&self, _: Vec<Bytes>, (): ()) -> Result<u64> {
            unimplemented!()
        }

        async fn elements(&self, _: Vec<Bytes>) -> Result<Vec<Option<Record>>> {
            unimplemented!()
        }

        async fn element_page(&self, _: ElementRange) -> Result<ElementPage> {
            unimplemented!()
        }

        async fn walk(&self, _: Walk) -> Result<(Vec<Named>, Option<Position>)> {
            unimplemented!()
        }

        async fn any_key(&self, _: u64) -> Result<Option<Bytes>> {
            unimplemented!()
        }

        fn are_together<'k>(&self, _: impl IntoIterator<Item = &'k [u8]>) -> bool {
            unimplemented!()
        }

        async fn execute(&self, _: Vec<Operation>, _: Lane) -> Result<WriteOutcome> {
            unimplemented!()
        }

        fn now_ms(&self) -> u64 {
            0
        }

        fn info(&self) -> Vec<(&'static str, Vec<(String, String)>)> {
            Vec::new()
        }
    }

    /// A list of users that is empty.
    struct NoUsers;

    impl Keeper for NoUsers {
        fn load(&self) -> BoxFuture<'_, Result<Option<Stored>>> {
            Box::pin(std::future::ready(Ok(None)))
        }

        fn store(&self, _: String, _: u64) -> BoxFuture<'_, Result<bool>> {
            Box::pin(std::future::ready(Ok(false)))
        }
    }

    /// A port in memory, at which a handshake is one byte.
    struct Port(Mutex<Option<mpsc::Receiver<DuplexStream>>>);

    struct PortListener(mpsc::Receiver<DuplexStream>);

    struct OneByte;

    impl Network for Port {
        fn bind(&self, _: String, _: Door) -> BoxFuture<'static, io::Result<Box<dyn Listener>>> {
            let arriving = self.0.lock().take().expect("one listener");
            Box::pin(async { Ok(Box::new(PortListener(arriving)) as Box<dyn Listener>) })
        }

        fn connect(&self, _: String, _: Whom) -> BoxFuture<'static, io::Result<env::Connection>> {
            Box::pin(async { Err(io::ErrorKind::Unsupported.into()) })
        }
    }

    impl Listener for PortListener {
        fn local_addr(&self) -> io::Result<SocketAddr> {
            Ok(([127, 0, 0, 1], 6379).into())
        }

        fn accept(&mut self) -> BoxFuture<'_, io::Result<env::Connection>> {
            Box::pin(async {
                match self.0.recv().await {
                    Some(stream) => Ok(env::Connection::new(stream, None).before(Arc::new(OneByte))),
                    None => std::future::pending().await,
                }
            })
        }
    }

    impl Handshake for OneByte {
        fn perform(
            &self,
            mut connection: env::Connection,
        ) -> BoxFuture<'static, io::Result<env::Connection>> {
            Box::pin(async move {
                connection.read_u8().await?;
                Ok(connection)
            })
        }
    }

    struct Running {
        _server: RespServer,
        arrive: mpsc::Sender<DuplexStream>,
    }

    /// `asks`: clients have to be users.
    async fn started(max_connections: usize, asks: bool) -> Running {
        let (arrive, arriving) = mpsc::channel(16);
        let env = Env { net: Arc::new(Port(Mutex::new(Some(arriving)))), ..Env::real() };
        let mut registry = Registry::default();
        let users = AccessConfig { superusers: [("root".to_owned(), String::new())].into() };
        let outcomes = Outcomes::register(&mut registry);
        let desk = Desk::new(env.clone(), &users, Arc::new(NoUsers), outcomes).unwrap();
        let common = Common {
            large: Room::new(1 << 20),
            access: asks.then_some(desk),
            slow: SlowLog::off(env.clock.clone()),
            allowances: Allowances::none(env.clock.clone()),
        };
        let config = RespConfig { max_connections, threads: 0, ..RespConfig::default() };
        let metrics = RespMetrics::register(&mut registry);
        let server = RespServer::start_with(env, config, Nothing, metrics, common).await.unwrap();
        Running { _server: server, arrive }
    }

    impl Running {
        /// A connection that has said nothing.
        async fn arrives(&self) -> DuplexStream {
            let (near, far) = tokio::io::duplex(1024);
            self.arrive.send(far).await.unwrap();
            near
        }

        /// One whose handshake is done.
        async fn client(&self) -> DuplexStream {
            let mut near = self.arrives().await;
            near.write_all(b"!").await.unwrap();
            near
        }
    }

    /// What a client is told until that, or the end.
    async fn told(client: &mut DuplexStream, last: &str) -> String {
        let mut told = Vec::new();
        while !told.ends_with(last.as_bytes()) {
            match client.read_u8().await {
                Ok(byte) => told.push(byte),
                Err(_) => break,
            }
        }
        String::from_utf8(told).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_is_not_established_has_no_place() {
        let running = started(2, false).await;
        let mut half_open = Vec::new();
        for _ in 0..1000 {
            half_open.push(running.arrives().await);
        }
        let mut clients = Vec::new();
        for _ in 0..2 {
            let mut client = running.client().await;
            client.write_all(b"PING\r\n").await.unwrap();
            assert_eq!(told(&mut client, "\r\n").await, "+PONG\r\n");
            clients.push(client);
        }
        // Now there is none, neither for those nor for others.
        let mut late = half_open.swap_remove(0);
        late.write_all(b"!").await.unwrap();
        for mut refused in [late, running.client().await] {
            assert_eq!(told(&mut refused, "\r\n").await, "-ERR max number of clients reached\r\n");
        }
        drop(clients);
    }

    const NOAUTH: &str = "-NOAUTH Authentication required.\r\n";

    #[tokio::test(start_paused = true)]
    async fn who_has_to_say_who_it_is_and_does_not_loses_the_connection() {
        let running = started(2, true).await;
        let mut silent = running.client().await;
        let mut talks = running.client().await;
        for _ in 0..2 {
            talks.write_all(b"PING\r\n").await.unwrap();
            assert_eq!(told(&mut talks, "\r\n").await, NOAUTH);
            let early = tokio::time::timeout(Duration::from_secs(14), silent.read_u8()).await;
            assert!(early.is_err(), "it has half a minute");
        }
        for mut nobody in [silent, talks] {
            let over = tokio::time::timeout(Duration::from_secs(4), told(&mut nobody, "none")).await;
            assert_eq!(over.unwrap(), "-NOAUTH Authentication required within 30 seconds.\r\n");
        }
        // Others have the places, when those are gone.
        tokio::time::sleep(Duration::from_secs(1)).await;
        let mut another = running.client().await;
        another.write_all(b"PING\r\n").await.unwrap();
        assert_eq!(told(&mut another, "\r\n").await, NOAUTH);
    }

    #[tokio::test(start_paused = true)]
    async fn where_nobody_has_to_be_a_user_a_connection_may_be_silent() {
        let running = started(1, false).await;
        let mut silent = running.client().await;
        let early = tokio::time::timeout(Duration::from_secs(3600), silent.read_u8()).await;
        assert!(early.is_err());
    }
}
