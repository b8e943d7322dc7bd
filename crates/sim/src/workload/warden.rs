//! The warden: asks every memtable server, all the time, whether it is a voter of every partition and has its memory. What wipes
//! servers goes by it ([`crate::nemesis`]).

use std::sync::Arc;
use std::time::Duration;

use sextant_proto::v1;
use sextant_proto::v1::admin_client::AdminClient;
use tonic::transport::Channel;

use super::Shared;
use super::operator::channels;
use crate::host::Host;

const PAUSE: Duration = Duration::from_millis(100);
const PATIENCE: Duration = Duration::from_millis(300);

pub async fn watch_standing(shared: Arc<Shared>, host: Arc<Host>) {
    let env = host.boot();
    for (at, channel) in channels(&shared, &env).into_iter().enumerate() {
        let shared = shared.clone();
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(PAUSE).await;
                let asked_ns = shared.world.now_ns();
                let node = at as u64 + 1;
                if tokio::time::timeout(PATIENCE, stands(channel.clone(), node)).await == Ok(true) {
                    shared.world.set_standing(node, asked_ns);
                }
            }
        });
    }
    std::future::pending().await
}

async fn stands(channel: Channel, node: u64) -> bool {
    let Ok(reply) = AdminClient::new(channel).status(v1::StatusRequest::default()).await else {
        return false;
    };
    let Ok(status) = serde_json::from_str::<serde_json::Value>(&reply.into_inner().json) else {
        return false;
    };
    let partitions = status["partitions"].as_array().map_or(&[][..], Vec::as_slice);
    let is_voter = |partition: &serde_json::Value| {
        let voters = partition["voters"].as_array().map_or(&[][..], Vec::as_slice);
        voters.iter().any(|v| v.as_u64() == Some(node)) && partition["lost_memory"] != true
    };
    !partitions.is_empty() && partitions.iter().all(is_voter)
}
