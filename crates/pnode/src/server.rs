//! The p-node as a server: the engine and its listeners.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use sextant_common::http::{self, HttpState};
use sextant_common::shutdown::{self, Shutdown, ShutdownTrigger};
use sextant_common::{Env, Error, ErrorKind, Result};
use sextant_proto::MESSAGE_BYTES_MAX;
use sextant_proto::v1::admin_server::AdminServer;
use sextant_proto::v1::kv_server::KvServer;
use sextant_resp::{RespConfig, RespMetrics, RespServer};
use tokio::task::JoinHandle;
use tonic::transport::Server;

use crate::config::PNodeConfig;
use crate::engine::PNode;
use crate::frontend::{AdminService, KvService, RespStore, counted, own_status};

/// Calls of one connection that may be under way.
const CALLS_PER_CONNECTION_MAX: u32 = 1024;
const STREAM_WINDOW_BYTES: u32 = 4 * 1024 * 1024;
const CONNECTION_WINDOW_BYTES: u32 = 16 * 1024 * 1024;
/// How soon a client that has vanished is noticed.
const KEEP_ALIVE: Duration = Duration::from_secs(10);
/// How long calls under way get to finish when the server stops.
const DRAIN_MAX: Duration = Duration::from_secs(2);

/// A running p-node. Dropping it stops it without waiting.
pub struct PNodeServer {
    engine: PNode,
    grpc: SocketAddr,
    grpc_ended: JoinHandle<()>,
    resp: Option<RespServer>,
    http: Option<SocketAddr>,
    stop: ShutdownTrigger,
}

impl PNodeServer {
    /// Starts the engine and listens. Does not wait for the cluster: `/health/ready` tells.
    pub async fn start(env: Env, config: PNodeConfig) -> Result<PNodeServer> {
        config.validate()?;
        let engine = PNode::start(env.clone(), config.engine()).await?;
        let (stop, stopping) = shutdown::channel();
        let mut registry = Registry::default();
        engine.metrics().register(&mut registry);
        let (grpc, grpc_ended) = serve_grpc(&env, &config, engine.clone(), stopping.clone()).await?;
        let resp = match &config.resp {
            None => None,
            Some(listen) => {
                let settings = RespConfig {
                    listen: listen.clone(),
                    max_connections: config.max_connections,
                    ..RespConfig::default()
                };
                let metrics = RespMetrics::register(&mut registry);
                Some(RespServer::start(env.clone(), settings, RespStore::new(engine.clone()), metrics).await?)
            }
        };
        let http = match &config.http {
            None => None,
            Some(addr) => Some(http::serve(&env, addr, http_state(&engine, registry), stopping).await?),
        };
        tracing::info!(id = %config.id, %grpc, ?http, "p-node started");
        Ok(PNodeServer { engine, grpc, grpc_ended, resp, http, stop })
    }

    pub fn grpc_addr(&self) -> SocketAddr {
        self.grpc
    }

    pub fn resp_addr(&self) -> Option<SocketAddr> {
        self.resp.as_ref().map(RespServer::local_addr)
    }

    pub fn http_addr(&self) -> Option<SocketAddr> {
        self.http
    }

    pub fn engine(&self) -> &PNode {
        &self.engine
    }

    /// Takes no new calls, lets those under way finish for a while, gives the leases back.
    pub async fn shutdown(self) {
        self.stop.trigger();
        let resp = async {
            if let Some(resp) = self.resp {
                resp.shutdown().await;
            }
        };
        let mut grpc_ended = self.grpc_ended;
        let grpc = async {
            if tokio::time::timeout(DRAIN_MAX, &mut grpc_ended).await.is_err() {
                grpc_ended.abort();
            }
        };
        tokio::join!(resp, grpc);
        self.engine.shutdown().await;
    }
}

async fn serve_grpc(
    env: &Env,
    config: &PNodeConfig,
    engine: PNode,
    mut stopping: Shutdown,
) -> Result<(SocketAddr, JoinHandle<()>)> {
    let cannot = |e: std::io::Error| Error::new(ErrorKind::Invalid, format!("grpc: {e}"));
    let listener = env.net.bind(config.grpc.clone()).await.map_err(cannot)?;
    let addr = listener.local_addr().map_err(cannot)?;
    let incoming = counted(listener, config.max_connections);
    let kv = KvServer::new(KvService::new(engine.clone()))
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX);
    let router = Server::builder()
        .tcp_nodelay(true)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_concurrent_streams(CALLS_PER_CONNECTION_MAX)
        .http2_keepalive_interval(Some(KEEP_ALIVE))
        .http2_keepalive_timeout(Some(KEEP_ALIVE))
        .add_service(kv)
        .add_service(AdminServer::new(AdminService::new(engine)));
    let served = tokio::spawn(async move {
        let until = async move { stopping.wait().await };
        if let Err(e) = router.serve_with_incoming_shutdown(incoming, until).await {
            tracing::error!("the gRPC server ended: {e}");
        }
    });
    Ok((addr, served))
}

fn http_state(engine: &PNode, registry: Registry) -> HttpState {
    let (for_ready, for_status) = (engine.clone(), engine.clone());
    HttpState {
        registry: Arc::new(Mutex::new(registry)),
        ready: Arc::new(move || for_ready.check_ready().map_err(|e| e.to_string())),
        status: Arc::new(move || {
            let engine = for_status.clone();
            async move { own_status(engine.engine()).to_string() }.boxed()
        }),
    }
}
