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

use crate::replica::{Behind, Members, ReplicaState};
use crate::service::{Context, status};

/// Why a server that has lost its memory of a partition is not ready. `unfounded`: why nobody may let it in.
fn waits_to_be_let_in(partition: PartitionId, unfounded: Option<&str>) -> String {
    let waits = format!(
        "partition {partition}: this server has lost its memory, and waits until the group lets it in again (or, if it was left out \
         of the voters, until `sextant admin voters` names it)"
    );
    unfounded.map_or(waits.clone(), |why| format!("{waits}; {why}"))
}

/// Why a replica is not ready, if it is not: it has to know a leader, and to have caught up once since the server started. But nobody
/// tells a server that was removed who leads: both are asked of members only.
fn why_not_ready(shared: &ReplicaState) -> Option<String> {
    let Members { voters, learners } = shared.numbers.lock().members.clone();
    let is_member = voters.is_empty() || voters.contains(&shared.node) || learners.contains(&shared.node);
    if !is_member {
        return None;
    }
    if shared.leader().node == 0 {
        let unfounded = shared.unfounded.lock().clone();
        return Some(unfounded.unwrap_or_else(|| format!("partition {} has no leader", shared.id)));
    }
    shared.catch_up.behind().map(|behind| is_behind(shared.id, behind))
}

fn is_behind(partition: PartitionId, Behind { applied, committed }: Behind) -> String {
    let start = format!("partition {partition}: this server has not caught up since it started");
    match committed {
        Some(committed) => format!("{start}: it has the log up to {applied}, of {committed} committed"),
        None => format!("{start}: it has not heard yet what is committed"),
    }
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
            let replicas = || ready.partitions.values().map(|handle| &*handle.shared);
            if let Some(lost) = replicas().find(|shared| shared.incarnation.is_lost(shared.id)) {
                return Err(waits_to_be_let_in(lost.id, lost.unfounded.lock().as_deref()));
            }
            replicas().find_map(why_not_ready).map_or(Ok(()), Err)
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

    #[test]
    fn a_server_is_ready_when_it_has_caught_up_once_since_it_started() {
        let shared = ReplicaState::for_tests(&Env::real());
        let why = || why_not_ready(&shared);
        assert_eq!(why().unwrap(), "partition 0 has no leader");
        // (As the vote that was written down says.)
        shared.set_leader(3, 2);
        assert!(why().unwrap().ends_with("has not heard yet what is committed"));
        shared.catch_up.heard(Some(7));
        shared.catch_up.applied(5);
        assert!(why().unwrap().ends_with("it has the log up to 5, of 7 committed"));
        shared.catch_up.applied(7);
        assert_eq!(why(), None);
        shared.catch_up.heard(Some(900));
        assert_eq!(why(), None, "it stays so");
        shared.set_leader(4, 0);
        assert_eq!(why().unwrap(), "partition 0 has no leader");
    }

    #[test]
    fn a_leader_has_caught_up_when_it_serves() {
        let shared = ReplicaState::for_tests(&Env::real());
        shared.set_leader(3, shared.node);
        assert!(why_not_ready(&shared).is_some());
        shared.serve(3);
        assert_eq!(why_not_ready(&shared), None);
    }

    #[test]
    fn a_learner_catches_up_too_and_nobody_tells_a_server_that_was_removed() {
        let shared = ReplicaState::for_tests(&Env::real());
        let members = |learners: &[u64]| Members { voters: vec![2, 3], learners: learners.to_vec() };
        shared.numbers.lock().members = members(&[]);
        assert_eq!(why_not_ready(&shared), None, "it may hear of no leader");
        shared.numbers.lock().members = members(&[shared.node]);
        assert_eq!(why_not_ready(&shared).unwrap(), "partition 0 has no leader");
        shared.set_leader(3, 2);
        assert!(why_not_ready(&shared).unwrap().contains("has not caught up"));
        shared.numbers.lock().members = members(&[]);
        assert_eq!(why_not_ready(&shared), None);
    }
}
