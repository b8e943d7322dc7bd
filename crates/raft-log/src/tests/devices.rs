//! Several devices: what is lost on one cuts the others, and devices cannot be mixed up.

use openraft::storage::RaftLogStorage;
use sextant_common::ErrorKind;
use sextant_common::ids::{NodeId, PartitionId};
use sextant_environment::vfs::{OpenMode, Vfs};
use sextant_simulated::FaultyVfs;

use crate::format::batch::{BatchHeader, BatchKind};
use crate::format::identity::Identity;
use crate::format::segment::{FoundHeader, SEGMENT_HEADER_BYTES, SegmentHeader};
use crate::{Entry, log_id};

use super::support::{Server, all, append, contents, marked};

/// The batches with records of a device's first segment.
fn record_batches(server: &Server, device: usize) -> Vec<BatchHeader> {
    let salt = salt(server, device);
    let bytes = server.read(&server.segments(device)[0]);
    let mut at = SEGMENT_HEADER_BYTES;
    let mut batches = Vec::new();
    while let Some(header) = BatchHeader::decode(&bytes[at as usize..], salt, at) {
        at = header.end();
        batches.extend((header.kind == BatchKind::Records && header.records > 0).then_some(header));
    }
    batches
}

fn salt(server: &Server, device: usize) -> u32 {
    Identity::decode(&server.read(&server.config.devices[device].join("IDENTITY"))).unwrap().salt
}

/// A server whose devices both have records, and that died: entries 1..=n, one batch each.
async fn spread(server: &Server) -> u64 {
    let log = server.open().await.unwrap();
    let handle = log.partition(PartitionId(0));
    let mut last = 0;
    while (0..2).any(|device| record_batches(server, device).len() < 4) {
        last += 1;
        append(&handle, vec![marked(0, 1, last, 60)]).await.unwrap();
        assert!(last < 500, "one device does everything");
    }
    server.kill(log).await;
    last
}

fn roomy(seed: u64) -> Server {
    let mut server = Server::with_devices(seed, 2);
    server.config.segment_bytes = 1 << 20;
    server
}

#[tokio::test]
async fn records_are_spread_and_merged() {
    let server = roomy(1);
    let last = spread(&server).await;
    let log = server.open().await.unwrap();
    let expected: Vec<Entry> = (1..=last).map(|i| marked(0, 1, i, 60)).collect();
    assert_eq!(all(&log.partition(PartitionId(0))).await, expected);
    log.shutdown().await;
}

#[tokio::test]
async fn an_acknowledged_batch_that_is_lost_on_one_device_is_missed() {
    let server = roomy(2);
    spread(&server).await;
    // The last batch of the device whose last batch is the older one: only the other device can tell.
    let ends = [0, 1].map(|device| *record_batches(&server, device).last().unwrap());
    let older = usize::from(ends[0].first_lsn > ends[1].first_lsn);
    let path = server.segments(older)[0].clone();
    server.overwrite(&path, u64::from(ends[older].offset), &[0; 64]);
    let error = server.open().await.err().unwrap();
    assert_eq!(error.kind, ErrorKind::Corrupt);
    let place = format!("{} at offset {}", path.display(), ends[older].offset);
    assert!(error.message.contains(&place), "{error}");
}

/// As after a power failure with writes on both devices in flight: an earlier record is lost, a later one is there.
#[tokio::test]
async fn what_follows_a_lost_record_on_another_device_is_void_for_ever() {
    let server = roomy(3);
    let last = spread(&server).await;
    // Nothing of the last batches was acknowledged, say their headers.
    let ends = [0, 1].map(|device| *record_batches(&server, device).last().unwrap());
    let (older, newer) = if ends[0].first_lsn < ends[1].first_lsn { (0, 1) } else { (1, 0) };
    let lost = ends[older].first_lsn;
    let later: Vec<BatchHeader> =
        record_batches(&server, newer).into_iter().filter(|b| b.first_lsn > lost).collect();
    let path = server.segments(newer)[0].clone();
    for header in &later {
        let changed = BatchHeader { durable_lsn: lost - 1, ..*header };
        server.overwrite(&path, u64::from(header.offset), &changed.encode(salt(&server, newer)));
    }
    server.overwrite(&server.segments(older)[0], u64::from(ends[older].offset), &[0; 64]);
    let kept = lost - 1;
    for round in 0..4u64 {
        let term = 2 + round;
        let log = server.open().await.unwrap();
        let mut handle = log.partition(PartitionId(0));
        let expected: Vec<Entry> = (1..=kept).map(|i| marked(0, 1, i, 60)).collect();
        assert_eq!(all(&handle).await, expected, "round {round}: {last} were written");
        assert!(log.report().torn_bytes > 0 || round > 0);
        // New records take the same lsns, on whatever device.
        for i in 1..=round {
            append(&handle, vec![marked(0, term, kept + i, 60)]).await.unwrap();
        }
        if round > 0 {
            handle.truncate_after(Some(log_id(1, kept))).await.unwrap();
            handle.save_vote(&crate::Vote::new(term, 1)).await.unwrap();
        }
        server.crash(log).await;
    }
}

/// A segment may begin with void records only. New ones with smaller lsns must not go into it: its header says that there are
/// none, and what is needed is judged by that.
#[tokio::test]
async fn a_segment_that_begins_with_void_records_takes_no_older_ones() {
    for seed in 0..12 {
        let mut server = roomy(seed);
        server.config.segment_bytes = 16 << 10;
        let log = server.open().await.unwrap();
        let handle = log.partition(PartitionId(0));
        // Until the newest record is the first of a new segment, and the one before it on the other device.
        let (mut last, mut found) = (0, None);
        while found.is_none() {
            last += 1;
            append(&handle, vec![marked(0, 1, last, 700)]).await.unwrap();
            let tails = [0, 1].map(|device| last_batches(&server, device));
            found = (0..2).find(|newer| {
                let (newer, older) = (&tails[*newer], &tails[1 - *newer]);
                newer.1.len() == 2
                    && newer.2 > 1
                    && newer.1[1].first_lsn == older.1.last().unwrap().first_lsn + 1
            });
        }
        let newer = found.unwrap();
        let (new, old) = (last_batches(&server, newer), last_batches(&server, 1 - newer));
        server.kill(log).await;
        let lost = old.1.last().unwrap();
        for header in &new.1 {
            let changed = BatchHeader { durable_lsn: lost.first_lsn - 1, ..*header };
            server.overwrite(&new.0, u64::from(header.offset), &changed.encode(salt(&server, newer)));
        }
        server.overwrite(&old.0, u64::from(lost.offset), &[0; 64]);
        let log = server.open().await.unwrap();
        let mut handle = log.partition(PartitionId(0));
        let kept = last - 2;
        assert_eq!(handle.last_log_id(), Some(log_id(1, kept)));
        let more = [marked(0, 2, kept + 1, 10), marked(0, 2, kept + 2, 10)];
        for entry in &more {
            append(&handle, vec![entry.clone()]).await.unwrap();
        }
        handle.purge(log_id(1, kept)).await.unwrap();
        log.shutdown().await;
        for _ in 0..3 {
            let log = server.open().await.unwrap();
            assert_eq!(all(&log.partition(PartitionId(0))).await, more, "seed {seed}");
            log.shutdown().await;
        }
    }
}

/// Path and batches of a device's newest segment, and its generation.
fn last_batches(server: &Server, device: usize) -> (std::path::PathBuf, Vec<BatchHeader>, u64) {
    let salt = salt(server, device);
    let segments = server.segments(device).into_iter().filter_map(|path| {
        let bytes = server.read(&path);
        let FoundHeader::Valid(header) = SegmentHeader::decode(&bytes, salt) else { return None };
        let (mut at, mut batches) = (SEGMENT_HEADER_BYTES, Vec::new());
        while let Some(batch) = bytes.get(at as usize..).and_then(|rest| BatchHeader::decode(rest, salt, at))
        {
            at = batch.end();
            batches.push(batch);
        }
        Some((path, batches, header.generation))
    });
    segments.max_by_key(|(_, _, generation)| *generation).unwrap()
}

#[tokio::test]
async fn a_device_that_is_empty_or_in_the_wrong_place_is_refused() {
    let server = roomy(4);
    spread(&server).await;
    let open_with = async |devices: [&str; 2]| {
        let mut other = roomy(5);
        other.vfs = FaultyVfs::new(1);
        for (to, from) in other.config.devices.iter().zip(devices) {
            other.vfs.create_dir_all(to).unwrap();
            let Ok(files) = server.vfs.list(std::path::Path::new(from)) else { continue };
            for path in files {
                let copy = other.vfs.open(&to.join(path.file_name().unwrap()), OpenMode::CreateNew).unwrap();
                copy.write_all_at(&server.read(&path), 0).unwrap();
            }
        }
        match other.open().await {
            Ok(log) => {
                log.shutdown().await;
                Ok(())
            }
            Err(e) => Err((e.kind, e.message.into_owned())),
        }
    };
    assert_eq!(open_with(["/log0", "/log1"]).await, Ok(()));
    let (kind, message) = open_with(["/log0", "/none"]).await.unwrap_err();
    assert!(kind == ErrorKind::Corrupt && message.contains("/log1"), "{message}");
    let (kind, message) = open_with(["/none", "/log1"]).await.unwrap_err();
    assert!(kind == ErrorKind::Corrupt && message.contains("/log0"), "{message}");
    let (kind, message) = open_with(["/log1", "/log0"]).await.unwrap_err();
    assert!(kind == ErrorKind::Invalid && message.contains("log device 2 of 2"), "{message}");
    let mut alone = roomy(6);
    alone.vfs = server.vfs.clone();
    alone.config.devices.pop();
    let error = alone.open().await.err().unwrap();
    assert!(error.kind == ErrorKind::Invalid && error.message.contains("1 of 2"), "{error}");
}

#[tokio::test]
async fn a_directory_of_another_cluster_or_node_is_refused() {
    let server = Server::new(1);
    let log = server.open().await.unwrap();
    append(&log.partition(PartitionId(0)), vec![marked(0, 1, 1, 10)]).await.unwrap();
    // While it is open, nobody else gets it.
    let error = server.open().await.err().unwrap();
    assert!(error.kind == ErrorKind::Unavailable && error.message.contains("in use"), "{error}");
    log.shutdown().await;
    let other = |change: fn(&mut Server)| {
        let mut other = Server::new(2);
        other.vfs = server.vfs.clone();
        change(&mut other);
        other
    };
    let prod: fn(&mut Server) = |s| s.config.cluster = "prod".into();
    let second: fn(&mut Server) = |s| s.config.node = NodeId(2);
    let changes = [(prod, "prod"), (second, "node 2")];
    for (change, word) in changes {
        let error = other(change).open().await.err().unwrap();
        assert!(error.kind == ErrorKind::Invalid && error.message.contains(word), "{error}");
    }
    let mut bytes = server.read(&server.config.devices[0].join("IDENTITY"));
    bytes[8] = 9;
    server.overwrite(&server.config.devices[0].join("IDENTITY"), 0, &bytes);
    let error = server.open().await.err().unwrap();
    assert!(error.kind == ErrorKind::Invalid && error.message.contains("format version 9"), "{error}");
    bytes[8] = 1;
    server.overwrite(&server.config.devices[0].join("IDENTITY"), 0, &bytes);
    // Another fingerprint, and other partitions, are none of the log's business.
    let mut same = other(|s| s.config.fingerprint = 8);
    same.partitions = vec![PartitionId(5)];
    let log = same.open().await.unwrap();
    assert_eq!(contents(&log.partition(PartitionId(0))).await.entries.len(), 1);
    assert_eq!(contents(&log.partition(PartitionId(5))).await.entries.len(), 0);
    log.shutdown().await;
}

#[tokio::test]
async fn a_bad_configuration_is_refused() {
    for change in [
        (|s: &mut Server| s.config.devices.clear()) as fn(&mut Server),
        |s| s.config.devices = vec!["/a".into(), "/b".into(), "/a".into()],
        |s| s.config.segment_bytes = 1000,
        |s| s.config.segment_bytes = 4 << 30,
        |s| s.config.cluster = String::new(),
    ] {
        let mut server = Server::new(1);
        change(&mut server);
        assert_eq!(server.open().await.err().unwrap().kind, ErrorKind::Invalid);
    }
}
