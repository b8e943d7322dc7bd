//! The gRPC services, on one listener. Its connections are served by the threads of the partitions: what goes to a partition of the
//! same thread is handed to nobody.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::Stream;
use prometheus_client::registry::Registry;
use sextant_common::error::Result;
use sextant_environment::Env;
use sextant_environment::calls::{Calls, CallsLayer};
use sextant_environment::env::{
    DetachedConnection, Listener, Party, attached, grpc_incoming_spread, internal_calls,
};
use sextant_environment::freight::FreightLayer;
use sextant_environment::shutdown::Shutdown;
use sextant_environment::slow_log::SlowLog;
use sextant_proto::MESSAGE_BYTES_MAX;
use sextant_proto::v1::admin_server::AdminServer;
use sextant_proto::v1::lease_server::LeaseServer;
use sextant_proto::v1::raft_server::RaftServer;
use sextant_proto::v1::rows_server::RowsServer;

use crate::raft::threads::PartitionThreads;
use crate::service::Context;
use crate::service::admin::AdminShell;
use crate::service::lease::LeaseShell;
use crate::service::raft::RaftShell;
use crate::service::rows::RowsShell;

/// How long a peer may be silent before it is asked whether it is there, and before it counts as gone.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// What is called here, for the figures of calls.
const SERVICES: [&str; 4] = ["Raft", "Rows", "Lease", "Admin"];

pub(super) fn calls(env: &Env, registry: &mut Registry) -> Arc<Calls> {
    let slow = SlowLog::off(env.clock.clone());
    Calls::register(env.clock.clone(), sextant_proto::METHODS, &SERVICES, slow, registry)
}

/// Serves until the shutdown, and a moment longer for answers that are on their way.
pub(super) fn serve(
    listener: Box<dyn Listener>,
    threads: &PartitionThreads,
    (context, calls): (&Arc<Context>, &Arc<Calls>),
    cluster: &Bytes,
    shutdown: &Shutdown,
) -> Result<()> {
    let spread = grpc_incoming_spread(listener, threads.count());
    threads.all().zip(spread).try_for_each(|(thread, incoming)| {
        let (context, cluster, shutdown) = (context.clone(), cluster.clone(), shutdown.clone());
        let calls = CallsLayer(calls.clone());
        thread.spawn(async move { serve_here(incoming, &context, calls, cluster, shutdown).await })
    })
}

/// Serves connections in this runtime.
async fn serve_here(
    incoming: impl Stream<Item = std::io::Result<DetachedConnection>> + Send + 'static,
    context: &Arc<Context>,
    calls: CallsLayer,
    cluster: Bytes,
    mut shutdown: Shutdown,
) {
    macro_rules! service {
        ($server:ident, $shell:expr) => {
            $server::new($shell)
                .max_decoding_message_size(MESSAGE_BYTES_MAX)
                .max_encoding_message_size(MESSAGE_BYTES_MAX)
        };
    }
    let me = Party::memtable(context.node);
    let router = tonic::transport::Server::builder()
        .layer(calls)
        .layer(tonic::service::InterceptorLayer::new(internal_calls(&context.cluster, me)))
        .layer(FreightLayer)
        .tcp_nodelay(true)
        // A peer that is gone must not hold the room of what it has not taken.
        .http2_keepalive_interval(Some(KEEP_ALIVE))
        .http2_keepalive_timeout(Some(KEEP_ALIVE))
        .initial_stream_window_size(Some(4 * 1024 * 1024))
        .initial_connection_window_size(Some(16 * 1024 * 1024))
        .add_service(service!(RaftServer, RaftShell { context: context.clone(), cluster }))
        .add_service(service!(RowsServer, RowsShell { context: context.clone() }))
        .add_service(service!(LeaseServer, LeaseShell { context: context.clone() }))
        .add_service(service!(AdminServer, AdminShell { context: context.clone() }));
    let incoming = attached(incoming);
    let mut at_once = shutdown.clone();
    // Long-lived streams would hold a graceful end up for ever: peers fail over instead.
    tokio::select! {
        served = router.serve_with_incoming_shutdown(incoming, async move { shutdown.wait().await }) => {
            if let Err(e) = served {
                tracing::error!("gRPC service ended: {e}");
            }
        }
        () = async {
            at_once.wait().await;
            tokio::time::sleep(Duration::from_millis(200)).await;
        } => {}
    }
}

#[cfg(test)]
mod tests {
    use sextant_environment::env::roles::callers;

    #[test]
    fn of_every_method_between_servers_it_is_said_who_may_call_it() {
        for (path, service, method) in sextant_proto::METHODS {
            let is_of_clients = ["Kv", "Users", "Whereabouts"].contains(service);
            assert_eq!(callers(service, method).is_none(), is_of_clients, "{path}");
            assert!(path.starts_with("/sextant.v1."), "{path}");
        }
    }
}
