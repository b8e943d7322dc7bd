//! Changes of the configuration, as the leader makes them.

use std::collections::BTreeSet;

use sextant_common::error::{Error, Result};
use tokio::sync::oneshot;

use super::{Shortening, Step};
use crate::command::configuration::ConfigurationChange;
use crate::command::{Command, Configuration, ConfigurationRules, Configure};
use crate::leadership::leadership_changed;
use crate::worker::leading::Leading;
use crate::worker::replica::Replica;

impl Leading {
    /// A configuration was appended, truncated or committed, or is lived by ahead of that.
    pub fn apply_configuration(&mut self, replica: &mut Replica) {
        let cap = self.shortening.as_ref().map(|s| &s.configuration);
        if replica.apply_configuration(cap) {
            self.renew_ring(replica);
        }
    }

    /// A configuration entry was committed.
    pub fn configured(&mut self, replica: &mut Replica) {
        let revision = replica.partition.configuration().map_or(0, |(c, _)| c.revision);
        if self.shortening.as_ref().is_some_and(|s| s.configuration.revision <= revision) {
            self.shortening = None;
        }
        self.apply_configuration(replica);
    }

    /// The first leader of a partition writes down what its file says.
    pub fn ensure_configuration(&mut self, replica: &Replica) {
        if replica.partition.configurations().next().is_none() {
            // The history of the partition begins with this entry.
            let lineage = replica.shared.env.rng.nonzero_u64();
            let configuration = Configuration { lineage, ..replica.founding.clone() };
            self.command(Command::Configure(Configure { term: self.tenure.term, configuration }), None);
        }
    }

    pub fn configure(
        &mut self,
        replica: &mut Replica,
        change: &ConfigurationChange,
        done: oneshot::Sender<Result<()>>,
    ) {
        let configuration = match self.plan(replica, change) {
            Ok(Some(configuration)) => configuration,
            nothing_to_do => return drop(done.send(nothing_to_do.map(drop))),
        };
        let abstention_ns = replica.configuration().abstention_ns();
        if configuration.abstention_ns() >= abstention_ns {
            self.command(Command::Configure(Configure { term: self.tenure.term, configuration }), Some(done));
            return;
        }
        let ready_at_ns = replica.shared.env.clock.grantor_ns() + abstention_ns;
        self.shortening = Some(Shortening { configuration, done: Some(done), ready_at_ns });
        self.apply_configuration(replica);
    }

    /// The configuration that leaves these servers out; None: that is in effect.
    pub fn plan_leaving_out(
        &self,
        replica: &Replica,
        servers: BTreeSet<u64>,
    ) -> Result<Option<Configuration>> {
        Ok(self.to_be_changed(replica)?.leaving_out(servers))
    }

    /// None: it is so already.
    fn plan(&self, replica: &Replica, change: &ConfigurationChange) -> Result<Option<Configuration>> {
        let current = self.to_be_changed(replica)?;
        let next = current.changed(change, replica.heartbeat_ms)?;
        Ok((!next.same(current)).then_some(next))
    }

    /// What is in effect, if nothing else is about to be.
    pub(super) fn to_be_changed<'r>(&self, replica: &'r Replica) -> Result<&'r Configuration> {
        let Some((current, _)) = replica.partition.configuration() else {
            return Err(Error::retry("the partition has no configuration yet"));
        };
        if self.shortening.is_some()
            || replica.partition.configurations().count() > 1
            || self.sequencer.has_own(|command| matches!(command, Command::Configure(_)))
        {
            return Err(Error::retry("another change of the configuration is under way"));
        }
        Ok(current)
    }

    /// Writes a shortening to the log when its time has come.
    pub fn shorten_when_due(&mut self, replica: &mut Replica, now_ns: u64) {
        let Some(shortening) = &mut self.shortening else { return };
        match shortening.next(now_ns) {
            Step::Wait => {}
            Step::Drop => {
                self.shortening = None;
                self.apply_configuration(replica);
            }
            Step::Write => {
                // It stays in force here until the entry takes effect.
                let done = shortening.done.take();
                let configuration = shortening.configuration.clone();
                self.command(Command::Configure(Configure { term: self.tenure.term, configuration }), done);
            }
        }
    }

    /// Leadership ends: a change that is not in the log yet is none. Whether there was one.
    pub fn drop_shortening(&mut self) -> bool {
        let Some(shortening) = self.shortening.take() else { return false };
        if let Some(done) = shortening.done {
            let _ = done.send(Err(leadership_changed()));
        }
        true
    }
}
