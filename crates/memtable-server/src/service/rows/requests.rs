//! A client's write from the wire, and what it costs.

use sextant_common::error::Error;
use sextant_common::operation::WriteRequest;
use sextant_proto::{convert, v1};

/// What an operation costs in a log entry beyond its key and value: its header, its result, its table's share.
const OP_OVERHEAD_BYTES: usize = 48;

/// Validates a write and converts it; also what it costs, in bytes.
pub(crate) fn write_from_wire(request: v1::WriteRequest) -> Result<(WriteRequest, usize), Error> {
    let (request, carried_bytes) = convert::operation::write_from_wire(request)?;
    let bytes = carried_bytes + request.ops.len() * OP_OVERHEAD_BYTES;
    Ok((request, bytes))
}
