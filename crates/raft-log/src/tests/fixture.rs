//! A log of format version 1, kept for ever: read, and written to the byte.

use std::path::PathBuf;

use openraft::storage::{RaftLogReader, RaftLogStorage};
use sextant_common::ids::PartitionId;
use sextant_environment::vfs::{OpenMode, Vfs};
use sextant_simulated::FaultyVfs;

use crate::{Entry, RaftLog, Vote, log_id};

use super::support::{Contents, Server, append, contents, marked, membership};

const SEGMENT_BYTES: usize = 16 << 10;
const FILES: [&str; 2] = ["IDENTITY", "segment-000001.log"];

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fixtures/v1").join(name)
}

fn server() -> Server {
    let mut server = Server::new(1);
    server.config.segment_bytes = SEGMENT_BYTES as u64;
    server
}

fn entries() -> Vec<Entry> {
    let blank = Entry { log_id: log_id(2, 3), payload: openraft::EntryPayload::Blank };
    vec![marked(0, 1, 2, 20), blank, membership(2, 4, &[1, 2, 3]), marked(0, 3, 5, 500)]
}

/// Waits until so many records are written, so that each write holds the same ones every time.
async fn written(log: &RaftLog, records: u64) {
    while log.stats().records < records {
        tokio::task::yield_now().await;
    }
}

/// Writes a log with a record of each kind. Returns the files, without zeros at their ends.
async fn write() -> Vec<Vec<u8>> {
    let server = server();
    let log = server.open().await.unwrap();
    let (mut zero, mut one) = (log.partition(PartitionId(0)), log.partition(PartitionId(1)));
    zero.save_vote(&Vote::new(1, 2)).await.unwrap();
    zero.save_vote(&Vote::new_committed(1, 2)).await.unwrap();
    append(&zero, vec![marked(0, 1, 1, 10), entries()[0].clone(), marked(0, 1, 3, 30)]).await.unwrap();
    zero.truncate_after(Some(log_id(1, 2))).await.unwrap();
    written(&log, 6).await;
    append(&zero, entries()[1..3].to_vec()).await.unwrap();
    one.save_committed(Some(log_id(9, 9))).await.unwrap();
    one.save_vote(&Vote::new(9, 3)).await.unwrap();
    zero.purge(log_id(1, 1)).await.unwrap();
    written(&log, 11).await;
    append(&zero, entries()[3..].to_vec()).await.unwrap();
    log.shutdown().await;
    let files = FILES.iter().map(|name| server.read(&server.config.devices[0].join(name)));
    files.map(|bytes| bytes[..bytes.iter().rposition(|b| *b != 0).unwrap() + 1].to_vec()).collect()
}

#[tokio::test]
async fn version_1_is_read() {
    let mut server = server();
    server.vfs = FaultyVfs::new(1);
    server.vfs.create_dir_all(&server.config.devices[0]).unwrap();
    for name in FILES {
        let mut bytes = std::fs::read(fixture(name)).unwrap();
        if name != FILES[0] {
            bytes.resize(SEGMENT_BYTES, 0);
        }
        let file = server.vfs.open(&server.config.devices[0].join(name), OpenMode::CreateNew).unwrap();
        file.write_all_at(&bytes, 0).unwrap();
    }
    let log = server.open().await.unwrap();
    let expected =
        Contents { vote: Some(Vote::new_committed(1, 2)), purged: Some(log_id(1, 1)), entries: entries() };
    assert_eq!(contents(&log.partition(PartitionId(0))).await, expected);
    let mut one = log.partition(PartitionId(1));
    assert_eq!(one.read_vote().await.unwrap(), Some(Vote::new(9, 3)));
    assert_eq!(one.read_committed().await.unwrap(), Some(log_id(9, 9)));
    log.shutdown().await;
}

#[tokio::test]
async fn version_1_is_written() {
    // A new version of the format gets new fixtures: `SEXTANT_WRITE_FIXTURES=1 cargo test -p sextant-raft-log fixture`.
    if std::env::var_os("SEXTANT_WRITE_FIXTURES").is_some() {
        for (name, bytes) in FILES.iter().zip(write().await) {
            std::fs::create_dir_all(fixture("")).unwrap();
            std::fs::write(fixture(name), bytes).unwrap();
        }
    }
    for (name, bytes) in FILES.iter().zip(write().await) {
        assert!(bytes == std::fs::read(fixture(name)).unwrap(), "{name} is not the fixture's");
    }
}
