//! The sequencer: turns waiting writes into groups, one Raft entry each, and proposes them in order.
//!
//! One proposal is under way at a time, until its entry is ingested (a few microseconds later): so two groups in flight
//! never both pass a condition. Rare commands go through the same door.

mod proposal;

use std::collections::VecDeque;

use bytes::Bytes;
use openraft::impls::ProgressResponder;
use sextant_common::error::{Error, ErrorKind, Result};
use sextant_common::ids::Serial;
use sextant_raft_log::{Entry, Payload, TypeConfig};
use tokio::sync::oneshot;

use super::Leading;
use super::backlog::{Backlog, Weighed};
use crate::command::{Command, Group};
use crate::partition::evaluate::{Refusal, Verdict};
use crate::replica::{QueuedWrite, WriteOutcome};
use crate::worker::replica::Replica;

pub(in crate::worker) use proposal::{Control, Decided, Proposal, Proposed, Refused};

/// After Raft refused a proposal, how long to wait before the next.
const REFUSED_PAUSE_NS: u64 = 5_000_000;
/// Rare commands that may wait for their turn.
const CONTROL_MAX: usize = 4096;
/// Requests taken from the queue ahead of their turn: so that a deadline that passes is noticed.
pub(in crate::worker) const BACKLOG_MAX: usize = 4096;
/// What a write is told whose turn came after its deadline.
const LATE: &str = "the write was not executed: its deadline passed before its turn";

impl Weighed for QueuedWrite {
    fn bytes(&self) -> usize {
        self.share.bytes
    }
}

/// A group whose bits are out and that is not yet proposed.
pub(in crate::worker) struct Formed {
    pub group: Group,
    pub serial: Serial,
    pub writes: Vec<Decided>,
}

/// What is to be proposed next.
pub(in crate::worker) enum Turn {
    Nothing,
    Command(Box<Control>),
    Group,
}

/// What waits to be proposed, and what is.
#[derive(Default)]
pub(in crate::worker) struct Sequencer {
    pub proposal: Option<Proposal>,
    /// Commands of clients; bounded.
    commands: VecDeque<Box<Control>>,
    /// The worker's own commands: at most a few per table.
    own_commands: VecDeque<Box<Control>>,
    /// Clients' commands and groups take turns.
    command_had_its_turn: bool,
    backlog: Backlog<QueuedWrite>,
    /// Not before this time (grantor's clock).
    next_at_ns: u64,
}

impl Sequencer {
    pub fn push(&mut self, write: QueuedWrite) {
        self.backlog.push(write);
    }

    pub fn waiting_writes(&self) -> usize {
        self.backlog.len()
    }

    /// How long until something may be proposed; None: that depends on an event.
    pub fn next_in_ns(&self, now_ns: u64) -> Option<u64> {
        (self.proposal.is_none() && self.next_at_ns > now_ns).then(|| self.next_at_ns - now_ns)
    }

    /// What is proposed, if this entry of the log is it.
    pub fn take_if_own(&mut self, entry: &Entry) -> Option<Proposal> {
        self.proposal.take_if(|proposal| proposal.is(entry))
    }

    /// Completes when Raft refuses what is proposed.
    pub async fn refusal(&mut self) -> Refused {
        match &mut self.proposal {
            Some(proposal) => proposal.refusal().await,
            None => std::future::pending().await,
        }
    }

    /// Whether a command of this kind is on its way into the log.
    pub fn has_own(&self, kind: impl Fn(&Command) -> bool) -> bool {
        let proposed = match &self.proposal {
            Some(Proposal { what: Proposed::Control(control), .. }) => kind(&control.command),
            _ => false,
        };
        proposed || self.own_commands.iter().any(|control| kind(&control.command))
    }

    /// Takes what is to be proposed next. `takes_command`, `takes_group`: whether there is room for one.
    fn next(&mut self, takes_command: bool, takes_group: bool) -> Turn {
        let has_group = !self.backlog.is_empty() && takes_group;
        let own = if takes_command { self.own_commands.pop_front() } else { None };
        let command = own.or_else(|| {
            let groups_turn = self.command_had_its_turn && has_group;
            if takes_command && !groups_turn { self.commands.pop_front() } else { None }
        });
        self.command_had_its_turn = command.is_some();
        match command {
            Some(control) => Turn::Command(control),
            None if has_group => Turn::Group,
            None => Turn::Nothing,
        }
    }

    /// Everybody who waits is told that leadership has ended. Dropping what is proposed tells its clients that the outcome is unknown.
    pub fn end(&mut self, leader: crate::replica::Leader) {
        self.proposal = None;
        self.commands.drain(..).chain(self.own_commands.drain(..)).for_each(|control| control.failed());
        self.backlog.drain().for_each(|write| write.reply.send(WriteOutcome::NotLeader(leader)));
    }

    /// There is no room for any of the writes that wait.
    fn refuse_all(&mut self, replica: &Replica, why: String) {
        replica.metrics.overloaded.inc_by(self.backlog.len() as u64);
        let refuse = |write: QueuedWrite| write.reply.send(WriteOutcome::Overloaded(why.clone().into()));
        self.backlog.drain().for_each(refuse);
    }

    /// Writes whose deadline has passed were certainly not executed.
    pub fn refuse_late(&mut self, now_ns: u64) {
        let late = self.backlog.take_late(|w| w.deadline_ns <= now_ns);
        late.into_iter().for_each(|w| w.reply.send(WriteOutcome::Overloaded(LATE.into())));
    }
}

impl Leading {
    /// Queues a client's rare command.
    pub fn client_command(
        &mut self,
        replica: &Replica,
        command: Command,
        done: Option<oneshot::Sender<Result<()>>>,
    ) {
        let control = Control { command, done };
        let overloaded = |why: String| Err(Error::new(ErrorKind::Overloaded, why));
        if let Err(e) = replica.log_takes_groups() {
            control.end(overloaded(format!("the log takes no more commands: {e}")));
        } else if self.sequencer.commands.len() >= CONTROL_MAX {
            control.end(overloaded("too many commands are waiting".into()));
        } else {
            self.sequencer.commands.push_back(control.into());
        }
    }

    /// Queues a command of the worker's own: a freeze, a flag, a merge. They are few, and never refused while it leads.
    pub fn command(&mut self, command: Command, done: Option<oneshot::Sender<Result<()>>>) {
        self.sequencer.own_commands.push_back(Control { command, done }.into());
    }

    /// What is to be proposed next, if anything.
    pub fn next_turn(&mut self, replica: &Replica) -> Turn {
        let sequencer = &mut self.sequencer;
        if sequencer.proposal.is_some() || replica.shared.env.clock.grantor_ns() < sequencer.next_at_ns {
            return Turn::Nothing;
        }
        let in_flight = replica.queue.in_flight(replica.partition.committed_index());
        // Raft cannot go on after a refused append: commands wait for room in the log.
        sequencer.next(replica.log_takes_commands().is_ok(), in_flight < replica.tuning.groups_in_flight)
    }

    /// Forms a group of waiting writes, and puts its bits out.
    pub fn form_group(&mut self, replica: &mut Replica) -> Option<Formed> {
        let term = self.tenure.term;
        // Raft would refuse, after the group's bits are out.
        if !replica.shared.lease.is_valid(term, replica.shared.env.clock.holder_ns()) {
            return None;
        }
        if let Err(e) = replica.log_takes_groups() {
            self.sequencer.refuse_all(replica, format!("the log takes no more writes: {e}"));
            return None;
        }
        // What is too large for the room that is left is refused alone: small writes go on.
        while let Some(bytes) = self.sequencer.backlog.next_large_bytes()
            && let Err(e) = replica.log_takes(bytes)
        {
            let Some(write) = self.sequencer.backlog.pop_large() else { break };
            replica.metrics.overloaded.inc();
            let why = format!("the log takes no write of this size: {e}");
            write.reply.send(WriteOutcome::Overloaded(why.into()));
        }
        let pressure = replica.partition.unflushed_bytes();
        if pressure >= replica.memory_bytes {
            let why = replica.why_full(pressure, &self.upkeep);
            self.sequencer.refuse_all(replica, why);
            return None;
        }
        let now_ns = replica.shared.env.clock.holder_ns();
        let late = |write: &QueuedWrite| write.deadline_ns <= now_ns;
        let (mut requests, mut writes) = (Vec::new(), Vec::new());
        for write in self.sequencer.backlog.next_group(replica.tuning.group_bytes, late) {
            if late(&write) {
                write.reply.send(WriteOutcome::Overloaded(LATE.into()));
                continue;
            }
            requests.push(write.request.clone());
            writes.push(write);
        }
        let now_ms = replica.shared.env.clock.wall_guess_ns() / 1_000_000;
        let evaluated = replica.partition.evaluate(term, &requests, now_ms);
        let mut decided = Vec::with_capacity(writes.len());
        for (write, verdict) in writes.into_iter().zip(evaluated.verdicts) {
            let (outcome, unchanged) = match verdict {
                Verdict::Applied(results) => (WriteOutcome::Executed(results), false),
                Verdict::Unchanged { ok: true, results } => (WriteOutcome::Executed(results), true),
                Verdict::Unchanged { ok: false, results } => (WriteOutcome::ConditionFailed(results), true),
                Verdict::Refused(Refusal::StaleManifest) => {
                    replica.metrics.stale_writes.inc();
                    write.reply.send(WriteOutcome::Stale(replica.partition.manifest().clone()));
                    continue;
                }
                Verdict::Refused(refusal) => {
                    write.reply.send(WriteOutcome::Refused(refusal));
                    continue;
                }
            };
            let one = Decided { write, outcome };
            if unchanged && evaluated.group.is_none() {
                self.answer_when_published(replica, one.into_reply());
            } else {
                // What changed nothing may have seen an effect of this very group, or is recorded by it: it is answered with it.
                decided.push(one);
            }
        }
        let group = evaluated.group?;
        // The bits are in the leader's filters and in the ring before the group is proposed.
        for run in &evaluated.runs {
            run.hashes.iter().for_each(|hash| replica.partition.add_bit(run.table, *hash));
        }
        let shared = &replica.shared;
        let serial = if evaluated.runs.is_empty() { Serial(0) } else { shared.desk.push(evaluated.runs) };
        if serial.0 > 0 {
            shared.news.notify_waiters();
        }
        replica.groups += 1;
        replica.group_writes += group.seqs();
        if group.seqs() > 0 {
            replica.metrics.group_writes.observe(group.seqs() as f64);
        }
        let interval = replica.group_interval.as_nanos() as u64;
        let slowdown = replica.slowdown_ns(pressure);
        self.sequencer.next_at_ns = shared.env.clock.grantor_ns() + interval.max(slowdown);
        Some(Formed { group, serial, writes: decided })
    }

    pub async fn propose(&mut self, replica: &Replica, payload: Bytes, what: Proposed) {
        let term = self.tenure.term;
        let (responder, _committed, answer) = ProgressResponder::new();
        let proposed_ns = replica.shared.env.clock.holder_ns();
        self.sequencer.proposal =
            Some(Proposal { payload: payload.clone(), term, raft: Some(answer), what, proposed_ns });
        let leader = openraft::alias::CommittedLeaderIdOf::<TypeConfig>::new(term);
        // Raft's core takes the message at once: its log store only queues, so this await is short.
        if let Err(e) = replica.raft.write(Payload(payload)).with_leader(leader).responder(responder).await {
            tracing::warn!(partition = %replica.shared.id, "Raft takes no proposals: {e}");
        }
    }

    pub async fn propose_command(&mut self, replica: &Replica, mut control: Box<Control>) {
        // The term is that of the proposal, not of the moment when the command was queued.
        set_term(&mut control.command, self.tenure.term);
        let payload = control.command.encode();
        self.propose(replica, payload, Proposed::Control(control)).await;
    }

    /// Raft refused a proposal (its lease lapsed, or leadership is changing): certainly not appended. Bits of the refused
    /// group may be out already, so the ring starts a new incarnation, and everything waits for the old one's leases.
    pub fn proposal_refused(&mut self, replica: &mut Replica, refused: Refused) {
        let Some(proposal) = self.sequencer.proposal.take() else { return };
        replica.metrics.refused_proposals.inc();
        let why = match refused {
            Refused::NotAppended(why) => why,
            Refused::Unknown(why) => {
                // Dropping the proposal tells its clients that the outcome is unknown.
                tracing::debug!(partition = %replica.shared.id, "outcome of a proposal is unknown: {why}");
                if let Proposed::Control(control) = proposal.what {
                    control.failed();
                }
                self.renew_ring(replica);
                return;
            }
        };
        tracing::debug!(partition = %replica.shared.id, "proposal refused: {why}");
        self.sequencer.next_at_ns = replica.shared.env.clock.grantor_ns() + REFUSED_PAUSE_NS;
        match proposal.what {
            Proposed::Control(control) => self.sequencer.own_commands.push_front(control),
            Proposed::Group { serial, writes } => {
                for decided in writes.into_iter().rev() {
                    self.sequencer.backlog.push_front(decided.write);
                }
                if serial.0 > 0 {
                    self.renew_ring(replica);
                }
            }
        }
    }
}

fn set_term(command: &mut Command, now: u64) {
    match command {
        Command::Group(group) => group.term = now,
        Command::Freeze { term, .. }
        | Command::Flush { term, .. }
        | Command::Compaction { term, .. }
        | Command::EnsureTable { term, .. }
        | Command::OpenSession { term, .. }
        | Command::Configure { term, .. } => *term = now,
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::*;
    use crate::partition::evaluate::Request;
    use crate::replica::{Answer, Leader, QueueShare, ReplySink};

    fn write(id: u64, deadline_ns: u64, answers: &mpsc::UnboundedSender<Answer>) -> QueuedWrite {
        QueuedWrite {
            request: Request { session: 0, number: 0, acked_below: 0, ops: Vec::new() },
            share: QueueShare::for_tests(10),
            deadline_ns,
            reply: ReplySink::new(id, answers.clone(), None),
        }
    }

    fn control(session: u64) -> Box<Control> {
        Box::new(Control { command: Command::OpenSession { term: 1, session, time_ms: 0 }, done: None })
    }

    /// What is proposed, turn by turn: sessions of commands, and 0 for a group.
    fn turns(sequencer: &mut Sequencer, takes_command: bool, takes_group: bool, n: usize) -> Vec<u64> {
        let mut told = Vec::new();
        for _ in 0..n {
            match sequencer.next(takes_command, takes_group) {
                Turn::Command(control) => match control.command {
                    Command::OpenSession { session, .. } => told.push(session),
                    other => panic!("{other:?}"),
                },
                Turn::Group => told.push(0),
                _ => break,
            }
        }
        told
    }

    #[test]
    fn clients_commands_and_groups_take_turns_and_the_workers_own_go_first() {
        let (answers, _told) = mpsc::unbounded_channel();
        let mut sequencer = Sequencer::default();
        assert!(turns(&mut sequencer, true, true, 1).is_empty());
        (1..=3).for_each(|session| sequencer.commands.push_back(control(session)));
        sequencer.own_commands.extend([control(8), control(9)]);
        sequencer.push(write(1, u64::MAX, &answers));
        assert_eq!(turns(&mut sequencer, true, true, 6), [8, 9, 0, 1, 0, 2]);
        assert_eq!(turns(&mut sequencer, true, false, 9), [3], "no group while enough are in flight");
    }

    #[test]
    fn commands_wait_for_room_in_the_log() {
        let mut sequencer = Sequencer::default();
        sequencer.commands.push_back(control(1));
        sequencer.own_commands.push_back(control(9));
        assert!(turns(&mut sequencer, false, true, 1).is_empty());
        assert_eq!(turns(&mut sequencer, true, true, 2), [9, 1]);
    }

    #[test]
    fn when_leadership_ends_nobody_is_left_hanging() {
        let (answers, mut told) = mpsc::unbounded_channel();
        let (done, mut failed) = oneshot::channel();
        let mut sequencer = Sequencer::default();
        let decided = Decided { write: write(1, 9, &answers), outcome: WriteOutcome::Executed(Vec::new()) };
        let what = Proposed::Group { serial: Serial(1), writes: vec![decided] };
        sequencer.proposal = Some(Proposal::for_tests(what));
        sequencer.push(write(2, 5, &answers));
        sequencer.push(write(3, 9, &answers));
        sequencer.commands.push_back(Control { done: Some(done), ..*control(1) }.into());
        sequencer.refuse_late(5);
        sequencer.end(Leader { partition: Default::default(), term: 4, node: 2 });
        let mut outcomes = Vec::new();
        while let Ok(Answer { id, outcome, .. }) = told.try_recv() {
            outcomes.push((id, outcome));
        }
        assert!(matches!(
            &outcomes[..],
            [
                (2, WriteOutcome::Overloaded(_)),
                (1, WriteOutcome::Unknown(_)),
                (3, WriteOutcome::NotLeader(Leader { term: 4, node: 2, .. })),
            ]
        ));
        assert!(failed.try_recv().unwrap().is_err());
    }
}
