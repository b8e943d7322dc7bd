//! Point reads: which servers they touch, and what they answer while flushes go on.

use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use sextant_common::ErrorKind;
use sextant_common::ids::{ManifestVersion, PartitionId};
use sextant_common::manifest::TableOptions;

use crate::metrics::{CacheEvent, ReadPath, WrongTurn};
use crate::testing::{Cluster, until};
use crate::{LibraryConfig, PNode, ReadMode, ReadOptions, ScanRange};

pub(super) async fn read(pnode: &PNode, key: &str) -> Option<String> {
    read_in(pnode, key, ReadMode::Pda).await
}

async fn read_in(pnode: &PNode, key: &str, mode: ReadMode) -> Option<String> {
    let options = ReadOptions { mode, ..ReadOptions::default() };
    let record = pnode.get("", key.as_bytes(), options).await.unwrap();
    record.map(|r| String::from_utf8(r.value.to_vec()).unwrap())
}

pub(super) fn some(value: &str) -> Option<String> {
    Some(value.to_owned())
}

#[tokio::test]
async fn a_record_in_an_sstable_touches_no_memtable_server() {
    let mut cluster = Cluster::start(1).await;
    cluster.add_sst(0, &[("a", Some("1"), 1), ("k", Some("2"), 2)]);
    let pnode = cluster.pnode().await;
    cluster.settled(&pnode, 0).await;
    assert_eq!(read(&pnode, "k").await, some("2"));
    assert_eq!(cluster.leader().reads(), 0);
    assert_eq!(pnode.metrics().reads(ReadMode::Pda, ReadPath::Sstable), 1);
    // From now on it is known without asking anyone.
    assert_eq!(pnode.try_get("", b"k").unwrap().unwrap().unwrap().value, "2");
    assert_eq!(read(&pnode, "k").await, some("2"));
    assert_eq!(cluster.ssts.iter().map(|s| s.gets()).sum::<usize>(), 1);
    assert_eq!(pnode.metrics().reads(ReadMode::Pda, ReadPath::Cache), 2);
}

#[tokio::test]
async fn large_values_are_asked_for_alone_and_only_while_there_is_room_for_them() {
    // A busy machine is no error.
    const PATIENT_MS: u64 = 60_000;
    let mut cluster = Cluster::start(1).await;
    let large = "v".repeat(600 * 1024);
    cluster.add_sst(0, &[("a", Some(&large), 1), ("b", Some(&large), 2), ("s", Some("small"), 3)]);
    cluster.leader().with(0, |p| {
        p.put("m", Some(&large), false);
    });
    let config = LibraryConfig { read_bytes_max: 1 << 20, cache_bytes: 0, ..cluster.library_config() };
    let pnode = PNode::start(cluster.env.clone(), config).await.unwrap();
    cluster.settled(&pnode, 0).await;
    let get = async |key: &str, deadline_ms: u64| {
        let deadline = Some(Duration::from_millis(deadline_ms));
        let options = ReadOptions { deadline, ..ReadOptions::default() };
        pnode.get("", key.as_bytes(), options).await.map(|r| r.unwrap().value)
    };
    let a = get("a", PATIENT_MS).await.unwrap();
    // There is no room for a second one; but one at a time may have more than there is.
    let m = get("m", PATIENT_MS).await.unwrap();
    assert!(a.len() == large.len() && m.len() == large.len());
    assert_eq!(get("b", 3000).await.unwrap_err().kind, ErrorKind::Overloaded);
    assert_eq!(get("s", PATIENT_MS).await.unwrap(), "small", "small ones wait for nothing");
    drop(a);
    let b = get("b", PATIENT_MS).await.unwrap();
    drop((m, b));
    // Each of these needs the room of the others.
    let keys = ["a", "b", "m", "s"].map(Bytes::from);
    let all = async || {
        let records = pnode.multi_get("", &keys, ReadOptions::default()).await.unwrap();
        records.into_iter().map(|record| record.unwrap().value.len()).sum::<usize>()
    };
    let (one, other) = tokio::join!(all(), all());
    assert_eq!((one, other), (3 * large.len() + 5, 3 * large.len() + 5));
    assert_eq!(pnode.reader().large_bytes_held(), 0);
    let mut pages = pnode.scan("", ScanRange::default());
    let mut found = Vec::new();
    while let Some(page) = pages.next().await {
        found.extend(page.unwrap().records.into_iter().map(|(key, record)| (key, record.value.len())));
    }
    let expected = [("a", large.len()), ("b", large.len()), ("m", large.len()), ("s", 5)];
    assert_eq!(found, expected.map(|(key, bytes)| (Bytes::from(key), bytes)));
}

#[tokio::test]
async fn every_mode_finds_every_record() {
    let mut cluster = Cluster::start(1).await;
    let records = [
        ("sst", Some("old"), 1),
        ("updated", Some("old"), 2),
        ("deleted", Some("old"), 3),
        ("gone", None, 4),
    ];
    cluster.add_sst(0, &records);
    cluster.leader().with(0, |p| {
        p.put("updated", Some("new"), true);
        p.put("deleted", None, true);
        p.put("inserted", Some("new"), false);
    });
    let pnode = cluster.pnode().await;
    cluster.settled(&pnode, 0).await;
    for cached in [false, true] {
        pnode.set_cache(cached);
        for mode in ReadMode::ALL {
            for _ in 0..2 {
                assert_eq!(read_in(&pnode, "sst", mode).await, some("old"), "{mode:?}");
                assert_eq!(read_in(&pnode, "updated", mode).await, some("new"), "{mode:?}");
                assert_eq!(read_in(&pnode, "deleted", mode).await, None, "{mode:?}");
                assert_eq!(read_in(&pnode, "inserted", mode).await, some("new"), "{mode:?}");
                assert_eq!(read_in(&pnode, "gone", mode).await, None, "{mode:?}");
                assert_eq!(read_in(&pnode, "never", mode).await, None, "{mode:?}");
            }
        }
    }
}

#[tokio::test]
async fn sst_tombstone_is_not_final_neither_from_a_server_nor_from_the_cache() {
    let mut cluster = Cluster::start(1).await;
    cluster.add_sst(0, &[("k", None, 1)]);
    let pnode = cluster.pnode().await;
    cluster.settled(&pnode, 0).await;
    assert_eq!(read(&pnode, "k").await, None);
    assert_eq!(cluster.leader().reads(), 1, "the memtables were asked before answering absent");
    // The INSERT after the delete leaves no bit; the tombstone is in the cache by now.
    cluster.leader().with(0, |p| p.put("k", Some("inserted"), false));
    assert!(pnode.try_get("", b"k").is_none());
    assert_eq!(read(&pnode, "k").await, some("inserted"));
    assert_eq!(pnode.metrics().wrong_turns(WrongTurn::Tombstone), 2);
    assert_eq!(cluster.ssts.iter().map(|s| s.gets()).sum::<usize>(), 1);
}

#[tokio::test]
async fn older_tables_are_not_searched_after_a_tombstone() {
    let mut cluster = Cluster::start(1).await;
    let old = cluster.store(0, &[("k", Some("deleted long ago"), 1)], &[0]);
    let new = cluster.store(0, &[("k", None, 2)], &[1]);
    cluster.install_sst(0, old);
    cluster.install_sst(0, new);
    let pnode = cluster.pnode().await;
    cluster.settled(&pnode, 0).await;
    for mode in ReadMode::ALL {
        pnode.set_cache(false);
        assert_eq!(read_in(&pnode, "k", mode).await, None);
    }
    assert_eq!(cluster.ssts[0].gets(), 0, "the older table is on another server, and was not asked");
    assert_eq!(cluster.ssts[1].gets(), 3);
}

#[tokio::test]
async fn memtable_tombstone_is_final_in_every_mode() {
    let mut cluster = Cluster::start(1).await;
    cluster.add_sst(0, &[("k", Some("old"), 1)]);
    cluster.leader().with(0, |p| p.put("k", None, true));
    let pnode = cluster.pnode().await;
    cluster.settled(&pnode, 0).await;
    for mode in ReadMode::ALL {
        assert_eq!(read_in(&pnode, "k", mode).await, None);
    }
    assert_eq!(cluster.ssts.iter().map(|s| s.gets()).sum::<usize>(), 0);
}

/// While the SSTables are being searched the view moves on; the memtable read must still name what was searched, or the
/// record that was flushed in between is found nowhere.
#[tokio::test]
async fn memtable_reread_names_the_searched_version() {
    let mut cluster = Cluster::start(1).await;
    cluster.add_sst(0, &[("k", None, 1)]);
    cluster.leader().with(0, |p| p.put("k", Some("inserted"), false));
    let pnode = cluster.pnode().await;
    cluster.settled(&pnode, 0).await;
    let searched = cluster.version(0);
    cluster.hold_gets(true);
    let reader = tokio::spawn({
        let pnode = pnode.clone();
        async move { read(&pnode, "k").await }
    });
    until("the search has begun", || cluster.ssts.iter().any(|s| s.gets() > 0)).await;
    cluster.flush(0);
    cluster.settled(&pnode, 0).await;
    assert!(cluster.version(0) > searched);
    cluster.hold_gets(false);
    assert_eq!(reader.await.unwrap(), some("inserted"));
    let named = cluster.leader().state.lock().reads[0].manifest_version;
    assert_eq!(ManifestVersion(named), searched, "not the newest version that the p-node knew by then");
    assert_eq!(pnode.metrics().wrong_turns(WrongTurn::StaleManifest), 1);
}

#[tokio::test]
async fn a_record_that_was_flushed_meanwhile_is_found_after_a_stale_answer() {
    let mut cluster = Cluster::start(1).await;
    cluster.leader().state.lock().lease = Duration::ZERO;
    cluster.leader().with(0, |p| p.put("k", Some("v"), true));
    let pnode = cluster.pnode_without_leases().await;
    for mode in ReadMode::ALL {
        // The flush is news to the p-node only by the answer, if its pull does not win.
        cluster.flush(0);
        assert_eq!(read_in(&pnode, "k", mode).await, some("v"));
        cluster.leader().with(0, |p| p.put("k", Some("v"), true));
    }
}

#[tokio::test]
async fn without_a_lease_a_pda_read_is_done_as_bda() {
    let mut cluster = Cluster::start(1).await;
    cluster.leader().state.lock().lease = Duration::ZERO;
    cluster.add_sst(0, &[("k", Some("old"), 1)]);
    // An update whose bit the p-node need not know: nobody promised it anything.
    let pnode = cluster.pnode_without_leases().await;
    assert_eq!(read(&pnode, "k").await, some("old"));
    assert_eq!(cluster.leader().reads(), 1);
    assert_eq!(pnode.metrics().no_lease_reads(), 1);
    cluster.leader().state.lock().partitions.get_mut(&0).unwrap().put("k", Some("new"), true);
    assert_eq!(read(&pnode, "k").await, some("new"));
    assert!(pnode.try_get("", b"k").is_none());
}

#[tokio::test]
async fn an_expired_lease_is_noticed_before_use() {
    let mut cluster = Cluster::start(1).await;
    let manual = std::sync::Arc::new(sextant_simulated::ManualClock::default());
    cluster.env.clock = manual.clone();
    cluster.add_sst(0, &[("k", Some("old"), 1)]);
    let pnode = cluster.pnode().await;
    cluster.settled(&pnode, 0).await;
    assert_eq!(read(&pnode, "k").await, some("old"));
    assert_eq!(cluster.leader().reads(), 0);
    assert!(pnode.try_get("", b"k").is_some());
    // The p-node is paused for a minute (and its pulls get nothing): the cache hit of before is no answer any more.
    cluster.leader().state.lock().lease = Duration::ZERO;
    cluster.leader().state.lock().partitions.get_mut(&0).unwrap().put("k", Some("new"), true);
    manual.advance(Duration::from_secs(61));
    assert!(pnode.try_get("", b"k").is_none());
    assert_eq!(read(&pnode, "k").await, some("new"));
}

#[tokio::test]
async fn cache_never_holds_memtable_values() {
    let mut cluster = Cluster::start(1).await;
    cluster.add_sst(0, &[("a", Some("x"), 1), ("z", Some("x"), 2)]);
    let pnode = cluster.pnode().await;
    cluster.settled(&pnode, 0).await;
    // Insert, read, update: neither leaves a bit.
    cluster.leader().with(0, |p| p.put("k", Some("first"), false));
    for mode in ReadMode::ALL {
        assert_eq!(read_in(&pnode, "k", mode).await, some("first"));
    }
    assert_eq!(pnode.cache().size().0, 0);
    cluster.leader().with(0, |p| p.put("k", Some("second"), false));
    for mode in ReadMode::ALL {
        assert_eq!(read_in(&pnode, "k", mode).await, some("second"));
    }
}

#[tokio::test]
async fn the_cache_is_carried_over_a_flush_that_did_not_bring_the_key() {
    let mut cluster = Cluster::start(1).await;
    cluster.add_sst(0, &[("k", Some("v"), 1), ("l", Some("old"), 2)]);
    let pnode = cluster.pnode().await;
    cluster.settled(&pnode, 0).await;
    assert_eq!(read(&pnode, "k").await, some("v"));
    assert_eq!(read(&pnode, "l").await, some("old"));
    cluster.leader().with(0, |p| {
        p.put("a", Some("x"), true);
        p.put("l", Some("new"), true);
        p.put("z", Some("x"), true);
    });
    cluster.flush(0);
    cluster.settled(&pnode, 0).await;
    assert_eq!(pnode.try_get("", b"k").unwrap().unwrap().unwrap().value, "v");
    assert_eq!(pnode.metrics().cache(CacheEvent::Carried), 1);
    assert!(pnode.try_get("", b"l").is_none());
    assert_eq!(read(&pnode, "l").await, some("new"));
    assert_eq!(pnode.metrics().cache(CacheEvent::Dropped), 1);
    assert_eq!(cluster.leader().reads(), 0);
}

#[tokio::test]
async fn filter_inserts_answers_absent_without_asking_anyone() {
    let mut cluster = Cluster::start(1).await;
    cluster.leader().with(0, |p| {
        p.manifest.tables[0].options = TableOptions { filter_inserts: true, ..TableOptions::default() };
    });
    cluster.add_sst(0, &[("a", Some("x"), 1), ("deleted", None, 2), ("z", Some("x"), 3)]);
    let pnode = cluster.pnode().await;
    cluster.settled(&pnode, 0).await;
    assert_eq!(pnode.try_get("", b"missing").unwrap().unwrap(), None);
    assert_eq!(read(&pnode, "missing").await, None);
    assert_eq!(read(&pnode, "deleted").await, None);
    assert_eq!(cluster.leader().reads(), 0);
    assert_eq!(pnode.metrics().reads(ReadMode::Pda, ReadPath::Nobody), 2);
    cluster.leader().with(0, |p| p.put("missing", Some("now"), true));
    cluster.settled(&pnode, 0).await;
    assert_eq!(read(&pnode, "missing").await, some("now"));
}

#[tokio::test]
async fn a_missing_filter_matches_the_whole_range() {
    let mut cluster = Cluster::start(1).await;
    cluster.ssts.iter().for_each(|s| s.state.lock().no_filters = true);
    cluster.add_sst(0, &[("a", Some("1"), 1), ("z", Some("2"), 2)]);
    let pnode = cluster.pnode().await;
    until("the manifest is here", || {
        pnode.core().views.peek(PartitionId(0)).manifest.version == cluster.version(0)
    })
    .await;
    assert_eq!(read(&pnode, "z").await, some("2"));
    assert_eq!(read(&pnode, "m").await, None);
    assert!(pnode.metrics().wrong_turns(WrongTurn::SstableFilter) >= 1);
}

#[tokio::test]
async fn without_coalescing_every_read_is_a_call() {
    let mut cluster = Cluster::start(1).await;
    cluster.add_sst(0, &[("s", Some("1"), 1)]);
    cluster.leader().with(0, |p| p.put("m", Some("2"), true));
    let pnode = cluster.pnode().await;
    cluster.settled(&pnode, 0).await;
    pnode.set_coalesce(false);
    assert_eq!(read(&pnode, "s").await, some("1"));
    assert_eq!(read(&pnode, "m").await, some("2"));
}

#[tokio::test]
async fn multi_get_answers_in_order_and_coalesces() {
    let mut cluster = Cluster::start(4).await;
    let keys: Vec<String> = (0..500).map(|i| format!("key{i}")).collect();
    for partition in 0..4 {
        let records: Vec<_> = keys.iter().filter(|k| cluster.partition_of(k) == partition).cloned().collect();
        let half: Vec<_> = records.iter().step_by(2).map(|k| (k.as_str(), Some(k.as_str()), 1)).collect();
        cluster.add_sst(partition, &half);
        cluster.leader().with(partition, |p| {
            for key in records.iter().skip(1).step_by(4) {
                p.put(key, Some(key), false);
            }
        });
    }
    let pnode = cluster.pnode().await;
    for partition in 0..4 {
        cluster.settled(&pnode, partition).await;
    }
    let wire: Vec<Bytes> = keys.iter().map(|k| Bytes::from(k.clone())).collect();
    let records = pnode.multi_get("", &wire, ReadOptions::default()).await.unwrap();
    for (key, record) in keys.iter().zip(&records) {
        if let Some(record) = record {
            assert_eq!(record.value, *key);
        }
    }
    assert_eq!(records.iter().filter(|r| r.is_some()).count(), {
        let per: Vec<usize> =
            (0..4).map(|p| keys.iter().filter(|k| cluster.partition_of(k) == p).count()).collect();
        per.iter().map(|n| n.div_ceil(2) + (n / 2).div_ceil(2)).sum::<usize>()
    });
    let (messages, entries) = pnode.metrics().messages(crate::MessageKind::Get);
    assert!(entries >= 250 && messages < entries / 4, "{messages} messages for {entries} gets");
    // Some are at hand now, and some are not, in all partitions: each record is at its key's place.
    let backward: Vec<Bytes> = wire.iter().rev().cloned().collect();
    let again = pnode.multi_get("", &backward, ReadOptions::default()).await.unwrap();
    assert!(again.iter().rev().eq(&records));
    let (_, now) = pnode.metrics().messages(crate::MessageKind::Get);
    assert!(now < entries + 250, "{now} gets");
}

#[tokio::test]
async fn limits_are_checked() {
    let cluster = Cluster::start(1).await;
    let pnode = cluster.pnode().await;
    for key in [vec![], vec![7; sextant_common::limits::KEY_BYTES_MAX + 1]] {
        assert_eq!(pnode.get("", &key, ReadOptions::default()).await.unwrap_err().kind, ErrorKind::Invalid);
    }
}
