//! The p-node as a server: the library and its listeners.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use sextant_access::{Allowances, Desk, Outcomes};
use sextant_common::Result;
use sextant_environment::Env;
use sextant_environment::calls::{Calls, CallsLayer};
use sextant_environment::env::{Door, Listener, Listening, cannot_listen};
use sextant_environment::freight::FreightLayer;
use sextant_environment::http::{self, HttpState};
use sextant_environment::room::Room;
use sextant_environment::shutdown::{self, Shutdown, ShutdownTrigger};
use sextant_environment::slow_log::SlowLog;
use sextant_proto::MESSAGE_BYTES_MAX;
use sextant_proto::v1::admin_server::AdminServer;
use sextant_proto::v1::kv_server::KvServer;
use sextant_proto::v1::users_server::UsersServer;
use sextant_proto::v1::whereabouts_server::WhereaboutsServer;
use sextant_resp::{Common, RespConfig, RespMetrics, RespServer};
use tokio::runtime::RuntimeFlavor;
use tokio::task::JoinHandle;
use tonic::transport::Server;
use tonic::transport::server::Router;
use tower::layer::util::{Identity, Stack};

use crate::config::PNodeConfig;
use crate::frontend::{
    AdminService, Gate, KvService, RespStore, Sweep, Sweeper, UserRecord, UsersService, WhereaboutsService,
    counted, own_status,
};
use crate::pnode::PNode;

/// Calls of one connection that may be under way.
const CALLS_PER_CONNECTION_MAX: u32 = 1024;
/// What a client may send before it is read: of one call, and of a connection.
const STREAM_WINDOW_BYTES: u32 = 1024 * 1024;
const CONNECTION_WINDOW_BYTES: u32 = 4 * 1024 * 1024;
/// Operators are few.
const ADMIN_CONNECTIONS_MAX: usize = 64;
/// How soon a client that has vanished is noticed.
const KEEP_ALIVE: Duration = Duration::from_secs(10);
/// How long calls under way get to finish when the server stops.
const DRAIN_MAX: Duration = Duration::from_secs(2);

/// What is called here, for the figures of calls.
const SERVICES: [&str; 4] = ["Kv", "Admin", "Users", "Whereabouts"];

/// A running p-node. Dropping it stops it without waiting.
pub struct PNodeServer {
    pnode: PNode,
    grpc: SocketAddr,
    admin: SocketAddr,
    /// Of both gRPC services.
    grpc_ended: Vec<JoinHandle<()>>,
    resp: Option<RespServer>,
    http: Option<SocketAddr>,
    stop: ShutdownTrigger,
    listening: Listening,
}

impl PNodeServer {
    /// Starts the p-node and listens. Does not wait for the cluster: `/health/ready` tells.
    pub fn start(env: Env, config: PNodeConfig) -> BoxFuture<'static, Result<PNodeServer>> {
        Box::pin(async move {
            config.validate()?;
            let (env, listening) = Listening::counted(env);
            let pnode = PNode::start(env.clone(), config.library()).await?;
            let (stop, stopping) = shutdown::channel();
            let mut registry = Registry::default();
            pnode.metrics().register(&mut registry);
            let allowances = Allowances::new(env.clock.clone(), config.limits.clone(), &mut registry);
            let gate = Gate {
                desk: desk(&env, &config, &pnode, &mut registry, &stopping)?,
                allowances: allowances.clone(),
            };
            let slow = SlowLog::new(env.clock.clone(), config.slow_ms, &mut registry);
            let calls = CallsLayer(Calls::register(
                env.clock.clone(),
                sextant_proto::METHODS,
                &SERVICES,
                slow.clone(),
                &mut registry,
            ));
            let admins = AdminService::new(pnode.clone(), gate.clone());
            let (admin, admin_ended) =
                serve_admin(&env, &config, admins, gate.clone(), (calls.clone(), stopping.clone())).await?;
            let large = Room::new(config.large_bytes_max);
            let kv =
                KvService::new(pnode.clone(), large.clone(), Room::new(config.large_bytes_max), gate.clone());
            let (grpc, kv_ended) = serve_kv(&env, &config, kv, admin, (calls, stopping.clone())).await?;
            let grpc_ended = vec![kv_ended, admin_ended];
            let resp = match &config.resp {
                None => None,
                Some(listen) => {
                    let settings = RespConfig {
                        listen: listen.clone(),
                        max_connections: config.max_connections,
                        max_commands: config.commands_max,
                        max_large_bytes: config.large_bytes_max,
                        max_reply_bytes: config.reply_bytes_max,
                        threads: resp_threads(&env, config.resp_threads),
                        order: config.resp_order,
                        idle_timeout_ms: config.limits.idle_s.saturating_mul(1_000),
                        ..RespConfig::default()
                    };
                    let metrics = RespMetrics::register(&mut registry);
                    let common = Common { large, access: gate.desk, slow, allowances };
                    let sweeper = Sweeper::start(&pnode, &stopping);
                    let store = RespStore::new(pnode.clone(), config.commands_max).swept_by(sweeper);
                    Some(RespServer::start_with(env.clone(), settings, store, metrics, common).await?)
                }
            };
            let http = match &config.http {
                None => None,
                Some(addr) => Some(http::serve(&env, addr, http_state(&pnode, registry), stopping).await?),
            };
            tracing::info!(id = %config.id, %grpc, %admin, ?http, "p-node started");
            Ok(PNodeServer { pnode, grpc, admin, grpc_ended, resp, http, stop, listening })
        })
    }

    pub fn grpc_addr(&self) -> SocketAddr {
        self.grpc
    }

    /// Where administration listens.
    pub fn admin_addr(&self) -> SocketAddr {
        self.admin
    }

    pub fn resp_addr(&self) -> Option<SocketAddr> {
        self.resp.as_ref().map(RespServer::local_addr)
    }

    pub fn http_addr(&self) -> Option<SocketAddr> {
        self.http
    }

    /// The p-node itself, for whoever is in its process.
    pub fn local(&self) -> &PNode {
        &self.pnode
    }

    /// Deletes what objects have left behind, in all partitions where nobody has done so lately. How many elements.
    pub async fn sweep(&self) -> Result<u64> {
        let sweep = Sweep { pnode: self.pnode.clone() };
        let mut swept = 0;
        for partition in self.pnode.core().views.partitions() {
            swept += sweep.partition(partition).await?;
        }
        Ok(swept)
    }

    /// Takes no new calls, lets those under way finish for a while, gives the leases back.
    pub fn shutdown(self) -> BoxFuture<'static, ()> {
        Box::pin(self.shut_down())
    }

    async fn shut_down(self) {
        self.stop.trigger();
        let resp = async {
            if let Some(resp) = self.resp {
                resp.shutdown().await;
            }
        };
        let grpc = self.grpc_ended.into_iter().map(|mut ended| async move {
            if tokio::time::timeout(DRAIN_MAX, &mut ended).await.is_err() {
                ended.abort();
            }
        });
        tokio::join!(resp, futures::future::join_all(grpc));
        self.pnode.shutdown().await;
        self.listening.closed().await;
    }
}

/// Threads of the RESP front end; 0: a runtime that has only this thread serves it.
fn resp_threads(env: &Env, asked: usize) -> usize {
    let flavor = tokio::runtime::Handle::current().runtime_flavor();
    match env.serving_threads(asked) {
        1 if flavor == RuntimeFlavor::CurrentThread => 0,
        threads => threads,
    }
}

/// Who may do what, if that is asked; kept current until the server stops.
fn desk(
    env: &Env,
    config: &PNodeConfig,
    pnode: &PNode,
    registry: &mut Registry,
    stopping: &Shutdown,
) -> Result<Option<Arc<Desk>>> {
    let outcomes = Outcomes::register(registry);
    let Some(access) = &config.access else { return Ok(None) };
    let desk = Desk::new(env.clone(), access, Arc::new(UserRecord(pnode.clone())), outcomes)?;
    let (watched, mut stopping) = (desk.clone(), stopping.clone());
    tokio::spawn(async move {
        tokio::select! {
            () = watched.watch() => {}
            () = stopping.wait() => {}
        }
    });
    Ok(Some(desk))
}

/// For clients.
async fn serve_kv(
    env: &Env,
    config: &PNodeConfig,
    kv: KvService,
    admin: SocketAddr,
    (calls, stopping): (CallsLayer, Shutdown),
) -> Result<(SocketAddr, JoinHandle<()>)> {
    let kv = KvServer::new(kv)
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX);
    let listener = bind(env, Door::Grpc, &config.grpc).await?;
    let addr = listener.local_addr().map_err(|e| cannot_listen("grpc", &e))?;
    let router = builder(calls).add_service(kv).add_service(whereabouts(admin));
    Ok((addr, spawn(listener, config.max_connections, router, stopping)))
}

/// For operators: on an address of its own, so that whoever may read and write may not change who votes.
async fn serve_admin(
    env: &Env,
    config: &PNodeConfig,
    admins: AdminService,
    gate: Gate,
    (calls, stopping): (CallsLayer, Shutdown),
) -> Result<(SocketAddr, JoinHandle<()>)> {
    let listener = bind(env, Door::Admin, &config.admin_addr()).await?;
    let addr = listener.local_addr().map_err(|e| cannot_listen("admin", &e))?;
    // Operators' tools may name this address as well as the clients' one.
    let router = builder(calls)
        .add_service(AdminServer::new(admins))
        .add_service(UsersServer::new(UsersService::new(gate)))
        .add_service(whereabouts(addr));
    Ok((addr, spawn(listener, ADMIN_CONNECTIONS_MAX, router, stopping)))
}

fn whereabouts(admin: SocketAddr) -> WhereaboutsServer<WhereaboutsService> {
    WhereaboutsServer::new(WhereaboutsService { admin })
}

async fn bind(env: &Env, door: Door, addr: &str) -> Result<Box<dyn Listener>> {
    env.net.bind(addr.to_owned(), door).await.map_err(|e| cannot_listen(door.name(), &e))
}

/// Calls are measured; answers hold their room until they have left.
type Laden = Stack<FreightLayer, Stack<CallsLayer, Identity>>;

fn builder(calls: CallsLayer) -> Server<Laden> {
    Server::builder()
        .layer(calls)
        .layer(FreightLayer)
        .tcp_nodelay(true)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_concurrent_streams(CALLS_PER_CONNECTION_MAX)
        .http2_keepalive_interval(Some(KEEP_ALIVE))
        .http2_keepalive_timeout(Some(KEEP_ALIVE))
}

fn spawn(
    listener: Box<dyn Listener>,
    connections: usize,
    router: Router<Laden>,
    mut stopping: Shutdown,
) -> JoinHandle<()> {
    let incoming = counted(listener, connections);
    tokio::spawn(async move {
        let until = async move { stopping.wait().await };
        if let Err(e) = router.serve_with_incoming_shutdown(incoming, until).await {
            tracing::error!("a gRPC server ended: {e}");
        }
    })
}

fn http_state(pnode: &PNode, registry: Registry) -> HttpState {
    let (for_ready, for_status) = (pnode.clone(), pnode.clone());
    HttpState {
        registry: Arc::new(Mutex::new(registry)),
        ready: Arc::new(move || for_ready.check_ready().map_err(|e| e.to_string())),
        status: Arc::new(move || {
            let pnode = for_status.clone();
            async move { own_status(&pnode).to_string() }.boxed()
        }),
    }
}
