use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use sextant_common::ErrorKind;
use sextant_common::cut::{Cut, CutTable};
use sextant_common::expiry::Tick;
use sextant_common::ids::{Generation, LoadId, LogPosition, PartitionId, Seq, TableId};
use sextant_common::manifest::{Manifest, TableInfo, TableOptions};
use sextant_common::operation::{RecordedOutcome, RequestId};
use sextant_common::snapshot::{DroppedTables, HeldCuts};
use sextant_environment::Env;
use sextant_environment::config::LeaseConfig;
use sextant_environment::rng::SeededRng;
use sextant_environment::vfs::{OpenMode, Vfs};
use sextant_memtable_server::command::{Configuration, ConfigurationRules, RequestResult};
use sextant_memtable_server::fuzzing::open_snapshot;
use sextant_memtable_server::partition::ingest::Body;
use sextant_memtable_server::partition::sessions::DuplicateTable;
use sextant_memtable_server::partition::snapshot::{Snapshot, decode, encode};
use sextant_memtable_server::partition::{Checkpoint, Partition};
use sextant_simulated::FaultyVfs;
use sextant_simulated::ManualClock;
use xxhash_rust::xxh3::xxh3_64;

use super::wire::{PROTOBUF_BASE, PROTOBUF_PER_BYTE};
use crate::memory::bounded;

const ID: PartitionId = PartitionId(3);

/// A snapshot's bytes: bare, in a file with the right checksum, and as the file itself.
pub fn snapshot(data: &[u8]) {
    let decoded = bounded(data.len(), PROTOBUF_BASE, PROTOBUF_PER_BYTE, || decode(data, ID));
    if let Ok(snapshot) = &decoded {
        let encoded = encode(snapshot, ID);
        let Ok(again) = decode(&encoded, ID) else { panic!("its own bytes are refused") };
        // Sessions have no equality, but an order: the bytes tell.
        assert_eq!(encode(&again, ID), encoded);
        assert_eq!(again.manifest, snapshot.manifest);
        assert_eq!((again.checkpoint.at, again.next_table), (snapshot.checkpoint.at, snapshot.next_table));
        assert!(decode(&encoded, PartitionId(4)).is_err(), "another partition's");
        let mut partition = Partition::restore(ID, snapshot);
        assert_eq!(partition.last(), snapshot.checkpoint.at);
        partition.view();
        partition.filters();
        let _ = (partition.persisted(), partition.last_seq());
        // It goes on from there.
        for command in super::command::following(&partition, snapshot.checkpoint.at.term) {
            let at = LogPosition { term: snapshot.checkpoint.at.term, index: partition.next_index() };
            let ingested = partition.ingest(at, &Body::Payload(command.encode()), false);
            assert!(ingested.is_ok(), "{ingested:?}");
        }
        partition.commit(partition.next_index() - 1, 1);
    }
    let mut framed = b"SXTSNAP1".to_vec();
    framed.extend_from_slice(&xxh3_64(data).to_le_bytes());
    framed.extend_from_slice(data);
    match (open(&framed), &decoded) {
        (Ok(Some(from_file)), Ok(snapshot)) => assert_eq!(encode(&from_file, ID), encode(snapshot, ID)),
        // The file's reader also wants a membership that it can read.
        (Err(_), _) => {}
        (opened, _) => panic!("the file opened as {opened:?}, its contents did not decode"),
    }
    // The file itself: its checksum is wrong, but for one in 2^64.
    assert_eq!(open(data).err().map(|e| e.kind), Some(ErrorKind::Corrupt));
}

fn open(file: &[u8]) -> sextant_common::Result<Option<Snapshot>> {
    let vfs = FaultyVfs::new(1);
    let dir = Path::new("/data");
    vfs.create_dir_all(dir)?;
    vfs.open(&dir.join(format!("partition-{ID}.snapshot")), OpenMode::CreateNew)?.write_all_at(file, 0)?;
    let env = Env {
        clock: Arc::new(ManualClock::default()),
        rng: Arc::new(SeededRng::new(1)),
        vfs: Arc::new(vfs),
        ..Env::real()
    };
    open_snapshot(&env, dir, ID)
}

fn sample_cut() -> Cut {
    let table = |number, ssts| CutTable {
        table: TableId(number),
        name: number.to_string(),
        options: Default::default(),
        generation: Generation(3),
        ssts,
    };
    let ssts = super::wire::sample_manifest(ID).all_ssts().cloned().collect();
    Cut {
        id: 7,
        at: 97,
        seq: Seq(900),
        tick: Tick(4800),
        opened_ms: 4000,
        lease_ms: 60_000,
        tables: vec![table(1, Some(ssts)), table(2, None)],
        // As of versions that do not say where in the log it stands.
        term: 0,
        lineage: 0,
    }
}

pub fn seeds() -> Vec<Vec<u8>> {
    let mut sessions = DuplicateTable::default();
    for session in 1..4 {
        sessions.open(session, 1000);
        let outcome = RecordedOutcome { applied: true, seq: Seq(session), ..RecordedOutcome::default() };
        for number in 1..4 {
            let id = RequestId { session, number, acked_below: 2 };
            let request = RequestResult { id, results: vec![outcome.clone()] };
            sessions.record(&request, 2000, &mut Vec::new());
        }
    }
    let full = Snapshot {
        checkpoint: Checkpoint {
            at: LogPosition { term: 3, index: 99 },
            next_seq: 1000,
            time_ms: 5000,
            tick: Tick(4900),
            generations: BTreeMap::from([(TableId(1), Generation(4)), (TableId(2), Generation(1))]),
            sessions,
            membership: super::log::membership_bytes(),
        },
        manifest: super::wire::sample_manifest(ID),
        next_table: 3,
        configuration: Some((Configuration::founding(&LeaseConfig::default(), 1 << 20), 9)),
        cuts: HeldCuts { applied: 98, cuts: vec![sample_cut().into()] },
        loads: vec![LoadId(7), LoadId(u64::MAX)],
        dropped: DroppedTables {
            ids: [TableId(7), TableId(u32::MAX)].into(),
            newest: [TableInfo {
                id: TableId(7),
                name: "gone".into(),
                options: TableOptions { filter_inserts: true, ..TableOptions::default() },
            }]
            .into(),
        },
    };
    let mut empty = full.clone();
    empty.checkpoint.sessions = DuplicateTable::default();
    empty.checkpoint.membership = Bytes::new();
    empty.manifest = Manifest::empty(ID);
    empty.configuration = None;
    empty.cuts = HeldCuts::default();
    let mut extreme = full.clone();
    let checkpoint = &mut extreme.checkpoint;
    checkpoint.at = LogPosition { term: u64::MAX, index: u64::MAX };
    (checkpoint.next_seq, checkpoint.time_ms) = (u64::MAX, u64::MAX);
    checkpoint.generations = BTreeMap::from([(TableId(u32::MAX), Generation(u64::MAX))]);
    extreme.manifest.version.0 = u64::MAX;
    extreme.next_table = u32::MAX;
    let mut last_position = full.clone();
    last_position.checkpoint.at.index = u64::MAX;
    let mut last_seq = full.clone();
    last_seq.checkpoint.next_seq = u64::MAX;
    let all = [encode(&full, ID), encode(&empty, ID), encode(&full, PartitionId(9))];
    let extremes = [extreme, last_position, last_seq].map(|snapshot| encode(&snapshot, ID));
    all.into_iter().chain(extremes).collect()
}
