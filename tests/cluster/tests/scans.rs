//! Scans: on a quiet cluster they return exactly what point reads return; under writes every page is one published state.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use sextant_client::{Client, ClientOptions};
use sextant_common::ids::PartitionId;
use sextant_common::manifest::{OptionsChange, TableOptions};
use sextant_pnode::{Operation, PNode, ReadOptions, ScanRange, WriteOptions};
use sextant_tests::cluster::{Cluster, Maintenance, Options};
use sextant_tests::{PATIENCE, eventually};

async fn write(pnode: &PNode, op: Operation) {
    assert!(pnode.write(vec![op], WriteOptions::default()).await.unwrap().applied);
}

async fn all(pnode: &PNode, range: ScanRange) -> Vec<(Bytes, Bytes)> {
    all_of(pnode, "default", range).await
}

async fn all_of(pnode: &PNode, table: &str, range: ScanRange) -> Vec<(Bytes, Bytes)> {
    let mut stream = pnode.scan(table, range);
    let mut out = Vec::new();
    while let Some(page) = stream.next_page().await {
        out.extend(page.unwrap().records.into_iter().map(|(key, record)| (key, record.value)));
    }
    out
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_scan_of_a_quiet_cluster_returns_what_point_reads_return() {
    let c = Cluster::start(Options { partitions: 3, ..Options::default() }).await;
    let pnode = c.pnode(0).local();
    let mut model = BTreeMap::new();
    for round in 0..4u64 {
        for i in (0..200u64).filter(|i| i % 4 <= round) {
            let (key, value) = (format!("k{i:03}"), format!("{round}"));
            if (i + round) % 7 == 0 {
                write(pnode, Operation::delete("default", key.clone())).await;
                model.remove(&key);
            } else {
                write(pnode, Operation::put("default", key.clone(), value.clone())).await;
                model.insert(key, value);
            }
        }
        match round {
            0 | 1 => c.maintain(Maintenance::Flush, "").await,
            2 => c.maintain(Maintenance::Freeze, "").await,
            _ => {}
        }
    }
    let want: Vec<(Bytes, Bytes)> = model.iter().map(|(k, v)| (k.clone().into(), v.clone().into())).collect();
    for pnode in c.pnodes() {
        let pnode = pnode.local();
        let range = ScanRange { page_records: 17, ..ScanRange::default() };
        assert_eq!(all(pnode, range.clone()).await, want);
        let mut backwards = all(pnode, ScanRange { reverse: true, ..range.clone() }).await;
        backwards.reverse();
        assert_eq!(backwards, want);
        let part = ScanRange { start: "k050".into(), end: "k060".into(), limit: 5, ..range };
        let inside = want
            .iter()
            .filter(|(k, _)| k.as_ref() >= &b"k050"[..] && k.as_ref() < &b"k060"[..])
            .take(5)
            .cloned();
        assert_eq!(all(pnode, part).await, inside.collect::<Vec<_>>());
        for i in 0..200 {
            let key = format!("k{i:03}");
            let record = pnode.get("default", key.as_bytes(), ReadOptions::default()).await.unwrap();
            assert_eq!(record.map(|r| r.value), model.get(&key).map(|v| Bytes::from(v.clone())), "{key}");
        }
    }
    c.shutdown().await;
}

/// Pairs of keys are always written in one batch with the same value: a page that shows a pair torn apart, or a version
/// above its own seq, is not one published state.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_page_is_one_published_state_while_writes_flushes_and_compactions_go_on() {
    let c = Cluster::start(Options::default()).await;
    let options = TableOptions { partition_prefix: 1, ..TableOptions::default() };
    c.pnode(0).local().create_table("pairs", options).await.unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let writer = {
        let (pnode, stop) = (c.pnode(0).local().clone(), stop.clone());
        tokio::spawn(async move {
            let mut n = 0u64;
            while !stop.load(Ordering::Relaxed) {
                n += 1;
                let pair = n % 10;
                let op = |side: &str| Operation::put("pairs", format!("p{pair}{side}"), n.to_string());
                pnode.write(vec![op("a"), op("b")], WriteOptions::default()).await.unwrap();
            }
            n
        })
    };
    let mut pages = 0;
    for round in 0..30u32 {
        let what = [Maintenance::Freeze, Maintenance::Flush, Maintenance::Compact][round as usize % 3];
        c.maintain(what, "pairs").await;
        for partition in 0..c.config.partitions {
            let range = ScanRange {
                partition: Some(PartitionId(partition)),
                page_records: 1000,
                reverse: round % 2 == 0,
                ..ScanRange::default()
            };
            let mut stream = c.pnode(1).local().scan("pairs", range);
            while let Some(page) = stream.next_page().await {
                let page = page.unwrap();
                let mut values: BTreeMap<Bytes, Vec<(Bytes, u64)>> = BTreeMap::new();
                for (key, record) in &page.records {
                    assert!(record.seq <= page.snapshot_seq, "a version above the page's seq");
                    let pair = key.slice(..2);
                    values.entry(pair).or_default().push((record.value.clone(), record.seq.0));
                }
                for (pair, sides) in values {
                    assert_eq!(sides.len(), 2, "{pair:?}");
                    assert_eq!(sides[0].0, sides[1].0, "pair {pair:?} is torn: {sides:?}");
                    assert_eq!(sides[0].1.abs_diff(sides[1].1), 1, "{sides:?}");
                }
                pages += 1;
            }
        }
    }
    stop.store(true, Ordering::Relaxed);
    assert!(writer.await.unwrap() > 0);
    assert!(pages >= 25, "{pages}");
    c.shutdown().await;
}

/// Scans of keys that begin alike find the same whether filters know how keys begin or not; and if they do, fewer SSTables are
/// searched. SSTables of both kinds stand side by side, are compacted, and are there again after a restart.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn filters_that_know_how_keys_begin_change_no_answer() {
    let mut c = Cluster::start(Options { partitions: 2, ..Options::default() }).await;
    let patient = ClientOptions { deadline: PATIENCE, ..ClientOptions::default() };
    let addrs = vec![c.pnode(0).grpc_addr().to_string()];
    let client = Client::connect_in(c.env.clone(), addrs, patient).await.unwrap();
    client.create_table("t", &TableOptions::default()).await.unwrap();
    let mut model = BTreeMap::new();
    for round in 0..6u64 {
        if round == 2 {
            let change = OptionsChange { filter_prefix: Some(6), ..OptionsChange::default() };
            assert_eq!(client.alter_table("t", &change).await.unwrap().filter_prefix, 6);
        }
        // Each round has users of its own between the first and the last, and deletes something of the round before.
        for user in [0, 10 + round, 99] {
            for i in 0..8 {
                let key = format!("user{user:02}:{i}");
                write(c.pnode(0).local(), Operation::put("t", key.clone(), round.to_string())).await;
                model.insert(key, round.to_string());
            }
        }
        let gone = format!("user{:02}:3", 9 + round);
        write(c.pnode(0).local(), Operation::delete("t", gone.clone())).await;
        model.remove(&gone);
        match round {
            4 => c.maintain(Maintenance::Compact, "t").await,
            5 => {}
            _ => c.maintain(Maintenance::Flush, "t").await,
        }
        if round == 3 {
            c.restart_tiers().await;
        }
        for user in [0, 9, 10, 11, 12, 13, 14, 15, 50, 99] {
            for reverse in [false, true] {
                let prefix = format!("user{user:02}");
                let inside = model.iter().filter(|(key, _)| key.starts_with(&prefix));
                let mut want: Vec<(Bytes, Bytes)> =
                    inside.map(|(k, v)| (k.clone().into(), v.clone().into())).collect();
                if reverse {
                    want.reverse();
                }
                let range = ScanRange { reverse, ..ScanRange::prefix(prefix.clone()) };
                assert_eq!(all_of(c.pnode(0).local(), "t", range).await, want, "round {round}: {prefix}");
            }
        }
        let pnode = c.pnode(0).local();
        if round < 2 {
            assert_eq!(pnode.metrics().scan_tables().1, 0);
            continue;
        }
        // (Filters come a moment after their tables.)
        let before = pnode.metrics().scan_tables().1;
        eventually("tables are passed over", async || {
            assert!(all_of(pnode, "t", ScanRange::prefix("user50")).await.is_empty());
            (pnode.metrics().scan_tables().1 > before).then_some(())
        })
        .await;
        // (So early an SSTable has all that there is.)
        if round == 3 {
            let before = pnode.metrics().scan_pages_without_leader();
            eventually("no leader is asked", async || {
                assert_eq!(all_of(pnode, "t", ScanRange::prefix("user13")).await.len(), 8);
                (pnode.metrics().scan_pages_without_leader() > before).then_some(())
            })
            .await;
        }
    }
    c.shutdown().await;
}
