//! Whether a server is the only one with its name: asked before it starts.
//!
//! Two processes that both are, say, memtable server 1 could vote twice in one term. One directory is locked, and one port taken; two
//! hosts with the same file, or with copies of one disk, share neither. But the others know one address of each server, and whoever
//! answers there under its name before it listens is somebody else.

use std::sync::Arc;
use std::time::Duration;

use sextant_common::Error;
use sextant_environment::config::{ClusterConfig, Server};
use sextant_environment::env::{Network, Party, cluster_channel};
use sextant_proto::v1::StatusRequest;
use sextant_proto::v1::admin_client::AdminClient;

/// Who does not answer for so long is not there, or not within reach, which is no reason not to start.
const ANSWER_MAX: Duration = Duration::from_secs(1);

pub async fn nobody_else(
    net: &Arc<dyn Network>,
    cluster: &ClusterConfig,
    me: Party,
    named: Option<&Server>,
) -> Result<(), Error> {
    let Some(Server { addr, .. }) = named else { return Ok(()) };
    let mut client = AdminClient::new(cluster_channel(net, addr, cluster, me, Some(me)));
    let answer = tokio::time::timeout(ANSWER_MAX, client.status(StatusRequest {})).await;
    match answer {
        Ok(Ok(_)) => Err(Error::unavailable(format!(
            "{me} runs already, at {addr}, where the cluster's configuration has it: two servers with one id, or one that has not \
             ended yet"
        ))),
        _ => Ok(()),
    }
}
