//! The beginning and the end of this node's leadership of the partition.
//!
//! Invariant: service, lease and desk end first; only then is anybody told.

use sextant_common::mutant::{self, Mutant};
use std::sync::atomic::Ordering;

use openraft::ServerState;
use sextant_common::env::ProbeEvent;
use sextant_common::error::Error;
use sextant_common::ids::{DEFAULT_TABLE, DEFAULT_TABLE_NAME, Epoch, Serial};
use sextant_common::manifest::TableOptions;

use super::Worker;
use crate::command::Command;
use crate::replica::WriteOutcome;

/// What leadership adds.
pub(super) struct Lead {
    pub term: u64,
    pub epoch: Epoch,
    /// Index of the leader's own first entry.
    pub first_index: u64,
    /// Nothing is published before this time (grantor's clock): leases of a former ring incarnation.
    pub hold_until_ns: u64,
    /// Since when it leads (grantor's clock).
    pub since_ns: u64,
}

impl Worker {
    pub(super) fn follow_leadership(&mut self, state: ServerState, term: u64, leader: Option<u64>) {
        // Raft may lead a little longer than this node does.
        let leader = leader.filter(|node| *node != self.shared.node || !self.has_resigned(term));
        self.shared.set_leader(term, leader.unwrap_or(0));
        let leads = state == ServerState::Leader && leader == Some(self.shared.node);
        let caught_up = self.partition.last().term == term;
        match &self.lead {
            Some(lead) if !leads || lead.term != term => self.step_down("another leader was elected"),
            _ => {}
        }
        if leads && caught_up && self.lead.is_none() {
            let voters = self.voters_at_the_beginning(term);
            let epoch = Epoch { term, incarnation: 1 };
            let (mode, drift_ppm) = (self.configuration().mode, self.configuration().drift_ppm);
            self.shared.desk.open(epoch, mode, drift_ppm);
            self.shared.lease.begin(term, self.shared.node, voters);
            self.own_durable = 0;
            let first_index = self.term_start.index;
            let since_ns = self.shared.env.clock.grantor_ns();
            self.lead = Some(Lead { term, epoch, first_index, hold_until_ns: 0, since_ns });
            if self.partition.committed_index() >= first_index
                || mutant::active(Mutant::FiltersOfCommittedOnly)
            {
                self.shared.desk.set_manifest(self.partition.manifest().clone());
            }
            self.ensure_configuration(term);
            self.ensure_default_table(term);
            self.metrics.elections_won.inc();
            self.shared.env.tell(|| ProbeEvent::Led {
                partition: self.shared.id,
                node: self.shared.node,
                term,
            });
            tracing::info!(partition = %self.shared.id, term, "leads");
        }
        if let Some(lead) = &self.lead {
            let configured_at = self.partition.configuration().map_or(0, |(_, at)| at);
            if self.own_durable < configured_at
                && let Some(durable) = self.matched(self.shared.node)
            {
                self.own_durable = durable;
                self.shared.lease.durable(lead.term, durable);
            }
            self.shared.lease.renew_if_alone(self.shared.env.clock.holder_ns());
        }
    }

    /// Every cluster has the default table, under the same id in every partition. Idempotent, so each leader sees to it.
    fn ensure_default_table(&mut self, term: u64) {
        if self.partition.manifest().table(DEFAULT_TABLE).is_none() {
            let (name, options) = (DEFAULT_TABLE_NAME.to_owned(), TableOptions::default());
            self.command(Command::EnsureTable { term, name, options, id: Some(DEFAULT_TABLE) }, None);
        }
    }

    /// Ends leadership: leases and service first, then everybody who waits is told.
    pub(super) fn step_down(&mut self, why: &'static str) {
        self.shared.serving_term.store(0, Ordering::Release);
        self.shared.lease.end();
        self.shared.desk.close();
        self.shared.news.notify_waiters();
        if let Some(lead) = self.lead.take() {
            self.drop_voters_change(lead.term);
            let unpublished = self.queue.iter().count();
            tracing::info!(partition = %self.shared.id, term = lead.term, unpublished, "no longer leads: {why}");
        }
        // Dropping its writes tells their clients that the outcome is unknown.
        self.proposal = None;
        for control in self.control.drain(..).chain(self.internal.drain(..)) {
            control.failed();
        }
        for entry in self.queue.iter_mut() {
            entry.waiting.unknown();
            // Whatever leases bound it have ended before there can be another leader.
            entry.serial = Serial(0);
        }
        for deferred in self.deferred.drain(..) {
            deferred.reply.sink.send(WriteOutcome::Retry(why));
        }
        self.refuse_as_no_leader();
        for (_, waiters) in self.compact_waiters.drain() {
            for waiter in waiters {
                let _ = waiter.send(Err(Error::retry("leadership changed")));
            }
        }
        self.freezing.clear();
        self.flushing.clear();
        self.flush_errors.clear();
        self.compacting.clear();
        self.publish_at_ns = None;
        self.drop_shortening();
    }

    /// Whoever waits for its turn is told who leads.
    pub(super) fn refuse_as_no_leader(&mut self) {
        let leader = self.shared.leader();
        self.backlog.drain().for_each(|write| write.reply.send(WriteOutcome::NotLeader(leader)));
    }
}
