//! Finding a p-node's administration: it listens on an address of its own, which the p-node tells.

use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use sextant_common::error::{Error, Result};
use sextant_environment::config::unix_path;
use sextant_environment::env::{grpc_channel, status_of};
use sextant_proto::MESSAGE_BYTES_MAX;
use sextant_proto::v1;
use sextant_proto::v1::admin_client::AdminClient;
use sextant_proto::v1::whereabouts_client::WhereaboutsClient;
use tonic::Status;

use crate::client::Client;
use crate::retry::{Repeat, timed};
use crate::wire::{Over, Says, Wire};

impl Client {
    /// Runs one command of an operator, which may be repeated. `attempt` is given the service of one p-node.
    pub(crate) async fn administer<T, F, A>(&self, deadline: Duration, attempt: F) -> Result<T>
    where
        F: Fn(AdminClient<Wire>, Duration) -> A,
        A: Future<Output = Result<T, Status>>,
    {
        self.administer_at(deadline, |channel, limit| attempt(admin(channel), limit)).await
    }

    /// The administration of one p-node, for answers that are read when there is time.
    pub(crate) async fn administration_for_streams(&self) -> Result<AdminClient<Wire>> {
        let found = |at, limit| self.administration(at, limit, Says::streams_over);
        Ok(admin(self.call_at(Repeat::Harmless, self.deadline(), found).await?))
    }

    /// As [`Self::administer`], with whatever service there is.
    pub(crate) async fn administer_at<T, F, A>(&self, deadline: Duration, attempt: F) -> Result<T>
    where
        F: Fn(Wire, Duration) -> A,
        A: Future<Output = Result<T, Status>>,
    {
        let attempt = &attempt;
        let found_and_asked = |at, limit| async move {
            attempt(self.administration(at, limit, Says::over).await?, limit).await
        };
        self.call_at(Repeat::Harmless, deadline, found_and_asked).await
    }

    /// Asked for each command anew: commands are rare, and a p-node may have been started again somewhere else.
    async fn administration(&self, at: usize, limit: Duration, over: Over) -> Result<Wire, Status> {
        let endpoints = &self.inner.endpoints;
        let mut whereabouts = WhereaboutsClient::new(endpoints.channel(at));
        let told = whereabouts.admin(timed(v1::WhereIsAdminRequest {}, limit)).await?.into_inner();
        let addr = reached(endpoints.addr(at), &told.addr).map_err(status_of)?;
        let administration = over(endpoints.says(), &self.inner.env.net, &addr);
        // (Elsewhere a name may lead to all p-nodes of a cluster, in turns.)
        let is_here = is_loopback(addr.rsplit_once(':').map_or(&*addr, |(host, _)| host));
        if told.instance != 0 && is_here {
            // (Nobody has to say who it is for that; the party there may not be meant to know.)
            let mut there = WhereaboutsClient::new(grpc_channel(&self.inner.env.net, &addr));
            let answers = there.admin(timed(v1::WhereIsAdminRequest {}, limit)).await?.into_inner();
            if answers.instance != told.instance {
                return Err(status_of(anothers(endpoints.addr(at), &addr)));
            }
        }
        Ok(administration)
    }
}

fn admin(channel: Wire) -> AdminClient<Wire> {
    AdminClient::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX)
}

/// Behind forwarded ports an address of this machine may lead to any cluster.
fn anothers(asked: &str, addr: &str) -> Error {
    Error::invalid(format!(
        "{asked} says that its administration listens on {addr}, but another p-node, perhaps of another cluster, answers there: is a \
         port of this machine forwarded? Nothing was done; run this on the p-node's machine, or give the administration's own address \
         (--server)"
    ))
}

/// The address at which this process reaches the administration that a p-node says it has at `told`. `asked`: the
/// address under which the p-node itself was reached.
fn reached(asked: &str, told: &str) -> Result<String> {
    let bad = || Error::internal(format!("the p-node says that its administration listens on {told:?}"));
    let admin: SocketAddr = told.parse().map_err(|_| bad())?;
    // A path leads to this machine.
    let host = match unix_path(asked) {
        Some(_) => "localhost",
        None => asked.rsplit_once(':').map_or(asked, |(host, _)| host),
    };
    if admin.ip().is_unspecified() {
        return Ok(format!("{host}:{}", admin.port()));
    }
    // The same address here may be another cluster's.
    if admin.ip().is_loopback() && !is_loopback(host) {
        return Err(Error::invalid(format!(
            "the administration of {asked} listens on {told} only: run this on that machine with --server {told}, or set \
             `admin` in the p-node's configuration"
        )));
    }
    Ok(told.to_owned())
}

fn is_loopback(host: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn administration_is_reached_where_the_p_node_says_it_is() {
        for (asked, told, expected) in [
            ("127.0.0.1:7400", "127.0.0.1:8400", "127.0.0.1:8400"),
            ("localhost:7400", "127.0.0.1:8400", "127.0.0.1:8400"),
            ("[::1]:7400", "127.0.0.1:8400", "127.0.0.1:8400"),
            ("pnode-1:7400", "10.0.0.7:8400", "10.0.0.7:8400"),
            ("unix:/run/s.sock", "127.0.0.1:8400", "127.0.0.1:8400"),
            ("unix:/run/s.sock", "0.0.0.0:8400", "localhost:8400"),
            ("pnode-1:7400", "0.0.0.0:8400", "pnode-1:8400"),
            ("[fd00::1]:7400", "[::]:8400", "[fd00::1]:8400"),
        ] {
            assert_eq!(reached(asked, told).unwrap(), expected, "{asked} {told}");
        }
    }

    #[test]
    fn another_machines_loopback_is_not_taken_for_ones_own() {
        for asked in ["pnode-1:7400", "10.0.0.7:7400"] {
            let error = reached(asked, "127.0.0.1:8400").unwrap_err();
            assert!(error.message.contains("run this on that machine"), "{error}");
        }
        assert!(reached("127.0.0.1:7400", "nowhere").is_err());
    }
}
