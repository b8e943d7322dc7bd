//! Ordinary clients: Redis' protocol and gRPC, through different p-nodes; limits and bad input.

use redis::AsyncCommands;
use sextant_common::limits::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use sextant_environment::env::grpc_channel;
use sextant_pnode::{Operation, ReadOptions, WriteOptions};
use sextant_proto::v1;
use sextant_proto::v1::kv_client::KvClient;
use sextant_tests::cluster::{Cluster, Maintenance, Options};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_one_front_end_acknowledges_the_other_shows_at_once() {
    let c = Cluster::start(Options::default()).await;
    let (mut first, mut second) = (c.redis(0).await, c.redis(1).await);
    for i in 0..100 {
        let _: () = first.set(format!("k{i}"), i).await.unwrap();
        let got: Option<u64> = second.get(format!("k{i}")).await.unwrap();
        assert_eq!(got, Some(i));
    }
    let created: bool = first.set_nx("k1", "other").await.unwrap();
    assert!(!created);
    let gone: u64 = second.del(&["k1", "k2", "nothing"]).await.unwrap();
    assert_eq!(gone, 2);
    let values: Vec<Option<u64>> = first.mget(&["k0", "k1", "k3"]).await.unwrap();
    assert_eq!(values, [Some(0), None, Some(3)]);
    let exists: bool = first.exists("k2").await.unwrap();
    assert!(!exists);
    // And over gRPC.
    let channel = grpc_channel(&c.env.net, &c.pnode(1).grpc_addr().to_string());
    let mut kv = KvClient::new(channel);
    let got = kv.get(v1::KvGetRequest { key: "k5".into(), ..Default::default() }).await.unwrap().into_inner();
    assert_eq!((got.found, &got.value[..]), (true, &b"5"[..]));
    c.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_are_stated_and_bad_input_takes_nothing_down() {
    let c = Cluster::start(Options { partitions: 1, ..Options::default() }).await;
    let pnode = c.pnode(0).local();
    let put = |key: Vec<u8>, value: Vec<u8>| {
        pnode.write(vec![Operation::put("default", key, value)], WriteOptions::default())
    };
    for (key, value, limit) in [
        (vec![b'k'; KEY_BYTES_MAX + 1], vec![], "16 KiB"),
        (vec![], vec![], "1 byte"),
        (vec![b'k'], vec![0; VALUE_BYTES_MAX + 1], "8 MiB"),
    ] {
        let error = put(key, value).await.unwrap_err();
        assert!(error.to_string().contains(limit), "{error}");
    }
    assert!(put(vec![b'k'; KEY_BYTES_MAX], vec![7; VALUE_BYTES_MAX]).await.unwrap().applied);
    let largest =
        pnode.get("default", &vec![b'k'; KEY_BYTES_MAX], ReadOptions::default()).await.unwrap().unwrap();
    assert_eq!(largest.value.len(), VALUE_BYTES_MAX);
    let half = VALUE_BYTES_MAX;
    let batch = (0..3).map(|i| Operation::put("default", format!("b{i}"), vec![0; half])).collect();
    let error = pnode.write(batch, WriteOptions::default()).await.unwrap_err();
    assert!(error.to_string().contains("16 MiB"), "{error}");
    // Garbage on every port of a p-node.
    let ports = [c.pnode(0).resp_addr().unwrap(), c.pnode(0).grpc_addr()];
    for garbage in [
        &b"*1000000000\r\n"[..],
        b"$-5\r\n",
        b"*2\r\n$3\r\nGET\r\n$99999999999\r\n",
        b"\x00\xff\xfe\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\xff\xff",
    ] {
        for port in ports {
            let mut socket = tokio::net::TcpStream::connect(port).await.unwrap();
            let _ = socket.write_all(garbage).await;
            let _ = socket.shutdown().await;
            let mut answer = Vec::new();
            let _ = tokio::time::timeout(std::time::Duration::from_secs(10), socket.read_to_end(&mut answer))
                .await;
        }
    }
    let mut redis = c.redis(0).await;
    let _: () = redis.set("after", 1).await.unwrap();
    c.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_majority_there_is_an_error_within_the_deadline_and_never_a_stale_answer() {
    let mut c = Cluster::start(Options { partitions: 1, ..Options::default() }).await;
    let pnode = c.pnode(0).local().clone();
    pnode.write(vec![Operation::put("default", "k", "v")], WriteOptions::default()).await.unwrap();
    let leader = c.leader(0).await;
    for i in (0..3).filter(|i| *i != leader) {
        c.stop_memtable(i).await;
    }
    sextant_tests::eventually("the leader's lease is over", async || {
        (c.status(leader)["partitions"][0]["serving"] == false).then_some(())
    })
    .await;
    let deadline = Some(std::time::Duration::from_millis(700));
    let read = ReadOptions { deadline, ..ReadOptions::default() };
    assert!(
        pnode.get("default", b"k", read).await.is_err(),
        "only the memtable has it, and nobody may answer"
    );
    let write = WriteOptions { deadline, ..WriteOptions::default() };
    assert!(pnode.write(vec![Operation::put("default", "k", "w")], write).await.is_err());
    c.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_counter_that_many_increment_over_flushes_loses_none_and_answers_each_number_once() {
    const CLIENTS: usize = 8;
    const EACH: usize = 50;
    let c = Cluster::start(Options { partitions: 1, ..Options::default() }).await;
    let increments = (0..CLIENTS).map(|client| {
        let connected = c.redis(client % 2);
        async move {
            let mut redis = connected.await;
            let mut answers = Vec::new();
            for _ in 0..EACH {
                answers.push(redis.incr::<_, _, u64>("counter", 1).await.unwrap());
            }
            answers
        }
    });
    let flushes = async {
        for _ in 0..3 {
            c.maintain(Maintenance::Flush, "default").await;
        }
    };
    let (answers, ()) = tokio::join!(futures::future::join_all(increments), flushes);
    assert!(answers.iter().all(|each| each.is_sorted()), "no client sees it fall");
    let mut all: Vec<u64> = answers.into_iter().flatten().collect();
    all.sort_unstable();
    assert_eq!(all, (1..=(CLIENTS * EACH) as u64).collect::<Vec<_>>());
    let mut redis = c.redis(1).await;
    c.maintain(Maintenance::Flush, "default").await;
    let last: u64 = redis.incr("counter", -1).await.unwrap();
    assert_eq!(last, (CLIENTS * EACH) as u64 - 1, "from an SSTable");
    c.shutdown().await;
}
