//! Whether it is time to let go, and to whom.

use sextant_common::error::Error;

use super::{CATCH_UP_NS, DeviceLook, Done, Handover, NEAR_ENTRIES, Parting, Step, is_hopeless, next_step};
use crate::worker::leading::Leading;
use crate::worker::leading::voters::Memberships;
use crate::worker::replica::Replica;

impl Leading {
    pub fn hand_over_to(&mut self, replica: &Replica, to: u64, why: &'static str, done: Done) {
        let refused = if self.is_handing_over() {
            Some(Error::retry("a transfer of leadership is under way"))
        } else if !Memberships::of(&replica.raft).voters().contains(&to) {
            Some(Error::invalid(format!("server {to} is no voter of the partition")))
        } else if self.voters.are_changing() {
            Some(Error::retry("a change of the voters is under way"))
        } else {
            None
        };
        match refused {
            Some(e) => drop(done.send(Err(e))),
            None => self.hand_over(replica, to, why, done),
        }
    }

    /// To a voter, when it has the whole log.
    pub fn hand_over(&mut self, replica: &Replica, to: u64, why: &'static str, done: Done) {
        let until_ns = replica.shared.env.clock.grantor_ns() + CATCH_UP_NS;
        self.handover = Some(Handover { to, until_ns, has_stopped: false, why, done });
    }

    pub fn is_handing_over(&self) -> bool {
        self.handover.is_some()
    }

    /// Whether no new entries are to be proposed.
    pub fn has_stopped(&self) -> bool {
        self.handover.as_ref().is_some_and(|handover| handover.has_stopped)
    }

    /// Whether it is time to let go.
    pub fn parting(&mut self, replica: &Replica) -> Option<Parting> {
        if let Some(Handover { to, until_ns, has_stopped, why, done }) = self.handover.take() {
            let lacks = replica.matched(to).map(|index| replica.partition.last().index.saturating_sub(index));
            let has_stopped = has_stopped || lacks.is_some_and(|entries| entries <= NEAR_ENTRIES);
            let is_ready = has_stopped
                && self.sequencer.proposal.is_none()
                && replica.queue.is_empty()
                && lacks == Some(0);
            match next_step(is_ready, replica.shared.env.clock.grantor_ns(), until_ns) {
                Step::Go => {
                    return Some(Parting { heir: to, why, done: Some(done) });
                }
                Step::Wait => {
                    self.handover = Some(Handover { to, until_ns, has_stopped, why, done });
                }
                Step::GiveUp => {
                    // (Whoever asks again at once would stop the writes again.)
                    let e = format!(
                        "memtable server {to} does not catch up with the log: the leadership stays where it is"
                    );
                    let _ = done.send(Err(Error::invalid(e)));
                }
            }
        }
        let limit_ns = replica.tuning.disk_stall_ms * 1_000_000;
        if limit_ns == 0 {
            return None;
        }
        let committed = replica.partition.committed_index();
        let look = DeviceLook {
            stalled_ns: replica.server_log.stalled_ns(),
            limit_ns,
            tenure_ns: replica.shared.env.clock.grantor_ns().saturating_sub(self.tenure.since_ns),
            committed,
            in_flight: replica.queue.in_flight(committed),
        };
        if !is_hopeless(&mut self.stalled_at, look) {
            return None;
        }
        self.stalled_at = None;
        let heir = replica.followers().first().copied()?;
        let stalled_ms = look.stalled_ns / 1_000_000;
        tracing::warn!(partition = %replica.shared.id, stalled_ms, "the log's device hangs");
        Some(Parting { heir, why: "the log's device hangs", done: None })
    }
}

impl Replica {
    /// Up to where a follower is known to have the log.
    pub fn matched(&self, node: u64) -> Option<u64> {
        use openraft::async_runtime::WatchReceiver;
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let replication = metrics.replication.as_ref()?;
        replication.get(&node).and_then(|at| at.as_ref()).map(|id| id.index)
    }

    /// The other voters, those that have most of the log first.
    pub fn followers(&self) -> Vec<u64> {
        let me = self.shared.node;
        let voters = Memberships::of(&self.raft).voters();
        let mut followers: Vec<u64> = voters.into_iter().filter(|node| *node != me).collect();
        followers.sort_by_key(|node| std::cmp::Reverse(self.matched(*node)));
        followers
    }
}
