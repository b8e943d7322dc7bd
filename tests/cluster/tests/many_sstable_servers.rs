//! More sstable servers than replicas: the inputs of a compaction lie on different servers and are gathered on one of
//! them; tables of servers that are lost or drained move to others. Afterwards the data is right, and every server holds exactly what
//! the manifest says.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use sextant_memtable_server::Tuning;
use sextant_pnode::{Operation, PNode, ReadOptions, ScanRange, WriteOptions};
use sextant_tests::cluster::{Cluster, Maintenance, Options};
use sextant_tests::eventually;

const SERVERS: usize = 5;
const PARTITIONS: u32 = 2;

fn options(compaction_trigger: usize) -> Options {
    let tuning = Tuning { compaction_trigger, ..Options::default().tuning };
    let pnode_config = |config: &mut sextant_pnode::PNodeConfig| config.cache_bytes = 0;
    Options { partitions: PARTITIONS, sstable: SERVERS, tuning, pnode_config, ..Options::default() }
}

type Model = BTreeMap<String, String>;

async fn write(pnode: &PNode, op: Operation) {
    assert!(pnode.write(vec![op], WriteOptions::default()).await.unwrap().applied);
}

/// New keys, overwritten ones and deleted ones, then a flush.
async fn round(c: &Cluster, round: u64, model: &mut Model) {
    for i in 0..60 {
        // Half of the keys are the round's own, the others are written again and again.
        let key = if i % 2 == 0 { format!("r{round}-{i:03}") } else { format!("shared-{:03}", i % 30) };
        let pnode = c.pnode(i as usize % c.pnodes().len()).local();
        if (i + round) % 7 == 3 {
            write(pnode, Operation::delete("default", key.clone())).await;
            model.remove(&key);
        } else {
            let value = format!("{key} of round {round}");
            write(pnode, Operation::put("default", key.clone(), value.clone())).await;
            model.insert(key, value);
        }
    }
    c.maintain(Maintenance::Flush, "").await;
}

#[derive(Clone, Debug)]
struct Table {
    partition: usize,
    id: String,
    /// Indexes of servers; a compaction is done by the first one that can.
    replicas: Vec<usize>,
}

/// What the leaders' manifests name.
async fn named(c: &Cluster) -> Vec<Table> {
    let mut tables = Vec::new();
    for partition in 0..PARTITIONS as usize {
        let leader = c.leader(partition).await;
        let status = c.status(leader);
        for sst in status["partitions"][partition]["tables"]
            .as_array()
            .into_iter()
            .flatten()
            .flat_map(|t| t["sstables"].as_array())
            .flatten()
        {
            let replicas = sst["replicas"].as_array().unwrap().iter();
            tables.push(Table {
                partition,
                id: sst["id"].as_str().unwrap().to_owned(),
                replicas: replicas.map(|id| id.as_u64().unwrap() as usize - 1).collect(),
            });
        }
    }
    tables
}

/// The tables whose files a server has.
fn held(c: &Cluster, server: usize) -> BTreeSet<String> {
    let file = c.sstable_file(server, "any");
    let files = std::fs::read_dir(file.parent().unwrap()).unwrap();
    let names = files.map(|f| f.unwrap().file_name().into_string().unwrap());
    names.filter_map(|n| n.strip_suffix(".sst").map(str::to_owned)).collect()
}

/// Waits until every server holds what the manifest gives it, and nothing else.
async fn settled(c: &Cluster) {
    for server in 0..SERVERS {
        eventually("the server holds exactly its tables", async || {
            let named = named(c).await;
            let its = named.into_iter().filter(|t| t.replicas.contains(&server)).map(|t| t.id);
            (held(c, server) == its.collect()).then_some(())
        })
        .await;
    }
}

async fn assert_data(c: &Cluster, model: &Model, rounds: u64) {
    for pnode in c.pnodes() {
        let pnode = pnode.local();
        for round in 0..rounds {
            for i in (0..60).step_by(2) {
                let key = format!("r{round}-{i:03}");
                let record = pnode.get("default", key.as_bytes(), ReadOptions::default()).await.unwrap();
                let value = record.map(|r| r.value);
                assert_eq!(value, model.get(&key).map(|v| Bytes::from(v.clone())), "{key}");
            }
        }
        let (mut scan, mut found) = (pnode.scan("default", ScanRange::default()), Model::new());
        while let Some(page) = scan.next_page().await {
            for (key, record) in page.unwrap().records {
                let text = |b: &Bytes| String::from_utf8(b.to_vec()).unwrap();
                found.insert(text(&key), text(&record.value));
            }
        }
        assert_eq!(&found, model);
    }
}

fn copies(c: &Cluster) -> u64 {
    (0..SERVERS)
        .filter(|i| c.sstable(*i).is_some())
        .map(|i| c.sstable_status(i)["done"]["copies"].as_u64().unwrap())
        .sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_compaction_gathers_inputs_that_lie_on_different_servers() {
    let mut c = Cluster::start(options(0)).await;
    let mut model = Model::new();
    let mut rounds = 0;
    // Where tables lie is drawn: until a compaction had to gather (almost always the first one).
    loop {
        for _ in 0..4 {
            round(&c, rounds, &mut model).await;
            rounds += 1;
        }
        assert_data(&c, &model, rounds).await;
        settled(&c).await;
        let (inputs, copies_before) = (named(&c).await, copies(&c));
        let used: BTreeSet<usize> = inputs.iter().flat_map(|t| t.replicas.clone()).collect();
        assert!(used.len() > 3, "tables are spread over the servers: {inputs:?}");
        c.maintain(Maintenance::Compact, "").await;
        let outputs = named(&c).await;
        assert_eq!(outputs.len(), PARTITIONS as usize, "{outputs:?}");
        assert_data(&c, &model, rounds).await;
        let lacking = |output: &Table| {
            let of_partition = inputs.iter().filter(|i| i.partition == output.partition);
            of_partition.filter(|i| !i.replicas.contains(&output.replicas[0])).count()
        };
        let gathered: usize = outputs.iter().map(lacking).sum();
        settled(&c).await;
        // Each output is copied to two servers besides, by its worker or, if that failed, by a repair.
        let (copied, of_outputs) = (copies(&c) - copies_before, 2 * outputs.len() as u64);
        assert!(copied >= of_outputs, "{copied} copies of {outputs:?}");
        // (If it failed, the first to have an output may not be who made it.)
        if gathered > 0 && copied >= of_outputs + gathered as u64 {
            break;
        }
        assert!(rounds < 40, "{gathered} inputs had to be gathered, and there were {copied} copies");
    }
    // With a server down, tables that chose it have two replicas, and compactions that chose it go to another one.
    c.stop_sstable(1).await;
    for _ in 0..3 {
        round(&c, rounds, &mut model).await;
        rounds += 1;
    }
    assert_data(&c, &model, rounds).await;
    c.maintain(Maintenance::Compact, "").await;
    assert_data(&c, &model, rounds).await;
    c.start_sstable(1).await;
    settled(&c).await;
    assert_data(&c, &model, rounds).await;
    c.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_go_on_and_never_go_back_while_compactions_replace_tables() {
    let c = Cluster::start(options(3)).await;
    let stop = Arc::new(AtomicBool::new(false));
    let mut readers = tokio::task::JoinSet::new();
    for pnode in c.pnodes() {
        let (pnode, stop) = (pnode.local().clone(), stop.clone());
        readers.spawn(async move {
            let mut newest = vec![None; 20];
            while !stop.load(Ordering::SeqCst) {
                for (i, newest) in newest.iter_mut().enumerate() {
                    let record =
                        pnode.get("default", format!("k{i}").as_bytes(), ReadOptions::default()).await;
                    let seq = record.unwrap().map(|r| r.seq);
                    assert!(seq >= *newest, "k{i} went back from {newest:?} to {seq:?}");
                    *newest = seq;
                }
            }
        });
    }
    for round in 0..9u64 {
        for i in 0..20 {
            // Some keys rest for some rounds, so that their newest version lies in an older table.
            if (i + round) % 3 != 0 {
                let pnode = c.pnode(i as usize % c.pnodes().len()).local();
                write(pnode, Operation::put("default", format!("k{i}"), format!("{round}"))).await;
            }
        }
        c.maintain(Maintenance::Flush, "").await;
    }
    eventually("compactions have caught up", async || {
        let tables = named(&c).await;
        (0..PARTITIONS as usize).all(|p| tables.iter().filter(|t| t.partition == p).count() < 3).then_some(())
    })
    .await;
    settled(&c).await;
    stop.store(true, Ordering::SeqCst);
    while let Some(reader) = readers.join_next().await {
        reader.unwrap();
    }
    for pnode in c.pnodes() {
        for i in 0..20u64 {
            let last = (0..9).rev().find(|round| (i + round) % 3 != 0).unwrap();
            let key = format!("k{i}");
            let record = pnode.local().get("default", key.as_bytes(), ReadOptions::default()).await.unwrap();
            assert_eq!(record.unwrap().value, last.to_string(), "{key}");
        }
    }
    c.shutdown().await;
}

/// Waits until every table has three servers, all of these.
async fn moved(c: &Cluster, servers: &[usize]) {
    eventually("every table is on three servers that are to have it", async || {
        let tables = named(c).await;
        let is_placed = |t: &Table| t.replicas.len() == 3 && t.replicas.iter().all(|r| servers.contains(r));
        (!tables.is_empty() && tables.iter().all(is_placed)).then_some(())
    })
    .await;
    for server in servers {
        eventually("the server holds exactly its tables", async || {
            let its = named(c).await.into_iter().filter(|t| t.replicas.contains(server)).map(|t| t.id);
            (held(c, *server) == its.collect()).then_some(())
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tables_of_a_lost_and_of_a_drained_server_move_to_others_while_all_goes_on() {
    let mut options = options(4);
    options.tuning.sst_lost_after_ms = 500;
    let mut c = Cluster::start(options).await;
    let (mut model, mut rounds) = (Model::new(), 0);
    for _ in 0..5 {
        round(&c, rounds, &mut model).await;
        rounds += 1;
    }
    moved(&c, &[0, 1, 2, 3, 4]).await;
    // One never comes back, as far as anybody knows; its successor does not know of it.
    c.stop_sstable(0).await;
    round(&c, rounds, &mut model).await;
    rounds += 1;
    moved(&c, &[1, 2, 3, 4]).await;
    assert_data(&c, &model, rounds).await;
    // One is to be empty: it goes on serving until all is elsewhere.
    c.maintain(Maintenance::Drain(&[2]), "").await;
    for _ in 0..3 {
        round(&c, rounds, &mut model).await;
        rounds += 1;
    }
    moved(&c, &[2, 3, 4]).await;
    eventually("the drained server is empty", async || held(&c, 1).is_empty().then_some(())).await;
    assert_data(&c, &model, rounds).await;
    // Nobody else is there: it stays as it is, and nothing is lost.
    c.maintain(Maintenance::Drain(&[2, 3]), "").await;
    round(&c, rounds, &mut model).await;
    rounds += 1;
    assert_data(&c, &model, rounds).await;
    // The lost one comes back with tables that are others' now, and takes over from the one that could not be emptied.
    c.start_sstable(0).await;
    moved(&c, &[0, 3, 4]).await;
    eventually("the drained servers are empty", async || {
        (held(&c, 1).is_empty() && held(&c, 2).is_empty()).then_some(())
    })
    .await;
    assert_data(&c, &model, rounds).await;
    c.maintain(Maintenance::Drain(&[]), "").await;
    round(&c, rounds, &mut model).await;
    rounds += 1;
    moved(&c, &[0, 1, 2, 3, 4]).await;
    assert_data(&c, &model, rounds).await;
    c.shutdown().await;
}

/// Waits until every table has its copies in these zones.
async fn in_zones(c: &Cluster, expected: &[&str]) {
    eventually("every table is in the zones that it is to be in", async || {
        let tables = named(c).await;
        let zones = |t: &Table| {
            let mut zones: Vec<&str> = t.replicas.iter().map(|r| ZONES[*r]).collect();
            zones.sort();
            zones
        };
        (!tables.is_empty() && tables.iter().all(|t| zones(t) == expected)).then_some(())
    })
    .await;
}

const ZONES: [&str; SERVERS] = ["a", "a", "a", "b", "c"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_copies_of_a_table_are_in_as_many_zones_as_there_are() {
    let mut options = Options { zones: &ZONES, ..options(4) };
    options.tuning.sst_lost_after_ms = 500;
    let mut c = Cluster::start(options).await;
    let (mut model, mut rounds) = (Model::new(), 0);
    for _ in 0..5 {
        round(&c, rounds, &mut model).await;
        rounds += 1;
        in_zones(&c, &["a", "b", "c"]).await;
    }
    // Zone c is away: one of the others has two.
    c.stop_sstable(4).await;
    round(&c, rounds, &mut model).await;
    rounds += 1;
    in_zones(&c, &["a", "a", "b"]).await;
    assert_data(&c, &model, rounds).await;
    // It is back, and has its share again.
    c.start_sstable(4).await;
    round(&c, rounds, &mut model).await;
    rounds += 1;
    in_zones(&c, &["a", "b", "c"]).await;
    settled(&c).await;
    assert_data(&c, &model, rounds).await;
    c.shutdown().await;
}
