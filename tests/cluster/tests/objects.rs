//! Objects of the Redis protocol, through different p-nodes, over flushes: nothing is lost, and nobody sees a half.

use std::collections::{BTreeMap, BTreeSet};

use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;
use sextant_environment::env::grpc_channel;
use sextant_pnode::{Operation, ScanRange, WriteOptions};
use sextant_proto::v1;
use sextant_proto::v1::kv_client::KvClient;
use sextant_tests::cluster::{Cluster, Maintenance, Options};

const ELEMENTS: &str = "sextant.elements";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_are_the_same_at_every_p_node_and_in_every_tier() {
    let c = Cluster::start(Options::default()).await;
    let (mut first, mut second) = (c.redis(0).await, c.redis(1).await);
    for i in 0..20 {
        let key = format!("h{i}");
        let added: u64 = redis::cmd("HSET")
            .arg(&key)
            .arg("a")
            .arg(i)
            .arg("b")
            .arg("x")
            .query_async(&mut first)
            .await
            .unwrap();
        assert_eq!(added, 2);
        let value: Option<u64> = second.hget(&key, "a").await.unwrap();
        assert_eq!(value, Some(i));
        let _: () = second.zadd("{z}set", format!("m{i}"), i).await.unwrap();
        let _: () = first.rpush("list", i).await.unwrap();
        let _: () = second.sadd("members", i % 5).await.unwrap();
    }
    for table in ["default", ELEMENTS] {
        c.maintain(Maintenance::Flush, table).await;
    }
    for redis in [&mut first, &mut second] {
        for i in 0..20u64 {
            let all: BTreeMap<String, String> = redis.hgetall(format!("h{i}")).await.unwrap();
            assert_eq!(all, BTreeMap::from([("a".into(), i.to_string()), ("b".into(), "x".into())]));
        }
        let range: Vec<String> = redis.zrangebyscore_limit("{z}set", 5, "+inf", 1, 2).await.unwrap();
        assert_eq!(range, ["m6", "m7"]);
        let list: Vec<u64> = redis.lrange("list", 0, -1).await.unwrap();
        assert_eq!(list, (0..20).collect::<Vec<_>>());
        let members: BTreeSet<u64> = redis.smembers("members").await.unwrap();
        assert_eq!(members, (0..5).collect());
        let kind: String = redis::cmd("TYPE").arg("h1").query_async(redis).await.unwrap();
        assert_eq!(kind, "hash");
    }
    // Once more, over what is in SSTables.
    let added: u64 =
        redis::cmd("HSET").arg("h1").arg("a").arg(7).arg("c").arg(8).query_async(&mut second).await.unwrap();
    let (removed, len): (u64, u64) = (first.hdel("h1", "b").await.unwrap(), first.hlen("h1").await.unwrap());
    assert_eq!((added, removed, len), (1, 1, 2));
    let _: u64 = first.del("h1").await.unwrap();
    let all: BTreeMap<String, String> = second.hgetall("h1").await.unwrap();
    assert!(all.is_empty());
    let _: u64 = redis::cmd("HSET").arg("h1").arg("new").arg(1).query_async(&mut second).await.unwrap();
    let all: BTreeMap<String, u64> = first.hgetall("h1").await.unwrap();
    assert_eq!(all, BTreeMap::from([("new".into(), 1)]), "nothing of what was deleted is back");
    // Others are told that it is no value.
    let channel = grpc_channel(&c.env.net, &c.pnode(1).grpc_addr().to_string());
    let refused = async |get: v1::KvGetRequest| {
        sextant_tests::eventually("a read is refused", async || {
            let refused = KvClient::new(channel.clone()).get(get.clone()).await.unwrap_err();
            (refused.code() != tonic::Code::Unavailable).then_some(refused)
        })
        .await
    };
    let hash = refused(v1::KvGetRequest { key: "h2".into(), ..Default::default() }).await;
    assert!(hash.message().contains("hash"), "{hash}");
    let hidden = v1::KvGetRequest { table: ELEMENTS.into(), key: "h2".into(), ..Default::default() };
    assert_eq!(refused(hidden).await.code(), tonic::Code::PermissionDenied);
    c.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_field_that_many_increment_over_flushes_loses_none_and_the_count_is_that_of_the_fields() {
    const CLIENTS: usize = 6;
    const EACH: usize = 40;
    let c = Cluster::start(Options { partitions: 1, ..Options::default() }).await;
    let increments = (0..CLIENTS).map(|client| {
        let connected = c.redis(client % 2);
        async move {
            let mut redis = connected.await;
            let mut answers = Vec::new();
            for i in 0..EACH {
                answers.push(redis.hincr::<_, _, _, u64>("h", "counter", 1).await.unwrap());
                // Fields come and go; so does another object, as a whole.
                let _: () = redis.hset("h", format!("f{}", i % 7), client).await.unwrap();
                let _: u64 = redis.hdel("h", format!("f{}", (i + client) % 7)).await.unwrap();
                let _: () = redis.sadd("brief", client).await.unwrap();
                let _: () = redis.srem("brief", client).await.unwrap();
                let _: () = redis.zadd("z", format!("m{}", i % 5), i).await.unwrap();
            }
            answers
        }
    });
    let flushes = async {
        for _ in 0..4 {
            for table in ["default", ELEMENTS] {
                c.maintain(Maintenance::Flush, table).await;
            }
        }
    };
    let mut warm = c.redis(0).await;
    let _: () = warm.hset("h", "first", 0).await.unwrap();
    let (answers, ()) = tokio::join!(futures::future::join_all(increments), flushes);
    let mut answers: Vec<u64> = answers.into_iter().flatten().collect();
    answers.sort_unstable();
    assert_eq!(answers, (1..=(CLIENTS * EACH) as u64).collect::<Vec<_>>());
    let (all, len): (BTreeMap<String, u64>, usize) =
        (warm.hgetall("h").await.unwrap(), warm.hlen("h").await.unwrap());
    assert_eq!((all["counter"], all.len()), ((CLIENTS * EACH) as u64, len));
    let (members, card): (BTreeSet<u64>, usize) =
        (warm.smembers("brief").await.unwrap(), warm.scard("brief").await.unwrap());
    assert_eq!((members.len(), card, warm.exists::<_, bool>("brief").await.unwrap()), (0, 0, false));
    let ranked: Vec<(String, u64)> = warm.zrange_withscores("z", 0, -1).await.unwrap();
    assert_eq!((ranked.len(), warm.zcard::<_, usize>("z").await.unwrap()), (5, 5));
    for (member, score) in ranked {
        assert_eq!(warm.zscore::<_, _, u64>("z", &member).await.unwrap(), score, "index and member agree");
    }
    c.shutdown().await;
}

async fn sum(redis: &mut MultiplexedConnection) -> i64 {
    let all: BTreeMap<String, i64> = redis.hgetall("accounts").await.unwrap();
    all.values().sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_sees_half_of_a_command_or_of_a_transaction() {
    let c = Cluster::start(Options { partitions: 1, ..Options::default() }).await;
    let (mut writer, mut reader) = (c.redis(0).await, c.redis(1).await);
    let _: () = writer.hset_multiple("accounts", &[("a", 100), ("b", 0), ("c", 0)]).await.unwrap();
    let writes = async {
        for i in 0..60 {
            let (from, to) = (["a", "b", "c"][i % 3], ["b", "c", "a"][i % 3]);
            let mut pipe = redis::pipe();
            pipe.atomic().hincr("accounts", from, -1).ignore().hincr("accounts", to, 1).ignore();
            let _: () = pipe.query_async(&mut writer).await.unwrap();
            let _: () = writer.hset_multiple("pair", &[("x", i), ("y", i)]).await.unwrap();
        }
    };
    let reads = async {
        for _ in 0..60 {
            assert_eq!(sum(&mut reader).await, 100);
            let pair: Vec<Option<usize>> =
                redis::cmd("HMGET").arg("pair").arg("x").arg("y").query_async(&mut reader).await.unwrap();
            assert_eq!(pair[0], pair[1]);
        }
    };
    tokio::join!(writes, reads);
    // A plain write over it, not by this protocol.
    let pnode = c.pnode(0).local();
    pnode.write(vec![Operation::put("", "pair", "plain")], WriteOptions::default()).await.unwrap();
    let wrong = reader.hget::<_, _, Option<String>>("pair", "x").await.unwrap_err();
    assert_eq!(wrong.code(), Some("WRONGTYPE"));
    assert_eq!(reader.get::<_, String>("pair").await.unwrap(), "plain");
    c.shutdown().await;
}

/// How many elements there are, of objects that are there or gone.
async fn elements(c: &Cluster) -> usize {
    let mut pages =
        c.pnode(0).local().scan(ELEMENTS, ScanRange { start: "\0\u{1}".into(), ..ScanRange::default() });
    let mut elements = 0;
    while let Some(page) = pages.next_page().await {
        elements += page.unwrap().records.len();
    }
    elements
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_objects_leave_behind_is_swept_and_nothing_else() {
    let c = Cluster::start(Options::default()).await;
    let (mut first, mut second) = (c.redis(0).await, c.redis(1).await);
    for key in ["deleted", "expired", "replaced", "stays"] {
        let fields: Vec<(String, u64)> = (0..30).map(|i| (format!("f{i}"), i)).collect();
        let _: () = first.hset_multiple(key, &fields).await.unwrap();
    }
    assert_eq!(elements(&c).await, 120);
    let _: u64 = first.del("deleted").await.unwrap();
    sextant_tests::eventually("its elements are gone soon", async || {
        (elements(&c).await == 90).then_some(())
    })
    .await;
    // Of these, the other p-node does not know that they were objects.
    let _: () = second.set("replaced", "plain").await.unwrap();
    let _: u64 = second.pexpire("expired", 1).await.unwrap();
    sextant_tests::eventually("it has expired", async || {
        (!second.clone().exists::<_, bool>("expired").await.unwrap()).then_some(())
    })
    .await;
    let _: () = second.hset("expired", "new", 1).await.unwrap();
    // (On a busy machine a p-node may have begun by itself, and claimed a partition.)
    let swept = c.pnode(1).sweep().await.unwrap();
    assert!(swept <= 60, "{swept}");
    if swept == 60 {
        assert_eq!(elements(&c).await, 31);
    } else {
        sextant_tests::eventually("all is swept", async || (elements(&c).await == 31).then_some(())).await;
    }
    assert_eq!((first.hlen("stays").await, first.hlen("expired").await), (Ok(30), Ok(1)));
    let _: () = second.del("stays").await.unwrap();
    assert_eq!(c.pnode(0).sweep().await.unwrap(), 0, "somebody has just done so");
    c.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_of_more_than_a_page_are_read_and_moved_as_a_whole() {
    const MANY: usize = 12_500;
    let c = Cluster::start(Options::default()).await;
    let (mut writer, mut reader) = (c.redis(0).await, c.redis(1).await);
    let all: Vec<String> = (0..MANY).map(|n| format!("{n:05}")).collect();
    for part in all.chunks(2_500) {
        let _: () = writer.sadd("{o}set", part).await.unwrap();
        let _: () = writer.rpush("{o}list", part).await.unwrap();
    }
    c.maintain(Maintenance::Flush, ELEMENTS).await;
    let members: BTreeSet<String> = reader.smembers("{o}set").await.unwrap();
    assert!(members.iter().eq(&all));
    let list: Vec<String> = reader.lrange("{o}list", 0, -1).await.unwrap();
    assert_eq!(list, all);
    let _: () = writer.rename("{o}set", "{o}other").await.unwrap();
    let members: BTreeSet<String> = reader.smembers("{o}other").await.unwrap();
    assert!(members.iter().eq(&all));
    let length: usize = redis::cmd("LINSERT")
        .arg(&["{o}list", "AFTER", "11000", "new"])
        .query_async(&mut writer)
        .await
        .unwrap();
    assert_eq!(length, MANY + 1);
    let mut expected = all.clone();
    expected.insert(11_001, "new".to_owned());
    let list: Vec<String> = reader.lrange("{o}list", 0, -1).await.unwrap();
    assert_eq!(list, expected);
    let popped: Vec<String> =
        redis::cmd("LPOP").arg("{o}list").arg(11_000).query_async(&mut writer).await.unwrap();
    assert_eq!(popped, expected[..11_000]);
    let list: Vec<String> = reader.lrange("{o}list", 0, -1).await.unwrap();
    assert_eq!(list, expected[11_000..]);
    c.shutdown().await;
}
