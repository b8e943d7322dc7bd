//! How long a read and a write take from an application to a p-node beside it, by the way between them (docs/sidecar.md):
//! `cargo run --release -p sextant-tests --example sidecar`. A cluster in this process, one operation at a time, the ways in turns.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use sextant_client::{Client, Operation};
use sextant_common::ids::NodeId;
use sextant_dev_cluster::{DevCluster, DevOptions};
use sextant_environment::Env;
use sextant_pnode::{PNode, PNodeConfig, PNodeServer, ReadOptions, WriteOptions};

const ROUNDS: usize = 9;
const READS: usize = 2000;
const WRITES: usize = 100;
const KEY: &str = "sidecar";
const VALUE: &[u8] = &[b'v'; 100];
const PATIENCE: Duration = Duration::from_secs(60);

type Failure = Box<dyn std::error::Error>;

/// A way to the p-node. Redis' protocol is spoken by blocking sockets, as most of its clients do.
enum Way {
    Library(PNode),
    Resp(Box<dyn Stream>),
    Grpc(Client),
}

trait Stream: Read + Write {}
impl<T: Read + Write> Stream for T {}

impl Way {
    async fn read(&mut self) -> Result<(), Failure> {
        match self {
            Self::Library(pnode) => {
                pnode.get("", KEY.as_bytes(), ReadOptions::default()).await?.ok_or("no record")?;
            }
            Self::Resp(stream) => {
                stream.write_all(format!("*2\r\n$3\r\nGET\r\n$7\r\n{KEY}\r\n").as_bytes())?;
                // "$100", the value, and the ends of both lines.
                stream.read_exact(&mut [0; 6 + VALUE.len() + 2])?;
            }
            Self::Grpc(client) => {
                client.get("", KEY).await?.ok_or("no record")?;
            }
        }
        Ok(())
    }

    async fn write(&mut self) -> Result<(), Failure> {
        match self {
            Self::Library(pnode) => {
                pnode.write(vec![Operation::put("", KEY, VALUE)], WriteOptions::default()).await?;
            }
            Self::Resp(stream) => {
                stream.write_all(format!("*3\r\n$3\r\nSET\r\n$7\r\n{KEY}\r\n$100\r\n").as_bytes())?;
                stream.write_all(VALUE)?;
                stream.write_all(b"\r\n")?;
                let mut answer = [0; 5];
                stream.read_exact(&mut answer)?;
                if &answer != b"+OK\r\n" {
                    return Err(String::from_utf8_lossy(&answer).into());
                }
            }
            Self::Grpc(client) => {
                client.put("", KEY, VALUE).await?;
            }
        }
        Ok(())
    }
}

fn median(times: &mut [u64]) -> f64 {
    times.sort_unstable();
    times[times.len() / 2] as f64 / 1000.0
}

fn main() -> Result<(), Failure> {
    // The servers' threads are not those of whoever asks.
    let servers = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let here = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let env = Env::real();
    let dir = tempfile::tempdir()?;
    let (cluster, server) = servers.block_on(async {
        let cluster =
            DevCluster::start(env.clone(), DevOptions::on_free_ports(dir.path().join("data"))).await?;
        let config = PNodeConfig {
            resp: Some("127.0.0.1:0".into()),
            grpc_unix: Some(dir.path().join("grpc")),
            resp_unix: Some(dir.path().join("resp")),
            ..PNodeConfig::new(NodeId(9), cluster.cluster_config().clone(), "127.0.0.1:0")
        };
        let server = PNodeServer::start(env.clone(), config).await?;
        server.local().ready(PATIENCE).await?;
        Ok::<_, Failure>((cluster, server))
    })?;
    let resp = std::net::TcpStream::connect(server.resp_addr().ok_or("no RESP")?)?;
    resp.set_nodelay(true)?;
    let grpc_unix = format!("unix:{}", dir.path().join("grpc").display());
    let mut ways = [
        ("library", Way::Library(server.local().clone())),
        ("RESP, Unix socket", Way::Resp(Box::new(UnixStream::connect(dir.path().join("resp"))?))),
        ("RESP, TCP", Way::Resp(Box::new(resp))),
        ("gRPC, Unix socket", Way::Grpc(here.block_on(Client::connect(grpc_unix))?)),
        ("gRPC, TCP", Way::Grpc(here.block_on(Client::connect(server.grpc_addr().to_string()))?)),
    ];
    let mut medians: Vec<(Vec<f64>, Vec<f64>)> = vec![Default::default(); ways.len()];
    for round in 0..=ROUNDS {
        for ((_, way), medians) in ways.iter_mut().zip(&mut medians) {
            let (mut reads, mut writes) = here.block_on(async {
                let (mut reads, mut writes) = (Vec::new(), Vec::new());
                for _ in 0..WRITES {
                    let began_ns = env.clock.holder_ns();
                    way.write().await?;
                    writes.push(env.clock.holder_ns() - began_ns);
                }
                // So that the cache has it.
                for _ in 0..10 {
                    way.read().await?;
                }
                for _ in 0..READS {
                    let began_ns = env.clock.holder_ns();
                    way.read().await?;
                    reads.push(env.clock.holder_ns() - began_ns);
                }
                Ok::<_, Failure>((reads, writes))
            })?;
            // The first one warms up.
            if round > 0 {
                medians.0.push(median(&mut reads));
                medians.1.push(median(&mut writes));
            }
        }
    }
    println!(
        "medians of {ROUNDS} rounds' medians, in microseconds (least to most): GET of a record at hand; SET"
    );
    for ((name, _), (reads, writes)) in ways.iter().zip(&mut medians) {
        let shown = |all: &mut Vec<f64>| {
            all.sort_by(f64::total_cmp);
            format!("{:.1} ({:.1} to {:.1})", all[all.len() / 2], all[0], all[all.len() - 1])
        };
        println!("{name:18} {:28} {}", shown(reads), shown(writes));
    }
    drop(ways);
    servers.block_on(async {
        server.shutdown().await;
        cluster.shutdown().await
    })?;
    Ok(())
}
