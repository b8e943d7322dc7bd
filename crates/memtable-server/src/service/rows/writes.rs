//! Writes: validated, handed to their partitions' workers, and answered.

use std::time::Duration;

use futures::StreamExt;
use sextant_common::error::Error;
use sextant_common::ids::{ManifestVersion, TableId};
use sextant_common::limits;
use sextant_environment::env::status_of;
use sextant_proto::v1;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use super::{Replies, RowsShell};
use crate::partition::evaluate::{Base, Condition, Op, Request as WriteRequest};
use crate::replica::{Answer, ReplySink, WriteOutcome};
use crate::service::answers::{self, Packed, Packer, Room};

/// Messages with answers that wait to be sent on a stream; in bytes they are bounded by the stream's room.
const REPLIES_QUEUED: usize = 16;
/// A write without a deadline of its own waits this long.
const WRITE_DEADLINE: Duration = Duration::from_secs(10);
/// What an operation costs in a log entry beyond its key and value: its header, its result, its table's share.
const OP_OVERHEAD_BYTES: usize = 48;

impl RowsShell {
    /// The writes of a stream, and the stream of their answers.
    pub(super) fn write_all(self, mut batches: Streaming<v1::WriteBatch>) -> Replies<v1::WriteBatchReply> {
        // Unbounded, but never more than the stream has room for.
        let (to, mut answered) = mpsc::unbounded_channel();
        let room = Room::of_a_stream();
        let (out, replies) = mpsc::channel::<Packed>(REPLIES_QUEUED);
        let admitted = room.clone();
        tokio::spawn(async move {
            let mut shutdown = self.context.shutdown.clone();
            loop {
                let message = tokio::select! {
                    message = batches.next() => message,
                    () = shutdown.wait() => return,
                };
                let Some(Ok(batch)) = message else { return };
                self.context.metrics.write_messages.inc();
                for write in batch.writes {
                    let Some(share) = admitted.take(&write).await else { return };
                    self.submit(write, &to, Some(share));
                }
            }
        });
        tokio::spawn(async move {
            let mut packer = Packer::default();
            while let Some(packed) = packer.next(&mut answered).await {
                if out.send(packed).await.is_err() {
                    room.close();
                    return;
                }
            }
        });
        // Room is given back when a message is taken: as much as the connection takes is sent.
        Box::pin(ReceiverStream::new(replies).map(|packed| Ok(packed.message)))
    }

    pub(super) async fn write_one(&self, batch: v1::WriteBatch) -> Result<v1::WriteBatchReply, Status> {
        self.context.metrics.write_messages.inc();
        if !answers::fit_one_message(&batch.writes) {
            let what =
                "the answers to so many writes do not fit into one message: send fewer, or use the stream";
            return Err(status_of(Error::invalid(what)));
        }
        let (to, mut answered) = mpsc::unbounded_channel();
        let mut replies = Vec::with_capacity(batch.writes.len());
        for write in batch.writes {
            self.submit(write, &to, None);
        }
        drop(to);
        let mut packer = Packer::default();
        while let Some(packed) = packer.next(&mut answered).await {
            replies.extend(packed.message.replies);
        }
        Ok(v1::WriteBatchReply { replies })
    }

    /// Hands a write to its partition's worker, or refuses it.
    fn submit(
        &self,
        request: v1::WriteRequest,
        to: &mpsc::UnboundedSender<Answer>,
        room: Option<OwnedSemaphorePermit>,
    ) {
        self.context.metrics.write_requests.inc();
        let reply = ReplySink::new(request.id, to.clone(), room);
        let handle = match self.context.partition(request.partition) {
            Ok(handle) => handle,
            Err(e) => return reply.send(WriteOutcome::UnknownPartition(e.message)),
        };
        let wait = match request.deadline_ms {
            0 => WRITE_DEADLINE,
            ms => Duration::from_millis(u64::from(ms)),
        };
        let deadline_ns = self.context.env.clock.holder_ns() + wait.as_nanos() as u64;
        let (request, bytes) = match write_from_wire(request) {
            Ok(converted) => converted,
            Err(e) => return reply.send(WriteOutcome::Invalid(e.message)),
        };
        if handle.submit(request, bytes, deadline_ns, reply).is_err() {
            self.context.metrics.overloaded.inc();
        }
    }
}

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
