//! A table that is made of many small columns: loaded, overwritten, deleted in part, compacted down through all of them, and read back
//! through p-nodes all the while.

use std::collections::BTreeMap;

use bytes::Bytes;
use sextant_memtable_server::Tuning;
use sextant_pnode::{Operation, PNode, ReadOptions, ScanRange, WriteOptions};
use sextant_tests::cluster::{Cluster, Maintenance, Options};
use sextant_tests::eventually;

const KEYS: u64 = 4_000;
/// Operations of one batch.
const BATCH: usize = 200;

type Model = BTreeMap<String, Bytes>;

fn options() -> Options {
    let tuning = Tuning {
        compaction_trigger: 3,
        sst_target_bytes: 16 << 10,
        memtable_bytes: 64 << 10,
        ..Options::default().tuning
    };
    let pnode_config = |config: &mut sextant_pnode::PNodeConfig| config.cache_bytes = 0;
    Options { partitions: 1, tuning, pnode_config, ..Options::default() }
}

fn key(i: u64) -> String {
    format!("key-{i:06}")
}

/// Bytes that do not compress.
fn value(rng: &mut fastrand::Rng) -> Bytes {
    (0..100).map(|_| rng.u8(..)).collect::<Vec<u8>>().into()
}

/// Writes what the rounds choose; None: deleted.
async fn write(pnode: &PNode, model: &mut Model, ops: Vec<(u64, Option<Bytes>)>) {
    for batch in ops.chunks(BATCH) {
        let mut last: BTreeMap<u64, Option<Bytes>> = BTreeMap::new();
        batch.iter().for_each(|(i, value)| drop(last.insert(*i, value.clone())));
        let ops = last.iter().map(|(i, value)| match value {
            Some(value) => Operation::put("default", key(*i), value.clone()),
            None => Operation::delete("default", key(*i)),
        });
        assert!(pnode.write(ops.collect(), WriteOptions::default()).await.unwrap().applied);
        for (i, value) in last {
            match value {
                Some(value) => model.insert(key(i), value),
                None => model.remove(&key(i)),
            };
        }
    }
}

async fn scanned(pnode: &PNode, range: ScanRange) -> Vec<(String, Bytes)> {
    let (mut scan, mut found) = (pnode.scan("default", range), Vec::new());
    while let Some(page) = scan.next_page().await {
        let records = page.unwrap().records.into_iter();
        found.extend(records.map(|(key, r)| (String::from_utf8(key.to_vec()).unwrap(), r.value)));
    }
    found
}

async fn assert_data(c: &Cluster, model: &Model) {
    for (at, pnode) in c.pnodes().into_iter().enumerate() {
        let pnode = pnode.local();
        for i in (at as u64..KEYS).step_by(23) {
            let record = pnode.get("default", key(i).as_bytes(), ReadOptions::default()).await.unwrap();
            assert_eq!(record.map(|r| r.value), model.get(&key(i)).cloned(), "{}", key(i));
        }
        let all: Vec<(String, Bytes)> = model.iter().map(|(k, v)| (k.clone(), v.clone())).collect();
        assert_eq!(scanned(pnode, ScanRange::default()).await, all);
        let mut backward = scanned(pnode, ScanRange { reverse: true, ..ScanRange::default() }).await;
        backward.reverse();
        assert_eq!(backward, all);
        // A part, across the bounds of columns.
        let (start, end) = (key(KEYS / 3), key(KEYS / 2));
        let range =
            ScanRange { start: start.clone().into(), end: end.clone().into(), ..ScanRange::default() };
        let part: Vec<(String, Bytes)> =
            model.range(start..end).map(|(k, v)| (k.clone(), v.clone())).collect();
        assert_eq!(scanned(pnode, range).await, part);
    }
}

/// Columns, SSTables and records of the table, as its leader says.
async fn standing(c: &Cluster) -> (u64, usize, u64) {
    let leader = c.leader(0).await;
    let table = c.status(leader)["partitions"][0]["tables"][0].clone();
    let ssts = table["sstables"].as_array().unwrap();
    let records = ssts.iter().map(|sst| sst["records"].as_u64().unwrap()).sum();
    (table["columns"].as_u64().unwrap(), ssts.len(), records)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_of_many_columns_is_read_as_it_was_written_while_it_is_compacted_down_through_them() {
    let c = Cluster::start(options()).await;
    let (mut model, mut rng) = (Model::new(), fastrand::Rng::with_seed(1));
    let pnode = c.pnode(0).local();
    let load: Vec<_> = (0..KEYS).map(|i| (i, Some(value(&mut rng)))).collect();
    write(pnode, &mut model, load).await;
    c.maintain(Maintenance::Flush, "").await;
    let (columns, ..) = eventually("the table is cut", async || {
        let standing = standing(&c).await;
        (standing.0 > 8).then_some(standing)
    })
    .await;
    assert_data(&c, &model).await;
    // Everything several times over, some of it deleted: what comes down meets what is there.
    for _ in 0..4 {
        let ops: Vec<_> = (0..KEYS)
            .map(|_| (rng.u64(..KEYS), if rng.u8(..5) == 0 { None } else { Some(value(&mut rng)) }))
            .collect();
        write(c.pnode(1).local(), &mut model, ops).await;
        c.maintain(Maintenance::Flush, "").await;
        assert_data(&c, &model).await;
    }
    // A range that is deleted whole, and everything compacted to the ground.
    write(pnode, &mut model, (KEYS / 4..KEYS / 3).map(|i| (i, None)).collect()).await;
    c.maintain(Maintenance::Flush, "").await;
    c.maintain(Maintenance::Compact, "").await;
    let (columns_after, ssts, records) = standing(&c).await;
    assert!(columns_after > 8 && columns > 8, "{columns} {columns_after}");
    assert_eq!(ssts as u64, columns_after, "one for each");
    // (A tombstone for each column that has nothing else.)
    assert!(records < model.len() as u64 + columns_after, "{records} records of {}", model.len());
    assert_data(&c, &model).await;
    c.shutdown().await;
}
