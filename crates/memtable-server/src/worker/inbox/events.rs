//! What a worker does about each event.

use std::sync::atomic::Ordering;

use sextant_common::error::Result;
use sextant_raft_log::Entry;

use crate::leadership::not_leading;
use crate::partition::commit::CommitEffect;
use crate::partition::snapshot::Snapshot;
use crate::replica::{Adopted, Event, WriteFate};
use crate::worker::replica::{Replica, Seen};
use crate::worker::{Ended, Worker};

impl Worker {
    pub(in crate::worker) fn handle_events(&mut self) -> Result<(), Ended> {
        let mut events = std::mem::take(&mut self.inbox.arrived_events);
        // Acknowledgements of heartbeats and of leases come at any time, and archives look often.
        if events.iter().any(|event| !matches!(event, Event::Acknowledged | Event::LookAtLog { .. })) {
            self.rest.stir(self.replica.shared.env.clock.grantor_ns());
        }
        for event in events.drain(..) {
            if let Event::Stop(done) = event {
                self.step_down("the server is stopping");
                let _ = done.send(());
                return Err(Ended);
            }
            if let Err(e) = self.handle(event) {
                return Err(self.ends_by(&e));
            }
        }
        self.inbox.arrived_events = events;
        Ok(())
    }

    pub(in crate::worker) fn handle(&mut self, event: Event) -> Result<()> {
        match event {
            Event::Appended(entries) => entries.iter().try_for_each(|entry| self.ingest(entry)),
            Event::Truncated(after) => self.truncated(after.map_or(0, |id| id.index + 1)),
            Event::Committed(index) => {
                self.committed(index);
                Ok(())
            }
            Event::Install { snapshot, done } => {
                let _ = done.send(self.install(&snapshot));
                Ok(())
            }
            Event::Acknowledged => {
                self.replica.shared.ack_signalled.store(false, Ordering::Release);
                Ok(())
            }
            Event::LookAtLog { done } => {
                let _ = done.send(Ok(self.replica.known_log(self.leading.is_some())));
                Ok(())
            }
            event => {
                match &mut self.leading {
                    Some(leading) => leading.handle(&mut self.replica, event),
                    None => refuse(&self.replica, event),
                }
                Ok(())
            }
        }
    }

    fn ingest(&mut self, entry: &Entry) -> Result<()> {
        let own = self.leading.as_mut().and_then(|l| l.sequencer.take_if_own(entry));
        let seen = self.replica.ingest(entry, own)?;
        match &mut self.leading {
            Some(leading) => leading.saw(&mut self.replica, &seen),
            None if seen == Seen::Configured => drop(self.replica.apply_configuration(None)),
            None => {}
        }
        Ok(())
    }

    fn truncated(&mut self, first: u64) -> Result<()> {
        for mut gone in self.replica.truncate_from(first)? {
            gone.waiting.unknown();
        }
        match &mut self.leading {
            Some(leading) => leading.truncated(&mut self.replica),
            None => drop(self.replica.apply_configuration(None)),
        }
        self.replica.refresh_view();
        Ok(())
    }

    fn committed(&mut self, index: u64) {
        let effects = self.replica.commit(index, self.leading.is_some());
        // Before p-nodes get the manifest, or anybody is told who waits for a change: what he asks next is the view.
        if !effects.is_empty() {
            self.replica.refresh_view();
        }
        self.replica.shared.catch_up.applied(self.replica.partition.committed_index());
        if let Some(leading) = &mut self.leading {
            leading.committed(&self.replica, index);
        }
        if effects.is_empty() {
            return;
        }
        for effect in &effects {
            if let CommitEffect::Configured = effect {
                self.replica.warn_of_another_file();
            }
            match &mut self.leading {
                Some(leading) => leading.has_committed(&mut self.replica, effect),
                None if matches!(effect, CommitEffect::Configured) => {
                    self.replica.apply_configuration(None);
                }
                None => {}
            }
        }
        self.replica.show_changes();
        self.rest.hurry();
    }

    /// Replaces everything by a snapshot that a leader sent (already durable here), then replays the log after it.
    fn install(&mut self, snapshot: &Snapshot) -> Result<()> {
        self.step_down("a snapshot was installed");
        self.replica.install(snapshot)?;
        self.replica.shared.catch_up.applied(self.replica.partition.committed_index());
        Ok(())
    }

    /// The writes that have arrived wait for the sequencer, or are told who leads.
    pub(in crate::worker) fn take_writes(&mut self) {
        if !self.inbox.arrived_writes.is_empty() {
            self.rest.stir(self.replica.shared.env.clock.grantor_ns());
        }
        let writes = self.inbox.arrived_writes.drain(..);
        match &mut self.leading {
            Some(leading) => writes.for_each(|write| leading.sequencer.push(write)),
            None => {
                let leader = self.replica.shared.leader();
                writes.for_each(|write| write.reply.send(WriteFate::NotLeader(leader)));
            }
        }
    }
}

/// What only a leader can do.
fn refuse(replica: &Replica, event: Event) {
    fn no<T>(done: tokio::sync::oneshot::Sender<Result<T>>) {
        let _ = done.send(Err(not_leading()));
    }
    match event {
        Event::Filters(done) => drop(done.send(None)),
        Event::Freeze { done, .. } => no(done),
        Event::EnsureTable { done, .. }
        | Event::OpenSession { done, .. }
        | Event::Place { done, .. }
        | Event::Configure { done, .. }
        | Event::RaiseFormat { done, .. }
        | Event::OpenCut { done, .. }
        | Event::EndCut { done, .. }
        | Event::MayAdopt { done }
        | Event::ChangeVoters { done, .. } => no(done),
        Event::HandOver { done, .. } | Event::RenewCut { done, .. } => no(done),
        Event::BeginLoad { done, .. } => no(done),
        Event::HasLoaded { done, .. } => no(done),
        Event::Adopt { done, .. } | Event::ChangeTable { done, .. } => {
            drop(done.send(Adopted::NotNow(not_leading())))
        }
        Event::Compact { done, .. } => done.into_iter().for_each(no),
        Event::Flushed { result, .. } => replica.drop_tables(result),
        Event::Compacted { result, .. } => replica.drop_tables(result),
        // Whoever asked finds its channel closed; the rest was every replica's.
        Event::Successors(_)
        | Event::VotersAnswered { .. }
        | Event::Appended(_)
        | Event::Truncated(_)
        | Event::Committed(_)
        | Event::Install { .. }
        | Event::Acknowledged
        | Event::LookAtLog { .. }
        | Event::Stop(_) => {}
    }
}
