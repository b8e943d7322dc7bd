//! What a node has while it leads its partition, as one value: made when leadership begins, dropped as a whole when it ends.
//!
//! Its parts own their state and decide purely what they can: [`sequencer`] (what is proposed next), [`publisher`] (answers that
//! wait), [`upkeep`] (freezes, flushes, compactions), [`voters`], [`handover`] and [`configure`].
//!
//! Invariant: service, lease and desk end first; only then is anybody told ([`Leading::end`]).

mod adoption;
mod backlog;
pub(super) mod configure;
mod cuts;
pub(super) mod handover;
pub(super) mod publisher;
mod ring;
pub(super) mod sequencer;
mod ticks;
mod upkeep;
pub(super) mod voters;

use std::sync::atomic::Ordering;

use sextant_common::ids::{DEFAULT_TABLE, DEFAULT_TABLE_NAME, Epoch, Generation, Serial, TableId};
use sextant_common::manifest::TableOptions;
use sextant_rules::probe::ProbeEvent;

use super::replica::{Replica, Seen};
use crate::command::{Command, EnsureTable, OpenSession};
use crate::leadership::leadership_changed;
use crate::lease::ring::Run;
use crate::lease::slots::Slots;
use crate::replica::{Event, FilterSet};
use adoption::{Adoption, Rest};
use configure::Shortening;
use cuts::Cuts;
use handover::{FullLog, Handover, TRANSFERRED};
use publisher::Publisher;
use sequencer::Sequencer;
use ticks::Ticks;
use voters::{Memberships, Voters};

pub(super) use upkeep::Upkeep;

/// A term that this node leads.
pub(super) struct Tenure {
    pub term: u64,
    pub epoch: Epoch,
    /// Index of the leader's own first entry.
    pub first_index: u64,
    /// Nothing is published before this time (grantor's clock): leases of a former ring incarnation.
    pub hold_until_ns: u64,
    /// Since when it leads (grantor's clock).
    pub since_ns: u64,
}

pub(super) struct Leading {
    pub tenure: Tenure,
    pub sequencer: Sequencer,
    pub publisher: Publisher,
    pub upkeep: Upkeep,
    ticks: Ticks,
    cuts: Cuts,
    voters: Voters,
    handover: Option<Handover>,
    shortening: Option<Shortening>,
    /// Not before this time (grantor's clock) members are asked (again) which formats they read.
    formats_asked_ns: u64,
    adoption: Option<Adoption>,
    adoption_rest: Rest,
    full_log: FullLog,
    /// What was committed when the log's device was seen to hang.
    stalled_at: Option<u64>,
    /// Up to where this leader's own log was last seen durable.
    own_durable: u64,
}

impl Leading {
    /// This node leads `term`, and its own first entry is the last of the log's terms.
    pub fn begin(replica: &Replica, term: u64) -> Self {
        let shared = &replica.shared;
        let epoch = shared.desk.next_epoch(term);
        let (mode, drift_ppm) = (replica.configuration().mode, replica.configuration().drift_ppm);
        // In a term that this node has led before, what Raft was asked for then still counts.
        let voters = replica.standing.counted(term, &Memberships::of(&replica.raft), None);
        shared.desk.open(epoch, mode, drift_ppm);
        shared.lease.begin(term, shared.node, voters);
        let slots = Slots::for_memory(replica.memory_bytes);
        shared.slots.store(Slots::new(slots, replica.partition.last_seq()).into());
        let first_index = replica.term_start.index;
        if replica.partition.committed_index() >= first_index {
            shared.desk.set_manifest(replica.partition.versions().clone());
        }
        let since_ns = shared.env.clock.grantor_ns();
        let mut leading = Self {
            tenure: Tenure { term, epoch, first_index, hold_until_ns: 0, since_ns },
            sequencer: Sequencer::default(),
            publisher: Publisher::default(),
            upkeep: Upkeep::default(),
            ticks: Ticks::begin(replica.partition.tick()),
            cuts: Cuts::default(),
            voters: Voters::default(),
            handover: None,
            shortening: None,
            formats_asked_ns: 0,
            adoption: None,
            adoption_rest: Rest::default(),
            full_log: FullLog::default(),
            stalled_at: None,
            own_durable: 0,
        };
        leading.ensure_configuration(replica);
        leading.ensure_default_table(replica);
        replica.metrics.elections_won.inc();
        shared.env.tell(|| ProbeEvent::Led { partition: shared.id, node: shared.node, term });
        tracing::info!(partition = %shared.id, term, "leads");
        leading
    }

    /// Every cluster has the default table, under the same id in every partition. Idempotent, so each leader sees to it.
    fn ensure_default_table(&mut self, replica: &Replica) {
        if replica.partition.manifest().table(DEFAULT_TABLE).is_none() {
            let options = TableOptions {
                filter_inserts: replica.tuning.default_filter_inserts,
                compression: replica.tuning.default_compression,
                ..TableOptions::default()
            };
            let name = DEFAULT_TABLE_NAME.to_owned();
            let term = self.tenure.term;
            self.command(
                Command::EnsureTable(EnsureTable { term, name, options, id: Some(DEFAULT_TABLE) }),
                None,
            );
        }
    }

    /// Everybody who waits is told. Leases and service have ended already ([`end_service`]).
    pub fn end(mut self, replica: &mut Replica, why: &'static str) {
        let term = self.tenure.term;
        self.voters.end(term, &mut replica.standing);
        let unpublished = replica.queue.iter().count();
        tracing::info!(partition = %replica.shared.id, term, unpublished, "no longer leads: {why}");
        self.sequencer.end(replica.shared.leader());
        for entry in replica.queue.iter_mut() {
            entry.waiting.unknown();
            // Whatever leases bound it have ended before there can be another leader.
            entry.serial = Serial(0);
        }
        self.publisher.refuse_all(why);
        self.upkeep.end();
        if let Some(handover) = self.handover.take() {
            handover.fail(leadership_changed());
        }
        if self.drop_shortening() {
            replica.apply_configuration(None);
        }
    }

    /// The leader's own copy counts for its lease when its log has the lease's length durably.
    pub fn renew_own_lease(&mut self, replica: &Replica) {
        let configured_at = replica.partition.configuration().map_or(0, |(_, at)| at);
        if self.own_durable < configured_at
            && let Some(durable) = replica.matched(replica.shared.node)
        {
            self.own_durable = durable;
            replica.shared.lease.durable(self.tenure.term, durable);
        }
        replica.shared.lease.renew_if_alone(replica.shared.env.clock.holder_ns());
    }

    /// What only a leader can do.
    pub fn handle(&mut self, replica: &mut Replica, event: Event) {
        match event {
            // Whoever asked may have given up: filters are large.
            Event::Filters(done) if done.is_closed() => {}
            Event::Filters(done) => drop(done.send(self.filters(replica))),
            Event::Freeze { table, done } => self.freeze_on_demand(replica, table, done),
            Event::EnsureTable { name, options, id, done } => {
                let term = self.tenure.term;
                let command = Command::EnsureTable(EnsureTable { term, name, options, id });
                self.client_command(replica, command, Some(done));
            }
            Event::OpenSession { session, done } => {
                let term = self.tenure.term;
                let time_ms = replica.shared.env.clock.wall_guess_ns() / 1_000_000;
                self.client_command(
                    replica,
                    Command::OpenSession(OpenSession { term, session, time_ms }),
                    Some(done),
                );
            }
            Event::Flushed { term, table, generation, result } => {
                self.flush_done(replica, term, table, generation, result);
            }
            Event::Place { placement, done } if placement.term != self.tenure.term => {
                drop(done.send(Err(leadership_changed())));
            }
            Event::Place { placement, done } => {
                self.client_command(replica, Command::Placement(placement), Some(done));
            }
            Event::BeginLoad { table, id, done } => drop(done.send(self.begin_load(replica, &table, id))),
            Event::HasLoaded { id, done } => drop(done.send(self.has_loaded(replica, id))),
            Event::MayAdopt { done } => drop(done.send(self.may_adopt(replica))),
            Event::Adopt { load, done } => self.adopt(replica, load, done),
            Event::ChangeTable { table, wanted, done } => self.change_table(replica, table, wanted, done),
            Event::Configure { change, done } => self.configure(replica, &change, done),
            Event::RaiseFormat { term, members, to, done } => {
                self.raise_format(replica, term, &members, to, done);
            }
            Event::OpenCut { wanted, done } => self.begin_cut(replica, wanted, done),
            Event::RenewCut { id, done } => self.renew_cut(replica, id, done),
            Event::EndCut { id, done } => self.end_cut(replica, id, done),
            Event::Compact { table, done } => self.compact_on_demand(replica, table, done),
            Event::Compacted { term, table, inputs, result } => {
                self.compaction_done(replica, term, table, inputs, result);
            }
            Event::Successors(done) => drop(done.send((self.tenure.term, replica.followers()))),
            Event::HandOver { to, done } => self.hand_over_to(replica, to, TRANSFERRED, done),
            Event::ChangeVoters { voters, done } => self.choose_voters(replica, voters, done),
            Event::VotersAnswered { term, result } => self.voters_answered(replica, term, result),
            // Every replica's: the worker has taken them.
            Event::Appended(_)
            | Event::Truncated(_)
            | Event::Committed(_)
            | Event::Install { .. }
            | Event::Acknowledged
            | Event::LookAtLog { .. }
            | Event::Stop(_) => {}
        }
    }

    /// Whether time alone will bring something to do.
    pub fn is_busy(&self) -> bool {
        self.handover.is_some()
            || self.shortening.is_some()
            || self.adoption.is_some()
            || self.voters.are_busy()
            || self.upkeep.is_busy()
            || self.sequencer.is_busy()
            || self.publisher.is_busy()
    }

    /// What an entry of the log did.
    pub fn saw(&mut self, replica: &mut Replica, seen: &Seen) {
        match seen {
            Seen::Nothing => {}
            Seen::Frozen { table, next } => self.frozen(replica, *table, *next),
            Seen::Cut(frozen) => {
                frozen.iter().for_each(|(table, next)| self.frozen(replica, *table, *next));
            }
            Seen::Ignored { serial } => self.ignored(replica, *serial),
            Seen::Configured => self.apply_configuration(replica),
        }
    }

    /// An entry did nothing. `serial`: of the ring entries that its group has put out; 0: none, or it was no group of this leader's.
    fn ignored(&mut self, replica: &mut Replica, serial: Serial) {
        // A freeze that did not fit is due again.
        self.upkeep.freezes_are_due_again();
        self.adoption_was_ignored(replica);
        // Evaluated again, its writes may find no registration, because this group has taken it, leave no bit, and wait for nobody.
        if serial.0 > 0 {
            self.renew_ring(replica);
        }
    }

    fn frozen(&mut self, replica: &Replica, table: TableId, next: Generation) {
        self.upkeep.frozen(table);
        replica.shared.desk.push([Run::Freeze { table, generation: next }]);
        replica.shared.news.notify_waiters();
    }

    /// The log was cut.
    pub fn truncated(&mut self, replica: &mut Replica) {
        self.publisher.refuse_all("leadership changed");
        self.upkeep.freezes_are_due_again();
        self.apply_configuration(replica);
    }

    /// Entries up to `index` were committed.
    pub fn committed(&mut self, replica: &Replica, index: u64) {
        if index >= self.tenure.first_index {
            replica.shared.desk.set_manifest(replica.partition.versions().clone());
        }
    }

    fn filters(&self, replica: &Replica) -> Option<FilterSet> {
        if replica.partition.committed_index() < self.tenure.first_index {
            return None;
        }
        Some(FilterSet {
            epoch: self.tenure.epoch,
            serial: replica.shared.desk.serial(),
            manifest: replica.partition.versions().clone(),
            filters: replica.partition.filters(),
            registration_slots: replica.shared.slots.load().count(),
            tick: self.ticks.announced,
        })
    }
}

/// Leases and service end before anybody is told that leadership has.
pub(super) fn end_service(replica: &Replica) {
    let shared = &replica.shared;
    shared.serving_term.store(0, Ordering::Release);
    shared.lease.end();
    shared.desk.close();
    shared.news.notify_waiters();
}
