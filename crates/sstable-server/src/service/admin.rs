//! Service `Admin`, of which sstable servers answer `Status` only.

use std::sync::Arc;

use sextant_proto::v1::admin_server::Admin;
use sextant_proto::v1::{
    ChangeVotersReply, ChangeVotersRequest, ConfigureRequest, EndLoadRequest, EnsureTableReply,
    EnsureTableRequest, LoadReply, LoadRequest, MaintenanceReply, MaintenanceRequest, RecoverReply,
    RecoverRequest, StatusReply, StatusRequest, TransferReply, TransferRequest,
};
use tonic::{Request, Response, Status, Streaming};

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
    Err(Status::unimplemented("an sstable server answers Status only: ask a p-node or a memtable server"))
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
