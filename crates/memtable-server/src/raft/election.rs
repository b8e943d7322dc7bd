//! Elections: openraft's own timer is off; this one campaigns only when the vote guard is open.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use openraft::ServerState;
use openraft::async_runtime::WatchReceiver;
use sextant_environment::config::LeaseConfig;
use sextant_environment::shutdown::Shutdown;
use sextant_raft_log::{LogId, RaftLog, StoredMembership};

use super::Raft;
use crate::replica::ReplicaState;

/// How often a node looks that may have to campaign soon.
const TICK: Duration = Duration::from_millis(10);
/// So long before that it begins to: whatever held it up before has been made up for by then. While a leader is heard, "soon" is always
/// further away than that, and a node looks a few times a second.
const LISTENS: Duration = Duration::from_millis(100);
/// How often at most a leader looks, which has to campaign only after somebody else has led.
const TICK_LEADING: Duration = Duration::from_millis(50);
/// Least often.
const TICK_MAX: Duration = Duration::from_millis(500);
/// What must fit into the log for a campaign: a leader begins with an entry, and Raft cannot go on if the log refuses it. Far
/// less than what makes the log refuse writes, so that servers that filled up together still elect one of them.
const LOG_ROOM_BYTES: u64 = 32 * 1024;
/// Between two attempts of one node: a vote round with its fsyncs, and some.
const ATTEMPT_MS: u64 = 120;
/// After two rounds that were lost it is twice as long, and so on, at most so many times: whose votes take longer to be written down gives
/// them too late otherwise, each time to somebody who has asked for the next one.
const DOUBLED_MAX: u32 = 3;
/// A device that has not finished a write for so long would keep a vote waiting, and all that Raft is asked meanwhile.
const BUSY_NS: u64 = 100_000_000;
/// The same for a node that has waited for its device for [`DEAF_NS_MAX`]: other partitions may keep it, or one of several, busy all the time.
const STALLED_NS: u64 = 500_000_000;
/// The same for a node that the last leader has named as its successor: the others' guards open within a heartbeat or so.
const HEIR_ATTEMPT_MS: u64 = 30;

/// A turn of the loop that comes so much later than it should was held up: the process was stopped, or has more to do than it
/// gets done. Whatever came in meanwhile, a leader's heartbeats too, may not have had its turn either.
const HELD_UP_NS: u64 = 30_000_000;
/// Longest that a node waits because it may be deaf, also if it is held up again and again: a machine that stays overloaded must still
/// find a leader.
const DEAF_NS_MAX: u64 = 1_000_000_000;

/// Tells the silence of a leader from one's own deafness. Pure.
#[derive(Debug, Default)]
struct Hearing {
    /// When the next turn is due; 0: there was none.
    due_ns: u64,
    deaf_until_ns: u64,
    /// Since when nothing but deafness has kept the node from campaigning; 0: something else has.
    waits_since_ns: u64,
}

impl Hearing {
    /// A turn; the next one is due after `pause`. After it was late, the node counts as deaf for twice as long as it was: in that
    /// time what came in has its turn.
    fn turn(&mut self, now_ns: u64, pause: Duration) {
        let late_ns = if self.due_ns == 0 { 0 } else { now_ns.saturating_sub(self.due_ns) };
        self.due_ns = now_ns.saturating_add(pause.as_nanos() as u64);
        if late_ns > HELD_UP_NS {
            let until_ns = now_ns.saturating_add(late_ns.saturating_mul(2).min(DEAF_NS_MAX));
            self.deaf_until_ns = self.deaf_until_ns.max(until_ns);
        }
    }

    fn is_deaf(&self, now_ns: u64) -> bool {
        now_ns < self.deaf_until_ns
    }

    /// Whether the silence of a leader is to be believed. `is_due`: nothing else keeps the node from campaigning.
    fn believes_silence(&mut self, is_due: bool, now_ns: u64) -> bool {
        if !is_due || !self.is_deaf(now_ns) {
            self.waits_since_ns = 0;
            return is_due;
        }
        if self.waits_since_ns == 0 {
            self.waits_since_ns = now_ns;
        }
        now_ns.saturating_sub(self.waits_since_ns) >= DEAF_NS_MAX
    }
}

/// The device that a vote would have to be written to.
pub struct Device {
    pub log: Arc<RaftLog>,
}

/// Puts a campaign off whose vote could not even be written down now, or not soon. Pure.
#[derive(Debug, Default)]
struct Patience {
    /// Since when nothing else keeps the node from campaigning; 0: something does.
    waits_since_ns: u64,
}

impl Patience {
    /// `stalled_ns`: how long the device has been at what it writes.
    fn puts_off(&mut self, is_due: bool, stalled_ns: u64, now_ns: u64) -> bool {
        if !is_due || stalled_ns <= BUSY_NS {
            self.waits_since_ns = 0;
            return false;
        }
        if self.waits_since_ns == 0 {
            self.waits_since_ns = now_ns;
        }
        now_ns.saturating_sub(self.waits_since_ns) < DEAF_NS_MAX || stalled_ns > STALLED_NS
    }
}

/// Rounds of votes in a row that a node began and nobody won. Pure.
#[derive(Debug, Default)]
struct Lost {
    /// As of the last look.
    term: u64,
    rounds: u32,
}

impl Lost {
    /// Right before an attempt. A round that nobody would have voted in raises no term, and is none.
    fn look(&mut self, is_candidate: bool, term: u64) {
        if is_candidate && term > self.term {
            self.rounds += 1;
        }
        self.term = term;
    }

    /// Whether that is news.
    fn somebody_leads(&mut self) -> bool {
        std::mem::take(&mut self.rounds) > 0
    }

    /// From one attempt to the next.
    fn stretched(&self, ms: u64) -> u64 {
        ms << self.rounds.saturating_sub(1).min(DOUBLED_MAX)
    }
}

/// Whether a node may campaign: as a voter of the newest membership in its log; or, as long as it does not know that one to be
/// committed, of the one before. (Otherwise a removed node that alone has the entry could block those that lack it.) A partition that
/// was not founded has no voters.
/// A server without its memory is no voter: the membership names another incarnation.
fn may_campaign(
    node: u64,
    incarnation: u64,
    newest: &StoredMembership,
    before: &StoredMembership,
    committed: Option<&LogId>,
) -> bool {
    let votes_in = |m: &StoredMembership| {
        let named = m.membership().get_node(&node).map(|n| n.incarnation);
        named == Some(incarnation) && m.membership().voter_ids().any(|voter| voter == node)
    };
    votes_in(newest) || (committed < newest.log_id().as_ref() && votes_in(before))
}

/// Campaigns when no leader was heard for the lease plus a random jitter. `rank`: 0 for the node that is to lead the partition
/// by preference (leaders are spread that way); the others wait a little longer.
pub async fn election_loop(
    raft: Raft,
    shared: Arc<ReplicaState>,
    lease: LeaseConfig,
    device: Device,
    rank: u64,
    mut shutdown: Shutdown,
) {
    let clock = shared.env.clock.clone();
    let draw = || shared.env.rng.below(lease.election_jitter_ms + 1) * 1_000_000;
    // A rank's worth of patience: long enough for a vote round in between, short against the lease.
    let patience = rank * lease.election_jitter_ms.min(100) * 1_000_000 / 2;
    let mut jitter = draw();
    let mut next_attempt = 0u64;
    let mut hearing = Hearing::default();
    let mut lost = Lost::default();
    let mut patience_with_device = Patience::default();
    let mut pause = TICK;
    loop {
        tokio::select! {
            () = shutdown.wait() => return,
            () = shared.named_heir.notified() => {}
            () = tokio::time::sleep(pause) => {}
        }
        let (state, may_lead, term) = {
            let metrics = raft.metrics();
            let m = metrics.borrow_watched();
            let committed = m.last_applied.as_ref();
            let before = &m.committed_membership_config;
            let incarnation = shared.incarnation.id();
            let may = may_campaign(shared.node, incarnation, &m.membership_config, before, committed);
            if m.current_leader.is_some() && lost.somebody_leads() {
                next_attempt = next_attempt.min(clock.grantor_ns() + ATTEMPT_MS * 1_000_000);
            }
            (m.state, may, m.current_term)
        };
        let now = clock.grantor_ns();
        let open_in = Duration::from_nanos(shared.guard.opens_at_ns().saturating_sub(now));
        let listens_in = open_in.saturating_sub(LISTENS);
        if matches!(state, ServerState::Leader | ServerState::Shutdown) {
            hearing.waits_since_ns = 0;
            pause = listens_in.clamp(TICK_LEADING, TICK_MAX);
            hearing.turn(now, pause);
            continue;
        }
        // Named by the leader of the term that this node still knows as the newest.
        let is_heir = term != 0 && shared.heir_of.load(Ordering::Acquire) == term;
        let wait = if is_heir { 0 } else { jitter + patience };
        pause = if is_heir { TICK } else { listens_in.clamp(TICK, TICK_MAX) };
        hearing.turn(now, pause);
        let is_due =
            may_lead && now >= next_attempt && now >= shared.guard.opens_at_ns().saturating_add(wait);
        let is_due = hearing.believes_silence(is_due, now);
        if patience_with_device.puts_off(is_due, device.log.stalled_ns(), now) || !is_due {
            continue;
        }
        if device.log.check_room(LOG_ROOM_BYTES).is_err() {
            continue;
        }
        // Its own vote is a vote too: answers to what it sent as a leader of an earlier term come too late from here on.
        if !shared.lease.forswear(term, clock.holder_ns()) || clock.grantor_ns() < shared.guard.opens_at_ns()
        {
            continue;
        }
        if raft.trigger().elect(true).await.is_err() {
            return;
        }
        jitter = draw();
        lost.look(state == ServerState::Candidate, term);
        let (wait_ms, jitter) = if is_heir { (HEIR_ATTEMPT_MS, 0) } else { (ATTEMPT_MS, draw()) };
        next_attempt = now + lost.stretched(wait_ms) * 1_000_000 + jitter;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use sextant_raft_log::{Member, Membership, log_id};

    use super::*;

    #[test]
    fn a_node_that_was_held_up_listens_before_it_believes_the_silence() {
        const MS: u64 = 1_000_000;
        let mut hearing = Hearing::default();
        (1..5).for_each(|n| hearing.turn(n * 12 * MS, TICK));
        assert!(!hearing.is_deaf(48 * MS), "turns that come in time");
        hearing.turn(248 * MS, TICK);
        assert!(hearing.is_deaf(248 * MS) && hearing.is_deaf(627 * MS));
        assert!(!hearing.is_deaf(628 * MS), "190 ms late: deaf for 380 ms");
        hearing.turn(60_000 * MS, TICK);
        assert!(!hearing.is_deaf(61_000 * MS), "never for longer than a second");
    }

    #[test]
    fn a_node_that_is_held_up_again_and_again_campaigns_all_the_same() {
        const MS: u64 = 1_000_000;
        let mut hearing = Hearing::default();
        let mut believes = |n: u64, is_due: bool| {
            hearing.turn(n * 100 * MS, TICK);
            hearing.believes_silence(is_due, n * 100 * MS)
        };
        assert!((1..20).all(|n| !believes(n, false)));
        let first = (20..40).find(|n| believes(*n, true));
        assert_eq!(first, Some(30), "a second after it would have campaigned");
    }

    #[test]
    fn a_busy_device_puts_a_campaign_off_for_a_second_and_a_stalled_one_for_as_long_as_it_is() {
        let mut patience = Patience::default();
        let ms = 1_000_000;
        assert!(!patience.puts_off(true, BUSY_NS, 5 * ms));
        assert!(patience.puts_off(true, BUSY_NS + 1, 10 * ms));
        assert!(patience.puts_off(true, 200 * ms, 900 * ms));
        assert!(!patience.puts_off(true, 200 * ms, 10 * ms + DEAF_NS_MAX));
        assert!(patience.puts_off(true, STALLED_NS + 1, 10 * ms + DEAF_NS_MAX));
        assert!(!patience.puts_off(false, 200 * ms, 1_200 * ms), "it is not due");
        assert!(patience.puts_off(true, 200 * ms, 1_300 * ms), "from the beginning");
    }

    #[test]
    fn who_loses_one_round_after_the_other_asks_less_often_until_somebody_leads() {
        let mut lost = Lost::default();
        let mut after = |is_candidate, term| {
            lost.look(is_candidate, term);
            lost.stretched(100)
        };
        assert_eq!(after(false, 7), 100);
        // Nobody would have voted for it, or somebody else raised the term.
        assert_eq!([after(true, 7), after(false, 8), after(true, 8)], [100; 3]);
        let waits: Vec<u64> = (9..16).map(|term| after(true, term)).collect();
        assert_eq!(waits, [100, 200, 400, 800, 800, 800, 800]);
        assert!(lost.somebody_leads() && !lost.somebody_leads());
        assert_eq!(lost.stretched(100), 100);
    }

    fn stored(index: u64, voters: &[u64], learners: &[u64]) -> StoredMembership {
        let set: BTreeSet<u64> = voters.iter().copied().collect();
        let nodes: BTreeMap<u64, Member> =
            voters.iter().chain(learners).map(|n| (*n, Member::new("a:1", 10 * n))).collect();
        StoredMembership::new(Some(log_id(1, index)), Membership::new(vec![set], nodes).unwrap())
    }

    #[test]
    fn only_a_voter_campaigns() {
        let (before, newest) = (stored(0, &[1, 2, 3], &[]), stored(7, &[2, 3, 4], &[1]));
        let (not_yet, committed) = (log_id(1, 6), log_id(1, 7));
        assert!(
            may_campaign(4, 40, &newest, &before, Some(&not_yet)),
            "it counts from when it is in the log"
        );
        assert!(may_campaign(1, 10, &newest, &before, Some(&not_yet)), "the others may not have the entry");
        assert!(!may_campaign(1, 10, &newest, &before, Some(&committed)), "removed, and a learner");
        assert!(!may_campaign(1, 10, &newest, &newest, Some(&not_yet)));
        assert!(!may_campaign(5, 50, &newest, &before, None), "never was one");
        let nothing = StoredMembership::default();
        assert!(!may_campaign(1, 10, &nothing, &nothing, None), "not founded");
        assert!(!may_campaign(4, 41, &newest, &before, Some(&committed)), "it has lost its memory");
    }
}
