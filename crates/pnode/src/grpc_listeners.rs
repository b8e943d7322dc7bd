//! Where a p-node listens for gRPC: which services there are for clients and for operators, and what a connection may take.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use sextant_common::Result;
use sextant_environment::Env;
use sextant_environment::calls::CallsLayer;
use sextant_environment::env::{Door, Listener, cannot_listen};
use sextant_environment::freight::FreightLayer;
use sextant_environment::shutdown::Shutdown;
use sextant_proto::MESSAGE_BYTES_MAX;
use sextant_proto::v1::admin_server::AdminServer;
use sextant_proto::v1::kv_server::KvServer;
use sextant_proto::v1::users_server::UsersServer;
use sextant_proto::v1::whereabouts_server::WhereaboutsServer;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tonic::transport::Server;
use tonic::transport::server::Router;
use tonic_health::pb::health_server::HealthServer;
use tower::layer::util::{Identity, Stack};

use crate::config::PNodeConfig;
use crate::frontend::{
    AdminService, Gate, HealthService, Incoming, KvService, Rooms, UsersService, WhereaboutsService, counted,
    reflection,
};
use crate::pnode::PNode;

/// Calls of one connection that may be under way.
const CALLS_PER_CONNECTION_MAX: u32 = 1024;
/// What a client may send before it is read: of one call, and of a connection.
const STREAM_WINDOW_BYTES: u32 = 1024 * 1024;
const CONNECTION_WINDOW_BYTES: u32 = 4 * 1024 * 1024;
/// Longest question of those who need not say who they are.
const STRANGERS_BYTES_MAX: usize = 16 * 1024;
/// Operators are few.
const ADMIN_CONNECTIONS_MAX: usize = 64;
/// How soon a client that has vanished is noticed.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

const HEALTH: &str = "grpc.health.v1.Health";
const FOR_CLIENTS: [&str; 3] = ["sextant.v1.Kv", "sextant.v1.Whereabouts", HEALTH];
const FOR_OPERATORS: [&str; 4] = ["sextant.v1.Admin", "sextant.v1.Users", "sextant.v1.Whereabouts", HEALTH];
/// Methods of services that are not ours, for the figures of calls: path, service, method.
pub(crate) const METHODS_OF_OTHERS: [(&str, &str, &str); 4] = [
    ("/grpc.health.v1.Health/Check", "Health", "Check"),
    ("/grpc.health.v1.Health/Watch", "Health", "Watch"),
    ("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", "ServerReflection", "ServerReflectionInfo"),
    (
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
        "ServerReflection",
        "ServerReflectionInfo.v1alpha",
    ),
];

/// What all listeners have in common.
pub(crate) struct GrpcListeners<'a> {
    pub env: &'a Env,
    pub config: &'a PNodeConfig,
    pub pnode: &'a PNode,
    pub gate: Gate,
    /// Of this process: no two have the same.
    pub instance: u64,
    pub calls: CallsLayer,
    pub stopping: Shutdown,
}

impl GrpcListeners<'_> {
    /// `admin`: where operators are listened to.
    pub async fn for_clients(
        &self,
        kv: KvService,
        rooms: &Rooms,
        admin: SocketAddr,
    ) -> Result<(SocketAddr, Vec<JoinHandle<()>>)> {
        let kv = KvServer::new(kv)
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX);
        let listener = bind(self.env, Door::Grpc, &self.config.grpc).await?;
        let addr = listener.local_addr().map_err(|e| cannot_listen("grpc", &e))?;
        let kv = Incoming::of_users(kv, &self.gate, rooms);
        let router = self.expected(&FOR_CLIENTS)?.add_service(kv).add_service(self.whereabouts(admin));
        let places = places(self.config.max_connections);
        let mut serving = Vec::new();
        if let Some(unix) = self.config.grpc_unix() {
            let bound = self.env.net.bind_unix(unix).await;
            let listener = bound.map_err(|e| cannot_listen("grpc_unix", &e))?;
            serving.push(self.serve(listener, places.clone(), router.clone()));
        }
        serving.push(self.serve(listener, places, router));
        Ok((addr, serving))
    }

    /// On an address of its own, so that whoever may read and write may not change who votes.
    pub async fn for_operators(&self, admins: AdminService) -> Result<(SocketAddr, JoinHandle<()>)> {
        let listener = bind(self.env, Door::Admin, &self.config.admin_addr()).await?;
        let addr = listener.local_addr().map_err(|e| cannot_listen("admin", &e))?;
        let admins = AdminServer::new(admins)
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX);
        let users = UsersServer::new(UsersService::new(self.gate.clone()));
        // Operators' tools may name this address as well as the clients' one.
        let router = self
            .expected(&FOR_OPERATORS)?
            .add_service(Incoming::of_operators(admins, &self.gate))
            .add_service(Incoming::of_operators(users, &self.gate))
            .add_service(self.whereabouts(addr));
        Ok((addr, self.serve(listener, places(ADMIN_CONNECTIONS_MAX), router)))
    }

    /// What every gRPC server is expected to have.
    fn expected(&self, services: &'static [&'static str]) -> Result<Router<Laden>> {
        let health = HealthService::new(self.pnode.clone(), self.stopping.clone(), services);
        let (reflection, before) = reflection(&self.gate, services)?;
        let health = HealthServer::new(health).max_decoding_message_size(STRANGERS_BYTES_MAX);
        let router = builder(self.calls.clone()).add_service(Incoming::of_strangers(health));
        Ok(router.add_service(reflection).add_service(before))
    }

    fn whereabouts(&self, admin: SocketAddr) -> Incoming<WhereaboutsServer<WhereaboutsService>> {
        let service = WhereaboutsService { admin, instance: self.instance };
        let service = WhereaboutsServer::new(service).max_decoding_message_size(STRANGERS_BYTES_MAX);
        Incoming::of_strangers(service)
    }

    fn serve(
        &self,
        listener: Box<dyn Listener>,
        places: Arc<Semaphore>,
        router: Router<Laden>,
    ) -> JoinHandle<()> {
        let incoming = counted(listener, places);
        let mut stopping = self.stopping.clone();
        tokio::spawn(async move {
            let until = async move { stopping.wait().await };
            if let Err(e) = router.serve_with_incoming_shutdown(incoming, until).await {
                tracing::error!("a gRPC server ended: {e}");
            }
        })
    }
}

/// For so many connections.
fn places(connections: usize) -> Arc<Semaphore> {
    Arc::new(Semaphore::new(connections.min(Semaphore::MAX_PERMITS)))
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
