//! Backpressure: when flushing stops, writes are slowed, then refused with a reason, and go on by themselves when it works
//! again. Nothing acknowledged is lost, nothing refused takes effect, and memory stays bounded on leaders and followers.

use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use sextant_client::{Client, ClientOptions};
use sextant_common::error::{Error, ErrorKind};
use sextant_common::ids::PartitionId;
use sextant_common::key::SlotMap;
use sextant_environment::env::{error_of, grpc_channel};
use sextant_memtable_server::Tuning;
use sextant_pnode::ReadOptions;
use sextant_proto::v1;
use sextant_proto::v1::admin_client::AdminClient;
use sextant_proto::v1::kv_client::KvClient;
use sextant_tests::cluster::{Cluster, Options};
use sextant_tests::{PATIENCE, eventually};

const PARTITIONS: u32 = 2;
const MEMORY_BYTES: u64 = 1024 * 1024;
const SHARE_BYTES: u64 = MEMORY_BYTES / PARTITIONS as u64;
const GROUP_BYTES: usize = 32 * 1024;
const VALUE_BYTES: usize = 4 * 1024;
/// Two groups may be in flight, and a record costs a little more than its bytes.
const MOST_BYTES: u64 = SHARE_BYTES + 3 * GROUP_BYTES as u64;
/// Long enough for several refusals within one call.
const DEADLINE: Duration = Duration::from_millis(1500);

fn options() -> Options {
    let tuning = Tuning {
        memory_bytes: MEMORY_BYTES,
        memtable_bytes: SHARE_BYTES / 8,
        group_bytes: GROUP_BYTES,
        ..Options::default().tuning
    };
    let pnode_config = |config: &mut sextant_pnode::PNodeConfig| config.default_deadline_ms = 1500;
    Options { partitions: PARTITIONS, tuning, pnode_config, ..Options::default() }
}

/// The i-th key of a partition.
fn key(partition: u32, i: usize) -> String {
    let slots = SlotMap::even(PARTITIONS);
    let tag = (0..).find(|tag| {
        let part = format!("{{{tag}}}");
        slots.partition_of(part.as_bytes(), &Default::default()) == PartitionId(partition)
    });
    format!("{{{}}}key{i}", tag.unwrap_or(0))
}

fn value(key: &str) -> Bytes {
    let mut value = key.as_bytes().to_vec();
    value.resize(VALUE_BYTES, b'.');
    value.into()
}

async fn client(c: &Cluster, deadline: Duration) -> Client {
    let addrs = c.pnodes().iter().map(|p| p.grpc_addr().to_string()).collect();
    let options = ClientOptions { deadline, ..ClientOptions::default() };
    Client::connect_in(c.env.clone(), addrs, options).await.unwrap()
}

/// A partition as its leader shows it.
async fn partition(c: &Cluster, partition: u32) -> serde_json::Value {
    let leader = c.leader(partition as usize).await;
    c.status(leader)["partitions"][partition as usize].clone()
}

/// What one partition was written until it refused.
#[derive(Default)]
struct Filled {
    acknowledged: Vec<String>,
    refused: Vec<String>,
}

/// Writes until the partition refuses; on the way there it must have slowed down.
async fn fill(c: &Cluster, client: &Client, at: u32) -> (Filled, Error) {
    let (mut filled, mut slowed) = (Filled::default(), false);
    for i in 0.. {
        assert!(i < 2 * SHARE_BYTES as usize / VALUE_BYTES, "memory has no end: {}", partition(c, at).await);
        let key = key(at, i);
        match client.put("", key.clone(), value(&key)).await {
            Ok(_) => filled.acknowledged.push(key),
            // A stall of this machine: what became of the key is not known.
            Err(e) if is_stall(&e) => {}
            Err(e) => {
                assert_eq!(e.kind, ErrorKind::Overloaded, "{e}");
                filled.refused.push(key);
                assert!(slowed, "refused without being slowed before");
                return (filled, e);
            }
        }
        slowed |= partition(c, at).await["writes"] == "slowed";
    }
    unreachable!("the loop has a bound")
}

/// The answer was late: it says nothing about the write.
fn is_stall(e: &Error) -> bool {
    let is_unknown = matches!(e.kind, ErrorKind::OutcomeUnknown | ErrorKind::Unavailable);
    is_unknown || e.kind == ErrorKind::Overloaded && is_late(&e.message)
}

/// It was not taken in time, for no other reason.
fn is_late(told: &str) -> bool {
    told.contains("before it") || told.contains("deadline passed")
}

/// How a write is refused.
async fn refusal<T>(mut write: impl AsyncFnMut() -> Result<T, Error>) -> Error {
    eventually("the write is refused", async || match write().await {
        Ok(_) => panic!("a write was taken although memory is full"),
        Err(e) if is_stall(&e) => None,
        Err(e) => Some(e),
    })
    .await
}

fn assert_bounded(c: &Cluster) {
    for server in 0..c.config.memtable.len() {
        let status = c.status(server);
        for p in status["partitions"].as_array().unwrap() {
            let unflushed = p["unflushed_bytes"].as_u64().unwrap();
            assert!(unflushed <= MOST_BYTES, "server {server}: {p}");
            assert_eq!(p["memory_bytes"], SHARE_BYTES);
        }
    }
}

/// Through every p-node, without its cache.
async fn assert_reads(c: &Cluster, keys: &[String], there: bool) {
    for pnode in c.pnodes() {
        pnode.local().set_cache(false);
        for key in keys {
            let record = eventually("a read is answered", async || {
                let read = pnode.local().get("default", key.as_bytes(), ReadOptions::default()).await;
                read.ok()
            })
            .await;
            assert_eq!(record.map(|r| r.value), there.then(|| value(key)), "{key}");
        }
    }
}

/// What clients of each protocol are told, and that nothing gets through, deletes included.
async fn assert_refused(c: &Cluster, client: &Client, at: u32, filled: &mut Filled) {
    let limit = format!("the limit is {SHARE_BYTES}");
    let about = format!("partition {at}");
    let own = filled.acknowledged[0].clone();
    // (A leader that is new has to have tried to flush.)
    let error = eventually("a flush has failed", async || {
        let error = refusal(async || client.delete("", own.clone()).await).await;
        error.message.contains("the last flush failed").then_some(error)
    })
    .await;
    for expected in [&limit[..], &about, "memory_bytes", "table default"] {
        assert!(error.message.contains(expected), "{expected:?} is not in {error}");
    }
    let (delete, insert, many, _) = tokio::join!(
        refusal(async || client.delete("", own.clone()).await),
        refusal(async || client.insert("", key(at, 900_000), "x").await),
        join_all(
            (0..64).map(|i| refusal(async move || client.put("", key(at, 910_000 + i), value("x")).await))
        ),
        join_all((0..c.pnodes().len()).map(|pnode| assert_refused_over_the_wire(c, pnode, at, &own, &limit))),
    );
    for error in many.iter().chain([&delete, &insert]) {
        assert_eq!(error.kind, ErrorKind::Overloaded, "{error}");
        assert!(error.message.contains(&limit), "{error}");
    }
    filled.refused.extend([900_000, 900_001, 900_002].map(|i| key(at, i)));
    filled.refused.extend((0..64).map(|i| key(at, 910_000 + i)));
    eventually("the status says so", async || {
        let status = partition(c, at).await;
        let says_why = status["writes_why"].as_str().is_some_and(|why| why.contains(&limit));
        let has_failed = status["memtables"].as_array()?.iter().any(|t| t["flush_error"].is_string());
        (status["writes"] == "refused" && says_why && has_failed).then_some(())
    })
    .await;
    eventually("so does that of any p-node, as `sextant status` shows it", async || {
        let mut admin = AdminClient::new(grpc_channel(&c.env.net, &c.pnode(0).admin_addr().to_string()));
        admin.status(v1::StatusRequest {}).await.ok()?.into_inner().json.contains(&limit).then_some(())
    })
    .await;
}

/// The status of gRPC, and the errors of Redis' protocol.
async fn assert_refused_over_the_wire(c: &Cluster, pnode: usize, at: u32, own: &str, limit: &str) {
    let mut redis = c.redis(pnode).await;
    let mut other = redis.clone();
    let pnode = c.pnode(pnode);
    let mut kv = KvClient::new(grpc_channel(&c.env.net, &pnode.grpc_addr().to_string()));
    let put = v1::KvPutRequest { key: key(at, 900_001).into(), value: "x".into(), ..Default::default() };
    let (mut set, mut del) = (redis::cmd("SET"), redis::cmd("DEL"));
    let (set, del) = (set.arg(key(at, 900_002)).arg("x"), del.arg(own));
    let (_, set, del) = tokio::join!(
        refusal(async || {
            let status = kv.put(put.clone()).await.map(drop).unwrap_err();
            let error = error_of(status.clone());
            if !is_stall(&error) {
                assert_eq!(status.code(), tonic::Code::ResourceExhausted, "{status}");
                assert!(status.message().contains(limit), "{status}");
            }
            Err::<(), _>(error)
        }),
        redis_refusal(async || set.query_async::<()>(&mut redis).await),
        redis_refusal(async || del.query_async::<u64>(&mut other).await),
    );
    for told in [set, del] {
        assert!(told.to_string().contains(limit), "{told}");
        assert_eq!(told.code(), Some("TRYAGAIN"), "{told}");
    }
}

async fn redis_refusal<T>(mut command: impl AsyncFnMut() -> redis::RedisResult<T>) -> redis::RedisError {
    eventually("the command is refused", async || match command().await {
        Ok(_) => panic!("a command was taken although memory is full"),
        Err(e) if matches!(e.code(), Some("OUTCOMEUNKNOWN" | "CLUSTERDOWN")) => None,
        Err(e) if is_late(&e.to_string()) => None,
        Err(e) => Some(e),
    })
    .await
}

async fn flushing_stops_and_comes_back(stopped: &[usize]) {
    let mut c = Cluster::start(options()).await;
    for i in stopped {
        c.stop_sstable(*i).await;
    }
    let client = client(&c, DEADLINE).await;
    let mut all = Vec::new();
    for at in 0..PARTITIONS {
        let (mut filled, error) = fill(&c, &client, at).await;
        assert!(error.message.contains("the limit is"), "{error}");
        assert_refused(&c, &client, at, &mut filled).await;
        assert_bounded(&c);
        // A full partition is its own affair.
        if at + 1 < PARTITIONS {
            assert_eq!(partition(&c, at + 1).await["writes"], "taken");
        }
        all.push(filled);
    }
    for filled in &all {
        assert_reads(&c, &filled.acknowledged, true).await;
        assert_reads(&c, &filled.refused, false).await;
    }
    // Those who wait long enough are served when there is room again, without anybody's help.
    let patient = client.with_deadline(PATIENCE);
    let mut waiting = tokio::task::JoinSet::new();
    for at in 0..PARTITIONS {
        let (patient, key) = (patient.clone(), key(at, 800_000));
        all[at as usize].acknowledged.push(key.clone());
        waiting.spawn(async move { patient.put("", key.clone(), value(&key)).await });
    }
    for i in stopped {
        c.start_sstable(*i).await;
    }
    while let Some(done) = waiting.join_next().await {
        done.unwrap().unwrap();
    }
    for at in 0..PARTITIONS {
        eventually("flushing has caught up", async || {
            let status = partition(&c, at).await;
            let frozen: u64 =
                status["memtables"].as_array()?.iter().filter_map(|t| t["frozen"].as_u64()).sum();
            let healthy = status["memtables"].as_array()?.iter().all(|t| t["flush_error"].is_null());
            (status["writes"] == "taken" && frozen == 0 && healthy).then_some(())
        })
        .await;
    }
    for filled in &all {
        assert_reads(&c, &filled.acknowledged, true).await;
        assert_reads(&c, &filled.refused, false).await;
    }
    assert_bounded(&c);
    c.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_any_sstable_server_writes_are_slowed_then_refused_and_go_on_by_themselves() {
    flushing_stops_and_comes_back(&[0, 1, 2]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_fewer_sstable_servers_than_required_it_is_the_same() {
    flushing_stops_and_comes_back(&[0, 2]).await;
}
