//! Operations and what is answered to them: of clients ([`Operation`], `kv.proto`), and on their way to a leader
//! ([`WriteOp`], `rows.proto`).
//!
//! Enumerations are not read by prost's accessors: those take what they do not know for the default, here a write
//! without a condition.

use bytes::Bytes;
use sextant_common::error::{Error, Result};
use sextant_common::ids::{ManifestVersion, Seq, TableId};
use sextant_common::limits;
use sextant_common::operation::{
    Base, Condition, Effect, Expected, OpOutcome, Operation, ReadMode, Record, RequestId, WriteOp,
    WriteOutcome, WriteRequest, WriteStatus,
};

use crate::v1;
use crate::v1::kv_compare_and_set_request as compare_and_set;

impl From<ReadMode> for v1::ReadMode {
    fn from(mode: ReadMode) -> Self {
        match mode {
            ReadMode::Pda => v1::ReadMode::ModePda,
            ReadMode::Bda => v1::ReadMode::ModeBda,
            ReadMode::Nda => v1::ReadMode::ModeNda,
        }
    }
}

pub fn read_mode_from_wire(mode: i32) -> Result<ReadMode> {
    match v1::ReadMode::try_from(mode) {
        Ok(v1::ReadMode::ModePda) => Ok(ReadMode::Pda),
        Ok(v1::ReadMode::ModeBda) => Ok(ReadMode::Bda),
        Ok(v1::ReadMode::ModeNda) => Ok(ReadMode::Nda),
        Err(_) => Err(Error::invalid(format!("unknown read mode {mode}"))),
    }
}

impl From<Option<Record>> for v1::KvGetReply {
    fn from(record: Option<Record>) -> Self {
        record.map_or_else(Self::default, |r| Self { found: true, value: r.value, seq: r.seq.0 })
    }
}

impl From<v1::KvGetReply> for Option<Record> {
    fn from(reply: v1::KvGetReply) -> Self {
        reply.found.then_some(Record { value: reply.value, seq: Seq(reply.seq) })
    }
}

impl From<RequestId> for v1::RequestId {
    fn from(id: RequestId) -> Self {
        Self { session: id.session, number: id.number, acked_below: id.acked_below }
    }
}

impl From<v1::RequestId> for RequestId {
    fn from(id: v1::RequestId) -> Self {
        Self { session: id.session, number: id.number, acked_below: id.acked_below }
    }
}

fn effect_to_wire(effect: &Effect) -> (v1::WriteKind, Bytes) {
    match effect {
        Effect::Put(value) => (v1::WriteKind::WritePut, value.clone()),
        Effect::Delete => (v1::WriteKind::WriteDelete, Bytes::new()),
    }
}

fn effect_from_wire(kind: i32, value: Bytes) -> Result<Effect> {
    match v1::WriteKind::try_from(kind) {
        Ok(v1::WriteKind::WritePut) => Ok(Effect::Put(value)),
        Ok(v1::WriteKind::WriteDelete) => Ok(Effect::Delete),
        Err(_) => Err(Error::invalid(format!("unknown kind of write {kind}"))),
    }
}

fn condition_to_wire(condition: &Condition) -> (v1::Condition, Bytes, u64) {
    use v1::Condition as C;
    match condition {
        Condition::None => (C::None, Bytes::new(), 0),
        Condition::Absent => (C::Absent, Bytes::new(), 0),
        Condition::Present => (C::Present, Bytes::new(), 0),
        Condition::ValueEquals(value) => (C::ValueEquals, value.clone(), 0),
        Condition::SeqEquals(seq) => (C::SeqEquals, Bytes::new(), seq.0),
    }
}

fn condition_from_wire(condition: i32, expected_value: Bytes, expected_seq: u64) -> Result<Condition> {
    use v1::Condition as C;
    match C::try_from(condition) {
        Ok(C::None) => Ok(Condition::None),
        Ok(C::Absent) => Ok(Condition::Absent),
        Ok(C::Present) => Ok(Condition::Present),
        Ok(C::ValueEquals) => Ok(Condition::ValueEquals(expected_value)),
        Ok(C::SeqEquals) => Ok(Condition::SeqEquals(Seq(expected_seq))),
        Err(_) => Err(Error::invalid(format!("unknown condition {condition}"))),
    }
}

impl From<Operation> for v1::KvBatchOp {
    fn from(op: Operation) -> Self {
        let (kind, value) = effect_to_wire(&op.effect);
        let (condition, expected_value, expected_seq) = condition_to_wire(&op.condition);
        Self {
            table: op.table,
            key: op.key,
            kind: kind.into(),
            value,
            condition: condition.into(),
            expected_value,
            expected_seq,
            skip_on_failure: op.skip_on_failure,
        }
    }
}

impl TryFrom<v1::KvBatchOp> for Operation {
    type Error = Error;

    fn try_from(op: v1::KvBatchOp) -> Result<Self> {
        Ok(Self {
            table: op.table,
            key: op.key,
            effect: effect_from_wire(op.kind, op.value)?,
            condition: condition_from_wire(op.condition, op.expected_value, op.expected_seq)?,
            skip_on_failure: op.skip_on_failure,
        })
    }
}

impl From<Expected> for compare_and_set::Expected {
    fn from(expected: Expected) -> Self {
        match expected {
            Expected::Absent => Self::Seq(0),
            Expected::Value(value) => Self::Value(value),
            Expected::Seq(seq) => Self::Seq(seq.0),
        }
    }
}

impl From<compare_and_set::Expected> for Expected {
    fn from(expected: compare_and_set::Expected) -> Self {
        match expected {
            compare_and_set::Expected::Value(value) => Self::Value(value),
            compare_and_set::Expected::Seq(seq) => Self::Seq(Seq(seq)),
        }
    }
}

impl From<Effect> for compare_and_set::Effect {
    fn from(effect: Effect) -> Self {
        match effect {
            Effect::Put(value) => Self::NewValue(value),
            Effect::Delete => Self::Delete(true),
        }
    }
}

impl TryFrom<v1::KvCompareAndSetRequest> for Operation {
    type Error = Error;

    fn try_from(r: v1::KvCompareAndSetRequest) -> Result<Self> {
        let expected = r.expected.ok_or_else(|| Error::invalid("compare-and-set: nothing is expected"))?;
        let effect = match r.effect {
            Some(compare_and_set::Effect::NewValue(value)) => Effect::Put(value),
            Some(compare_and_set::Effect::Delete(true)) => Effect::Delete,
            Some(compare_and_set::Effect::Delete(false)) | None => {
                return Err(Error::invalid("compare-and-set: neither a new value nor a delete"));
            }
        };
        Ok(Self::new(r.table, r.key, effect).only_if(Expected::from(expected).into()))
    }
}

impl From<Base> for v1::Base {
    fn from(base: Base) -> Self {
        Self {
            manifest_version: base.manifest.0,
            present: base.present,
            seq: base.seq.0,
            value_matches: base.value_matches,
        }
    }
}

impl From<v1::Base> for Base {
    fn from(base: v1::Base) -> Self {
        Self {
            manifest: ManifestVersion(base.manifest_version),
            present: base.present,
            seq: Seq(base.seq),
            value_matches: base.value_matches,
        }
    }
}

/// A client's operation on its way to the leader. Over references, so that it can be sent again: nothing of it is
/// copied.
pub fn write_op_to_wire(table: TableId, op: &Operation, base: Option<Base>) -> v1::WriteOp {
    let (kind, value) = effect_to_wire(&op.effect);
    let (condition, expected_value, expected_seq) = condition_to_wire(&op.condition);
    v1::WriteOp {
        table: table.0,
        kind: kind.into(),
        key: op.key.clone(),
        value,
        condition: condition.into(),
        expected_value,
        expected_seq,
        base: base.map(Into::into),
        skip_on_failure: op.skip_on_failure,
    }
}

/// A write as its leader gets it; also what it carries (keys, values and expected values), in bytes.
pub fn write_from_wire(request: v1::WriteRequest) -> Result<(WriteRequest, usize)> {
    if request.ops.is_empty() {
        return Err(Error::invalid("a write without operations"));
    }
    let (mut bytes, mut expected_bytes) = (0, 0);
    let mut ops = Vec::with_capacity(request.ops.len());
    for op in request.ops {
        limits::check_key(&op.key)?;
        limits::check_value(&op.value)?;
        limits::check_value(&op.expected_value)?;
        bytes += op.key.len() + op.value.len();
        expected_bytes += op.expected_value.len();
        ops.push(WriteOp {
            condition: condition_from_wire(op.condition, op.expected_value, op.expected_seq)?,
            effect: effect_from_wire(op.kind, op.value)?,
            table: TableId(op.table),
            key: op.key,
            base: op.base.map(Into::into),
            skip_on_failure: op.skip_on_failure,
        });
    }
    limits::check_batch(ops.len(), bytes.max(expected_bytes))?;
    let id =
        RequestId { session: request.session, number: request.request_no, acked_below: request.acked_below };
    Ok((WriteRequest { id, ops }, bytes + expected_bytes))
}

impl From<OpOutcome> for v1::OpResult {
    fn from(outcome: OpOutcome) -> Self {
        Self { applied: outcome.applied, existed: outcome.existed, seq: outcome.seq.0 }
    }
}

impl From<v1::OpResult> for OpOutcome {
    fn from(result: v1::OpResult) -> Self {
        Self { applied: result.applied, existed: result.existed, seq: Seq(result.seq) }
    }
}

impl From<WriteOutcome> for v1::KvWriteReply {
    fn from(outcome: WriteOutcome) -> Self {
        let results = outcome.results.into_iter().map(Into::into).collect();
        Self { applied: outcome.applied, results }
    }
}

impl From<v1::KvWriteReply> for WriteOutcome {
    fn from(reply: v1::KvWriteReply) -> Self {
        let results = reply.results.into_iter().map(Into::into).collect();
        Self { applied: reply.applied, results }
    }
}

impl From<WriteStatus> for v1::WriteStatus {
    fn from(status: WriteStatus) -> Self {
        match status {
            WriteStatus::Ok => Self::WriteOk,
            WriteStatus::ConditionFailed => Self::WriteConditionFailed,
            WriteStatus::StaleManifest => Self::WriteStaleManifest,
            WriteStatus::NotLeader => Self::WriteNotLeader,
            WriteStatus::Retry => Self::WriteRetry,
            WriteStatus::UnknownTable => Self::WriteUnknownTable,
            WriteStatus::UnknownPartition => Self::WriteUnknownPartition,
            WriteStatus::UnknownSession => Self::WriteUnknownSession,
            WriteStatus::RequestTooOld => Self::WriteRequestTooOld,
            WriteStatus::Overloaded => Self::WriteOverloaded,
            WriteStatus::Invalid => Self::WriteInvalid,
            WriteStatus::OutcomeUnknown => Self::WriteOutcomeUnknown,
        }
    }
}

pub fn write_status_from_wire(status: i32) -> Result<WriteStatus> {
    use v1::WriteStatus as S;
    match S::try_from(status) {
        Ok(S::WriteOk) => Ok(WriteStatus::Ok),
        Ok(S::WriteConditionFailed) => Ok(WriteStatus::ConditionFailed),
        Ok(S::WriteStaleManifest) => Ok(WriteStatus::StaleManifest),
        Ok(S::WriteNotLeader) => Ok(WriteStatus::NotLeader),
        Ok(S::WriteRetry) => Ok(WriteStatus::Retry),
        Ok(S::WriteUnknownTable) => Ok(WriteStatus::UnknownTable),
        Ok(S::WriteUnknownPartition) => Ok(WriteStatus::UnknownPartition),
        Ok(S::WriteUnknownSession) => Ok(WriteStatus::UnknownSession),
        Ok(S::WriteRequestTooOld) => Ok(WriteStatus::RequestTooOld),
        Ok(S::WriteOverloaded) => Ok(WriteStatus::Overloaded),
        Ok(S::WriteInvalid) => Ok(WriteStatus::Invalid),
        Ok(S::WriteOutcomeUnknown) => Ok(WriteStatus::OutcomeUnknown),
        Err(_) => Err(Error::internal(format!("unknown write status {status}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_of_an_unknown_kind_or_condition_is_refused() {
        let request = |kind: i32, condition: i32| v1::WriteRequest {
            ops: vec![v1::WriteOp { key: Bytes::from_static(b"k"), kind, condition, ..Default::default() }],
            ..Default::default()
        };
        write_from_wire(request(1, 4)).unwrap();
        assert!(write_from_wire(request(2, 0)).unwrap_err().message.contains("kind of write 2"));
        assert!(write_from_wire(request(0, 5)).unwrap_err().message.contains("condition 5"));
        assert!(write_from_wire(request(0, -1)).unwrap_err().message.contains("condition -1"));
    }

    #[test]
    fn operations_are_the_same_after_their_way_to_the_p_node_and_to_the_leader() {
        for condition in [
            Condition::None,
            Condition::Absent,
            Condition::Present,
            Condition::ValueEquals("old".into()),
            Condition::SeqEquals(Seq(7)),
        ] {
            for effect in [Effect::Put("new".into()), Effect::Delete] {
                let op = Operation::new("t", "k", effect).only_if(condition.clone()).skip_on_failure();
                assert_eq!(Operation::try_from(v1::KvBatchOp::from(op.clone())).unwrap(), op);
                let sent = write_op_to_wire(TableId(4), &op, None);
                let request = v1::WriteRequest { ops: vec![sent], ..Default::default() };
                let (received, bytes) = write_from_wire(request).unwrap();
                assert_eq!(bytes, op.carried_bytes());
                let WriteOp { table, key, effect, condition, .. } = received.ops[0].clone();
                assert_eq!((table, key), (TableId(4), op.key));
                assert_eq!((effect, condition), (op.effect, op.condition));
            }
        }
    }

    #[test]
    fn statuses_and_modes_keep_their_meaning() {
        for status in 0..12 {
            let known = write_status_from_wire(status).unwrap();
            assert_eq!(v1::WriteStatus::from(known) as i32, status);
        }
        assert!(write_status_from_wire(12).is_err());
        for mode in ReadMode::ALL {
            assert_eq!(read_mode_from_wire(v1::ReadMode::from(mode).into()).unwrap(), mode);
        }
        assert!(read_mode_from_wire(3).is_err());
    }
}
