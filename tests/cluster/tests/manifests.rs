//! p-nodes follow the manifest by its changes, through new leaders and restarts, and always have what their leader has.

use std::collections::BTreeMap;

use sextant_common::ids::PartitionId;
use sextant_memtable_server::Tuning;
use sextant_pnode::{Operation, PNode, ReadOptions, WriteOptions};
use sextant_tests::cluster::{Cluster, Maintenance, Options};
use sextant_tests::eventually;

const ROUNDS: u64 = 60;

fn options() -> Options {
    // Flushes pile up, compactions come in between.
    let tuning = Tuning { compaction_trigger: 12, ..Options::default().tuning };
    let pnode_config = |config: &mut sextant_pnode::PNodeConfig| config.cache_bytes = 0;
    Options { partitions: 1, tuning, pnode_config, ..Options::default() }
}

/// What a status document says of the partition's manifest.
fn manifest_of(status: &serde_json::Value) -> (u64, String) {
    let partition = &status["partitions"][0];
    let version = partition["manifest_version"].as_u64().unwrap();
    (version, partition["manifest_digest"].as_str().unwrap().to_owned())
}

/// Until each p-node has the leader's manifest; its version.
async fn all_have_it(c: &Cluster) -> u64 {
    eventually("the p-nodes have the leader's manifest", async || {
        let leader = manifest_of(&c.status(c.leader(0).await));
        let is_there = |pnode: &PNode| {
            let (version, digest) = pnode.manifest(PartitionId(0));
            (version.0, digest.to_string()) == leader
        };
        c.pnodes().iter().all(|pnode| is_there(pnode.local())).then_some(leader.0)
    })
    .await
}

async fn round(c: &Cluster, round: u64, model: &mut BTreeMap<String, String>) {
    let (key, value) = (format!("key-{:02}", round % 20), format!("value of round {round}"));
    let op = Operation::put("default", key.clone(), value.clone());
    let pnode = c.pnode(round as usize % c.pnodes().len()).local();
    assert!(pnode.write(vec![op], WriteOptions::default()).await.unwrap().applied);
    model.insert(key, value);
    c.maintain(Maintenance::Flush, "").await;
}

async fn check(c: &Cluster, model: &BTreeMap<String, String>) {
    for pnode in c.pnodes() {
        for (key, value) in model {
            let read = pnode.local().get("default", key.as_bytes(), ReadOptions::default()).await.unwrap();
            assert_eq!(read.unwrap().value.as_ref(), value.as_bytes(), "{key}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn pnodes_follow_changes_through_new_leaders_and_restarts() {
    let mut c = Cluster::start(options()).await;
    c.ready().await;
    let mut model = BTreeMap::new();
    all_have_it(&c).await;
    let wholes = |c: &Cluster| -> Vec<u64> {
        c.pnodes().iter().map(|p| p.local().metrics().whole_manifests()).collect()
    };
    let before = wholes(&c);
    for n in 0..ROUNDS {
        round(&c, n, &mut model).await;
        if n % 20 == 9 {
            // The next leader has made the same changes of the same commands.
            let leader = c.leader(0).await;
            c.stop_memtable(leader).await;
            round(&c, 1000 + n, &mut model).await;
            c.start_memtable(leader).await;
        }
    }
    let version = all_have_it(&c).await;
    assert!(version >= ROUNDS, "{version}");
    // (A read that knows less than its leader asks for all of it.)
    let few = |(now, before): (u64, &u64)| now <= before + 2;
    assert!(wholes(&c).into_iter().zip(&before).all(few), "changes were enough");
    check(&c, &model).await;
    for pnode in c.pnodes() {
        assert_eq!(pnode.local().metrics().manifest_mismatches(), 0);
    }
    c.shutdown().await;
}
