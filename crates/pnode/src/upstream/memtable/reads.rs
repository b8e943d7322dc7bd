//! Point reads of memtables as messages.

use bytes::Bytes;
use futures::StreamExt;
use futures::future::BoxFuture;
use sextant_common::expiry::Tick;
use sextant_common::ids::{ManifestVersion, PartitionId, Seq, Serial, TableId};
use sextant_common::key::filter_hash;
use sextant_common::marks::Marks;
use sextant_common::operation::Record;
use sextant_common::{Error, Result};
use sextant_proto::v1;
use sextant_proto::v1::rows_client::RowsClient;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;
use tonic::transport::Channel;

use super::News;
use crate::metrics::MessageKind;
use crate::upstream::Call;
use crate::upstream::coalescer::Inbound;
use crate::view::Registration;

/// A point read of a partition's memtables.
#[derive(Clone, Debug)]
pub(crate) struct MemtableRead {
    pub partition: PartitionId,
    pub table: TableId,
    pub key: Bytes,
    /// The version of the SSTables that the read searched, or will search if there is no entry.
    pub searched: ManifestVersion,
    /// The answer is to be kept.
    pub register: bool,
}

/// What the leader said, and what it may be kept with.
#[derive(Clone)]
pub(crate) struct MemtableAnswer {
    pub says: MemtableSays,
    pub registration: Option<Registration>,
}

/// What the leader said about a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MemtableSays {
    Value(Record),
    Tombstone,
    /// As of this tick: what the SSTables have is judged by it.
    NoEntry(Tick),
    /// A flush was applied after the version that the read named. What is new of it has been installed, if it came along.
    Stale,
    NotLeader,
    NotReady,
    UnknownTable,
    /// A value of so many bytes, which is not sent along with others. Asked for alone: there is no room for it now.
    Large(usize),
}

impl From<MemtableRead> for v1::ReadRequest {
    fn from(read: MemtableRead) -> Self {
        v1::ReadRequest {
            partition: read.partition.0,
            table: read.table.0,
            key: read.key,
            manifest_version: read.searched.0,
            register: read.register,
        }
    }
}

pub(crate) struct ReadCall {
    pub rows: RowsClient<Channel>,
    pub news: News,
    /// 0: any.
    pub value_bytes_max: u32,
}

impl Call for ReadCall {
    const KIND: MessageKind = MessageKind::Read;
    type Request = v1::ReadRequest;
    /// An unknown status is an error of this read alone.
    type Reply = Result<MemtableAnswer>;
    type Batch = v1::ReadBatch;
    type BatchReply = v1::ReadBatchReply;

    fn request_bytes(request: &v1::ReadRequest) -> usize {
        request.key.len() + 24
    }

    fn reply_bytes(reply: &Self::Reply) -> usize {
        match reply {
            Ok(MemtableAnswer { says: MemtableSays::Value(record), .. }) => record.value.len() + 24,
            _ => 24,
        }
    }

    fn batch(&self, first_id: u64, reads: Vec<v1::ReadRequest>) -> v1::ReadBatch {
        v1::ReadBatch { batch: first_id, reads, value_bytes_max: self.value_bytes_max, takes_changes: true }
    }

    /// A key under many writes is asked for by many at once.
    fn alike(read: &v1::ReadRequest) -> Option<u64> {
        Some(filter_hash(&read.key))
    }

    fn join(earlier: &mut v1::ReadRequest, later: &v1::ReadRequest) -> bool {
        let is_same = earlier.key == later.key
            && (earlier.partition, earlier.table) == (later.partition, later.table)
            && earlier.manifest_version == later.manifest_version;
        earlier.register |= is_same && later.register;
        is_same
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
        reply.manifest_news.into_iter().for_each(|news| self.news.of_manifest(news));
        for hint in &reply.leaders {
            self.news.not_leader(PartitionId(hint.partition), Some(hint.into()));
        }
        for (nth, answer) in (0u64..).zip(reply.replies) {
            let with = answer.registration.checked_sub(1).and_then(|at| reply.registrations.get(at as usize));
            let registration = with.map(|with| Registration {
                epoch: with.epoch.unwrap_or_default().into(),
                serial: Serial(with.serial),
            });
            each(
                reply.batch.wrapping_add(nth),
                read_reply(answer).map(|says| MemtableAnswer { says, registration }),
            );
        }
        Some(reply.batch)
    }
}

fn read_reply(reply: v1::ReadReply) -> Result<MemtableSays> {
    use v1::ReadStatus as S;
    Ok(match S::try_from(reply.status) {
        Ok(S::ReadValue) => MemtableSays::Value(Record::marked(
            reply.value,
            Seq(reply.seq),
            Marks::from_word(reply.expires_at),
        )),
        Ok(S::ReadTombstone) => MemtableSays::Tombstone,
        Ok(S::ReadNoEntry) => MemtableSays::NoEntry(Tick(reply.tick)),
        Ok(S::ReadStaleManifest) => MemtableSays::Stale,
        Ok(S::ReadNotLeader | S::ReadUnknownPartition) => MemtableSays::NotLeader,
        Ok(S::ReadNotReady) => MemtableSays::NotReady,
        Ok(S::ReadUnknownTable) => MemtableSays::UnknownTable,
        Ok(S::ReadTooLarge) => MemtableSays::Large(reply.bytes as usize),
        Err(_) => return Err(Error::internal(format!("unknown read status {}", reply.status))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(key: &'static str, searched: u64, register: bool) -> v1::ReadRequest {
        let read = MemtableRead {
            partition: PartitionId(1),
            table: TableId(2),
            key: key.into(),
            searched: ManifestVersion(searched),
            register,
        };
        read.into()
    }

    #[test]
    fn reads_that_are_the_same_are_one_which_is_registered_if_any_of_them_wants_it() {
        let mut first = read("k", 3, false);
        assert!(ReadCall::join(&mut first, &read("k", 3, false)) && !first.register);
        assert!(ReadCall::join(&mut first, &read("k", 3, true)) && first.register);
        assert!(ReadCall::join(&mut first, &read("k", 3, false)) && first.register);
        let mut first = read("k", 3, false);
        let other_table = v1::ReadRequest { table: 5, ..read("k", 3, true) };
        let other_partition = v1::ReadRequest { partition: 5, ..read("k", 3, true) };
        let searched_less = read("k", 2, true);
        for other in [read("l", 3, true), searched_less, other_table, other_partition] {
            assert!(!ReadCall::join(&mut first, &other), "{other:?}");
        }
        assert!(!first.register, "for another one's sake");
    }
}
