//! Damaged tables on real disks: another replica answers, the damage is reported by table and offset, and the replica is
//! repaired by itself. What is damaged everywhere is an error, never a wrong answer or an absent record.

use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use std::path::Path;

use bytes::Bytes;
use futures::future::join_all;
use sextant_common::error::{Error, ErrorKind};
use sextant_common::ids::PartitionId;
use sextant_common::key::filter_hash;
use sextant_environment::env::{error_of, grpc_channel};
use sextant_pnode::{Operation, PNode, ReadOptions, ScanRange, WriteOptions};
use sextant_proto::v1;
use sextant_proto::v1::kv_client::KvClient;
use sextant_tests::cluster::{Cluster, Maintenance, Options};
use sextant_tests::{PATIENCE, eventually};

/// What is certainly lost is told after this time; everything else has all the time that there is.
const SOON_MS: u64 = 3000;
const KEYS: u64 = 600;
/// Some keys that are certainly in the first block.
const IN_FIRST_BLOCK: usize = 6;
/// From here on keys are certainly in other blocks.
const IN_OTHER_BLOCKS: usize = 200;
const TRAILER_BYTES: usize = 124;

/// No caches, so that every read meets the file; the tests say when tables are verified.
fn options() -> Options {
    Options {
        partitions: 1,
        sstable_config: |config| {
            config.block_cache_bytes = Some(0);
            config.scrub_interval_s = 0;
        },
        pnode_config: |config| {
            config.cache_bytes = 0;
            config.default_deadline_ms = SOON_MS;
        },
        ..Options::default()
    }
}

/// Values that do not compress, so that there are many blocks.
fn value(key: &str) -> Bytes {
    let word = |i: u64| filter_hash(format!("{key}/{i}").as_bytes()).to_le_bytes();
    (0..32).flat_map(word).collect::<Vec<u8>>().into()
}

/// One table of one partition, on three servers.
struct Flushed {
    id: String,
    keys: Vec<String>,
}

async fn write(pnode: &PNode, ops: Vec<Operation>) {
    let patient = WriteOptions { deadline: Some(PATIENCE), ..WriteOptions::default() };
    assert!(pnode.write(ops, patient).await.unwrap().applied);
}

async fn start() -> (Cluster, Flushed) {
    let c = Cluster::start(options()).await;
    let keys: Vec<String> = (0..KEYS).map(|i| format!("key{i:05}")).collect();
    for chunk in keys.chunks(50) {
        let ops = chunk.iter().map(|key| Operation::put("default", key.clone(), value(key))).collect();
        write(c.pnode(0).local(), ops).await;
    }
    c.maintain(Maintenance::Flush, "").await;
    let leader = c.leader(0).await;
    let status = c.status(leader);
    let tables = status["partitions"][0]["tables"].as_array().unwrap();
    let ssts: Vec<_> = tables.iter().flat_map(|t| t["sstables"].as_array().unwrap()).collect();
    assert_eq!(ssts.len(), 1, "{status}");
    let flushed = Flushed { id: ssts[0]["id"].as_str().unwrap().to_owned(), keys };
    for server in 0..3 {
        is_sound(&c, server, &flushed.id).await;
    }
    // Until they know of the flush, the memtable that was flushed answers p-nodes.
    let version = status["partitions"][0]["manifest_version"].as_u64().unwrap();
    eventually("the p-nodes read the SSTable", async || {
        let knows = |pnode: &PNode| pnode.manifest(PartitionId(0)).0.0 >= version;
        c.pnodes().iter().all(|pnode| knows(pnode.local())).then_some(())
    })
    .await;
    (c, flushed)
}

fn bytes_of(path: &Path) -> Vec<u8> {
    std::fs::read(path).unwrap_or_default()
}

/// Where a section starts, as the trailer says.
fn section(path: &Path, at_in_trailer: usize) -> u64 {
    let bytes = bytes_of(path);
    let at = bytes.len() - TRAILER_BYTES + at_in_trailer;
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

fn open(path: &Path) -> std::fs::File {
    std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap()
}

/// In place: servers that have the file open see it.
fn flip(path: &Path, offset: u64) {
    let (file, mut byte) = (open(path), [0]);
    file.read_exact_at(&mut byte, offset).unwrap();
    byte[0] ^= 0x10;
    file.write_all_at(&byte, offset).unwrap();
    file.sync_all().unwrap();
}

#[derive(Clone, Copy, Debug)]
enum Damage {
    Block,
    Index,
    Filter,
    Trailer,
    Truncated,
    Deleted,
}

impl Damage {
    const ALL: [Damage; 6] =
        [Damage::Block, Damage::Index, Damage::Filter, Damage::Trailer, Damage::Truncated, Damage::Deleted];

    fn inflict(self, path: &Path) {
        match self {
            Damage::Block => flip(path, 100),
            Damage::Index => flip(path, section(path, 56) + 3),
            Damage::Filter => flip(path, section(path, 72) + 9),
            Damage::Trailer => flip(path, bytes_of(path).len() as u64 - 30),
            Damage::Truncated => open(path).set_len(bytes_of(path).len() as u64 / 2).unwrap(),
            Damage::Deleted => std::fs::remove_file(path).unwrap(),
        }
    }
}

/// Waits until a server has the table, and the status knows of no damage.
async fn is_sound(c: &Cluster, server: usize, id: &str) -> serde_json::Value {
    eventually("the table is there and sound", async || {
        let status = c.sstable_status(server);
        let whole =
            status["tables"] == 1 && status["damaged_tables"] == 0 && status["running"]["copies"] == 0;
        (whole && c.sstable_file(server, id).exists()).then_some(status)
    })
    .await
}

async fn get(pnode: &PNode, key: &str) -> sextant_common::Result<Option<Bytes>> {
    let patient = ReadOptions { deadline: Some(PATIENCE), ..ReadOptions::default() };
    let record = pnode.get("default", key.as_bytes(), patient).await?;
    Ok(record.map(|r| r.value))
}

/// Through every p-node, at the first attempt.
async fn assert_reads(c: &Cluster, keys: &[String]) {
    for pnode in c.pnodes() {
        for key in keys {
            assert_eq!(get(pnode.local(), key).await.unwrap(), Some(value(key)), "{key}");
        }
    }
}

/// One server answers for everything while the others are down.
async fn assert_answers_alone(c: &mut Cluster, server: usize, keys: &[String]) {
    let others: Vec<usize> = (0..3).filter(|i| *i != server).collect();
    for other in &others {
        c.stop_sstable(*other).await;
    }
    assert_reads(c, keys).await;
    for other in &others {
        c.start_sstable(*other).await;
    }
}

fn assert_same_file(c: &Cluster, one: usize, other: usize, id: &str) {
    let same = bytes_of(&c.sstable_file(one, id)) == bytes_of(&c.sstable_file(other, id));
    assert!(same, "the repaired file is not the healthy one's copy");
}

/// The newest repair names the table and what was found.
fn assert_reported(status: &serde_json::Value, id: &str, found: &str) {
    let newest = status["repaired"].as_array().and_then(|r| r.last()).unwrap_or(&serde_json::Value::Null);
    assert_eq!(newest["table"], id, "{status}");
    let error = newest["error"].as_str().unwrap();
    assert!(error.contains(id) && error.contains(found), "{found:?} is not in {error:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_block_is_answered_by_another_replica_reported_and_repaired() {
    let (mut c, table) = start().await;
    for victim in 0..2 {
        let healthy = victim + 1;
        Damage::Block.inflict(&c.sstable_file(victim, &table.id));
        // Not one of the reads fails, whichever replica it asks first.
        let status = eventually("a read meets the damage, and it is repaired", async || {
            assert_reads(&c, &table.keys[..IN_FIRST_BLOCK]).await;
            let status = c.sstable_status(victim);
            (status["repaired_tables"] == 1 && status["damaged_tables"] == 0).then_some(status)
        })
        .await;
        assert_reported(&status, &table.id, "offset 0:");
        assert_same_file(&c, victim, healthy, &table.id);
        assert_answers_alone(&mut c, victim, &table.keys).await;
    }
    c.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damage_is_found_at_a_restart_and_repaired() {
    let (mut c, table) = start().await;
    for (round, damage) in Damage::ALL.into_iter().enumerate() {
        let (victim, healthy) = (round % 3, (round + 1) % 3);
        println!("{damage:?} on server {victim}");
        c.stop_sstable(victim).await;
        let path = c.sstable_file(victim, &table.id);
        let (index, filter) = (section(&path, 56), section(&path, 72));
        let trailer = bytes_of(&path).len() - TRAILER_BYTES;
        damage.inflict(&path);
        let short = bytes_of(&path).len().saturating_sub(TRAILER_BYTES);
        c.start_sstable(victim).await;
        assert_reads(&c, &table.keys[..IN_FIRST_BLOCK]).await;
        // A start reads no data blocks: these are found when somebody does.
        c.sstable(victim).unwrap().scrub_now().await;
        let status = is_sound(&c, victim, &table.id).await;
        match damage {
            Damage::Block => assert_reported(&status, &table.id, "offset 0:"),
            Damage::Index => assert_reported(&status, &table.id, &format!("offset {index}: index")),
            Damage::Filter => assert_reported(&status, &table.id, &format!("offset {filter}: filter")),
            Damage::Trailer => assert_reported(&status, &table.id, &format!("offset {trailer}: trailer")),
            Damage::Truncated => assert_reported(&status, &table.id, &format!("offset {short}: trailer")),
            Damage::Deleted => {}
        }
        // A filter is a function of the keys, so it needs no other replica.
        let copies = if matches!(damage, Damage::Filter) { 0 } else { 1 };
        // (A leader that is new may order it once more.)
        let copied = status["done"]["copies"].as_u64().unwrap();
        assert_eq!(copied.min(1), copies, "{status}");
        assert_same_file(&c, victim, healthy, &table.id);
        assert_answers_alone(&mut c, victim, &table.keys).await;
    }
    c.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damage_that_nobody_reads_is_found_by_verification_and_repaired() {
    let (mut c, table) = start().await;
    for (round, damage) in Damage::ALL.into_iter().enumerate() {
        let (victim, healthy) = (round % 3, (round + 1) % 3);
        println!("{damage:?} on server {victim}");
        let path = c.sstable_file(victim, &table.id);
        let (index, filter) = (section(&path, 56), section(&path, 72));
        let trailer = bytes_of(&path).len() - TRAILER_BYTES;
        damage.inflict(&path);
        let end = bytes_of(&path).len();
        let server = c.sstable(victim).unwrap();
        assert_eq!(server.scrub_now().await, 1);
        let status = is_sound(&c, victim, &table.id).await;
        match damage {
            Damage::Block => assert_reported(&status, &table.id, "offset 0:"),
            Damage::Index => assert_reported(&status, &table.id, &format!("offset {index}: index")),
            Damage::Filter => assert_reported(&status, &table.id, &format!("offset {filter}: filter")),
            Damage::Trailer => assert_reported(&status, &table.id, &format!("offset {trailer}: trailer")),
            Damage::Truncated => {
                assert_reported(&status, &table.id, &format!("offset {end}: the file ends here"));
            }
            Damage::Deleted => assert_reported(&status, &table.id, "somebody removed it"),
        }
        assert_eq!(server.scrub_now().await, 0);
        assert_same_file(&c, victim, healthy, &table.id);
        assert_answers_alone(&mut c, victim, &table.keys).await;
    }
    c.shutdown().await;
}

/// Every way of asking for a key of the first block fails, and says what is damaged.
async fn assert_lost(c: &Cluster, table: &Flushed) {
    join_all((0..c.pnodes().len()).map(|pnode| assert_lost_through(c, pnode, table))).await;
}

async fn assert_lost_through(c: &Cluster, pnode: usize, table: &Flushed) {
    let mut redis = c.redis(pnode).await;
    let pnode = c.pnode(pnode);
    let (engine, key) = (pnode.local(), &table.keys[1]);
    let names_the_place = |error: &Error| {
        let named = error.message.contains(&table.id) && error.message.contains("offset 0:");
        assert!(named && error.kind == ErrorKind::Corrupt, "{error}");
    };
    // (On a busy machine its time may be over before anything was found out.)
    let is_late = |kind| matches!(kind, ErrorKind::Unavailable | ErrorKind::OutcomeUnknown);
    let is_told = |error: Error| (!is_late(error.kind)).then(|| names_the_place(&error));
    let gets = join_all(table.keys[..IN_FIRST_BLOCK].iter().map(|key| {
        eventually("a read fails", async move || {
            let read = engine.get("default", key.as_bytes(), ReadOptions::default()).await;
            is_told(read.unwrap_err())
        })
    }));
    // Whether the record exists is not known, so no condition about it is decided.
    let insert = eventually("an insert fails", async || {
        let insert = vec![Operation::insert("default", key.clone(), "new")];
        is_told(engine.write(insert, WriteOptions::default()).await.unwrap_err())
    });
    let scan = eventually("a scan fails", async || {
        let mut scan = engine.scan("default", ScanRange::prefix("key"));
        loop {
            match scan.next_page().await.expect("the scan cannot come to an end") {
                Ok(page) => assert!(page.records.iter().all(|(key, r)| r.value == value(text(key)))),
                Err(error) => break is_told(error),
            }
        }
    });
    let grpc = eventually("a read over gRPC fails", async || {
        let mut kv = KvClient::new(grpc_channel(&c.env.net, &pnode.grpc_addr().to_string()));
        let request = v1::KvGetRequest { key: key.clone().into(), ..Default::default() };
        let status = kv.get(request).await.unwrap_err();
        let is_told = !is_late(error_of(status.clone()).kind);
        is_told.then(|| assert_eq!(status.code(), tonic::Code::DataLoss, "{status}"))
    });
    let resp = eventually("GET fails", async || {
        let told = redis::cmd("GET").arg(key).query_async::<Option<String>>(&mut redis).await.unwrap_err();
        let is_told = told.code() != Some("CLUSTERDOWN");
        is_told.then(|| assert_eq!(told.code(), Some("CORRUPT"), "{told}"))
    });
    tokio::join!(gets, insert, scan, grpc, resp);
}

fn text(key: &Bytes) -> &str {
    std::str::from_utf8(key).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_damaged_on_every_replica_is_a_clear_error_and_everything_else_goes_on() {
    let (mut c, table) = start().await;
    for server in 0..3 {
        Damage::Block.inflict(&c.sstable_file(server, &table.id));
    }
    assert_lost(&c, &table).await;
    assert_reads(&c, &table.keys[IN_OTHER_BLOCKS..]).await;
    for server in 0..3 {
        let status = c.sstable_status(server);
        assert_eq!(status["damage"][0]["table"], table.id, "{status}");
        assert!(status["damage"][0]["error"].as_str().unwrap().contains("offset 0:"), "{status}");
        c.stop_sstable(server).await;
        c.start_sstable(server).await;
    }
    assert_lost(&c, &table).await;
    assert_reads(&c, &table.keys[IN_OTHER_BLOCKS..]).await;
    // Something new takes the place of what was lost.
    let overwritten = table.keys[0].clone();
    write(c.pnode(0).local(), vec![Operation::put("default", overwritten.clone(), "new")]).await;
    for pnode in c.pnodes() {
        assert_eq!(get(pnode.local(), &overwritten).await.unwrap(), Some("new".into()));
    }
    // A copy comes back from somewhere: the other replicas are repaired from it.
    c.stop_sstable(2).await;
    Damage::Block.inflict(&c.sstable_file(2, &table.id));
    c.start_sstable(2).await;
    for server in 0..2 {
        let status = is_sound(&c, server, &table.id).await;
        assert_reported(&status, &table.id, "offset 0:");
        assert_same_file(&c, server, 2, &table.id);
    }
    assert_answers_alone(&mut c, 0, &table.keys[1..]).await;
    c.shutdown().await;
}

/// A compaction is not done with a damaged input; the healthy replica's server does it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_compaction_reads_around_damage() {
    let (c, table) = start().await;
    let mut expected: BTreeMap<String, Bytes> = table.keys.iter().map(|k| (k.clone(), value(k))).collect();
    for key in table.keys.iter().step_by(7) {
        write(c.pnode(1).local(), vec![Operation::put("default", key.clone(), "new")]).await;
        expected.insert(key.clone(), "new".into());
    }
    c.maintain(Maintenance::Flush, "").await;
    // Two of three: whichever of them is asked to compact first finds it out.
    for server in 0..2 {
        Damage::Block.inflict(&c.sstable_file(server, &table.id));
    }
    c.maintain(Maintenance::Compact, "").await;
    for pnode in c.pnodes() {
        for (key, value) in &expected {
            assert_eq!(get(pnode.local(), key).await.unwrap().as_ref(), Some(value), "{key}");
        }
    }
    for server in 0..3 {
        eventually("the inputs are deleted", async || {
            (c.sstable_status(server)["tables"] == 1 && !c.sstable_file(server, &table.id).exists())
                .then_some(())
        })
        .await;
    }
    c.shutdown().await;
}
