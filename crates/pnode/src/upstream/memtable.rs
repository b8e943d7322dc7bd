//! A memtable server as a peer: reads of memtables, writes, pages of scans, sessions, administration.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::future::BoxFuture;
use sextant_common::ids::{NodeId, PartitionId, Seq};
use sextant_common::manifest::Manifest;
use sextant_common::{Error, Result};
use sextant_environment::Env;
use sextant_environment::config::ClusterConfig;
use sextant_environment::env::{Party, cluster_channel};
use sextant_proto::MESSAGE_BYTES_MAX;
use sextant_proto::v1;
use sextant_proto::v1::admin_client::AdminClient;
use sextant_proto::v1::lease_client::LeaseClient;
use sextant_proto::v1::rows_client::RowsClient;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;
use tonic::transport::Channel;

use super::coalescer::Inbound;
use super::{Call, Coalescer, Leaders, Limits, OnTheWay, VALUE_BYTES_MAX};
use crate::api::{OpOutcome, Record};
use crate::metrics::{MessageKind, PNodeMetrics};
use crate::view::Views;

/// What the leader said about a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MemtableSays {
    Value(Record),
    Tombstone,
    NoEntry,
    /// A flush was applied after the version that the read named. What is current has been installed.
    Stale,
    NotLeader,
    NotReady,
    UnknownTable,
    /// A value of so many bytes, which is not sent along with others. Asked for alone: there is no room for it now.
    Large(usize),
}

/// What the leader said about a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WriteSays {
    pub status: v1::WriteStatus,
    pub results: Vec<OpOutcome>,
    pub message: String,
}

/// Where news that come along with answers go.
#[derive(Clone)]
pub(crate) struct News {
    pub node: NodeId,
    pub views: Arc<Views>,
    pub leaders: Arc<Leaders>,
}

impl News {
    pub fn manifest(&self, manifest: v1::Manifest) {
        match Manifest::try_from(manifest) {
            Ok(manifest) if self.views.contains(manifest.partition) => {
                self.views.install_manifest(manifest);
            }
            Ok(manifest) => {
                tracing::warn!(node = %self.node, partition = %manifest.partition, "manifest of no partition")
            }
            Err(e) => tracing::warn!(node = %self.node, "bad manifest: {e}"),
        }
    }

    /// The server does not lead the partition.
    pub fn not_leader(&self, partition: PartitionId, hint: Option<&v1::LeaderHint>) {
        if !self.views.contains(partition) {
            return;
        }
        self.leaders.suspect(partition, self.node);
        if let Some(hint) = hint
            && hint.node != self.node.0
        {
            self.leaders.hint(partition, NodeId(hint.node), hint.term);
        }
    }
}

pub(crate) struct MemtablePeer {
    pub rows: RowsClient<Channel>,
    pub admin: AdminClient<Channel>,
    /// For whole filters, single pulls and the release; the pull loops have connections of their own.
    pub lease: LeaseClient<Channel>,
    pub reads: Coalescer<ReadCall>,
    /// Values of any size, each alone: over a connection of their own, as pages of scans.
    pub large_reads: Coalescer<ReadCall>,
    pub large_on_the_way: OnTheWay,
    pub pages: RowsClient<Channel>,
    writes: Coalescer<WriteCall>,
    /// Over a connection of its own: what is before a small write is small.
    bulk_writes: Coalescer<WriteCall>,
    pub news: News,
}

impl MemtablePeer {
    /// Must be called within a tokio runtime. Connects when it is first used.
    pub fn new(
        env: &Env,
        addr: &str,
        cluster: &ClusterConfig,
        me: Party,
        news: News,
        metrics: &Arc<PNodeMetrics>,
    ) -> Self {
        let connect = || cluster_channel(&env.net, addr, cluster, me, Some(Party::memtable(news.node)));
        let channel = connect();
        let rows = RowsClient::new(channel.clone())
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX);
        let read = ReadCall { rows: rows.clone(), news: news.clone(), value_bytes_max: VALUE_BYTES_MAX };
        let pages = RowsClient::new(connect())
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX);
        let large_read = ReadCall { rows: pages.clone(), news: news.clone(), value_bytes_max: 0 };
        let write = WriteCall { rows: rows.clone(), news: news.clone() };
        let bulk = RowsClient::new(connect())
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX);
        let bulk_write = WriteCall { rows: bulk, news: news.clone() };
        let (clock, counted) = (env.clock.clone(), metrics.clone());
        Self {
            admin: AdminClient::new(channel.clone()).max_decoding_message_size(MESSAGE_BYTES_MAX),
            lease: LeaseClient::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX),
            reads: Coalescer::start(read, Limits::READS, env.clock.clone(), metrics.clone()),
            large_reads: Coalescer::start(large_read, Limits::READS, env.clock.clone(), metrics.clone()),
            large_on_the_way: OnTheWay::default(),
            pages,
            writes: Coalescer::start(write, Limits::WRITES, env.clock.clone(), metrics.clone()),
            bulk_writes: Coalescer::start(bulk_write, Limits::BULK_WRITES, clock, counted),
            rows,
            news,
        }
    }

    /// Where a write travels.
    pub fn writes(&self, large: bool) -> &Coalescer<WriteCall> {
        if large { &self.bulk_writes } else { &self.writes }
    }

    /// The streams of writes perhaps lead to the server's predecessor.
    pub fn renew_writes(&self) {
        self.writes.renew();
        self.bulk_writes.renew();
    }
}

pub(crate) struct ReadCall {
    rows: RowsClient<Channel>,
    news: News,
    /// 0: any.
    value_bytes_max: u32,
}

impl Call for ReadCall {
    const KIND: MessageKind = MessageKind::Read;
    type Request = v1::ReadRequest;
    /// An unknown status is an error of this read alone.
    type Reply = Result<MemtableSays>;
    type Batch = v1::ReadBatch;
    type BatchReply = v1::ReadBatchReply;

    fn request_bytes(request: &v1::ReadRequest) -> usize {
        request.key.len() + 24
    }

    fn reply_bytes(reply: &Self::Reply) -> usize {
        match reply {
            Ok(MemtableSays::Value(record)) => record.value.len() + 24,
            _ => 24,
        }
    }

    fn batch(&self, first_id: u64, reads: Vec<v1::ReadRequest>) -> v1::ReadBatch {
        v1::ReadBatch { batch: first_id, reads, value_bytes_max: self.value_bytes_max }
    }

    fn open(
        &self,
        messages: ReceiverStream<v1::ReadBatch>,
    ) -> BoxFuture<'_, Result<Inbound<v1::ReadBatchReply>, Status>> {
        let mut rows = self.rows.clone();
        Box::pin(async move { Ok(rows.read_stream(messages).await?.into_inner().boxed()) })
    }

    fn unary(&self, batch: v1::ReadBatch) -> BoxFuture<'_, Result<v1::ReadBatchReply, Status>> {
        let mut rows = self.rows.clone();
        Box::pin(async move { Ok(rows.read(batch).await?.into_inner()) })
    }

    fn replies(&self, reply: v1::ReadBatchReply, each: &mut dyn FnMut(u64, Self::Reply)) -> Option<u64> {
        // First the news, so that whoever is told "stale" or "not leader" finds them.
        reply.manifests.into_iter().for_each(|m| self.news.manifest(m));
        for hint in &reply.leaders {
            self.news.not_leader(PartitionId(hint.partition), Some(hint));
        }
        for (id, reply) in (reply.batch..).zip(reply.replies) {
            each(id, read_reply(reply));
        }
        Some(reply.batch)
    }
}

fn read_reply(reply: v1::ReadReply) -> Result<MemtableSays> {
    use v1::ReadStatus as S;
    Ok(match S::try_from(reply.status) {
        Ok(S::ReadValue) => MemtableSays::Value(Record { value: reply.value, seq: Seq(reply.seq) }),
        Ok(S::ReadTombstone) => MemtableSays::Tombstone,
        Ok(S::ReadNoEntry) => MemtableSays::NoEntry,
        Ok(S::ReadStaleManifest) => MemtableSays::Stale,
        Ok(S::ReadNotLeader | S::ReadUnknownPartition) => MemtableSays::NotLeader,
        Ok(S::ReadNotReady) => MemtableSays::NotReady,
        Ok(S::ReadUnknownTable) => MemtableSays::UnknownTable,
        Ok(S::ReadTooLarge) => MemtableSays::Large(reply.bytes as usize),
        Err(_) => return Err(Error::internal(format!("unknown read status {}", reply.status))),
    })
}

pub(crate) struct WriteCall {
    rows: RowsClient<Channel>,
    news: News,
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
                self.news.not_leader(PartitionId(hint.partition), Some(hint));
            }
            let says = match v1::WriteStatus::try_from(reply.status) {
                Ok(status) => Ok(WriteSays {
                    status,
                    results: reply.results.iter().map(op_outcome).collect(),
                    message: reply.message,
                }),
                Err(_) => Err(Error::internal(format!("unknown write status {}", reply.status))),
            };
            each(reply.id, says);
        }
        None
    }
}

fn op_outcome(result: &v1::OpResult) -> OpOutcome {
    OpOutcome { applied: result.applied, existed: result.existed, seq: Seq(result.seq) }
}

/// All memtable servers by id.
pub(crate) type MemtablePeers = BTreeMap<NodeId, MemtablePeer>;
