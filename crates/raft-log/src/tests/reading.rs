//! Reading back, from memory and from disk; observers; what is told of the log.

use std::sync::Arc;

use futures::TryStreamExt;
use openraft::EntryPayload;
use openraft::storage::{RaftLogReader, RaftLogStorage};
use parking_lot::Mutex;
use sextant_common::ids::{LogPosition, PartitionId};
use sextant_common::{Error, ErrorKind};

use crate::{
    Entry, LogId, LogObserver, Payload, StoredMembership, decode_entry, decode_membership, encode_entry,
    encode_membership, log_id, position_of,
};

use super::support::{Server, all, append, marked, membership, normal};

#[test]
fn entries_and_memberships_round_trip_and_their_bytes_are_these() {
    let blank = Entry { log_id: log_id(3, 9), payload: EntryPayload::Blank };
    let entries = [blank, normal(3, 9, b"some bytes"), normal(3, 9, b""), membership(3, 9, &[1, 2, 3])];
    for entry in &entries {
        let bytes = encode_entry(entry);
        assert_eq!(decode_entry(LogPosition { term: 3, index: 9 }, bytes).unwrap(), *entry);
    }
    assert_eq!(&encode_entry(&entries[0])[..], [0]);
    assert_eq!(&encode_entry(&entries[1])[..], b"\x01some bytes");
    let EntryPayload::Membership(found) = &entries[3].payload else { panic!() };
    let stored = StoredMembership::new(Some(log_id(3, 9)), found.clone());
    let bytes = encode_membership(&stored);
    let hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
    assert_eq!(
        hex,
        "0103000000000000000900000000000000\
         0101000300010000000000000002000000000000000300000000000000\
         0300\
         01000000000000000700686f7374313a31\
         02000000000000000700686f7374323a31\
         03000000000000000700686f7374333a31"
    );
    assert_eq!(decode_membership(&bytes).unwrap(), stored);
    assert_eq!(
        decode_membership(&encode_membership(&StoredMembership::default())).unwrap(),
        StoredMembership::default()
    );
    for length in 0..bytes.len() {
        assert_eq!(decode_membership(&bytes[..length]).unwrap_err().kind, ErrorKind::Corrupt);
    }
    for bad in [&b""[..], b"\x09", b"\x00x", b"\x02"] {
        let position = LogPosition { term: 1, index: 1 };
        assert_eq!(decode_entry(position, bad.to_vec().into()).unwrap_err().kind, ErrorKind::Corrupt);
    }
}

#[test]
fn decoding_shares_the_bytes_and_payloads_are_not_printed() {
    let bytes = encode_entry(&normal(1, 2, b"secret"));
    let entry = decode_entry(position_of(&log_id(1, 2)), bytes.clone()).unwrap();
    let EntryPayload::Normal(payload) = &entry.payload else { panic!() };
    assert_eq!(payload.0.as_ptr(), bytes[1..].as_ptr());
    let printed = format!("{entry:?} {entry} {payload:?} {payload}");
    assert!(!printed.contains("secret") && printed.contains("6 bytes"), "{printed}");
    assert_eq!(Payload::default().to_string(), "0 bytes");
}

#[tokio::test]
async fn entries_are_the_same_from_memory_and_from_disk() {
    for cache_bytes in [0, 3000, 1 << 20] {
        let mut server = Server::new(1);
        server.config.cache_bytes = cache_bytes;
        server.config.segment_bytes = 16 << 10;
        let log = server.open().await.unwrap();
        let mut zero = log.partition(PartitionId(0));
        let one = log.partition(PartitionId(1));
        let entries: Vec<Entry> = (1..=40).map(|i| marked(0, 1 + i / 20, i, 900)).collect();
        for pair in entries.chunks(2) {
            append(&zero, pair.to_vec()).await.unwrap();
            let index = pair[0].log_id.index.div_ceil(2);
            append(&one, vec![marked(1, 1, index, 300)]).await.unwrap();
        }
        assert_eq!(all(&zero).await, entries);
        assert_eq!(zero.try_get_log_entries(7..12).await.unwrap(), entries[6..11]);
        assert_eq!(zero.try_get_log_entries(39..=100).await.unwrap(), entries[38..]);
        assert!(zero.try_get_log_entries(41..).await.unwrap().is_empty());
        let streamed: Vec<Entry> = zero.entries_stream(3..=30).await.try_collect().await.unwrap();
        assert_eq!(streamed, entries[2..30]);
        let mut replayed = Vec::new();
        zero.replay(20, &mut |entry| {
            replayed.push(entry);
            Ok(())
        })
        .unwrap();
        assert_eq!(replayed, entries[19..]);
        let stopped = zero.replay(1, &mut |entry| match entry.log_id.index {
            5 => Err(Error::invalid("enough")),
            _ => Ok(()),
        });
        assert_eq!(stopped.unwrap_err().message, "enough");
        assert_eq!(zero.last_log_id(), Some(log_id(3, 40)));
        assert_eq!(zero.bytes_since(39), 2 * 932);
        assert_eq!(zero.bytes_since(0), 40 * 932);
        zero.purge(log_id(1, 10)).await.unwrap();
        assert_eq!((zero.bytes_since(0), zero.purged()), (30 * 932, Some(log_id(1, 10))));
        assert_eq!(all(&zero).await, entries[10..]);
        log.shutdown().await;
        // And once more, with nothing in memory.
        let log = server.open().await.unwrap();
        let zero = log.partition(PartitionId(0));
        assert_eq!(all(&zero).await, entries[10..]);
        assert_eq!(zero.bytes_since(0), 30 * 932);
        let report = log.report();
        assert_eq!((report.entries, report.bytes, report.torn_bytes), (50, 30 * 932 + 20 * 332, 0));
        assert!(report.segments > 1 && report.seconds > 0.0);
        log.shutdown().await;
    }
}

#[tokio::test]
async fn pieces_for_replication_have_a_bounded_size_but_never_nothing() {
    let mut server = Server::new(1);
    server.config.segment_bytes = 8 << 20;
    for cache_bytes in [0, 64 << 20] {
        server.config.cache_bytes = cache_bytes;
        server.config.cluster = format!("cluster{cache_bytes}");
        server.config.devices[0] = format!("/log-{cache_bytes}").into();
        let log = server.open().await.unwrap();
        let mut zero = log.partition(PartitionId(0));
        let sizes = [400 << 10, 400 << 10, 400 << 10, 3 << 20, 10, 10];
        let entries: Vec<Entry> =
            (1..).zip(sizes).map(|(i, size)| normal(1, i, vec![i as u8; size])).collect();
        append(&zero, entries.clone()).await.unwrap();
        assert_eq!(zero.limited_get_log_entries(1, 7).await.unwrap(), entries[..2]);
        assert_eq!(zero.limited_get_log_entries(3, 7).await.unwrap(), entries[2..3]);
        assert_eq!(zero.limited_get_log_entries(4, 7).await.unwrap(), entries[3..4]);
        assert_eq!(zero.limited_get_log_entries(5, 7).await.unwrap(), entries[4..]);
        assert_eq!(zero.limited_get_log_entries(5, 6).await.unwrap(), entries[4..5]);
        assert_eq!(zero.try_get_log_entries(..).await.unwrap(), entries);
        zero.purge(log_id(1, 2)).await.unwrap();
        assert!(zero.limited_get_log_entries(1, 7).await.unwrap().is_empty());
        log.shutdown().await;
    }
}

#[tokio::test]
async fn a_damaged_record_is_an_error_with_file_and_offset() {
    let mut server = Server::new(1);
    server.config.cache_bytes = 0;
    let log = server.open().await.unwrap();
    let mut zero = log.partition(PartitionId(0));
    for i in 1..=3 {
        append(&zero, vec![marked(0, 1, i, 100)]).await.unwrap();
    }
    let segment = server.segments(0).remove(0);
    let bytes = server.read(&segment);
    let payload = bytes.windows(9).position(|w| w == b"p0 t1 i2 ").unwrap() as u64;
    server.vfs.flip_bit(&segment, payload + 5, 3).unwrap();
    let error = zero.try_get_log_entries(1..4).await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidData);
    let place = format!("{} (generation 1) at offset {}", segment.display(), payload - 32);
    assert!(error.to_string().contains(&place), "{error}");
    assert_eq!(zero.try_get_log_entries(3..4).await.unwrap(), [marked(0, 1, 3, 100)]);
    let error = zero.replay(0, &mut |_| Ok(())).unwrap_err();
    assert!(error.kind == ErrorKind::Corrupt && error.message.contains(&place), "{error}");
    log.shutdown().await;
}

#[derive(Default)]
struct Seen(Mutex<Vec<String>>);

impl LogObserver for Seen {
    fn appended(&self, entries: Vec<Entry>) {
        self.0.lock().extend(entries.iter().map(|entry| format!("+{}", entry.log_id)));
    }

    fn truncated(&self, after: Option<LogId>) {
        self.0.lock().push(format!("-{}", after.map_or("all".into(), |id| id.to_string())));
    }
}

#[tokio::test]
async fn the_observer_sees_appends_and_truncations_in_log_order() {
    let server = Server::new(1);
    let log = server.open().await.unwrap();
    let mut zero = log.partition(PartitionId(0));
    let seen = Arc::new(Seen::default());
    zero.set_observer(seen.clone());
    append(&zero, vec![marked(0, 1, 1, 1), marked(0, 1, 2, 1)]).await.unwrap();
    zero.truncate_after(Some(log_id(1, 5))).await.unwrap();
    zero.truncate_after(Some(log_id(1, 1))).await.unwrap();
    append(&zero, vec![marked(0, 2, 2, 1)]).await.unwrap();
    append(&log.partition(PartitionId(1)), vec![marked(1, 1, 1, 1)]).await.unwrap();
    zero.truncate_after(None).await.unwrap();
    assert_eq!(*seen.0.lock(), ["+1.1", "+1.2", "-1.1", "+2.2", "-all"]);
    let gap = append(&zero, vec![marked(0, 2, 1, 1), marked(0, 2, 3, 1)]).await.unwrap_err();
    assert!(gap.contains("append at index 3: the log ends at 1"), "{gap}");
    assert_eq!(seen.0.lock().len(), 5, "what was refused was not seen");
    log.shutdown().await;
}

#[tokio::test]
async fn it_tells_what_it_does() {
    let server = Server::new(1);
    let mut registry = prometheus_client::registry::Registry::default();
    let log = crate::RaftLog::open(server.env(), server.config.clone(), &server.partitions, &mut registry)
        .await
        .unwrap();
    let zero = log.partition(PartitionId(0));
    for i in 1..=5 {
        append(&zero, vec![marked(0, 1, i, 100)]).await.unwrap();
    }
    log.check_room(1 << 20).unwrap();
    log.shutdown().await;
    assert!(log.check_room(1).is_err());
    let stats = log.stats();
    assert_eq!((stats.fsyncs, stats.batches, stats.records, stats.failed), (5, 5, 5, false));
    assert_eq!(stats.bytes, 5 * 256);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    for line in [
        "raft_log_fsyncs_total{device=\"0\"} 5",
        "raft_log_batch_records_count{device=\"0\"} 5",
        "raft_log_batch_bytes_sum{device=\"0\"} 1280.0",
        "raft_log_fsync_seconds_count{device=\"0\"} 5",
        "raft_log_segments{device=\"0\"} 1",
        "raft_log_queue_records 0",
    ] {
        assert!(text.contains(line), "{line} in\n{text}");
    }
}
