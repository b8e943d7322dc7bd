//! Writes as messages.

use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::future::BoxFuture;
use sextant_common::ids::{ManifestVersion, PartitionId, Seq, TableId};
use sextant_common::{Error, Result};
use sextant_proto::v1;
use sextant_proto::v1::rows_client::RowsClient;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;
use tonic::transport::Channel;

use super::News;
use crate::api::{BatchOp, OpCondition, OpKind, OpOutcome, RequestId};
use crate::metrics::MessageKind;
use crate::upstream::coalescer::Inbound;
use crate::upstream::{Call, Patience, Slip};

/// What a condition rests on if no memtable has the key: the record that the SSTables of a version have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Base {
    pub version: ManifestVersion,
    pub present: bool,
    /// 0: absent.
    pub seq: Seq,
    /// Whether the value is the one that the condition expects.
    pub value_matches: bool,
}

/// An operation as it is sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SentOp<'o> {
    pub table: TableId,
    pub op: &'o BatchOp,
    pub base: Option<Base>,
}

/// How a leader disposes of a write, of the opening of a session, or of the creation of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteStatus {
    Ok,
    ConditionFailed,
    /// A flush was applied after the version of a base.
    StaleManifest,
    /// It does not lead the partition, or does not have it.
    NotLeader,
    /// It could not take the write: certainly not executed.
    Retry,
    UnknownTable,
    UnknownSession,
    /// The result of so old a request is no longer kept.
    RequestTooOld,
    Overloaded,
    Invalid,
    OutcomeUnknown,
}

/// What the leader said about a write.
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
    /// Says whether it has left.
    pub slip: &'p Slip,
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
            ops: write.ops.map(op).collect(),
            deadline_ms: u32::try_from(write.left.as_millis()).unwrap_or(u32::MAX).max(1),
        }
    }
}

fn op(sent: SentOp<'_>) -> v1::WriteOp {
    use v1::Condition as C;
    let (kind, value) = match &sent.op.kind {
        OpKind::Put(value) => (v1::WriteKind::WritePut, value.clone()),
        OpKind::Delete => (v1::WriteKind::WriteDelete, Bytes::new()),
    };
    let (condition, expected_value, expected_seq) = match &sent.op.condition {
        OpCondition::None => (C::None, Bytes::new(), 0),
        OpCondition::Absent => (C::Absent, Bytes::new(), 0),
        OpCondition::Present => (C::Present, Bytes::new(), 0),
        OpCondition::ValueEquals(value) => (C::ValueEquals, value.clone(), 0),
        OpCondition::SeqEquals(seq) => (C::SeqEquals, Bytes::new(), seq.0),
    };
    v1::WriteOp {
        table: sent.table.0,
        kind: kind as i32,
        key: sent.op.key.clone(),
        value,
        condition: condition as i32,
        expected_value,
        expected_seq,
        base: sent.base.map(|base| v1::Base {
            manifest_version: base.version.0,
            present: base.present,
            seq: base.seq.0,
            value_matches: base.value_matches,
        }),
        skip_on_failure: sent.op.skip_on_failure,
    }
}

pub(super) fn status(status: i32) -> Result<WriteStatus> {
    use v1::WriteStatus as S;
    Ok(match S::try_from(status) {
        Ok(S::WriteOk) => WriteStatus::Ok,
        Ok(S::WriteConditionFailed) => WriteStatus::ConditionFailed,
        Ok(S::WriteStaleManifest) => WriteStatus::StaleManifest,
        Ok(S::WriteNotLeader | S::WriteUnknownPartition) => WriteStatus::NotLeader,
        Ok(S::WriteRetry) => WriteStatus::Retry,
        Ok(S::WriteUnknownTable) => WriteStatus::UnknownTable,
        Ok(S::WriteUnknownSession) => WriteStatus::UnknownSession,
        Ok(S::WriteRequestTooOld) => WriteStatus::RequestTooOld,
        Ok(S::WriteOverloaded) => WriteStatus::Overloaded,
        Ok(S::WriteInvalid) => WriteStatus::Invalid,
        Ok(S::WriteOutcomeUnknown) => WriteStatus::OutcomeUnknown,
        Err(_) => return Err(Error::internal(format!("unknown write status {status}"))),
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
        request
            .ops
            .iter()
            .map(|op| op.key.len() + op.value.len() + op.expected_value.len() + 48)
            .sum::<usize>()
            + 48
    }

    fn reply_bytes(reply: &Self::Reply) -> usize {
        reply.as_ref().map_or(0, |r| r.results.len() * 16) + 24
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
        v1::WriteBatch { writes }
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
            if let Some(hint) = &reply.leader
                && reply.status == v1::WriteStatus::WriteNotLeader as i32
            {
                self.news.not_leader(PartitionId(hint.partition), Some(hint.into()));
            }
            let says = status(reply.status).map(|status| WriteSays {
                status,
                results: reply.results.iter().map(op_outcome).collect(),
                message: reply.message,
            });
            each(reply.id, says);
        }
        None
    }
}

fn op_outcome(result: &v1::OpResult) -> OpOutcome {
    OpOutcome { applied: result.applied, existed: result.existed, seq: Seq(result.seq) }
}
