use std::sync::Arc;

use bytes::Bytes;
use prost::Message;
use sextant_common::ids::{
    Epoch, Generation, LogPosition, ManifestVersion, NodeId, PartitionId, SstId, TableId,
};
use sextant_common::limits::{BATCH_BYTES_MAX, BATCH_OPS_MAX, KEY_BYTES_MAX, VALUE_BYTES_MAX};
use sextant_common::manifest::{
    FlushRecord, Manifest, ManifestChange, SstList, SstMeta, TableManifest, TableOptions,
};
use sextant_common::operation::{Condition, Effect, LifetimeTest, Update};
use sextant_memtable_server::fuzzing::{self, Address};
use sextant_proto::convert::manifest_change::change_from_wire;
use sextant_proto::v1;

use crate::memory::bounded;

/// Protobuf announces a nested message with two bytes; decoded it takes some hundred, once more in the domain's type, and
/// vectors grow by doubling. What no field announces is never taken.
pub const PROTOBUF_PER_BYTE: usize = 800;
pub const PROTOBUF_BASE: usize = 8192;

pub fn sample_sst(counter: u32) -> SstMeta {
    SstMeta {
        id: SstId {
            partition: PartitionId(3),
            plan: LogPosition { term: 2, index: 3 },
            epoch: Epoch { term: 4, incarnation: 5 },
            counter,
        },
        table: TableId(1),
        records: 10,
        tombstones: 1,
        min_key: Bytes::from_static(b"a"),
        max_key: Bytes::from_static(b"zz"),
        min_seq: 1,
        max_seq: 10,
        file_bytes: 1000,
        checksum: 0x1234_5678_9abc_def0,
        generations: Default::default(),
        range: Default::default(),
        expiring: Default::default(),
        replicas: vec![NodeId(1), NodeId(2)],
    }
}

pub fn sample_manifest(partition: PartitionId) -> Manifest {
    let table = |id: u32, ssts| TableManifest {
        table: TableId(id),
        name: format!("table-{id}"),
        options: TableOptions::default(),
        flushed_generation: Generation(2),
        last_flush_version: ManifestVersion(4),
        persisted: LogPosition { term: 1, index: 7 },
        ssts: SstList::from(ssts),
    };
    let flush = |version, id| FlushRecord { version: ManifestVersion(version), table: TableId(1), id };
    Manifest {
        partition,
        version: ManifestVersion(5),
        tables: vec![table(1, vec![sample_sst(2), sample_sst(1)]), table(2, vec![])],
        recent_flushes: vec![flush(3, Some(sample_sst(1).id)), flush(4, None)],
        flushes_known_after: ManifestVersion(2),
    }
}

/// A `Manifest` message; also read as an `SstMeta`, as `TableOptions`, and as a change of the sample.
pub fn manifest(data: &[u8]) {
    bounded(data.len(), PROTOBUF_BASE, PROTOBUF_PER_BYTE, || {
        if let Ok(manifest) = decoded::<v1::Manifest, Manifest>(data) {
            let wire = v1::Manifest::from(&manifest);
            assert_eq!(
                decoded::<v1::Manifest, Manifest>(&wire.encode_to_vec()).ok().as_ref(),
                Some(&manifest)
            );
            for table in &manifest.tables {
                assert_eq!(manifest.table(table.table), Some(table), "a table that is there is found");
            }
        }
        if let Ok(sst) = decoded::<v1::SstMeta, SstMeta>(data) {
            let wire = v1::SstMeta::from(&sst);
            assert_eq!(decoded::<v1::SstMeta, SstMeta>(&wire.encode_to_vec()).ok().as_ref(), Some(&sst));
        }
        if let Ok(options) = decoded::<v1::TableOptions, TableOptions>(data) {
            let wire = v1::TableOptions::from(&options);
            assert_eq!(
                decoded::<v1::TableOptions, TableOptions>(&wire.encode_to_vec()).ok().as_ref(),
                Some(&options)
            );
        }
        if let Ok(message) = v1::ManifestChange::decode(data) {
            change(message);
        }
    });
}

/// Whatever it says, it leads to what it names, or nowhere.
fn change(message: v1::ManifestChange) {
    let partition = PartitionId(3);
    let Ok(change) = change_from_wire(partition, message) else { return };
    let again = change_from_wire(partition, v1::ManifestChange::from(&change));
    assert_eq!(again.ok().as_ref(), Some(&change));
    let before = sample_manifest(partition);
    if let Ok(after) = before.changed(&change) {
        assert_eq!((after.version, after.digest()), (change.to, change.digest));
        assert!(after.version > before.version);
    }
}

pub fn sample_change() -> ManifestChange {
    let before = sample_manifest(PartitionId(3));
    let mut after = before.clone();
    after.version = ManifestVersion(6);
    let id = Some(sample_sst(3).id);
    after.remember_flush(FlushRecord { version: after.version, table: TableId(1), id });
    after.tables[0].ssts.splice(0, 1, [Arc::new(sample_sst(3)), Arc::new(sample_sst(4))]);
    after.tables.push(TableManifest::new(TableId(9), "new".into(), TableOptions::default()));
    ManifestChange::between(&before, &after).expect("no table is gone")
}

fn decoded<W: Message + Default, T: TryFrom<W>>(data: &[u8]) -> Result<T, ()> {
    let message = W::decode(data).map_err(|_| ())?;
    message.try_into().map_err(|_| ())
}

pub fn manifest_seeds() -> Vec<Vec<u8>> {
    vec![
        v1::Manifest::from(&sample_manifest(PartitionId(3))).encode_to_vec(),
        v1::Manifest::from(&Manifest::empty(PartitionId(0))).encode_to_vec(),
        v1::SstMeta::from(&sample_sst(7)).encode_to_vec(),
        v1::TableOptions::from(&TableOptions { filter_inserts: true, ..TableOptions::default() })
            .encode_to_vec(),
        v1::ManifestChange::from(&sample_change()).encode_to_vec(),
    ]
}

/// A `WriteRequest` message.
pub fn write_request(data: &[u8]) {
    let Ok(message) = v1::WriteRequest::decode(data) else { return };
    let converted =
        bounded(data.len(), PROTOBUF_BASE, PROTOBUF_PER_BYTE, || fuzzing::write_request(message.clone()));
    let Ok((request, cost)) = converted else { return };
    assert!((1..=BATCH_OPS_MAX).contains(&request.ops.len()));
    assert_eq!(request.ops.len(), message.ops.len());
    let (mut bytes, mut base_bytes) = (0, 0);
    for (op, wire) in request.ops.iter().zip(&message.ops) {
        let value = op.effect.bytes();
        assert!((1..=KEY_BYTES_MAX).contains(&op.key.len()) && value <= VALUE_BYTES_MAX);
        bytes += op.key.len() + value;
        assert_eq!(op.key, wire.key);
        // An operation must be what it says, or refused: a condition that this server does not know is not "none".
        let kind = match &op.effect {
            Effect::Put(_) => v1::WriteKind::WritePut,
            Effect::Delete => v1::WriteKind::WriteDelete,
            Effect::Update(Update::Increment(_)) => v1::WriteKind::WriteIncrement,
            Effect::Update(Update::IncrementDecimal(_)) => v1::WriteKind::WriteIncrementDecimal,
            Effect::Update(Update::Append(_)) => v1::WriteKind::WriteAppend,
            Effect::Update(Update::SetRange { .. }) => v1::WriteKind::WriteSetRange,
            Effect::Update(Update::Touch) => v1::WriteKind::WriteTouch,
            Effect::Update(Update::Count { .. }) => v1::WriteKind::WriteCount,
            Effect::Update(Update::Header { .. }) => v1::WriteKind::WriteHeader,
            Effect::Check => v1::WriteKind::WriteCheck,
        };
        assert_eq!(i32::from(kind), wire.kind, "the kind was taken for another");
        base_bytes += op.base_value.as_ref().map_or(0, Bytes::len);
        let condition = match &op.condition {
            Condition::None => v1::Condition::None,
            Condition::Absent => v1::Condition::Absent,
            Condition::Present => v1::Condition::Present,
            Condition::ValueEquals(_) => v1::Condition::ValueEquals,
            Condition::SeqEquals(_) => v1::Condition::SeqEquals,
            Condition::Lifetime(LifetimeTest::Unlimited) => v1::Condition::LifetimeUnlimited,
            Condition::Lifetime(LifetimeTest::Limited) => v1::Condition::LifetimeLimited,
            Condition::Lifetime(LifetimeTest::Shorter) => v1::Condition::LifetimeShorter,
            Condition::Lifetime(LifetimeTest::Longer) => v1::Condition::LifetimeLonger,
            Condition::Lifetime(LifetimeTest::LimitedAndLonger) => v1::Condition::LifetimeLimitedAndLonger,
        };
        assert_eq!(i32::from(condition), wire.condition, "the condition was taken for another");
    }
    assert!(bytes <= BATCH_BYTES_MAX && base_bytes <= BATCH_BYTES_MAX);
    assert!(cost >= bytes + base_bytes, "it costs at least what it carries");
}

pub fn write_request_seeds() -> Vec<Vec<u8>> {
    let op = |kind: v1::WriteKind, condition: v1::Condition, base: Option<v1::Base>| v1::WriteOp {
        table: 1,
        kind: kind.into(),
        key: Bytes::from_static(b"key"),
        value: Bytes::from_static(b"value"),
        condition: condition.into(),
        expected_value: Bytes::from_static(b"old"),
        expected_seq: 9,
        base,
        skip_on_failure: condition == v1::Condition::Absent,
        increment: -7,
        decimal: "2.5".into(),
        offset: 3,
        returns: v1::Returns::Before.into(),
        lifetime: Some(v1::Lifetime { lifetime: Some(v1::lifetime::Lifetime::TtlMs(1000)) }),
        object: Some(v1::ObjectUpdate {
            kind: 1,
            version: 7,
            creates: true,
            counted: 2,
            bounds: Bytes::from_static(b"\0\xff"),
        }),
    };
    let base = v1::Base {
        manifest_version: 3,
        present: true,
        seq: 4,
        value_matches: true,
        value: Some("v".into()),
        expires_at: 1_700_000_000_000,
    };
    use v1::{Condition as C, WriteKind as K};
    let ops = vec![
        op(K::WritePut, C::None, None),
        op(K::WriteCount, C::None, None),
        op(K::WriteHeader, C::SeqEquals, None),
        op(K::WriteDelete, C::Present, Some(base.clone())),
        op(K::WritePut, C::Absent, Some(base.clone())),
        op(K::WritePut, C::ValueEquals, Some(base.clone())),
        op(K::WriteDelete, C::SeqEquals, None),
        op(K::WriteIncrement, C::None, Some(base.clone())),
        op(K::WriteIncrementDecimal, C::None, Some(base.clone())),
        op(K::WriteAppend, C::None, Some(base.clone())),
        op(K::WriteSetRange, C::Present, Some(base.clone())),
        op(K::WriteTouch, C::LifetimeShorter, Some(base)),
    ];
    let request = |ops| v1::WriteRequest {
        id: 1,
        partition: 2,
        session: 3,
        request_no: 4,
        acked_below: 5,
        ops,
        deadline_ms: 6,
    };
    let mut seeds: Vec<Vec<u8>> = ops.iter().map(|op| request(vec![op.clone()]).encode_to_vec()).collect();
    seeds.push(request(ops.clone()).encode_to_vec());
    for (kind, condition) in [(7, 0), (0, 10), (-1, 0), (1, i32::MAX)] {
        let unknown = v1::WriteOp { kind, condition, ..ops[0].clone() };
        seeds.push(request(vec![unknown]).encode_to_vec());
    }
    seeds.push(request(Vec::new()).encode_to_vec());
    seeds
}

/// The first byte names the message; then its bytes.
pub fn raft_message(data: &[u8]) {
    let Some((kind, data)) = data.split_first() else { return };
    let address =
        Address { partition: 1, from: 1, to: 2, cluster: Bytes::from_static(b"c"), to_incarnation: 9 };
    bounded(data.len(), PROTOBUF_BASE, PROTOBUF_PER_BYTE, || match kind % 4 {
        0 => {
            let Ok(message) = v1::AppendEntriesRequest::decode(data) else { return };
            let Ok(request) = fuzzing::append_from_wire(message) else { return };
            let mut expected = request.prev_log_id;
            for entry in &request.entries {
                // openraft takes consecutive entries for granted.
                if let Some(before) = expected {
                    assert!(entry.log_id.index > before.index, "entries out of order");
                    assert_eq!(entry.log_id.index - before.index, 1, "a hole between entries");
                    assert!(entry.log_id.leader_id.term >= before.leader_id.term, "terms fall");
                }
                expected = Some(entry.log_id);
            }
            let wire = fuzzing::append_to_wire(&address, request.clone(), 400_000_000, 3);
            let Ok(again) = fuzzing::append_from_wire(wire) else { panic!("its own message is refused") };
            assert_eq!(
                (again.vote, again.prev_log_id, again.leader_commit, again.entries),
                (request.vote, request.prev_log_id, request.leader_commit, request.entries)
            );
        }
        1 => {
            let Ok(message) = v1::AppendEntriesResponse::decode(data) else { return };
            let outcome = message.outcome;
            let Ok(reply) = fuzzing::append_reply_from_wire(message.clone()) else { return };
            // To take an unknown outcome for success would count a follower that has nothing.
            let known = v1::append_entries_response::Outcome::try_from(outcome);
            assert!(known.is_ok(), "outcome {outcome} was taken for another");
            let shown = format!("{reply:?}");
            let wire = fuzzing::append_reply_to_wire(reply);
            let again = fuzzing::append_reply_from_wire(wire);
            assert_eq!(again.map(|reply| format!("{reply:?}")).ok(), Some(shown));
            let _ = fuzzing::stream_result_from_wire(message, (None, None));
        }
        2 => {
            let Ok(message) = v1::VoteRequest::decode(data) else { return };
            let Ok(request) = fuzzing::vote_request_from_wire(message) else { return };
            let wire = fuzzing::vote_request_to_wire(&address, &request);
            let Ok(again) = fuzzing::vote_request_from_wire(wire) else {
                panic!("its own message is refused")
            };
            assert_eq!((again.vote, again.last_log_id), (request.vote, request.last_log_id));
        }
        _ => {
            let Ok(message) = v1::VoteResponse::decode(data) else { return };
            let Ok(reply) = fuzzing::vote_reply_from_wire(message) else { return };
            let wire = fuzzing::vote_reply_to_wire(&reply);
            let Ok(again) = fuzzing::vote_reply_from_wire(wire) else { panic!("its own message is refused") };
            assert_eq!(
                (again.vote, again.last_log_id, again.vote_granted),
                (reply.vote, reply.last_log_id, reply.vote_granted)
            );
        }
    });
}

pub fn raft_message_seeds() -> Vec<Vec<u8>> {
    let at = |index| Some(v1::LogPosition { term: 2, index });
    let vote = Some(v1::RaftVote { term: 2, node: 1, committed: true });
    let entries = super::log::entry_seeds()
        .into_iter()
        .filter(|bytes| sextant_raft_log::decode_entry(LogPosition::default(), bytes.clone().into()).is_ok())
        .enumerate()
        .map(|(i, data)| v1::RaftEntry { position: at(8 + i as u64), data: data.into() });
    let append = v1::AppendEntriesRequest {
        partition: 1,
        from: 1,
        to: 2,
        cluster: Bytes::from_static(b"c"),
        vote,
        prev: at(7),
        leader_commit: at(6),
        entries: entries.collect(),
        abstention_ns: 400_000_000,
        to_incarnation: 9,
        acknowledged: 8,
    };
    let heartbeat = v1::AppendEntriesRequest { entries: Vec::new(), prev: None, ..append.clone() };
    let last = |index: u64| Some(v1::LogPosition { term: u64::MAX, index });
    let entry = |index: u64| v1::RaftEntry { position: last(index), data: Bytes::from_static(&[0]) };
    let extreme = v1::AppendEntriesRequest {
        prev: last(u64::MAX),
        entries: vec![entry(0)],
        leader_commit: last(u64::MAX),
        ..append.clone()
    };
    let hole = v1::AppendEntriesRequest { entries: vec![entry(8), entry(10)], ..append.clone() };
    let mut seeds = vec![
        [&[0][..], &extreme.encode_to_vec()].concat(),
        [&[0][..], &hole.encode_to_vec()].concat(),
        [&[0][..], &append.encode_to_vec()].concat(),
        [&[0][..], &heartbeat.encode_to_vec()].concat(),
    ];
    for outcome in [0, 1, 2, 3, 4, 5, -1, i32::MAX] {
        let reply = v1::AppendEntriesResponse { outcome, matching: at(8), vote, error: "why".into() };
        seeds.push([&[1][..], &reply.encode_to_vec()].concat());
    }
    let request = v1::VoteRequest {
        partition: 1,
        from: 1,
        to: 2,
        cluster: Bytes::from_static(b"c"),
        vote: Some(v1::RaftVote { term: 3, node: 2, committed: false }),
        last_log: at(9),
        to_incarnation: 9,
    };
    seeds.push([&[2][..], &request.encode_to_vec()].concat());
    let reply = v1::VoteResponse { vote, granted: true, last_log: at(9) };
    seeds.push([&[3][..], &reply.encode_to_vec()].concat());
    seeds
}
