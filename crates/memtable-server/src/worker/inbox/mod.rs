//! What wakes a worker; what it does about each event is in [`events`].

mod events;

use std::time::Duration;

use openraft::async_runtime::WatchReceiver;
use sextant_raft_log::TypeConfig;
use tokio::sync::mpsc;

use super::leading::Leading;
use super::leading::sequencer::BACKLOG_MAX;
use super::proposal::Refused;
use crate::raft::Raft;
use crate::replica::{Event, QueuedWrite};

/// Events handled before the worker looks at its other duties.
const EVENTS_MAX: usize = 512;

type RaftWatch =
    openraft::alias::WatchReceiverOf<TypeConfig, openraft::metrics::RaftServerMetrics<TypeConfig>>;

pub(in crate::worker) struct Inbox {
    events: mpsc::UnboundedReceiver<Event>,
    writes: mpsc::Receiver<QueuedWrite>,
    /// What Raft says of itself.
    pub raft: RaftWatch,
    /// Taken from the queues, not yet handled.
    arrived_events: Vec<Event>,
    arrived_writes: Vec<QueuedWrite>,
}

/// What a worker woke up for.
pub(in crate::worker) enum Woken {
    Events,
    RaftStopped,
    /// Raft refused what was proposed.
    Refused(Refused),
    /// A write, a change of Raft's, or it was time.
    Nothing,
    /// Nobody can say anything any more.
    Closed,
}

impl Inbox {
    pub fn new(
        events: mpsc::UnboundedReceiver<Event>,
        writes: mpsc::Receiver<QueuedWrite>,
        raft: &Raft,
    ) -> Self {
        let (arrived_events, arrived_writes) = (Vec::with_capacity(EVENTS_MAX), Vec::new());
        Self { events, writes, raft: raft.server_metrics(), arrived_events, arrived_writes }
    }

    /// Waits for the first of these, but not longer than `at_most`.
    pub async fn woken(&mut self, mut leading: Option<&mut Leading>, at_most: Duration) -> Woken {
        let wants_writes = leading.as_ref().is_none_or(|l| l.sequencer.waiting_writes() < BACKLOG_MAX);
        let refusal = async {
            match &mut leading {
                Some(leading) => leading.sequencer.refusal().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            n = self.events.recv_many(&mut self.arrived_events, EVENTS_MAX) => {
                if n == 0 { Woken::Closed } else { Woken::Events }
            }
            changed = self.raft.changed() => {
                if changed.is_err() { Woken::RaftStopped } else { Woken::Nothing }
            }
            refused = refusal => Woken::Refused(refused),
            n = self.writes.recv_many(&mut self.arrived_writes, BACKLOG_MAX), if wants_writes => {
                if n == 0 { Woken::Closed } else { Woken::Nothing }
            }
            () = tokio::time::sleep(at_most) => Woken::Nothing,
        }
    }

    /// Whatever is in the queue now.
    pub fn take_waiting_events(&mut self) {
        while let Ok(event) = self.events.try_recv() {
            self.arrived_events.push(event);
        }
    }
}
