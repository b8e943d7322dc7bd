//! Connections to the sstable servers, and calls. Every call has a deadline.

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::{Stream, StreamExt};
use sextant_common::error::{Error, Result};
use sextant_common::expiry::Tick;
use sextant_common::ids::{NodeId, PartitionId, SstId};
use sextant_common::manifest::SstMeta;
use sextant_common::sstable::{CompactionOrder, CopyOrder, Holding, IngestOrder, OrderNumber};
use sextant_environment::Env;
use sextant_environment::config::{ClusterConfig, Server, Zone};
use sextant_environment::env::{Party, cluster_channel, error_of};
use sextant_proto::convert::{sst_id_from_wire, sst_id_to_wire};
use sextant_proto::v1;
use sextant_proto::v1::sst_client::SstClient;
use tokio::sync::Semaphore;
use tonic::Streaming;
use tonic::transport::Channel;

use super::{ingest, zones};
use crate::memtable::Memtable;

const SHORT: Duration = Duration::from_secs(2);
/// A message for each table of a partition.
const HOLDINGS: Duration = Duration::from_secs(30);
/// Work that moves data is given up when for so long nothing has moved, however long it takes: longer than an sstable server lets
/// anybody wait for a turn, and than the disk takes to write down what it has.
const STALLED: Duration = Duration::from_secs(60);
/// What a server of an older version, which does not tell how it goes on, may take.
const UNWATCHED: Duration = Duration::from_secs(1800);
/// Flushes to a server at once. Those that wait there for a turn hold what they have sent in the connection's window (16 MiB, of
/// which a stream takes 4), and would leave nothing to those whose turn it is, nor to anything else that goes there.
const FLUSHES_MAX: usize = 3;

pub struct SstServer {
    pub id: NodeId,
    pub addr: String,
    zone: Option<String>,
    client: SstClient<Channel>,
    flushes: Semaphore,
    /// Messages of flushes and loads that it has taken.
    taken: Arc<AtomicU64>,
}

pub struct SstServers(Vec<SstServer>);

/// A table that a server says it has.
#[derive(Clone, Debug)]
pub struct Held {
    pub id: SstId,
    /// Of its contents, as its trailer states it.
    pub checksum: u64,
    pub damaged: bool,
    /// None: the table cannot be read.
    pub lineage: Option<u64>,
}

impl SstServers {
    pub fn connect(env: &Env, cluster: &ClusterConfig, me: NodeId) -> Self {
        let me = Party::memtable(me);
        let connect = |s: &Server| SstServer {
            id: s.id,
            addr: s.addr.clone(),
            zone: s.zone.clone(),
            client: SstClient::new(cluster_channel(
                &env.net,
                &s.addr,
                cluster,
                me,
                Some(Party::sstable(s.id)),
            ))
            .max_decoding_message_size(sextant_proto::MESSAGE_BYTES_MAX)
            .max_encoding_message_size(sextant_proto::MESSAGE_BYTES_MAX),
            flushes: Semaphore::new(FLUSHES_MAX),
            taken: Arc::default(),
        };
        Self(cluster.sstable.iter().map(connect).collect())
    }

    pub fn all(&self) -> &[SstServer] {
        &self.0
    }

    pub fn get(&self, id: NodeId) -> Option<&SstServer> {
        self.0.iter().find(|s| s.id == id)
    }

    /// The replicas of a new table, in as many zones as there are: by rendezvous hashing over its id, so that another attempt tries other
    /// servers. Those to be avoided only if there are too few others.
    pub fn choose(&self, id: SstId, replicas: usize, avoided: &BTreeSet<NodeId>) -> Vec<&SstServer> {
        let weight = |server: &SstServer| {
            let mut bytes = id.to_bytes().to_vec();
            bytes.extend_from_slice(&server.id.0.to_le_bytes());
            xxhash_rust::xxh3::xxh3_64(&bytes)
        };
        let mut servers: Vec<_> = self.0.iter().collect();
        servers.sort_by_key(|s| std::cmp::Reverse(weight(s)));
        zones::spread(servers, replicas, SstServer::zone, |s| usize::from(avoided.contains(&s.id)))
    }
}

async fn call<T>(
    limit: Duration,
    what: &'static str,
    call: impl Future<Output = Result<tonic::Response<T>, tonic::Status>>,
) -> Result<T> {
    match tokio::time::timeout(limit, call).await {
        Ok(answer) => Ok(answer.map_err(error_of)?.into_inner()),
        Err(_) => Err(Error::unavailable(format!("sstable server: no answer to {what} within {limit:?}"))),
    }
}

/// Waits as long as the count moves.
async fn while_moving<T>(
    what: &'static str,
    moved: &AtomicU64,
    call: impl Future<Output = Result<tonic::Response<T>, tonic::Status>>,
) -> Result<T> {
    let mut call = std::pin::pin!(call);
    let mut before = moved.load(Ordering::Relaxed);
    loop {
        match tokio::time::timeout(STALLED, &mut call).await {
            Ok(answer) => return Ok(answer.map_err(error_of)?.into_inner()),
            Err(_) if moved.load(Ordering::Relaxed) != before => before = moved.load(Ordering::Relaxed),
            Err(_) => return Err(stalled(what)),
        }
    }
}

fn stalled(what: &'static str) -> Error {
    Error::unavailable(format!("sstable server: {what} does not go on: nothing for {STALLED:?}"))
}

/// The end of work that tells how it goes on. None: the server does not know how to.
async fn watched<M, T>(
    what: &'static str,
    call: impl Future<Output = Result<tonic::Response<Streaming<M>>, tonic::Status>>,
    end: impl Fn(M) -> Option<T>,
) -> Result<Option<T>> {
    let opened = tokio::time::timeout(STALLED, call).await.map_err(|_| stalled(what))?;
    let mut news = match opened {
        Err(status) if status.code() == tonic::Code::Unimplemented => return Ok(None),
        opened => opened.map_err(error_of)?.into_inner(),
    };
    loop {
        let message = tokio::time::timeout(STALLED, news.message()).await.map_err(|_| stalled(what))?;
        match message.map_err(error_of)?.map(&end) {
            Some(Some(done)) => return Ok(Some(done)),
            Some(None) => {}
            None => return Err(Error::unavailable(format!("sstable server: {what} broke off"))),
        }
    }
}

impl SstServer {
    pub fn zone(&self) -> Zone<'_> {
        Zone::of(self.id, self.zone.as_deref())
    }

    /// Makes the server write a table of what is in a frozen memtable, when it is its turn.
    /// `expired_by`: a published tick.
    pub async fn ingest(
        &self,
        order: IngestOrder,
        memtable: Arc<Memtable>,
        expired_by: Tick,
    ) -> Result<SstMeta> {
        // Those whose turn it is may hang: nobody waits for that longer than they do.
        let turn = async { Ok(tonic::Response::new(self.flushes.acquire().await)) };
        let _turn = while_moving("ingest", &self.taken, turn).await?;
        self.ingest_messages(ingest::messages(&order, memtable, expired_by)).await
    }

    /// Makes the server write a table of what comes: the header, records, the end.
    pub async fn ingest_messages(
        &self,
        messages: impl Stream<Item = v1::IngestRequest> + Send + 'static,
    ) -> Result<SstMeta> {
        let sent = Arc::new(AtomicU64::new(0));
        let (counted, of_all) = (sent.clone(), self.taken.clone());
        let messages = messages.inspect(move |_| {
            counted.fetch_add(1, Ordering::Relaxed);
            of_all.fetch_add(1, Ordering::Relaxed);
        });
        let reply = while_moving("ingest", &sent, self.client.clone().ingest(messages)).await?;
        reply.meta.ok_or_else(|| Error::internal("ingest answered without a table"))?.try_into()
    }

    /// None: nothing was left.
    pub async fn compact(&self, order: &CompactionOrder) -> Result<Vec<SstMeta>> {
        let request = v1::CompactRequest::from(order);
        let mut client = self.client.clone();
        let done = watched("compact", client.compact_watched(request.clone()), |news| news.done).await?;
        let reply = match done {
            Some(reply) => reply,
            None => call(UNWATCHED, "compact", client.compact(request)).await?,
        };
        reply.meta.into_iter().chain(reply.more).map(TryInto::try_into).collect()
    }

    /// Makes the server copy a table from others.
    pub async fn copy(&self, table: &SstMeta, sources: Vec<String>, order: OrderNumber) -> Result<()> {
        let SstMeta { id, checksum, file_bytes, .. } = *table;
        let request =
            v1::CopyRequest::from(CopyOrder { id, checksum, file_bytes, sources, order: Some(order) });
        let mut client = self.client.clone();
        match watched("copy", client.copy_watched(request.clone()), |news| news.done).await? {
            Some(_) => Ok(()),
            None => call(UNWATCHED, "copy", client.copy(request)).await.map(|_| ()),
        }
    }

    /// `wall_ns`: this server's clock, nanoseconds since 1970. `tables_lacking`: how many lacked copies when all were asked before,
    /// in this term; None: they were not.
    pub async fn inventory(
        &self,
        partition: PartitionId,
        order: OrderNumber,
        wall_ns: u64,
        tables_lacking: Option<u32>,
    ) -> Result<Vec<Held>> {
        // (Nothing at all is what older servers say.)
        let tables_lacking = Some(tables_lacking.unwrap_or(u32::MAX));
        let (order, unix_us) = (Some(order.into()), wall_ns / 1000);
        let request = v1::InventoryRequest { partition: partition.0, order, unix_us, tables_lacking };
        let reply = call(SHORT, "inventory", self.client.clone().inventory(request)).await?;
        let held = |e: v1::InventoryEntry| {
            let id = sst_id_from_wire(&e.id)?;
            Ok(Held { id, checksum: e.checksum, damaged: e.damaged, lineage: e.lineage })
        };
        reply.entries.into_iter().map(held).collect()
    }

    /// How many tables it has: of the partition, and in all.
    pub async fn count(&self, partition: PartitionId) -> Result<(u64, u64)> {
        let request = v1::CountRequest { partition: partition.0 };
        let reply = call(SHORT, "count", self.client.clone().count(request)).await?;
        Ok((reply.tables, reply.tables_in_all))
    }

    /// Everything that it has of a partition, with what a manifest is rebuilt from; each as far as it makes sense.
    pub async fn holdings(
        &self,
        partition: PartitionId,
    ) -> Result<impl Iterator<Item = Result<Holding>> + use<>> {
        let request = v1::HoldingsRequest { partition: partition.0 };
        let all = async {
            let mut stream = self.client.clone().holdings(request).await?.into_inner();
            let mut holdings = Vec::new();
            while let Some(holding) = stream.message().await? {
                holdings.push(holding);
            }
            Ok(tonic::Response::new(holdings))
        };
        let holdings: Vec<v1::Holding> = call(HOLDINGS, "holdings", all).await?;
        Ok(holdings.into_iter().map(Holding::try_from))
    }

    /// Deletes tables of this lineage that a manifest names, but not on this server. How many there were.
    pub async fn release(&self, ids: &[SstId], lineage: u64, order: OrderNumber) -> Result<u64> {
        let ids = ids.iter().map(|id| sst_id_to_wire(*id)).collect();
        let request = v1::ReleaseTablesRequest { ids, lineage, order: Some(order.into()) };
        let reply = call(SHORT, "release", self.client.clone().release_tables(request)).await?;
        Ok(reply.released.into())
    }

    /// Deletes tables of this lineage; others stay.
    pub async fn delete(&self, ids: &[SstId], lineage: u64) -> Result<()> {
        let request = v1::DeleteRequest { ids: ids.iter().map(|id| sst_id_to_wire(*id)).collect(), lineage };
        call(SHORT, "delete", self.client.clone().delete(request)).await.map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use sextant_common::ids::{Generation, TableId};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_for_ever_behind_flushes_that_hang() {
        let sstable = vec![Server::new(1, "127.0.0.1:1".to_owned())];
        let (id, memtable, lease) = ("test".into(), Vec::new(), Default::default());
        let cluster = ClusterConfig { id, partitions: 1, memtable, sstable, lease };
        let servers = SstServers::connect(&Env::real(), &cluster, NodeId(1));
        let server = &servers.all()[0];
        let turns = server.flushes.acquire_many(FLUSHES_MAX as u32).await.unwrap();
        let order = IngestOrder {
            id: crate::partition::testing::sst(1).id,
            table: TableId(1),
            options: Default::default(),
            origin: None,
        };
        let flush = || {
            let memtable = Arc::new(Memtable::new(Generation(1)));
            server.ingest(order.clone(), memtable, Tick::default())
        };
        assert!(flush().await.unwrap_err().message.contains("does not go on"));
        // As long as something goes on there, it waits.
        let mut waiting = std::pin::pin!(flush());
        for _ in 0..10 {
            assert!(tokio::time::timeout(STALLED * 9 / 10, &mut waiting).await.is_err());
            server.taken.fetch_add(1, Ordering::Relaxed);
        }
        drop(turns);
    }
}
