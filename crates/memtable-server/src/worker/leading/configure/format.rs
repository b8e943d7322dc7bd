//! The format is raised: by an operator, or by itself in a partition that is new.
//!
//! Invariant: an entry that raises it is proposed only if every member has said, to this leader in this term, that it can read
//! it, and no other member is about to be added.

use std::collections::BTreeMap;

use sextant_common::error::{Error, Result};
use tokio::sync::oneshot;

use crate::command::{Command, Configuration, ConfigurationRules, Configure};
use crate::leadership::leadership_changed;
use crate::maintenance::ask_formats;
use crate::replica::Event;
use crate::worker::leading::Leading;
use crate::worker::leading::voters::Memberships;
use crate::worker::replica::Replica;

/// How soon the members of a new partition are asked again.
const ASK_AGAIN_NS: u64 = 500_000_000;

impl Leading {
    pub fn raise_format(
        &mut self,
        replica: &Replica,
        term: u64,
        members: &BTreeMap<u64, u64>,
        to: u32,
        done: oneshot::Sender<Result<()>>,
    ) {
        match self.plan_format(replica, term, members, to) {
            Ok(Some(configuration)) => {
                self.command(Command::Configure(Configure { term, configuration }), Some(done));
            }
            nothing_to_do => drop(done.send(nothing_to_do.map(drop))),
        }
    }

    fn plan_format(
        &self,
        replica: &Replica,
        term: u64,
        members: &BTreeMap<u64, u64>,
        to: u32,
    ) -> Result<Option<Configuration>> {
        if term != self.tenure.term {
            return Err(leadership_changed());
        }
        let memberships = Memberships::of(&replica.raft);
        let named = memberships.effective.membership().nodes().map(|(id, node)| (*id, node.incarnation));
        if self.voters.are_changing()
            || replica.standing.appended > memberships.index()
            || !named.eq(members.iter().map(|(id, incarnation)| (*id, *incarnation)))
        {
            return Err(Error::retry("the members are changing"));
        }
        Ok(self.to_be_changed(replica)?.raised(to))
    }

    /// A new partition has the newest format that all its members can read, as soon as they have said so.
    pub fn settle_format(&mut self, replica: &Replica, now_ns: u64) {
        let is_open = replica.partition.configuration().is_some_and(|(c, _)| c.format_open);
        if !is_open || now_ns < self.formats_asked_ns {
            return;
        }
        self.formats_asked_ns = now_ns + ASK_AGAIN_NS;
        let (shared, raft, network) = (replica.shared.clone(), replica.raft.clone(), replica.network.clone());
        let (term, events) = (self.tenure.term, replica.background.events.clone());
        replica.background.spawn(async move {
            let formats = ask_formats(&shared, &raft, &network).await;
            // (They have a part of the log, which somebody may open again when this server has stopped.)
            drop((raft, network));
            let Some(to) = formats.of_all() else { return };
            let (done, settled) = oneshot::channel();
            let _ = events.send(Event::RaiseFormat { term, members: formats.members(), to, done });
            if let Ok(Err(e)) = settled.await {
                tracing::debug!(partition = %shared.id, "the format is not settled yet: {e}");
            }
        });
    }
}
