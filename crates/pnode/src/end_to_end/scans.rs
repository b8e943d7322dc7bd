//! Scans over partitions, memtables and SSTables.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use sextant_common::ids::PartitionId;
use sextant_common::key_range::KeyRange;
use sextant_common::manifest::{SstMeta, TableOptions};
use sextant_common::object::{ELEMENTS_TABLE, Tag, element_key, element_range};
use sextant_common::operation::{Lane, Operation, ReadMode};
use sextant_resp::{ElementRange, ElementStep, Position, Store, Walk};

use crate::frontend::RespStore;
use crate::testing::{Cluster, until};
use crate::{MANY_PARTITIONS, PNode, ReadOptions, ScanPage, ScanRange};

async fn pages(pnode: &PNode, range: ScanRange) -> Vec<ScanPage> {
    let mut stream = pnode.scan("", range);
    let mut pages = Vec::new();
    while let Some(page) = stream.next_page().await {
        pages.push(page.unwrap());
    }
    pages
}

async fn scan(pnode: &PNode, range: ScanRange) -> Vec<(String, String)> {
    let text = |b: &Bytes| String::from_utf8(b.to_vec()).unwrap();
    let records = pages(pnode, range).await.into_iter().flat_map(|p| p.records);
    records.map(|(k, r)| (text(&k), text(&r.value))).collect()
}

/// Some records in two SSTables and in the memtables of each partition, some of them deleted; what a scan must give.
async fn filled(partitions: u32) -> (Cluster, BTreeMap<String, String>) {
    let mut cluster = Cluster::start(partitions).await;
    let mut expected = BTreeMap::new();
    for partition in 0..partitions {
        let keys: Vec<String> =
            (0..300).map(|i| format!("key{i:03}")).filter(|k| cluster.partition_of(k) == partition).collect();
        let older: Vec<_> = keys.iter().step_by(2).map(|k| (k.as_str(), Some("older"), 1)).collect();
        let newer: Vec<_> = keys
            .iter()
            .step_by(3)
            .enumerate()
            .map(|(i, k)| (k.as_str(), (i % 4 > 0).then_some("newer"), 2))
            .collect();
        cluster.add_sst(partition, &older);
        cluster.add_sst(partition, &newer);
        let newest: Vec<_> =
            keys.iter().step_by(5).enumerate().map(|(i, k)| (k.clone(), i % 3 > 0)).collect();
        cluster.leader().with(partition, |p| {
            for (key, live) in &newest {
                p.put(key, live.then_some("newest"), true);
            }
        });
        let mut merged: BTreeMap<String, Option<&str>> = BTreeMap::new();
        merged.extend(older.iter().chain(&newer).map(|(k, v, _)| ((*k).to_owned(), *v)));
        merged.extend(newest.into_iter().map(|(k, live)| (k, live.then_some("newest"))));
        expected.extend(merged.into_iter().filter_map(|(k, v)| Some((k, v?.to_owned()))));
    }
    (cluster, expected)
}

/// What a compaction of some keys has deleted is still in the file of its input, which answers for the others.
#[tokio::test]
async fn an_sstable_is_asked_for_no_key_that_its_entry_does_not_name() {
    let mut cluster = Cluster::start(1).await;
    let keys: Vec<String> = (0..30).map(|i| format!("key{i:02}")).collect();
    let all: Vec<_> = keys.iter().map(|k| (k.as_str(), Some("old"), 1)).collect();
    let old = cluster.store(0, &all, &[0, 1]);
    let new: Vec<_> = keys[10..20].iter().step_by(2).map(|k| (k.as_str(), Some("new"), 2)).collect();
    let new = cluster.store(0, &new, &[0, 1]);
    let of = |meta: &SstMeta, start: &'static str, end: &'static str| SstMeta {
        range: KeyRange::new(start, end),
        ..meta.clone()
    };
    let entries = [of(&old, "", "key10"), of(&old, "key20", ""), of(&new, "key10", "key20")];
    entries.into_iter().for_each(|meta| cluster.install_sst(0, meta));
    let expected: Vec<(String, String)> = keys
        .iter()
        .enumerate()
        .filter(|(i, _)| !(10..20).contains(i) || i % 2 == 0)
        .map(|(i, k)| (k.clone(), if (10..20).contains(&i) { "new" } else { "old" }.to_owned()))
        .collect();
    let pnode = cluster.pnode().await;
    cluster.settled(&pnode, 0).await;
    for page_records in [0, 3] {
        let all = ScanRange { page_records, ..ScanRange::default() };
        assert_eq!(scan(&pnode, all.clone()).await, expected);
        let reversed: Vec<_> = expected.iter().rev().cloned().collect();
        assert_eq!(scan(&pnode, ScanRange { reverse: true, ..all.clone() }).await, reversed);
        let inside: Vec<_> =
            expected.iter().filter(|(k, _)| ("key07".."key23").contains(&k.as_str())).cloned().collect();
        assert_eq!(
            scan(&pnode, ScanRange { start: "key07".into(), end: "key23".into(), ..all }).await,
            inside
        );
    }
    for mode in ReadMode::ALL {
        for key in &keys {
            let options = ReadOptions { mode, ..ReadOptions::default() };
            let record = pnode.get("", key.as_bytes(), options).await.unwrap();
            let expected = expected.iter().find(|(k, _)| k == key).map(|(_, v)| Bytes::from(v.clone()));
            assert_eq!(record.map(|r| r.value), expected, "{key}");
        }
    }
}

#[tokio::test]
async fn a_scan_over_more_sstables_than_a_page_takes_goes_by_windows() {
    let mut cluster = Cluster::start(1).await;
    let keys: Vec<String> = (0..200).map(|i| format!("key{i:03}")).collect();
    for (i, key) in keys.iter().enumerate() {
        let meta = cluster.store(0, &[(key, Some("v"), 1)], &[0, 1]);
        let start = if i == 0 { String::new() } else { key.clone() };
        let end = keys.get(i + 1).cloned().unwrap_or_default();
        cluster.install_sst(0, SstMeta { range: KeyRange::new(start, end), ..meta });
    }
    let pnode = cluster.pnode().await;
    let expected: Vec<_> = keys.iter().map(|k| (k.clone(), "v".to_owned())).collect();
    for page_records in [0, 7] {
        let all = ScanRange { page_records, ..ScanRange::default() };
        assert_eq!(scan(&pnode, all.clone()).await, expected);
        let reversed: Vec<_> = expected.iter().rev().cloned().collect();
        assert_eq!(scan(&pnode, ScanRange { reverse: true, ..all }).await, reversed);
    }
}

#[tokio::test]
async fn a_scan_gives_the_newest_records_in_key_order() {
    let (cluster, expected) = filled(3).await;
    let pnode = cluster.pnode().await;
    let expected: Vec<_> = expected.into_iter().collect();
    for page_records in [0, 7, 1] {
        let all = ScanRange { page_records, ..ScanRange::default() };
        assert_eq!(scan(&pnode, all.clone()).await, expected);
        let reversed: Vec<_> = expected.iter().rev().cloned().collect();
        assert_eq!(scan(&pnode, ScanRange { reverse: true, ..all.clone() }).await, reversed);
        let range = ScanRange { start: "key050".into(), end: "key100".into(), ..all.clone() };
        let inside: Vec<_> =
            expected.iter().filter(|(k, _)| ("key050".."key100").contains(&k.as_str())).cloned().collect();
        assert_eq!(scan(&pnode, range.clone()).await, inside);
        let limited = scan(&pnode, ScanRange { limit: 10, ..range.clone() }).await;
        assert_eq!(limited, inside[..10]);
        let last = scan(&pnode, ScanRange { limit: 10, reverse: true, ..range }).await;
        assert_eq!(last, inside.iter().rev().take(10).cloned().collect::<Vec<_>>());
    }
    assert!(scan(&pnode, ScanRange { start: "z".into(), ..ScanRange::default() }).await.is_empty());
    assert!(
        scan(&pnode, ScanRange { start: "b".into(), end: "a".into(), ..ScanRange::default() })
            .await
            .is_empty()
    );
    assert_eq!(
        scan(&pnode, ScanRange::prefix("key07")).await.len(),
        expected.iter().filter(|(k, _)| k.starts_with("key07")).count()
    );
}

#[tokio::test]
async fn servers_may_cut_pages_anywhere() {
    let (cluster, expected) = filled(2).await;
    cluster.leader().state.lock().page_records = Some(2);
    cluster.ssts[0].state.lock().page_records = Some(3);
    cluster.ssts[1].state.lock().page_records = Some(1);
    let pnode = cluster.pnode().await;
    let expected: Vec<_> = expected.into_iter().collect();
    assert_eq!(scan(&pnode, ScanRange::default()).await, expected);
    let reversed: Vec<_> = expected.into_iter().rev().collect();
    assert_eq!(scan(&pnode, ScanRange { reverse: true, ..ScanRange::default() }).await, reversed);
}

#[tokio::test]
async fn a_page_of_one_partition_is_a_snapshot_and_says_so() {
    let (cluster, expected) = filled(3).await;
    let pnode = cluster.pnode().await;
    let mut found = BTreeMap::new();
    for partition in (0..3).map(PartitionId) {
        let range = ScanRange { partition: Some(partition), page_records: 10, ..ScanRange::default() };
        for page in pages(&pnode, range).await {
            assert_eq!(page.partition, partition);
            assert!(page.snapshot_seq.0 > 0 && page.records.len() <= 10);
            found.extend(page.records.into_iter().map(|(k, r)| (k, r.value)));
        }
    }
    assert_eq!(found.len(), expected.len());
    let merged = pages(&pnode, ScanRange::default()).await;
    assert!(merged.iter().all(|p| p.partition == MANY_PARTITIONS && p.snapshot_seq.0 == 0));
    let mut wrong = pnode.scan("", ScanRange { partition: Some(PartitionId(9)), ..ScanRange::default() });
    assert!(wrong.next_page().await.unwrap().is_err());
}

#[tokio::test]
async fn a_pinned_range_asks_one_partition() {
    let cluster = Cluster::start(8).await;
    let pnode = cluster.pnode().await;
    let partition = cluster.partition_of("{u}1");
    cluster.leader().with(partition, |p| {
        for i in 0..5 {
            p.put(&format!("{{u}}{i}"), Some("v"), true);
        }
    });
    let pages = pages(&pnode, ScanRange::prefix("{u}")).await;
    assert_eq!(pages.len(), 1);
    assert_eq!(pages[0].partition, PartitionId(partition));
    assert_eq!(pages[0].records.len(), 5);
    let options = TableOptions { partition_prefix: 2, ..TableOptions::default() };
    pnode.create_table("prefixed", options).await.unwrap();
    let mut stream = pnode.scan("prefixed", ScanRange::prefix("ab"));
    assert!(stream.next_page().await.is_none());
}

#[tokio::test]
async fn tables_without_a_key_that_begins_so_are_passed_over() {
    let mut cluster = Cluster::start(1).await;
    cluster.ssts.iter().for_each(|sst| sst.state.lock().filter_prefix = 2);
    for user in ["a", "b", "c"] {
        cluster.leader().with(0, |p| {
            for i in 0..3 {
                p.put(&format!("{user}:{i}"), Some("v"), true);
                // All tables reach from here to there.
                p.put("0", Some("v"), true);
                p.put("z", Some("v"), true);
            }
        });
        cluster.flush(0);
    }
    let pnode = cluster.pnode().await;
    cluster.settled(&pnode, 0).await;
    let counted = || pnode.metrics().scan_tables();
    for (range, records, searched) in [
        (ScanRange::prefix("b:"), 3, 1),
        (ScanRange { reverse: true, ..ScanRange::prefix("b:") }, 3, 1),
        (ScanRange { start: "b:1".into(), end: "b:2".into(), ..ScanRange::default() }, 1, 1),
        (ScanRange::prefix("d:"), 0, 0),
        // What does not begin alike by two bytes is looked for everywhere.
        (ScanRange::prefix("b"), 3, 3),
        (ScanRange { start: "a:2".into(), end: "b:1".into(), ..ScanRange::default() }, 2, 3),
    ] {
        let before = counted();
        assert_eq!(scan(&pnode, range.clone()).await.len(), records, "{range:?}");
        let after = counted();
        assert_eq!((after.0 - before.0, after.1 - before.1), (searched, 3 - searched), "{range:?}");
    }
    cluster
        .ssts
        .iter()
        .for_each(|sst| assert!(sst.state.lock().scans.iter().all(|scan| !scan.tables.is_empty())));
}

#[tokio::test]
async fn no_leader_is_asked_for_what_begins_as_nothing_in_its_memtables() {
    let mut cluster = Cluster::start(1).await;
    cluster.ssts.iter().for_each(|sst| sst.state.lock().filter_prefix = 2);
    cluster.leader().with(0, |p| {
        p.manifest.tables[0].options.filter_prefix = 2;
        for key in ["a:1", "a:2", "b:1"] {
            p.put(key, Some("v"), true);
        }
    });
    let pnode = cluster.pnode().await;
    let without_leader = || pnode.metrics().scan_pages_without_leader();
    cluster.settled(&pnode, 0).await;
    assert_eq!((scan(&pnode, ScanRange::prefix("a:")).await.len(), without_leader()), (2, 0));
    assert_eq!((scan(&pnode, ScanRange::prefix("c:")).await.len(), without_leader()), (0, 1));
    cluster.flush(0);
    cluster.settled(&pnode, 0).await;
    let page = pages(&pnode, ScanRange::prefix("a:")).await.remove(0);
    assert_eq!((page.records.len(), without_leader()), (2, 2));
    // A write that the p-node has heard of; of another prefix nothing is heard.
    cluster.leader().with(0, |p| p.put("a:3", Some("v"), false));
    cluster.settled(&pnode, 0).await;
    assert_eq!((scan(&pnode, ScanRange::prefix("a:")).await.len(), without_leader()), (3, 2));
    assert_eq!((scan(&pnode, ScanRange::prefix("b:")).await.len(), without_leader()), (1, 3));
    // Keys of many prefixes, or of one that is too short.
    assert_eq!((scan(&pnode, ScanRange::default()).await.len(), without_leader()), (4, 3));
    assert_eq!((scan(&pnode, ScanRange::prefix("b")).await.len(), without_leader()), (1, 3));
}

#[tokio::test]
async fn a_scan_without_its_leader_asks_it_after_all_for_what_may_have_expired() {
    let mut cluster = Cluster::start(1).await;
    cluster.leader().with(0, |p| {
        p.manifest.tables[0].options.filter_prefix = 2;
        p.put_until("a:1", Some("v"), Some(50), true);
        p.put("a:2", Some("v"), true);
    });
    cluster.flush(0);
    cluster.ssts.iter().for_each(|sst| sst.state.lock().expiries.extend([("a:1".into(), 50)]));
    let pnode = cluster.pnode().await;
    let without_leader = || pnode.metrics().scan_pages_without_leader();
    cluster.settled(&pnode, 0).await;
    assert_eq!((scan(&pnode, ScanRange::prefix("a:")).await.len(), without_leader()), (2, 1));
    // It is on its way, and perhaps published.
    cluster.leader().with(0, |p| p.announce(50));
    cluster.settled(&pnode, 0).await;
    assert_eq!((scan(&pnode, ScanRange::prefix("a:")).await.len(), without_leader()), (2, 1));
    cluster.leader().with(0, |p| p.publish());
    // (Whether it knows of the publication already is not known.)
    assert_eq!(scan(&pnode, ScanRange::prefix("a:")).await.len(), 1);
}

#[tokio::test]
async fn a_flush_in_between_redoes_the_page() {
    let (mut cluster, expected) = filled(1).await;
    let pnode = cluster.pnode().await;
    cluster.settled(&pnode, 0).await;
    let mut stream = pnode.scan("", ScanRange { page_records: 5, ..ScanRange::default() });
    let mut keys: Vec<Bytes> =
        stream.next_page().await.unwrap().unwrap().records.into_iter().map(|(k, _)| k).collect();
    cluster.flush(0);
    while let Some(page) = stream.next_page().await {
        keys.extend(page.unwrap().records.into_iter().map(|(k, _)| k));
    }
    assert_eq!(keys, expected.into_keys().map(Bytes::from).collect::<Vec<_>>());
}

#[tokio::test]
async fn another_replica_scans_for_one_that_cannot() {
    let (cluster, expected) = filled(1).await;
    let pnode = cluster.pnode().await;
    cluster.settled(&pnode, 0).await;
    cluster.ssts[1].state.lock().tables.clear();
    assert_eq!(scan(&pnode, ScanRange::default()).await.len(), expected.len());
    let tables = cluster.ssts[0].state.lock().tables.clone();
    cluster.ssts[1].state.lock().tables = tables;
    cluster.ssts[0].kill();
    assert_eq!(scan(&pnode, ScanRange::default()).await.len(), expected.len());
}

fn pages_fetched(pnode: &PNode) -> u32 {
    let mut text = String::new();
    let mut registry = prometheus_client::registry::Registry::default();
    pnode.metrics().register(&mut registry);
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    let line = text.lines().find(|l| l.starts_with("sextant_pnode_scan_pages_total")).unwrap();
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

#[tokio::test]
async fn whoever_asks_for_few_records_behind_many_deletions_comes_to_them_in_few_pages() {
    for partitions in [1, 2] {
        let cluster = Cluster::start(partitions).await;
        for partition in 0..partitions {
            cluster.leader().with(partition, |p| {
                for i in 0..3000 {
                    p.put(&format!("a{i:04}"), None, true);
                }
                for i in 0..100 {
                    p.put(&format!("b{partition}{i:02}"), Some("v"), true);
                }
            });
        }
        let pnode = cluster.pnode().await;
        for (reverse, first) in [(false, "b000".to_owned()), (true, format!("b{}99", partitions - 1))] {
            let before = pages_fetched(&pnode);
            let one = ScanRange { limit: 1, page_records: 1, reverse, ..ScanRange::default() };
            let found = scan(&pnode, one).await;
            assert_eq!(found.iter().map(|(key, _)| key.clone()).collect::<Vec<_>>(), [first]);
            let fetched = pages_fetched(&pnode) - before;
            assert!(fetched <= 10 * partitions, "{fetched} pages of {partitions} partitions");
        }
        // No page has more than was asked for, and nothing is left out where a page was cut.
        let small = ScanRange { page_records: 7, ..ScanRange::default() };
        let found: Vec<_> = scan(&pnode, small.clone()).await.into_iter().map(|(key, _)| key).collect();
        let named = |p| (0..100).map(move |i| format!("b{p}{i:02}"));
        assert_eq!(found, (0..partitions).flat_map(named).collect::<Vec<_>>());
        assert!(pages(&pnode, small).await.iter().all(|page| page.records.len() <= 7));
    }
}

#[tokio::test]
async fn a_scan_goes_no_faster_than_its_pages_are_taken() {
    let cluster = Cluster::start(1).await;
    cluster.leader().with(0, |p| {
        for i in 0..1000 {
            p.put(&format!("key{i:04}"), Some("v"), true);
        }
    });
    let pnode = cluster.pnode().await;
    let mut stream = pnode.scan("", ScanRange { page_records: 10, ..ScanRange::default() });
    assert_eq!(stream.next_page().await.unwrap().unwrap().records.len(), 10);
    let fetched = || pages_fetched(&pnode);
    until("the pages ahead are there", || fetched() >= 4).await;
    drop(stream);
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert!(fetched() <= 5, "{} pages for one that was taken", fetched());
}

#[tokio::test]
async fn a_large_record_far_ahead_does_not_make_pages_of_single_records() {
    let mut cluster = Cluster::start(1).await;
    let keys: Vec<String> = (0..300).map(|i| format!("key{i:03}")).collect();
    let small: Vec<_> = keys.iter().map(|key| (key.as_str(), Some("v"), 1)).collect();
    cluster.add_sst(0, &small);
    let large = "v".repeat(2 * 1024 * 1024);
    cluster.leader().with(0, |p| {
        for key in ["a", "key150x", "z"] {
            p.put(key, Some(&large), false);
        }
    });
    let pnode = cluster.pnode().await;
    cluster.settled(&pnode, 0).await;
    let mut expected = [keys, ["a", "key150x", "z"].map(str::to_owned).to_vec()].concat();
    expected.sort_unstable();
    for reverse in [false, true] {
        let asked =
            |cluster: &Cluster| cluster.ssts.iter().map(|s| s.state.lock().scans.len()).sum::<usize>();
        let before = asked(&cluster);
        let found = scan(&pnode, ScanRange { reverse, ..ScanRange::default() }).await;
        assert!(found.iter().map(|(key, _)| key).eq(&expected), "{} records", found.len());
        assert!(asked(&cluster) - before < 30, "{} pages", asked(&cluster) - before);
        expected.reverse();
    }
}

/// Longer than any test: what is told is told because of the pages that were passed over, which a test can count.
const LONG: Duration = Duration::from_secs(3600);

fn keys(pages: &[ScanPage]) -> Vec<Bytes> {
    pages.iter().flat_map(|page| &page.records).map(|(key, _)| key.clone()).collect()
}

/// Most records of a server's page.
fn cut_pages(cluster: &Cluster, records: Option<usize>) {
    cluster.leader().state.lock().page_records = records;
    cluster.ssts.iter().for_each(|sst| sst.state.lock().page_records = records);
}

/// The pages of a scan (of a snapshot) that wants to hear of it, from servers that give one record a page. From each place at which it
/// says that it goes on another scan finds just what comes behind that.
async fn told(cluster: &Cluster, pnode: &PNode, range: ScanRange, snapshot: Option<u64>) -> Vec<ScanPage> {
    let scan = async |range: ScanRange| match snapshot {
        None => pages(pnode, range).await,
        Some(id) => pnode.scan_snapshot("", range, id).map(Result::unwrap).collect().await,
    };
    cut_pages(cluster, Some(1));
    let told = scan(ScanRange { silence_max: Some(LONG), ..range.clone() }).await;
    cut_pages(cluster, None);
    for (at, page) in told.iter().enumerate() {
        let behind = keys(&told[at + 1..]);
        let Some(bound) = page.goes_on_at.clone() else {
            assert!(behind.is_empty(), "only the last page may say nothing");
            continue;
        };
        let rest = match range.reverse {
            false => ScanRange { start: bound, ..range.clone() },
            true => ScanRange { end: bound, ..range.clone() },
        };
        assert_eq!(keys(&scan(rest).await), behind);
    }
    let places: Vec<_> = told.iter().filter_map(|page| page.goes_on_at.as_ref()).collect();
    assert!(places.is_sorted_by(|a, b| if range.reverse { a > b } else { a < b }), "{places:?}");
    told
}

#[tokio::test]
async fn a_scan_over_many_deleted_records_says_how_far_it_is_and_may_go_on_there() {
    for partitions in [1, 3] {
        let cluster = Cluster::start(partitions).await;
        let mut expected = Vec::new();
        for partition in 0..partitions {
            cluster.leader().with(partition, |p| {
                for i in 0..150 {
                    p.put(&format!("a{i:03}{partition}"), None, true);
                    p.put(&format!("c{i:03}{partition}"), None, true);
                }
                for i in 0..5 {
                    p.put(&format!("b{i}{partition}"), Some("v"), true);
                    expected.push(Bytes::from(format!("b{i}{partition}")));
                }
            });
        }
        expected.sort();
        let pnode = cluster.pnode().await;
        let all = ScanRange { start: "a".into(), end: "d".into(), ..ScanRange::default() };
        for (reverse, page_records) in [(false, 0), (true, 0), (false, 2), (true, 2)] {
            let range = ScanRange { reverse, page_records, ..all.clone() };
            let found = told(&cluster, &pnode, range, None).await;
            assert_eq!(keys(&found), expected);
            let before = found.iter().take_while(|page| page.records.is_empty()).count();
            let behind = found.iter().rev().take_while(|page| page.records.is_empty()).count();
            assert!(before >= 2 && behind >= 1, "{before} and {behind} of {} pages", found.len());
            expected.reverse();
        }
        // Whoever wants records only gets no other pages.
        cut_pages(&cluster, Some(1));
        assert!(pages(&pnode, all.clone()).await.iter().all(|page| !page.records.is_empty()));
        let limited = ScanRange { limit: 3, silence_max: Some(LONG), ..all };
        let found = pages(&pnode, limited).await;
        assert_eq!(keys(&found), expected[..3]);
        assert_eq!(found.last().unwrap().goes_on_at, None, "nothing more is wanted");
    }
}

#[tokio::test]
async fn a_partition_that_finds_nothing_does_not_hold_back_what_comes_before_it() {
    for reverse in [false, true] {
        let cluster = Cluster::start(2).await;
        let [first, last] = if reverse { ["z", "a"] } else { ["a", "z"] };
        cluster.leader().with(0, |p| {
            p.put(first, Some("v"), true);
            p.put("m", Some("v"), true);
        });
        cluster.leader().with(1, |p| {
            for i in 0..300 {
                p.put(&format!("k{i:03}"), None, true);
                p.put(&format!("n{i:03}"), None, true);
            }
            p.put(last, Some("v"), true);
        });
        let pnode = cluster.pnode().await;
        let found = told(&cluster, &pnode, ScanRange { reverse, ..ScanRange::default() }, None).await;
        assert_eq!(keys(&found), [first, "m", last]);
        let with = |key: &str| found.iter().position(|page| page.records.iter().any(|(k, _)| k == key));
        let (first, middle, last) = (with(first).unwrap(), with("m").unwrap(), with(last).unwrap());
        assert!(first == 0 && first + 2 < middle && middle + 2 < last, "{first}, {middle}, {last}");
    }
}

#[tokio::test]
async fn a_scan_of_a_snapshot_says_how_far_it_is_too() {
    for partitions in [1, 2] {
        let mut cluster = Cluster::start(partitions).await;
        for partition in 0..partitions {
            let names: Vec<String> = (0..150).map(|i| format!("a{i:03}{partition}")).collect();
            let live = format!("b{partition}");
            let deleted = names.iter().map(|key| (key.as_str(), None, 2));
            cluster.add_sst(partition, &deleted.chain([(live.as_str(), Some("v"), 2)]).collect::<Vec<_>>());
        }
        let pnode = cluster.pnode().await;
        let snapshot = pnode.snapshots().open(0, false, None).await.unwrap().id;
        // What is written since is not of it.
        cluster.leader().with(0, |p| p.put("a", Some("v"), true));
        for reverse in [false, true] {
            let range = ScanRange { reverse, start: "a".into(), ..ScanRange::default() };
            let found = told(&cluster, &pnode, range, Some(snapshot)).await;
            let mut expected: Vec<_> = (0..partitions).map(|partition| format!("b{partition}")).collect();
            if reverse {
                expected.reverse();
            }
            assert_eq!(keys(&found), expected);
            assert!(found.iter().filter(|page| page.records.is_empty()).count() >= 1);
        }
    }
}

#[tokio::test]
async fn a_step_over_the_keys_of_a_database_ends_behind_deleted_ones_too() {
    let cluster = Cluster::start(2).await;
    for partition in 0..2 {
        cluster.leader().with(partition, |p| {
            for i in 0..150 {
                p.put(&format!("a{i:03}{partition}"), None, true);
            }
            p.put(&format!("b{partition}"), Some("v"), true);
        });
    }
    let pnode = cluster.pnode().await;
    cut_pages(&cluster, Some(1));
    let store = RespStore::new(pnode, 16);
    let (mut at, mut found, mut without) = (Some(Position::default()), Vec::new(), 0);
    while let Some(position) = at {
        let step = Walk { start: Bytes::new(), end: Bytes::new(), position: position.clone(), limit: 10 };
        let (keys, next) = store.walk(step).await.unwrap();
        let is_behind = |next: &Position| (next.part, &next.from) > (position.part, &position.from);
        assert!(next.as_ref().is_none_or(is_behind), "{next:?}");
        without += usize::from(keys.is_empty());
        found.extend(keys.into_iter().map(|(key, _)| key));
        at = next;
    }
    assert_eq!(found, ["b0", "b1"]);
    assert!(without >= 2, "{without} steps found nothing");
}

#[tokio::test]
async fn a_step_over_the_elements_of_an_object_ends_behind_removed_ones_too() {
    let cluster = Cluster::start(1).await;
    let pnode = cluster.pnode().await;
    let store = RespStore::new(pnode.clone(), 16);
    let name = |field: &str| element_key(b"h", 7, Tag::Field, field.as_bytes());
    let fields = (0..150).flat_map(|i| [format!("a{i:03}"), format!("c{i:03}")]);
    let removed: Vec<Bytes> = fields.map(|field| name(&field)).collect();
    let put = |key: Bytes| Operation::put(ELEMENTS_TABLE, key, "v");
    let puts = removed.iter().cloned().chain([name("b")]).map(put).collect();
    store.execute(puts, Lane::Single).await.unwrap();
    let removals = removed.into_iter().map(|key| Operation::delete(ELEMENTS_TABLE, key)).collect();
    store.execute(removals, Lane::Single).await.unwrap();
    cluster.settled(&pnode, 0).await;
    cut_pages(&cluster, Some(1));
    let (start, end) = element_range(b"h", 7, Tag::Field);
    for reverse in [false, true] {
        let whole = ElementRange { start: start.clone(), end: end.clone(), reverse, limit: 10 };
        let (mut left, mut in_vain) = (whole.clone(), 0);
        let found = loop {
            match store.element_step(left.clone()).await.unwrap() {
                ElementStep::Found(found) => break found,
                ElementStep::Searched(rest) => {
                    let gets_on = match reverse {
                        false => rest.start > left.start && rest.end == left.end,
                        true => rest.start == left.start && rest.end < left.end,
                    };
                    assert!(gets_on && rest.start < rest.end, "{rest:?} of {left:?}");
                    (left, in_vain) = (rest, in_vain + 1);
                }
            }
        };
        assert!(in_vain >= 2, "{in_vain} steps found nothing");
        assert_eq!(found.elements, [(name("b"), Bytes::from_static(b"v"))]);
        assert!(found.has_more, "nobody has looked behind it");
        // Who waits for as long as it takes finds the same.
        let waited_for = store.element_page(whole).await.unwrap();
        assert_eq!(waited_for.elements, found.elements);
        assert!(waited_for.took_several);
    }
}

#[tokio::test]
async fn what_is_found_slowly_is_told_before_a_page_is_full() {
    let cluster = Cluster::start(2).await;
    for partition in 0..2 {
        cluster.leader().with(partition, |p| {
            for i in 0..6 {
                p.put(&format!("a{i}{partition}"), Some("v"), true);
            }
        });
    }
    let pnode = cluster.pnode().await;
    for reverse in [false, true] {
        // Whatever was found was waited for too long.
        let range = ScanRange { reverse, silence_max: Some(Duration::ZERO), ..ScanRange::default() };
        cut_pages(&cluster, Some(1));
        let found = pages(&pnode, range.clone()).await;
        cut_pages(&cluster, None);
        assert_eq!(keys(&found), keys(&pages(&pnode, range).await));
        assert!(keys(&found).len() == 12 && found.len() >= 6, "{} pages", found.len());
        assert!(found.iter().rev().skip(1).all(|page| page.goes_on_at.is_some()));
    }
}
