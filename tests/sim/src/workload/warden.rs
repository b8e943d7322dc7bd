//! The warden: asks every memtable server, all the time, whether it is a voter of every partition and has its memory. What wipes
//! servers goes by it ([`crate::nemesis`]).

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
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
                let asked = tokio::time::timeout(PATIENCE, partitions(channel.clone())).await;
                let partitions = asked.ok().flatten().unwrap_or_default();
                if stands(&partitions, node) {
                    shared.world.set_standing(node, asked_ns);
                }
                for partition in partitions.iter().filter(|partition| partition["serving"] == true) {
                    if let Some(id) = partition["partition"].as_u64() {
                        shared.world.set_serving(id, node, asked_ns);
                    }
                }
            }
        });
    }
    std::future::pending().await
}

/// What a server says of its partitions.
async fn partitions(channel: Channel) -> Option<Vec<Value>> {
    let reply = AdminClient::new(channel).status(v1::StatusRequest::default()).await.ok()?;
    let mut status: Value = serde_json::from_str(&reply.into_inner().json).ok()?;
    match status["partitions"].take() {
        Value::Array(partitions) => Some(partitions),
        _ => None,
    }
}

fn stands(partitions: &[Value], node: u64) -> bool {
    let is_voter = |partition: &Value| {
        let voters = partition["voters"].as_array().map_or(&[][..], Vec::as_slice);
        voters.iter().any(|v| v.as_u64() == Some(node)) && partition["lost_memory"] != true
    };
    !partitions.is_empty() && partitions.iter().all(is_voter)
}
