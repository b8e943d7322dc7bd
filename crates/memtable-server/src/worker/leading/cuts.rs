//! How long cuts are held: each for its lease after its last renewal, and none for ever.
//!
//! Owns the times, on this leader's clock, and what is proposed about cuts. A new leader counts anew, so it ends none early. An entry of
//! the log ends a cut, not a clock; what a cut is, is [`crate::partition::cuts`].

use std::collections::{HashMap, HashSet};

use sextant_common::error::{Error, Result};
use sextant_common::expiry::Tick;
use tokio::sync::oneshot;

use super::Leading;
use crate::command::{Command, EndCut, OpenCut};
use crate::partition::cuts::unknown_cut;
use crate::worker::proposal::PendingCommand;
use crate::worker::replica::Replica;

#[derive(Default)]
pub(in crate::worker) struct Cuts {
    /// Until when each is held (grantor's clock).
    until_ns: HashMap<u64, u64>,
    /// Whose end is proposed, or about to be.
    ending: HashSet<u64>,
}

impl Leading {
    /// What it says is decided when it is proposed.
    pub fn begin_cut(
        &mut self,
        replica: &Replica,
        id: u64,
        lease_ms: u64,
        done: oneshot::Sender<Result<()>>,
    ) {
        let term = self.tenure.term;
        let (next_seq, tick, opened_ms, tables) = (0, Tick::default(), 0, Vec::new());
        let cut = OpenCut { term, id, next_seq, tick, opened_ms, lease_ms, tables };
        self.command_about_cuts(replica, Command::OpenCut(cut), Some(done));
    }

    /// Every proposal of an entry about cuts.
    fn command_about_cuts(
        &mut self,
        replica: &Replica,
        command: Command,
        done: Option<oneshot::Sender<Result<()>>>,
    ) {
        match command {
            // What ends one makes room: it is refused no more than a flag.
            Command::EndCut(_) => self.command(command, done),
            command => self.client_command(replica, command, done),
        }
    }

    /// The cut is of what the log has come to. None: there is nothing to be proposed, and who waits was told.
    pub fn plan_cut(&self, replica: &Replica, pending: Box<PendingCommand>) -> Option<Box<PendingCommand>> {
        let Command::OpenCut(OpenCut { term, id, lease_ms, .. }) = pending.command else {
            return Some(pending);
        };
        let opened_ms = replica.shared.env.clock.wall_guess_ns() / 1_000_000;
        match replica.partition.plan_cut(term, id, opened_ms, lease_ms) {
            Ok(Some(cut)) => {
                replica.metrics.cuts_opened.inc();
                Some(PendingCommand { command: Command::OpenCut(cut), ..*pending }.into())
            }
            Ok(None) => {
                pending.succeeded();
                None
            }
            Err(e) => {
                pending.end(Err(e));
                None
            }
        }
    }

    pub fn renew_cut(&mut self, replica: &Replica, id: u64, done: oneshot::Sender<Result<u64>>) {
        let is_ending =
            self.cuts.ending.contains(&id) || !replica.queue.has_published(self.tenure.first_index);
        let held = replica.partition.cuts().iter().find(|cut| cut.id == id).filter(|_| !is_ending);
        let _ = done.send(match held {
            Some(cut) => {
                let now_ns = replica.shared.env.clock.grantor_ns();
                self.cuts.until_ns.insert(id, now_ns.saturating_add(cut.lease_ms.saturating_mul(1_000_000)));
                Ok(self.tenure.term)
            }
            None if !replica.queue.has_published(self.tenure.first_index) => {
                Err(Error::retry("the leader is not ready"))
            }
            None => Err(unknown_cut(id)),
        });
    }

    pub fn end_cut(&mut self, replica: &Replica, id: u64, done: oneshot::Sender<Result<()>>) {
        if !replica.partition.cuts().iter().any(|cut| cut.id == id) {
            let _ = done.send(Ok(()));
        } else if self.cuts.ending.insert(id) {
            let term = self.tenure.term;
            self.command_about_cuts(replica, Command::EndCut(EndCut { term, id }), Some(done));
        } else {
            // One proposal is enough: whoever asks in a loop does not fill the log.
            let _ = done.send(Err(Error::retry("the snapshot is about to end")));
        }
    }

    /// Ends those that nobody has renewed, or that are too old.
    pub fn end_cuts_when_due(&mut self, replica: &Replica, now_ns: u64) {
        let held = replica.partition.cuts();
        self.cuts.until_ns.retain(|id, _| held.iter().any(|cut| cut.id == *id));
        self.cuts.ending.retain(|id| held.iter().any(|cut| cut.id == *id));
        if held.is_empty() {
            return;
        }
        let wall_ms = replica.shared.env.clock.wall_guess_ns() / 1_000_000;
        let mut over = Vec::new();
        for cut in held {
            let lease_end_ns = now_ns.saturating_add(cut.lease_ms.saturating_mul(1_000_000));
            let until_ns = self.cuts.until_ns.entry(cut.id).or_insert(lease_end_ns);
            if !cut.is_complete() {
                // Who asked for it waits.
                *until_ns = lease_end_ns;
            }
            let is_old = wall_ms.saturating_sub(cut.opened_ms) >= replica.tuning.snapshot_age_max_ms;
            if !self.cuts.ending.contains(&cut.id) && (is_old || *until_ns <= now_ns) {
                over.push((cut.id, is_old));
            }
        }
        let term = self.tenure.term;
        for (id, is_old) in over {
            let why = if is_old { "it is too old" } else { "nobody has renewed it" };
            tracing::info!(partition = %replica.shared.id, "snapshot {id:016x} ends: {why}");
            replica.metrics.cuts_expired.inc();
            self.cuts.ending.insert(id);
            self.command_about_cuts(replica, Command::EndCut(EndCut { term, id }), None);
        }
    }
}
