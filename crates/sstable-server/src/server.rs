//! Starting and stopping the server.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use sextant_common::error::{Error, ErrorKind, Result};
use sextant_environment::Env;
use sextant_environment::calls::{Calls, CallsLayer};
use sextant_environment::config::foreign_volume;
use sextant_environment::disk_space::DiskSpace;
use sextant_environment::env::{Door, Listening, Party, cannot_listen, grpc_incoming, internal_calls};
use sextant_environment::freight::FreightLayer;
use sextant_environment::http::{self, HttpState};
use sextant_environment::shutdown::{self, Shutdown, ShutdownTrigger};
use sextant_environment::slow_log::SlowLog;
use sextant_proto::MESSAGE_BYTES_MAX;
use sextant_proto::v1::admin_server::AdminServer;
use sextant_proto::v1::sst_server::SstServer as SstGrpc;
use tokio::task::JoinHandle;
use tonic::service::InterceptorLayer;
use tonic::transport::Server;

use crate::catalog::Catalog;
use crate::config::SstServerConfig;
use crate::data_dir::{DataDir, IDENTITY_FILE};
use crate::metrics::Metrics;
use crate::service::{AdminService, SstService};
use crate::store::Store;
use crate::table::block_cache::BlockCache;

/// Tables are opened by so many jobs at start: the time goes to waiting for the disk.
const OPEN_JOBS: usize = 8;
/// Requests in flight at shutdown may take so long; those after it are cut.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(5);
/// HTTP/2 windows: a batch of large values or a chunk of a table in flight must not wait for a round trip.
const STREAM_WINDOW_BYTES: u32 = 4 * 1024 * 1024;
const CONNECTION_WINDOW_BYTES: u32 = 16 * 1024 * 1024;
/// How soon a silent peer is noticed, so that its streams free what they hold.
const KEEP_ALIVE: Duration = Duration::from_secs(10);
/// Streams of one peer at a time: scans and copies beside its long-lived ones.
const STREAMS_MAX: u32 = 1024;

/// What is called here, for the figures of calls.
const SERVICES: [&str; 2] = ["Sst", "Admin"];
/// A running sstable server. Dropping it stops it without waiting.
pub struct SstServer {
    addr: SocketAddr,
    http_addr: Option<SocketAddr>,
    store: Arc<Store>,
    trigger: ShutdownTrigger,
    tasks: Vec<JoinHandle<()>>,
    listening: Listening,
}

impl std::fmt::Debug for SstServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SstServer({})", self.addr)
    }
}

impl SstServer {
    /// Opens the data directory with all tables, listens, and serves on the calling runtime. Fails with
    /// [`ErrorKind::Invalid`] if the configuration or the directory is not this server's, with `Unavailable` if somebody else has
    /// its port.
    pub fn start(env: Env, config: SstServerConfig) -> BoxFuture<'static, Result<SstServer>> {
        Box::pin(async move {
            config.validate()?;
            let (env, listening) = Listening::counted(env);
            let (trigger, shutdown) = shutdown::channel();
            let catalog = open_catalog(&env, &config).await?;
            let mut registry = Registry::default();
            let metrics = Metrics::register(&mut registry, catalog.clone());
            let cannot = |e: std::io::Error| cannot_listen("listen", &e);
            let listener = env.net.bind(config.listen.clone(), Door::Members).await.map_err(cannot)?;
            let addr = listener.local_addr().map_err(cannot)?;
            DiskSpace::register(&env, vec![config.data_dir.clone()], &mut registry);
            let calls = Calls::register(
                env.clock.clone(),
                sextant_proto::METHODS,
                &SERVICES,
                SlowLog::off(env.clock.clone()),
                &mut registry,
            );
            let store = Arc::new(Store::new(env, config, catalog, metrics, shutdown.clone()));
            store.metrics.watch(&mut registry, &store);
            let http_addr = match store.config.http.clone() {
                Some(http) => {
                    let state = http_state(&store, registry);
                    Some(http::serve(&store.env, &http, state, shutdown.clone()).await?)
                }
                None => None,
            };
            let tasks = vec![
                tokio::spawn(serve(store.clone(), calls, grpc_incoming(listener), shutdown)),
                tokio::spawn(store.clone().scrub()),
                tokio::spawn(store.clone().erase_deleted()),
            ];
            tracing::info!(
                "sstable server {} serves {} tables on {addr}",
                store.config.id,
                store.catalog.ids().len()
            );
            Ok(SstServer { addr, http_addr, store, trigger, tasks, listening })
        })
    }

    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    pub fn http_addr(&self) -> Option<SocketAddr> {
        self.http_addr
    }

    pub fn metrics(&self) -> &crate::metrics::Metrics {
        &self.store.metrics
    }

    /// The document that `Admin.Status` and `/status` answer.
    pub fn status_json(&self) -> String {
        self.store.status_json()
    }

    #[cfg(test)]
    pub(crate) fn store(&self) -> Arc<Store> {
        self.store.clone()
    }

    /// Verifies all tables now; returns how many were found damaged.
    pub fn scrub_now(&self) -> BoxFuture<'_, usize> {
        Box::pin(async move { self.store.scrub_all().await })
    }

    /// Lets requests in flight finish, within a limit. When it returns, its addresses and the data directory are free.
    pub fn shutdown(self) -> BoxFuture<'static, ()> {
        Box::pin(self.shut_down())
    }

    async fn shut_down(mut self) {
        self.trigger.trigger();
        for mut task in self.tasks.drain(..) {
            if tokio::time::timeout(SHUTDOWN_GRACE, &mut task).await.is_err() {
                task.abort();
            }
        }
        self.listening.closed().await;
        let store = self.store.clone();
        let closed = self.store.env.blocking(move || store.close()).await;
        if closed.is_none() {
            self.store.close();
        }
    }
}

async fn open_catalog(env: &Env, config: &SstServerConfig) -> Result<Arc<Catalog>> {
    let stopping = || Error::new(ErrorKind::Stopping, "the runtime is stopping");
    let (vfs, path, id) = (env.vfs.clone(), config.data_dir.clone(), config.id);
    let (cluster, partitions) = (config.cluster.id.clone(), config.cluster.partitions);
    let cache = Arc::new(BlockCache::new(config.memory().cache));
    let servers = config.cluster.sstable.clone();
    let open = move || -> Result<_> {
        if !vfs.exists(&path.join(IDENTITY_FILE))
            && let Some(foreign) = foreign_volume(&*vfs, "sstable", &servers, id, &path, IDENTITY_FILE)
        {
            tracing::warn!("{foreign}");
        }
        let catalog = Arc::new(Catalog::new(DataDir::open(vfs, &path, &cluster, partitions, id)?, cache)?);
        let stored = catalog.stored()?;
        Ok((catalog, stored))
    };
    let (catalog, stored) = env.blocking(open).await.ok_or_else(stopping)??;
    let share = stored.len().div_ceil(OPEN_JOBS).max(1);
    let jobs = stored.chunks(share).map(|ids| {
        let (catalog, ids) = (catalog.clone(), ids.to_vec());
        env.blocking(move || catalog.load(&ids))
    });
    for loaded in futures::future::join_all(jobs).await {
        loaded.ok_or_else(stopping)??;
    }
    Ok(catalog)
}

fn http_state(store: &Arc<Store>, registry: Registry) -> HttpState {
    let (for_ready, for_status) = (store.clone(), store.clone());
    HttpState {
        registry: Arc::new(Mutex::new(registry)),
        ready: Arc::new(move || {
            if for_ready.shutdown.is_triggered() {
                return Err("the server is stopping".into());
            }
            for_ready.settling.waits_for().map_or(Ok(()), Err)
        }),
        status: Arc::new(move || {
            let store = for_status.clone();
            async move { store.status_json() }.boxed()
        }),
    }
}

async fn serve(
    store: Arc<Store>,
    calls: Arc<Calls>,
    incoming: impl tokio_stream::Stream<Item = std::io::Result<sextant_environment::env::Connection>>
    + Send
    + 'static,
    mut shutdown: Shutdown,
) {
    let sst = SstGrpc::new(SstService::new(store.clone()))
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX);
    let me = Party::sstable(store.config.id);
    let internal = InterceptorLayer::new(internal_calls(&store.config.cluster, me));
    let served = Server::builder()
        .layer(CallsLayer(calls))
        .layer(internal)
        .layer(FreightLayer)
        .tcp_nodelay(true)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_concurrent_streams(STREAMS_MAX)
        .http2_keepalive_interval(Some(KEEP_ALIVE))
        .http2_keepalive_timeout(Some(KEEP_ALIVE))
        .add_service(sst)
        .add_service(AdminServer::new(AdminService::new(store)))
        .serve_with_incoming_shutdown(incoming, async move { shutdown.wait().await })
        .await;
    if let Err(e) = served {
        tracing::error!("the gRPC server ended: {e}");
    }
}
