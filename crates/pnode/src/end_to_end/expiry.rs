//! Records that expire: what a p-node says of them by what it knows of the time, and when it asks the leader.

use bytes::Bytes;
use sextant_memtable_server::lease::slots::Slots;

use super::reads::{read, some};
use crate::testing::Cluster;
use crate::{PNode, ReadMode, ReadOptions, RegisterReads};

/// A cluster with records in an SSTable, all of which expire at 100, and a p-node that keeps every answer of the leader.
async fn start(records: &[(&'static str, Option<&'static str>, u64)]) -> (Cluster, PNode) {
    let mut cluster = Cluster::start(1).await;
    cluster.add_sst(0, records);
    for server in &cluster.ssts {
        let expiries = records.iter().map(|(key, ..)| (Bytes::from_static(key.as_bytes()), 100));
        server.state.lock().expiries = expiries.collect();
    }
    cluster.leader().with(0, |p| p.slots = Some(Slots::new(64, 0)));
    let mut config = cluster.library_config();
    config.register_reads = RegisterReads::Every;
    let pnode = PNode::start(cluster.env.clone(), config).await.unwrap();
    cluster.settled(&pnode, 0).await;
    (cluster, pnode)
}

/// A tick that is out, and not yet published.
async fn announce(cluster: &Cluster, pnode: &PNode, at: u64) {
    cluster.leader().with(0, |p| p.announce(at));
    cluster.settled(pnode, 0).await;
}

/// Publishes it; the p-node hears of that with the next one.
async fn publish(cluster: &Cluster, pnode: &PNode) {
    cluster.leader().with(0, |p| {
        p.publish();
        p.announce(p.announced.0);
    });
    cluster.settled(pnode, 0).await;
}

#[tokio::test]
async fn a_record_of_an_sstable_is_judged_by_what_is_known_and_in_between_by_the_leader() {
    let (cluster, pnode) = start(&[("a", Some("1"), 1), ("b", Some("2"), 1)]).await;
    announce(&cluster, &pnode, 99).await;
    assert_eq!(read(&pnode, "a").await, some("1"));
    assert_eq!(cluster.leader().reads(), 0, "it expires after all that is announced");
    announce(&cluster, &pnode, 100).await;
    // `a` is cached, `b` is not.
    for key in ["a", "b"] {
        assert!(read(&pnode, key).await.is_some(), "the leader has not published that");
    }
    assert_eq!(cluster.leader().reads(), 2);
    cluster.leader().with(0, |p| p.publish());
    for key in ["a", "b"] {
        assert_eq!(read(&pnode, key).await, None, "by the leader's time");
    }
    publish(&cluster, &pnode).await;
    assert_eq!(read(&pnode, "a").await, None);
}

#[tokio::test]
async fn what_has_expired_in_an_sstable_may_have_been_inserted_again() {
    // Rule `expired-is-not-final-in-an-sstable`.
    let (cluster, pnode) = start(&[("a", Some("1"), 1)]).await;
    announce(&cluster, &pnode, 100).await;
    publish(&cluster, &pnode).await;
    cluster.leader().with(0, |p| p.put("a", Some("2"), false));
    assert_eq!(read(&pnode, "a").await, some("2"), "an INSERT leaves no bit");
}

#[tokio::test]
async fn a_leaders_answer_that_was_kept_is_judged_at_each_use() {
    // Rule `what-is-kept-is-judged-at-each-use`.
    let (cluster, pnode) = start(&[]).await;
    cluster.leader().with(0, |p| p.put_until("k", Some("v"), Some(100), true));
    cluster.settled(&pnode, 0).await;
    let known = || pnode.try_get("", b"k").map(|record| record.unwrap().map(|r| r.value));
    assert_eq!(read(&pnode, "k").await, some("v"));
    assert_eq!(known(), Some(some("v").map(Bytes::from)));
    announce(&cluster, &pnode, 100).await;
    assert_eq!(known(), None, "the leader has to be asked");
    assert_eq!(read(&pnode, "k").await, some("v"));
    publish(&cluster, &pnode).await;
    assert_eq!(known(), Some(None));
}

#[tokio::test]
async fn the_slower_modes_go_by_the_leaders_answer() {
    let (cluster, pnode) = start(&[("a", Some("1"), 1)]).await;
    let read = async |mode| {
        let options = ReadOptions { mode, ..ReadOptions::default() };
        pnode.get("", b"a", options).await.unwrap().is_some()
    };
    announce(&cluster, &pnode, 100).await;
    for mode in ReadMode::ALL {
        assert!(read(mode).await, "{mode}");
    }
    cluster.leader().with(0, |p| p.publish());
    for mode in ReadMode::ALL {
        assert!(!read(mode).await, "{mode}");
    }
}
