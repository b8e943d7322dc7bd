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
use sextant_environment::env::Listening;
use sextant_environment::http::{self, HttpState};
use sextant_environment::room::Room;
use sextant_environment::shutdown::{self, Shutdown, ShutdownTrigger};
use sextant_environment::slow_log::SlowLog;
use sextant_proto::MESSAGE_BYTES_MAX;
use sextant_resp::{Common, RespConfig, RespMetrics, RespServer};
use tokio::runtime::RuntimeFlavor;
use tokio::task::JoinHandle;

use crate::config::PNodeConfig;
use crate::frontend::{
    AdminService, Gate, KvService, RespStore, Rooms, Sweep, Sweeper, UserRecord, own_status,
};
use crate::grpc_listeners::{GrpcListeners, METHODS_OF_OTHERS};
use crate::pnode::PNode;

/// How long calls under way get to finish when the server stops.
const DRAIN_MAX: Duration = Duration::from_secs(2);

/// What is called here, for the figures of calls.
const SERVICES: [&str; 6] = ["Kv", "Admin", "Users", "Whereabouts", "Health", "ServerReflection"];

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
                &[sextant_proto::METHODS, &METHODS_OF_OTHERS].concat(),
                &SERVICES,
                slow.clone(),
                &mut registry,
            ));
            let listeners = GrpcListeners {
                env: &env,
                config: &config,
                pnode: &pnode,
                gate: gate.clone(),
                instance: env.rng.next_u64().max(1),
                calls,
                stopping: stopping.clone(),
            };
            let admins = AdminService::new(pnode.clone(), gate.clone(), stopping.clone());
            let (admin, admin_ended) = listeners.for_operators(admins).await?;
            let large = Room::new(config.large_bytes_max);
            let rooms = Rooms::new(large.clone(), config.large_bytes_max);
            let answers = config.reply_bytes_max.max(MESSAGE_BYTES_MAX);
            let kv = KvService::new(pnode.clone(), rooms.clone(), answers, gate.clone());
            let (grpc, mut grpc_ended) = listeners.for_clients(kv, &rooms, admin).await?;
            grpc_ended.push(admin_ended);
            let resp = match (&config.resp, &config.resp_unix) {
                (None, None) => None,
                (listen, unix) => {
                    let settings = RespConfig {
                        listen: listen.clone().unwrap_or_default(),
                        unix: unix.clone(),
                        unix_mode: config.unix_mode,
                        max_connections: config.max_connections,
                        max_commands: config.commands_max,
                        max_large_bytes: config.large_bytes_max,
                        max_reply_bytes: config.reply_bytes_max,
                        max_remembered_bytes: config.remembered_bytes() as usize,
                        threads: resp_threads(&env, config.resp_threads),
                        order: config.resp_order,
                        tcp_keepalive_s: config.tcp_keepalive_s,
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
        self.resp.as_ref().map(RespServer::local_addr).filter(|addr| addr.port() != 0)
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
        let mut swept = 0;
        for sweep in Sweep::all(&self.pnode) {
            for partition in self.pnode.core().views.partitions() {
                swept += sweep.partition(partition).await?;
            }
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
