//! /metrics, /status, and whether the server is ready.

use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use sextant_common::error::Result;
use sextant_common::ids::PartitionId;
use sextant_environment::Env;
use sextant_environment::http::{self, HttpState};
use sextant_environment::shutdown::Shutdown;

use crate::replica::{Handle, ReplicaState};
use crate::service::{Context, status};

/// Why a server that has lost its memory of a partition is not ready. `unfounded`: why nobody may let it in.
fn waits_to_be_let_in(partition: PartitionId, unfounded: Option<&str>) -> String {
    let waits = format!(
        "partition {partition}: this server has lost its memory, and waits until the group lets it in again (or, if it was left out \
         of the voters, until `sextant admin voters` names it)"
    );
    unfounded.map_or(waits.clone(), |why| format!("{waits}; {why}"))
}

/// Which partitions this server leads and serves, when somebody looks.
struct Serving(Vec<Arc<ReplicaState>>);

impl std::fmt::Debug for Serving {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Serving({} partitions)", self.0.len())
    }
}

impl Collector for Serving {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
        let (name, help) = ("sextant_memtable_serving", "1: this server leads the partition and serves it");
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for replica in &self.0 {
            let label = [("partition", replica.id.0.to_string())];
            let serves = ConstGauge::new(i64::from(replica.serving().is_some()));
            serves.encode(family.encode_family(&label)?)?;
        }
        Ok(())
    }
}

pub(super) async fn serve(
    env: &Env,
    at: &str,
    mut registry: Registry,
    context: &Arc<Context>,
    shutdown: Shutdown,
) -> Result<SocketAddr> {
    let replicas = context.partitions.values().map(|handle| handle.shared.clone());
    registry.register_collector(Box::new(Serving(replicas.collect())));
    let (ready, shown) = (context.clone(), context.clone());
    let state = HttpState {
        registry: Arc::new(Mutex::new(registry)),
        ready: Arc::new(move || {
            if ready.draining.is_triggered() {
                return Err("the server is stopping".into());
            }
            // Ready: every partition has a leader that this node knows; but nobody tells a server that was removed.
            let removed = |h: &Handle| {
                let members = h.shared.numbers.lock().members.clone();
                !members.voters.is_empty() && !members.voters.contains(&h.shared.node)
            };
            let lost = ready.partitions.values().find(|h| h.shared.incarnation.is_lost(h.shared.id));
            if let Some(h) = lost {
                return Err(waits_to_be_let_in(h.shared.id, h.shared.unfounded.lock().as_deref()));
            }
            let lacking = ready.partitions.values().find(|h| h.shared.leader().node == 0 && !removed(h));
            let why = |h: &Handle| {
                let unfounded = h.shared.unfounded.lock().clone();
                unfounded.unwrap_or_else(|| format!("partition {} has no leader", h.shared.id))
            };
            lacking.map_or(Ok(()), |h| Err(why(h)))
        }),
        status: Arc::new(move || {
            let json = status::json(&shown);
            Box::pin(async move { json })
        }),
    };
    http::serve(env, at, state, shutdown).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_without_its_memory_says_what_it_waits_for_and_what_keeps_the_group_from_being_there() {
        let waits = waits_to_be_let_in(PartitionId(3), None);
        assert!(
            waits.starts_with("partition 3: this server has lost its memory")
                && waits.contains("admin voters")
        );
        let why = waits_to_be_let_in(PartitionId(3), Some("run `sextant admin recover`"));
        assert!(why.starts_with(&waits) && why.ends_with("; run `sextant admin recover`"), "{why}");
    }
}
