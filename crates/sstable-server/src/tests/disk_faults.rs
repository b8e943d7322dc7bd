use std::path::Path;

use sextant_common::ErrorKind;
use sextant_environment::vfs::IoKind;
use sextant_simulated::{CrashMode, Fault};

use super::transfer::copy_of;
use super::*;
use crate::testing::sst_id;

fn is_table(path: &Path) -> bool {
    path.extension().is_some_and(|e| e == "tmp" || e == "sst")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_refuses_the_table_and_the_server_goes_on() {
    let mut node = Node::start().await;
    let (small, large) = (model(100, 1), model(20_000, 1));
    node.ingest(sst_id(1), &small).await.unwrap();
    node.vfs.set_capacity(Some(node.vfs.used_bytes() + 20_000));
    let error = node.ingest(sst_id(2), &large).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Disk, "{error}");
    assert_eq!(node.files().len(), 1);
    node.assert_holds(sst_id(1), &small).await;
    node.vfs.set_capacity(None);
    node.ingest(sst_id(2), &large).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_sync_acknowledges_nothing_and_leaves_no_file() {
    let mut node = Node::start().await;
    let model = model(100, 1);
    // Of the file, then of the directory.
    for paths in [is_table, |path: &Path| path == Path::new("/data")] {
        node.vfs.fail_next(IoKind::Sync, 1, Fault::Io, paths);
        let error = node.ingest(sst_id(1), &model).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Disk, "{error}");
        assert!(node.files().is_empty());
        assert_eq!(node.get(&[sst_id(1)], &key(1)).await.status(), GetStatus::GetTableGone);
    }
    node.ingest(sst_id(1), &model).await.unwrap();
    node.crash().await;
    node.assert_holds(sst_id(1), &model).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_error_is_an_error_of_that_read() {
    let mut node = Node::with(FaultyVfs::new(1), |c| c.block_cache_bytes = Some(0)).await;
    node.ingest(sst_id(1), &model(100, 1)).await.unwrap();
    node.vfs.fail_next(IoKind::Read, 1, Fault::Io, is_table);
    let reply = node.get(&[sst_id(1)], &key(0)).await;
    assert_eq!(reply.status(), GetStatus::GetIoError);
    assert!(reply.message.contains(&sst_id(1).to_string()), "{}", reply.message);
    assert_eq!(node.get(&[sst_id(1)], &key(0)).await.status(), GetStatus::GetValue);
    assert!(!node.inventory().await[0].damaged);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_disk_does_not_return_twice_is_damage_that_verification_finds() {
    let mut node = Node::with(FaultyVfs::new(1), |_| {}).await;
    node.ingest(sst_id(1), &model(100, 1)).await.unwrap();
    // A bad moment is none.
    node.vfs.fail_next(IoKind::Read, 1, Fault::Io, is_table);
    assert_eq!(node.server.as_ref().unwrap().scrub_now().await, 0);
    assert!(!node.inventory().await[0].damaged);
    // Nor is a disk that is away: it takes nothing either.
    node.vfs.fail_next(IoKind::Read, 2, Fault::Io, is_table);
    node.vfs.fail_next(IoKind::Sync, 1, Fault::Io, |_| true);
    assert_eq!(node.server.as_ref().unwrap().scrub_now().await, 0);
    assert!(!node.inventory().await[0].damaged);
    // One that is full is there.
    node.vfs.fail_next(IoKind::Read, 2, Fault::Io, is_table);
    node.vfs.fail_next(IoKind::Write, 1, Fault::NoSpace, |_| true);
    assert_eq!(node.server.as_ref().unwrap().scrub_now().await, 1);
    assert!(node.inventory().await[0].damaged, "the leader has it copied again");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_takes_nothing_and_returns_another_table_is_there() {
    let mut node = Node::with(FaultyVfs::new(1), |_| {}).await;
    for id in [sst_id(1), sst_id(2)] {
        node.ingest(id, &model(100, 1)).await.unwrap();
    }
    let damaged = async |node: &mut Node| node.inventory().await.iter().filter(|t| t.damaged).count();
    // Twice the piece, then the other table.
    node.vfs.fail_next(IoKind::Read, 3, Fault::Io, is_table);
    node.vfs.fail_next(IoKind::Write, 1, Fault::Io, |_| true);
    assert_eq!(node.server.as_ref().unwrap().scrub_now().await, 0);
    assert_eq!(damaged(&mut node).await, 0, "all of it is away");
    node.vfs.fail_next(IoKind::Read, 2, Fault::Io, is_table);
    node.vfs.fail_next(IoKind::Write, 1, Fault::Io, |_| true);
    assert_eq!(node.server.as_ref().unwrap().scrub_now().await, 1, "it is at its end");
    assert_eq!(damaged(&mut node).await, 1);
}

/// Power fails at every write and sync of an ingest, a copy and a delete in turn.
#[tokio::test(flavor = "multi_thread")]
async fn a_crash_anywhere_leaves_whole_tables_or_none() {
    let mut source = Node::start().await;
    let (kept, model) = (model(50, 1), model(400, 1));
    let meta = source.ingest(sst_id(1), &model).await.unwrap();
    for mode in [CrashMode::LoseAll, CrashMode::TearWrites, CrashMode::TearAll] {
        for operation in 1.. {
            let vfs = FaultyVfs::new(operation);
            vfs.set_crash_mode(mode);
            let mut node = Node::with(vfs, |_| {}).await;
            node.ingest(sst_id(9), &kept).await.unwrap();
            node.vfs.cut_power_at(operation);
            let ingested = node.ingest(sst_id(1), &model).await.is_ok();
            let copied = ingested && {
                let request = CopyRequest { id: sst_id_to_wire(meta.id), ..copy_of(&meta, &[&source]) };
                let delete = DeleteRequest { ids: vec![sst_id_to_wire(sst_id(1))], lineage: 0 };
                node.client.delete(delete).await.is_ok() && node.client.copy(request).await.is_ok()
            };
            let finished = node.vfs.has_power();
            node.crash().await;
            let inventory = node.inventory().await;
            assert!(inventory.iter().all(|e| !e.damaged), "{mode:?} {operation}");
            assert!(node.files().iter().all(|name| name.ends_with(".sst")), "{mode:?} {operation}");
            node.assert_holds(sst_id(9), &kept).await;
            let here = inventory.iter().any(|e| e.id == sst_id_to_wire(sst_id(1)));
            assert!(here || !copied, "{mode:?} {operation}: an acknowledged table is lost");
            if here {
                node.assert_holds(sst_id(1), &model).await;
            }
            if finished {
                assert!(copied && operation > 8, "{operation}");
                break;
            }
        }
    }
}
