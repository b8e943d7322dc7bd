//! Little memory: reads are right, jobs wait.

use super::transfer::copy_of;
use super::*;
use crate::catalog::Entry;
use crate::table::budget::Kind;
use crate::table::footer::{TRAILER_BYTES, Trailer};
use crate::testing::sst_id;

#[tokio::test(flavor = "multi_thread")]
async fn many_tables_with_a_cache_for_a_few_are_read_right() {
    let mut node = Node::with(FaultyVfs::new(1), |c| c.block_cache_bytes = Some(80_000)).await;
    let models: Vec<Model> = (0..40).map(|i| model(200 + i * 10, 1000 * i + 1)).collect();
    for (model, counter) in models.iter().zip(1..) {
        node.ingest(sst_id(counter), model).await.unwrap();
    }
    for _ in 0..2 {
        node.restart().await;
        let store = node.server.as_ref().unwrap().store();
        let cache = store.catalog.cache();
        for (model, counter) in models.iter().zip(1..) {
            node.assert_holds(sst_id(counter), model).await;
            for i in [0, 7, 150] {
                let reply = node.get(&[sst_id(counter)], &key(i)).await;
                assert_eq!(reply.seq, model[&key(i)].1);
            }
            assert_eq!(node.get(&[sst_id(counter)], b"key00007x").await.status(), GetStatus::GetNoEntry);
            assert!(cache.used_bytes() <= cache.capacity_bytes());
        }
        // All of one page's tables at once.
        let all: Vec<SstId> = (1..=40).rev().map(sst_id).collect();
        let newest = to_model(node.scan_all(&all).await.records);
        let mut merged = Model::new();
        models.iter().for_each(|model| merged.extend(model.clone()));
        assert!(newest == merged);
        assert!(cache.loads(Kind::Index) > 80 && cache.section_bytes(Kind::Table) > 40 * 2000);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_damaged_since_it_was_read_is_told_by_name_and_repaired_and_a_filter_is_done_without() {
    let no_cache = |c: &mut SstServerConfig| c.block_cache_bytes = Some(0);
    let (mut good, mut bad) = (Node::start().await, Node::with(FaultyVfs::new(1), no_cache).await);
    let model = model(300, 1);
    let meta = good.ingest(sst_id(1), &model).await.unwrap();
    bad.ingest(sst_id(1), &model).await.unwrap();
    let bytes = sextant_environment::vfs::read_file(&bad.vfs, &bad.path(sst_id(1))).unwrap();
    let trailer = Trailer::parse(&bytes[bytes.len() - TRAILER_BYTES..], meta.file_bytes).unwrap();
    for (name, at) in [("filter", trailer.filter), ("index", trailer.index)] {
        assert_eq!(bad.get(&[sst_id(1)], &key(0)).await.status(), GetStatus::GetValue);
        bad.vfs.flip_bit(&bad.path(sst_id(1)), at.offset + 20, 1).unwrap();
        let place = format!("{}: offset {}: {name}", sst_id(1), at.offset);
        for _ in 0..2 {
            let reply = bad.get(&[sst_id(1)], &key(0)).await;
            if name == "filter" {
                assert_eq!((reply.status(), reply.seq), (GetStatus::GetValue, model[&key(0)].1));
                assert_eq!(bad.get(&[sst_id(1)], b"key00000x").await.status(), GetStatus::GetNoEntry);
            } else {
                assert_eq!(reply.status(), GetStatus::GetCorrupt);
                assert!(reply.message.contains(&place), "{}", reply.message);
            }
        }
        let store = bad.server.as_ref().unwrap().store();
        let Some(Entry::Open(table)) = store.catalog.get(sst_id(1)) else { panic!("it is there") };
        assert!(table.damage().is_some_and(|damage| damage.contains(&place)), "{:?}", table.damage());
        assert!(bad.inventory().await[0].damaged);
        bad.client.copy(copy_of(&meta, &[&good])).await.unwrap();
        assert!(!bad.inventory().await[0].damaged);
        bad.assert_holds(sst_id(1), &model).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_begins_when_there_is_room_for_it() {
    let mut node = Node::with(FaultyVfs::new(1), |c| c.memory_bytes = Some(256 << 20)).await;
    let store = node.server.as_ref().unwrap().store();
    let room = store.jobs.ingest().await.unwrap();
    let model = model(100, 1);
    let mut client = node.client.clone();
    let sent = messages(sst_id(1), &model);
    let ingest = tokio::spawn(async move { send(&mut client, sent).await });
    while store.ingests.running() == 0 {
        tokio::task::yield_now().await;
    }
    assert!(node.files().is_empty());
    // A compaction does not wait for what is received.
    let compaction = store.jobs.compaction(4, 1000).await.unwrap();
    assert!(store.jobs.held_bytes() as u64 <= store.jobs.bytes_max);
    drop(room);
    ingest.await.unwrap().unwrap();
    node.assert_holds(sst_id(1), &model).await;
    drop(compaction);
    assert_eq!(store.jobs.held_bytes(), 0);
    let status: serde_json::Value = serde_json::from_str(&store.status_json()).unwrap();
    assert_eq!(status["memory"]["limit_bytes"], 256 << 20);
    assert!(status["memory"]["filter_bytes"].as_u64() > Some(0), "{status}");
}
