//! The p-node on Unix sockets: the same services, the same limits.

use std::path::{Path, PathBuf};

use sextant_common::ErrorKind;
use sextant_common::ids::NodeId;
use sextant_environment::env::{Connection, Whom, grpc_channel};
use sextant_proto::v1;
use sextant_proto::v1::kv_client::KvClient;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::testing::{Cluster, PATIENCE_MS, until};
use crate::{PNodeConfig, PNodeServer};

struct Sockets {
    dir: PathBuf,
}

impl Sockets {
    /// Under a short path: those of sockets are bounded.
    fn new(cluster: &Cluster) -> Self {
        let dir = std::env::temp_dir().join(format!("sextant-{:016x}", cluster.env.rng.next_u64()));
        std::fs::create_dir(&dir).unwrap();
        Self { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    fn addr(&self, name: &str) -> String {
        format!("unix:{}", self.path(name).display())
    }
}

impl Drop for Sockets {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn config(cluster: &Cluster, sockets: &Sockets) -> PNodeConfig {
    PNodeConfig {
        grpc_unix: Some(sockets.path("grpc")),
        resp_unix: Some(sockets.path("resp")),
        default_deadline_ms: PATIENCE_MS,
        ..PNodeConfig::new(NodeId(1), cluster.config.clone(), "127.0.0.1:0")
    }
}

async fn refused(cluster: &Cluster, config: PNodeConfig) -> (ErrorKind, String) {
    let error = PNodeServer::start(cluster.env.clone(), config).await.err().unwrap();
    (error.kind, error.message.into_owned())
}

async fn connect(cluster: &Cluster, addr: String) -> Connection {
    cluster.env.net.connect(addr, Whom::Host).await.unwrap()
}

/// What is answered until the connection is closed, or until so much has come.
async fn said(connection: &mut Connection, request: &[u8], bytes: usize) -> String {
    // A server that has heard enough may close before all is written.
    let _ = connection.write_all(request).await;
    let mut answer = Vec::new();
    while answer.len() < bytes && matches!(connection.read_buf(&mut answer).await, Ok(1..)) {}
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn both_front_ends_serve_on_sockets_and_leave_none_behind() {
    let cluster = Cluster::start(1).await;
    let sockets = Sockets::new(&cluster);
    let server = PNodeServer::start(cluster.env.clone(), config(&cluster, &sockets)).await.unwrap();
    until("readiness", || server.local().check_ready().is_ok()).await;
    assert_eq!(server.resp_addr(), None, "RESP is on its socket only");

    let mut kv = KvClient::new(grpc_channel(&cluster.env.net, &sockets.addr("grpc")));
    let put = v1::KvPutRequest { key: "k".into(), value: "1".into(), ..Default::default() };
    kv.put(put).await.unwrap();
    let mut resp = connect(&cluster, sockets.addr("resp")).await;
    assert_eq!(said(&mut resp, b"GET k\r\n", 7).await, "$1\r\n1\r\n");

    // Garbage, and the other protocol.
    for garbage in [&b"\xff\xfe\x00garbage\r\n\r\n"[..], &[0; 4096], b"GET / HTTP/1.1\r\n\r\n"] {
        let mut grpc = connect(&cluster, sockets.addr("grpc")).await;
        said(&mut grpc, garbage, usize::MAX).await;
    }
    for garbage in [&b"*9999999999\r\n"[..], b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"*1\r\n$-5\r\n"] {
        let mut resp = connect(&cluster, sockets.addr("resp")).await;
        let answer = said(&mut resp, garbage, 4).await;
        assert!(answer.starts_with("-ERR"), "{answer}");
    }
    drop(connect(&cluster, sockets.addr("resp")).await);
    assert_eq!(said(&mut resp, b"GET k\r\n", 7).await, "$1\r\n1\r\n");

    server.shutdown().await;
    assert_eq!(std::fs::read_dir(&sockets.dir).unwrap().count(), 0);
}

#[tokio::test]
async fn a_path_that_cannot_be_had_is_named_before_anything_is_served() {
    let cluster = Cluster::start(1).await;
    let sockets = Sockets::new(&cluster);
    let at = |path: &Path| PNodeConfig { grpc_unix: Some(path.to_owned()), ..config(&cluster, &sockets) };
    let (kind, why) = refused(&cluster, at(&sockets.path(&"x".repeat(120)))).await;
    assert!(kind == ErrorKind::Invalid && why.contains("grpc_unix") && why.contains("too long"), "{why}");
    let (_, why) = refused(&cluster, at(&sockets.path("no/such/directory"))).await;
    assert!(why.contains("grpc_unix") && why.contains("no/such/directory"), "{why}");
    std::fs::write(sockets.path("file"), b"mine").unwrap();
    let (kind, why) = refused(&cluster, at(&sockets.path("file"))).await;
    assert!(kind == ErrorKind::Invalid && why.contains("no socket"), "{why}");
    assert_eq!(std::fs::read(sockets.path("file")).unwrap(), b"mine");

    let first = PNodeServer::start(cluster.env.clone(), config(&cluster, &sockets)).await.unwrap();
    let (kind, why) = refused(&cluster, config(&cluster, &sockets)).await;
    assert!(kind == ErrorKind::Unavailable && why.contains("somebody listens there"), "{why}");
    // Which has disturbed nobody.
    let mut resp = connect(&cluster, sockets.addr("resp")).await;
    assert_eq!(said(&mut resp, b"PING\r\n", 7).await, "+PONG\r\n");
    first.shutdown().await;
}

#[tokio::test]
async fn connections_over_sockets_count_with_the_others() {
    let cluster = Cluster::start(1).await;
    let sockets = Sockets::new(&cluster);
    let config =
        PNodeConfig { resp: Some("127.0.0.1:0".into()), max_connections: 2, ..config(&cluster, &sockets) };
    let server = PNodeServer::start(cluster.env.clone(), config).await.unwrap();
    let mut over_unix = connect(&cluster, sockets.addr("resp")).await;
    assert_eq!(said(&mut over_unix, b"PING\r\n", 7).await, "+PONG\r\n");
    let mut over_tcp = connect(&cluster, server.resp_addr().unwrap().to_string()).await;
    assert_eq!(said(&mut over_tcp, b"PING\r\n", 7).await, "+PONG\r\n");
    for addr in [sockets.addr("resp"), server.resp_addr().unwrap().to_string()] {
        let mut third = connect(&cluster, addr).await;
        assert!(said(&mut third, b"", usize::MAX).await.contains("max number of clients"));
    }
    server.shutdown().await;
}
