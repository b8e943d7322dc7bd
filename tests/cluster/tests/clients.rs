//! Ordinary clients: Redis' protocol and gRPC, through different p-nodes; limits and bad input.

use redis::AsyncCommands;
use sextant_common::limits::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use sextant_environment::env::grpc_channel;
use sextant_pnode::{Operation, ReadOptions, WriteOptions};
use sextant_proto::v1;
use sextant_proto::v1::kv_client::KvClient;
use sextant_tests::cluster::{Cluster, Maintenance, Options};
use sextant_tests::eventually;
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
    let got = eventually("a read over gRPC", async || {
        let get = v1::KvGetRequest { key: "k5".into(), ..Default::default() };
        Some(KvClient::new(channel.clone()).get(get).await.ok()?.into_inner())
    })
    .await;
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

/// Of each partition's keys a batch is made: if one of them is too large, none is sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_over_partitions_of_which_one_gets_too_much_writes_nothing() {
    let c = Cluster::start(Options::default()).await;
    let mut redis = c.redis(0).await;
    let mut mset = redis::cmd("MSET");
    for i in 0..3 {
        mset.arg(format!("{{large}}{i}")).arg(vec![0u8; VALUE_BYTES_MAX]);
    }
    let small: Vec<String> = (0..20).map(|i| format!("small{i}")).collect();
    for key in &small {
        mset.arg(key).arg("x");
    }
    let error = mset.query_async::<()>(&mut redis).await.unwrap_err();
    assert!(error.to_string().contains("16 MiB"), "{error}");
    let there: usize = redis.exists(small).await.unwrap();
    assert_eq!(there, 0);
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

/// Some hundred transactions of each client; what fails took effect whole or not at all, which the others see.
async fn transact(mut redis: redis::aio::MultiplexedConnection, client: usize) -> [usize; 3] {
    const EACH: usize = 60;
    let mut rng = fastrand::Rng::with_seed(client as u64);
    let [mut committed, mut undone, mut failed] = [0; 3];
    for _ in 0..EACH {
        let mut done = |result: redis::RedisResult<Option<Vec<i64>>>| match result {
            Ok(Some(_)) => committed += 1,
            Ok(None) => undone += 1,
            Err(e) if matches!(e.code(), Some("TRYAGAIN" | "CLUSTERDOWN" | "OUTCOMEUNKNOWN")) => failed += 1,
            Err(e) => panic!("{e}"),
        };
        match rng.u8(..3) {
            // From one account to another, if nobody interferes.
            0 => {
                let [from, to] = [rng.u8(..4), rng.u8(..4)].map(|account| format!("account{account}"));
                let watched: redis::RedisResult<()> =
                    redis::cmd("WATCH").arg(&from).arg(&to).query_async(&mut redis).await;
                let balances: redis::RedisResult<[i64; 2]> = redis.mget(&[&from, &to]).await;
                let (Ok(()), Ok([has, gets])) = (watched, balances) else { continue };
                let amount = rng.i64(0..=has);
                let mut pipe = redis::pipe();
                pipe.atomic().set(&from, has - amount).ignore();
                if from == to {
                    pipe.set(&to, has).ignore();
                } else {
                    pipe.set(&to, gets + amount).ignore();
                }
                done(pipe.query_async(&mut redis).await);
            }
            1 => done(redis::pipe().atomic().incr("x", 1).incr("y", 1).query_async(&mut redis).await),
            _ => {
                let both: redis::RedisResult<(i64, i64, Vec<i64>)> = redis::pipe()
                    .atomic()
                    .get("x")
                    .get("y")
                    .mget(&["account0", "account1", "account2", "account3"])
                    .query_async(&mut redis)
                    .await;
                if let Ok((x, y, accounts)) = both {
                    assert_eq!((x, accounts.iter().sum::<i64>()), (y, 4000), "{accounts:?}");
                }
            }
        }
    }
    [committed, undone, failed]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transactions_of_many_clients_take_effect_whole_over_flushes_and_a_change_of_leader() {
    const CLIENTS: usize = 8;
    let mut c = Cluster::start(Options { partitions: 1, ..Options::default() }).await;
    let mut redis = c.redis(0).await;
    let accounts: Vec<(String, i64)> = (0..4).map(|account| (format!("account{account}"), 1000)).collect();
    let _: () = redis.mset(&accounts).await.unwrap();
    let _: () = redis.mset(&[("x", 0), ("y", 0)]).await.unwrap();
    let mut running = Vec::new();
    for client in 0..CLIENTS {
        running.push(tokio::spawn(transact(c.redis(client % 2).await, client)));
    }
    c.maintain(Maintenance::Flush, "default").await;
    let leader = c.leader(0).await;
    c.stop_memtable(leader).await;
    c.start_memtable(leader).await;
    c.maintain(Maintenance::Flush, "default").await;
    let mut all = [0; 3];
    for client in running {
        let done = client.await.unwrap();
        all.iter_mut().zip(done).for_each(|(all, done)| *all += done);
    }
    assert!(all[0] > CLIENTS, "committed, undone, failed: {all:?}");
    let (x, y, balances): (i64, i64, Vec<i64>) = redis::pipe()
        .atomic()
        .get("x")
        .get("y")
        .mget(&["account0", "account1", "account2", "account3"])
        .query_async(&mut redis)
        .await
        .unwrap();
    assert_eq!((x, balances.iter().sum::<i64>()), (y, 4000));
    c.shutdown().await;
}
