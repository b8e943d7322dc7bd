//! Service `Sst`.

use std::sync::Arc;

use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use sextant_common::error::{Error, ErrorKind, Result};
use sextant_common::ids::{PartitionId, SstId};
use sextant_common::manifest::SstMeta;
use sextant_common::sstable;
use sextant_common::sstable::OrderNumber;
use sextant_environment::env::roles::may_order;
use sextant_environment::env::{Party, status_of};
use sextant_environment::freight::Freight;
use sextant_environment::room::Share;
use sextant_environment::vfs::IoKind;
use sextant_proto::convert::{sst_id_from_wire, sst_id_to_wire};
use sextant_proto::v1::sst_server::Sst;
use sextant_proto::v1::{
    CompactProgress, CompactReply, CompactRequest, CopyProgress, CopyReply, CopyRequest, CountReply,
    CountRequest, DeleteReply, DeleteRequest, FetchFilterRequest, FetchRequest, FileChunk, FilterBytes,
    GetBatch, GetBatchReply, Holding, HoldingsRequest, IngestReply, IngestRequest, InventoryEntry,
    InventoryReply, InventoryRequest, ReleaseTablesReply, ReleaseTablesRequest, SstScanReply, SstScanRequest,
};
use tonic::{Request, Response, Status, Streaming};

use super::wire::{get_to_wire, gets_from_wire, ingest_from_wire, page_from_wire, page_to_wire};
use crate::catalog::Entry;
use crate::progress::{News, Progress};
use crate::store::Store;
use crate::transfer::Piece;

/// Batches of one stream that are worked on at a time; more are not read from the connection. Enough to keep the disk
/// busy while the answers travel.
const BATCHES_IN_FLIGHT_MAX: usize = 8;
/// A question for what there is may have been under way for so long: whoever asks waits for two seconds.
const INVENTORY_LATE_NS: u64 = 2_000_000_000;
/// Most tables in one request to delete.
const DELETES_MAX: usize = 65_536;

pub struct SstService {
    store: Arc<Store>,
}

impl SstService {
    pub fn new(store: Arc<Store>) -> Self {
        Self { store }
    }

    /// Ends a stream when the server stops: a long-lived one would hold up its shutdown for ever.
    fn until_shutdown<T: Send + 'static>(
        &self,
        stream: impl futures::Stream<Item = Result<T, Status>> + Send + 'static,
    ) -> BoxStream<'static, Result<T, Status>> {
        let mut shutdown = self.store.shutdown.clone();
        stream.take_until(Box::pin(async move { shutdown.wait().await })).boxed()
    }

    /// The same, with an error at its end: whoever reads it is not to take it for the whole.
    fn or_stopping<T: Send + 'static>(
        &self,
        stream: impl futures::Stream<Item = Result<T, Status>> + Send + 'static,
    ) -> BoxStream<'static, Result<T, Status>> {
        let shutdown = self.store.shutdown.clone();
        let stopping = || status_of(Error::new(ErrorKind::Stopping, "the server is stopping"));
        let end = async move { shutdown.is_triggered().then(|| Err(stopping())) };
        let end = futures::stream::once(end).filter_map(std::future::ready);
        self.until_shutdown(stream).chain(end).boxed()
    }
}

/// A batch of gets, and the room that its answers take until they have left.
async fn answer(store: &Arc<Store>, batch: GetBatch) -> Result<(GetBatchReply, Option<Share>)> {
    let (number, clock) = (batch.batch, &*store.env.clock);
    let began_ns = clock.holder_ns();
    let (answers, room) = store.get_batch(gets_from_wire(batch)?).await?;
    let replies = answers.into_iter().map(get_to_wire).collect();
    store.metrics.get_batch_seconds.observe_ns(clock.holder_ns().saturating_sub(began_ns));
    Ok((GetBatchReply { batch: number, replies }, room))
}

fn ids_to_delete(ids: &[Bytes]) -> Result<Vec<SstId>> {
    if ids.len() > DELETES_MAX {
        let many = ids.len();
        return Err(Error::invalid(format!("{many} tables to delete: the limit is {DELETES_MAX}")));
    }
    ids.iter().map(|id| sst_id_from_wire(id)).collect()
}

fn compacted(outputs: &[SstMeta]) -> CompactReply {
    let mut outputs = outputs.iter().map(Into::into);
    CompactReply { meta: outputs.next(), more: outputs.collect() }
}

/// The room is given back when the answer has left.
fn laden<T>((message, room): (T, Option<Share>)) -> Response<T> {
    let mut response = Response::new(message);
    if let Some(room) = room {
        response.extensions_mut().insert(Freight::of(room));
    }
    response
}

#[tonic::async_trait]
impl Sst for SstService {
    type GetStreamStream = BoxStream<'static, Result<GetBatchReply, Status>>;
    type FetchFilterStream = BoxStream<'static, Result<FilterBytes, Status>>;
    type HoldingsStream = BoxStream<'static, Result<Holding, Status>>;
    type FetchStream = BoxStream<'static, Result<FileChunk, Status>>;
    type CompactWatchedStream = BoxStream<'static, Result<CompactProgress, Status>>;
    type CopyWatchedStream = BoxStream<'static, Result<CopyProgress, Status>>;

    async fn get_stream(
        &self,
        request: Request<Streaming<GetBatch>>,
    ) -> Result<Response<Self::GetStreamStream>, Status> {
        let store = self.store.clone();
        let freight = Freight::default();
        let leaving = freight.clone();
        let answers = request.into_inner().map(move |batch| {
            let store = store.clone();
            async move { answer(&store, batch?).await.map_err(status_of) }
        });
        let replies = answers.buffered(BATCHES_IN_FLIGHT_MAX).map_ok(move |(reply, room)| {
            room.into_iter().for_each(|room| leaving.add(room));
            reply
        });
        let mut response = Response::new(self.until_shutdown(replies));
        response.extensions_mut().insert(freight);
        Ok(response)
    }

    async fn get(&self, request: Request<GetBatch>) -> Result<Response<GetBatchReply>, Status> {
        Ok(laden(answer(&self.store, request.into_inner()).await.map_err(status_of)?))
    }

    async fn scan(&self, request: Request<SstScanRequest>) -> Result<Response<SstScanReply>, Status> {
        let request = page_from_wire(request.into_inner()).map_err(status_of)?;
        let (answer, room) = self.store.scan_page(request).await.map_err(status_of)?;
        Ok(laden((page_to_wire(answer), room)))
    }

    async fn fetch_filter(
        &self,
        request: Request<FetchFilterRequest>,
    ) -> Result<Response<Self::FetchFilterStream>, Status> {
        let id = sst_id_from_wire(&request.get_ref().id).map_err(status_of)?;
        let pieces = self.store.fetch_filter(id).await.map_err(status_of)?;
        Ok(Response::new(self.until_shutdown(pieces.map(|data| Ok(FilterBytes { data })))))
    }

    async fn ingest(
        &self,
        request: Request<Streaming<IngestRequest>>,
    ) -> Result<Response<IngestReply>, Status> {
        let meta = self.store.ingest(request.into_inner().map(ingest_from_wire)).await.map_err(status_of)?;
        Ok(Response::new(IngestReply { meta: Some((&meta).into()) }))
    }

    async fn compact(&self, request: Request<CompactRequest>) -> Result<Response<CompactReply>, Status> {
        let order = request.into_inner().try_into().map_err(status_of)?;
        let outputs = self.store.compact(order, &Progress::default()).await.map_err(status_of)?;
        Ok(Response::new(compacted(&outputs)))
    }

    async fn compact_watched(
        &self,
        request: Request<CompactRequest>,
    ) -> Result<Response<Self::CompactWatchedStream>, Status> {
        let order = request.into_inner().try_into().map_err(status_of)?;
        let (store, progress) = (self.store.clone(), Progress::default());
        let of_work = progress.clone();
        let news = progress.tell(async move { store.compact(order, &of_work).await });
        let messages = news.map_ok(|news| match news {
            News::Bytes(bytes) => CompactProgress { bytes, done: None },
            News::Done(outputs) => CompactProgress { bytes: 0, done: Some(compacted(&outputs)) },
        });
        Ok(Response::new(self.until_shutdown(messages.map_err(status_of))))
    }

    async fn copy(&self, request: Request<CopyRequest>) -> Result<Response<CopyReply>, Status> {
        let order = request.into_inner().try_into().map_err(status_of)?;
        self.store.copy(order, &Progress::default()).await.map_err(status_of)?;
        Ok(Response::new(CopyReply {}))
    }

    async fn copy_watched(
        &self,
        request: Request<CopyRequest>,
    ) -> Result<Response<Self::CopyWatchedStream>, Status> {
        let order = request.into_inner().try_into().map_err(status_of)?;
        let (store, progress) = (self.store.clone(), Progress::default());
        let of_work = progress.clone();
        let news = progress.tell(async move { store.copy(order, &of_work).await });
        let messages = news.map_ok(|news| match news {
            News::Bytes(bytes) => CopyProgress { bytes, done: None },
            News::Done(()) => CopyProgress { bytes: 0, done: Some(CopyReply {}) },
        });
        Ok(Response::new(self.until_shutdown(messages.map_err(status_of))))
    }

    async fn fetch(&self, request: Request<FetchRequest>) -> Result<Response<Self::FetchStream>, Status> {
        let FetchRequest { id, offset } = request.into_inner();
        let id = sst_id_from_wire(&id).map_err(status_of)?;
        let pieces = self.store.fetch(id, offset).await.map_err(status_of)?;
        let chunks = pieces.map_ok(|Piece { offset, data }| FileChunk { offset, data });
        Ok(Response::new(self.or_stopping(chunks.map_err(status_of))))
    }

    async fn inventory(
        &self,
        request: Request<InventoryRequest>,
    ) -> Result<Response<InventoryReply>, Status> {
        let from = request.extensions().get::<Party>().copied();
        let InventoryRequest { partition, order, unix_us, tables_lacking } = request.into_inner();
        let partition = PartitionId(partition);
        if let Some(from) = from {
            let ours_ns = self.store.env.clock.wall_guess_ns();
            self.store.metrics.clocks.heard(from, unix_us.saturating_mul(1000), ours_ns, INVENTORY_LATE_NS);
        }
        if let (Some(from), Some(_), false) = (from, &order, may_order(from)) {
            let why = format!("{from} may ask for an inventory, and not give orders");
            return Err(status_of(Error::new(ErrorKind::Denied, why)));
        }
        let is_ordered = order.is_some();
        if let Some(order) = order.map(OrderNumber::from)
            && self.store.catalog.asked(partition, order)
        {
            let catalog = self.store.catalog.clone();
            let written = self.store.disk(IoKind::Sync, move || catalog.ordered(partition, order)).await;
            // A full disk is to be told what may be deleted all the same. (What it does not remember matters only if it is restarted,
            // and a leader before this one is still giving orders then.)
            if let Err(e) = written {
                tracing::warn!("who leads partition {partition} was not written down: {e}");
            }
        }
        // (P-nodes ask too, without an order, and say nothing of it.)
        if is_ordered {
            self.store.settling.asked(partition, tables_lacking);
        }
        if self.store.catalog.is_filling() && self.store.settling.waits_for().is_none() {
            let catalog = self.store.catalog.clone();
            let written = self.store.disk(IoKind::Sync, move || catalog.filled()).await;
            if let Err(e) = written {
                tracing::warn!("that this server has what it is to have was not written down: {e}");
            }
        }
        // (Leaders ask every few seconds.)
        self.store.broken_off.forget_old(self.store.env.clock.holder_ns());
        let entries = self.store.catalog.inventory(partition);
        let entries = entries.into_iter().map(|(id, entry)| InventoryEntry {
            id: sst_id_to_wire(id),
            checksum: entry.checksum(),
            file_bytes: entry.file_bytes(),
            damaged: entry.is_damaged(),
            lineage: entry.lineage(),
        });
        Ok(Response::new(InventoryReply { node: self.store.config.id.0, entries: entries.collect() }))
    }

    async fn count(&self, request: Request<CountRequest>) -> Result<Response<CountReply>, Status> {
        let (tables, tables_in_all) = self.store.catalog.count(PartitionId(request.get_ref().partition));
        Ok(Response::new(CountReply { node: self.store.config.id.0, tables, tables_in_all }))
    }

    async fn holdings(
        &self,
        request: Request<HoldingsRequest>,
    ) -> Result<Response<Self::HoldingsStream>, Status> {
        let entries = self.store.catalog.inventory(PartitionId(request.get_ref().partition));
        let holdings = entries.into_iter().map(|(id, entry)| {
            let contents = match &entry {
                Entry::Open(table) => Some(table.contents()),
                Entry::Unreadable { .. } => None,
            };
            Ok(sstable::Holding { id, damaged: entry.is_damaged(), contents }.into())
        });
        // (A part of them is not all that there is: tables that nobody names are deleted.)
        Ok(Response::new(self.or_stopping(futures::stream::iter(holdings))))
    }

    async fn delete(&self, request: Request<DeleteRequest>) -> Result<Response<DeleteReply>, Status> {
        let DeleteRequest { ids, lineage } = request.into_inner();
        let ids = ids_to_delete(&ids).map_err(status_of)?;
        let catalog = self.store.catalog.clone();
        let (deleted, refused) =
            self.store.disk(IoKind::Sync, move || catalog.delete(&ids, lineage)).await.map_err(status_of)?;
        self.store.metrics.deleted.inc_by(u64::from(deleted));
        if refused > 0 {
            tracing::warn!(
                refused,
                "tables were to be deleted that are not of the lineage {lineage:016x} of who asked: they stay"
            );
        }
        Ok(Response::new(DeleteReply { deleted, refused }))
    }

    async fn release_tables(
        &self,
        request: Request<ReleaseTablesRequest>,
    ) -> Result<Response<ReleaseTablesReply>, Status> {
        let ReleaseTablesRequest { ids, lineage, order } = request.into_inner();
        let ids = ids_to_delete(&ids).map_err(status_of)?;
        let order = order.ok_or_else(|| status_of(Error::invalid("an order without a number")))?.into();
        let catalog = self.store.catalog.clone();
        let release = move || catalog.release(&ids, lineage, order);
        let (released, refused) = self.store.disk(IoKind::Sync, release).await.map_err(status_of)?;
        self.store.metrics.deleted.inc_by(u64::from(released));
        Ok(Response::new(ReleaseTablesReply { released, refused }))
    }
}
