//! An sstable server as a peer: gets, scans, filters.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::future::BoxFuture;
use sextant_common::ids::{NodeId, PartitionId, Seq};
use sextant_common::key::filter_hash;
use sextant_common::marks::Marks;
use sextant_common::operation::Record;
use sextant_common::{Error, Result};
use sextant_environment::Env;
use sextant_environment::config::{ClusterConfig, Server};
use sextant_environment::env::{Party, cluster_channel, error_of};
use sextant_proto::MESSAGE_BYTES_MAX;
use sextant_proto::v1;
use sextant_proto::v1::admin_client::AdminClient;
use sextant_proto::v1::sst_client::SstClient;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Status, Streaming};

use super::coalescer::Inbound;
use super::pages::page;
use super::{Call, Coalescer, Limits, OnTheWay, PageRequest, SstPageSays, VALUE_BYTES_MAX};
use crate::metrics::{MessageKind, PNodeMetrics};

/// A key to look for in some tables, newest first; the first that has it ends the search.
#[derive(Clone, Debug)]
pub(crate) struct SstGet {
    /// As ids travel.
    pub candidates: Vec<Bytes>,
    pub key: Bytes,
}

/// What an sstable server said about a key in some candidates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SstSays {
    Value(Record),
    Tombstone(Seq),
    NoEntry,
    /// The candidate at this place is not there.
    Gone(usize),
    /// The candidate at this place is damaged.
    Damaged(usize, String),
    /// Not now: the disk has not returned it, or the server has too much to do.
    Unreadable(usize, String),
    /// The values of other requests filled the message: ask again, alone.
    MessageFull,
    /// About so many bytes, which are not sent along with others. Asked for alone: there is no room for them now.
    Large(usize),
}

pub(crate) struct SstPeer {
    sst: SstClient<Channel>,
    /// For the front end's administration, which passes messages on.
    pub admin: AdminClient<Channel>,
    gets: Coalescer<GetCall>,
    /// Values of any size, each alone: over a connection of their own, as pages of scans.
    large_gets: Coalescer<GetCall>,
    pub large_on_the_way: OnTheWay,
    pages: SstClient<Channel>,
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

    /// Along with other gets, or `alone`.
    pub async fn get(&self, get: SstGet, alone: bool) -> Result<SstSays> {
        let request = v1::GetRequest { candidates: get.candidates, key: get.key };
        if alone { self.gets.ask_alone(request).await? } else { self.gets.ask(request).await? }
    }

    /// A value of any size; the caller has room for it.
    pub async fn get_large(&self, get: SstGet) -> Result<SstSays> {
        let request = v1::GetRequest { candidates: get.candidates, key: get.key };
        self.large_gets.ask_alone(request).await?
    }

    /// The stream of gets perhaps leads to the server's predecessor.
    pub fn renew_gets(&self) {
        self.gets.renew();
    }

    /// One page of all these tables together.
    pub async fn page(&self, tables: Vec<Bytes>, wanted: PageRequest) -> Result<SstPageSays> {
        let request = v1::SstScanRequest {
            tables,
            start: wanted.start,
            end: wanted.end,
            reverse: wanted.reverse,
            limit_records: wanted.records_max,
            limit_bytes: wanted.bytes_max,
            first_bytes_max: wanted.first_bytes_max,
        };
        let reply = self.pages.clone().scan(request).await.map_err(error_of)?.into_inner();
        Ok(match v1::GetStatus::try_from(reply.status) {
            Ok(v1::GetStatus::GetValue | v1::GetStatus::GetNoEntry) => {
                SstPageSays::Page(page(reply.records, reply.complete))
            }
            Ok(v1::GetStatus::GetTooLarge) => SstPageSays::Large(reply.bytes as usize),
            Ok(v1::GetStatus::GetCorrupt) => SstPageSays::Damaged(reply.message),
            _ => SstPageSays::Unable(reply.message),
        })
    }

    /// The file of a table, from its beginning on.
    pub async fn fetch(&self, id: Bytes) -> Result<Streaming<v1::FileChunk>> {
        let fetched = self.pages.clone().fetch(v1::FetchRequest { id, offset: 0 }).await;
        fetched.map(tonic::Response::into_inner).map_err(error_of)
    }

    /// What it has of a partition.
    pub async fn inventory(&self, partition: PartitionId) -> Result<Vec<v1::InventoryEntry>> {
        let request = v1::InventoryRequest { partition: partition.0, ..Default::default() };
        let reply = self.pages.clone().inventory(request).await.map_err(error_of)?;
        Ok(reply.into_inner().entries)
    }

    /// The filter of a table, as bytes: at most `bytes_max`, each chunk within `chunk_max`.
    pub async fn filter(&self, id: Bytes, bytes_max: usize, chunk_max: Duration) -> Result<Vec<u8>> {
        let late = |_| Error::unavailable("no filter in time");
        let mut sst = self.sst.clone();
        let opened = tokio::time::timeout(chunk_max, sst.fetch_filter(v1::FetchFilterRequest { id })).await;
        let mut chunks = opened.map_err(late)?.map_err(error_of)?.into_inner();
        let mut bytes = Vec::new();
        while let Some(chunk) =
            tokio::time::timeout(chunk_max, chunks.message()).await.map_err(late)?.map_err(error_of)?
        {
            if bytes.len() + chunk.data.len() > bytes_max {
                return Err(Error::corrupt(format!("a filter above {bytes_max} bytes")));
            }
            bytes.extend_from_slice(&chunk.data);
        }
        Ok(bytes)
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

    fn alike(get: &v1::GetRequest) -> Option<u64> {
        Some(filter_hash(&get.key))
    }

    fn join(earlier: &mut v1::GetRequest, later: &v1::GetRequest) -> bool {
        earlier.key == later.key && earlier.candidates == later.candidates
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
        Ok(S::GetValue) => {
            SstSays::Value(Record::marked(reply.value, Seq(reply.seq), Marks::from_word(reply.expires_at)))
        }
        Ok(S::GetTombstone) => SstSays::Tombstone(Seq(reply.seq)),
        Ok(S::GetNoEntry) => SstSays::NoEntry,
        Ok(S::GetTableGone) => SstSays::Gone(candidate),
        Ok(S::GetCorrupt) => SstSays::Damaged(candidate, reply.message),
        Ok(S::GetIoError) => SstSays::Unreadable(candidate, reply.message),
        Ok(S::GetTooLarge) if reply.bytes > 0 => SstSays::Large(reply.bytes as usize),
        Ok(S::GetTooLarge) => SstSays::MessageFull,
        Err(_) => return Err(Error::internal(format!("unknown get status {}", reply.status))),
    })
}
