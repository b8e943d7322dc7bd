//! A partition replica's one worker: the only writer of its memtables, filters and duplicate table (LogStore's thread per
//! partition), and, on the leader, its sequencer and publisher.
//!
//! Flow on the leader: waiting writes -> evaluate -> bf-log entries to the desk -> propose one Raft entry -> the log store
//! feeds the entry back -> ingest -> (Raft commits) -> publish rule -> `published_seq` moves, clients are answered. The next
//! group is evaluated as soon as the one before is ingested, so several are in flight.
//!
//! [`replica`] is what every replica has ([`proposal`], [`waiting`], [`standing`] and [`freezes`] are its parts: they outlive a
//! leadership), [`leading`] what leadership adds, [`inbox`] what wakes the worker; here is the loop.
//!
//! Invariant: published_seq never passes a group that is not committed, or that a live lease forbids, and moves strictly in
//! log order.

mod agreement;
mod follow;
mod freezes;
mod inbox;
mod known_log;
mod leading;
mod numbers;
mod old_entries;
mod pressure;
mod proposal;
mod replica;
mod resignation;
mod rest;
mod sequence;
mod standing;
mod waiting;

use std::time::Duration;

use openraft::async_runtime::WatchReceiver;
use sextant_common::error::{Error, ErrorKind};
use sextant_environment::shutdown::Shutdown;
use tokio::sync::mpsc;

use crate::replica::{Event, QueuedWrite};
use inbox::{Inbox, Woken};
use leading::Leading;
use replica::Replica;
use resignation::Resigned;
use rest::Rest;

pub use replica::Parts;

pub struct Worker {
    replica: Replica,
    leading: Option<Leading>,
    resigned: Option<Resigned>,
    inbox: Inbox,
    rest: Rest,
    shutdown: Shutdown,
}

/// The worker ends: it was told to, or nobody can say anything any more, or the process ends.
struct Ended;

impl Worker {
    pub fn new(
        parts: Parts,
        events: mpsc::UnboundedReceiver<Event>,
        writes: mpsc::Receiver<QueuedWrite>,
        shutdown: Shutdown,
    ) -> Self {
        let inbox = Inbox::new(events, writes, &parts.raft);
        let replica = Replica::new(parts);
        Self { replica, leading: None, resigned: None, inbox, rest: Rest::default(), shutdown }
    }

    /// Runs until it is told to stop or its channels are gone. An unsafe state ends the process.
    pub async fn run(mut self) {
        while let Ok(()) = self.turn().await {}
    }

    /// The state is unsafe, or Raft is gone: the process ends.
    fn fatal(&self, why: &str) -> Ended {
        let shared = &self.replica.shared;
        shared.env.fatal.fatal(&format!("partition {}: {why}", shared.id));
        Ended
    }

    /// The worker cannot go on with what it was told.
    fn ends_by(&self, e: &Error) -> Ended {
        if e.kind == ErrorKind::Outdated {
            self.replica.shared.env.fatal.outdated(&e.message);
            return Ended;
        }
        self.fatal(&e.message)
    }

    /// Waits for something to do, and does it and what follows from it.
    async fn turn(&mut self) -> Result<(), Ended> {
        let wake = self.next_wake();
        match self.inbox.woken(self.leading.as_mut(), wake).await {
            Woken::Events => self.handle_events()?,
            Woken::RaftStopped => {
                // A replica whose Raft core is dead looks alive and never comes back by itself.
                self.step_down("Raft has stopped");
                return Err(match self.shutdown.is_triggered() {
                    true => Ended,
                    false => self.fatal("Raft has stopped"),
                });
            }
            Woken::Refused(refused) => {
                // If the entry was appended after all, its event was queued before the answer.
                self.inbox.take_waiting_events();
                self.handle_events()?;
                if let Some(leading) = &mut self.leading {
                    leading.proposal_refused(&mut self.replica, refused);
                }
            }
            Woken::Nothing => {}
            Woken::Closed => return Err(Ended),
        }
        let (state, term, leader) = {
            let m = self.inbox.raft.borrow_watched();
            (m.state, m.vote.leader_id.term, m.current_leader)
        };
        self.follow_leadership(state, term, leader);
        self.take_writes();
        if let Some(leading) = &mut self.leading {
            leading.see_to_voters(&mut self.replica);
        }
        self.publish();
        self.see_to_handover();
        if let Some(leading) = &mut self.leading {
            leading.see_to_adoption(&self.replica);
        }
        self.sequence().await;
        let now_ns = self.replica.shared.env.clock.grantor_ns();
        let (replica, leading) = (&self.replica, self.leading.as_ref());
        let is_busy = || {
            let lets_go = self.resigned.as_ref().is_some_and(|resigned| resigned.still_leads(replica));
            lets_go || rest::is_busy(replica, leading)
        };
        if self.rest.rests() && is_busy() {
            self.rest.stir(now_ns);
        }
        if self.rest.takes_upkeep(now_ns, is_busy) {
            self.upkeep(now_ns);
            self.refresh_numbers();
        }
        Ok(())
    }

    /// How long the worker may sleep.
    fn next_wake(&self) -> Duration {
        let now = self.replica.shared.env.clock.grantor_ns();
        let mut wake = self.rest.wake(now);
        if let Some(leading) = &self.leading {
            if self.replica.shared.lease.is_alone() {
                // Nobody's answer renews its lease: each turn does.
                wake = wake.min(Duration::from_millis(self.replica.heartbeat_ms.max(1)));
            }
            if let Some(at) = leading.publisher.look_again_at_ns {
                let until = Duration::from_nanos(at.saturating_sub(now));
                wake = wake.min(until.max(Duration::from_micros(50)));
            }
            if let Some(ns) = leading.sequencer.next_in_ns(now) {
                wake = wake.min(Duration::from_nanos(ns));
            }
        }
        wake
    }
}
