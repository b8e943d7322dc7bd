//! The sequencer: turns waiting writes into groups, one Raft entry each, and proposes them in order.
//!
//! One proposal is under way at a time, until its entry is ingested (a few microseconds later): so two groups in flight
//! never both pass a condition. Rare commands go through the same door.

mod forming;
mod refused;

use std::collections::VecDeque;

use sextant_common::ids::Serial;
use sextant_raft_log::Entry;

use super::backlog::{Backlog, Weighed};
use crate::command::{Command, Group};
use crate::replica::{QueuedWrite, WriteFate};
use crate::worker::proposal::{Decided, PendingCommand, Proposal, Proposed, Refused};
use crate::worker::replica::Replica;

/// After Raft refused a proposal, how long to wait before the next.
const REFUSED_PAUSE_NS: u64 = 5_000_000;
/// Rare commands that may wait for their turn.
const COMMANDS_MAX: usize = 4096;
/// Requests taken from the queue ahead of their turn: so that a deadline that passes is noticed.
pub(in crate::worker) const BACKLOG_MAX: usize = 4096;
/// Beside those in flight a group goes with so many writes at once.
const GROUP_WRITES: usize = 64;
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
    Command(Box<PendingCommand>),
    Group,
}

/// What waits to be proposed, and what is.
#[derive(Default)]
pub(in crate::worker) struct Sequencer {
    pub proposal: Option<Proposal>,
    /// Commands of clients; bounded.
    commands: VecDeque<Box<PendingCommand>>,
    /// The worker's own commands: at most a few per table.
    own_commands: VecDeque<Box<PendingCommand>>,
    /// Clients' commands and groups take turns.
    command_had_its_turn: bool,
    backlog: Backlog<QueuedWrite>,
    /// Writes of the newest group.
    newest_group: usize,
    /// Not before this time (grantor's clock).
    next_at_ns: u64,
}

impl Sequencer {
    pub fn push(&mut self, write: QueuedWrite) {
        self.backlog.push(write);
    }

    pub fn is_busy(&self) -> bool {
        self.proposal.is_some()
            || self.waiting_writes() > 0
            || !self.commands.is_empty()
            || !self.own_commands.is_empty()
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
            Some(Proposal { what: Proposed::Command(pending), .. }) => kind(&pending.command),
            _ => false,
        };
        proposed || self.own_commands.iter().any(|pending| kind(&pending.command))
    }

    /// Takes back a command of this kind that waits: it is certainly not in the log.
    pub fn take_own(&mut self, kind: impl Fn(&Command) -> bool) -> Option<Box<PendingCommand>> {
        let at = self.own_commands.iter().position(|pending| kind(&pending.command))?;
        self.own_commands.remove(at)
    }

    /// Whether a group of what waits goes now. A group costs messages, turns and syncs, however small it is: what comes while one is
    /// in flight goes beside it when it is as many, or goes next.
    fn is_worth_a_group(&self, groups_in_flight: usize) -> bool {
        let enough = self.newest_group.min(GROUP_WRITES);
        groups_in_flight == 0 || self.backlog.len() >= enough || self.backlog.next_large_bytes().is_some()
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
            Some(pending) => Turn::Command(pending),
            None if has_group => Turn::Group,
            None => Turn::Nothing,
        }
    }

    /// Everybody who waits is told that leadership has ended. Dropping what is proposed tells its clients that the outcome is unknown.
    pub fn end(&mut self, leader: crate::replica::Leader) {
        self.proposal = None;
        self.commands.drain(..).chain(self.own_commands.drain(..)).for_each(|pending| pending.failed());
        self.backlog.drain().for_each(|write| write.reply.send(WriteFate::NotLeader(leader)));
    }

    /// There is no room for any of the writes that wait.
    fn refuse_all(&mut self, replica: &Replica, why: String) {
        replica.metrics.overloaded.inc_by(self.backlog.len() as u64);
        let refuse = |write: QueuedWrite| write.reply.send(WriteFate::Overloaded(why.clone().into()));
        self.backlog.drain().for_each(refuse);
    }

    /// Writes whose deadline has passed were certainly not executed.
    pub fn refuse_late(&mut self, now_ns: u64) {
        let late = self.backlog.take_late(|w| w.deadline_ns <= now_ns);
        late.into_iter().for_each(|w| w.reply.send(WriteFate::Overloaded(LATE.into())));
    }
}

#[cfg(test)]
mod tests {
    use sextant_common::operation::{RequestId, WriteRequest};
    use tokio::sync::{mpsc, oneshot};

    use super::*;
    use crate::command::OpenSession;
    use crate::replica::{Answer, Leader, QueueShare, ReplySink};

    fn write(id: u64, deadline_ns: u64, answers: &mpsc::UnboundedSender<Answer>) -> QueuedWrite {
        QueuedWrite {
            request: WriteRequest { id: RequestId::default(), ops: Vec::new() },
            share: QueueShare::for_tests(10),
            deadline_ns,
            reply: ReplySink::new(id, 0, answers.clone(), None),
        }
    }

    fn pending(session: u64) -> Box<PendingCommand> {
        Box::new(PendingCommand {
            command: Command::OpenSession(OpenSession { term: 1, session, time_ms: 0 }),
            done: None,
            privileged: false,
        })
    }

    /// What is proposed, turn by turn: sessions of commands, and 0 for a group.
    fn turns(sequencer: &mut Sequencer, takes_command: bool, takes_group: bool, n: usize) -> Vec<u64> {
        let mut told = Vec::new();
        for _ in 0..n {
            match sequencer.next(takes_command, takes_group) {
                Turn::Command(pending) => match pending.command {
                    Command::OpenSession(OpenSession { session, .. }) => told.push(session),
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
        (1..=3).for_each(|session| sequencer.commands.push_back(pending(session)));
        sequencer.own_commands.extend([pending(8), pending(9)]);
        sequencer.push(write(1, u64::MAX, &answers));
        assert_eq!(turns(&mut sequencer, true, true, 6), [8, 9, 0, 1, 0, 2]);
        assert_eq!(turns(&mut sequencer, true, false, 9), [3], "no group while enough are in flight");
    }

    #[test]
    fn a_group_beside_one_in_flight_is_no_smaller() {
        let (answers, _told) = mpsc::unbounded_channel();
        let mut sequencer = Sequencer { newest_group: 2, ..Sequencer::default() };
        sequencer.push(write(1, u64::MAX, &answers));
        assert!(sequencer.is_worth_a_group(0) && !sequencer.is_worth_a_group(1));
        sequencer.push(write(2, u64::MAX, &answers));
        assert!(sequencer.is_worth_a_group(1));
        sequencer.newest_group = 5 * GROUP_WRITES;
        (2..GROUP_WRITES as u64).for_each(|id| sequencer.push(write(id, u64::MAX, &answers)));
        assert!(sequencer.is_worth_a_group(1), "more is always enough");
        let share = QueueShare::for_tests(1 << 20);
        let mut sequencer = Sequencer { newest_group: 9, ..Sequencer::default() };
        sequencer.push(QueuedWrite { share, ..write(1, u64::MAX, &answers) });
        assert!(sequencer.is_worth_a_group(1), "a large one makes a large group");
    }

    #[test]
    fn commands_wait_for_room_in_the_log() {
        let mut sequencer = Sequencer::default();
        sequencer.commands.push_back(pending(1));
        sequencer.own_commands.push_back(pending(9));
        assert!(turns(&mut sequencer, false, true, 1).is_empty());
        assert_eq!(turns(&mut sequencer, true, true, 2), [9, 1]);
    }

    #[test]
    fn a_command_that_waits_can_be_taken_back_and_what_is_proposed_cannot() {
        let mut sequencer = Sequencer::default();
        sequencer.own_commands.extend([pending(8), pending(9)]);
        sequencer.proposal = Some(Proposal::for_tests(1, Proposed::Command(pending(7))));
        let is = |session| move |command: &Command| matches!(command, Command::OpenSession(OpenSession { session: of, .. }) if *of == session);
        assert!(sequencer.take_own(is(7)).is_none() && sequencer.has_own(is(7)));
        assert!(sequencer.take_own(is(9)).is_some() && !sequencer.has_own(is(9)));
        assert!(sequencer.has_own(is(8)), "others stay");
    }

    #[test]
    fn when_leadership_ends_nobody_is_left_hanging() {
        let (answers, mut told) = mpsc::unbounded_channel();
        let (done, mut failed) = oneshot::channel();
        let mut sequencer = Sequencer::default();
        let decided = Decided { write: write(1, 9, &answers), fate: WriteFate::Executed(Vec::new()) };
        let what = Proposed::Group(vec![decided]);
        sequencer.proposal = Some(Proposal::for_tests(1, what));
        sequencer.push(write(2, 5, &answers));
        sequencer.push(write(3, 9, &answers));
        sequencer.commands.push_back(PendingCommand { done: Some(done), ..*pending(1) }.into());
        sequencer.refuse_late(5);
        sequencer.end(Leader { partition: Default::default(), term: 4, node: 2 });
        let mut fates = Vec::new();
        while let Ok(Answer { id, fate, .. }) = told.try_recv() {
            fates.push((id, fate));
        }
        assert!(matches!(
            &fates[..],
            [
                (2, WriteFate::Overloaded(_)),
                (1, WriteFate::Unknown(_)),
                (3, WriteFate::NotLeader(Leader { term: 4, node: 2, .. })),
            ]
        ));
        assert!(failed.try_recv().unwrap().is_err());
    }
}
