//! An sstable server that has no table and takes none: flushes fail and are tried again. A partition is founded only when all sstable
//! servers have said that they hold nothing of it.

use futures::stream::BoxStream;
use sextant_proto::v1;
use sextant_proto::v1::sst_server::{Sst, SstServer};
use tonic::{Request, Response, Status, Streaming};

/// Serves for as long as the test runs.
pub fn serve_nothing(addr: &str) {
    let addr = addr.parse().unwrap();
    tokio::spawn(tonic::transport::Server::builder().add_service(SstServer::new(Empty)).serve(addr));
}

struct Empty;

fn no<T>() -> Result<Response<T>, Status> {
    Err(Status::unavailable("this server takes nothing"))
}

#[tonic::async_trait]
impl Sst for Empty {
    type GetStreamStream = BoxStream<'static, Result<v1::GetBatchReply, Status>>;
    type FetchFilterStream = BoxStream<'static, Result<v1::FilterBytes, Status>>;
    type FetchStream = BoxStream<'static, Result<v1::FileChunk, Status>>;
    type CompactWatchedStream = BoxStream<'static, Result<v1::CompactProgress, Status>>;
    type CopyWatchedStream = BoxStream<'static, Result<v1::CopyProgress, Status>>;
    type HoldingsStream = BoxStream<'static, Result<v1::Holding, Status>>;

    async fn count(&self, _: Request<v1::CountRequest>) -> Result<Response<v1::CountReply>, Status> {
        Ok(Response::new(v1::CountReply { node: 1, ..Default::default() }))
    }

    async fn get_stream(
        &self,
        _: Request<Streaming<v1::GetBatch>>,
    ) -> Result<Response<Self::GetStreamStream>, Status> {
        no()
    }

    async fn get(&self, _: Request<v1::GetBatch>) -> Result<Response<v1::GetBatchReply>, Status> {
        no()
    }

    async fn scan(&self, _: Request<v1::SstScanRequest>) -> Result<Response<v1::SstScanReply>, Status> {
        no()
    }

    async fn fetch_filter(
        &self,
        _: Request<v1::FetchFilterRequest>,
    ) -> Result<Response<Self::FetchFilterStream>, Status> {
        no()
    }

    async fn ingest(
        &self,
        _: Request<Streaming<v1::IngestRequest>>,
    ) -> Result<Response<v1::IngestReply>, Status> {
        no()
    }

    async fn compact(&self, _: Request<v1::CompactRequest>) -> Result<Response<v1::CompactReply>, Status> {
        no()
    }

    async fn compact_watched(
        &self,
        _: Request<v1::CompactRequest>,
    ) -> Result<Response<Self::CompactWatchedStream>, Status> {
        no()
    }

    async fn copy(&self, _: Request<v1::CopyRequest>) -> Result<Response<v1::CopyReply>, Status> {
        no()
    }

    async fn copy_watched(
        &self,
        _: Request<v1::CopyRequest>,
    ) -> Result<Response<Self::CopyWatchedStream>, Status> {
        no()
    }

    async fn fetch(&self, _: Request<v1::FetchRequest>) -> Result<Response<Self::FetchStream>, Status> {
        no()
    }

    async fn inventory(
        &self,
        _: Request<v1::InventoryRequest>,
    ) -> Result<Response<v1::InventoryReply>, Status> {
        no()
    }

    async fn holdings(
        &self,
        _: Request<v1::HoldingsRequest>,
    ) -> Result<Response<Self::HoldingsStream>, Status> {
        no()
    }

    async fn delete(&self, _: Request<v1::DeleteRequest>) -> Result<Response<v1::DeleteReply>, Status> {
        no()
    }

    async fn release_tables(
        &self,
        _: Request<v1::ReleaseTablesRequest>,
    ) -> Result<Response<v1::ReleaseTablesReply>, Status> {
        no()
    }
}
