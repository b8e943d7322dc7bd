//! Point reads while servers fail, tables vanish and leaders move.

use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use sextant_common::ErrorKind;
use sextant_common::ids::{PartitionId, TableId};
use sextant_common::manifest::{TableInfo, TableOptions};
use sextant_proto::v1;

use super::reads::{read, some};
use crate::metrics::WrongTurn;
use crate::testing::Cluster;
use crate::{Operation, PNode, ReadOptions, ScanRange, WriteOptions};

#[tokio::test]
async fn another_replica_answers_for_one_that_is_gone_damaged_or_dead() {
    let mut cluster = Cluster::start(1).await;
    let meta = cluster
        .add_sst(0, &[("a", Some("1"), 1), ("b", Some("2"), 2), ("c", Some("3"), 3), ("d", Some("4"), 4)]);
    let id = Bytes::copy_from_slice(&meta.id.to_bytes());
    let pnode = cluster.pnode().await;
    cluster.settled(&pnode, 0).await;
    pnode.set_cache(false);
    cluster.ssts[0].state.lock().tables.remove(&id);
    for (key, value) in [("a", "1"), ("b", "2"), ("c", "3"), ("d", "4")] {
        assert_eq!(read(&pnode, key).await, some(value));
    }
    let contents = cluster.ssts[1].state.lock().tables[&id].clone();
    cluster.ssts[0].state.lock().tables.insert(id.clone(), contents);
    cluster.ssts[1].state.lock().damaged.insert(id);
    for (key, value) in [("a", "1"), ("b", "2"), ("c", "3"), ("d", "4")] {
        assert_eq!(read(&pnode, key).await, some(value));
    }
    cluster.ssts[1].kill();
    for (key, value) in [("a", "1"), ("b", "2"), ("c", "3"), ("d", "4")] {
        assert_eq!(read(&pnode, key).await, some(value));
    }
    assert_eq!(pnode.metrics().wrong_turns(WrongTurn::TableGone), 0);
}

#[tokio::test]
async fn a_table_that_is_gone_everywhere_starts_the_read_again_with_a_newer_manifest() {
    let mut cluster = Cluster::start(1).await;
    let old = cluster.add_sst(0, &[("k", Some("v"), 1)]);
    let pnode = cluster.pnode().await;
    cluster.settled(&pnode, 0).await;
    // A compaction, of which the p-node has not heard: nobody tells its pull.
    let new = cluster.store(0, &[("k", Some("v"), 1)], &[0, 1]);
    {
        let mut state = cluster.leader().state.lock();
        let p = state.partitions.get_mut(&0).unwrap();
        p.manifest.version.0 += 1;
        p.manifest.table_mut(TableId(1)).unwrap().ssts = vec![new].into();
    }
    let id = Bytes::copy_from_slice(&old.id.to_bytes());
    cluster.ssts.iter().for_each(|s| drop(s.state.lock().tables.remove(&id)));
    assert_eq!(read(&pnode, "k").await, some("v"));
    assert!(pnode.metrics().wrong_turns(WrongTurn::TableGone) <= 1);
    assert_eq!(pnode.core().views.peek(PartitionId(0)).manifest.version, cluster.version(0));
}

#[tokio::test]
async fn reads_follow_the_leader() {
    let cluster = Cluster::start(2).await;
    let (mut first, mut second) = (None, None);
    for key in (0..).map(|i| format!("key{i}")) {
        let slot = if cluster.partition_of(&key) == 0 { &mut first } else { &mut second };
        slot.get_or_insert(key);
        if first.is_some() && second.is_some() {
            break;
        }
    }
    let (first, second) = (first.unwrap(), second.unwrap());
    cluster.leader().with(0, |p| p.put(&first, Some("1"), true));
    cluster.leader().with(1, |p| p.put(&second, Some("2"), true));
    let pnode = cluster.pnode().await;
    assert_eq!(read(&pnode, &first).await, some("1"));
    cluster.fail_over(0);
    cluster.memtables[1].with(0, |p| p.put(&first, Some("1b"), true));
    assert_eq!(read(&pnode, &first).await, some("1b"));
    assert_eq!(read(&pnode, &second).await, some("2"));
    // The old leader dies: what it still led waits for a new leader, and is found there.
    cluster.fail_over(1);
    cluster.memtables[0].kill();
    assert_eq!(read(&pnode, &second).await, some("2"));
}

#[tokio::test]
async fn a_leader_that_is_not_ready_is_asked_again() {
    let cluster = Cluster::start(1).await;
    cluster.leader().with(0, |p| p.put("k", Some("v"), false));
    let pnode = cluster.pnode().await;
    let script =
        [v1::ReadStatus::ReadNotReady, v1::ReadStatus::ReadNotLeader, v1::ReadStatus::ReadUnknownPartition];
    cluster.leader().state.lock().read_script.extend(script);
    assert_eq!(read(&pnode, "k").await, some("v"));
    assert_eq!(cluster.leader().reads(), 4);
}

#[tokio::test]
async fn a_deadline_ends_the_wait() {
    let cluster = Cluster::start(1).await;
    let pnode = cluster.pnode().await;
    cluster.leader().kill();
    let options = ReadOptions { deadline: Some(Duration::from_millis(50)), ..ReadOptions::default() };
    let error = pnode.get("", b"k", options).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unavailable);
}

#[tokio::test]
async fn unknown_tables_are_errors_and_new_ones_are_found_by_other_pnodes() {
    let cluster = Cluster::start(3).await;
    let (a, b) = (cluster.pnode().await, cluster.pnode().await);
    let error = a.get("later", b"k", ReadOptions::default()).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::UnknownTable);
    let options = TableOptions { partition_prefix: 2, ..TableOptions::default() };
    let (id, created) = a.create_table("later", options.clone()).await.unwrap();
    assert!(created);
    assert_eq!(a.create_table("later", TableOptions::default()).await.unwrap(), (id, false));
    assert_eq!(a.get("later", b"k", ReadOptions::default()).await.unwrap(), None);
    // No pull brings the news to the other one: creating a table changes no manifest version.
    assert_eq!(b.get("later", b"k", ReadOptions::default()).await.unwrap(), None);
    let tables = b.tables().await.unwrap();
    assert_eq!(tables.last().unwrap(), &TableInfo { id, name: "later".to_owned(), options });
    for partition in 0..3 {
        assert!(cluster.leader().with(partition, |p| p.manifest.table(id).is_some()));
    }
    assert_eq!(
        a.get("no such name!", b"k", ReadOptions::default()).await.unwrap_err().kind,
        ErrorKind::Invalid
    );
}

#[tokio::test]
async fn whoever_has_not_heard_that_a_table_was_dropped_and_made_anew_finds_the_new_one() {
    let cluster = Cluster::start(2).await;
    let (a, b) = (cluster.pnode().await, cluster.pnode().await);
    let (old, _) = a.create_table("t", TableOptions::default()).await.unwrap();
    let keys: Vec<String> = (0..8).map(|i| format!("k{i}")).collect();
    let put = async |pnode: &PNode, value: &str| {
        for key in &keys {
            let op = Operation::put("t", key.clone(), value.to_owned());
            pnode.write(vec![op], WriteOptions::default()).await.unwrap();
        }
    };
    put(&b, "old").await;
    assert!(a.drop_table("t", None, None).await.unwrap());
    assert!(!a.drop_table("t", Some(old), None).await.unwrap(), "it is gone already");
    let (new, created) = a.create_table("t", TableOptions::default()).await.unwrap();
    assert!(created && new > old);
    let scanned = b.scan("t", ScanRange::default()).collect::<Vec<_>>().await;
    assert!(scanned.iter().all(|page| page.as_ref().unwrap().records.is_empty()), "{scanned:?}");
    for key in &keys {
        assert_eq!(b.get("t", key.as_bytes(), ReadOptions::default()).await.unwrap(), None);
    }
    put(&b, "new").await;
    let found = a.get("t", keys[0].as_bytes(), ReadOptions::default()).await.unwrap();
    assert_eq!(found.unwrap().value, "new");
    assert!(!b.drop_table("t", Some(old), None).await.unwrap(), "another one has the name");
    let error = b.drop_table("t", Some(TableId(1)), None).await.unwrap_err();
    assert!(error.kind == ErrorKind::Invalid && error.message.contains("default"), "{error}");
    assert_eq!(a.tables().await.unwrap().last().unwrap().id, new);
    // Also if its keys are elsewhere.
    assert!(a.drop_table("t", Some(new), None).await.unwrap());
    let elsewhere = TableOptions { partition_prefix: 1, ..TableOptions::default() };
    a.create_table("t", elsewhere).await.unwrap();
    put(&a, "third").await;
    let pages = b.scan("t", ScanRange::default()).collect::<Vec<_>>().await;
    let records = pages.iter().flat_map(|page| &page.as_ref().unwrap().records);
    assert_eq!(records.filter(|(_, record)| record.value == "third").count(), keys.len());
}

#[tokio::test]
async fn a_table_that_a_partition_lacks_is_created_there() {
    let cluster = Cluster::start(2).await;
    let pnode = cluster.pnode().await;
    let (id, _) = pnode.create_table("t", TableOptions::default()).await.unwrap();
    // As if its creator had died half way.
    cluster.leader().with(1, |p| p.manifest.tables.retain(|t| t.table != id));
    let key = (0..).map(|i| format!("k{i}")).find(|k| cluster.partition_of(k) == 1).unwrap();
    assert_eq!(pnode.get("t", key.as_bytes(), ReadOptions::default()).await.unwrap(), None);
    assert!(cluster.leader().with(1, |p| p.manifest.table(id).is_some()));
}
