//! The client against servers that refuse, hang, lose answers, forget sessions and break off calls.

mod interface;
mod network;
mod raw;
mod reads;
mod server;
mod transport;
mod writes;

use std::time::Duration;

use sextant_client::{Client, ClientOptions};
use sextant_environment::Env;
use sextant_environment::env::{Door, grpc_incoming};
use sextant_proto::v1::kv_server::KvServer;

use self::server::FakeServer;

/// Two servers of one store, and a client of both.
struct Cluster {
    first: FakeServer,
    second: FakeServer,
    client: Client,
}

async fn serve(env: &Env, server: FakeServer) -> String {
    let listener = env.net.bind("127.0.0.1:0".into(), Door::Grpc).await.unwrap();
    let addr = listener.local_addr().unwrap().to_string();
    let routes = tonic::transport::Server::builder().add_service(KvServer::new(server));
    tokio::spawn(routes.serve_with_incoming(grpc_incoming(listener)));
    addr
}

async fn cluster(options: ClientOptions) -> Cluster {
    let env = network::env();
    let first = FakeServer::default();
    let second = FakeServer { store: first.store.clone(), ..FakeServer::default() };
    let addrs = vec![serve(&env, first.clone()).await, serve(&env, second.clone()).await];
    let client = Client::connect_in(env, addrs, options).await.unwrap();
    Cluster { first, second, client }
}

fn impatient() -> ClientOptions {
    ClientOptions { attempt_timeout: Duration::from_millis(50), ..ClientOptions::default() }
}
