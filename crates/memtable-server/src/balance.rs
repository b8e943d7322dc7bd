//! Leaderships are spread: a server that leads clearly more partitions than another one hands one over, now and then.
//!
//! After a restart of everything, or of one server after the other, whoever was up first leads most. Each server looks at what it
//! leads itself, and gives away one leadership at a time, as an operator's transfer does. It gains little, so it is done only where
//! it costs little: while all is quiet, for long, and every voter answers and has the log.
//!
//! Invariant: nothing goes back and forth. A leadership moves only to a server that leads at least two fewer, so that afterwards it
//! leads no more than who gave it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use openraft::async_runtime::WatchReceiver;
use sextant_common::ids::PartitionId;
use sextant_environment::shutdown::Shutdown;
use tokio::sync::oneshot;

use crate::raft::Raft;
use crate::raft::network::NetworkFactory;
use crate::replica::{Event, Handle, Leader};

/// For so long nobody has been elected in any of the partitions.
const QUIET_NS: u64 = 30_000_000_000;
/// A voter that has answered so recently keeps up.
const ANSWERS_NS: u64 = 1_000_000_000;
/// And lacks no more than so many entries of the log.
const NEARLY: u64 = 256;
/// How long a transfer may take before this server does not care any more.
const TRANSFER: Duration = Duration::from_secs(10);

/// A partition, as this server knows it.
#[derive(Clone, Debug)]
struct Seen {
    partition: PartitionId,
    /// 0: nobody.
    leader: u64,
    term: u64,
    voters: BTreeSet<u64>,
    /// All voters answer this leader, and have nearly the whole log.
    is_sound: bool,
}

/// Which partition that `me` leads is to be led by whom. `rank`: 0 for the server that is to lead a partition by preference.
fn choose(me: u64, seen: &[Seen], rank: impl Fn(PartitionId, u64) -> u64) -> Option<(PartitionId, u64)> {
    let of_mine = || seen.iter().filter(|s| s.voters.contains(&me));
    if of_mine().any(|s| s.leader == 0) {
        return None;
    }
    let leads = |node: u64| of_mine().filter(|s| s.leader == node).count();
    let mine = || of_mine().filter(|s| s.leader == me);
    // A peer that is slow somewhere is not to be given anything.
    if !mine().all(|s| s.is_sound) {
        return None;
    }
    let moves = mine().flat_map(|s| s.voters.iter().map(move |to| (s.partition, *to)));
    let moves = moves.filter(|(_, to)| leads(*to) + 2 <= leads(me));
    moves.min_by_key(|(partition, to)| (leads(*to), rank(*partition, *to), *partition, *to))
}

/// What it takes to look at a partition, and to hand it over.
pub struct Balanced {
    pub handle: Handle,
    pub raft: Raft,
    pub network: NetworkFactory,
}

impl Balanced {
    fn seen(&self) -> Seen {
        let shared = &self.handle.shared;
        let Leader { partition, term, node: leader } = shared.leader();
        let now_ns = shared.env.clock.holder_ns();
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let voters: BTreeSet<u64> = metrics.membership_config.membership().voter_ids().collect();
        let answers = |node: u64| {
            let at = shared.lease.answered_ns(term, node);
            at.is_some_and(|at| now_ns.saturating_sub(at) < ANSWERS_NS)
        };
        let last = metrics.last_log_index.unwrap_or(0);
        let has_log = |node: &u64| {
            let matched = metrics.replication.as_ref().and_then(|all| all.get(node)?.as_ref());
            matched.is_some_and(|id| id.index + NEARLY >= last)
        };
        let others = || voters.iter().filter(|node| **node != shared.node);
        let is_uniform = metrics.membership_config.membership().get_joint_config().len() == 1;
        let is_sound =
            shared.serving().is_some() && is_uniform && others().all(|node| answers(*node) && has_log(node));
        Seen { partition, leader, term, voters, is_sound }
    }

    /// False: that server does not mean to lead.
    async fn hand_over(&self, to: u64) -> bool {
        let shared = &self.handle.shared;
        let Some(term) = shared.serving() else { return true };
        // One whose log is full would give it back; one that is about to stop does not mean to.
        if self.network.would_lead(vec![to]).await.is_empty() || !self.network.name_heir(to, term).await {
            return false;
        }
        tracing::info!(partition = %shared.id, to, "this server leads more than others: leadership is handed over");
        let (done, answer) = oneshot::channel();
        let _ = self.handle.events.send(Event::HandOver { to, done });
        if let Ok(Ok(Err(e))) = tokio::time::timeout(TRANSFER, answer).await {
            tracing::info!(partition = %shared.id, to, "not handed over: {e}");
        }
        true
    }
}

/// Since when nobody was elected.
#[derive(Debug, Default)]
struct Quiet {
    led: BTreeMap<PartitionId, (u64, u64)>,
    since_ns: u64,
}

impl Quiet {
    fn is_quiet(&mut self, seen: &[Seen], now_ns: u64) -> bool {
        let led: BTreeMap<_, _> = seen.iter().map(|s| (s.partition, (s.term, s.leader))).collect();
        if led != self.led {
            (self.led, self.since_ns) = (led, now_ns);
        }
        now_ns.saturating_sub(self.since_ns) >= QUIET_NS
    }
}

/// `interval`: how often it looks; nothing is handed over more often. `draining`: it hands everything over itself then.
pub async fn balance(
    partitions: Vec<Balanced>,
    interval: Duration,
    rank: impl Fn(PartitionId, u64) -> u64 + Send + 'static,
    mut draining: Shutdown,
) {
    let Some(shared) = partitions.first().map(|first| first.handle.shared.clone()) else { return };
    let mut quiet = Quiet::default();
    // Who did not mean to lead when it was asked the last time: the next time it is another's turn.
    let mut unwilling = None;
    loop {
        tokio::select! {
            () = draining.wait() => return,
            () = tokio::time::sleep(interval) => {}
        }
        let mut seen: Vec<Seen> = partitions.iter().map(Balanced::seen).collect();
        if !quiet.is_quiet(&seen, shared.env.clock.grantor_ns()) {
            continue;
        }
        if let Some(node) = unwilling.take() {
            seen.iter_mut().for_each(|seen| seen.voters.retain(|voter| *voter != node));
        }
        let Some((id, to)) = choose(shared.node, &seen, &rank) else { continue };
        if let Some(partition) = partitions.iter().find(|p| p.handle.shared.id == id) {
            let is_willing = tokio::select! {
                () = draining.wait() => return,
                is_willing = partition.hand_over(to) => is_willing,
            };
            unwilling = (!is_willing).then_some(to);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(leaders: &[u64]) -> Vec<Seen> {
        let seen = |(at, leader): (usize, &u64)| Seen {
            partition: PartitionId(at as u32),
            leader: *leader,
            term: 3,
            voters: [1, 2, 3].into(),
            is_sound: true,
        };
        leaders.iter().enumerate().map(seen).collect()
    }

    /// Servers 1, 2, 3 lead partitions 0, 1, 2 by preference, and so on.
    fn rank(partition: PartitionId, node: u64) -> u64 {
        (node + 2 - u64::from(partition.0) % 3) % 3
    }

    fn moves(me: u64, seen: &[Seen]) -> Option<(u32, u64)> {
        choose(me, seen, rank).map(|(partition, to)| (partition.0, to))
    }

    #[test]
    fn who_leads_two_more_than_another_gives_one_away_by_preference() {
        assert_eq!(moves(1, &seen(&[1, 1, 1])), Some((1, 2)), "server 2 is to lead partition 1");
        assert_eq!(moves(1, &seen(&[1, 2, 1])), Some((2, 3)));
        assert_eq!(moves(1, &seen(&[1, 2, 3])), None);
        assert_eq!(moves(1, &seen(&[1, 1, 2, 3])), None, "one more is not clearly more");
        assert_eq!(moves(2, &seen(&[1, 1, 1])), None, "that is for who leads");
        assert_eq!(moves(1, &seen(&[1])), None);
    }

    #[test]
    fn however_many_give_at_once_it_comes_to_rest() {
        let mut leaders = vec![1, 1, 1, 2, 2, 2, 1, 2];
        let mut rounds = 0;
        loop {
            let now = seen(&leaders);
            let given: Vec<_> = (1..=3).filter_map(|me| moves(me, &now)).collect();
            if given.is_empty() {
                break;
            }
            given.into_iter().for_each(|(partition, to)| leaders[partition as usize] = to);
            rounds += 1;
            assert!(rounds < 5, "{leaders:?}");
        }
        let of = |node: u64| leaders.iter().filter(|leader| **leader == node).count();
        assert!((1..=3).all(|node| (2..=4).contains(&of(node))), "{leaders:?}");
    }

    #[test]
    fn nothing_moves_while_somebody_is_slow_or_nobody_leads_or_to_who_does_not_vote() {
        let mut slow = seen(&[1, 1, 1]);
        slow[2].is_sound = false;
        assert_eq!(moves(1, &slow), None);
        assert_eq!(moves(1, &seen(&[1, 1, 1, 0])), None);
        let mut two = seen(&[1, 1, 1]);
        two.iter_mut().for_each(|s| s.voters = [1, 3].into());
        assert_eq!(moves(1, &two), Some((2, 3)));
        let mut elsewhere = seen(&[1, 1, 1, 0]);
        elsewhere[3].voters = [2, 3].into();
        assert!(moves(1, &elsewhere).is_some(), "of that one it knows nothing");
    }

    #[test]
    fn it_is_quiet_when_for_long_nobody_was_elected() {
        let mut quiet = Quiet::default();
        assert!(!quiet.is_quiet(&seen(&[1, 2]), 5));
        assert!(
            !quiet.is_quiet(&seen(&[1, 2]), 4 + QUIET_NS) && quiet.is_quiet(&seen(&[1, 2]), 5 + QUIET_NS)
        );
        assert!(!quiet.is_quiet(&seen(&[1, 1]), 6 + QUIET_NS));
        let mut again = seen(&[1, 1]);
        again[0].term = 4;
        assert!(!quiet.is_quiet(&again, 6 + 2 * QUIET_NS));
    }
}
