//! The numbered databases of the Redis protocol are tables that every p-node and every front end sees.

use std::collections::BTreeMap;

use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;
use sextant_pnode::{ReadOptions, ScanRange};
use sextant_tests::cluster::{Cluster, Maintenance, Options};

/// A connection of its own, in a database.
async fn selected(c: &Cluster, pnode: usize, database: usize) -> MultiplexedConnection {
    let mut redis = c.redis(pnode).await;
    let _: () = redis::cmd("SELECT").arg(database).query_async(&mut redis).await.unwrap();
    redis
}

/// How many elements of objects a database has, of those that are there and of those that are gone.
async fn elements(c: &Cluster, database: usize) -> usize {
    let table = format!("sextant.elements.db{database}");
    let range = ScanRange { start: "\0\u{1}".into(), ..ScanRange::default() };
    let mut pages = c.pnode(0).local().scan(&table, range);
    let mut elements = 0;
    while let Some(page) = pages.next_page().await {
        elements += page.unwrap().records.len();
    }
    elements
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_is_the_same_at_every_p_node_and_in_every_tier() {
    let mut c = Cluster::start(Options::default()).await;
    let mut clients = Vec::new();
    for database in [0, 1, 7] {
        clients.push((database, selected(&c, 0, database).await, selected(&c, 1, database).await));
    }
    for (database, first, second) in &mut clients {
        for i in 0..20 {
            let _: () = first.set(format!("k{i}"), format!("{database}-{i}")).await.unwrap();
            let _: () = second.hset(format!("h{i}"), "f", *database * 100 + i).await.unwrap();
        }
        let n: usize = second.incr("n", *database + 1).await.unwrap();
        assert_eq!(n, *database + 1);
    }
    for table in ["default", "db1", "db7", "sextant.elements", "sextant.elements.db1", "sextant.elements.db7"]
    {
        c.maintain(Maintenance::Flush, table).await;
    }
    c.stop_memtable(0).await;
    c.start_memtable(0).await;
    c.ready().await;
    for (database, first, second) in &mut clients {
        let n: usize = first.incr("n", 1).await.unwrap();
        assert_eq!(n, *database + 2);
        for i in 0..20 {
            let value: String = second.get(format!("k{i}")).await.unwrap();
            assert_eq!(value, format!("{database}-{i}"));
            let all: BTreeMap<String, usize> = first.hgetall(format!("h{i}")).await.unwrap();
            assert_eq!(all, BTreeMap::from([("f".into(), *database * 100 + i)]));
        }
        let size: usize = redis::cmd("DBSIZE").query_async(second).await.unwrap();
        assert_eq!(size, 41);
    }
    let record = c.pnode(1).local().get("db7", b"k3", ReadOptions::default()).await.unwrap();
    assert_eq!(record.unwrap().value, "7-3", "it is a table");
    // Whoever has not looked for it before finds it empty, and nobody has made it.
    assert!(c.pnode(0).local().get("db2", b"k3", ReadOptions::default()).await.is_err());
    let mut empty = selected(&c, 1, 2).await;
    assert_eq!(empty.get::<_, Option<String>>("k3").await.unwrap(), None);
    assert_eq!(c.pnode(0).local().get("db2", b"k3", ReadOptions::default()).await.unwrap(), None);
    c.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_objects_leave_behind_is_swept_in_each_database() {
    let c = Cluster::start(Options::default()).await;
    let (mut first, mut other) = (selected(&c, 0, 1).await, selected(&c, 0, 2).await);
    for redis in [&mut first, &mut other] {
        for key in ["deleted", "stays"] {
            let fields: Vec<(String, u64)> = (0..30).map(|i| (format!("f{i}"), i)).collect();
            let _: () = redis.hset_multiple(key, &fields).await.unwrap();
        }
    }
    let _: u64 = first.del("deleted").await.unwrap();
    sextant_tests::eventually("its elements are gone soon", async || {
        (elements(&c, 1).await == 30).then_some(())
    })
    .await;
    assert_eq!(elements(&c, 2).await, 60);
    assert_eq!(c.pnode(0).sweep().await.unwrap(), 0);
    let lens: (u64, u64, u64) = (
        first.hlen("stays").await.unwrap(),
        other.hlen("stays").await.unwrap(),
        other.hlen("deleted").await.unwrap(),
    );
    assert_eq!(lens, (30, 30, 30));
    let _: () = redis::cmd("FLUSHALL").query_async(&mut other).await.unwrap();
    for redis in [&mut first, &mut other] {
        assert_eq!(redis::cmd("DBSIZE").query_async::<usize>(redis).await.unwrap(), 0);
    }
    c.shutdown().await;
}
