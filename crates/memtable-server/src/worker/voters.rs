//! Changes of the partition's voters: who is asked to vote, and whose answers the leader's lease is counted from.
//!
//! A change goes: new servers get the log as *learners* -> a majority of the voters to be answers and has nearly the whole log ->
//! the lease counts both sets -> Raft does joint consensus -> the lease counts the new set -> whoever is no voter any more
//! is let go. What a crash leaves half-way (two sets of voters, learners) the next leader finishes.
//!
//! Invariant: while the old set, both, or the new one may elect somebody, this leader's lease is counted from a majority of each.
//! [`counted`] is the union of: every set of the newest membership in the log, every set of the newest one known to be
//! committed, and, from *before* Raft is asked, the set that it is asked for. Nothing is dropped from it before Raft has answered and
//! the membership is uniform and committed; how long that takes, or what became of the answer, does not matter.
//!
//! So no p-node's lease (which never outlives the leader's) is alive when somebody else is elected. Let S be the old voters, S' the
//! new ones, and look at the *first* later leader: its log's memberships are this leader's, or older. Whoever accepts an append is
//! bound by its vote guard for at least as long as a lease counted from it lasts; two majorities of a set share a voter.
//! * Elected under S (its log ends before the joint entry), or under both (before the last entry, the uniform one): a majority of S
//!   voted. S is counted until the uniform entry is committed, so one of them was bound. From then on a majority of S has the joint
//!   entry and a majority of S' the uniform one, and they vote for no log that ends before.
//! * Elected under S' alone: its log has the uniform entry, which is proposed only when the joint one is committed. So a majority of
//!   S' accepted the joint entry, after the lease began to count S'. What the lease was counted from S alone was sent before that,
//!   and so ends before they are free; what came later was counted from a majority of S' too. Either way one of those that
//!   voted was bound. (That is also why the lease need not be cut when the sets change.)
//! * A learner's acknowledgements count once it is among the counted voters, earlier ones too: an append binds whoever accepts it.
//! * A next change, from S' to S'', is proposed by Raft only when the one before is committed, and counted as this one is. A next
//!   leader counts what its own log says, and was elected when this lease was over.
//! * A removed server that does not know it asks for votes in vain: guards drop its requests while a leader lives, and its log lacks
//!   entries that a majority of S' has.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use openraft::ChangeMembers;
use openraft::async_runtime::WatchReceiver;
use openraft::raft::Precondition;
use sextant_common::env::Env;
use sextant_common::error::{Error, ErrorKind, Result};
use sextant_common::mutant::{self, Mutant};
use sextant_raft_log::{LogId, Member, StoredMembership, TypeConfig};
use tokio::sync::oneshot;

use super::Worker;
use crate::command::Command;
use crate::leadership::Voters as Sets;
use crate::raft::Raft;
use crate::replica::{Event, Members};

/// A server that lacks no more than so many entries has "nearly the whole log".
const NEARLY: u64 = 256;
/// A new server whose log does not grow for so long is given up.
const STANDSTILL_NS: u64 = 5_000_000_000;
/// A new server that has not caught up after so long never will.
const LEARN_NS: u64 = 600_000_000_000;
/// How often a new server's progress is looked at.
const LEARN_POLL: Duration = Duration::from_millis(20);
/// How long a majority of the voters to be may take to answer: many heartbeats.
const READY_NS: u64 = 3_000_000_000;
/// How long a removed server may take to learn that it was removed. After that it is let go all the same.
const FAREWELL_NS: u64 = 3_000_000_000;

/// How soon Raft is asked again to finish a change, if it refused.
const ASK_AGAIN_NS: u64 = 100_000_000;

/// What a leader knows of changes of its voters.
#[derive(Default)]
pub(super) struct Voters {
    change: Option<Change>,
    /// Since when there are learners that nobody wants (holder's clock): they are let go.
    idle_learners_since_ns: Option<u64>,
    /// Not before this time (grantor's clock) Raft is asked again to finish a change.
    ask_again_ns: u64,
    /// Index of the newest membership that was appended; 0: none that this worker has seen. Raft's metrics may lag behind it.
    appended: u64,
    /// What Raft was asked for in a term whose leadership has ended here. Should it come back in that term, it still counts.
    left_behind: Option<(u64, BTreeSet<u64>)>,
}

struct Change {
    target: BTreeSet<u64>,
    stage: Stage,
    /// None: finishes what a former leader began.
    done: Option<oneshot::Sender<Result<()>>>,
}

enum Stage {
    /// New servers get the log.
    Learning,
    /// Raft is asked as soon as a majority of the target has answered what was sent from now on (holder's clock).
    Ready { since_ns: u64 },
    /// Raft was asked, so the lease counts the target. It is asked until it answers: an answer that nobody waited for might
    /// be followed by the change.
    Asked,
    /// Raft has answered. Over when the membership is uniform and committed, whatever it is.
    Answered(Result<()>),
    /// Raft was asked to let learners go: no set of voters changes.
    LettingGo,
}

/// Raft's two memberships: the newest in the log, and the newest known to be committed.
#[derive(Clone)]
pub(super) struct Memberships {
    pub effective: Arc<StoredMembership>,
    pub committed: Arc<StoredMembership>,
}

impl Memberships {
    pub fn of(raft: &Raft) -> Self {
        let metrics = raft.server_metrics();
        let m = metrics.borrow_watched();
        Self { effective: m.membership_config.clone(), committed: m.committed_membership_config.clone() }
    }

    fn index(&self) -> u64 {
        self.effective.log_id().as_ref().map_or(0, |id| id.index)
    }

    fn is_committed(&self) -> bool {
        self.effective.log_id() == self.committed.log_id()
    }

    fn is_joint(&self) -> bool {
        self.effective.membership().get_joint_config().len() > 1
    }

    /// Who votes when the change under way, if any, is done.
    pub fn voters(&self) -> BTreeSet<u64> {
        self.effective.membership().get_joint_config().last().cloned().unwrap_or_default()
    }

    fn members(&self) -> Members {
        let membership = self.effective.membership();
        Members { voters: membership.voter_ids().collect(), learners: membership.learner_ids().collect() }
    }
}

/// The sets of voters that a lease has to be counted from. `asked`: what Raft was asked for.
fn counted<'a>(
    effective: &'a StoredMembership,
    committed: &'a StoredMembership,
    asked: impl IntoIterator<Item = &'a BTreeSet<u64>>,
) -> Sets {
    let mut sets: Sets = Vec::new();
    let known = [effective, committed].into_iter().flat_map(|m| m.membership().get_joint_config());
    let asked: Vec<&BTreeSet<u64>> = asked.into_iter().collect();
    let newest = asked.last().copied().or(effective.membership().get_joint_config().last());
    let counts = |set: &&BTreeSet<u64>| !mutant::active(Mutant::NewVotersOnly) || Some(*set) == newest;
    for set in known.chain(asked).filter(counts) {
        let set: Vec<u64> = set.iter().copied().collect();
        if !set.is_empty() && !sets.contains(&set) {
            sets.push(set);
        }
    }
    sets
}

impl Voters {
    /// What Raft was asked for in this term and may still do.
    fn asked(&self, term: u64) -> impl Iterator<Item = &BTreeSet<u64>> {
        let asked = self.change.as_ref().filter(|c| matches!(c.stage, Stage::Asked | Stage::Answered(_)));
        let left_behind = self.left_behind.as_ref().filter(|(of, _)| *of == term);
        asked.map(|c| &c.target).into_iter().chain(left_behind.map(|(_, target)| target))
    }

    /// Raft is about to be asked to let learners go: the voters stay.
    pub fn lets_go(&mut self, voters: BTreeSet<u64>) {
        self.idle_learners_since_ns = None;
        self.change = Some(Change { target: voters, stage: Stage::LettingGo, done: None });
    }

    pub fn are_changing(&self) -> bool {
        self.change.is_some()
    }
}

impl Worker {
    /// An operator's choice. Whom it leaves out is written down before the voters change, so that no leader lets such a server in by
    /// itself. (If the change comes to nothing after that, the servers that vote are as before; the operator is told.)
    pub(super) fn choose_voters(&mut self, nodes: BTreeMap<u64, Member>, done: oneshot::Sender<Result<()>>) {
        let known = self.network.peers.keys().copied().chain([self.shared.node]);
        let left_out = known.filter(|id| !nodes.contains_key(id)).collect();
        let planned = self.check_change(&nodes).and_then(|_| self.plan_leaving_out(left_out));
        let configuration = match planned {
            Ok(Some(configuration)) => configuration,
            Ok(None) => return self.change_voters(nodes, done),
            Err(e) => return Change::end(Some(done), Err(e)),
        };
        let (written, answer) = oneshot::channel();
        let term = self.lead_term();
        self.command(Command::Configure { term, configuration }, Some(written));
        let events = self.background.events.clone();
        self.background.spawn(async move {
            match answer.await.unwrap_or_else(|_| Err(Error::retry("leadership changed"))) {
                // It is in effect: asked again, the voters themselves are changed.
                Ok(()) => {
                    let _ = events.send(Event::ChangeVoters { voters: nodes, done });
                }
                Err(e) => Change::end(Some(done), Err(e)),
            }
        });
    }

    /// Why the voters cannot be changed to these now. Ok: whether there is anything to change.
    fn check_change(&self, nodes: &BTreeMap<u64, Member>) -> Result<bool> {
        let memberships = Memberships::of(&self.raft);
        if self.lead.is_none() {
            return Err(Error::new(ErrorKind::NotLeader, "this server does not lead the partition"));
        }
        if self.is_handing_over() {
            return Err(Error::retry("a transfer of leadership is under way"));
        }
        if self.voters.are_changing()
            || self.voters.appended > memberships.index()
            || !memberships.is_committed()
            || memberships.is_joint()
        {
            return Err(Error::retry("another change of the voters is under way"));
        }
        let membership = memberships.effective.membership();
        let differs = |(id, node): &(&u64, &Member)| {
            let named = membership.get_node(id).map(|m| m.incarnation);
            node.incarnation != 0 && named.is_some_and(|named| named != node.incarnation)
        };
        if let Some((id, _)) = nodes.iter().find(differs) {
            return Err(Error::invalid(format!(
                "memtable server {id} has lost its memory since it became a member: take it out of the voters first, then add it"
            )));
        }
        if let Some((id, _)) =
            nodes.iter().find(|(id, n)| n.incarnation == 0 && membership.get_node(id).is_none())
        {
            return Err(Error::invalid(format!("memtable server {id} does not answer: is it up?")));
        }
        if nodes.keys().copied().eq(memberships.voters()) {
            return Ok(false);
        }
        if membership.learner_ids().any(|learner| nodes.contains_key(&learner)) {
            // What is known of its log is of another life, perhaps: it is added afresh when it is gone.
            return Err(Error::retry("a server of these is just being let go"));
        }
        Ok(true)
    }

    /// Changes the voters to exactly these, all of the configuration.
    pub(super) fn change_voters(&mut self, nodes: BTreeMap<u64, Member>, done: oneshot::Sender<Result<()>>) {
        match self.check_change(&nodes) {
            Ok(true) => {}
            Ok(false) => return Change::end(Some(done), Ok(())),
            Err(e) => return Change::end(Some(done), Err(e)),
        }
        let memberships = Memberships::of(&self.raft);
        let (membership, voters) = (memberships.effective.membership(), memberships.voters());
        let target: BTreeSet<u64> = nodes.keys().copied().collect();
        self.voters.idle_learners_since_ns = None;
        let new: BTreeSet<u64> = target.difference(&voters).copied().collect();
        let unknown: BTreeMap<u64, Member> =
            nodes.into_iter().filter(|(id, _)| membership.get_node(id).is_none()).collect();
        unknown.keys().for_each(|node| self.shared.lease.forget(*node));
        tracing::info!(partition = %self.shared.id, from = ?voters, to = ?target, "the voters are to change");
        let stage = if new.is_empty() {
            Stage::Ready { since_ns: self.shared.env.clock.holder_ns() }
        } else {
            let (raft, term, env) = (self.raft.clone(), self.lead_term(), self.shared.env.clone());
            self.ask(term, async move { learn(&raft, term, &env, unknown, new).await });
            Stage::Learning
        };
        self.voters.change = Some(Change { target, stage, done: Some(done) });
    }

    /// Raft's answer to what this worker asked in `term`, or the end of the new servers' learning.
    pub(super) fn voters_answered(&mut self, term: u64, result: Result<()>) {
        if self.lead.as_ref().is_none_or(|l| l.term != term) {
            return;
        }
        let Some(Change { target, stage, done }) = self.voters.change.take() else { return };
        let stage = match (stage, result) {
            (Stage::Learning, Ok(())) => Stage::Ready { since_ns: self.shared.env.clock.holder_ns() },
            (Stage::Learning, Err(e)) => return Change::end(done, Err(e)),
            (Stage::Asked, result) => Stage::Answered(result),
            (Stage::LettingGo, _) => return,
            (stage, _) => stage,
        };
        self.voters.change = Some(Change { target, stage, done });
    }

    /// A membership came into the log.
    pub(super) fn membership_appended(&mut self, index: u64) {
        self.voters.appended = index;
    }

    /// The log was cut.
    pub(super) fn membership_truncated(&mut self, first: u64) {
        if self.voters.appended >= first {
            self.voters.appended = 0;
        }
    }

    /// Called every turn of the worker: keeps the lease's sets in line with Raft's memberships, and changes going.
    pub(super) fn see_to_voters(&mut self) {
        let Some(term) = self.lead.as_ref().map(|l| l.term) else { return };
        let memberships = Memberships::of(&self.raft);
        if self.voters.appended > memberships.index() {
            // What was asked for is counted; what was counted before stays until the metrics are as new as the log.
            return;
        }
        self.count_voters(term, &memberships);
        if !memberships.is_committed() {
            return;
        }
        if memberships.is_joint() {
            self.finish_joint(term, &memberships);
            return;
        }
        if let Some(change) = self.voters.change.take_if(|c| matches!(c.stage, Stage::Answered(_))) {
            let result = match &change.stage {
                _ if change.target == memberships.voters() => Ok(()),
                Stage::Answered(Err(e)) => Err(e.clone()),
                _ => Err(Error::retry("the voters were changed to others")),
            };
            tracing::info!(partition = %self.shared.id, voters = ?memberships.voters(), "the voters have changed");
            Change::end(change.done, result);
            self.count_voters(term, &memberships);
        }
        self.change_when_ready(term, &memberships);
        if self.voters.are_changing() || self.see_to_strangers(term, &memberships) {
            return;
        }
        if !memberships.voters().contains(&self.shared.node) {
            self.leave();
        } else {
            self.let_learners_go(term, &memberships);
        }
    }

    /// The sets that this node's lease as the leader of a term is to be counted from, as it begins.
    pub(super) fn voters_at_the_beginning(&self, term: u64) -> Sets {
        let memberships = Memberships::of(&self.raft);
        counted(&memberships.effective, &memberships.committed, self.voters.asked(term))
    }

    fn count_voters(&self, term: u64, memberships: &Memberships) {
        let sets = counted(&memberships.effective, &memberships.committed, self.voters.asked(term));
        self.shared.lease.count(term, &sets);
    }

    /// Asks Raft for the change when it cannot cost the partition its majority.
    fn change_when_ready(&mut self, term: u64, memberships: &Memberships) {
        let Some(Change { target, stage: Stage::Ready { since_ns }, .. }) = &self.voters.change else {
            return;
        };
        let able = target.iter().filter(|node| self.is_able(term, **node, *since_ns)).count();
        if able <= target.len() / 2 {
            if self.shared.env.clock.holder_ns().saturating_sub(*since_ns) >= READY_NS {
                let why = format!(
                    "only {able} of the {} servers answer and have the log: as voters they would be no majority; the voters \
                     are as before",
                    target.len()
                );
                if let Some(change) = self.voters.change.take() {
                    Change::end(change.done, Err(Error::invalid(why)));
                }
            }
            return;
        }
        let target = target.clone();
        if let Some(change) = &mut self.voters.change {
            change.stage = Stage::Asked;
        }
        // First: see the file's head.
        self.count_voters(term, memberships);
        let base = *memberships.effective.log_id();
        self.ask_raft(term, ChangeMembers::ReplaceAllVoters(target), base);
    }

    /// Whether a server answers and has nearly the whole log. What it answered before `since_ns` says nothing: it may be down now.
    fn is_able(&self, term: u64, node: u64, since_ns: u64) -> bool {
        if node == self.shared.node {
            return true;
        }
        let answers = self.shared.lease.answered_ns(term, node).is_some_and(|sent| sent > since_ns);
        answers && self.matched(node).is_some_and(|at| at + NEARLY >= self.partition.last().index)
    }

    /// Two sets of voters that nobody works on: a leader was lost, or refused, in the middle of a change.
    fn finish_joint(&mut self, term: u64, memberships: &Memberships) {
        match &self.voters.change {
            Some(Change { stage: Stage::Answered(_), .. }) | None => {}
            Some(_) => return,
        }
        let now = self.shared.env.clock.grantor_ns();
        if now < self.voters.ask_again_ns {
            return;
        }
        self.voters.ask_again_ns = now + ASK_AGAIN_NS;
        let done = self.voters.change.take().and_then(|c| c.done);
        let target = memberships.voters();
        tracing::info!(partition = %self.shared.id, voters = ?target, "finishes a change of the voters");
        self.voters.change = Some(Change { target, stage: Stage::Asked, done });
        let base = *memberships.effective.log_id();
        // Adds nobody: Raft then leaves the older set.
        self.ask_raft(term, ChangeMembers::AddVoterIds(BTreeSet::new()), base);
    }

    /// Learners that are to become nothing are let go, as soon as they know (or could have known) that they are no voters.
    fn let_learners_go(&mut self, term: u64, memberships: &Memberships) {
        let learners: BTreeSet<u64> = memberships.effective.membership().learner_ids().collect();
        if learners.is_empty() {
            self.voters.idle_learners_since_ns = None;
            return;
        }
        let now = self.shared.env.clock.holder_ns();
        let since = *self.voters.idle_learners_since_ns.get_or_insert(now);
        // Whatever was sent after the membership was committed says that it is; whoever has its entry understands it.
        let at = memberships.index();
        let knows = |node: &u64| {
            self.shared.lease.answered_ns(term, *node).is_some_and(|sent| sent > since)
                && self.matched(*node).is_some_and(|matched| matched >= at)
        };
        if now.saturating_sub(since) < FAREWELL_NS && !learners.iter().all(knows) {
            return;
        }
        self.voters.lets_go(memberships.voters());
        let base = *memberships.effective.log_id();
        self.ask_raft(term, ChangeMembers::RemoveNodes(learners), base);
    }

    /// A leader that is no voter any more hands over to one.
    fn leave(&mut self) {
        if self.is_handing_over() {
            return;
        }
        if let Some(heir) = self.best_follower() {
            let (done, _) = oneshot::channel();
            self.hand_over(heir, done);
        }
    }

    fn lead_term(&self) -> u64 {
        self.lead.as_ref().map_or(0, |l| l.term)
    }

    /// Asks Raft for a change of the membership `base`, in this term only: a request that waits in a queue must not take effect
    /// in a later one, which nobody would count for.
    pub(super) fn ask_raft(&self, term: u64, change: ChangeMembers<u64, Member>, base: Option<LogId>) {
        let raft = self.raft.clone();
        self.ask(term, async move {
            let base = Precondition::LastMembershipLogId { last_membership_log_id: base };
            let asked = raft.change_membership_if(change, true, [in_term(term), base]).await;
            asked.map(drop).map_err(|e| Error::retry(format!("Raft does not change the voters: {e}")))
        });
    }

    fn ask(&self, term: u64, question: impl Future<Output = Result<()>> + Send + 'static) {
        let events = self.background.events.clone();
        self.background.spawn(async move {
            let result = question.await;
            let _ = events.send(Event::VotersAnswered { term, result });
        });
    }

    /// Leadership ends: what becomes of a change that Raft was asked for, the next leader decides.
    pub(super) fn drop_voters_change(&mut self, term: u64) {
        let Voters { change, left_behind, appended, .. } = std::mem::take(&mut self.voters);
        self.voters = Voters { left_behind, appended, ..Voters::default() };
        if let Some(change) = change {
            if matches!(change.stage, Stage::Asked | Stage::Answered(_)) {
                self.voters.left_behind = Some((term, change.target));
            }
            Change::end(change.done, Err(Error::retry("leadership changed: the status shows who votes")));
        }
    }

    pub(super) fn members(&self) -> Members {
        Memberships::of(&self.raft).members()
    }
}

impl Change {
    fn end(done: Option<oneshot::Sender<Result<()>>>, result: Result<()>) {
        if let Some(done) = done {
            let _ = done.send(result);
        }
    }
}

fn in_term(term: u64) -> Precondition<TypeConfig> {
    let committed_leader_id = openraft::alias::CommittedLeaderIdOf::<TypeConfig>::new(term);
    Precondition::CommittedLeaderId { committed_leader_id }
}

/// Makes servers learners and waits until they have nearly the whole log. No set of voters changes.
async fn learn(
    raft: &Raft,
    term: u64,
    env: &Env,
    unknown: BTreeMap<u64, Member>,
    new: BTreeSet<u64>,
) -> Result<()> {
    if !unknown.is_empty() {
        let added = raft.change_membership_if(ChangeMembers::AddNodes(unknown), true, [in_term(term)]).await;
        added.map_err(|e| Error::retry(format!("Raft takes no learners: {e}")))?;
    }
    let metrics = raft.metrics();
    let started_ns = env.clock.holder_ns();
    let (mut most, mut grew_ns) = (0, started_ns);
    loop {
        let (behind, have) = {
            let m = metrics.borrow_watched();
            let Some(replication) = m.replication.as_ref().filter(|_| m.current_term == term) else {
                return Err(Error::retry("leadership changed: the voters are as before"));
            };
            let at = |node: &u64| replication.get(node).and_then(|at| at.as_ref()).map(|id| id.index);
            let near = |node: &u64| at(node).is_some_and(|at| at + NEARLY >= m.last_log_index.unwrap_or(0));
            let behind: Vec<u64> = new.iter().copied().filter(|node| !near(node)).collect();
            let have: u64 = new.iter().map(|node| at(node).map_or(0, |index| index + 1)).sum();
            (behind, have)
        };
        if behind.is_empty() {
            return Ok(());
        }
        let now = env.clock.holder_ns();
        if have > most {
            (most, grew_ns) = (have, now);
        }
        if now.saturating_sub(grew_ns) > STANDSTILL_NS || now.saturating_sub(started_ns) > LEARN_NS {
            return Err(Error::invalid(format!(
                "servers {behind:?} do not catch up with the log: are they up? The voters are as before; learners that were \
                 added are let go"
            )));
        }
        tokio::time::sleep(LEARN_POLL).await;
    }
}

#[cfg(test)]
mod tests {
    use sextant_raft_log::{Membership, log_id};

    use super::*;

    fn stored(index: u64, sets: &[&[u64]]) -> StoredMembership {
        let sets: Vec<BTreeSet<u64>> = sets.iter().map(|s| s.iter().copied().collect()).collect();
        let nodes: BTreeMap<u64, Member> =
            sets.iter().flatten().map(|n| (*n, Member::new("a:1", 1))).collect();
        StoredMembership::new(Some(log_id(1, index)), Membership::new(sets, nodes).unwrap())
    }

    #[test]
    fn every_set_that_may_elect_somebody_is_counted() {
        let (old, new) = (stored(0, &[&[1, 2, 3]]), stored(9, &[&[2, 3, 4]]));
        let joint = stored(8, &[&[1, 2, 3], &[2, 3, 4]]);
        let (s, t) = (vec![1, 2, 3], vec![2, 3, 4]);
        let target: BTreeSet<u64> = t.iter().copied().collect();
        assert_eq!(counted(&old, &old, None), std::slice::from_ref(&s), "at rest");
        assert_eq!(counted(&old, &old, Some(&target)), [s.clone(), t.clone()], "before Raft does anything");
        assert_eq!(counted(&joint, &old, Some(&target)), [s.clone(), t.clone()]);
        assert_eq!(counted(&joint, &joint, None), [s.clone(), t.clone()], "a leader elected in the middle");
        assert_eq!(counted(&new, &joint, None).len(), 2, "the new set is not committed yet");
        assert_eq!(counted(&new, &new, None), std::slice::from_ref(&t));
        assert_eq!(counted(&new, &new, Some(&target)), [t]);
        let nothing = StoredMembership::default();
        assert_eq!(counted(&old, &nothing, None), [s], "a log whose commits are not known");
    }
}
