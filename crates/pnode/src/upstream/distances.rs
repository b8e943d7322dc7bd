//! How far the sstable servers are: of replicas that are as good as each other, the near ones are asked. Only a preference.
//!
//! A distance is the shortest time that an answer took lately: disks and load only make it longer. It grows slowly until a shorter
//! one comes, so that it follows what changes; and a share of the reads goes by chance, so that far servers are measured too.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use sextant_common::ids::NodeId;

/// A server is far if it is more than twice, and this, farther than the nearest; and is not any more below half as much of both.
const FAR_NS: u64 = 1_000_000;
/// With each answer a distance grows by this part, if it is not shorter.
const FORGETS: u64 = 128;
/// One of so many keys is read wherever its hash says.
const BY_CHANCE: u64 = 64;

#[derive(Debug, Default)]
pub(crate) struct Distances(BTreeMap<NodeId, Distance>);

#[derive(Debug, Default)]
struct Distance {
    /// 0: it has not answered yet.
    shortest_ns: AtomicU64,
    is_far: AtomicBool,
}

impl Distances {
    pub fn of(servers: impl Iterator<Item = NodeId>) -> Self {
        Self(servers.map(|node| (node, Distance::default())).collect())
    }

    /// It has answered a read after so long.
    pub fn answered(&self, node: NodeId, took_ns: u64) {
        let Some(distance) = self.0.get(&node) else { return };
        let before = distance.shortest_ns.load(Ordering::Relaxed);
        let most = if before == 0 { u64::MAX } else { before.saturating_add(before / FORGETS + 1) };
        let now = took_ns.max(1).min(most);
        distance.shortest_ns.store(now, Ordering::Relaxed);
        let known = self.0.values().map(|d| d.shortest_ns.load(Ordering::Relaxed)).filter(|ns| *ns > 0);
        let nearest = known.min().unwrap_or(now);
        let limit = match distance.is_far.load(Ordering::Relaxed) {
            true => nearest.saturating_add(nearest / 2).saturating_add(FAR_NS / 2),
            false => nearest.saturating_mul(2).saturating_add(FAR_NS),
        };
        distance.is_far.store(now > limit, Ordering::Relaxed);
    }

    /// Whether another one is to be asked for this key, if there is one that is as good.
    pub fn is_far(&self, node: NodeId, hash: u64) -> bool {
        !hash.is_multiple_of(BY_CHANCE)
            && self.0.get(&node).is_some_and(|distance| distance.is_far.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: u64 = 1_000;
    const NEAR: NodeId = NodeId(1);
    const FAR: NodeId = NodeId(2);

    #[test]
    fn a_server_is_far_when_it_clearly_is_and_near_again_when_it_clearly_is_not() {
        let distances = Distances::of([NEAR, FAR].into_iter());
        let is_far = |node| distances.is_far(node, 1);
        distances.answered(FAR, 5_000 * US);
        assert!(!is_far(FAR), "there is none that is nearer");
        distances.answered(NEAR, 200 * US);
        distances.answered(FAR, 5_000 * US);
        assert!(is_far(FAR) && !is_far(NEAR));
        assert!(!distances.is_far(FAR, 3 * BY_CHANCE), "some reads go there all the same");
        // A slow disk makes nobody far.
        distances.answered(NEAR, 50_000 * US);
        assert!(!is_far(NEAR));
        // Between the two limits it stays what it is.
        distances.answered(FAR, 1_000 * US);
        assert!(is_far(FAR));
        distances.answered(FAR, 700 * US);
        assert!(!is_far(FAR));
        (0..30).for_each(|_| distances.answered(FAR, 1_000 * US));
        assert!(!is_far(FAR));
    }

    #[test]
    fn what_was_near_is_forgotten_in_time() {
        let distances = Distances::of([NEAR, FAR].into_iter());
        distances.answered(FAR, 3_000 * US);
        distances.answered(NEAR, 100 * US);
        distances.answered(FAR, 3_000 * US);
        assert!(distances.is_far(FAR, 1));
        let answers = (1..).find(|_| {
            distances.answered(NEAR, 4_000 * US);
            distances.answered(FAR, 3_000 * US);
            !distances.is_far(FAR, 1)
        });
        assert!(answers.is_some_and(|answers| answers < 1_000), "{answers:?}");
        distances.answered(NodeId(9), 1);
        assert!(!distances.is_far(NodeId(9), 1));
    }
}
