//! An sstable server as a peer: gets, scans, filters.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::StreamExt;
use futures::future::BoxFuture;
use sextant_common::ids::{NodeId, Seq};
use sextant_common::{Error, Result};
use sextant_environment::Env;
use sextant_environment::config::{ClusterConfig, Server};
use sextant_environment::env::{Party, cluster_channel};
use sextant_proto::MESSAGE_BYTES_MAX;
use sextant_proto::v1;
use sextant_proto::v1::admin_client::AdminClient;
use sextant_proto::v1::sst_client::SstClient;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;
use tonic::transport::Channel;

use super::coalescer::Inbound;
use super::{Call, Coalescer, Limits, OnTheWay, VALUE_BYTES_MAX};
use crate::api::Record;
use crate::metrics::{MessageKind, PNodeMetrics};

/// What an sstable server said about a key in some candidates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SstSays {
    Value(Record),
    Tombstone(Seq),
    NoEntry,
    /// The candidate at this place is not there.
    Gone(usize),
    /// The candidate at this place is damaged, or cannot be read.
    Damaged(usize, String),
    /// The values of other requests filled the message: ask again, alone.
    MessageFull,
    /// About so many bytes, which are not sent along with others. Asked for alone: there is no room for them now.
    Large(usize),
}

pub(crate) struct SstPeer {
    pub sst: SstClient<Channel>,
    pub admin: AdminClient<Channel>,
    pub gets: Coalescer<GetCall>,
    /// Values of any size, each alone: over a connection of their own, as pages of scans.
    pub large_gets: Coalescer<GetCall>,
    pub large_on_the_way: OnTheWay,
    pub pages: SstClient<Channel>,
}

/// All sstable servers by id.
pub(crate) type SstPeers = BTreeMap<NodeId, SstPeer>;

impl SstPeer {
    /// Must be called within a tokio runtime. Connects when it is first used.
    pub fn new(
        env: &Env,
        server: &Server,
        cluster: &ClusterConfig,
        me: Party,
        metrics: &Arc<PNodeMetrics>,
    ) -> Self {
        let to = Some(Party::sstable(server.id));
        let channel = cluster_channel(&env.net, &server.addr, cluster, me, to);
        let sst = SstClient::new(channel.clone())
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX);
        let pages = SstClient::new(cluster_channel(&env.net, &server.addr, cluster, me, to))
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX);
        let calls = |sst: &SstClient<Channel>, value_bytes_max| {
            let call = GetCall { sst: sst.clone(), value_bytes_max };
            Coalescer::start(call, Limits::READS, env.clock.clone(), metrics.clone())
        };
        Self {
            gets: calls(&sst, VALUE_BYTES_MAX),
            large_gets: calls(&pages, 0),
            large_on_the_way: OnTheWay::default(),
            sst,
            pages,
            admin: AdminClient::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX),
        }
    }
}

pub(crate) struct GetCall {
    sst: SstClient<Channel>,
    /// 0: any.
    value_bytes_max: u32,
}

impl Call for GetCall {
    const KIND: MessageKind = MessageKind::Get;
    type Request = v1::GetRequest;
    /// An unknown status is an error of this get alone.
    type Reply = Result<SstSays>;
    type Batch = v1::GetBatch;
    type BatchReply = v1::GetBatchReply;

    fn request_bytes(request: &v1::GetRequest) -> usize {
        request.key.len() + request.candidates.iter().map(|c| c.len() + 2).sum::<usize>() + 16
    }

    fn reply_bytes(reply: &Self::Reply) -> usize {
        match reply {
            Ok(SstSays::Value(record)) => record.value.len() + 24,
            _ => 24,
        }
    }

    fn batch(&self, first_id: u64, gets: Vec<v1::GetRequest>) -> v1::GetBatch {
        v1::GetBatch { batch: first_id, gets, value_bytes_max: self.value_bytes_max }
    }

    fn open(
        &self,
        messages: ReceiverStream<v1::GetBatch>,
    ) -> BoxFuture<'_, Result<Inbound<v1::GetBatchReply>, Status>> {
        let mut sst = self.sst.clone();
        Box::pin(async move { Ok(sst.get_stream(messages).await?.into_inner().boxed()) })
    }

    fn unary(&self, batch: v1::GetBatch) -> BoxFuture<'_, Result<v1::GetBatchReply, Status>> {
        let mut sst = self.sst.clone();
        Box::pin(async move { Ok(sst.get(batch).await?.into_inner()) })
    }

    fn replies(&self, reply: v1::GetBatchReply, each: &mut dyn FnMut(u64, Self::Reply)) -> Option<u64> {
        for (id, reply) in (reply.batch..).zip(reply.replies) {
            each(id, get_reply(reply));
        }
        Some(reply.batch)
    }
}

fn get_reply(reply: v1::GetReply) -> Result<SstSays> {
    use v1::GetStatus as S;
    let candidate = reply.candidate as usize;
    Ok(match S::try_from(reply.status) {
        Ok(S::GetValue) => SstSays::Value(Record { value: reply.value, seq: Seq(reply.seq) }),
        Ok(S::GetTombstone) => SstSays::Tombstone(Seq(reply.seq)),
        Ok(S::GetNoEntry) => SstSays::NoEntry,
        Ok(S::GetTableGone) => SstSays::Gone(candidate),
        Ok(S::GetCorrupt | S::GetIoError) => SstSays::Damaged(candidate, reply.message),
        Ok(S::GetTooLarge) if reply.bytes > 0 => SstSays::Large(reply.bytes as usize),
        Ok(S::GetTooLarge) => SstSays::MessageFull,
        Err(_) => return Err(Error::internal(format!("unknown get status {}", reply.status))),
    })
}
