//! Replicas of SSTables to avoid for a while. Only a preference: if nothing else is left, they are asked all the same.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;
use sextant_common::ids::{NodeId, SstId};

/// How long a server that could not be reached is avoided at first; twice as long each time that it still cannot be.
const SERVER_AVOIDED: Duration = Duration::from_millis(500);
/// And at most: then somebody waits for it again.
const SERVER_AVOIDED_MAX: Duration = Duration::from_secs(8);
/// A server that has not answered for so long is silent, whoever's time is over.
const ENOUGH: Duration = Duration::from_millis(250);
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
    servers: BTreeMap<NodeId, Silence>,
    /// Servers that have not answered those who had little time.
    hurried: BTreeMap<NodeId, Hurried>,
    replicas: BTreeMap<(NodeId, SstId), u64>,
}

/// Of a server.
#[derive(Clone, Copy)]
struct Silence {
    failed_ns: u64,
    until_ns: u64,
    avoided_ns: u64,
}

/// Nothing was heard of a server since.
#[derive(Clone, Copy)]
struct Hurried {
    since_ns: u64,
    last_ns: u64,
}

impl Avoided {
    /// Whether a server has been silent for long enough, though each of those who asked it had little time.
    fn is_silent(&mut self, node: NodeId, asked_ns: u64, now_ns: u64) -> bool {
        let enough_ns = ENOUGH.as_nanos() as u64;
        let hurried = self.hurried.entry(node).or_insert(Hurried { since_ns: asked_ns, last_ns: asked_ns });
        // Of the time between, in which nobody asked, nothing is known.
        if asked_ns.saturating_sub(hurried.last_ns) > enough_ns {
            hurried.since_ns = asked_ns;
        }
        hurried.last_ns = now_ns;
        now_ns.saturating_sub(hurried.since_ns) >= enough_ns
    }
}

impl Health {
    /// It has not answered at `now_ns` what it was asked at `asked_ns`; it is avoided from now on, as it may have been waited for. `hurried`:
    /// whoever asked has no more time. That says nothing of the server, unless it had enough, or those together who asked since it last
    /// answered.
    pub fn server_failed(&self, node: NodeId, asked_ns: u64, now_ns: u64, hurried: bool) {
        let first = SERVER_AVOIDED.as_nanos() as u64;
        let mut avoided = self.avoided.lock();
        if hurried && !avoided.is_silent(node, asked_ns, now_ns) {
            return;
        }
        let avoided_ns = match avoided.servers.get(&node) {
            // Those who were waiting for it already say nothing new.
            Some(silence) if now_ns < silence.until_ns => silence.avoided_ns,
            Some(silence) => (silence.avoided_ns * 2).min(SERVER_AVOIDED_MAX.as_nanos() as u64),
            None => first,
        };
        let until_ns = now_ns.saturating_add(avoided_ns);
        avoided.servers.insert(node, Silence { failed_ns: now_ns, until_ns, avoided_ns });
    }

    /// What it was asked at `asked_ns`. If it has failed since, that says more.
    pub fn server_answered(&self, node: NodeId, asked_ns: u64) {
        let mut avoided = self.avoided.lock();
        if avoided.servers.get(&node).is_some_and(|silence| silence.failed_ns <= asked_ns) {
            avoided.servers.remove(&node);
        }
        if avoided.hurried.get(&node).is_some_and(|hurried| hurried.since_ns <= asked_ns) {
            avoided.hurried.remove(&node);
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
        avoided.servers.get(&node).is_some_and(|silence| silence.until_ns > now_ns)
            || avoided.replicas.get(&(node, sst)).is_some_and(|until_ns| *until_ns > now_ns)
    }

    /// Whether nothing is avoided: the usual case, told without looking at a single replica.
    pub fn is_perfect(&self) -> bool {
        let avoided = self.avoided.lock();
        avoided.servers.is_empty() && avoided.replicas.is_empty() && avoided.hurried.is_empty()
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
        health.server_failed(NodeId(1), 0, ms(0), false);
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
        health.server_failed(NodeId(1), 0, ms(600), false);
        health.server_answered(NodeId(1), ms(599));
        assert!(health.is_avoided(NodeId(1), sst_id(9), ms(601)), "it was asked before");
        health.server_answered(NodeId(1), ms(600));
        assert!(!health.is_avoided(NodeId(1), sst_id(9), ms(601)));
    }

    #[test]
    fn whoever_has_no_time_says_nothing_of_a_server_unless_it_had_enough() {
        let (health, ms) = (Health::default(), |ms: u64| ms * 1_000_000);
        let is_avoided = |now| health.is_avoided(NodeId(1), sst_id(9), ms(now));
        health.server_failed(NodeId(1), ms(100), ms(349), true);
        assert!(!is_avoided(349) && !health.is_perfect(), "answers count");
        health.server_answered(NodeId(1), ms(200));
        assert!(health.is_perfect());
        health.server_failed(NodeId(1), ms(300), ms(550), true);
        assert!(is_avoided(551));
    }

    #[test]
    fn many_who_have_no_time_tell_together_that_a_server_is_silent() {
        let (health, ms) = (Health::default(), |ms: u64| ms * 1_000_000);
        let is_avoided = |now| health.is_avoided(NodeId(1), sst_id(9), ms(now));
        health.server_failed(NodeId(1), ms(0), ms(200), true);
        health.server_failed(NodeId(1), ms(40), ms(240), true);
        assert!(!is_avoided(240));
        health.server_failed(NodeId(1), ms(60), ms(260), true);
        assert!(is_avoided(260));
        health.server_answered(NodeId(1), ms(300));
        health.server_failed(NodeId(1), ms(400), ms(500), true);
        health.server_failed(NodeId(1), ms(9_000), ms(9_100), true);
        assert!(!is_avoided(9_100), "nobody asked between");
    }

    #[test]
    fn a_server_that_stays_silent_is_waited_for_less_and_less_often() {
        let health = Health::default();
        let (mut now_ms, mut lasted) = (0, Vec::new());
        for _ in 0..6 {
            // All who waited.
            (0..3).for_each(|late| health.server_failed(NodeId(1), 0, (now_ms + late) * 1_000_000, false));
            let is_avoided = |ms: &u64| health.is_avoided(NodeId(1), sst_id(9), (now_ms + ms) * 1_000_000);
            let until_ms = (0..).find(|ms| !is_avoided(ms)).unwrap();
            lasted.push(until_ms - 2);
            now_ms += until_ms;
        }
        assert_eq!(lasted, [500, 1000, 2000, 4000, 8000, 8000]);
        health.server_answered(NodeId(1), now_ms * 1_000_000);
        health.server_failed(NodeId(1), 0, now_ms * 1_000_000, false);
        assert!(!health.is_avoided(NodeId(1), sst_id(9), (now_ms + 500) * 1_000_000), "from the beginning");
    }
}
