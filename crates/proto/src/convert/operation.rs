//! Operations and what is answered to them: of clients ([`Operation`], `kv.proto`), and on their way to a leader
//! ([`WriteOp`], `rows.proto`).
//!
//! Enumerations are not read by prost's accessors: those take what they do not know for the default, here a write
//! without a condition.

use bytes::Bytes;
use sextant_common::error::{Error, Result};
use sextant_common::expiry::Tick;
use sextant_common::ids::{ManifestVersion, Seq, TableId};
use sextant_common::limits;
use sextant_common::marks::{Kind, Marks};
use sextant_common::object::Header;
use sextant_common::operation::{
    Base, Condition, Effect, Expected, Lifetime, LifetimeTest, Misfit, OpOutcome, Operation, ReadMode,
    Record, RequestId, Returns, Told, Update, WriteOp, WriteOutcome, WriteRequest, WriteStatus,
    parse_decimal,
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

fn kind_from_wire(kind: u32) -> Option<Kind> {
    Kind::from_number(u8::try_from(kind).ok()?)
}

impl From<Option<Record>> for v1::KvGetReply {
    fn from(record: Option<Record>) -> Self {
        let found = |Record { value, seq, expires_at, kind }| Self {
            found: true,
            kind: kind.number().into(),
            value,
            seq: seq.0,
            expires_at: Tick::to_wire(expires_at),
        };
        record.map_or_else(Self::default, found)
    }
}

impl From<v1::KvGetReply> for Option<Record> {
    fn from(reply: v1::KvGetReply) -> Self {
        let v1::KvGetReply { found, value, seq, expires_at, kind } = reply;
        let kind = kind_from_wire(kind).unwrap_or_default();
        found.then_some(Record { value, seq: Seq(seq), expires_at: Tick::from_wire(expires_at), kind })
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

/// An effect as it stands in a message.
#[derive(Default)]
struct WireEffect {
    kind: i32,
    value: Bytes,
    increment: i64,
    decimal: String,
    offset: u32,
    object: Option<v1::ObjectUpdate>,
}

impl From<&Effect> for WireEffect {
    fn from(effect: &Effect) -> Self {
        use v1::WriteKind as K;
        let of = |kind: K| Self { kind: kind.into(), ..Self::default() };
        match effect {
            Effect::Put(value) => Self { value: value.clone(), ..of(K::WritePut) },
            Effect::Delete => of(K::WriteDelete),
            Effect::Update(Update::Increment(by)) => Self { increment: *by, ..of(K::WriteIncrement) },
            Effect::Update(Update::IncrementDecimal(by)) => {
                Self { decimal: by.to_string(), ..of(K::WriteIncrementDecimal) }
            }
            Effect::Update(Update::Append(bytes)) => Self { value: bytes.clone(), ..of(K::WriteAppend) },
            Effect::Update(Update::SetRange { offset, bytes }) => {
                Self { value: bytes.clone(), offset: *offset, ..of(K::WriteSetRange) }
            }
            Effect::Update(Update::Touch) => of(K::WriteTouch),
            Effect::Update(Update::Count { kind, version, creates, counted }) => {
                let (kind, version, creates, counted) = (kind.number().into(), *version, *creates, *counted);
                let object = v1::ObjectUpdate { kind, version, creates, counted, bounds: Bytes::new() };
                Self { object: Some(object), ..of(K::WriteCount) }
            }
            Effect::Update(Update::Header { kind, value }) => {
                let (value, bounds) = Header::split_bounds(value);
                let object = v1::ObjectUpdate { kind: kind.number().into(), bounds, ..Default::default() };
                Self { value, object: Some(object), ..of(K::WriteHeader) }
            }
            Effect::Check => of(K::WriteCheck),
        }
    }
}

impl TryFrom<WireEffect> for Effect {
    type Error = Error;

    fn try_from(wire: WireEffect) -> Result<Self> {
        use v1::WriteKind as K;
        let WireEffect { kind, value, increment, decimal, offset, object } = wire;
        let object = || {
            let object = object.as_ref().ok_or_else(|| Error::invalid("a write of an object without it"))?;
            let kind = kind_from_wire(object.kind).filter(|kind| *kind != Kind::Plain);
            Ok::<_, Error>((kind.ok_or_else(|| Error::invalid("an object of an unknown kind"))?, object))
        };
        Ok(match K::try_from(kind) {
            Ok(K::WritePut) => Effect::Put(value),
            Ok(K::WriteDelete) => Effect::Delete,
            Ok(K::WriteIncrement) => Effect::Update(Update::Increment(increment)),
            Ok(K::WriteIncrementDecimal) => {
                let by = parse_decimal(decimal.as_bytes());
                let by =
                    by.ok_or_else(|| Error::invalid("an increment is no decimal number of 28 digits"))?;
                Effect::Update(Update::IncrementDecimal(by))
            }
            Ok(K::WriteAppend) => Effect::Update(Update::Append(value)),
            Ok(K::WriteSetRange) => Effect::Update(Update::SetRange { offset, bytes: value }),
            Ok(K::WriteTouch) => Effect::Update(Update::Touch),
            Ok(K::WriteCheck) => Effect::Check,
            Ok(K::WriteCount) => {
                let (kind, v1::ObjectUpdate { version, creates, counted, .. }) = object()?;
                Effect::Update(Update::Count {
                    kind,
                    version: *version,
                    creates: *creates,
                    counted: *counted,
                })
            }
            Ok(K::WriteHeader) => {
                let (kind, v1::ObjectUpdate { bounds, .. }) = object()?;
                Effect::Update(Update::Header { kind, value: Header::join_bounds(value, bounds) })
            }
            Err(_) => return Err(Error::invalid(format!("unknown kind of write {kind}"))),
        })
    }
}

/// None: the usual one.
pub fn lifetime_to_wire(effect: &Effect, lifetime: Lifetime) -> Option<v1::Lifetime> {
    use v1::lifetime::Lifetime as L;
    let wire = match lifetime {
        usual if usual == Lifetime::usual(effect) => return None,
        Lifetime::Unlimited => L::Unlimited(true),
        Lifetime::Kept => L::Kept(true),
        Lifetime::Milliseconds(ms) => L::TtlMs(ms),
        Lifetime::Until(at) => L::ExpiresAt(at.0),
    };
    Some(v1::Lifetime { lifetime: Some(wire) })
}

/// Of an operation with this effect.
fn lifetime_from_wire(effect: &Effect, lifetime: Option<v1::Lifetime>) -> Result<Lifetime> {
    use v1::lifetime::Lifetime as L;
    let Some(lifetime) = lifetime else { return Ok(Lifetime::usual(effect)) };
    match lifetime.lifetime {
        Some(L::Unlimited(true)) => Ok(Lifetime::Unlimited),
        Some(L::Kept(true)) => Ok(Lifetime::Kept),
        Some(L::TtlMs(ms)) => Ok(Lifetime::Milliseconds(ms)),
        Some(L::ExpiresAt(at)) => Ok(Lifetime::Until(Tick(at))),
        Some(L::Unlimited(false) | L::Kept(false)) | None => {
            Err(Error::invalid("a lifetime that says nothing, or of a kind that is not known"))
        }
    }
}

impl From<Returns> for v1::Returns {
    fn from(returns: Returns) -> Self {
        match returns {
            Returns::Nothing => Self::Nothing,
            Returns::Before => Self::Before,
            Returns::After => Self::After,
        }
    }
}

fn returns_from_wire(returns: i32) -> Result<Returns> {
    match v1::Returns::try_from(returns) {
        Ok(v1::Returns::Nothing) => Ok(Returns::Nothing),
        Ok(v1::Returns::Before) => Ok(Returns::Before),
        Ok(v1::Returns::After) => Ok(Returns::After),
        Err(_) => Err(Error::invalid(format!("unknown kind of answer {returns}"))),
    }
}

/// What an outcome tells, as it stands in a message.
#[derive(Default)]
pub(super) struct WireTold {
    pub value: Option<Bytes>,
    pub length: Option<u64>,
    pub value_forgotten: bool,
    pub misfit: i32,
}

impl From<&Told> for WireTold {
    fn from(told: &Told) -> Self {
        let mut wire = Self::default();
        match told {
            Told::Nothing => {}
            Told::Value(value) => wire.value = Some(value.clone()),
            Told::Length(length) => wire.length = Some(*length),
            Told::Forgotten => wire.value_forgotten = true,
            Told::Misfit(misfit) => {
                wire.misfit = match misfit {
                    Misfit::NotAnInteger => v1::Misfit::NotAnInteger,
                    Misfit::NotANumber => v1::Misfit::NotANumber,
                    Misfit::Overflow => v1::Misfit::Overflow,
                    Misfit::TooLong => v1::Misfit::TooLong,
                    Misfit::WrongKind => v1::Misfit::WrongKind,
                    Misfit::OtherObject => v1::Misfit::OtherObject,
                }
                .into();
            }
        }
        wire
    }
}

impl From<WireTold> for Told {
    fn from(wire: WireTold) -> Self {
        let misfit = match v1::Misfit::try_from(wire.misfit) {
            Ok(v1::Misfit::None) => None,
            Ok(v1::Misfit::NotAnInteger) => Some(Misfit::NotAnInteger),
            Ok(v1::Misfit::NotANumber) => Some(Misfit::NotANumber),
            Ok(v1::Misfit::Overflow) => Some(Misfit::Overflow),
            Ok(v1::Misfit::WrongKind) => Some(Misfit::WrongKind),
            Ok(v1::Misfit::OtherObject) => Some(Misfit::OtherObject),
            // Of a newer server. That it failed is known without it.
            Ok(v1::Misfit::TooLong) | Err(_) => Some(Misfit::TooLong),
        };
        match (misfit, wire.value, wire.length) {
            (Some(misfit), ..) => Told::Misfit(misfit),
            (None, Some(value), _) => Told::Value(value),
            (None, None, Some(length)) => Told::Length(length),
            (None, None, None) if wire.value_forgotten => Told::Forgotten,
            (None, None, None) => Told::Nothing,
        }
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
        Condition::Lifetime(test) => {
            let condition = match test {
                LifetimeTest::Unlimited => C::LifetimeUnlimited,
                LifetimeTest::Limited => C::LifetimeLimited,
                LifetimeTest::Shorter => C::LifetimeShorter,
                LifetimeTest::Longer => C::LifetimeLonger,
                LifetimeTest::LimitedAndLonger => C::LifetimeLimitedAndLonger,
            };
            (condition, Bytes::new(), 0)
        }
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
        Ok(C::LifetimeUnlimited) => Ok(Condition::Lifetime(LifetimeTest::Unlimited)),
        Ok(C::LifetimeLimited) => Ok(Condition::Lifetime(LifetimeTest::Limited)),
        Ok(C::LifetimeShorter) => Ok(Condition::Lifetime(LifetimeTest::Shorter)),
        Ok(C::LifetimeLonger) => Ok(Condition::Lifetime(LifetimeTest::Longer)),
        Ok(C::LifetimeLimitedAndLonger) => Ok(Condition::Lifetime(LifetimeTest::LimitedAndLonger)),
        Err(_) => Err(Error::invalid(format!("unknown condition {condition}"))),
    }
}

/// (Not of the headers of objects: clients have no business with them.)
impl From<Operation> for v1::KvBatchOp {
    fn from(op: Operation) -> Self {
        let WireEffect { kind, value, increment, decimal, offset, .. } = (&op.effect).into();
        let (condition, expected_value, expected_seq) = condition_to_wire(&op.condition);
        Self {
            lifetime: lifetime_to_wire(&op.effect, op.lifetime),
            increment,
            decimal,
            offset,
            returns: v1::Returns::from(op.returns).into(),
            table: op.table,
            key: op.key,
            kind,
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
        let v1::KvBatchOp { kind, value, increment, decimal, offset, .. } = op;
        let effect = WireEffect { kind, value, increment, decimal, offset, object: None }.try_into()?;
        Ok(Self {
            table: op.table,
            key: op.key,
            lifetime: lifetime_from_wire(&effect, op.lifetime)?,
            effect,
            condition: condition_from_wire(op.condition, op.expected_value, op.expected_seq)?,
            skip_on_failure: op.skip_on_failure,
            returns: returns_from_wire(op.returns)?,
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

/// # Errors
/// `Invalid` for an update, and for a check: those travel in batches.
pub fn compare_and_set_effect(effect: Effect) -> Result<compare_and_set::Effect> {
    match effect {
        Effect::Put(value) => Ok(compare_and_set::Effect::NewValue(value)),
        Effect::Delete => Ok(compare_and_set::Effect::Delete(true)),
        Effect::Update(_) | Effect::Check => {
            Err(Error::invalid("compare-and-set: an update, or a check, is no new value"))
        }
    }
}

/// A blind put.
impl TryFrom<v1::KvPutRequest> for Operation {
    type Error = Error;

    fn try_from(r: v1::KvPutRequest) -> Result<Self> {
        let put = Self::put(r.table, r.key, r.value);
        let lifetime = lifetime_from_wire(&put.effect, r.lifetime)?;
        Ok(put.lasting(lifetime))
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
        let lifetime = lifetime_from_wire(&effect, r.lifetime)?;
        Ok(Self::new(r.table, r.key, effect).lasting(lifetime).only_if(Expected::from(expected).into()))
    }
}

impl From<Base> for v1::Base {
    fn from(base: Base) -> Self {
        Self {
            manifest_version: base.manifest.0,
            present: base.present,
            seq: base.seq.0,
            value_matches: base.value_matches,
            value: None,
            expires_at: base.marks.word(),
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
            marks: Marks::from_word(base.expires_at),
        }
    }
}

/// A client's operation on its way to the leader. Over references, so that it can be sent again: nothing of it is
/// copied. `base_value`: of the base, if the operation needs it.
pub fn write_op_to_wire(
    table: TableId,
    op: &Operation,
    base: Option<Base>,
    base_value: Option<Bytes>,
) -> v1::WriteOp {
    let WireEffect { kind, value, increment, decimal, offset, object } = (&op.effect).into();
    let base = base.map(|base| v1::Base { value: base_value, ..base.into() });
    let (condition, expected_value, expected_seq) = condition_to_wire(&op.condition);
    v1::WriteOp {
        table: table.0,
        kind,
        key: op.key.clone(),
        value,
        condition: condition.into(),
        expected_value,
        expected_seq,
        base,
        skip_on_failure: op.skip_on_failure,
        increment,
        decimal,
        offset,
        returns: v1::Returns::from(op.returns).into(),
        lifetime: lifetime_to_wire(&op.effect, op.lifetime),
        object,
    }
}

/// A write as its leader gets it; also what it carries (keys, values, expected values and those of bases), in bytes.
pub fn write_from_wire(request: v1::WriteRequest) -> Result<(WriteRequest, usize)> {
    if request.ops.is_empty() {
        return Err(Error::invalid("a write without operations"));
    }
    let (mut bytes, mut expected_bytes, mut base_bytes) = (0, 0, 0);
    let mut ops = Vec::with_capacity(request.ops.len());
    for op in request.ops {
        limits::check_key(&op.key)?;
        limits::check_value(&op.value)?;
        limits::check_value(&op.expected_value)?;
        bytes += op.key.len() + op.value.len();
        expected_bytes += op.expected_value.len();
        let v1::WriteOp { kind, value, increment, decimal, offset, mut base, object, .. } = op;
        let base_value = base.as_mut().and_then(|base| base.value.take());
        if let Some(value) = &base_value {
            limits::check_value(value)?;
            base_bytes += value.len();
        }
        let effect = WireEffect { kind, value, increment, decimal, offset, object }.try_into()?;
        ops.push(WriteOp {
            condition: condition_from_wire(op.condition, op.expected_value, op.expected_seq)?,
            lifetime: lifetime_from_wire(&effect, op.lifetime)?,
            effect,
            table: TableId(op.table),
            key: op.key,
            base: base.map(Into::into),
            base_value,
            skip_on_failure: op.skip_on_failure,
            returns: returns_from_wire(op.returns)?,
        });
    }
    limits::check_batch(ops.len(), bytes.max(expected_bytes).max(base_bytes))?;
    let id =
        RequestId { session: request.session, number: request.request_no, acked_below: request.acked_below };
    Ok((WriteRequest { id, ops }, bytes + expected_bytes + base_bytes))
}

impl From<OpOutcome> for v1::OpResult {
    fn from(outcome: OpOutcome) -> Self {
        let WireTold { value, length, value_forgotten, misfit } = (&outcome.told).into();
        let OpOutcome { applied, existed, seq, .. } = outcome;
        Self { applied, existed, seq: seq.0, value, length, value_forgotten, misfit }
    }
}

impl From<v1::OpResult> for OpOutcome {
    fn from(result: v1::OpResult) -> Self {
        let v1::OpResult { applied, existed, seq, value, length, value_forgotten, misfit } = result;
        let told = WireTold { value, length, value_forgotten, misfit }.into();
        Self { applied, existed, seq: Seq(seq), told }
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
    use sextant_common::object::{Bounds, Cut};

    use super::*;

    #[test]
    fn a_write_of_an_unknown_kind_or_condition_is_refused() {
        let request = |kind: i32, condition: i32| v1::WriteRequest {
            ops: vec![v1::WriteOp { key: Bytes::from_static(b"k"), kind, condition, ..Default::default() }],
            ..Default::default()
        };
        write_from_wire(request(1, 4)).unwrap();
        assert!(write_from_wire(request(10, 0)).unwrap_err().message.contains("kind of write 10"));
        assert!(write_from_wire(request(0, 10)).unwrap_err().message.contains("condition 10"));
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
            Condition::Lifetime(LifetimeTest::Unlimited),
            Condition::Lifetime(LifetimeTest::Limited),
            Condition::Lifetime(LifetimeTest::Shorter),
            Condition::Lifetime(LifetimeTest::Longer),
            Condition::Lifetime(LifetimeTest::LimitedAndLonger),
        ] {
            for (effect, returns) in [
                (Effect::Put("new".into()), Returns::Before),
                (Effect::Delete, Returns::Nothing),
                (Effect::Update(Update::Increment(i64::MIN)), Returns::After),
                (Effect::Update(Update::IncrementDecimal(parse_decimal(b"-1.25").unwrap())), Returns::After),
                (Effect::Update(Update::Append("more".into())), Returns::Nothing),
                (Effect::Update(Update::SetRange { offset: 7, bytes: "x".into() }), Returns::Before),
                (Effect::Update(Update::Touch), Returns::Before),
                (Effect::Check, Returns::Before),
            ] {
                let op = Operation::new("t", "k", effect)
                    .only_if(condition.clone())
                    .skip_on_failure()
                    .returning(returns);
                assert_eq!(Operation::try_from(v1::KvBatchOp::from(op.clone())).unwrap(), op);
                let sent = write_op_to_wire(TableId(4), &op, None, None);
                let request = v1::WriteRequest { ops: vec![sent], ..Default::default() };
                let (received, bytes) = write_from_wire(request).unwrap();
                assert_eq!(bytes, op.carried_bytes());
                let WriteOp { table, key, effect, condition, returns, .. } = received.ops[0].clone();
                assert_eq!((table, key, returns), (TableId(4), op.key, op.returns));
                assert_eq!((effect, condition), (op.effect, op.condition));
            }
        }
    }

    #[test]
    fn lifetimes_are_the_same_after_their_way_and_unknown_ones_are_refused() {
        for effect in [Effect::Put("v".into()), Effect::Delete, Effect::Update(Update::Touch)] {
            for lifetime in [
                Lifetime::Unlimited,
                Lifetime::Kept,
                Lifetime::Milliseconds(0),
                Lifetime::Until(Tick(u64::MAX)),
            ] {
                let op = Operation::new("t", "k", effect.clone()).lasting(lifetime);
                assert_eq!(Operation::try_from(v1::KvBatchOp::from(op.clone())).unwrap(), op);
                let sent = write_op_to_wire(TableId(4), &op, None, None);
                let request = v1::WriteRequest { ops: vec![sent], ..Default::default() };
                assert_eq!(write_from_wire(request).unwrap().0.ops[0].lifetime, lifetime);
            }
        }
        let nothing = v1::KvBatchOp { lifetime: Some(v1::Lifetime { lifetime: None }), ..Default::default() };
        assert_eq!(Operation::try_from(nothing).unwrap_err().kind, sextant_common::ErrorKind::Invalid);
    }

    #[test]
    fn updates_of_headers_reach_a_leader_and_no_client_may_send_them() {
        let bounds = Bounds { low: Cut::of(1.0, b"a"), high: None };
        for update in [
            Update::Count { kind: Kind::Hash, version: u64::MAX, creates: true, counted: 3 },
            Update::Header { kind: Kind::List, value: "header".into() },
            Update::Header { kind: Kind::SortedSet, value: Header { bounds, ..Header::new(7, 8) }.encode() },
        ] {
            let op = Operation::update("t", "k", update);
            let sent = write_op_to_wire(TableId(4), &op, None, None);
            let request = v1::WriteRequest { ops: vec![sent.clone()], ..Default::default() };
            assert_eq!(write_from_wire(request).unwrap().0.ops[0].effect, op.effect);
            let unknown = v1::ObjectUpdate { kind: 9, ..Default::default() };
            for object in [None, Some(unknown), Some(v1::ObjectUpdate::default())] {
                let request = v1::WriteRequest {
                    ops: vec![v1::WriteOp { object, ..sent.clone() }],
                    ..Default::default()
                };
                assert_eq!(write_from_wire(request).unwrap_err().kind, sextant_common::ErrorKind::Invalid);
            }
            let refused = Operation::try_from(v1::KvBatchOp::from(op)).unwrap_err();
            assert_eq!(refused.kind, sextant_common::ErrorKind::Invalid);
        }
    }

    #[test]
    fn outcomes_are_the_same_after_their_way() {
        for told in [
            Told::Nothing,
            Told::Value(Bytes::new()),
            Told::Value("v".into()),
            Told::Length(0),
            Told::Forgotten,
            Told::Misfit(Misfit::NotAnInteger),
            Told::Misfit(Misfit::NotANumber),
            Told::Misfit(Misfit::Overflow),
            Told::Misfit(Misfit::TooLong),
            Told::Misfit(Misfit::WrongKind),
            Told::Misfit(Misfit::OtherObject),
        ] {
            let outcome = OpOutcome { applied: true, existed: false, seq: Seq(7), told };
            assert_eq!(OpOutcome::from(v1::OpResult::from(outcome.clone())), outcome);
        }
    }

    #[test]
    fn the_value_of_a_base_travels_with_it_and_is_counted() {
        let op = Operation::update("t", "k", Update::Append("x".into()));
        let base = Base {
            present: true,
            seq: Seq(2),
            marks: Marks::new(Kind::Hash, Some(Tick(9))),
            ..Base::absent(ManifestVersion(3))
        };
        let sent = write_op_to_wire(TableId(4), &op, Some(base), Some("old".into()));
        let request = v1::WriteRequest { ops: vec![sent], ..Default::default() };
        let (received, bytes) = write_from_wire(request).unwrap();
        assert_eq!(bytes, op.carried_bytes() + 3);
        assert_eq!(
            (received.ops[0].base, received.ops[0].base_value.as_deref()),
            (Some(base), Some(&b"old"[..]))
        );
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
