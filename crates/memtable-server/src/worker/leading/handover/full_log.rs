//! A leader whose log is full, and stays so, hands over, if the others can take writes without it.
//!
//! It answers reads and flushes on, but refuses all writes; its followers may have room. It appends nothing for it: a transfer needs a
//! vote, and the log keeps room for votes. Nothing goes back and forth among servers that are all full: those are asked that have
//! the whole log, and a majority has to say that it has room.

use tokio::sync::oneshot;

use crate::worker::leading::Leading;
use crate::worker::leading::voters::Memberships;
use crate::worker::replica::Replica;

/// So long it refuses writes first: a flush that lets the log be purged takes about as long.
const REFUSES_NS: u64 = 2_000_000_000;
/// How soon the others are asked again if they have no room either.
const ASK_AGAIN_NS: u64 = 1_000_000_000;
/// From one such handover to the next of the same partition by this server: should the others say that they have room and give it
/// back all the same (they may be of an older version, which does not look).
const REST_NS: u64 = 10_000_000_000;
/// A follower that has answered so recently keeps up.
const ANSWERS_NS: u64 = 1_000_000_000;
const WHY: &str = "the log is full";

/// What a leader knows of its full log.
#[derive(Default)]
pub(in crate::worker) struct FullLog {
    /// Since when it takes no groups (grantor's clock).
    since_ns: Option<u64>,
    /// Who is to lead, of those that are being asked.
    asked: Option<oneshot::Receiver<Option<u64>>>,
}

impl FullLog {
    /// Whether the others are to be asked.
    fn is_due(&mut self, is_full: bool, now_ns: u64, rest_ns: u64) -> bool {
        if !is_full {
            self.since_ns = None;
            return false;
        }
        let since_ns = *self.since_ns.get_or_insert(now_ns);
        now_ns.saturating_sub(since_ns) >= REFUSES_NS && now_ns >= rest_ns && self.asked.is_none()
    }

    /// What those who were asked have come to, once.
    fn heir(&mut self) -> Option<u64> {
        let answer = self.asked.as_mut()?.try_recv();
        if matches!(answer, Err(oneshot::error::TryRecvError::Empty)) {
            return None;
        }
        self.asked = None;
        answer.ok().flatten()
    }
}

/// Who is to lead, if those that have room are a majority of all the voters, without the leader. The first of them: one that has room
/// beside others that have none could not write either.
fn choose(voters: usize, with_room: &[u64]) -> Option<u64> {
    with_room.first().copied().filter(|_| with_room.len() > voters / 2)
}

impl Leading {
    pub fn see_to_full_log(&mut self, replica: &mut Replica, now_ns: u64) {
        let is_full = replica.log_takes_groups().is_err();
        let may_go = !self.is_handing_over() && !self.voters.are_changing();
        if let Some(to) = self.full_log.heir().filter(|_| is_full && may_go) {
            tracing::warn!(partition = %replica.shared.id, to, "the log is full: leadership is handed over");
            replica.full_log_rest_ns = now_ns.saturating_add(REST_NS);
            let (done, _) = oneshot::channel();
            self.hand_over_to(replica, to, WHY, done);
        }
        if self.full_log.is_due(is_full, now_ns, replica.full_log_rest_ns) && may_go {
            replica.full_log_rest_ns = now_ns.saturating_add(ASK_AGAIN_NS);
            self.full_log.asked = Some(self.ask_who_has_room(replica));
        }
    }

    /// Asks the followers that have the whole log.
    fn ask_who_has_room(&self, replica: &Replica) -> oneshot::Receiver<Option<u64>> {
        let (tell, told) = oneshot::channel();
        let voters = Memberships::of(&replica.raft).voters().len();
        let caught_up = self.caught_up(replica);
        let network = replica.network.clone();
        replica.background.spawn(async move {
            let _ = tell.send(choose(voters, &network.would_lead(caught_up).await));
        });
        told
    }

    /// The followers that answer, and have the whole log.
    fn caught_up(&self, replica: &Replica) -> Vec<u64> {
        let last = replica.partition.last().index;
        let now_ns = replica.shared.env.clock.holder_ns();
        let answers = |node: u64| {
            let at_ns = replica.shared.lease.answered_ns(self.tenure.term, node);
            at_ns.is_some_and(|at_ns| now_ns.saturating_sub(at_ns) < ANSWERS_NS)
        };
        let mut followers = replica.followers();
        followers.retain(|node| answers(*node) && replica.matched(*node).is_some_and(|index| index >= last));
        followers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    #[test]
    fn a_leader_asks_when_its_log_has_been_full_for_a_while_and_rests_after_a_handover() {
        let mut log = FullLog::default();
        assert!(!log.is_due(true, 10 * S, 0));
        assert!(!log.is_due(true, 12 * S - 1, 0) && log.is_due(true, 12 * S, 0));
        assert!(!log.is_due(true, 12 * S, 13 * S), "it has asked, or handed over, not long ago");
        assert!(log.is_due(true, 13 * S, 13 * S));
        assert!(!log.is_due(false, 14 * S, 0));
        assert!(!log.is_due(true, 15 * S, 0), "there was room in between");
    }

    #[test]
    fn nobody_else_is_asked_before_those_who_were_have_answered() {
        let (tell, asked) = oneshot::channel();
        let mut log = FullLog { since_ns: Some(1), asked: Some(asked) };
        assert!(log.heir().is_none() && !log.is_due(true, 100 * S, 0));
        tell.send(Some(3)).unwrap();
        assert_eq!(log.heir(), Some(3));
        assert!(log.heir().is_none() && log.is_due(true, 100 * S, 0));
    }

    #[test]
    fn leadership_goes_only_where_a_majority_has_room_without_this_leader() {
        assert_eq!(choose(3, &[2, 3]), Some(2));
        assert_eq!(choose(3, &[3]), None, "two of three are full: nothing would be committed");
        assert_eq!(choose(3, &[]), None);
        assert_eq!(choose(2, &[2]), None);
        assert_eq!(choose(5, &[5, 2, 3]), Some(5));
        assert_eq!(choose(1, &[]), None);
    }
}
