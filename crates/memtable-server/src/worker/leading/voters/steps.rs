//! The steps of a change, each taken when the one before has shown what became of it.

use std::collections::{BTreeMap, BTreeSet};

use openraft::ChangeMembers;
use openraft::raft::Precondition;
use sextant_common::error::{Error, Result};
use sextant_raft_log::{LogId, Member};
use tokio::sync::oneshot;

use super::learn::{NEARLY, in_term, learn};
use super::{ASK_AGAIN_NS, FAREWELL_NS, Memberships, READY_NS, Stage, VoterChange};
use crate::command::{Command, Configure};
use crate::leadership::leadership_changed;
use crate::replica::Event;
use crate::worker::leading::Leading;
use crate::worker::leading::handover::TRANSFERRED;
use crate::worker::replica::Replica;

impl Leading {
    /// An operator's choice. Whom it leaves out is written down before the voters change, so that no leader lets such a server in by
    /// itself. (If the change comes to nothing after that, the servers that vote are as before; the operator is told.)
    pub fn choose_voters(
        &mut self,
        replica: &Replica,
        nodes: BTreeMap<u64, Member>,
        done: oneshot::Sender<Result<()>>,
    ) {
        // As they said just now.
        for (id, member) in nodes.iter().filter(|(_, member)| member.incarnation != 0) {
            replica.shared.strangers.has_become(*id, member.incarnation);
        }
        let known = replica.network.peers.keys().copied().chain([replica.shared.node]);
        let left_out = known.filter(|id| !nodes.contains_key(id)).collect();
        let planned =
            self.check_change(replica, &nodes).and_then(|_| self.plan_leaving_out(replica, left_out));
        let configuration = match planned {
            Ok(Some(configuration)) => configuration,
            Ok(None) => return self.change_voters(replica, nodes, done),
            Err(e) => return VoterChange::end(Some(done), Err(e)),
        };
        let (written, answer) = oneshot::channel();
        let term = self.tenure.term;
        self.command(Command::Configure(Configure { term, configuration }), Some(written));
        let events = replica.background.events.clone();
        replica.background.spawn(async move {
            match answer.await.unwrap_or_else(|_| Err(leadership_changed())) {
                // It is in effect: asked again, the voters themselves are changed.
                Ok(()) => {
                    let _ = events.send(Event::ChangeVoters { voters: nodes, done });
                }
                Err(e) => VoterChange::end(Some(done), Err(e)),
            }
        });
    }

    /// Why the voters cannot be changed to these now. Ok: whether there is anything to change.
    fn check_change(&self, replica: &Replica, nodes: &BTreeMap<u64, Member>) -> Result<bool> {
        let memberships = Memberships::of(&replica.raft);
        if self.is_handing_over() {
            return Err(Error::retry("a transfer of leadership is under way"));
        }
        if self.voters.are_changing()
            || replica.standing.appended > memberships.index()
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
    pub fn change_voters(
        &mut self,
        replica: &Replica,
        nodes: BTreeMap<u64, Member>,
        done: oneshot::Sender<Result<()>>,
    ) {
        match self.check_change(replica, &nodes) {
            Ok(true) => {}
            Ok(false) => return VoterChange::end(Some(done), Ok(())),
            Err(e) => return VoterChange::end(Some(done), Err(e)),
        }
        let memberships = Memberships::of(&replica.raft);
        let (membership, voters) = (memberships.effective.membership(), memberships.voters());
        let target: BTreeSet<u64> = nodes.keys().copied().collect();
        self.voters.idle_learners_since_ns = None;
        let new: BTreeSet<u64> = target.difference(&voters).copied().collect();
        let unknown: BTreeMap<u64, Member> =
            nodes.into_iter().filter(|(id, _)| membership.get_node(id).is_none()).collect();
        unknown.keys().for_each(|node| replica.shared.lease.forget(*node));
        tracing::info!(partition = %replica.shared.id, from = ?voters, to = ?target, "the voters are to change");
        let stage = if new.is_empty() {
            Stage::Ready { since_ns: replica.shared.env.clock.holder_ns() }
        } else {
            let (shared, raft, term) = (replica.shared.clone(), replica.raft.clone(), self.tenure.term);
            self.ask(replica, term, async move { learn(&shared, &raft, term, unknown, new).await });
            Stage::Learning
        };
        self.voters.change = Some(VoterChange { target, stage, done: Some(done) });
    }

    /// Raft's answer to what this worker asked in `term`, or the end of the new servers' learning.
    pub fn voters_answered(&mut self, replica: &Replica, term: u64, result: Result<()>) {
        if self.tenure.term != term {
            return;
        }
        let Some(VoterChange { target, stage, done }) = self.voters.change.take() else { return };
        let stage = match (stage, result) {
            (Stage::Learning, Ok(())) => Stage::Ready { since_ns: replica.shared.env.clock.holder_ns() },
            (Stage::Learning, Err(e)) => return VoterChange::end(done, Err(e)),
            (Stage::Asked, result) => Stage::Answered(result),
            (Stage::LettingGo, _) => return,
            (stage, _) => stage,
        };
        self.voters.change = Some(VoterChange { target, stage, done });
    }

    /// Called every turn of the worker: keeps the lease's sets in line with Raft's memberships, and changes going.
    pub fn see_to_voters(&mut self, replica: &mut Replica) {
        let term = self.tenure.term;
        let memberships = Memberships::of(&replica.raft);
        if replica.standing.appended > memberships.index() {
            // What was asked for is counted; what was counted before stays until the metrics are as new as the log.
            return;
        }
        self.count_voters(replica, term, &memberships);
        if !memberships.is_committed() {
            return;
        }
        if memberships.is_joint() {
            self.finish_joint(replica, term, &memberships);
            return;
        }
        if let Some(change) = self.voters.change.take_if(|c| matches!(c.stage, Stage::Answered(_))) {
            let result = match &change.stage {
                _ if change.target == memberships.voters() => Ok(()),
                Stage::Answered(Err(e)) => Err(e.clone()),
                _ => Err(Error::retry("the voters were changed to others")),
            };
            tracing::info!(partition = %replica.shared.id, voters = ?memberships.voters(), "the voters have changed");
            VoterChange::end(change.done, result);
            self.count_voters(replica, term, &memberships);
        }
        self.change_when_ready(replica, term, &memberships);
        if self.voters.are_changing() || self.see_to_strangers(replica, term, &memberships) {
            return;
        }
        if !memberships.voters().contains(&replica.shared.node) {
            self.leave(replica);
        } else {
            self.let_learners_go(replica, term, &memberships);
        }
    }

    fn count_voters(&self, replica: &Replica, term: u64, memberships: &Memberships) {
        let sets = replica.standing.counted(term, memberships, self.voters.asked());
        replica.shared.lease.count(term, &sets);
    }

    /// Asks Raft for the change when it cannot cost the partition its majority.
    fn change_when_ready(&mut self, replica: &Replica, term: u64, memberships: &Memberships) {
        let Some(VoterChange { target, stage: Stage::Ready { since_ns }, .. }) = &self.voters.change else {
            return;
        };
        let able = target.iter().filter(|node| self.is_able(replica, term, **node, *since_ns)).count();
        if able <= target.len() / 2 {
            if replica.shared.env.clock.holder_ns().saturating_sub(*since_ns) >= READY_NS {
                let why = format!(
                    "only {able} of the {} servers answer and have the log: as voters they would be no majority; the voters \
                     are as before",
                    target.len()
                );
                if let Some(change) = self.voters.change.take() {
                    VoterChange::end(change.done, Err(Error::invalid(why)));
                }
            }
            return;
        }
        let target = target.clone();
        if let Some(change) = &mut self.voters.change {
            change.stage = Stage::Asked;
        }
        // First: see `counted`.
        self.count_voters(replica, term, memberships);
        let base = *memberships.effective.log_id();
        self.ask_raft(replica, term, ChangeMembers::ReplaceAllVoters(target), base);
    }

    /// Whether a server answers and has nearly the whole log. What it answered before `since_ns` says nothing: it may be down now.
    fn is_able(&self, replica: &Replica, term: u64, node: u64, since_ns: u64) -> bool {
        if node == replica.shared.node {
            return true;
        }
        let answers = replica.shared.lease.answered_ns(term, node).is_some_and(|sent| sent > since_ns);
        answers && replica.matched(node).is_some_and(|at| at + NEARLY >= replica.partition.last().index)
    }

    /// Two sets of voters that nobody works on: a leader was lost, or refused, in the middle of a change.
    fn finish_joint(&mut self, replica: &Replica, term: u64, memberships: &Memberships) {
        match &self.voters.change {
            Some(VoterChange { stage: Stage::Answered(_), .. }) | None => {}
            Some(_) => return,
        }
        let now = replica.shared.env.clock.grantor_ns();
        if now < self.voters.ask_again_ns {
            return;
        }
        self.voters.ask_again_ns = now + ASK_AGAIN_NS;
        let done = self.voters.change.take().and_then(|c| c.done);
        let target = memberships.voters();
        tracing::info!(partition = %replica.shared.id, voters = ?target, "finishes a change of the voters");
        self.voters.change = Some(VoterChange { target, stage: Stage::Asked, done });
        let base = *memberships.effective.log_id();
        // Adds nobody: Raft then leaves the older set.
        self.ask_raft(replica, term, ChangeMembers::AddVoterIds(BTreeSet::new()), base);
    }

    /// Learners that are to become nothing are let go, as soon as they know (or could have known) that they are no voters.
    fn let_learners_go(&mut self, replica: &Replica, term: u64, memberships: &Memberships) {
        let learners: BTreeSet<u64> = memberships.effective.membership().learner_ids().collect();
        if learners.is_empty() {
            self.voters.idle_learners_since_ns = None;
            return;
        }
        let now = replica.shared.env.clock.holder_ns();
        let since = *self.voters.idle_learners_since_ns.get_or_insert(now);
        // Whatever was sent after the membership was committed says that it is; whoever has its entry understands it.
        let at = memberships.index();
        let knows = |node: &u64| {
            replica.shared.lease.answered_ns(term, *node).is_some_and(|sent| sent > since)
                && replica.matched(*node).is_some_and(|matched| matched >= at)
        };
        if now.saturating_sub(since) < FAREWELL_NS && !learners.iter().all(knows) {
            return;
        }
        self.voters.lets_go(memberships.voters());
        let base = *memberships.effective.log_id();
        self.ask_raft(replica, term, ChangeMembers::RemoveNodes(learners), base);
    }

    /// A leader that is no voter any more hands over to one.
    fn leave(&mut self, replica: &Replica) {
        if self.is_handing_over() {
            return;
        }
        if let Some(heir) = replica.followers().first().copied() {
            let (done, _) = oneshot::channel();
            self.hand_over(replica, heir, TRANSFERRED, done);
        }
    }

    /// Asks Raft for a change of the membership `base`, in this term only: a request that waits in a queue must not take effect
    /// in a later one, which nobody would count for.
    pub fn ask_raft(
        &self,
        replica: &Replica,
        term: u64,
        change: ChangeMembers<u64, Member>,
        base: Option<LogId>,
    ) {
        let raft = replica.raft.clone();
        self.ask(replica, term, async move {
            let base = Precondition::LastMembershipLogId { last_membership_log_id: base };
            let asked = raft.change_membership_if(change, true, [in_term(term), base]).await;
            asked.map(drop).map_err(|e| Error::retry(format!("Raft does not change the voters: {e}")))
        });
    }

    fn ask(&self, replica: &Replica, term: u64, question: impl Future<Output = Result<()>> + Send + 'static) {
        let events = replica.background.events.clone();
        replica.background.spawn(async move {
            let result = question.await;
            let _ = events.send(Event::VotersAnswered { term, result });
        });
    }
}
