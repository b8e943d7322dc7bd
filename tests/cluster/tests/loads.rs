//! Bulk loads beside readers and writers: everybody sees them from one moment on, they are not lost, and what comes to nothing is cleared
//! away.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use sextant_client::{
    Client, EndLoad, Error, ErrorKind, LoadId, LoadPart, LoadRecord, LoadState, PartitionId, Result,
};
use sextant_common::database::Database;
use sextant_common::ids::Seq;
use sextant_common::marks::{Kind, Marks};
use sextant_common::object::{Header, Tag, element_key};
use sextant_common::sstable::RecordVersion;
use sextant_memtable_server::Tuning;
use sextant_pnode::{Condition, Operation, PNode, ReadOptions, ScanRange, WriteOptions};
use sextant_tests::cluster::{Cluster, Maintenance, Options};
use sextant_tests::eventually;

const KEYS: u64 = 600;

fn options() -> Options {
    let tuning = Tuning { sst_target_bytes: 16 << 10, ..Options::default().tuning };
    Options { partitions: 1, tuning, ..Options::default() }
}

fn key(i: u64) -> String {
    format!("key-{i:06}")
}

/// The round that wrote it, and bytes that make some tables of a load.
fn value(round: u64) -> String {
    format!("{round}:{}", "x".repeat(100))
}

fn round_of(value: &[u8]) -> u64 {
    let text = std::str::from_utf8(value).unwrap();
    text.split(':').next().unwrap().parse().unwrap()
}

fn part(id: u64) -> LoadPart {
    LoadPart { partition: PartitionId(0), table: "default".into(), id: LoadId(id) }
}

fn records(round: u64) -> BoxStream<'static, Result<Vec<LoadRecord>>> {
    let all: Vec<_> = (0..KEYS).map(|i| LoadRecord::new(key(i), value(round), None)).collect();
    // (One without records says that it goes on.)
    let pieces: Vec<_> = all.chunks(50).flat_map(|piece| [Ok(piece.to_vec()), Ok(Vec::new())]).collect();
    futures::stream::iter(pieces).boxed()
}

async fn client(c: &Cluster) -> Client {
    let all: Vec<String> = c.pnodes().iter().map(|pnode| pnode.grpc_addr().to_string()).collect();
    Client::connect(all.join(",").as_str()).await.unwrap()
}

/// Until it is written.
async fn write(client: &Client, part: &LoadPart, round: u64) {
    eventually("the load is written", async || {
        let state = client.send_load(part, records(round)).await.ok()?;
        (state != LoadState::Unknown).then_some(())
    })
    .await;
}

/// Until somebody says how it is then.
async fn end(client: &Client, part: &LoadPart, how: EndLoad) -> LoadState {
    eventually("the load's end is told", async || client.end_load(part, how).await.ok()).await
}

/// Until it is seen: sent again where a leader has forgotten it.
async fn commit(client: &Client, part: &LoadPart, round: u64) {
    eventually("the load is committed", async || match client.end_load(part, EndLoad::Commit).await {
        Ok(LoadState::Committed) => Some(()),
        Ok(_) => {
            write(client, part, round).await;
            None
        }
        Err(_) => None,
    })
    .await;
}

async fn transfer(c: &Cluster) {
    let before = c.leader(0).await;
    let to = c.config.memtable[(before + 1) % c.config.memtable.len()].id.0;
    eventually("another server leads", async || {
        let now = c.leader(0).await;
        if c.config.memtable[now].id.0 == to {
            return Some(());
        }
        let _ = c.transfer(0, to).await;
        None
    })
    .await;
}

/// What readers have seen of each key: no later read may show less.
struct Seen(Vec<AtomicU64>);

impl Seen {
    async fn read(&self, pnode: &PNode, i: u64) {
        let seen = &self.0[i as usize];
        let before = seen.load(Ordering::SeqCst);
        let found = pnode.get("default", key(i).as_bytes(), ReadOptions::default()).await.unwrap();
        let round = found.map_or(0, |record| round_of(&record.value));
        assert!(round >= before, "{} was of round {before}, and is of round {round} again", key(i));
        seen.fetch_max(round, Ordering::SeqCst);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everybody_sees_a_load_from_one_moment_on_whoever_reads_and_writes_and_leads_meanwhile() {
    let mut c = Cluster::start(options()).await;
    let client = client(&c).await;
    let seen = Arc::new(Seen((0..KEYS).map(|_| AtomicU64::new(0)).collect()));
    let stop = Arc::new(AtomicBool::new(false));
    let mut tasks = Vec::new();
    for at in 0..2 {
        let (seen, stop, pnode) = (seen.clone(), stop.clone(), c.pnode(at).local().clone());
        tasks.push(tokio::spawn(async move {
            let mut rng = fastrand::Rng::with_seed(at as u64);
            while !stop.load(Ordering::SeqCst) {
                // A few hot ones, which are registered, and all others.
                let i = if rng.bool() { rng.u64(..8) } else { rng.u64(..KEYS) };
                seen.read(&pnode, i).await;
            }
        }));
    }
    let written = Arc::new(AtomicU64::new(0));
    let (counted, stopped, pnode) = (written.clone(), stop.clone(), c.pnode(1).local().clone());
    tasks.push(tokio::spawn(async move {
        while !stopped.load(Ordering::SeqCst) {
            let n = counted.load(Ordering::SeqCst) + 1;
            let ops = vec![Operation::put("default", format!("other-{:03}", n % 100), n.to_string())];
            pnode.write(ops, WriteOptions::default()).await.unwrap();
            counted.store(n, Ordering::SeqCst);
        }
    }));
    for round in 1..=6 {
        let part = part(100 + round);
        write(&client, &part, round).await;
        if round % 3 == 2 {
            // The leader changes while it is committed, or before.
            tokio::join!(commit(&client, &part, round), transfer(&c));
        } else {
            commit(&client, &part, round).await;
        }
        for (at, pnode) in c.pnodes().into_iter().enumerate() {
            for i in (at as u64..KEYS).step_by(37) {
                let found =
                    pnode.local().get("default", key(i).as_bytes(), ReadOptions::default()).await.unwrap();
                assert_eq!(round_of(&found.expect("it was loaded").value), round, "{}", key(i));
            }
        }
        assert_eq!(end(&client, &part, EndLoad::Commit).await, LoadState::Committed, "once more");
        // What is loaded is there for conditions, and what is written after it is newer.
        let mut insert = Operation::put("default", key(round), value(round));
        insert.condition = Condition::Absent;
        let outcome = c.pnode(0).local().write(vec![insert], WriteOptions::default()).await.unwrap();
        assert!(!outcome.applied);
        let put = Operation::put("default", key(500 + round), value(round));
        assert!(c.pnode(0).local().write(vec![put], WriteOptions::default()).await.unwrap().applied);
        if round == 4 {
            c.maintain(Maintenance::Compact, "").await;
        }
    }
    stop.store(true, Ordering::SeqCst);
    for task in tasks {
        task.await.unwrap();
    }
    let others = written.load(Ordering::SeqCst);
    assert!(others > 0);
    // Everything is there after a restart of all, with the log after the load and without.
    for flush in [false, true] {
        if flush {
            c.maintain(Maintenance::Flush, "").await;
        }
        for i in 0..3 {
            c.stop_memtable(i).await;
        }
        for i in 0..3 {
            c.stop_sstable(i).await;
            c.start_sstable(i).await;
        }
        for i in 0..3 {
            c.start_memtable(i).await;
        }
        c.ready().await;
        let pnode = c.pnode(0).local();
        let (mut scan, mut found) = (pnode.scan("default", ScanRange::default()), BTreeMap::new());
        while let Some(page) = scan.next_page().await {
            found.extend(page.unwrap().records.into_iter().map(|(key, record)| (key, record.value)));
        }
        for i in 0..KEYS {
            assert_eq!(found.get(key(i).as_bytes()).map(|value| round_of(value)), Some(6), "{}", key(i));
        }
        let newest = format!("other-{:03}", others % 100);
        assert_eq!(found.get(newest.as_bytes()), Some(&Bytes::from(others.to_string())));
    }
    c.shutdown().await;
}

/// Why it is refused, once its leader is known.
async fn refusal(send: impl AsyncFn() -> Result<LoadState>) -> Error {
    eventually("it is refused", async || {
        let error = send().await.unwrap_err();
        (!matches!(error.kind, ErrorKind::Retry | ErrorKind::Unavailable)).then_some(error)
    })
    .await
}

/// SSTables that an sstable server has.
fn tables(c: &Cluster, i: usize) -> usize {
    c.sstable_status(i)["tables"].as_u64().unwrap() as usize
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_load_that_comes_to_nothing_is_cleared_away_and_bad_ones_are_refused() {
    let c = Cluster::start(options()).await;
    let client = client(&c).await;
    // Another one has to wait, and nothing is seen of it. (A load of a leader that is gone gives way.)
    eventually("another one has to wait", async || {
        write(&client, &part(7), 1).await;
        let held = tables(&c, 0);
        match client.send_load(&part(8), records(1)).await {
            Err(e) => (e.kind == ErrorKind::Overloaded && held > 1).then_some(()),
            Ok(_) => {
                end(&client, &part(8), EndLoad::Abort).await;
                None
            }
        }
    })
    .await;
    let read =
        async || c.pnode(0).local().get("default", key(1).as_bytes(), ReadOptions::default()).await.unwrap();
    assert!(read().await.is_none());
    // The next leader knows nothing of it, and clears away what it has left.
    transfer(&c).await;
    assert_eq!(end(&client, &part(7), EndLoad::Commit).await, LoadState::Unknown);
    eventually("its tables are gone", async || (0..3).all(|i| tables(&c, i) == 0).then_some(())).await;
    assert!(read().await.is_none());
    // So does whoever gives it up.
    write(&client, &part(9), 1).await;
    assert_eq!(end(&client, &part(9), EndLoad::Abort).await, LoadState::Unknown);
    eventually("its tables are gone", async || (0..3).all(|i| tables(&c, i) == 0).then_some(())).await;
    let pieces = |keys: &[&'static str]| {
        let records = keys.iter().map(|key| LoadRecord::new(*key, "v", None)).collect();
        futures::stream::iter([Ok(records)]).boxed()
    };
    for (part, keys, why) in [
        (part(10), &["b", "a"][..], "rising order"),
        (part(10), &["a", "a"], "rising order"),
        (part(0), &["a"], "not 0"),
        (LoadPart { table: "nowhere".into(), ..part(10) }, &["a"], "no table"),
        (LoadPart { partition: PartitionId(9), ..part(10) }, &["a"], "no partition"),
    ] {
        let error = refusal(async || client.send_load(&part, pieces(keys)).await).await;
        assert!(error.message.contains(why), "{error}");
    }
    eventually("nothing is left", async || (0..3).all(|i| tables(&c, i) == 0).then_some(())).await;
    c.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_load_goes_on_with_two_of_three_sstable_servers() {
    let mut c = Cluster::start(options()).await;
    let client = client(&c).await;
    c.stop_sstable(2).await;
    write(&client, &part(7), 1).await;
    commit(&client, &part(7), 1).await;
    c.start_sstable(2).await;
    eventually("the third one has copies", async || (tables(&c, 2) == tables(&c, 0)).then_some(())).await;
    let found = c.pnode(1).local().get("default", key(3).as_bytes(), ReadOptions::default()).await.unwrap();
    assert_eq!(round_of(&found.unwrap().value), 1);
    c.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reply_of_an_object_is_not_given_again_when_elements_came_by_an_import_or_a_load() {
    const VERSION: u64 = 7;
    let c = Cluster::start(options()).await;
    let client = client(&c).await;
    let mut readers = [c.redis(0).await, c.redis(1).await];
    // (So that there is a table of elements.)
    let mut other = redis::cmd("HSET");
    let made = other.arg("other").arg("f").arg("1");
    eventually("an object is made", async || made.exec_async(&mut c.redis(0).await).await.ok()).await;
    let fields = async |reader: &mut redis::aio::MultiplexedConnection, key: &str| {
        let mut ask = redis::cmd("HGETALL");
        ask.arg(key);
        eventually("it is read", async || ask.query_async::<Vec<String>>(&mut reader.clone()).await.ok())
            .await
    };
    for (key, is_loaded) in [("imported", false), ("loaded", true)] {
        let record = |key: &[u8], value: Bytes, marks| RecordVersion {
            key: Bytes::copy_from_slice(key),
            seq: Seq(0),
            value: Some(value),
            marks,
        };
        let import = async |table: &str, record: RecordVersion| {
            let imported = async || client.import(table, vec![record.clone().into()]).await.ok();
            eventually("it is imported", imported).await
        };
        let header = Header::new(VERSION, 1).encode();
        import("default", record(key.as_bytes(), header, Marks::new(Kind::Hash, None))).await;
        for reader in &mut readers {
            for _ in 0..4 {
                assert!(fields(reader, key).await.is_empty(), "its elements are still to come");
            }
        }
        let (element, value) =
            (element_key(key.as_bytes(), VERSION, Tag::Field, b"f"), Bytes::from_static(b"1"));
        match is_loaded {
            false => drop(import(Database::FIRST.elements(), record(&element, value, Marks::NONE)).await),
            true => {
                let part = LoadPart { table: Database::FIRST.elements().into(), ..part(77) };
                eventually("it is loaded", async || {
                    let all = vec![Ok(vec![LoadRecord::new(element.clone(), value.clone(), None)])];
                    client.send_load(&part, futures::stream::iter(all).boxed()).await.ok()?;
                    let ended = client.end_load(&part, EndLoad::Commit).await;
                    (ended.ok()? == LoadState::Committed).then_some(())
                })
                .await;
            }
        }
        for reader in &mut readers {
            for _ in 0..4 {
                assert_eq!(fields(reader, key).await, ["f", "1"], "{key}");
            }
        }
    }
    c.shutdown().await;
}
