use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use sextant_common::ErrorKind;
use sextant_common::filter::SealedFilter;
use sextant_common::key::filter_hash;
use sextant_environment::env::error_of;
use sextant_environment::vfs::IoKind;
use sextant_simulated::Fault;

use super::*;
use crate::testing::sst_id;

pub(super) fn copy_of(meta: &SstMeta, sources: &[&Node]) -> CopyRequest {
    CopyRequest {
        id: sst_id_to_wire(meta.id),
        checksum: meta.checksum,
        file_bytes: meta.file_bytes,
        sources: sources.iter().map(|node| node.addr()).collect(),
        order: None,
    }
}

/// What makes a file of several pieces.
fn several_pieces() -> Model {
    let noise =
        |i: u64| (0..80).flat_map(|j| filter_hash(&(i * 80 + j).to_le_bytes()).to_le_bytes()).collect();
    (0..4000u64).map(|i| (key(i), (noise(i), i, false))).collect()
}

/// The disk fails after the first piece that it gives.
fn second_piece_fails(node: &Node) {
    let first = AtomicBool::new(true);
    node.vfs.fail_next(IoKind::Read, 1, Fault::Io, move |_| !first.swap(false, Relaxed));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_is_the_same_file_and_durable() {
    let (mut from, mut to, empty) = (Node::start().await, Node::start().await, Node::start().await);
    let model = several_pieces();
    let meta = from.ingest(sst_id(1), &model).await.unwrap();
    assert!(meta.file_bytes > 2 << 20);
    // The first source does not have it; one that does not exist is passed over too.
    let mut request = copy_of(&meta, &[&empty, &from]);
    request.sources.insert(0, "127.0.0.1:1".into());
    to.client.copy(request.clone()).await.unwrap();
    to.client.copy(request).await.unwrap();
    to.crash().await;
    assert_eq!(to.inventory().await, from.inventory().await);
    assert_eq!(to.scan_all(&[sst_id(1)]).await.records.len(), 4000);
    assert_eq!(to.files().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_that_is_not_what_was_asked_for_is_not_kept() {
    let (mut from, mut to) = (Node::start().await, Node::start().await);
    let meta = from.ingest(sst_id(1), &model(300, 1)).await.unwrap();
    let good = copy_of(&meta, &[&from]);
    let other_checksum = CopyRequest { checksum: meta.checksum ^ 1, ..good.clone() };
    let longer = CopyRequest { file_bytes: meta.file_bytes + 1, ..good.clone() };
    let shorter = CopyRequest { file_bytes: meta.file_bytes - 1, ..good.clone() };
    let nowhere = CopyRequest { sources: Vec::new(), ..good.clone() };
    let unknown = CopyRequest { id: sst_id_to_wire(sst_id(4)), ..good.clone() };
    for bad in [other_checksum, longer, shorter, nowhere, unknown] {
        let error = error_of(to.client.copy(bad).await.unwrap_err());
        assert_eq!(error.kind, ErrorKind::Unavailable, "{error}");
        assert!(to.files().is_empty() && to.inventory().await.is_empty());
    }
    to.client.copy(good).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fetched_filter_contains_every_key() {
    let mut node = Node::start().await;
    let model = model(500, 1);
    node.ingest(sst_id(1), &model).await.unwrap();
    let request = FetchFilterRequest { id: sst_id_to_wire(sst_id(1)) };
    let mut pieces = node.client.fetch_filter(request).await.unwrap().into_inner();
    let mut bytes = Vec::new();
    while let Some(piece) = pieces.message().await.unwrap() {
        bytes.extend_from_slice(&piece.data);
    }
    let filter = SealedFilter::from_bytes(&bytes).unwrap();
    assert!(model.keys().all(|k| filter.contains(filter_hash(k))));
    let strangers = (0..10_000).filter(|i| filter.contains(filter_hash(&key(50_000 + i)))).count();
    assert!(strangers < 200, "{strangers}");
    let unknown = FetchFilterRequest { id: sst_id_to_wire(sst_id(2)) };
    assert_eq!(error_of(node.client.fetch_filter(unknown).await.unwrap_err()).kind, ErrorKind::Unavailable);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_older_order_releases_nothing() {
    let (mut from, mut to) = (Node::start().await, Node::start().await);
    let meta = from.ingest(sst_id(1), &model(30, 1)).await.unwrap();
    let order = |term, number| Some(Order { term, number, ..Order::default() });
    let release = |order| ReleaseTablesRequest { ids: vec![sst_id_to_wire(meta.id)], lineage: 0, order };
    to.client.copy(CopyRequest { order: order(3, 5), ..copy_of(&meta, &[&from]) }).await.unwrap();
    for old in [order(3, 4), order(2, 9)] {
        let error = error_of(to.client.release_tables(release(old)).await.unwrap_err());
        assert_eq!(error.kind, ErrorKind::Retry, "{error}");
    }
    to.crash().await;
    to.client.release_tables(release(order(3, 4))).await.unwrap_err();
    to.client.release_tables(release(None)).await.unwrap_err();
    // A later leader counts on what is there.
    to.client
        .inventory(InventoryRequest { partition: 1, order: order(4, 1), ..Default::default() })
        .await
        .unwrap();
    to.client.release_tables(release(order(3, 6))).await.unwrap_err();
    assert_eq!(to.inventory().await.len(), 1);
    let released = to.client.release_tables(release(order(4, 2))).await.unwrap().into_inner();
    assert_eq!((released.released, to.tables_with_a_name()), (1, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_goes_on_where_it_broke_off_with_whoever_has_the_rest() {
    let (mut from, mut other) = (Node::start().await, Node::start().await);
    let mut to = Node::with(FaultyVfs::new(7), |c| c.copies_max = 1).await;
    let model = several_pieces();
    let meta = from.ingest(sst_id(1), &model).await.unwrap();
    other.ingest(sst_id(1), &model).await.unwrap();
    let resumed = |node: &Node| node.server.as_ref().unwrap().store().metrics.copies_resumed.get();
    second_piece_fails(&from);
    let error = error_of(to.client.copy(copy_of(&meta, &[&from])).await.unwrap_err());
    assert_eq!((error.kind, resumed(&to)), (ErrorKind::Unavailable, 0), "{error}");
    assert_eq!((to.files().len(), to.tables_with_a_name()), (1, 0), "what came is kept");
    // Another one has the rest.
    let read_before = other.vfs.counts().reads;
    to.client.copy(copy_of(&meta, &[&other])).await.unwrap();
    let pieces = meta.file_bytes.div_ceil(1 << 20);
    assert_eq!((resumed(&to), other.vfs.counts().reads - read_before), (1, pieces - 1));
    to.crash().await;
    assert_eq!(to.inventory().await, from.inventory().await);
    assert_eq!(to.scan_all(&[sst_id(1)]).await.records.len(), 4000);

    // Within one order, and from a place beyond the end of a file.
    to.client.delete(DeleteRequest { ids: vec![sst_id_to_wire(sst_id(1))], lineage: 0 }).await.unwrap();
    second_piece_fails(&from);
    to.client.copy(copy_of(&meta, &[&from, &other])).await.unwrap();
    assert_eq!(resumed(&to), 1);
    // (What was deleted is erased in the background.)
    for _ in 0..10_000 {
        if to.files().len() == 1 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
    assert_eq!(to.files().len(), 1);
    let beyond = FetchRequest { id: sst_id_to_wire(sst_id(1)), offset: meta.file_bytes + 1 };
    assert_eq!(error_of(to.client.fetch(beyond).await.unwrap_err()).kind, ErrorKind::Invalid);
    // What is kept is gone with the server.
    to.client.delete(DeleteRequest { ids: vec![sst_id_to_wire(sst_id(1))], lineage: 0 }).await.unwrap();
    second_piece_fails(&from);
    to.client.copy(copy_of(&meta, &[&from])).await.unwrap_err();
    to.restart().await;
    assert!(to.files().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_one_source_got_wrong_is_not_kept_when_another_one_has_all_of_it() {
    let (mut bad, mut good, mut to) = (Node::start().await, Node::start().await, Node::start().await);
    let model = several_pieces();
    let meta = bad.ingest(sst_id(1), &model).await.unwrap();
    good.ingest(sst_id(1), &model).await.unwrap();
    // Nobody has noticed yet.
    let path = bad.config.data_dir.join(format!("{}.sst", sst_id(1)));
    bad.vfs.flip_bit(&path, 1000, 3).unwrap();
    second_piece_fails(&bad);
    to.client.copy(copy_of(&meta, &[&bad, &good])).await.unwrap();
    assert_eq!(to.inventory().await, good.inventory().await);
    assert_eq!(to.files().len(), 1);
}
