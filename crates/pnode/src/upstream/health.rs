//! Replicas of SSTables to avoid for a while. Only a preference: if nothing else is left, they are asked all the same.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;
use sextant_common::ids::{NodeId, SstId};

/// How long a server that could not be reached is avoided.
const SERVER_AVOIDED: Duration = Duration::from_millis(500);
/// How long a replica that lacks a table, or has a damaged one, is avoided. Repair takes longer than this; the manifest
/// tells when it is done.
const REPLICA_AVOIDED: Duration = Duration::from_secs(5);
/// Most replicas remembered: more means that a server is in trouble as a whole, and forgetting costs one more request.
const REPLICAS_MAX: usize = 1024;

#[derive(Default)]
pub(crate) struct Health {
    avoided: Mutex<Avoided>,
}

#[derive(Default)]
struct Avoided {
    servers: BTreeMap<NodeId, u64>,
    replicas: BTreeMap<(NodeId, SstId), u64>,
}

impl Health {
    pub fn server_failed(&self, node: NodeId, now_ns: u64) {
        self.avoided.lock().servers.insert(node, now_ns.saturating_add(SERVER_AVOIDED.as_nanos() as u64));
    }

    pub fn server_answered(&self, node: NodeId) {
        let mut avoided = self.avoided.lock();
        if !avoided.servers.is_empty() {
            avoided.servers.remove(&node);
        }
    }

    pub fn replica_failed(&self, node: NodeId, sst: SstId, now_ns: u64) {
        let mut avoided = self.avoided.lock();
        if avoided.replicas.len() >= REPLICAS_MAX {
            avoided.replicas.retain(|_, until| *until > now_ns);
            if avoided.replicas.len() >= REPLICAS_MAX {
                avoided.replicas.clear();
            }
        }
        avoided.replicas.insert((node, sst), now_ns.saturating_add(REPLICA_AVOIDED.as_nanos() as u64));
    }

    pub fn is_avoided(&self, node: NodeId, sst: SstId, now_ns: u64) -> bool {
        let avoided = self.avoided.lock();
        let is = |until: Option<&u64>| until.is_some_and(|until| *until > now_ns);
        is(avoided.servers.get(&node)) || is(avoided.replicas.get(&(node, sst)))
    }

    /// Whether nothing is avoided: the usual case, told without looking at a single replica.
    pub fn is_perfect(&self) -> bool {
        let avoided = self.avoided.lock();
        avoided.servers.is_empty() && avoided.replicas.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::sst_id;

    #[test]
    fn avoidance_ends_by_itself() {
        let health = Health::default();
        let ms = |ms: u64| ms * 1_000_000;
        health.server_failed(NodeId(1), ms(0));
        health.replica_failed(NodeId(2), sst_id(7), ms(0));
        assert!(
            health.is_avoided(NodeId(1), sst_id(9), ms(499))
                && !health.is_avoided(NodeId(1), sst_id(9), ms(500))
        );
        assert!(
            health.is_avoided(NodeId(2), sst_id(7), ms(4999))
                && !health.is_avoided(NodeId(2), sst_id(8), ms(1))
        );
        assert!(!health.is_avoided(NodeId(2), sst_id(7), ms(5000)));
        health.server_answered(NodeId(1));
        assert!(!health.is_avoided(NodeId(1), sst_id(9), ms(1)));
    }
}
