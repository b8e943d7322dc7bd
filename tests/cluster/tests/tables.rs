//! Tables that are dropped and made anew, or get other options, beside readers and writers: nobody sees what was there before, and
//! nothing that was written is lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use futures::StreamExt;
use sextant_client::{Client, ClientOptions, Compression, ErrorKind, OptionsChange, TableInfo, TableOptions};
use sextant_pnode::{Operation, PNode, ReadOptions, ScanRange, WriteOptions};
use sextant_tests::cluster::{Cluster, Maintenance, Options};
use sextant_tests::{PATIENCE, eventually};

async fn client(c: &Cluster) -> Client {
    let all = c.pnodes().iter().map(|pnode| pnode.grpc_addr().to_string()).collect();
    let patient = ClientOptions { deadline: PATIENCE, ..ClientOptions::default() };
    Client::connect_in(c.env.clone(), all, patient).await.unwrap()
}

async fn put(pnode: &PNode, table: &str, key: &str, value: String) -> Result<(), sextant_common::Error> {
    let op = Operation::put(table, key.to_owned(), Bytes::from(value));
    pnode.write(vec![op], WriteOptions::default()).await.map(drop)
}

async fn get(pnode: &PNode, table: &str, key: &str) -> Result<Option<String>, sextant_common::Error> {
    let record = pnode.get(table, key.as_bytes(), ReadOptions::default()).await?;
    Ok(record.map(|record| String::from_utf8(record.value.to_vec()).unwrap()))
}

/// Until somebody answers, if only that there is no such table: leaders change, and writes are held back.
async fn answer(pnode: &PNode, table: &str, key: &str) -> Result<Option<String>, sextant_common::Error> {
    let asking = async {
        loop {
            match get(pnode, table, key).await {
                Err(e) if e.kind != ErrorKind::UnknownTable => tokio::task::yield_now().await,
                answer => return answer,
            }
        }
    };
    tokio::time::timeout(PATIENCE, asking).await.expect("a read is answered")
}

async fn written(pnode: &PNode, table: &str, key: &str, value: String) {
    let writing = async {
        while put(pnode, table, key, value.clone()).await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, writing).await.expect("a write is done");
}

/// Records of all partitions, some in SSTables, some in memory; read, so that they are in caches.
async fn fill(c: &Cluster, table: &str, value: &str) {
    for half in 0..2 {
        for i in (half..60).step_by(2) {
            let pnode = c.pnode(i % 2).local();
            written(pnode, table, &format!("k{i}"), format!("{value}-{i}")).await;
        }
        if half == 0 {
            c.maintain(Maintenance::Flush, table).await;
        }
    }
    check(c, table, value).await;
    check(c, table, value).await;
}

async fn check(c: &Cluster, table: &str, value: &str) {
    for pnode in c.pnodes() {
        for i in 0..60 {
            let read = answer(pnode.local(), table, &format!("k{i}")).await.unwrap();
            assert_eq!(read, Some(format!("{value}-{i}")));
        }
    }
}

async fn is_unknown(c: &Cluster, table: &str) {
    for pnode in c.pnodes() {
        let pnode = pnode.local();
        for i in 0..60 {
            let read = answer(pnode, table, &format!("k{i}")).await;
            assert_eq!(read.unwrap_err().kind, ErrorKind::UnknownTable);
        }
        let written = put(pnode, table, "k1", "late".into()).await;
        assert_eq!(written.unwrap_err().kind, ErrorKind::UnknownTable);
        let page = pnode.scan(table, ScanRange::default()).next().await.unwrap();
        assert_eq!(page.err().unwrap().kind, ErrorKind::UnknownTable);
    }
}

/// Those that a p-node names, as soon as a leader of partition 0 answers.
async fn known(pnode: &PNode) -> Vec<TableInfo> {
    eventually("a p-node says which tables there are", async || pnode.tables().await.ok()).await
}

/// That any p-node knows.
async fn tables(c: &Cluster) -> Vec<String> {
    let mut all = Vec::new();
    for pnode in c.pnodes() {
        let tables = known(pnode.local()).await;
        let names: Vec<String> =
            tables.into_iter().map(|t| t.name).filter(|n| !n.starts_with("sextant.")).collect();
        all.extend(names.into_iter().filter(|name| !all.contains(name)).collect::<Vec<_>>());
    }
    all
}

fn tables_on_disk(c: &Cluster) -> u64 {
    (0..3).map(|i| c.sstable_status(i)["tables"].as_u64().unwrap()).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_table_is_gone_everywhere_and_its_name_and_space_are_free() {
    let mut c = Cluster::start(Options { partitions: 3, ..Options::default() }).await;
    let client = client(&c).await;
    let (first, _) = client.create_table("t", &TableOptions::default()).await.unwrap();
    fill(&c, "default", "stays").await;
    fill(&c, "t", "first").await;
    client.drop_table("t").await.unwrap();
    is_unknown(&c, "t").await;
    assert_eq!(tables(&c).await, ["default"]);
    assert!(!client.drop_table("t").await.unwrap(), "it is gone already");
    check(&c, "default", "stays").await;
    // Of the other table there is one in each partition, on three servers.
    eventually("its SSTables are erased", async || (tables_on_disk(&c) == 9).then_some(())).await;

    let zstd = TableOptions { compression: Compression::Zstd, ..TableOptions::default() };
    let (id, _) = client.create_table("t", &zstd).await.unwrap();
    assert!(id > first, "{id}");
    for pnode in c.pnodes() {
        for i in 0..60 {
            assert_eq!(answer(pnode.local(), "t", &format!("k{i}")).await.unwrap(), None);
        }
    }
    fill(&c, "t", "second").await;
    c.restart_tiers().await;
    check(&c, "t", "second").await;
    check(&c, "default", "stays").await;
    for refused in ["default", "db3", "sextant.elements"] {
        assert!(client.drop_table(refused).await.is_err());
    }
    c.shutdown().await;
}

async fn transfer(c: &Cluster, partition: u32) {
    let before = c.leader(partition as usize).await;
    let to = c.config.memtable[(before + 1) % c.config.memtable.len()].id.0;
    let _ = c.transfer(partition, to).await;
}

/// Until it is done: a leader that changes meanwhile is no reason to give up.
async fn drop_table(client: &Client, table: &str) {
    eventually("the table is dropped", async || client.drop_table(table).await.ok()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_was_dropped_is_seen_by_nobody_whoever_reads_and_writes_and_leads_meanwhile() {
    let c = Cluster::start(Options { partitions: 2, ..Options::default() }).await;
    let client = client(&c).await;
    // Rounds before this one are dropped.
    let oldest = Arc::new(AtomicU64::new(0));
    let round = Arc::new(AtomicU64::new(0));
    let (seen, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    // The rounds in which writes have begun that are under way, and by how many rounds one was late at most.
    let writing = Arc::new([AtomicU64::new(u64::MAX), AtomicU64::new(u64::MAX)]);
    let late = Arc::new(AtomicU64::new(0));
    let mut tasks = Vec::new();
    for at in 0..4u64 {
        let (oldest, round, seen, stop) = (oldest.clone(), round.clone(), seen.clone(), stop.clone());
        let (writing, late) = (writing.clone(), late.clone());
        let pnode = c.pnode(at as usize % 2).local().clone();
        tasks.push(tokio::spawn(async move {
            let mut rng = fastrand::Rng::with_seed(at);
            while !stop.load(Ordering::SeqCst) {
                let key = format!("k{}", rng.u64(..20));
                let (not_before, now) = (oldest.load(Ordering::SeqCst), round.load(Ordering::SeqCst));
                if at < 2 {
                    // A write that is late belongs to the table that is there when it arrives.
                    writing[at as usize].store(now, Ordering::SeqCst);
                    let _ = put(&pnode, "t", &key, format!("{now}")).await;
                    late.fetch_max(round.load(Ordering::SeqCst) + 1 - now, Ordering::SeqCst);
                    writing[at as usize].store(u64::MAX, Ordering::SeqCst);
                    continue;
                }
                let Ok(Some(value)) = get(&pnode, "t", &key).await else { continue };
                let of: u64 = value.parse().unwrap();
                let under_way = writing.iter().map(|w| w.load(Ordering::SeqCst)).min().unwrap_or(u64::MAX);
                let late = late.load(Ordering::SeqCst).max(not_before.saturating_sub(under_way)).max(1);
                assert!(of + late >= not_before, "{key} is of round {of}, and {not_before} has begun");
                seen.fetch_add(1, Ordering::SeqCst);
            }
        }));
    }
    for n in 1..=5u64 {
        eventually("the table is made", async || {
            client.create_table("t", &TableOptions::default()).await.ok()
        })
        .await;
        for pnode in c.pnodes() {
            assert_eq!(answer(pnode.local(), "t", "fresh").await.unwrap(), None, "of round {n}");
        }
        round.store(n, Ordering::SeqCst);
        written(c.pnode(0).local(), "t", "fresh", n.to_string()).await;
        let before = seen.load(Ordering::SeqCst);
        eventually("it is read", async || (seen.load(Ordering::SeqCst) > before + 200).then_some(())).await;
        c.maintain(Maintenance::Flush, "t").await;
        match n % 2 {
            0 => drop_table(&client, "t").await,
            _ => drop(tokio::join!(drop_table(&client, "t"), transfer(&c, 0), transfer(&c, 1))),
        }
        for pnode in c.pnodes() {
            let read = answer(pnode.local(), "t", "fresh").await;
            assert_eq!(read.unwrap_err().kind, ErrorKind::UnknownTable);
        }
        oldest.store(n + 1, Ordering::SeqCst);
    }
    stop.store(true, Ordering::SeqCst);
    for task in tasks {
        task.await.unwrap();
    }
    c.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drop_that_did_not_get_everywhere_is_completed_by_who_drops_or_makes_the_table() {
    let c = Cluster::start(Options { partitions: 3, ..Options::default() }).await;
    let client = client(&c).await;
    for again in [false, true] {
        client.create_table("t", &TableOptions::default()).await.unwrap();
        fill(&c, "t", "first").await;
        let id = known(c.pnode(0).local()).await.into_iter().find(|t| t.name == "t").unwrap().id;
        c.drop_in(0, id).await;
        // Nobody makes it again where it is gone; where it is not, it has no name.
        eventually("the p-nodes know", async || (tables(&c).await == ["default"]).then_some(())).await;
        is_unknown(&c, "t").await;
        if again {
            client.drop_table("t").await.unwrap();
        }
        let (made, _) = client.create_table("t", &TableOptions::default()).await.unwrap();
        assert!(made > id);
        for pnode in c.pnodes() {
            for i in 0..60 {
                assert_eq!(answer(pnode.local(), "t", &format!("k{i}")).await.unwrap(), None);
            }
        }
        client.drop_table("t").await.unwrap();
    }
    c.shutdown().await;
}

/// Its creation is asked for again after the drop, as by a p-node that heard of it late.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_that_was_dropped_before_it_got_everywhere_does_not_come_any_more() {
    let c = Cluster::start(Options { partitions: 2, ..Options::default() }).await;
    let client = client(&c).await;
    let id = c.create_in(0, "t", 0).await;
    client.drop_table("t").await.unwrap();
    assert_eq!(c.create_in(1, "t", id.0).await.0, 0, "it is told that it is gone");
    assert_eq!(tables(&c).await, ["default"]);
    let (again, _) = client.create_table("t", &TableOptions::default()).await.unwrap();
    assert!(again > id);
    fill(&c, "t", "second").await;
    c.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn options_change_under_writers_and_nothing_that_was_written_is_missed() {
    let c = Cluster::start(Options { partitions: 2, ..Options::default() }).await;
    let client = client(&c).await;
    client.create_table("t", &TableOptions::default()).await.unwrap();
    let (stop, writes) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut tasks = Vec::new();
    for at in 0..2usize {
        let (writer, reader) = (c.pnode(at).local().clone(), c.pnode(1 - at).local().clone());
        let (stop, writes) = (stop.clone(), writes.clone());
        tasks.push(tokio::spawn(async move {
            let mut n = 0;
            while !stop.load(Ordering::SeqCst) {
                // First it is not there, which may be kept; then it is, for everybody.
                let key = format!("{at}-{n}");
                assert_eq!(answer(&reader, "t", &key).await.unwrap(), None);
                written(&writer, "t", &key, n.to_string()).await;
                assert_eq!(answer(&reader, "t", &key).await.unwrap(), Some(n.to_string()));
                writes.fetch_add(1, Ordering::SeqCst);
                n += 1;
            }
            n
        }));
    }
    let filtered = |on| OptionsChange { filter_inserts: Some(on), ..OptionsChange::default() };
    for round in 0..6 {
        let before = writes.load(Ordering::SeqCst);
        eventually("writers go on", async || (writes.load(Ordering::SeqCst) > before + 50).then_some(()))
            .await;
        let change = filtered(round % 2 == 0);
        let altered =
            eventually("the table is altered", async || client.alter_table("t", &change).await.ok());
        let (options, ()) = tokio::join!(altered, async {
            if round % 3 == 2 {
                transfer(&c, 0).await;
            }
        });
        assert_eq!(options.filter_inserts, round % 2 == 0);
        for pnode in c.pnodes() {
            let known = known(pnode.local()).await;
            assert!(known.iter().any(|t| t.name == "t" && t.options == options), "{known:?}");
        }
    }
    stop.store(true, Ordering::SeqCst);
    for (at, task) in tasks.into_iter().enumerate() {
        for n in 0..task.await.unwrap() {
            let read = answer(c.pnode(at).local(), "t", &format!("{at}-{n}")).await.unwrap();
            assert_eq!(read, Some(n.to_string()));
        }
    }
    let zstd = OptionsChange { compression: Some(Compression::Zstd), ..OptionsChange::default() };
    let options = client.alter_table("t", &zstd).await.unwrap();
    assert_eq!((options.compression, options.filter_inserts), (Compression::Zstd, false));
    c.maintain(Maintenance::Compact, "t").await;
    assert_eq!(answer(c.pnode(0).local(), "t", "0-0").await.unwrap(), Some("0".into()));
    let unknown = client.alter_table("nope", &zstd).await.unwrap_err();
    assert_eq!(unknown.kind, ErrorKind::UnknownTable);
    c.shutdown().await;
}
