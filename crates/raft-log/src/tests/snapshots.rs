//! A log beside a snapshot that is newer than what it knows.

use openraft::storage::RaftLogStorage;
use sextant_common::ErrorKind;
use sextant_common::ids::PartitionId;
use sextant_simulated::CrashMode;

use crate::{LogId, PartitionLog, RaftLog, Vote, log_id};

use super::support::{Server, append, contents, marked};

/// Entries 0 to 2 of term 1, 3 to 5 of term 2; up to 1 they are committed.
async fn two_terms(log: &RaftLog) -> PartitionLog {
    let mut partition = log.partition(PartitionId(0));
    let entries = [(1, 0), (1, 1), (1, 2), (2, 3), (2, 4), (2, 5)];
    let entries = entries.into_iter().map(|(term, index)| marked(0, term, index, 50));
    append(&partition, entries.collect()).await.unwrap();
    partition.save_committed(Some(log_id(1, 1))).await.unwrap();
    partition
}

/// What a leader sends next is taken: the log ends with the snapshot's last entry.
async fn goes_on_after(partition: &PartitionLog, covered: LogId) {
    assert_eq!(partition.last_log_id(), Some(covered));
    assert_eq!(contents(partition).await.purged, Some(covered));
    append(partition, vec![marked(0, 9, covered.index + 1, 50)]).await.unwrap();
}

#[tokio::test]
async fn what_a_snapshot_contradicts_is_removed_for_good() {
    let server = Server::new(1);
    let log = server.open().await.unwrap();
    let mut partition = two_terms(&log).await;
    partition.save_vote(&Vote::new(8, 2)).await.unwrap();
    // Others committed entries 3 and 4 under term 3, and this server was not there.
    let covered = log_id(3, 4);
    assert_eq!(partition.follow_snapshot(covered).unwrap(), 6);
    goes_on_after(&partition, covered).await;
    server.crash(log).await;
    let log = server.open().await.unwrap();
    let partition = log.partition(PartitionId(0));
    let found = contents(&partition).await;
    assert_eq!((found.purged, found.entries), (Some(covered), vec![marked(0, 9, 5, 50)]));
    assert_eq!(found.vote, Some(Vote::new(8, 2)));
    assert_eq!(partition.follow_snapshot(covered).unwrap(), 0);
    log.shutdown().await;
}

#[tokio::test]
async fn all_entries_may_be_wrong() {
    let server = Server::new(1);
    let log = server.open().await.unwrap();
    let mut partition = two_terms(&log).await;
    partition.purge(log_id(1, 2)).await.unwrap();
    assert_eq!(partition.follow_snapshot(log_id(3, 3)).unwrap(), 3);
    goes_on_after(&partition, log_id(3, 3)).await;
    log.shutdown().await;
}

#[tokio::test]
async fn a_tail_of_a_higher_term_is_not_left_behind_a_snapshot() {
    // A leader of term 5 appended alone; those that elected the next one had longer logs of term 3. Raft looks at the term first,
    // finds nothing to clean, takes the log for as long as the snapshot, and then every append is refused.
    for (entries, covered) in [
        // It ends before the snapshot does, or right there, or later.
        (&[(1, 0), (5, 1)][..], log_id(3, 4)),
        (&[(1, 0), (5, 1), (5, 2), (5, 3), (5, 4)], log_id(3, 4)),
        (&[(1, 0), (5, 1), (5, 2), (5, 3), (5, 4), (5, 5)], log_id(3, 4)),
        // And one of no higher term, and none at all.
        (&[(1, 0), (1, 1)], log_id(3, 4)),
        (&[], log_id(3, 4)),
    ] {
        let server = Server::new(1);
        let log = server.open().await.unwrap();
        let partition = log.partition(PartitionId(0));
        let marked = entries.iter().map(|(term, index)| marked(0, *term, *index, 50));
        append(&partition, marked.collect()).await.unwrap();
        assert_eq!(partition.follow_snapshot(covered).unwrap(), entries.len() as u64);
        goes_on_after(&partition, covered).await;
        log.shutdown().await;
    }
}

#[tokio::test]
async fn a_log_follows_a_snapshot_wherever_the_power_fails() {
    let covered = log_id(3, 4);
    for operation in 1.. {
        let server = Server::new(operation);
        server.vfs.set_crash_mode(CrashMode::TearAll);
        let log = server.open().await.unwrap();
        let mut partition = two_terms(&log).await;
        partition.purge(log_id(1, 1)).await.unwrap();
        partition.save_vote(&Vote::new(8, 2)).await.unwrap();
        server.vfs.cut_power_at(operation);
        // Whether the log was told or not: some of it is durable, or nothing.
        let _ = partition.follow_snapshot(covered);
        let settled = partition.save_vote(&Vote::new(9, 3)).await.is_ok();
        let done = settled && server.vfs.has_power();
        server.crash(log).await;
        let log = server.open().await.unwrap();
        let partition = log.partition(PartitionId(0));
        partition.follow_snapshot(covered).unwrap();
        goes_on_after(&partition, covered).await;
        assert!(partition.vote() == Some(Vote::new(9, 3)) || !settled);
        assert!(partition.vote().is_some(), "the vote stays");
        log.shutdown().await;
        if done {
            break;
        }
    }
}

#[tokio::test]
async fn a_log_that_has_the_entry_is_left_alone() {
    let server = Server::new(1);
    let log = server.open().await.unwrap();
    let mut partition = two_terms(&log).await;
    for covered in [log_id(1, 0), log_id(1, 1), log_id(2, 3), log_id(2, 5)] {
        assert_eq!(partition.follow_snapshot(covered).unwrap(), 0);
    }
    partition.purge(log_id(2, 4)).await.unwrap();
    for covered in [log_id(2, 3), log_id(2, 4)] {
        assert_eq!(partition.follow_snapshot(covered).unwrap(), 0);
    }
    assert_eq!(contents(&partition).await.entries.len(), 1);
    log.shutdown().await;
}

#[tokio::test]
async fn committed_entries_are_not_removed_for_a_snapshot() {
    let server = Server::new(1);
    let log = server.open().await.unwrap();
    let partition = two_terms(&log).await;
    // In the same place, or of a term that cannot have come before.
    for covered in [log_id(3, 1), log_id(0, 900)] {
        let error = partition.follow_snapshot(covered).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Corrupt, "{error}");
    }
    assert_eq!(contents(&partition).await.entries.len(), 6);
    log.shutdown().await;
}
