//! Service `Admin`, of which sstable servers answer `Status` and `VerifyTables` only.

use std::sync::Arc;

use sextant_proto::v1::admin_server::Admin;
use sextant_proto::v1::{
    ChangeTableReply, ChangeTableRequest, ChangeVotersReply, ChangeVotersRequest, ConfigureRequest, CutReply,
    CutRequest, EndLoadRequest, EnsureTableReply, EnsureTableRequest, FetchTableRequest, FileChunk,
    ImportReply, ImportRequest, LoadReply, LoadRequest, LogPage, MaintenanceReply, MaintenanceRequest,
    RaiseFormatReply, RaiseFormatRequest, ReadLogRequest, RecoverReply, RecoverRequest, StatusReply,
    StatusRequest, TransferReply, TransferRequest, VerifiedServer, VerifyTablesReply, VerifyTablesRequest,
};
use tonic::{Request, Response, Status, Streaming};

use crate::scrub::Verified;
use crate::store::Store;

pub struct AdminService {
    store: Arc<Store>,
}

impl AdminService {
    pub fn new(store: Arc<Store>) -> Self {
        Self { store }
    }
}

fn not_here<T>() -> Result<T, Status> {
    Err(Status::unimplemented(
        "an sstable server answers Status and VerifyTables only: ask a p-node or a memtable server",
    ))
}

#[tonic::async_trait]
impl Admin for AdminService {
    async fn freeze(&self, _: Request<MaintenanceRequest>) -> Result<Response<MaintenanceReply>, Status> {
        not_here()
    }

    async fn flush(&self, _: Request<MaintenanceRequest>) -> Result<Response<MaintenanceReply>, Status> {
        not_here()
    }

    async fn compact(&self, _: Request<MaintenanceRequest>) -> Result<Response<MaintenanceReply>, Status> {
        not_here()
    }
    async fn configure(&self, _: Request<ConfigureRequest>) -> Result<Response<MaintenanceReply>, Status> {
        not_here()
    }

    async fn ensure_table(
        &self,
        _: Request<EnsureTableRequest>,
    ) -> Result<Response<EnsureTableReply>, Status> {
        not_here()
    }

    async fn change_table(
        &self,
        _: Request<ChangeTableRequest>,
    ) -> Result<Response<ChangeTableReply>, Status> {
        not_here()
    }

    async fn transfer(&self, _: Request<TransferRequest>) -> Result<Response<TransferReply>, Status> {
        not_here()
    }

    async fn change_voters(
        &self,
        _: Request<ChangeVotersRequest>,
    ) -> Result<Response<ChangeVotersReply>, Status> {
        not_here()
    }

    async fn recover(&self, _: Request<RecoverRequest>) -> Result<Response<RecoverReply>, Status> {
        not_here()
    }

    async fn raise_format(
        &self,
        _: Request<RaiseFormatRequest>,
    ) -> Result<Response<RaiseFormatReply>, Status> {
        not_here()
    }

    async fn cut(&self, _: Request<CutRequest>) -> Result<Response<CutReply>, Status> {
        not_here()
    }

    type FetchTableStream = tokio_stream::Empty<Result<FileChunk, Status>>;

    async fn fetch_table(
        &self,
        _: Request<FetchTableRequest>,
    ) -> Result<Response<Self::FetchTableStream>, Status> {
        not_here()
    }

    type ReadLogStream = tokio_stream::Empty<Result<LogPage, Status>>;

    async fn read_log(&self, _: Request<ReadLogRequest>) -> Result<Response<Self::ReadLogStream>, Status> {
        not_here()
    }

    async fn import(&self, _: Request<ImportRequest>) -> Result<Response<ImportReply>, Status> {
        not_here()
    }

    async fn verify_tables(
        &self,
        _: Request<VerifyTablesRequest>,
    ) -> Result<Response<VerifyTablesReply>, Status> {
        let Verified { tables, bytes, damaged } = self.store.verify_all().await;
        let node = self.store.config.id.0;
        let server = VerifiedServer { node, tables, bytes, damaged, error: String::new() };
        Ok(Response::new(VerifyTablesReply { servers: vec![server], lacking: Vec::new() }))
    }

    async fn load(&self, _: Request<Streaming<LoadRequest>>) -> Result<Response<LoadReply>, Status> {
        not_here()
    }

    async fn end_load(&self, _: Request<EndLoadRequest>) -> Result<Response<LoadReply>, Status> {
        not_here()
    }

    async fn status(&self, _: Request<StatusRequest>) -> Result<Response<StatusReply>, Status> {
        Ok(Response::new(StatusReply { json: self.store.status_json() }))
    }
}
