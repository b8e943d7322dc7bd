use bytes::{Bytes, BytesMut};
use sextant_common::expiry;
use sextant_common::ids::{
    Generation, LoadId, LogPosition, ManifestVersion, NodeId, PartitionId, Seq, TableId,
};
use sextant_common::key_range::KeyRange;
use sextant_common::manifest::TableOptions;
use sextant_common::marks::{Kind, Marks};
use sextant_common::operation::{RecordedOutcome, RequestId};
use sextant_environment::config::LeaseConfig;
use sextant_memtable_server::command::{
    Alteration, ChangeTable, Command, Compaction, Configuration, ConfigurationRules, Configure, EnsureTable,
    Flush, Freeze, Group, Load, OpenSession, Placement, Relocation, RequestResult, TableWrites, Write,
};
use sextant_memtable_server::partition::Partition;
use sextant_memtable_server::partition::ingest::Body;
use sextant_memtable_server::partition::snapshot;

use super::wire::{PROTOBUF_BASE, PROTOBUF_PER_BYTE, sample_sst};
use crate::input::Input;
use crate::memory::bounded;

const TERM: u64 = 3;

/// A log entry's payload.
pub fn decode(data: &[u8]) {
    let bytes = Bytes::copy_from_slice(data);
    let decoded = bounded(data.len(), PROTOBUF_BASE, PROTOBUF_PER_BYTE, || Command::decode(&bytes));
    let Ok(command) = decoded else { return };
    let encoded = command.encode();
    assert_eq!(Command::decode(&encoded).ok().as_ref(), Some(&command), "encoded and decoded again");
    if let Command::Group(group) = &command {
        let mut body = BytesMut::new();
        group.encode(&mut body);
        for cut in [0, 1, body.len() / 2, body.len().saturating_sub(1)] {
            assert!(cut == body.len() || Group::decode(&body[..cut]).is_err(), "a group that was cut");
        }
    }
}

fn group(first_seq: u64, generation: u64) -> Command {
    let write = |ordinal: u32, value: Option<&'static str>| Write {
        ordinal,
        key: Bytes::from(format!("key{}", ordinal % 3)),
        value: value.map(Bytes::from),
        marks: match ordinal {
            1 => Marks::until(expiry::Tick(1_700_000_000_000)),
            2 => Marks::new(Kind::Hash, None),
            _ => Marks::NONE,
        },
        leaves_bit: ordinal.is_multiple_of(2),
        prefix: (ordinal == 1).then_some(0x0102_0304_0506_0708),
    };
    let table = |id: u32, ordinals: std::ops::Range<u32>| TableWrites {
        table: TableId(id),
        generation: Generation(generation),
        writes: ordinals.map(|i| write(i, (i % 3 != 2).then_some("value"))).collect(),
    };
    let outcome = RecordedOutcome { applied: true, seq: Seq(first_seq), ..RecordedOutcome::default() };
    let id = RequestId { session: 7, number: 1, acked_below: 1 };
    Command::Group(Group {
        term: TERM,
        first_seq,
        time_ms: 1000,
        tables: vec![table(1, 0..3), table(2, 3..5)],
        requests: vec![RequestResult { id, results: vec![outcome; 2] }],
    })
}

/// What a partition's log might say, in order.
fn commands() -> Vec<Command> {
    let options = TableOptions { filter_inserts: true, ..TableOptions::default() };
    let freeze = |table, generation| {
        Command::Freeze(Freeze { term: TERM, table: TableId(table), generation: Generation(generation) })
    };
    let flush = |sst| {
        Command::Flush(Flush {
            term: TERM,
            table: TableId(1),
            generation: Generation(1),
            freeze: LogPosition { term: TERM, index: 4 },
            sst,
        })
    };
    // After the load.
    let change = |alteration| {
        let (table, next_seq, generation) = (TableId(1), (1 << 37) + 1, Generation((3 << 40) + 1));
        Command::ChangeTable(ChangeTable { term: TERM, table, next_seq, generation, alteration })
    };
    vec![
        Command::EnsureTable(EnsureTable {
            term: TERM,
            name: "default".into(),
            options,
            id: Some(TableId(1)),
        }),
        Command::OpenSession(OpenSession { term: TERM, session: 7, time_ms: 900 }),
        Command::Configure(Configure {
            term: TERM,
            configuration: Configuration::founding(&LeaseConfig::default(), 1 << 20),
        }),
        group(1, 1),
        freeze(1, 1),
        flush(Some(sample_sst(1))),
        freeze(2, 1),
        group(6, 2),
        Command::Compaction(Compaction {
            term: TERM,
            table: TableId(1),
            inputs: vec![sample_sst(1).id],
            range: KeyRange::all(),
            outputs: vec![sample_sst(2)],
            tombstones_dropped: false,
        }),
        Command::Placement(Placement {
            term: TERM,
            version: ManifestVersion(2),
            relocations: vec![Relocation {
                id: sample_sst(1).id,
                add: Some(NodeId(4)),
                remove: Some(NodeId(1)),
            }],
        }),
        Command::Load(Load {
            term: TERM,
            table: TableId(1),
            id: LoadId(7),
            generation: Generation(3),
            next_seq: 11,
            seq: 1 << 37,
            flushed: Generation(3 << 40),
            ssts: vec![sample_sst(3)],
        }),
        Command::Compaction(Compaction {
            term: TERM,
            table: TableId(1),
            inputs: vec![],
            range: KeyRange::new("", "m"),
            outputs: vec![],
            tombstones_dropped: true,
        }),
        flush(None),
        change(Alteration::Options(TableOptions { filter_inserts: true, ..TableOptions::default() })),
        change(Alteration::Drop),
    ]
}

/// What a leader of this term may append next: a group, a freeze of each table, a table, a session.
pub fn following(partition: &Partition, term: u64) -> Vec<Command> {
    let mut commands = vec![
        Command::EnsureTable(EnsureTable {
            term,
            name: "another".into(),
            options: TableOptions::default(),
            id: None,
        }),
        Command::OpenSession(OpenSession { term, session: 1, time_ms: partition.time_ms() }),
    ];
    if let Command::Group(mut group) = group(partition.last_seq() + 1, 1) {
        group.term = term;
        for writes in &mut group.tables {
            writes.generation = partition.table(writes.table).map_or(Generation(1), |t| t.generation());
        }
        commands.push(Command::Group(group));
    }
    let freeze = |(table, state): (TableId, &sextant_memtable_server::partition::table::TableState)| {
        Command::Freeze(Freeze { term, table, generation: state.generation() })
    };
    commands.extend(partition.tables().map(freeze));
    if let Some((table, state)) = partition.tables().last() {
        let (next_seq, generation, alteration) =
            (partition.last_seq() + 1, state.generation(), Alteration::Drop);
        commands.push(Command::ChangeTable(ChangeTable { term, table, next_seq, generation, alteration }));
    }
    commands
}

pub fn decode_seeds() -> Vec<Vec<u8>> {
    let mut extreme = group(u64::MAX, u64::MAX);
    if let Command::Group(group) = &mut extreme {
        (group.term, group.time_ms) = (u64::MAX, u64::MAX);
        group.tables[0].writes[0].ordinal = u32::MAX;
        group.requests[0].id.number = u64::MAX;
    }
    let open = Command::OpenSession(OpenSession { term: u64::MAX, session: u64::MAX, time_ms: u64::MAX });
    commands().iter().chain([&extreme, &open]).map(|command| command.encode().to_vec()).collect()
}

/// Steps of a partition's life: `i` length payload: ingest; `c` count: commit so many entries; `t` count: truncate so many;
/// `s`: take a snapshot. The leader of one term made all entries, as far as they say so.
pub fn partition(data: &[u8]) {
    let id = PartitionId(0);
    let (mut partition, mut twin) = (Partition::new(id), Partition::new(id));
    let mut input = Input::new(data);
    let mut now_ns = 0;
    while !input.is_empty() {
        now_ns += 1;
        let next = partition.next_index();
        match input.u8() {
            b'c' => {
                let index = (partition.committed_index() + u64::from(input.u8())).min(next.saturating_sub(1));
                assert_eq!(partition.commit(index, now_ns), twin.commit(index, now_ns));
            }
            b't' => {
                let first = next.saturating_sub(u64::from(input.u8()));
                let committed = partition.committed_index();
                let (truncated, on_twin) = (partition.truncate_from(first), twin.truncate_from(first));
                assert_eq!(truncated.is_ok(), committed == 0 || first > committed);
                assert_eq!(truncated.is_ok(), on_twin.is_ok());
            }
            b's' => {
                let Some(snapshot) = partition.snapshot() else { continue };
                let encoded = snapshot::encode(&snapshot, id);
                let Ok(decoded) = snapshot::decode(&encoded, id) else { panic!("its snapshot is refused") };
                assert_eq!(snapshot::encode(&decoded, id), encoded);
                let restored = Partition::restore(id, &decoded);
                assert_eq!(restored.last(), snapshot.checkpoint.at);
            }
            _ => {
                let length = usize::from(input.u16() & 0xfff);
                let body = match input.take(length) {
                    [] => Body::Blank,
                    payload => Body::Payload(Bytes::copy_from_slice(payload)),
                };
                let at = LogPosition { term: TERM, index: next };
                let ingested = partition.ingest(at, &body, false);
                let on_twin = twin.ingest(at, &body, false);
                assert_eq!(ingested.as_ref().ok(), on_twin.as_ref().ok());
                if ingested.is_err() {
                    // The server stops here.
                    return;
                }
            }
        }
        assert_eq!((partition.last(), partition.last_seq()), (twin.last(), twin.last_seq()));
        assert_eq!(partition.manifest(), twin.manifest());
        assert!(partition.filters() == twin.filters(), "two replicas have different filters");
        partition.view();
    }
}

pub fn partition_seeds() -> Vec<Vec<u8>> {
    let step = |command: &Command| {
        let payload = command.encode();
        [&b"i"[..], &(payload.len() as u16).to_le_bytes(), &payload].concat()
    };
    // The first entry is the membership, which writes nothing.
    let mut whole = b"i\0\0".to_vec();
    let mut with_commits = whole.clone();
    let mut with_truncations = whole.clone();
    for command in commands() {
        whole.extend(step(&command));
        with_commits.extend(step(&command));
        with_commits.extend(b"c\x01s");
        with_truncations.extend(step(&command));
        with_truncations.extend(b"t\x01");
        with_truncations.extend(step(&command));
    }
    // Numbers at their ends, with a session that is open.
    let mut extreme = whole.clone();
    for (number, time_ms) in [(1, u64::MAX), (u64::MAX, 5), (u64::MAX, u64::MAX)] {
        extreme.extend(step(&Command::OpenSession(OpenSession { term: TERM, session: 7, time_ms })));
        let results = vec![RecordedOutcome::default(); 2];
        let id = RequestId { session: 7, number, acked_below: number };
        extreme.extend(step(&Command::Group(Group {
            term: TERM,
            first_seq: 11,
            time_ms,
            tables: Vec::new(),
            requests: vec![RequestResult { id, results }],
        })));
    }
    extreme.extend(b"t\x02c\x08s");
    whole.extend(b"t\x06c\xffs");
    vec![whole, with_commits, with_truncations, extreme]
}
