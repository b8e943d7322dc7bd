//! Registered reads: what was kept of leaders' answers, and what ends it.

use std::time::Duration;

use bytes::Bytes;
use sextant_common::ids::TableId;
use sextant_common::key::filter_hash;
use sextant_memtable_server::lease::ring::Run;
use sextant_memtable_server::lease::slots::Slots;

use super::reads::{read, some};
use crate::metrics::{KeptEvent, ReadPath};
use crate::testing::{Cluster, until};
use crate::{PNode, ReadMode, ReadOptions, RegisterReads};

const T1: TableId = TableId(1);

/// A cluster whose leader registers reads, and a p-node that keeps every answer.
async fn start(setup: impl FnOnce(&mut Cluster)) -> (Cluster, PNode) {
    let mut cluster = Cluster::start(1).await;
    cluster.leader().with(0, |p| p.slots = Some(Slots::new(64, 0)));
    setup(&mut cluster);
    let mut config = cluster.library_config();
    config.register_reads = RegisterReads::Every;
    let pnode = PNode::start(cluster.env.clone(), config).await.unwrap();
    cluster.settled(&pnode, 0).await;
    (cluster, pnode)
}

/// The answer, if it is known without asking anyone.
fn known(pnode: &PNode, key: &str) -> Option<Option<String>> {
    let record = pnode.try_get("", key.as_bytes())?.unwrap();
    Some(record.map(|r| String::from_utf8(r.value.to_vec()).unwrap()))
}

async fn put(cluster: &Cluster, pnode: &PNode, key: &str, value: Option<&str>, bit: bool) {
    cluster.leader().with(0, |p| p.put(key, value, bit));
    cluster.settled(pnode, 0).await;
}

#[tokio::test]
async fn a_recent_record_is_known_until_it_is_written_again() {
    let (cluster, pnode) = start(|c| drop(c.add_sst(0, &[("k", Some("old"), 1)]))).await;
    put(&cluster, &pnode, "k", Some("1"), true).await;
    assert_eq!(known(&pnode, "k"), None);
    assert_eq!(read(&pnode, "k").await, some("1"));
    assert_eq!(known(&pnode, "k"), Some(some("1")));
    assert_eq!((cluster.leader().reads(), pnode.metrics().reads(ReadMode::Pda, ReadPath::Kept)), (1, 1));
    // It is in the active memtable: the write leaves no bit, only the invalidation.
    put(&cluster, &pnode, "k", Some("2"), false).await;
    assert_eq!(known(&pnode, "k"), None);
    assert_eq!(read(&pnode, "k").await, some("2"));
    put(&cluster, &pnode, "k", None, false).await;
    assert_eq!(read(&pnode, "k").await, None);
    assert_eq!(known(&pnode, "k"), Some(None), "a tombstone is kept, too");
    assert_eq!(pnode.metrics().kept(KeptEvent::Kept), 3);
}

#[tokio::test]
async fn reads_of_what_is_known_leave_room_for_other_tasks() {
    const ENOUGH: usize = 10_000;
    let (cluster, pnode) = start(|_| ()).await;
    put(&cluster, &pnode, "k", Some("1"), true).await;
    assert_eq!(read(&pnode, "k").await, some("1"));
    let key = Bytes::from_static(b"k");
    for form in 0..3 {
        // A runtime of one thread: the other task runs only while the reads make room.
        let other = tokio::spawn(async {});
        let mut reads = 0;
        while !other.is_finished() {
            assert!(reads < ENOUGH, "nobody else had a turn");
            reads += 1;
            match form {
                0 => drop(pnode.get("", &key, ReadOptions::default()).await.unwrap()),
                1 => drop(pnode.get_bytes("", key.clone(), ReadOptions::default()).await.unwrap()),
                _ => drop(
                    pnode.multi_get("", std::slice::from_ref(&key), ReadOptions::default()).await.unwrap(),
                ),
            }
        }
    }
    assert_eq!(cluster.leader().reads(), 1);
}

#[tokio::test]
async fn an_absent_key_asks_nobody_until_it_is_inserted() {
    let (cluster, pnode) = start(|c| drop(c.add_sst(0, &[("gone", None, 1)]))).await;
    for key in ["never", "gone"] {
        assert_eq!(read(&pnode, key).await, None);
        assert_eq!(known(&pnode, key), Some(None));
        // An INSERT leaves no bit.
        put(&cluster, &pnode, key, Some("1"), false).await;
        assert_eq!(known(&pnode, key), None);
        assert_eq!(read(&pnode, key).await, some("1"));
    }
}

#[tokio::test]
async fn that_memtables_have_no_entry_sends_reads_to_the_sstables() {
    let (cluster, pnode) = start(|c| drop(c.add_sst(0, &[("k", Some("1"), 1)]))).await;
    // A bit of a key that is not there: of a group that was truncated, or another key's.
    cluster.leader().with(0, |p| {
        let generation = sextant_common::ids::Generation(1);
        p.log.push(Run::Bits { table: T1, generation, hashes: vec![filter_hash(b"k")] });
    });
    cluster.settled(&pnode, 0).await;
    assert_eq!(read(&pnode, "k").await, some("1"));
    assert_eq!(pnode.metrics().reads(ReadMode::Pda, ReadPath::Both), 1);
    assert_eq!(known(&pnode, "k"), Some(some("1")));
    assert_eq!(pnode.metrics().reads(ReadMode::Pda, ReadPath::Cache), 1);
    put(&cluster, &pnode, "k", Some("2"), false).await;
    assert_eq!(read(&pnode, "k").await, some("2"));
}

#[tokio::test]
async fn freezes_and_flushes_end_nothing() {
    let (mut cluster, pnode) = start(|_| {}).await;
    put(&cluster, &pnode, "k", Some("1"), true).await;
    assert_eq!(read(&pnode, "k").await, some("1"));
    assert_eq!(read(&pnode, "never").await, None);
    cluster.leader().with(0, |p| p.freeze(T1));
    cluster.settled(&pnode, 0).await;
    cluster.flush(0);
    cluster.settled(&pnode, 0).await;
    assert_eq!((known(&pnode, "k"), known(&pnode, "never")), (Some(some("1")), Some(None)));
    assert_eq!(pnode.metrics().reads(ReadMode::Pda, ReadPath::Kept), 2);
    put(&cluster, &pnode, "k", Some("2"), true).await;
    assert_eq!(read(&pnode, "k").await, some("2"));
}

#[tokio::test]
async fn everything_ends_with_a_new_epoch_and_with_whole_filters() {
    let (cluster, pnode) = start(|_| {}).await;
    put(&cluster, &pnode, "k", Some("1"), true).await;
    assert_eq!(read(&pnode, "k").await, some("1"));
    assert!(known(&pnode, "k").is_some());
    let whole = || cluster.memtables.iter().map(|m| m.state.lock().whole_fetches).sum::<usize>();
    // The ring has moved on, and with it a write that this p-node never heard of.
    let before = whole();
    cluster.leader().with(0, |p| {
        p.put("k", Some("2"), false);
        p.put("l", Some("1"), true);
        p.log_start += p.log.len() as u64;
        p.log.clear();
    });
    cluster.settled(&pnode, 0).await;
    assert_eq!(whole(), before + 1);
    assert_eq!(known(&pnode, "k"), None);
    assert_eq!(read(&pnode, "k").await, some("2"));
    assert!(known(&pnode, "k").is_some());
    cluster.fail_over(0);
    until("the new leader's filters", || {
        let view = pnode.core().views.peek(sextant_common::ids::PartitionId(0));
        view.copies.as_ref().is_some_and(|c| c.epoch.term == 6) && view.lease.is_some()
    })
    .await;
    assert_eq!(known(&pnode, "k"), None);
    assert_eq!(read(&pnode, "k").await, some("2"));
}

#[tokio::test]
async fn nothing_is_used_without_a_lease_nor_in_other_modes() {
    let (cluster, pnode) = start(|_| {}).await;
    put(&cluster, &pnode, "k", Some("1"), true).await;
    assert_eq!(read(&pnode, "k").await, some("1"));
    let before = cluster.leader().reads();
    for mode in [ReadMode::Bda, ReadMode::Nda] {
        let options = ReadOptions { mode, ..ReadOptions::default() };
        assert!(pnode.get("", b"k", options).await.unwrap().is_some());
    }
    assert_eq!(cluster.leader().reads(), before + 2);
    assert!(cluster.leader().state.lock().reads.iter().skip(before).all(|read| !read.register));
    cluster.leader().state.lock().lease = Duration::ZERO;
    pnode.core().views.give_up_lease(sextant_common::ids::PartitionId(0));
    assert_eq!(known(&pnode, "k"), None);
    assert_eq!(read(&pnode, "k").await, some("1"));
}

#[tokio::test]
async fn several_keys_are_known_each_by_itself() {
    let (cluster, pnode) = start(|_| {}).await;
    put(&cluster, &pnode, "a", Some("1"), true).await;
    put(&cluster, &pnode, "b", Some("2"), true).await;
    let keys = ["a", "b", "c"].map(bytes::Bytes::from);
    let all = async || {
        let records = pnode.multi_get("", &keys, ReadOptions::default()).await.unwrap();
        records
            .into_iter()
            .map(|r| r.map(|r| String::from_utf8(r.value.to_vec()).unwrap()))
            .collect::<Vec<_>>()
    };
    for _ in 0..2 {
        assert_eq!(all().await, [some("1"), some("2"), None]);
        assert_eq!(cluster.leader().reads(), 3);
    }
}

/// What is read once is not worth an invalidation.
#[tokio::test]
async fn by_default_the_second_read_is_kept() {
    let cluster = Cluster::start(1).await;
    cluster.leader().with(0, |p| p.slots = Some(Slots::new(64, 0)));
    let pnode = cluster.pnode().await;
    put(&cluster, &pnode, "k", Some("1"), true).await;
    assert_eq!(read(&pnode, "k").await, some("1"));
    assert_eq!(known(&pnode, "k"), None);
    assert_eq!(read(&pnode, "k").await, some("1"));
    assert_eq!(known(&pnode, "k"), Some(some("1")));
}
