use sextant_common::ErrorKind;
use sextant_environment::env::error_of;
use sextant_environment::vfs::OpenMode;

use super::transfer::copy_of;
use super::*;
use crate::table::footer::{TRAILER_BYTES, Trailer};
use crate::testing::sst_id;

/// Two servers with the same table.
async fn pair() -> (Node, Node, SstMeta, Model) {
    let (mut good, mut bad) = (Node::start().await, Node::start().await);
    let model = model(3000, 1);
    let meta = good.ingest(sst_id(1), &model).await.unwrap();
    assert_eq!(bad.ingest(sst_id(1), &model).await.unwrap(), meta);
    (good, bad, meta, model)
}

fn trailer(node: &Node, meta: &SstMeta) -> Trailer {
    let bytes = sextant_environment::vfs::read_file(&node.vfs, &node.path(meta.id)).unwrap();
    Trailer::parse(&bytes[bytes.len() - TRAILER_BYTES..], meta.file_bytes).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_block_is_corrupt_by_name_and_repaired_by_a_copy() {
    let (good, mut bad, meta, model) = pair().await;
    bad.vfs.flip_bit(&bad.path(sst_id(1)), 100, 3).unwrap();
    let reply = bad.get(&[sst_id(1)], &key(0)).await;
    assert_eq!((reply.status(), reply.candidate), (GetStatus::GetCorrupt, 0));
    assert!(
        reply.message.contains(&sst_id(1).to_string()) && reply.message.contains("offset 0"),
        "{}",
        reply.message
    );
    assert_eq!(bad.scan_all(&[sst_id(1)]).await.status(), GetStatus::GetCorrupt);
    // Other blocks still answer, and the damage is reported.
    assert_eq!(bad.get(&[sst_id(1)], &key(2998)).await.status(), GetStatus::GetValue);
    assert!(bad.inventory().await[0].damaged);
    // It is not given to others.
    let fetch = FetchRequest { id: sst_id_to_wire(sst_id(1)), offset: 0 };
    assert_eq!(error_of(bad.client.fetch(fetch).await.unwrap_err()).kind, ErrorKind::Corrupt);

    // A copy of anything else than what the table was does not replace it.
    let wrong = CopyRequest { checksum: meta.checksum ^ 1, ..copy_of(&meta, &[&good]) };
    bad.client.copy(wrong).await.unwrap_err();
    assert!(bad.inventory().await[0].damaged);
    bad.client.copy(copy_of(&meta, &[&good])).await.unwrap();
    assert!(!bad.inventory().await[0].damaged);
    bad.assert_holds(sst_id(1), &model).await;
    bad.crash().await;
    bad.assert_holds(sst_id(1), &model).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_cannot_be_opened_is_reported_and_repaired() {
    let (good, mut bad, meta, model) = pair().await;
    let at = trailer(&bad, &meta);
    for offset in [at.index.offset + 2, at.meta.offset + 3, meta.file_bytes - 60, meta.file_bytes - 1] {
        bad.vfs.flip_bit(&bad.path(sst_id(1)), offset, 0).unwrap();
        bad.restart().await;
        assert_eq!(bad.get(&[sst_id(1)], &key(0)).await.status(), GetStatus::GetCorrupt);
        assert_eq!(bad.scan_all(&[sst_id(1)]).await.status(), GetStatus::GetCorrupt);
        let entry = &bad.inventory().await[0];
        assert!(entry.damaged && entry.id == sst_id_to_wire(sst_id(1)));
        bad.client.copy(copy_of(&meta, &[&good])).await.unwrap();
        assert!(!bad.inventory().await[0].damaged);
        bad.assert_holds(sst_id(1), &model).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_filter_heals_itself() {
    let (_, mut node, meta, model) = pair().await;
    let at = trailer(&node, &meta);
    node.vfs.flip_bit(&node.path(sst_id(1)), at.filter.offset + 50, 1).unwrap();
    node.restart().await;
    assert!(!node.inventory().await[0].damaged);
    node.assert_holds(sst_id(1), &model).await;
    assert_eq!(node.server.as_ref().unwrap().scrub_now().await, 0, "the file is sound again");
    let request = FetchFilterRequest { id: sst_id_to_wire(sst_id(1)) };
    assert!(node.client.fetch_filter(request).await.is_ok());
    assert_eq!(node.files().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rebuilt_filter_serves_from_memory_if_the_file_cannot_be_written() {
    let (good, mut node, meta, model) = pair().await;
    let at = trailer(&node, &meta);
    node.vfs.flip_bit(&node.path(sst_id(1)), at.filter.offset + 50, 1).unwrap();
    node.vfs.set_capacity(Some(node.vfs.used_bytes() + 1000));
    node.restart().await;
    assert!(node.inventory().await[0].damaged, "another replica's file is wanted");
    node.assert_holds(sst_id(1), &model).await;
    for i in [0, 1500, 2999] {
        assert_ne!(node.get(&[sst_id(1)], &key(i)).await.status(), GetStatus::GetCorrupt);
    }
    let request = FetchFilterRequest { id: sst_id_to_wire(sst_id(1)) };
    assert!(node.client.fetch_filter(request).await.is_ok());
    node.vfs.set_capacity(None);
    node.client.copy(copy_of(&meta, &[&good])).await.unwrap();
    assert!(!node.inventory().await[0].damaged);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_filter_over_damaged_data_answers_what_can_be_verified() {
    let (good, mut node, meta, model) = pair().await;
    let at = trailer(&node, &meta);
    node.vfs.flip_bit(&node.path(sst_id(1)), at.filter.offset + 50, 1).unwrap();
    node.vfs.flip_bit(&node.path(sst_id(1)), 40, 1).unwrap();
    node.restart().await;
    assert!(node.inventory().await[0].damaged);
    assert_eq!(node.get(&[sst_id(1)], &key(0)).await.status(), GetStatus::GetCorrupt);
    assert_eq!(node.get(&[sst_id(1)], &key(2998)).await.status(), GetStatus::GetValue);
    let request = FetchFilterRequest { id: sst_id_to_wire(sst_id(1)) };
    assert_eq!(error_of(node.client.fetch_filter(request).await.unwrap_err()).kind, ErrorKind::Corrupt);
    node.client.copy(copy_of(&meta, &[&good])).await.unwrap();
    node.assert_holds(sst_id(1), &model).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn verification_finds_damage_that_nobody_read() {
    let (good, mut node, meta, _) = pair().await;
    assert_eq!(node.server.as_ref().unwrap().scrub_now().await, 0);
    for offset in [0, meta.file_bytes / 2, meta.file_bytes - 20, meta.file_bytes - 8, meta.file_bytes - 1] {
        node.vfs.flip_bit(&node.path(sst_id(1)), offset, 5).unwrap();
        assert!(!node.inventory().await[0].damaged);
        assert_eq!(node.server.as_ref().unwrap().scrub_now().await, 1, "{offset}");
        assert!(node.inventory().await[0].damaged);
        node.client.copy(copy_of(&meta, &[&good])).await.unwrap();
    }
    node.vfs.flip_bit(&node.path(sst_id(1)), 0, 5).unwrap();
    assert_eq!(node.server.as_ref().unwrap().scrub_now().await, 1);
    let status: serde_json::Value =
        serde_json::from_str(&node.server.as_ref().unwrap().status_json()).unwrap();
    assert_eq!(status["damaged"][0], sst_id(1).to_string());
}

/// What the status says about the one damaged table.
fn reported(node: &Node) -> String {
    let status: serde_json::Value =
        serde_json::from_str(&node.server.as_ref().unwrap().status_json()).unwrap();
    assert_eq!(status["damaged_tables"], 1, "{status}");
    status["damage"][0]["error"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn verification_names_the_place() {
    let (good, mut node, meta, _) = pair().await;
    let at = trailer(&node, &meta);
    let trailer_at = meta.file_bytes - TRAILER_BYTES as u64;
    for (offset, named) in [
        (7, "offset 0: checksum mismatch".to_owned()),
        (at.index.offset + 5, format!("offset {}: index", at.index.offset)),
        (at.filter.offset + 5, format!("offset {}: filter", at.filter.offset)),
        (at.meta.offset + 5, format!("offset {}: meta section", at.meta.offset)),
        (meta.file_bytes - 50, format!("offset {trailer_at}: trailer")),
        (meta.file_bytes - 2, format!("offset {trailer_at}: trailer")),
    ] {
        node.vfs.flip_bit(&node.path(sst_id(1)), offset, 5).unwrap();
        assert_eq!(node.server.as_ref().unwrap().scrub_now().await, 1, "{offset}");
        let error = reported(&node);
        assert!(error.contains(&sst_id(1).to_string()) && error.contains(&named), "{offset}: {error}");
        node.client.copy(copy_of(&meta, &[&good])).await.unwrap();
        assert_eq!(node.server.as_ref().unwrap().scrub_now().await, 0);
    }
}

/// A read beyond the end of a file is damage, not a disk that did not answer this time: it was passed over.
#[tokio::test(flavor = "multi_thread")]
async fn verification_finds_a_file_that_was_cut() {
    let (good, mut node, meta, model) = pair().await;
    let (half, trailer_at) = (meta.file_bytes / 2, meta.file_bytes - TRAILER_BYTES as u64);
    for (end, named) in [
        (half, format!("offset {half}: the file ends here")),
        (meta.file_bytes - 3, format!("offset {trailer_at}: trailer")),
        (0, "offset 0: the file ends here".into()),
    ] {
        node.vfs.open(&node.path(sst_id(1)), OpenMode::Existing).unwrap().set_len(end).unwrap();
        assert_eq!(node.server.as_ref().unwrap().scrub_now().await, 1);
        let error = reported(&node);
        assert!(error.contains(&named), "{error}");
        node.client.copy(copy_of(&meta, &[&good])).await.unwrap();
        node.assert_holds(sst_id(1), &model).await;
    }
}

/// The open file goes on answering; but after a restart it would be gone.
#[tokio::test(flavor = "multi_thread")]
async fn verification_finds_a_file_that_was_removed() {
    let (good, mut node, meta, model) = pair().await;
    node.vfs.remove_file(&node.path(sst_id(1))).unwrap();
    assert_eq!(node.server.as_ref().unwrap().scrub_now().await, 1);
    assert!(reported(&node).contains("removed"), "{}", reported(&node));
    node.assert_holds(sst_id(1), &model).await;
    node.client.copy(copy_of(&meta, &[&good])).await.unwrap();
    assert_eq!(node.server.as_ref().unwrap().scrub_now().await, 0);
    node.restart().await;
    node.assert_holds(sst_id(1), &model).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_background_verification_runs_by_itself() {
    let (_, mut node, meta, _) = pair().await;
    node.vfs.flip_bit(&node.path(sst_id(1)), meta.file_bytes / 2, 5).unwrap();
    node.config.scrub_interval_s = 1;
    node.restart().await;
    while !node.inventory().await[0].damaged {
        tokio::task::yield_now().await;
    }
}
