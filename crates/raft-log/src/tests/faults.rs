//! Disks that fail or fill up.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use openraft::storage::RaftLogStorage;
use openraft::type_config::TypeConfigExt;
use sextant_common::ErrorKind;
use sextant_common::ids::PartitionId;
use sextant_environment::vfs::IoKind;
use sextant_simulated::{CrashMode, Fault, ManualClock};

use crate::{Entry, IoFlushed, TypeConfig, Vote};

use super::support::{Server, all, append, marked};

#[tokio::test]
async fn a_failed_fsync_or_write_is_fatal_and_nothing_is_acknowledged_after_it() {
    for (kind, devices) in [(IoKind::Sync, 1), (IoKind::Write, 1), (IoKind::Sync, 2)] {
        let server = Server::with_devices(1, devices);
        server.vfs.set_crash_mode(CrashMode::LoseAll);
        let log = server.open().await.unwrap();
        let mut handle = log.partition(PartitionId(0));
        append(&handle, vec![marked(0, 1, 1, 100)]).await.unwrap();
        server.vfs.fail_next(kind, 1, Fault::Io, |path| path.extension().is_some_and(|e| e == "log"));
        let mut waiting = Vec::new();
        let mut last = 1;
        // Until the failure is noticed; some may have been taken before.
        loop {
            let (done, waiter) = TypeConfig::oneshot::<io::Result<()>>();
            if handle.append([marked(0, 1, last + 1, 100)], IoFlushed::signal(done)).await.is_err() {
                break;
            }
            last += 1;
            waiting.push(waiter);
            tokio::task::yield_now().await;
        }
        for waiter in waiting {
            assert!(waiter.await.unwrap().is_err());
        }
        assert!(handle.save_vote(&Vote::new(9, 1)).await.is_err());
        assert!(handle.truncate_after(None).await.is_err());
        assert!(handle.purge(crate::log_id(1, 1)).await.is_err());
        log.shutdown().await;
        assert!(log.stats().failed);
        assert_eq!(log.check_room(1).unwrap_err().kind, ErrorKind::Disk);
        let fatals = server.fatals.0.lock().clone();
        assert_eq!(fatals.len(), 1, "{fatals:?}");
        assert!(fatals[0].contains("/segment-000001.log") && fatals[0].contains("os error 5"), "{fatals:?}");
        server.vfs.crash();
        let log = server.open().await.unwrap();
        // What the other device had may be there: it was never acknowledged, but nothing says that it must go.
        let found = all(&log.partition(PartitionId(0))).await;
        assert!(found.len() == 1 || devices == 2 && !found.is_empty());
        let expected: Vec<Entry> = (1..=found.len() as u64).map(|i| marked(0, 1, i, 100)).collect();
        assert_eq!(found, expected);
        log.shutdown().await;
    }
}

#[tokio::test]
async fn a_file_for_later_that_cannot_be_written_is_fatal_too_but_not_one_that_cannot_be_created() {
    // Creating a file is the first write of its path.
    for (kind, failing, is_fatal) in
        [(IoKind::Write, 0, false), (IoKind::Write, 1, true), (IoKind::Sync, 0, true)]
    {
        let mut server = Server::new(1);
        server.at_once = true;
        server.config.segment_bytes = 1 << 20;
        let log = server.open().await.unwrap();
        let seen = AtomicUsize::new(0);
        server.vfs.fail_next(kind, 1, Fault::Io, move |path| {
            path.ends_with("segment-000002.log") && seen.fetch_add(1, Ordering::Relaxed) == failing
        });
        let handle = log.partition(PartitionId(0));
        let mut last = 0;
        while last < 6 && append(&handle, vec![marked(0, 1, last + 1, 100_000)]).await.is_ok() {
            last += 1;
        }
        log.shutdown().await;
        assert_eq!(server.fatals.0.lock().len(), usize::from(is_fatal), "{kind:?} {failing}");
        assert_eq!(last == 6, !is_fatal, "{kind:?} {failing}");
    }
}

/// After a failed fsync the kernel shows pages that never reach the disk: recovery must not believe them.
#[tokio::test]
async fn what_a_failed_fsync_left_in_the_page_cache_is_made_durable_before_it_counts() {
    for seed in 0..20 {
        let server = Server::new(seed);
        let log = server.open().await.unwrap();
        let handle = log.partition(PartitionId(0));
        append(&handle, vec![marked(0, 1, 1, 100)]).await.unwrap();
        server.vfs.fail_next(IoKind::Sync, 1, Fault::Io, |path| path.extension().is_some_and(|e| e == "log"));
        append(&handle, vec![marked(0, 1, 2, 2000)]).await.unwrap_err();
        server.kill(log).await;
        let log = server.open().await.unwrap();
        let found = all(&log.partition(PartitionId(0))).await;
        assert_eq!(found.len(), 2, "the page cache has it");
        server.crash(log).await;
        let log = server.open().await.unwrap();
        assert_eq!(all(&log.partition(PartitionId(0))).await, found, "seed {seed}");
        log.shutdown().await;
    }
}

#[tokio::test]
async fn a_full_disk_refuses_appends_before_it_takes_them() {
    let mut server = Server::new(1);
    server.at_once = true;
    server.config.segment_bytes = 1 << 20;
    // Room for the first segment only.
    server.vfs.set_capacity(Some((1 << 20) + 1000));
    let log = server.open().await.unwrap();
    let mut handle = log.partition(PartitionId(0));
    let mut last = 0;
    let refused = loop {
        match append(&handle, vec![marked(0, 1, last + 1, 10_000)]).await {
            Ok(()) => last += 1,
            Err(e) => break e,
        }
    };
    assert!(refused.contains("no space left"), "{refused}");
    assert!(refused.contains("another segment needs 1048576 bytes"), "{refused}");
    assert!((80..105).contains(&last), "{last}");
    assert!(server.fatals.0.lock().is_empty(), "{:?}", server.fatals.0.lock());
    let error = log.check_room(100_000).unwrap_err();
    assert!(error.kind == ErrorKind::Disk && error.message.contains("no space"), "{error}");
    // Votes, and what frees space, still work.
    handle.save_vote(&Vote::new(5, 1)).await.unwrap();
    let expected: Vec<Entry> = (1..=last).map(|i| marked(0, 1, i, 10_000)).collect();
    assert_eq!(all(&handle).await, expected);
    log.shutdown().await;
    server.vfs.set_capacity(None);
    let log = server.open().await.unwrap();
    let handle = log.partition(PartitionId(0));
    assert_eq!(all(&handle).await, expected);
    append(&handle, vec![marked(0, 1, last + 1, 100_000)]).await.unwrap();
    log.shutdown().await;
    assert!(server.fatals.0.lock().is_empty());
}

#[tokio::test]
async fn reserved_room_is_kept_for_the_append_that_reserved_it() {
    let mut server = Server::new(1);
    server.at_once = true;
    server.config.segment_bytes = 1 << 20;
    server.vfs.set_capacity(Some((1 << 20) + 1000));
    let log = server.open().await.unwrap();
    let handle = log.partition(PartitionId(0));
    let mut last = 0;
    // Until the disk was found full, and something less than the segment is left.
    while log.check_room(600_000).is_ok() {
        last += 1;
        append(&handle, vec![marked(0, 1, last, 10_000)]).await.unwrap();
    }
    // To within a kibibyte.
    let room = (0..600).rev().map(|kib| kib << 10).find(|bytes| log.check_room(*bytes).is_ok()).unwrap();
    assert!(room > 300_000, "{room}");
    let reserved = log.reserve(1, room - 20_000, 0).unwrap();
    let error = log.reserve(1, 22_000, 0).unwrap_err();
    assert!(error.kind == ErrorKind::Disk && error.message.contains("no space"), "{error}");
    assert!(log.check_room(22_000).is_err() && log.check_room(10_000).is_ok());
    // Spare room must be there, but is not taken.
    assert!(log.reserve(1, 1, 22_000).is_err());
    drop(log.reserve(1, 1, 10_000).unwrap());
    append(&handle, vec![marked(0, 1, last + 1, room as usize - 20_000)]).await.unwrap();
    drop(reserved);
    drop(log.reserve(1, 1_000, 1_000).unwrap());
    append(&handle, vec![marked(0, 1, last + 2, 1_000)]).await.unwrap();
    log.shutdown().await;
    assert!(server.fatals.0.lock().is_empty());
}

#[tokio::test]
async fn a_purge_makes_room_on_a_full_disk() {
    let mut server = Server::new(1);
    server.at_once = true;
    server.config.segment_bytes = 256 << 10;
    server.vfs.set_capacity(Some(3 * (256 << 10) + 1000));
    let log = server.open().await.unwrap();
    let mut handle = log.partition(PartitionId(0));
    let mut last = 0;
    for _ in 0..5 {
        let from = last;
        while append(&handle, vec![marked(0, 1, last + 1, 10_000)]).await.is_ok() {
            last += 1;
        }
        // The segment in use, and later the two that the purge has freed.
        assert!(last > from + 10, "{from} {last}");
        assert!(server.fatals.0.lock().is_empty(), "{:?}", server.fatals.0.lock());
        handle.purge(crate::log_id(1, last)).await.unwrap();
        // Until the worker has found the segments free.
        while log.check_room(100_000).is_err() {
            tokio::task::yield_now().await;
        }
    }
    server.crash(log).await;
    assert!(server.fatals.0.lock().iter().all(|f| !f.contains("space")), "{:?}", server.fatals.0.lock());
    let log = server.open().await.unwrap();
    append(&log.partition(PartitionId(0)), vec![marked(0, 1, last + 1, 10)]).await.unwrap();
    log.shutdown().await;
}

#[tokio::test]
async fn segments_that_were_given_back_do_not_keep_a_disk_full_on_which_there_is_space_again() {
    let clock = Arc::new(ManualClock::default());
    let mut server = Server::new(1);
    (server.at_once, server.clock) = (true, clock.clone());
    server.config.segment_bytes = 256 << 10;
    server.vfs.set_capacity(Some(3 * (256 << 10) + 1000));
    let log = server.open().await.unwrap();
    let mut handle = log.partition(PartitionId(0));
    let mut last = 0;
    while append(&handle, vec![marked(0, 1, last + 1, 10_000)]).await.is_ok() {
        last += 1;
    }
    handle.purge(crate::log_id(1, last)).await.unwrap();
    while log.check_room(100_000).is_err() {
        tokio::task::yield_now().await;
    }
    // One file is certain, whatever else there may be.
    const MORE_THAN_A_SEGMENT: u64 = 400_000;
    assert!(log.check_room(MORE_THAN_A_SEGMENT).is_err());
    server.vfs.set_capacity(None);
    clock.advance(Duration::from_secs(10));
    let mut tries = 0;
    while log.check_room(MORE_THAN_A_SEGMENT).is_err() {
        (last, tries) = (last + 1, tries + 1);
        assert!(tries < 1000, "it still counts as full");
        append(&handle, vec![marked(0, 1, last, 10)]).await.unwrap();
    }
    log.shutdown().await;
    assert!(server.fatals.0.lock().is_empty());
}

#[tokio::test]
async fn dropping_the_last_handle_closes_the_log() {
    let server = Server::new(1);
    let log = server.open().await.unwrap();
    let mut handle = log.partition(PartitionId(0));
    let (done, waiter) = TypeConfig::oneshot::<io::Result<()>>();
    handle.append([marked(0, 1, 1, 100)], IoFlushed::signal(done)).await.unwrap();
    drop((log, handle));
    waiter.await.unwrap().unwrap();
    // The lock is free once the worker has ended.
    let log = loop {
        match server.open().await {
            Ok(log) => break log,
            Err(e) => assert!(e.message.contains("in use"), "{e}"),
        }
        tokio::task::yield_now().await;
    };
    assert_eq!(all(&log.partition(PartitionId(0))).await.len(), 1);
    log.shutdown().await;
}
