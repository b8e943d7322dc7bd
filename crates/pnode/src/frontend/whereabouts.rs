//! Where a p-node's administration listens: so that an operator has to know one address of a p-node only.

use std::net::SocketAddr;

use sextant_proto::v1;
use sextant_proto::v1::whereabouts_server::Whereabouts;
use tonic::{Request, Response, Status};

#[derive(Clone)]
pub(crate) struct WhereaboutsService {
    pub admin: SocketAddr,
}

#[tonic::async_trait]
impl Whereabouts for WhereaboutsService {
    async fn admin(
        &self,
        _: Request<v1::WhereIsAdminRequest>,
    ) -> Result<Response<v1::WhereIsAdminReply>, Status> {
        Ok(Response::new(v1::WhereIsAdminReply { addr: self.admin.to_string() }))
    }
}
