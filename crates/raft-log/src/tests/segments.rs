//! Segments come, go and come again.

use openraft::storage::{RaftLogReader, RaftLogStorage};
use sextant_common::ids::PartitionId;
use sextant_environment::vfs::{OpenMode, Vfs};
use sextant_simulated::CrashMode;

use crate::{Entry, RaftLog, Vote, log_id};

use super::support::{Server, all, append, contents, marked};

fn small(seed: u64) -> Server {
    let mut server = Server::new(seed);
    server.config.segment_bytes = 16 << 10;
    server
}

/// Appends entries of about a kilobyte, each durable before the next.
async fn fill(log: &RaftLog, partition: u32, term: u64, indexes: std::ops::RangeInclusive<u64>) {
    let handle = log.partition(PartitionId(partition));
    for i in indexes {
        append(&handle, vec![marked(partition, term, i, 1000)]).await.unwrap();
    }
}

#[tokio::test]
async fn many_partitions_share_a_segment() {
    let mut server = Server::new(1);
    server.partitions = (0..50).map(PartitionId).collect();
    server.config.segment_bytes = 1 << 20;
    let log = server.open().await.unwrap();
    for i in 1..=4 {
        for id in &server.partitions {
            let entry = marked(id.0, 1, i, 50);
            append(&log.partition(*id), vec![entry]).await.unwrap();
        }
    }
    let mut odd = log.partition(PartitionId(7));
    odd.save_vote(&Vote::new_committed(9, 3)).await.unwrap();
    server.crash(log).await;
    assert_eq!(server.segments(0).len(), 1);
    let log = server.open().await.unwrap();
    for id in &server.partitions {
        let expected: Vec<Entry> = (1..=4).map(|i| marked(id.0, 1, i, 50)).collect();
        let found = contents(&log.partition(*id)).await;
        assert_eq!((found.entries, found.vote.is_some()), (expected, id.0 == 7));
    }
    assert_eq!(log.partition(PartitionId(7)).read_vote().await.unwrap(), Some(Vote::new_committed(9, 3)));
    log.shutdown().await;
}

#[tokio::test]
async fn purging_frees_segments_and_votes_survive_them() {
    let server = small(1);
    let log = server.open().await.unwrap();
    let (mut zero, mut one) = (log.partition(PartitionId(0)), log.partition(PartitionId(1)));
    zero.save_vote(&Vote::new(3, 2)).await.unwrap();
    one.save_vote(&Vote::new_committed(4, 1)).await.unwrap();
    zero.save_committed(Some(log_id(1, 1))).await.unwrap();
    one.save_committed(Some(log_id(1, 0))).await.unwrap();
    let mut most = 0;
    for round in 0..30u64 {
        fill(&log, 0, 1, round * 10 + 1..=round * 10 + 10).await;
        zero.purge(log_id(1, round * 10 + 5)).await.unwrap();
        most = most.max(server.segments(0).len());
    }
    assert!(most <= 6, "{most} files for a log of at most 15 kB");
    assert_eq!(zero.bytes_since(0), 5 * 1032);
    // A purge alone waits for nothing; with this it is durable.
    append(&one, vec![marked(1, 1, 1, 1)]).await.unwrap();
    server.crash(log).await;
    let log = server.open().await.unwrap();
    let (zero, mut one) = (log.partition(PartitionId(0)), log.partition(PartitionId(1)));
    let expected: Vec<Entry> = (296..=300).map(|i| marked(0, 1, i, 1000)).collect();
    let found = contents(&zero).await;
    assert_eq!(
        (found.entries, found.vote, found.purged),
        (expected, Some(Vote::new(3, 2)), Some(log_id(1, 295)))
    );
    assert_eq!(zero.clone().read_committed().await.unwrap(), Some(log_id(1, 1)));
    assert_eq!(one.read_vote().await.unwrap(), Some(Vote::new_committed(4, 1)));
    // A committed position waits for a record to travel with, or for the end.
    one.save_committed(Some(log_id(1, 1))).await.unwrap();
    log.shutdown().await;
    let log = server.open().await.unwrap();
    let mut one = log.partition(PartitionId(1));
    assert_eq!(one.read_committed().await.unwrap(), Some(log_id(1, 1)));
    log.shutdown().await;
}

#[tokio::test]
async fn a_late_purge_frees_segments_without_another_append() {
    let server = small(1);
    let log = server.open().await.unwrap();
    let mut zero = log.partition(PartitionId(0));
    fill(&log, 0, 1, 1..=100).await;
    let before = server.segments(0).len();
    assert!(before >= 7, "{before}");
    zero.purge(log_id(1, 100)).await.unwrap();
    // Durable after the purge and after what the purge sets off: a checkpoint, then the end of the log.
    log.shutdown().await;
    let after = server.segments(0).len();
    assert!(after <= 3, "{after} of {before} files left");
    let log = server.open().await.unwrap();
    assert_eq!(log.report().entries, 0);
    assert_eq!(log.partition(PartitionId(0)).purged(), Some(log_id(1, 100)));
    log.shutdown().await;
}

/// A purge's checkpoint states a floor within the segment. An entry that comes later lies in the same segment, but what is
/// before the floor may be gone from other devices: a restart must not ask for it again.
#[tokio::test]
async fn a_floor_does_not_fall_when_the_log_is_opened_again() {
    let server = small(1);
    let log = server.open().await.unwrap();
    fill(&log, 0, 1, 1..=105).await;
    log.partition(PartitionId(0)).purge(log_id(1, 105)).await.unwrap();
    log.shutdown().await;
    let floor_of = || {
        let newest =
            server.scan(0).unwrap().checkpoints.into_iter().max_by_key(|found| (found.lsn, found.run));
        newest.unwrap().checkpoint.floor
    };
    let stated = floor_of();
    for round in 1..=3 {
        let log = server.open().await.unwrap();
        append(&log.partition(PartitionId(0)), vec![marked(0, 1, 105 + round, 10)]).await.unwrap();
        log.shutdown().await;
        assert!(floor_of() >= stated, "round {round}: {} after {stated}", floor_of());
    }
}

#[tokio::test]
async fn a_partition_that_trickles_holds_its_segment() {
    let server = small(1);
    let log = server.open().await.unwrap();
    let (mut zero, mut one) = (log.partition(PartitionId(0)), log.partition(PartitionId(1)));
    append(&one, vec![marked(1, 1, 1, 10)]).await.unwrap();
    fill(&log, 0, 1, 1..=60).await;
    zero.purge(log_id(1, 60)).await.unwrap();
    append(&zero, vec![marked(0, 1, 61, 10)]).await.unwrap();
    assert!(server.segments(0).len() >= 5);
    assert_eq!(all(&one).await, [marked(1, 1, 1, 10)]);
    one.purge(log_id(1, 1)).await.unwrap();
    log.shutdown().await;
    assert!(server.segments(0).len() <= 4, "{}", server.segments(0).len());
    let log = server.open().await.unwrap();
    assert_eq!(all(&log.partition(PartitionId(0))).await, [marked(0, 1, 61, 10)]);
    log.shutdown().await;
}

/// Files are used again: whatever a crash leaves of the new use, records of the old one never pass.
#[tokio::test]
async fn recycled_segments_never_bring_old_records_back() {
    for seed in 0..60 {
        let mut server = small(seed);
        server.vfs.set_crash_mode(CrashMode::TearAll);
        let (mut first, mut last) = (1u64, 0u64);
        for round in 0..5 {
            let log = server.open().await.unwrap();
            let mut zero = log.partition(PartitionId(0));
            let found = all(&zero).await;
            let expected: Vec<Entry> = (first..=last).map(|i| marked(0, 1, i, 1000)).collect();
            assert!(
                found.len() >= expected.len(),
                "seed {seed}, round {round}: acknowledged entries are lost"
            );
            for (n, entry) in found.iter().enumerate() {
                assert_eq!(*entry, marked(0, 1, first + n as u64, 1000), "seed {seed}, round {round}");
            }
            last = first + found.len() as u64 - 1;
            // All entries have one size, so records of different uses lie at the same offsets.
            fill(&log, 0, 1, last + 1..=last + 40).await;
            last += 40;
            zero.purge(log_id(1, last - 3)).await.unwrap();
            first = last - 2;
            fill(&log, 0, 1, last + 1..=last + 5 + seed % 7).await;
            last += 5 + seed % 7;
            // In flight when the power fails.
            let more = (last + 1..=last + 3).map(|i| marked(0, 1, i, 1000)).collect::<Vec<_>>();
            server.vfs.cut_power_at(1 + seed % 3);
            let _ = append(&zero, more).await;
            server.crash(log).await;
        }
        server.config.cache_bytes += 1;
    }
}

#[tokio::test]
async fn restarts_do_not_use_up_segments() {
    let server = small(1);
    let log = server.open().await.unwrap();
    fill(&log, 0, 1, 1..=3).await;
    log.shutdown().await;
    for i in 0..100u64 {
        let log = server.open().await.unwrap();
        assert_eq!(all(&log.partition(PartitionId(0))).await.len(), 3);
        if i % 2 == 0 {
            log.shutdown().await
        } else {
            server.crash(log).await
        }
        assert!(server.segments(0).len() <= 5, "{} files after {i} restarts", server.segments(0).len());
    }
}

#[tokio::test]
async fn an_entry_larger_than_a_segment_gets_one_of_its_own() {
    let server = small(1);
    let log = server.open().await.unwrap();
    let handle = log.partition(PartitionId(0));
    let entries: Vec<Entry> =
        [10, 50_000, 10, 200_000, 16_000].iter().zip(1..).map(|(n, i)| marked(0, 1, i, *n)).collect();
    for entry in &entries {
        append(&handle, vec![entry.clone()]).await.unwrap();
    }
    append(&log.partition(PartitionId(1)), (1..=50).map(|i| marked(1, 1, i, 3000)).collect()).await.unwrap();
    server.crash(log).await;
    let log = server.open().await.unwrap();
    assert_eq!(all(&log.partition(PartitionId(0))).await, entries);
    assert_eq!(all(&log.partition(PartitionId(1))).await.len(), 50);
    log.shutdown().await;
    assert!(server.vfs.exists(&server.config.devices[0].join("LOCK")));
}

/// A process that dies while it makes a file leaves one whose name is not durable. The next process must not trust it.
#[tokio::test]
async fn a_spare_file_whose_name_is_not_durable_does_not_take_records_along() {
    let server = small(1);
    server.vfs.set_crash_mode(CrashMode::LoseAll);
    let log = server.open().await.unwrap();
    server.kill(log).await;
    let orphan = server.config.devices[0].join("segment-000900.log");
    let file = server.vfs.open(&orphan, OpenMode::CreateNew).unwrap();
    file.write_all_at(&[0; 16 << 10], 0).unwrap();
    // No more files: making one would make all names durable.
    server.vfs.set_capacity(Some(server.vfs.used_bytes()));
    let log = server.open().await.unwrap();
    let mut last = 0;
    while server.read(&orphan)[..8] == [0; 8] {
        last += 1;
        fill(&log, 0, 1, last..=last).await;
    }
    server.crash(log).await;
    let log = server.open().await.unwrap();
    assert_eq!(all(&log.partition(PartitionId(0))).await.len() as u64, last);
    log.shutdown().await;
}
