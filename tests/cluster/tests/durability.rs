//! Durability where it can fail: on disks that lose what was not fsynced. Cold keys are what shows a loss.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use sextant_common::error::ErrorKind;
use sextant_pnode::{Operation, PNode, ReadOptions, WriteOptions};
use sextant_tests::cluster::{Cluster, Maintenance, Options};
use sextant_tests::eventually;

fn options(seed: u64) -> Options {
    Options { faulty_disks: true, seed, ..Options::default() }
}

fn key(i: u64) -> String {
    format!("key{i}")
}

/// Writes keys `from..to`, all at once; returns those that were acknowledged. `acked` counts them as they come.
async fn put_through(pnodes: Vec<PNode>, from: u64, to: u64, acked: Arc<AtomicUsize>) -> Vec<u64> {
    let mut running = tokio::task::JoinSet::new();
    for i in from..to {
        let (pnode, acked) = (pnodes[i as usize % pnodes.len()].clone(), acked.clone());
        running.spawn(async move {
            let op = Operation::put("default", key(i), Bytes::from(i.to_string()));
            let done = pnode.write(vec![op], WriteOptions::default()).await.is_ok();
            acked.fetch_add(usize::from(done), Ordering::SeqCst);
            done.then_some(i)
        });
    }
    let mut acknowledged = Vec::new();
    while let Some(done) = running.join_next().await {
        acknowledged.extend(done.unwrap());
    }
    acknowledged
}

fn pnodes(cluster: &Cluster) -> Vec<PNode> {
    cluster.pnodes().iter().map(|p| p.local().clone()).collect()
}

async fn put(cluster: &Cluster, from: u64, to: u64) -> Vec<u64> {
    put_through(pnodes(cluster), from, to, Arc::default()).await
}

/// Every acknowledged key is there, through every p-node.
async fn all_there(cluster: &Cluster, acknowledged: &[u64]) {
    for (n, i) in acknowledged.iter().enumerate() {
        let pnode = cluster.pnode(n % cluster.pnodes().len()).local();
        let record = eventually("a read is answered", async || {
            match pnode.get("default", key(*i).as_bytes(), ReadOptions::default()).await {
                Ok(record) => Some(record),
                Err(e) => {
                    assert_ne!(e.kind, ErrorKind::Corrupt, "{e}");
                    None
                }
            }
        })
        .await;
        let value = record.map(|r| r.value);
        assert_eq!(value, Some(Bytes::from(i.to_string())), "acknowledged key {i} is lost");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_memtable_servers_lose_power_at_once() {
    for seed in 1..=3 {
        let mut c = Cluster::start(options(seed)).await;
        let mut acknowledged = put(&c, 0, 400).await;
        assert!(acknowledged.len() > 300);
        // The power fails while more writes are under way, some of them acknowledged already.
        let acked = Arc::new(AtomicUsize::new(0));
        let writers = tokio::spawn(put_through(pnodes(&c), 400, 3000, acked.clone()));
        eventually("some of the writes are acknowledged", async || {
            (acked.load(Ordering::SeqCst) >= 50 || writers.is_finished()).then_some(())
        })
        .await;
        c.crash_memtable(&[0, 1, 2]).await;
        for i in 0..3 {
            c.start_memtable(i).await;
        }
        c.ready().await;
        // Those that were refused were tried again by the p-nodes, and may have been acknowledged after the crash.
        acknowledged.extend(writers.await.unwrap());
        all_there(&c, &acknowledged).await;
        c.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_sstable_servers_lose_power_right_after_a_flush() {
    let mut c = Cluster::start(options(7)).await;
    let acknowledged = put(&c, 0, 500).await;
    c.maintain(Maintenance::Flush, "").await;
    c.crash_sstable(&[0, 1, 2]).await;
    for i in 0..3 {
        c.start_sstable(i).await;
    }
    c.ready().await;
    all_there(&c, &acknowledged).await;
    // And the memtable servers, whose log may have been purged by now, together with them.
    c.crash_sstable(&[0, 1, 2]).await;
    c.crash_memtable(&[0, 1, 2]).await;
    for i in 0..3 {
        c.start_sstable(i).await;
        c.start_memtable(i).await;
    }
    c.ready().await;
    all_there(&c, &acknowledged).await;
    c.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sstable_servers_lost_one_after_another_lose_nothing() {
    let mut c = Cluster::start(Options::default()).await;
    let acknowledged = put(&c, 0, 300).await;
    for lost in 0..3 {
        c.stop_sstable(lost).await;
        // A flush with two of three servers; the third lacks the table.
        put(&c, 1000 + lost as u64 * 10, 1005 + lost as u64 * 10).await;
        c.maintain(Maintenance::Flush, "").await;
        c.start_sstable(lost).await;
        // It copies what it lacks: everything that the manifest names is on every server again.
        eventually("the server has copied what it lacks", async || {
            let leader = c.leader(0).await;
            let named: usize = c.status(leader)["partitions"].as_array().map_or(0, |partitions| {
                partitions.iter().flat_map(|p| p["tables"].as_array()).flatten().map(sstables).sum()
            });
            let server = c.sstable(lost)?;
            let status: serde_json::Value = serde_json::from_str(&server.status_json()).ok()?;
            let held = status["tables"]
                .as_array()
                .map_or_else(|| status["tables"].as_u64(), |t| Some(t.len() as u64));
            (held? >= named as u64).then_some(())
        })
        .await;
    }
    all_there(&c, &acknowledged).await;
    c.shutdown().await;
}

fn sstables(table: &serde_json::Value) -> usize {
    table["sstables"].as_array().map_or(0, Vec::len)
}
