//! Three memtable servers over real sockets: elections, writes, reads, leases, restarts.

mod configuration;
mod format;
mod servers;
#[path = "../support/mod.rs"]
mod support;

use std::path::Path;
use std::sync::Arc;

use sextant_environment::Env;
use sextant_environment::config::LeaseConfig;
use sextant_environment::vfs::IoKind;
use sextant_memtable_server::Tuning;
use sextant_proto::v1;
use sextant_simulated::{Fault, FaultyVfs};

use servers::*;
use support::eventually;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_are_read_and_survive_a_restart_of_everything() {
    let mut c = Cluster::start(2).await;
    for partition in 0..2 {
        c.create_table(partition).await;
        for i in 0..50 {
            let reply = c.write(put(partition, &format!("k{i}"), &format!("v{i}"))).await;
            assert_eq!(reply.status(), v1::WriteStatus::WriteOk, "{reply:?}");
        }
    }
    let reply = c.read(1, "k7").await;
    assert_eq!((reply.status(), &reply.value[..]), (v1::ReadStatus::ReadValue, &b"v7"[..]));
    assert_eq!(c.read(1, "k99").await.status(), v1::ReadStatus::ReadNoEntry);
    for i in 0..3 {
        c.stop_one(i).await;
    }
    for i in 0..3 {
        c.start_one(i).await;
    }
    for partition in 0..2 {
        for i in 0..50 {
            let reply = c.read(partition, &format!("k{i}")).await;
            assert_eq!(reply.value, bytes(&format!("v{i}")), "{reply:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_leader_is_replaced_and_nothing_acknowledged_is_lost() {
    let mut c = Cluster::start(1).await;
    c.create_table(0).await;
    for i in 0..20 {
        c.write(put(0, &format!("k{i}"), "before")).await;
    }
    let first = c.leader(0).await;
    c.stop_one(first).await;
    for i in 20..40 {
        let reply = c.write(put(0, &format!("k{i}"), "after")).await;
        assert_eq!(reply.status(), v1::WriteStatus::WriteOk);
    }
    assert_ne!(c.leader(0).await, first);
    for i in 0..40 {
        let want = if i < 20 { "before" } else { "after" };
        assert_eq!(c.read(0, &format!("k{i}")).await.value, bytes(want));
    }
    c.start_one(first).await;
    let second = c.leader(0).await;
    c.stop_one(second).await;
    assert_eq!(
        c.read(0, "k39").await.value,
        bytes("after"),
        "the one that came back has caught up or follows"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retry_under_the_same_session_and_number_takes_effect_once() {
    let mut c = Cluster::start(1).await;
    c.create_table(0).await;
    c.open_session(77).await;
    let leader = c.leader(0).await;
    let base = v1::Base { manifest_version: u64::MAX, ..Default::default() };
    let insert = |number| {
        let mut request = put(0, "k", "v");
        (request.session, request.request_no) = (77, number);
        request.ops[0].condition = v1::Condition::Absent.into();
        request.ops[0].base = Some(base.clone());
        request
    };
    let first = c.write(insert(1)).await;
    assert_eq!(first.status(), v1::WriteStatus::WriteOk);
    c.stop_one(leader).await;
    let again = c.write(insert(1)).await;
    assert_eq!(again, first, "also after a failover");
    let failed = c.write(insert(2)).await;
    assert_eq!(failed.status(), v1::WriteStatus::WriteConditionFailed);
    // A copy of the failed one that comes late, when its condition would hold, at yet another leader: still failed.
    let mut delete = put(0, "k", "");
    delete.ops[0].kind = v1::WriteKind::WriteDelete.into();
    assert_eq!(c.write(delete).await.status(), v1::WriteStatus::WriteOk);
    c.start_one(leader).await;
    let second = c.leader(0).await;
    c.stop_one(second).await;
    assert_eq!(c.write(insert(2)).await, failed);
    assert_eq!(c.read(0, "k").await.status(), v1::ReadStatus::ReadTombstone);
    let mut stranger = insert(1);
    stranger.session = 78;
    assert_eq!(c.write(stranger).await.status(), v1::WriteStatus::WriteUnknownSession);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_wrote_nothing_do_not_hold_the_log() {
    // Failed conditions of sessions are entries too, and no memtable ever holds anything that would be flushed.
    let tuning = Tuning {
        log_segment_bytes: 4 << 20,
        freeze_log_bytes: 64 << 10,
        log_entries_kept: 0,
        ..Tuning::default()
    };
    let c = Cluster::start_with(1, tuning).await;
    c.create_table(0).await;
    c.open_session(77).await;
    let mut number = 0;
    let mut persisted_before = 0;
    // Twice, so that it is not the first freeze only.
    for _ in 0..2 {
        persisted_before = eventually(async || {
            for _ in 0..50 {
                number += 1;
                c.write_nothing(77, number).await;
            }
            // On followers too.
            let persisted = |i| c.status(i)["partitions"][0]["persisted_index"].as_u64().unwrap();
            let least = (0..3).map(persisted).min().unwrap();
            (least > persisted_before + 20).then_some(least)
        })
        .await;
    }
    let last = c.status(c.leader(0).await)["partitions"][0]["last_index"].as_u64().unwrap();
    assert!(persisted_before <= last);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partition_in_which_nothing_happens_does_not_hold_the_log_of_all() {
    let tuning = Tuning {
        log_segment_bytes: 4 << 20,
        freeze_log_bytes: 32 << 10,
        log_bytes_kept: 32 << 10,
        ..Tuning::default()
    };
    let kept = tuning.log_entries_kept;
    let c = Cluster::start_with(2, tuning).await;
    c.create_table(0).await;
    c.create_table(1).await;
    c.open_session(77).await;
    let number = |i: usize, partition: usize, name: &str| c.status(i)["partitions"][partition][name].as_u64();
    let quiet_before = number(c.leader(1).await, 1, "last_index").unwrap();
    let mut no = 0;
    eventually(async || {
        for _ in 0..20 {
            no += 1;
            c.write_nothing(77, no).await;
        }
        let is_purged = |i| number(i, 1, "purged_index").is_some_and(|purged| purged >= quiet_before);
        (0..3).all(is_purged).then_some(())
    })
    .await;
    let last = number(c.leader(1).await, 1, "last_index").unwrap();
    assert!(last < kept, "by their number all its entries are kept: {last}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_whose_disk_is_full_refuses_a_snapshot_and_takes_it_when_there_is_room() {
    // The error of its disk ended the replica's Raft, and so the process, and again after each start.
    let tuning = Tuning {
        log_segment_bytes: 4 << 20,
        freeze_log_bytes: 64 << 10,
        log_entries_kept: 0,
        ..Tuning::default()
    };
    let disks: Vec<FaultyVfs> = (0..3).map(FaultyVfs::new).collect();
    let envs = disks.iter().map(|disk| Env { vfs: Arc::new(disk.clone()), ..Env::real() });
    let mut c = Cluster::start_on(envs.collect(), 1, tuning, LeaseConfig::default()).await;
    c.create_table(0).await;
    let leader = c.leader(0).await;
    let number = |c: &Cluster, i: usize, name: &str| c.status(i)["partitions"][0][name].as_u64();
    let lagging = (leader + 1) % 3;
    let had = number(&c, lagging, "last_index").unwrap();
    c.stop_one(lagging).await;

    // The others go on until they could not bring it up to date without a snapshot.
    c.open_session(77).await;
    let mut no = 0;
    eventually(async || {
        for _ in 0..50 {
            no += 1;
            c.write_nothing(77, no).await;
        }
        let others = (0..3).filter(|i| *i != lagging);
        others.map(|i| number(&c, i, "purged_index")).all(|purged| purged > Some(had + 1)).then_some(())
    })
    .await;

    // Full for anything as large as a snapshot.
    let is_snapshot = |path: &Path| path.to_string_lossy().contains(".snapshot");
    disks[lagging].fail_next(IoKind::Write, u64::MAX, Fault::NoSpace, is_snapshot);
    c.start_one(lagging).await;
    eventually(async || {
        let refused = c.servers[lagging].as_ref().unwrap().metrics().snapshots_refused.get();
        (refused >= 2).then_some(())
    })
    .await;
    let installed = |c: &Cluster| c.servers[lagging].as_ref().unwrap().metrics().snapshots_installed.get();
    assert_eq!(installed(&c), 0);
    assert_eq!(c.write(put(0, "meanwhile", "v")).await.status(), v1::WriteStatus::WriteOk);

    disks[lagging].clear_faults();
    let newest = number(&c, c.leader(0).await, "last_index");
    eventually(async || (number(&c, lagging, "last_index") >= newest).then_some(())).await;
    assert!(installed(&c) >= 1);
    // It is a follower like any other: a majority with one of the two, and after a restart too.
    c.stop_one(lagging).await;
    c.start_one(lagging).await;
    let gone = c.leader(0).await;
    c.stop_one(if gone == lagging { (lagging + 1) % 3 } else { gone }).await;
    assert_eq!(c.write(put(0, "after", "v")).await.status(), v1::WriteStatus::WriteOk);
    assert_eq!(c.read(0, "meanwhile").await.value, bytes("v"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_majority_nothing_is_acknowledged_and_no_read_is_answered() {
    let mut c = Cluster::start(1).await;
    c.create_table(0).await;
    c.write(put(0, "k", "v")).await;
    let leader = c.leader(0).await;
    for i in (0..3).filter(|i| *i != leader) {
        c.stop_one(i).await;
    }
    eventually(async || {
        let serving = c.status(leader)["partitions"][0]["serving"].as_bool();
        (serving == Some(false)).then_some(())
    })
    .await;
    let read = v1::ReadRequest {
        partition: 0,
        table: 1,
        key: bytes("k"),
        manifest_version: u64::MAX,
        register: false,
    };
    let batch = v1::ReadBatch { reads: vec![read], ..Default::default() };
    let reply = eventually(async || {
        let reply = c.rows(leader).read(batch.clone()).await.ok()?;
        Some(reply.into_inner().replies.remove(0))
    })
    .await;
    assert!(
        matches!(reply.status(), v1::ReadStatus::ReadNotLeader | v1::ReadStatus::ReadNotReady),
        "no stale answer: {reply:?}"
    );
}
