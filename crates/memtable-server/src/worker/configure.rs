//! The replicated configuration takes effect, and is changed (rules: `command::configuration`).

use std::collections::BTreeSet;

use sextant_common::error::{Error, ErrorKind, Result};
use tokio::sync::oneshot;

use super::Worker;
use crate::command::configuration::Change;
use crate::command::{Command, Configuration};
use crate::leadership::Terms;

/// A change that makes leases shorter: the leader lives by it already, and writes it to the log when the longer ones are over.
pub(super) struct Shortening {
    configuration: Configuration,
    /// None: it is on its way into the log.
    done: Option<oneshot::Sender<Result<()>>>,
    ready_at_ns: u64,
}

impl Worker {
    /// The configuration in effect; before there is one, what the file says.
    pub(super) fn configuration(&self) -> &Configuration {
        self.partition.configuration().map_or(&self.founding, |(c, _)| c)
    }

    /// Brings the guards, the desk and the limits in line with the log. To be called when a configuration was appended,
    /// truncated or committed.
    pub(super) fn apply_configuration(&mut self) {
        let in_effect = self.partition.configuration();
        let cap = self.shortening.as_ref().map(|s| &s.configuration);
        // The leader takes the shortest of all that may hold; a voter abstains for the longest.
        let shortest = self.partition.configurations().chain(cap).min_by_key(|c| c.leader_lease_ns());
        let longest = self.partition.configurations().map(Configuration::abstention_ns).max();
        let terms = match (in_effect, shortest) {
            (Some((_, configured_at)), Some(shortest)) => Terms {
                lease_ns: shortest.leader_lease_ns(),
                abstention_ns: shortest.abstention_ns(),
                configured_at,
            },
            _ => Terms::default(),
        };
        let founding = if in_effect.is_none() { self.founding.abstention_ns() } else { 0 };
        self.shared.guard.set_abstention_ns(longest.unwrap_or(0).max(founding));
        self.shared.lease.set_terms(terms);

        let configuration = self.configuration().clone();
        self.memory_bytes = usize::try_from(configuration.memory_bytes).unwrap_or(usize::MAX);
        let before = self.shared.configuration.swap(configuration.clone().into());
        if self.lead.is_some()
            && (before.mode, before.drift_ppm) != (configuration.mode, configuration.drift_ppm)
        {
            self.renew_ring();
        }
    }

    /// A configuration entry was committed.
    pub(super) fn configured(&mut self) {
        let Some((configuration, _)) = self.partition.configuration() else { return };
        if !configuration.same(&self.founding) && configuration.revision == 1 {
            tracing::warn!(
                partition = %self.shared.id,
                "the configuration file's lease lengths or memory limit are not the cluster's, which count: \
                 `sextant admin configure` changes them"
            );
        }
        let revision = configuration.revision;
        if self.shortening.as_ref().is_some_and(|s| s.configuration.revision <= revision) {
            self.shortening = None;
        }
        self.apply_configuration();
    }

    /// The first leader of a partition writes down what its file says.
    pub(super) fn ensure_configuration(&mut self, term: u64) {
        if self.partition.configurations().next().is_none() {
            // The history of the partition begins with this entry.
            let lineage = self.shared.env.rng.nonzero_u64();
            let configuration = Configuration { lineage, ..self.founding.clone() };
            self.command(Command::Configure { term, configuration }, None);
        }
    }

    pub(super) fn configure(&mut self, change: &Change, done: oneshot::Sender<Result<()>>) {
        match self.plan(change) {
            Err(e) => {
                let _ = done.send(Err(e));
            }
            Ok(None) => {
                let _ = done.send(Ok(()));
            }
            Ok(Some(configuration)) => {
                let abstention_ns = self.configuration().abstention_ns();
                if configuration.abstention_ns() >= abstention_ns {
                    let term = self.lead.as_ref().map_or(0, |l| l.term);
                    self.command(Command::Configure { term, configuration }, Some(done));
                    return;
                }
                let ready_at_ns = self.shared.env.clock.grantor_ns() + abstention_ns;
                self.shortening = Some(Shortening { configuration, done: Some(done), ready_at_ns });
                self.apply_configuration();
            }
        }
    }

    /// The configuration that leaves these servers out; None: that is in effect.
    pub(super) fn plan_leaving_out(&self, servers: BTreeSet<u64>) -> Result<Option<Configuration>> {
        Ok(self.to_be_changed()?.leaving_out(servers))
    }

    /// None: it is so already.
    fn plan(&self, change: &Change) -> Result<Option<Configuration>> {
        let current = self.to_be_changed()?;
        let next = current.changed(change, self.heartbeat_ms)?;
        Ok((!next.same(current)).then_some(next))
    }

    /// What is in effect, if nothing else is about to be.
    fn to_be_changed(&self) -> Result<&Configuration> {
        if self.lead.is_none() {
            return Err(Error::new(ErrorKind::NotLeader, "this server does not lead the partition"));
        }
        let Some((current, _)) = self.partition.configuration() else {
            return Err(Error::retry("the partition has no configuration yet"));
        };
        let proposed = |c: &super::Control| matches!(c.command, Command::Configure { .. });
        if self.shortening.is_some()
            || self.partition.configurations().count() > 1
            || self.internal.iter().any(proposed)
            || self.proposal.as_ref().is_some_and(|p| p.is_of(proposed))
        {
            return Err(Error::retry("another change of the configuration is under way"));
        }
        Ok(current)
    }

    /// Writes a shortening to the log when its time has come.
    pub(super) fn shorten_when_due(&mut self, now_ns: u64) {
        let Some(shortening) = &mut self.shortening else { return };
        let Some(done) = &shortening.done else { return };
        if done.is_closed() {
            // Nobody waits any more: then nothing is changed.
            self.shortening = None;
            self.apply_configuration();
        } else if now_ns >= shortening.ready_at_ns {
            // It stays in force here until the entry takes effect.
            let done = shortening.done.take();
            let configuration = shortening.configuration.clone();
            let term = self.lead.as_ref().map_or(0, |l| l.term);
            self.command(Command::Configure { term, configuration }, done);
        }
    }

    /// Leadership ends: a change that is not in the log yet is none.
    pub(super) fn drop_shortening(&mut self) {
        if let Some(shortening) = self.shortening.take() {
            if let Some(done) = shortening.done {
                let _ = done.send(Err(Error::retry("leadership changed")));
            }
            self.apply_configuration();
        }
    }
}
