//! Service `Sst`.

use std::sync::Arc;

use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use sextant_common::error::{Error, Result};
use sextant_common::ids::PartitionId;
use sextant_common::vfs::IoKind;
use sextant_proto::convert::{sst_id_from_wire, sst_id_to_wire};
use sextant_proto::v1::sst_server::Sst;
use sextant_proto::v1::{
    CompactReply, CompactRequest, CopyReply, CopyRequest, DeleteReply, DeleteRequest, FetchFilterRequest,
    FetchRequest, FileChunk, FilterBytes, GetBatch, GetBatchReply, IngestReply, IngestRequest,
    InventoryEntry, InventoryReply, InventoryRequest, SstScanReply, SstScanRequest,
};
use tonic::{Request, Response, Status, Streaming};

use crate::store::Store;

/// Batches of one stream that are worked on at a time; more are not read from the connection. Enough to keep the disk busy
/// while the answers travel.
const BATCHES_IN_FLIGHT_MAX: usize = 8;
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
}

#[tonic::async_trait]
impl Sst for SstService {
    type GetStreamStream = BoxStream<'static, Result<GetBatchReply, Status>>;
    type FetchFilterStream = BoxStream<'static, Result<FilterBytes, Status>>;
    type FetchStream = BoxStream<'static, Result<FileChunk, Status>>;

    async fn get_stream(
        &self,
        request: Request<Streaming<GetBatch>>,
    ) -> Result<Response<Self::GetStreamStream>, Status> {
        let store = self.store.clone();
        let replies = request.into_inner().map(move |batch| {
            let store = store.clone();
            async move { Ok(store.get_batch(batch?).await?) }
        });
        Ok(Response::new(self.until_shutdown(replies.buffered(BATCHES_IN_FLIGHT_MAX))))
    }

    async fn get(&self, request: Request<GetBatch>) -> Result<Response<GetBatchReply>, Status> {
        Ok(Response::new(self.store.get_batch(request.into_inner()).await?))
    }

    async fn scan(&self, request: Request<SstScanRequest>) -> Result<Response<SstScanReply>, Status> {
        Ok(Response::new(self.store.scan_page(request.into_inner()).await?))
    }

    async fn fetch_filter(
        &self,
        request: Request<FetchFilterRequest>,
    ) -> Result<Response<Self::FetchFilterStream>, Status> {
        let pieces = self.store.fetch_filter(request.get_ref())?;
        Ok(Response::new(self.until_shutdown(pieces.map(Ok))))
    }

    async fn ingest(
        &self,
        request: Request<Streaming<IngestRequest>>,
    ) -> Result<Response<IngestReply>, Status> {
        let meta = self.store.ingest(request.into_inner()).await?;
        Ok(Response::new(IngestReply { meta: Some((&meta).into()) }))
    }

    async fn compact(&self, request: Request<CompactRequest>) -> Result<Response<CompactReply>, Status> {
        let meta = self.store.compact(request.into_inner()).await?;
        Ok(Response::new(CompactReply { meta: meta.as_ref().map(Into::into) }))
    }

    async fn copy(&self, request: Request<CopyRequest>) -> Result<Response<CopyReply>, Status> {
        self.store.copy(request.into_inner()).await?;
        Ok(Response::new(CopyReply {}))
    }

    async fn fetch(&self, request: Request<FetchRequest>) -> Result<Response<Self::FetchStream>, Status> {
        let pieces = self.store.fetch(request.into_inner()).await?;
        Ok(Response::new(self.until_shutdown(pieces.map_err(Status::from))))
    }

    async fn inventory(
        &self,
        request: Request<InventoryRequest>,
    ) -> Result<Response<InventoryReply>, Status> {
        let entries = self.store.catalog.inventory(PartitionId(request.get_ref().partition));
        let entries = entries.into_iter().map(|(id, entry)| InventoryEntry {
            id: sst_id_to_wire(id),
            checksum: entry.checksum(),
            file_bytes: entry.file_bytes(),
            damaged: entry.is_damaged(),
        });
        Ok(Response::new(InventoryReply { node: self.store.config.id.0, entries: entries.collect() }))
    }

    async fn delete(&self, request: Request<DeleteRequest>) -> Result<Response<DeleteReply>, Status> {
        let ids = request.into_inner().ids;
        if ids.len() > DELETES_MAX {
            return Err(Error::invalid(format!(
                "{} tables to delete: the limit is {DELETES_MAX}",
                ids.len()
            ))
            .into());
        }
        let ids = ids.iter().map(|id| sst_id_from_wire(id)).collect::<Result<Vec<_>>>()?;
        let catalog = self.store.catalog.clone();
        let deleted = self.store.disk(IoKind::Sync, move || catalog.delete(&ids)).await?;
        self.store.metrics.deleted.inc_by(u64::from(deleted));
        Ok(Response::new(DeleteReply { deleted }))
    }
}
