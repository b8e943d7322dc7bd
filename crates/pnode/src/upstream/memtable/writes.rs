//! Writes as messages.

use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::future::BoxFuture;
use sextant_common::Result;
use sextant_common::ids::{PartitionId, TableId};
use sextant_common::operation::{OpOutcome, Operation, RequestId, WriteStatus};
use sextant_proto::convert::operation::{write_op_to_wire, write_status_from_wire};
use sextant_proto::v1;
use sextant_proto::v1::rows_client::RowsClient;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;
use tonic::transport::Channel;

use super::News;
use crate::metrics::MessageKind;
use crate::upstream::coalescer::Inbound;
use crate::upstream::{Answers, Call, Patience};
use crate::write::Found;

/// An operation as it is sent: borrowed, because it may have to be sent again. Its leader gets it as a
/// [`WriteOp`](sextant_common::operation::WriteOp).
#[derive(Debug)]
pub(crate) struct SentOp<'o> {
    pub table: TableId,
    pub op: &'o Operation,
    /// What it rests on.
    pub found: Found,
}

/// What the leader said about a write: what the caller is told of it is a
/// [`WriteOutcome`](sextant_common::operation::WriteOutcome) or an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WriteSays {
    pub status: WriteStatus,
    pub results: Vec<OpOutcome>,
    pub message: String,
}

/// A write as it is sent.
pub(crate) struct SentWrite<O> {
    pub partition: PartitionId,
    pub id: RequestId,
    pub ops: O,
    /// How long the leader may let it wait.
    pub left: Duration,
}

/// How a write travels.
pub(crate) struct Passage<'p> {
    /// Over a connection of its own.
    pub large: bool,
    /// Not along with others.
    pub alone: bool,
    /// Its answer's, which say too whether it has left.
    pub answers: &'p Answers<Result<WriteSays>>,
    pub patience: Patience,
}

impl<'o, O: Iterator<Item = SentOp<'o>>> From<SentWrite<O>> for v1::WriteRequest {
    fn from(write: SentWrite<O>) -> Self {
        v1::WriteRequest {
            id: 0,
            partition: write.partition.0,
            session: write.id.session,
            request_no: write.id.number,
            acked_below: write.id.acked_below,
            ops: write
                .ops
                .map(|sent| write_op_to_wire(sent.table, sent.op, sent.found.base, sent.found.value))
                .collect(),
            deadline_ms: u32::try_from(write.left.as_millis()).unwrap_or(u32::MAX).max(1),
        }
    }
}

/// A server that does not have the partition is as good as one that does not lead it.
pub(super) fn status(status: i32) -> Result<WriteStatus> {
    Ok(match write_status_from_wire(status)? {
        WriteStatus::UnknownPartition => WriteStatus::NotLeader,
        status => status,
    })
}

pub(crate) struct WriteCall {
    pub rows: RowsClient<Channel>,
    pub news: News,
}

impl Call for WriteCall {
    const KIND: MessageKind = MessageKind::Write;
    type Request = v1::WriteRequest;
    type Reply = Result<WriteSays>;
    type Batch = v1::WriteBatch;
    type BatchReply = v1::WriteBatchReply;

    fn request_bytes(request: &v1::WriteRequest) -> usize {
        let base_bytes = |op: &v1::WriteOp| op.base.as_ref()?.value.as_ref().map(Bytes::len);
        let bytes = |op: &v1::WriteOp| {
            op.key.len() + op.value.len() + op.expected_value.len() + base_bytes(op).unwrap_or(0) + 48
        };
        request.ops.iter().map(bytes).sum::<usize>() + 48
    }

    fn reply_bytes(reply: &Self::Reply) -> usize {
        let bytes = |result: &OpOutcome| 16 + result.told.bytes();
        reply.as_ref().map_or(0, |r| r.results.iter().map(bytes).sum()) + 24
    }

    /// The server counts from when the request arrives.
    fn leaves(request: &mut v1::WriteRequest, waited: Duration) {
        let waited_ms = u32::try_from(waited.as_millis()).unwrap_or(u32::MAX);
        request.deadline_ms = request.deadline_ms.saturating_sub(waited_ms).max(1);
    }

    fn batch(&self, first_id: u64, mut writes: Vec<v1::WriteRequest>) -> v1::WriteBatch {
        for (id, write) in (first_id..).zip(&mut writes) {
            write.id = id;
        }
        v1::WriteBatch { writes, takes_changes: true }
    }

    fn open(
        &self,
        messages: ReceiverStream<v1::WriteBatch>,
    ) -> BoxFuture<'_, Result<Inbound<v1::WriteBatchReply>, Status>> {
        let mut rows = self.rows.clone();
        Box::pin(async move { Ok(rows.write_stream(messages).await?.into_inner().boxed()) })
    }

    fn unary(&self, batch: v1::WriteBatch) -> BoxFuture<'_, Result<v1::WriteBatchReply, Status>> {
        let mut rows = self.rows.clone();
        Box::pin(async move { Ok(rows.write(batch).await?.into_inner()) })
    }

    /// Writes are answered one by one, as they are published: a reply completes no message.
    fn replies(&self, reply: v1::WriteBatchReply, each: &mut dyn FnMut(u64, Self::Reply)) -> Option<u64> {
        for reply in reply.replies {
            if let Some(manifest) = reply.manifest {
                self.news.manifest(manifest);
            }
            if let Some(news) = reply.manifest_news {
                self.news.of_manifest(news);
            }
            if let Some(hint) = &reply.leader
                && reply.status == v1::WriteStatus::WriteNotLeader as i32
            {
                self.news.not_leader(PartitionId(hint.partition), Some(hint.into()));
            }
            let says = status(reply.status).map(|status| WriteSays {
                status,
                results: reply.results.into_iter().map(Into::into).collect(),
                message: reply.message,
            });
            each(reply.id, says);
        }
        None
    }
}
