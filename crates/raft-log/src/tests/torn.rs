//! Torn tails and damage, at every byte.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use sextant_common::ErrorKind;
use sextant_environment::vfs::{OpenMode, Vfs};
use sextant_simulated::{CrashMode, FaultyVfs};

use crate::Entry;
use crate::format::batch::{BatchHeader, BatchKind};
use crate::format::identity::Identity;
use crate::format::segment::{FoundHeader, SEGMENT_HEADER_BYTES, SegmentHeader};

use super::support::{Server, append, contents, marked, membership};

/// A disk as one run left it when its power failed, and what was acknowledged on it.
struct Left {
    files: Vec<(PathBuf, Vec<u8>)>,
    segment: PathBuf,
    /// All batches, and the entries of partitions 0 and 1 after each.
    batches: Vec<(BatchHeader, Vec<Entry>, Vec<Entry>)>,
}

fn capture(server: &Server) -> Vec<(PathBuf, Vec<u8>)> {
    let files = server.vfs.list(&server.config.devices[0]).unwrap();
    files.into_iter().map(|path| (path.clone(), server.read(&path))).collect()
}

fn batches_of(server: &Server, segment: &Path) -> Vec<BatchHeader> {
    let identity = server.read(&server.config.devices[0].join("IDENTITY"));
    let salt = Identity::decode(&identity).unwrap().salt;
    let bytes = server.read(segment);
    let mut at = SEGMENT_HEADER_BYTES;
    let mut batches = Vec::new();
    while let Some(header) = BatchHeader::decode(&bytes[at as usize..], salt, at) {
        batches.push(header);
        at = header.end();
    }
    batches
}

/// Six batches of one record each, of two partitions.
async fn leave(end_cleanly: bool) -> Left {
    let mut server = Server::new(1);
    server.config.segment_bytes = 16 << 10;
    let log = server.open().await.unwrap();
    let (zero, one) = (log.partition(server.partitions[0]), log.partition(server.partitions[1]));
    let mut after = vec![(vec![], vec![])];
    for i in 1..=6u64 {
        let (mut a, mut b) = after.last().cloned().unwrap();
        let entry = match i {
            3 => membership(1, 3, &[1, 2, 3]),
            _ => marked(i as u32 % 2, 1, i.div_ceil(2), 40 + 17 * i as usize),
        };
        let entry = Entry { log_id: crate::log_id(1, i.div_ceil(2)), ..entry };
        let (log, list) = if i % 2 == 0 { (&zero, &mut a) } else { (&one, &mut b) };
        list.push(entry.clone());
        append(log, vec![entry]).await.unwrap();
        after.push((a, b));
    }
    if end_cleanly {
        log.shutdown().await;
    }
    if !end_cleanly {
        server.kill(log).await;
    }
    let segment = server.segments(0).remove(0);
    let headers = batches_of(&server, &segment);
    assert_eq!(headers.len(), if end_cleanly { 8 } else { 7 });
    assert_eq!(headers[0].kind, BatchKind::Checkpoint);
    after.extend(after.last().cloned().filter(|_| end_cleanly));
    let batches = headers.into_iter().zip(after).map(|(header, (a, b))| (header, a, b)).collect();
    Left { files: capture(&server), segment, batches }
}

impl Left {
    /// A server whose disk holds what was left, but with another content of the segment.
    fn server(&self, segment: &[u8]) -> Server {
        let mut server = Server::new(2);
        server.config.segment_bytes = 16 << 10;
        server.vfs = FaultyVfs::new(3);
        server.vfs.set_crash_mode(CrashMode::LoseAll);
        server.vfs.create_dir_all(&server.config.devices[0]).unwrap();
        for (path, bytes) in &self.files {
            let file = server.vfs.open(path, OpenMode::CreateNew).unwrap();
            file.write_all_at(if *path == self.segment { segment } else { bytes }, 0).unwrap();
            file.sync_data().unwrap();
        }
        server.vfs.sync_dir(&server.config.devices[0]).unwrap();
        server
    }

    fn segment_bytes(&self) -> Vec<u8> {
        self.files.iter().find(|(path, _)| *path == self.segment).unwrap().1.clone()
    }

    /// What must be there if everything from `offset` on is lost.
    fn expected(&self, offset: u64) -> &(BatchHeader, Vec<Entry>, Vec<Entry>) {
        let whole = |header: &BatchHeader| header.body_start() + u64::from(header.length) <= offset;
        self.batches.iter().rev().find(|(header, ..)| whole(header)).unwrap()
    }
}

#[tokio::test]
async fn a_torn_tail_is_cut_at_every_byte() {
    let left = leave(false).await;
    let bytes = left.segment_bytes();
    let (from, to) = (left.batches[3].0.offset, left.batches[6].0.end());
    let garbage: Vec<u8> = (0..bytes.len()).map(|i| (i * 7 + i / 251) as u8 | 1).collect();
    for offset in u64::from(from)..to {
        let at = offset as usize;
        let zeroed = [&bytes[..at], &vec![0; bytes.len() - at]].concat();
        let overwritten = [&bytes[..at], &garbage[at..]].concat();
        for (variant, torn) in [zeroed, overwritten, bytes[..at].to_vec()].iter().enumerate() {
            let server = left.server(torn);
            let (_, a, b) = left.expected(offset);
            check(&server, a, b).await.unwrap_or_else(|e| panic!("offset {offset}, variant {variant}: {e}"));
            if offset % 13 != 0 {
                continue;
            }
            // What was cut stays away, whatever is written over it and wherever that is torn.
            for round in 0..3 {
                let log = server.open().await.unwrap();
                let zero = log.partition(server.partitions[0]);
                let next = a.len() as u64 + 1;
                append(&zero, vec![marked(0, 2, next, 30)]).await.unwrap();
                server.crash(log).await;
                let expected: Vec<Entry> = a.iter().cloned().chain([marked(0, 2, next, 30)]).collect();
                check(&server, &expected, b).await.unwrap();
                let log = server.open().await.unwrap();
                let mut zero = log.partition(server.partitions[0]);
                use openraft::storage::RaftLogStorage;
                zero.truncate_after(a.last().map(|entry| entry.log_id)).await.unwrap();
                zero.save_vote(&crate::Vote::new(2 + round, 1)).await.unwrap();
                server.crash(log).await;
                check(&server, a, b).await.unwrap();
            }
        }
    }
}

async fn check(server: &Server, a: &[Entry], b: &[Entry]) -> Result<(), String> {
    let log = server.open().await.map_err(|e| e.to_string())?;
    for (slot, expected) in [(0, a), (1, b)] {
        let found = contents(&log.partition(server.partitions[slot])).await.entries;
        if found != expected {
            return Err(format!("partition {slot}: {found:?} instead of {expected:?}"));
        }
    }
    assert!(log.report().entries == (a.len() + b.len()) as u64);
    log.shutdown().await;
    Ok(())
}

#[tokio::test]
async fn damage_below_what_was_durable_is_an_error_that_names_it() {
    let left = leave(false).await;
    let bytes = left.segment_bytes();
    let last = left.batches.last().unwrap().0;
    let name = left.segment.display().to_string();
    for offset in 0..u64::from(last.offset) {
        let mut damaged = bytes.clone();
        damaged[offset as usize] ^= 0x10;
        let batch = left.batches.iter().rev().find(|(header, ..)| u64::from(header.offset) <= offset);
        let body = |header: &BatchHeader| header.body_start() + u64::from(header.length);
        match batch {
            // The header page beyond the header, and the padding of a batch, mean nothing.
            None if (256..SEGMENT_HEADER_BYTES).contains(&offset) => continue,
            Some((header, ..)) if offset >= body(header) => continue,
            _ => {}
        }
        let place = batch.map_or(0, |(header, ..)| header.offset);
        let error = left.server(&damaged).open().await.err();
        let error = error.unwrap_or_else(|| panic!("damage at {offset} went unseen"));
        assert_eq!(error.kind, ErrorKind::Corrupt, "{error}");
        let expected = format!("{name} at offset {place}");
        assert!(error.message.contains(&expected), "damage at {offset}: {error}");
    }
}

#[tokio::test]
async fn after_a_clean_end_even_the_last_batch_is_known_to_have_been_durable() {
    let left = leave(true).await;
    let bytes = left.segment_bytes();
    let last = left.batches[6].0;
    for offset in (last.offset..last.offset + 64 + last.length).step_by(5) {
        let mut damaged = bytes.clone();
        damaged[offset as usize] ^= 1;
        let error = left.server(&damaged).open().await.err().unwrap();
        assert_eq!(error.kind, ErrorKind::Corrupt);
        assert!(error.message.contains(&format!("at offset {}", last.offset)), "{error}");
    }
    let (_, a, b) = &left.batches[7];
    check(&left.server(&bytes), a, b).await.unwrap();
}

/// Unsynced pages may reach the disk in any order: a hole with whole batches behind it, all unacknowledged.
#[tokio::test]
async fn batches_behind_a_hole_do_not_come_back() {
    let left = leave(false).await;
    let identity = &left.files.iter().find(|(path, _)| path.ends_with("IDENTITY")).unwrap().1;
    let salt = Identity::decode(identity).unwrap().salt;
    let mut bytes = left.segment_bytes();
    // Make batches 5 and 6 look as if they had been written before 4 was durable.
    let hole = left.batches[4].0;
    for (header, ..) in &left.batches[5..] {
        let changed = BatchHeader { durable_before: hole.offset, durable_lsn: 3, ..*header };
        bytes[header.offset as usize..][..64].copy_from_slice(&changed.encode(salt));
    }
    bytes[hole.offset as usize + 70] ^= 1;
    let server = left.server(&bytes);
    let (_, a, b) = &left.batches[3];
    check(&server, a, b).await.unwrap();
    let log = server.open().await.unwrap();
    assert_eq!(contents(&log.partition(server.partitions[0])).await.entries, *a);
    // A batch as long as the one in the hole: what is behind it would be read next.
    let next = marked(0, 1, a.len() as u64 + 1, hole.length as usize - 32);
    append(&log.partition(server.partitions[0]), vec![next.clone()]).await.unwrap();
    server.crash(log).await;
    let expected: Vec<Entry> = a.iter().cloned().chain([next]).collect();
    check(&server, &expected, b).await.unwrap();
}

#[tokio::test]
async fn a_lost_identity_is_an_error() {
    let left = leave(false).await;
    let server = left.server(&left.segment_bytes());
    server.vfs.remove_file(&server.config.devices[0].join("IDENTITY")).unwrap();
    let error = server.open().await.err().unwrap();
    assert!(error.kind == ErrorKind::Corrupt && error.message.contains("IDENTITY"), "{error}");
    let server = Arc::new(left.server(&left.segment_bytes()));
    server.overwrite(&server.config.devices[0].join("IDENTITY"), 30, b"x");
    let error = server.open().await.err().unwrap();
    assert!(error.kind == ErrorKind::Corrupt && error.message.contains("IDENTITY"), "{error}");
}

/// Such a log would open, take its own entries for no longer needed, say so in a checkpoint, and not open again.
#[tokio::test]
async fn a_segment_that_claims_to_begin_after_its_records_is_refused() {
    let left = leave(false).await;
    let identity = &left.files.iter().find(|(path, _)| path.ends_with("IDENTITY")).unwrap().1;
    let salt = Identity::decode(identity).unwrap().salt;
    let mut bytes = left.segment_bytes();
    let FoundHeader::Valid(header) = SegmentHeader::decode(&bytes, salt) else { panic!() };
    let changed = SegmentHeader { first_lsn: header.first_lsn + 65536, ..header };
    bytes[..SEGMENT_HEADER_BYTES as usize].copy_from_slice(&changed.encode(salt));
    let error = left.server(&bytes).open().await.err().unwrap();
    assert_eq!(error.kind, ErrorKind::Corrupt, "{error}");
    assert!(error.message.contains(&left.segment.display().to_string()), "{error}");
}
