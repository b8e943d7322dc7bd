//! Where a p-node's administration listens: so that an operator has to know one address of a p-node only.

use std::net::SocketAddr;

use sextant_proto::v1;
use sextant_proto::v1::whereabouts_server::Whereabouts;
use tonic::{Request, Response, Status};

#[derive(Clone)]
pub(crate) struct WhereaboutsService {
    pub admin: SocketAddr,
    /// Of the process: who asks at both addresses knows whether they are of the same p-node.
    pub instance: u64,
}

#[tonic::async_trait]
impl Whereabouts for WhereaboutsService {
    async fn admin(
        &self,
        _: Request<v1::WhereIsAdminRequest>,
    ) -> Result<Response<v1::WhereIsAdminReply>, Status> {
        Ok(Response::new(v1::WhereIsAdminReply { addr: self.admin.to_string(), instance: self.instance }))
    }
}
