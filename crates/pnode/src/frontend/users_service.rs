//! The gRPC service `Users`: who makes, changes and removes users.

use std::sync::Arc;

use sextant_access::{Class, Desk};
use sextant_common::{Error, Result};
use sextant_environment::env::status_of;
use sextant_proto::v1;
use sextant_proto::v1::users_server::Users;
use tonic::{Request, Response, Status};

use super::gate::Gate;

pub(crate) struct UsersService {
    gate: Gate,
}

impl UsersService {
    pub fn new(gate: Gate) -> Self {
        Self { gate }
    }

    /// The desk, and the name of who may use it.
    async fn desk<T>(&self, request: &Request<T>) -> Result<(Arc<Desk>, String)> {
        let who = self.gate.operator(request).await?;
        who.may(Class::Admin, "the list of users")?;
        let none =
            || Error::invalid("there are no users here: the p-node's configuration has no section [access]");
        Ok((self.gate.desk.clone().ok_or_else(none)?, who.name().to_owned()))
    }
}

#[tonic::async_trait]
impl Users for UsersService {
    async fn set(&self, request: Request<v1::SetUserRequest>) -> Result<Response<v1::SetUserReply>, Status> {
        let (desk, by) = self.desk(&request).await.map_err(status_of)?;
        let v1::SetUserRequest { name, rules } = request.into_inner();
        desk.set(&by, &name, rules).await.map_err(status_of)?;
        Ok(Response::new(v1::SetUserReply {}))
    }

    async fn remove(
        &self,
        request: Request<v1::RemoveUserRequest>,
    ) -> Result<Response<v1::RemoveUserReply>, Status> {
        let (desk, by) = self.desk(&request).await.map_err(status_of)?;
        let existed = desk.remove(&by, &request.into_inner().name).await.map_err(status_of)?;
        Ok(Response::new(v1::RemoveUserReply { existed }))
    }

    async fn list(
        &self,
        request: Request<v1::ListUsersRequest>,
    ) -> Result<Response<v1::ListUsersReply>, Status> {
        let (desk, _) = self.desk(&request).await.map_err(status_of)?;
        let listed = desk.list().into_iter().map(|(name, rules)| v1::ListedUser { name, rules });
        Ok(Response::new(v1::ListUsersReply { users: listed.collect() }))
    }
}
