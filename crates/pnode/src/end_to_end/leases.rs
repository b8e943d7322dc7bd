//! Pulls, acknowledgements, epochs, whole filters, releases.

use std::time::Duration;

use sextant_common::ids::{Epoch, Generation, NodeId, PartitionId, TableId};
use sextant_common::key::filter_hash;
use sextant_environment::config::LeaseMode;

use crate::testing::{Cluster, Partition, until};
use crate::{PNode, ReadOptions};

async fn read(pnode: &PNode, key: &str) -> Option<String> {
    let record = pnode.get("", key.as_bytes(), ReadOptions::default()).await.unwrap();
    record.map(|r| String::from_utf8(r.value.to_vec()).unwrap())
}

fn epoch_and_serial(pnode: &PNode) -> Option<(Epoch, u64)> {
    let view = pnode.core().views.peek(PartitionId(0));
    view.copies.as_ref().map(|c| (c.epoch, c.serial.0))
}

#[tokio::test]
async fn a_pull_acknowledges_only_what_the_installed_view_uses() {
    let cluster = Cluster::start(1).await;
    let pnode = cluster.pnode().await;
    for i in 0..50u32 {
        cluster.leader().with(0, |p| p.put(&format!("key{i}"), Some("v"), true));
        let serial = cluster.leader().with_quietly(0, |p| p.serial());
        until("the bit is acknowledged", || {
            cluster.leader().state.lock().positions.iter().any(|at| at.2 >= serial)
        })
        .await;
        // Acknowledged: from now on the leader may publish, so the view must send readers to the memtables.
        let view = pnode.core().views.peek(PartitionId(0));
        let copies = view.copies.as_ref().unwrap();
        assert!(copies.serial.0 >= serial);
        assert!(copies.contains(TableId(1), filter_hash(format!("key{i}").as_bytes())));
    }
    assert_eq!(cluster.leader().state.lock().whole_fetches, 1, "the rest came as bf-log entries");
}

#[tokio::test]
async fn pulls_go_by_the_mode_of_the_leases_not_by_that_of_the_file() {
    let mut cluster = Cluster::start(1).await;
    cluster.config.lease.mode = LeaseMode::Timed;
    let pnode = cluster.pnode().await;
    assert_eq!(pnode.core().views.peek(PartitionId(0)).lease.as_ref().map(|l| l.mode), Some(LeaseMode::Ack));
    // The leases last a minute: whoever went by the file would keep the leader waiting for its acknowledgement until then.
    let serial = cluster.leader().with(0, |p| {
        p.put("k", Some("v"), true);
        p.serial()
    });
    until("the entry is acknowledged", || {
        cluster.leader().state.lock().positions.iter().any(|at| at.2 >= serial)
    })
    .await;
    // The mode is changed while the p-node runs, as a leader does it: with a new ring.
    let change = |timed: bool, incarnation: u64| {
        cluster.leader().state.lock().timed = timed;
        cluster.leader().with(0, |p| {
            p.epoch.incarnation = incarnation;
            p.log.clear();
        });
    };
    let mode = || pnode.core().views.peek(PartitionId(0)).lease.as_ref().map(|l| l.mode);
    change(true, 2);
    until("the p-node knows that its leases are timed", || mode() == Some(LeaseMode::Timed)).await;
}

#[tokio::test]
async fn filters_follow_freezes_and_flushes() {
    let mut cluster = Cluster::start(1).await;
    let pnode = cluster.pnode().await;
    cluster.leader().with(0, |p| {
        p.put("k", Some("1"), true);
        p.freeze(TableId(1));
        p.put("l", Some("2"), true);
    });
    cluster.settled(&pnode, 0).await;
    {
        let view = pnode.core().views.peek(PartitionId(0));
        let copies = view.copies.as_ref().unwrap();
        let has = |generation, key: &[u8]| {
            copies.filter(TableId(1), Generation(generation)).unwrap().contains(filter_hash(key))
        };
        assert!(has(1, b"k") && !has(1, b"l") && has(2, b"l"));
    }
    cluster.flush(0);
    cluster.settled(&pnode, 0).await;
    let view = pnode.core().views.peek(PartitionId(0));
    let copies = view.copies.as_ref().unwrap();
    assert!(copies.filter(TableId(1), Generation(1)).is_none(), "flushed (with its successor)");
    assert!(copies.filter(TableId(1), Generation(2)).is_none());
    assert!(copies.filter(TableId(1), Generation(3)).is_some());
}

#[tokio::test]
async fn whole_filters_at_new_epoch_though_serials_would_fit() {
    let mut cluster = Cluster::start(1).await;
    cluster.add_sst(0, &[("k", Some("old"), 1), ("l", Some("old"), 2)]);
    let pnode = cluster.pnode().await;
    cluster.leader().with(0, |p| p.put("k", Some("new"), true));
    cluster.settled(&pnode, 0).await;
    let (epoch, serial) = epoch_and_serial(&pnode).unwrap();
    // A new incarnation counts from 0 again, and happens to stand at the same serial, with another key in its bf-log.
    cluster.leader().with(0, |p| {
        p.epoch.incarnation += 1;
        p.log.clear();
        p.put("l", Some("new"), true);
        assert_eq!(p.serial(), serial);
    });
    cluster.settled(&pnode, 0).await;
    assert!(epoch_and_serial(&pnode).unwrap().0 > epoch);
    assert_eq!(
        read(&pnode, "l").await.as_deref(),
        Some("new"),
        "its bit was missed by whoever continued serials"
    );
    assert_eq!(read(&pnode, "k").await.as_deref(), Some("new"));
    assert_eq!(cluster.leader().state.lock().whole_fetches, 2);
}

#[tokio::test]
async fn a_ring_that_has_moved_on_means_whole_filters() {
    let cluster = Cluster::start(1).await;
    let pnode = cluster.pnode().await;
    cluster.leader().with(0, |p| {
        for i in 0..100 {
            p.put(&format!("key{i}"), Some("v"), true);
        }
        p.log_start += p.log.len() as u64;
        p.log.clear();
    });
    cluster.settled(&pnode, 0).await;
    assert_eq!(cluster.leader().state.lock().whole_fetches, 2);
    assert_eq!(read(&pnode, "key7").await.as_deref(), Some("v"));
}

#[tokio::test]
async fn a_new_leader_is_found_and_grants() {
    let cluster = Cluster::start(2).await;
    let pnode = cluster.pnode().await;
    cluster.fail_over(0);
    let leased = || pnode.core().views.peek(PartitionId(0)).leased_copies(&*cluster.env.clock).is_some();
    until("filters of the new epoch", || {
        epoch_and_serial(&pnode).is_some_and(|(e, _)| e.term == 6) && leased()
    })
    .await;
    cluster.memtables[0].kill();
    let view = pnode.core().views.peek(PartitionId(1));
    assert!(view.lease.is_some(), "the other partition's lease is not touched by all this");
    drop(view);
    cluster.memtables[1].with(0, |p| p.put("k", Some("v"), true));
    until("pulls go to the new leader", || epoch_and_serial(&pnode).is_some_and(|(_, s)| s >= 1)).await;
}

#[tokio::test]
async fn a_pnode_without_leases_gets_them_when_there_are_some() {
    let cluster = Cluster::start(1).await;
    cluster.leader().state.lock().lease = Duration::ZERO;
    let pnode = cluster.pnode_without_leases().await;
    cluster.leader().with(0, |p| p.put("k", Some("v"), true));
    until("bf-logs flow all the same", || epoch_and_serial(&pnode).is_some_and(|(_, s)| s == 1)).await;
    assert!(pnode.core().views.peek(PartitionId(0)).lease.is_none());
    cluster.leader().state.lock().lease = Duration::from_secs(60);
    cluster.settled(&pnode, 0).await;
}

#[tokio::test]
async fn shutdown_gives_leases_back_and_uses_none_after_that() {
    let mut cluster = Cluster::start(1).await;
    cluster.add_sst(0, &[("k", Some("v"), 1)]);
    let pnode = cluster.pnode().await;
    cluster.settled(&pnode, 0).await;
    assert!(read(&pnode, "k").await.is_some());
    assert!(pnode.try_get("", b"k").is_some());
    pnode.shutdown().await;
    for memtable in &cluster.memtables {
        assert_eq!(memtable.state.lock().releases, [pnode.core().holder.clone()]);
    }
    assert!(pnode.try_get("", b"k").is_none());
    let error = pnode.get("", b"k", ReadOptions::default()).await.unwrap_err();
    assert_eq!(error.kind, sextant_common::ErrorKind::Stopping);
}

#[tokio::test]
async fn a_leader_that_cannot_grant_is_doubted_and_its_successor_found() {
    let cluster = Cluster::start(1).await;
    cluster.leader().state.lock().lease = Duration::from_millis(100);
    let pnode = cluster.pnode().await;
    // Cut off from its peers, the first server grants nothing, and knows nothing of a successor.
    let term = cluster.leader().with_quietly(0, |p| p.epoch.term);
    let successor = Partition::new(0, term + 1);
    cluster.leader().state.lock().lease = Duration::ZERO;
    cluster.memtables[1].state.lock().hints.remove(&0);
    cluster.memtables[1].state.lock().partitions.insert(0, successor);
    until("the successor is found", || {
        let leader = pnode.core().leaders.get(PartitionId(0));
        leader.is_certain() && leader.node == Some(NodeId(2))
    })
    .await;
}
