//! Users of the cluster.

use futures::future::BoxFuture;
use sextant_common::error::Result;
use sextant_proto::v1;
use sextant_proto::v1::users_client::UsersClient;

use crate::client::Client;
use crate::retry::timed;

impl Client {
    /// Makes or changes a user, by rules as of Redis' `ACL SETUSER` (docs/security.md).
    pub fn set_user<'a>(&'a self, name: &'a str, rules: &'a [String]) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let request = v1::SetUserRequest { name: name.to_owned(), rules: rules.to_vec() };
            self.administer_at(self.deadline(), async |channel, limit| {
                UsersClient::new(channel).set(timed(request.clone(), limit)).await.map(|_| ())
            })
            .await
        })
    }

    /// Whether there was one.
    pub fn remove_user<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<bool>> {
        Box::pin(async move {
            let request = v1::RemoveUserRequest { name: name.to_owned() };
            self.administer_at(self.deadline(), async |channel, limit| {
                let reply = UsersClient::new(channel).remove(timed(request.clone(), limit)).await?;
                Ok(reply.into_inner().existed)
            })
            .await
        })
    }

    /// Names and rules, without secrets.
    pub fn users<'a>(&'a self) -> BoxFuture<'a, Result<Vec<(String, String)>>> {
        Box::pin(async move {
            self.administer_at(self.deadline(), async |channel, limit| {
                let reply = UsersClient::new(channel).list(timed(v1::ListUsersRequest {}, limit)).await?;
                Ok(reply.into_inner().users.into_iter().map(|user| (user.name, user.rules)).collect())
            })
            .await
        })
    }
}
