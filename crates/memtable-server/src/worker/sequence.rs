//! The sequencer: turns waiting writes into groups, one Raft entry each, and proposes them in order.
//!
//! One proposal is under way at a time, until its entry is ingested (a few microseconds later): so two groups in flight
//! never both pass a condition. Rare commands go through the same door.

use bytes::Bytes;
use openraft::errors::ClientWriteError;
use openraft::impls::ProgressResponder;
use sextant_common::env::{PausePoint, ProbeEvent};
use sextant_common::error::{Error, ErrorKind, Result};
use sextant_common::ids::{Epoch, Serial, TableId};
use sextant_common::manifest::TableOptions;
use sextant_common::mutant::{self, Mutant};
use sextant_raft_log::{Entry, Payload, TypeConfig};
use tokio::sync::oneshot;

use super::Worker;
use super::backlog::Weighed;
use super::publish::{Reply, Waiting};
use crate::command::Command;
use crate::partition::evaluate::{Refusal, Verdict};
use crate::publication::PublishQueue;
use crate::replica::{QueuedWrite, WriteOutcome};

/// After Raft refused a proposal, how long to wait before the next.
const REFUSED_PAUSE_NS: u64 = 5_000_000;
/// The longest that a group is held back when memory runs short.
const SLOWDOWN_NS_MAX: u64 = 20_000_000;
/// Rare commands that may wait for their turn.
const CONTROL_MAX: usize = 4096;

/// What a write is told whose turn came after its deadline.
pub(super) const LATE: &str = "the write was not executed: its deadline passed before its turn";

type RaftAnswer =
    openraft::alias::OneshotReceiverOf<TypeConfig, openraft::raft::ClientWriteResult<TypeConfig>>;

/// What was proposed and is not yet ingested.
pub(super) struct Proposal {
    payload: Bytes,
    term: u64,
    /// None: Raft has answered already.
    raft: Option<RaftAnswer>,
    pub what: Proposed,
    pub proposed_ns: u64,
}

impl Proposal {
    /// Whether it is of a command of that kind.
    pub fn is_of(&self, kind: impl Fn(&Control) -> bool) -> bool {
        matches!(&self.what, Proposed::Control(control) if kind(control))
    }
}

pub(super) enum Proposed {
    Group {
        serial: Serial,
        /// The requests are kept: if Raft refuses the group, they are evaluated again.
        writes: Vec<Decided>,
    },
    Control(Box<Control>),
}

/// Why Raft did not take a proposal.
pub(super) enum Refused {
    NotAppended(String),
    Unknown(String),
}

/// A request and what it is to be answered when its group is published.
pub(super) struct Decided {
    pub write: QueuedWrite,
    pub outcome: WriteOutcome,
}

impl Decided {
    pub fn into_reply(self) -> Reply {
        Reply { sink: self.write.reply, outcome: self.outcome }
    }
}

/// A rare command and whoever waits for it.
pub(super) struct Control {
    pub command: Command,
    pub done: Option<oneshot::Sender<Result<()>>>,
}

impl Weighed for QueuedWrite {
    fn bytes(&self) -> usize {
        self.share.bytes
    }
}

impl Proposal {
    /// Whether an entry of the log is this proposal.
    pub fn is(&self, entry: &Entry, term: u64) -> bool {
        match &entry.payload {
            openraft::EntryPayload::Normal(p) => term == self.term && p.0 == self.payload,
            _ => false,
        }
    }

    /// Completes when Raft refuses the proposal.
    pub async fn refusal(proposal: &mut Option<Proposal>) -> Refused {
        let Some(Proposal { raft, .. }) = proposal else { return std::future::pending().await };
        let Some(waiting) = raft else { return std::future::pending().await };
        let answer = waiting.await;
        *raft = None;
        match answer {
            Ok(Err(ClientWriteError::ForwardToLeader(e))) => Refused::NotAppended(e.to_string()),
            Ok(Err(e)) => Refused::Unknown(e.to_string()),
            Err(_) => Refused::Unknown("Raft has stopped".into()),
            // Committed already: the entry is on its way through the queue of events.
            Ok(Ok(_)) => std::future::pending().await,
        }
    }
}

impl Worker {
    pub(super) fn can_propose(&self) -> bool {
        self.lead.is_some()
            && self.proposal.is_none()
            && self.shared.env.clock.grantor_ns() >= self.next_group_at_ns
    }

    pub(super) fn can_sequence(&self) -> bool {
        self.can_propose()
            && self.queue.in_flight(self.partition.committed_index()) < self.tuning.groups_in_flight
    }

    /// Queues a rare command.
    pub(super) fn control(&mut self, command: Command, done: Option<oneshot::Sender<Result<()>>>) {
        let control = Control { command, done };
        let refused = if self.lead.is_none() {
            Some(Error::new(ErrorKind::NotLeader, "this server does not lead the partition"))
        } else if let Err(e) = self.log_takes_groups() {
            Some(Error::new(ErrorKind::Overloaded, format!("the log takes no more commands: {e}")))
        } else if self.control.len() >= CONTROL_MAX {
            Some(Error::new(ErrorKind::Overloaded, "too many commands are waiting"))
        } else {
            None
        };
        match refused {
            Some(e) => {
                if let Some(done) = control.done {
                    let _ = done.send(Err(e));
                }
            }
            None => self.control.push_back(control),
        }
    }

    /// Queues a command of the worker's own: a freeze, a flag, a merge. They are few, and never refused while it leads.
    pub(super) fn command(&mut self, command: Command, done: Option<oneshot::Sender<Result<()>>>) {
        let control = Control { command, done };
        if self.lead.is_some() { self.internal.push_back(control) } else { control.failed() }
    }

    pub(super) async fn sequence(&mut self) {
        if self.lead.is_none() {
            return self.refuse_as_no_leader();
        }
        if !self.can_propose() {
            return;
        }
        let groups_turn = self.control_had_its_turn && !self.backlog.is_empty() && self.can_sequence();
        // Raft cannot go on after a refused append: commands wait for room in the log.
        let next = match self.log_takes_commands().ok().and_then(|()| self.internal.pop_front()) {
            Some(control) => Some(control),
            None if groups_turn => None,
            None => self.log_takes_commands().ok().and_then(|()| self.control.pop_front()),
        };
        self.control_had_its_turn = next.is_some();
        if let Some(mut control) = next {
            // The term is that of the proposal, not of the moment when the command was queued.
            set_term(&mut control.command, self.lead.as_ref().map_or(0, |l| l.term));
            let payload = control.command.encode();
            self.propose(payload, Proposed::Control(Box::new(control))).await;
            return;
        }
        if !self.backlog.is_empty() && self.can_sequence() {
            self.form_group().await;
        }
    }

    async fn form_group(&mut self) {
        let Some(term) = self.lead.as_ref().map(|l| l.term) else { return };
        // Raft would refuse, after the group's bits are out.
        if !self.shared.lease.is_valid(term, self.shared.env.clock.holder_ns()) {
            return;
        }
        if let Err(e) = self.log_takes_groups() {
            return self.refuse_all(format!("the log takes no more writes: {e}"));
        }
        // What is too large for the room that is left is refused alone: small writes go on.
        while let Some(bytes) = self.backlog.next_large_bytes()
            && let Err(e) = self.log_takes(bytes)
        {
            let Some(write) = self.backlog.pop_large() else { break };
            self.metrics.overloaded.inc();
            let why = format!("the log takes no write of this size: {e}");
            write.reply.send(WriteOutcome::Overloaded(why.into()));
        }
        let pressure = self.partition.unflushed_bytes();
        if pressure >= self.memory_bytes {
            return self.refuse_all(self.why_full(pressure));
        }
        let now_ns = self.shared.env.clock.holder_ns();
        let late = |write: &QueuedWrite| write.deadline_ns <= now_ns;
        let (mut requests, mut events) = (Vec::new(), Vec::new());
        for write in self.backlog.next_group(self.tuning.group_bytes, late) {
            if late(&write) {
                write.reply.send(WriteOutcome::Overloaded(LATE.into()));
                continue;
            }
            requests.push(write.request.clone());
            events.push(write);
        }
        let now_ms = self.shared.env.clock.wall_guess_ns() / 1_000_000;
        let evaluated = self.partition.evaluate(term, &requests, now_ms);
        let mut decided = Vec::with_capacity(events.len());
        for (write, verdict) in events.into_iter().zip(evaluated.verdicts) {
            let (outcome, unchanged, at_once) = match verdict {
                Verdict::Applied(results) => {
                    (WriteOutcome::Executed(results), false, Mutant::DuplicateAtOnce)
                }
                Verdict::Unchanged { ok: true, results } => {
                    (WriteOutcome::Executed(results), true, Mutant::DuplicateAtOnce)
                }
                Verdict::Unchanged { ok: false, results } => {
                    (WriteOutcome::ConditionFailed(results), true, Mutant::FailedAtOnce)
                }
                Verdict::Refused(Refusal::StaleManifest) => {
                    self.metrics.stale_writes.inc();
                    write.reply.send(WriteOutcome::Stale(self.partition.manifest().clone()));
                    continue;
                }
                Verdict::Refused(refusal) => {
                    write.reply.send(WriteOutcome::Refused(refusal));
                    continue;
                }
            };
            let one = Decided { write, outcome };
            if unchanged && (evaluated.group.is_none() || mutant::active(at_once)) {
                self.answer_when_published(one.into_reply());
            } else {
                // What changed nothing may have seen an effect of this very group, or is recorded by it: it is answered with it.
                decided.push(one);
            }
        }
        let Some(group) = evaluated.group else { return };
        if mutant::active(Mutant::BitsAfterProposal) {
            return self.bits_after_proposal(group, evaluated.runs, decided).await;
        }
        // The bits are in the leader's filters and in the ring before the group is proposed.
        for run in &evaluated.runs {
            for hash in &run.hashes {
                self.partition.add_bit(run.table, *hash);
            }
        }
        let serial =
            if evaluated.runs.is_empty() { Serial(0) } else { self.shared.desk.push(evaluated.runs) };
        if serial.0 > 0 {
            self.shared.news.notify_waiters();
        }
        self.groups += 1;
        let writes = group.seqs();
        self.group_writes += writes;
        if writes > 0 {
            self.metrics.group_writes.observe(writes as f64);
        }
        let interval = self.group_interval.as_nanos() as u64;
        self.next_group_at_ns = self.shared.env.clock.grantor_ns() + interval.max(self.slowdown_ns(pressure));
        self.shared.env.pause_point(PausePoint::BitsOut).await;
        if mutant::active(Mutant::FreezeSlipsIn) && self.groups.is_multiple_of(16) {
            self.let_a_freeze_slip_in(group.tables.first().map(|t| t.table)).await;
        }
        let payload = Command::Group(group).encode();
        self.propose(payload, Proposed::Group { serial, writes: decided }).await;
    }

    /// Above three quarters of the memory limit groups are held back, the longer the fuller.
    pub(super) fn slowdown_ns(&self, bytes: usize) -> u64 {
        let start = self.memory_bytes / 4 * 3;
        let over = bytes.saturating_sub(start) as u64;
        SLOWDOWN_NS_MAX * over / (self.memory_bytes / 4).max(1) as u64
    }

    pub(super) async fn propose(&mut self, payload: Bytes, what: Proposed) {
        let Some(term) = self.lead.as_ref().map(|l| l.term) else { return };
        let (responder, _committed, outcome) = ProgressResponder::new();
        let proposed_ns = self.shared.env.clock.holder_ns();
        self.proposal =
            Some(Proposal { payload: payload.clone(), term, raft: Some(outcome), what, proposed_ns });
        let leader = openraft::alias::CommittedLeaderIdOf::<TypeConfig>::new(term);
        // Raft's core takes the message at once: its log store only queues, so this await is short.
        if let Err(e) = self.raft.write(Payload(payload)).with_leader(leader).responder(responder).await {
            tracing::warn!(partition = %self.shared.id, "Raft takes no proposals: {e}");
        }
    }

    /// Raft refused a proposal (its lease lapsed, or leadership is changing): certainly not appended. Bits of the refused
    /// group may be out already, so the ring starts a new incarnation, and everything waits for the old one's leases.
    pub(super) fn proposal_refused(&mut self, refused: Refused) {
        let Some(proposal) = self.proposal.take() else { return };
        self.metrics.refused_proposals.inc();
        let why = match refused {
            Refused::NotAppended(why) => why,
            Refused::Unknown(why) => {
                // Dropping the proposal tells its clients that the outcome is unknown.
                tracing::debug!(partition = %self.shared.id, "outcome of a proposal is unknown: {why}");
                match proposal.what {
                    Proposed::Control(control) => control.failed(),
                    Proposed::Group { .. } => {}
                }
                self.renew_ring();
                return;
            }
        };
        tracing::debug!(partition = %self.shared.id, "proposal refused: {why}");
        self.next_group_at_ns = self.shared.env.clock.grantor_ns() + REFUSED_PAUSE_NS;
        match proposal.what {
            Proposed::Control(control) => self.internal.push_front(*control),
            Proposed::Group { serial, writes } => {
                for decided in writes.into_iter().rev() {
                    self.backlog.push_front(decided.write);
                }
                if serial.0 > 0 && !mutant::active(Mutant::FilterSaysInMemtable) {
                    self.renew_ring();
                }
            }
        }
    }

    /// A new ring incarnation within the term. Whatever is in flight waits for the old one's leases as a whole.
    pub(super) fn renew_ring(&mut self) {
        let (mode, drift_ppm) = (self.configuration().mode, self.configuration().drift_ppm);
        let Some(lead) = &mut self.lead else { return };
        let epoch = Epoch { term: lead.term, incarnation: lead.epoch.incarnation + 1 };
        lead.hold_until_ns = lead.hold_until_ns.max(self.shared.desk.reopen(epoch, mode, drift_ppm));
        lead.epoch = epoch;
        self.shared.env.tell(|| ProbeEvent::RingRenewed {
            partition: self.shared.id,
            node: self.shared.node,
            over_group: has_serial(self.proposal.as_ref()),
        });
        forget_serials(&mut self.queue, self.proposal.as_mut());
        self.shared.news.notify_waiters();
    }

    /// There is no room for any of the writes that wait.
    fn refuse_all(&mut self, why: String) {
        self.metrics.overloaded.inc_by(self.backlog.len() as u64);
        let refusal = |write: QueuedWrite| write.reply.send(WriteOutcome::Overloaded(why.clone().into()));
        self.backlog.drain().for_each(refusal);
    }

    pub(super) fn ensure_table(
        &mut self,
        name: String,
        options: TableOptions,
        id: Option<TableId>,
        done: oneshot::Sender<Result<()>>,
    ) {
        let term = self.lead.as_ref().map_or(0, |l| l.term);
        self.control(Command::EnsureTable { term, name, options, id }, Some(done));
    }
}

/// Whether a group is on its way into the log that has left bits.
fn has_serial(proposal: Option<&Proposal>) -> bool {
    matches!(proposal, Some(Proposal { what: Proposed::Group { serial, .. }, .. }) if serial.0 > 0)
}

/// What is in flight has serials of a ring that is gone: the new one might never reach them. That goes for the group, too, that is
/// proposed and not yet back from the log.
fn forget_serials(queue: &mut PublishQueue<Waiting>, proposal: Option<&mut Proposal>) {
    queue.iter_mut().for_each(|entry| entry.serial = Serial(0));
    if let Some(Proposal { what: Proposed::Group { serial, .. }, .. }) = proposal
        && !mutant::active(Mutant::ProposalKeepsSerial)
    {
        *serial = Serial(0);
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
    use super::*;
    use crate::lease::grantor::Permission;
    use crate::publication::Next;
    use crate::worker::publish;

    fn proposed(serial: u64) -> Proposal {
        let what = Proposed::Group { serial: Serial(serial), writes: Vec::new() };
        Proposal { payload: Bytes::new(), term: 3, raft: None, what, proposed_ns: 1 }
    }

    #[test]
    fn a_new_ring_binds_nothing_that_is_in_flight_also_not_what_is_on_its_way_into_the_log() {
        let mut queue = PublishQueue::new(0);
        queue.push(publish::own(1, 10, proposed(700)));
        let mut proposal = Some(proposed(701));
        forget_serials(&mut queue, proposal.as_mut());
        queue.push(publish::own(2, 11, proposal.unwrap()));
        queue.push(publish::own(3, 12, proposed(1)));
        // The new ring begins at 0, and nobody has acknowledged anything in it.
        let permit = |s: Serial| if s.0 == 0 { Permission::Granted } else { Permission::WaitUntil(u64::MAX) };
        assert!(matches!(queue.next(3, permit), Next::Publish(e) if e.index == 1));
        assert!(matches!(queue.next(3, permit), Next::Publish(e) if e.index == 2));
        assert!(matches!(queue.next(3, permit), Next::WaitUntil(_)), "a group of the new ring waits as ever");
    }
}
