//! What is proposed, and what becomes of it if Raft refuses.

use bytes::Bytes;
use openraft::impls::ProgressResponder;
use sextant_common::error::{Error, ErrorKind, Result};
use sextant_common::ids::Serial;
use sextant_common::key::{filter_hash, registration_slot};
use sextant_common::limits::LARGE_BYTES;
use sextant_raft_log::{Payload, TypeConfig};
use sextant_rules::mutant::{self, Mutant};
use tokio::sync::oneshot;

use super::{COMMANDS_MAX, Formed, LATE, REFUSED_PAUSE_NS, Turn, refused};
use crate::command::{Command, Freeze, Group};
use crate::lease::ring::Run;
use crate::partition::evaluate::{Refusal, Verdict};
use crate::raft::wire;
use crate::replica::{QueuedWrite, WriteFate};
use crate::worker::leading::Leading;
use crate::worker::proposal::{Decided, PendingCommand, Proposal, Proposed, Refused};
use crate::worker::replica::Replica;

/// Takes the registrations of everything that a group writes. The slots that had any.
fn invalidated(replica: &Replica, group: &Group) -> Option<Run> {
    let slots = replica.shared.slots.load();
    let mut registered = Vec::new();
    for table in &group.tables {
        for write in &table.writes {
            let slot = registration_slot(table.table, filter_hash(&write.key), slots.count());
            if slots.write(slot, group.first_seq + u64::from(write.ordinal)) {
                registered.push(slot as u32);
            }
        }
    }
    replica.metrics.invalidations.inc_by(registered.len() as u64);
    (!registered.is_empty()).then_some(Run::Invalidated { slots: registered })
}

/// Certainly not executed.
fn refuse(replica: &Replica, writes: Vec<QueuedWrite>, why: &str) {
    replica.metrics.overloaded.inc_by(writes.len() as u64);
    for write in writes {
        write.reply.send(WriteFate::Overloaded(why.to_owned().into()));
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
        self.client_pending(replica, PendingCommand { command, done, privileged: false });
    }

    pub fn client_pending(&mut self, replica: &Replica, pending: PendingCommand) {
        let overloaded = |why: String| Err(Error::new(ErrorKind::Overloaded, why));
        if let Err(e) = replica.log_takes_groups() {
            pending.end(overloaded(format!("the log takes no more commands: {e}")));
        } else if self.sequencer.commands.len() >= COMMANDS_MAX {
            pending.end(overloaded("too many commands are waiting".into()));
        } else {
            self.sequencer.commands.push_back(pending.into());
        }
    }

    /// Queues a command of the worker's own: a freeze, a flag, a compaction. They are few, and never refused while it leads.
    pub fn command(&mut self, command: Command, done: Option<oneshot::Sender<Result<()>>>) {
        self.sequencer.own_commands.push_back(PendingCommand { command, done, privileged: false }.into());
    }

    /// What is to be proposed next, if anything.
    pub fn next_turn(&mut self, replica: &Replica) -> Turn {
        let holds = self.holds_groups(replica);
        let sequencer = &mut self.sequencer;
        if sequencer.proposal.is_some() || replica.shared.env.clock.grantor_ns() < sequencer.next_at_ns {
            return Turn::Nothing;
        }
        let committed = replica.partition.committed_index();
        // (Commands do not count, of which there may always be one: only groups have writes to answer.)
        let groups = replica.queue.uncommitted(committed).filter(|entry| !entry.waiting.replies.is_empty());
        let is_worth_it = sequencer.is_worth_a_group(groups.count());
        let in_flight = replica.queue.in_flight(committed);
        let takes_group = in_flight < replica.tuning.groups_in_flight && !holds && is_worth_it;
        // Raft cannot go on after a refused append: commands wait for room in the log.
        sequencer.next(replica.log_takes_commands().is_ok(), takes_group)
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
            write.reply.send(WriteFate::Overloaded(why.into()));
        }
        let pressure = replica.partition.unflushed_bytes();
        if pressure >= replica.memory_bytes {
            let why = replica.why_full(pressure, &self.upkeep);
            self.sequencer.refuse_all(replica, why);
            return None;
        }
        let now_ns = replica.shared.env.clock.holder_ns();
        let late = |write: &QueuedWrite| write.deadline_ns <= now_ns;
        let mut writes = Vec::new();
        for write in self.sequencer.backlog.next_group(replica.tuning.group_bytes, late) {
            if late(&write) {
                write.reply.send(WriteFate::Overloaded(LATE.into()));
                continue;
            }
            writes.push(write);
        }
        let now_ms = replica.shared.env.clock.wall_guess_ns() / 1_000_000;
        let requests = writes.iter().map(|write| &write.request);
        let evaluated = replica.partition.evaluate_up_to(replica.tuning.group_bytes, term, requests, now_ms);
        let group_bytes = evaluated.group.as_ref().map_or(0, Group::entry_bytes);
        if group_bytes > replica.tuning.group_bytes
            && let Err(e) = replica.log_takes(group_bytes)
        {
            // What updates make of large values is not known before. Nothing of it is out yet.
            refuse(replica, writes, &format!("the log takes no group of this size: {e}"));
            return None;
        }
        if let Err(e) = wire::check_entry(group_bytes) {
            refused::too_long(&replica.metrics, writes, e);
            return None;
        }
        let mut decided = Vec::with_capacity(writes.len());
        let mut not_yet = Vec::new();
        for (write, verdict) in writes.into_iter().zip(evaluated.verdicts) {
            let (fate, unchanged) = match verdict {
                Verdict::Applied(results) => (WriteFate::Executed(results), false),
                Verdict::Unchanged { ok: true, results } => (WriteFate::Executed(results), true),
                Verdict::Unchanged { ok: false, results } => (WriteFate::ConditionFailed(results), true),
                Verdict::Refused(Refusal::StaleManifest) => {
                    replica.metrics.stale_writes.inc();
                    let bases = write.request.ops.iter().filter_map(|op| op.base.as_ref());
                    let searched = bases.map(|base| base.manifest).min().unwrap_or_default();
                    write.reply.send(WriteFate::Stale(replica.partition.versions().clone(), searched));
                    continue;
                }
                Verdict::Refused(refusal) => {
                    write.reply.send(WriteFate::Refused(refusal));
                    continue;
                }
                Verdict::NotYet { bytes } => {
                    not_yet.push((write, bytes));
                    continue;
                }
            };
            let one = Decided { write, fate };
            if unchanged && evaluated.group.is_none() {
                self.answer_when_published(replica, one.into_reply());
            } else {
                // What changed nothing may have seen an effect of this very group, or is recorded by it: it is answered with it.
                decided.push(one);
            }
        }
        for (write, bytes) in not_yet.into_iter().rev() {
            // What makes a large value of a large one waits with what carries one.
            match bytes > LARGE_BYTES {
                true => self.sequencer.backlog.push_front_large(write),
                false => self.sequencer.backlog.push_front(write),
            }
        }
        let group = evaluated.group?;
        // First whoever keeps an older answer loses his registration; then bits and invalidations are in the leader's filters and in the
        // ring; only then the group is proposed.
        let mut runs = evaluated.runs;
        if !mutant::active(Mutant::SwapAfterProposal) {
            runs.extend(invalidated(replica, &group));
        }
        for run in &runs {
            if let Run::Bits { table, hashes, .. } = run {
                hashes.iter().for_each(|hash| replica.partition.add_bit(*table, *hash));
            }
        }
        replica.partition.expect(evaluated.bookmarks);
        let shared = &replica.shared;
        let serial = if runs.is_empty() { Serial(0) } else { shared.desk.push(runs) };
        if serial.0 > 0 {
            shared.news.notify_waiters();
        }
        replica.groups += 1;
        replica.group_writes += group.seqs();
        if group.seqs() > 0 {
            replica.metrics.group_writes.observe(group.seqs() as f64);
        }
        self.sequencer.newest_group = decided.len();
        let interval = replica.group_interval.as_nanos() as u64;
        let slowdown = replica.slowdown_ns(pressure);
        self.sequencer.next_at_ns = shared.env.clock.grantor_ns() + interval.max(slowdown);
        Some(Formed { group, serial, writes: decided })
    }

    /// A mutant: nobody waits for what is invalidated now.
    pub fn invalidate_late(&self, replica: &Replica, group: &Group) {
        replica.shared.desk.push(invalidated(replica, group));
        replica.shared.news.notify_waiters();
    }

    pub async fn propose(&mut self, replica: &Replica, payload: Bytes, serial: Serial, what: Proposed) {
        let term = self.tenure.term;
        let (responder, _committed, answer) = ProgressResponder::new();
        let proposed_ns = replica.shared.env.clock.holder_ns();
        if let Proposed::Group(writes) = &what
            && let Some(arrived_ns) = writes.iter().map(|decided| decided.write.reply.since_ns()).min()
        {
            replica.metrics.stages.queued.observe_ns(proposed_ns.saturating_sub(arrived_ns));
        }
        self.sequencer.proposal =
            Some(Proposal { payload: payload.clone(), term, raft: Some(answer), serial, what, proposed_ns });
        let leader = openraft::alias::CommittedLeaderIdOf::<TypeConfig>::new(term);
        // Raft's core takes the message at once: its log store only queues, so this await is short.
        if let Err(e) = replica.raft.write(Payload(payload)).with_leader(leader).responder(responder).await {
            tracing::warn!(partition = %replica.shared.id, "Raft takes no proposals: {e}");
        }
    }

    pub async fn propose_command(&mut self, replica: &Replica, mut pending: Box<PendingCommand>) {
        // The term is that of the proposal, not of the moment when the command was queued.
        *pending.command.term_mut() = self.tenure.term;
        // Nor is a dropped table named any more: not by what was queued before.
        if let Command::Freeze(Freeze { table, .. }) = &pending.command
            && replica.partition.has_ended(*table)
        {
            self.upkeep.frozen(*table);
            return pending.end(Err(Error::retry("the table is being dropped")));
        }
        // Nor what a cut has.
        let Some(mut pending) = self.plan_cut(replica, pending) else { return };
        let mut serial = Serial(0);
        if let Command::Tick(tick) = &mut pending.command {
            // Nor is the time.
            let Some(announced) = self.announce_tick(replica) else { return };
            (tick.at, serial) = announced;
        }
        let payload = pending.command.encode();
        let format = replica.configuration().check_format(Command::format_needed(&payload));
        if let Err(e) = format.and_then(|()| replica.log_takes_if_long(payload.len())) {
            return self.refuse_command(replica, pending, e);
        }
        self.propose(replica, payload, serial, Proposed::Command(pending)).await;
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
                if let Proposed::Command(pending) = proposal.what {
                    pending.failed();
                }
                self.renew_ring(replica);
                return;
            }
        };
        tracing::debug!(partition = %replica.shared.id, "proposal refused: {why}");
        self.sequencer.next_at_ns = replica.shared.env.clock.grantor_ns() + REFUSED_PAUSE_NS;
        match proposal.what {
            Proposed::Command(pending) => self.sequencer.own_commands.push_front(pending),
            Proposed::Group(writes) => {
                for decided in writes.into_iter().rev() {
                    self.sequencer.backlog.push_front(decided.write);
                }
                if proposal.serial.0 > 0 {
                    self.renew_ring(replica);
                }
            }
        }
    }
}
