//! A client's write from the wire: validated, converted, measured.

use sextant_common::error::Error;
use sextant_common::ids::{ManifestVersion, TableId};
use sextant_common::limits;
use sextant_proto::v1;

use crate::partition::evaluate::{Base, Condition, Op, Request as WriteRequest};

/// What an operation costs in a log entry beyond its key and value: its header, its result, its table's share.
const OP_OVERHEAD_BYTES: usize = 48;

/// Validates a write and converts it; also what it costs, in bytes.
pub(crate) fn write_from_wire(request: v1::WriteRequest) -> Result<(WriteRequest, usize), Error> {
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
        // Not prost's accessors: they take what they do not know for the default, here a write without a condition.
        let condition = match v1::Condition::try_from(op.condition) {
            Ok(v1::Condition::None) => Condition::None,
            Ok(v1::Condition::Absent) => Condition::Absent,
            Ok(v1::Condition::Present) => Condition::Present,
            Ok(v1::Condition::ValueEquals) => Condition::ValueEquals(op.expected_value.clone()),
            Ok(v1::Condition::SeqEquals) => Condition::SeqEquals(op.expected_seq),
            Err(_) => return Err(Error::invalid(format!("unknown condition {}", op.condition))),
        };
        let base = op.base.map(|b| Base {
            manifest: ManifestVersion(b.manifest_version),
            present: b.present,
            seq: b.seq,
            value_matches: b.value_matches,
        });
        let value = match v1::WriteKind::try_from(op.kind) {
            Ok(v1::WriteKind::WritePut) => Some(op.value),
            Ok(v1::WriteKind::WriteDelete) => None,
            Err(_) => return Err(Error::invalid(format!("unknown kind of write {}", op.kind))),
        };
        ops.push(Op {
            table: TableId(op.table),
            key: op.key,
            value,
            condition,
            base,
            skip_on_failure: op.skip_on_failure,
        });
    }
    limits::check_batch(ops.len(), bytes.max(expected_bytes))?;
    let bytes = bytes + expected_bytes + ops.len() * OP_OVERHEAD_BYTES;
    let converted = WriteRequest {
        session: request.session,
        number: request.request_no,
        acked_below: request.acked_below,
        ops,
    };
    Ok((converted, bytes))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

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
}
