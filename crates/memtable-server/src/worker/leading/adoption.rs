//! What no bit leads to is adopted: everybody sees it from one moment on (design, section 14). That is a bulk load, whose SSTables come
//! on top of what their table has, and a table that is dropped, or gets other options.
//!
//! Owns the order of the steps, and what is held back meanwhile: leases are granted no more, and no group is formed, until it is
//! applied, or given up before it was proposed. Does not own how SSTables of loads were written (`maintenance::loads`).
//!
//! Invariants: when it is proposed no lease lives, and nothing is under way; everything written to the table before is in the manifest,
//! unless the table goes with it. What is proposed is given up no more. Leases are granted again by a ring of another epoch, for the
//! manifest that has it.

use sextant_common::configuration::Feature;
use sextant_common::error::{Error, ErrorKind, Result};
use sextant_common::ids::{Generation, LoadId, PartitionId, TableId};
use sextant_common::key_range::KeyRange;
use sextant_common::load;
use sextant_common::manifest::{Generations, SstList, SstMeta};
use sextant_rules::mutant::{self, Mutant};
use sextant_rules::probe::ProbeEvent;
use tokio::sync::oneshot;

use super::Leading;
use super::upkeep::generations;
use crate::command::{Alteration, ChangeTable, Command, Load};
use crate::leadership::not_leading;
use crate::lease::ring::Run;
use crate::replica::{Adopted, LoadJob, TableWish, Written};
use crate::worker::replica::Replica;

/// The partition that gives tables their ids.
const ALLOCATOR: PartitionId = PartitionId(0);

/// How long writes are held back at most. Then the load waits for another time.
const HOLD_NS: u64 = 3_000_000_000;

/// After so long without an attempt it is as if there had been none.
const FORGIVEN_NS: u64 = 60_000_000_000;
/// Then writes are held back for a fifth of the time at most, however often whoever loads tries.
const REST_MAX_NS: u64 = 4 * HOLD_NS;

/// Writes were held back in vain: they go on for a while before they are held back again, longer each time.
#[derive(Debug, Default)]
pub(super) struct Rest {
    until_ns: u64,
    length_ns: u64,
}

impl Rest {
    fn begin(&mut self, now_ns: u64) {
        if now_ns.saturating_sub(self.until_ns) >= FORGIVEN_NS {
            self.length_ns = 0;
        }
        self.length_ns = (2 * self.length_ns).clamp(HOLD_NS, REST_MAX_NS);
        self.until_ns = now_ns.saturating_add(self.length_ns);
    }

    fn check(&self, now_ns: u64) -> Result<()> {
        match self.until_ns.saturating_sub(now_ns).div_ceil(1_000_000) {
            0 => Ok(()),
            ms => Err(Error::retry(format!(
                "writes were held back in vain a moment ago, and have to go on: try again in {ms} ms"
            ))),
        }
    }
}

/// What is to be seen.
enum Adopting {
    Load(Written),
    Change(TableId, TableWish),
}

impl Adopting {
    fn table(&self) -> TableId {
        match self {
            Adopting::Load(load) => load.table,
            Adopting::Change(table, _) => *table,
        }
    }

    /// What its table has goes with it, so none of that need be durable.
    fn is_drop(&self) -> bool {
        matches!(self, Adopting::Change(_, TableWish::Gone))
    }
}

pub(super) struct Adoption {
    what: Adopting,
    until_ns: u64,
    proposed: bool,
    done: oneshot::Sender<Adopted>,
}

/// What decides what comes next. (Of a table that is dropped it does not matter what its memtables hold.)
#[derive(Clone, Copy, Debug)]
struct Facts {
    /// The table's active memtable holds something.
    is_written_to: bool,
    /// Memtables of it are frozen, or about to be.
    is_flushing: bool,
    /// A cut is on its way into the manifest, and has the table.
    is_cutting: bool,
    /// A lease may be in use.
    is_leased: bool,
    /// Something is proposed that the log does not have yet.
    is_proposing: bool,
    now_ns: u64,
    until_ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Freeze,
    Wait,
    Propose,
    GiveUp,
}

fn next_step(facts: Facts) -> Step {
    match facts {
        Facts {
            is_written_to: false,
            is_flushing: false,
            is_cutting: false,
            is_leased: false,
            is_proposing: false,
            ..
        } => Step::Propose,
        Facts { now_ns, until_ns, .. } if now_ns >= until_ns => Step::GiveUp,
        Facts { is_written_to: true, is_flushing: false, is_proposing: false, .. } => Step::Freeze,
        _ => Step::Wait,
    }
}

/// For which keys each of a load's tables answers, newest first: for those up to the next one's if there is nothing below, so that each
/// is a column; otherwise for all, as a flush does, because what lies above is never narrower than what lies below.
fn placed(loaded: Vec<SstMeta>, below: &SstList, flushed: Generation) -> Vec<SstMeta> {
    let mut ssts = loaded;
    if below.is_empty() {
        let starts: Vec<_> = ssts.iter().skip(1).map(|sst| sst.min_key.clone()).collect();
        let generations = Generations { first: generations(below, flushed).first, last: flushed };
        let mut start = bytes::Bytes::new();
        for (at, sst) in ssts.iter_mut().enumerate() {
            let end = starts.get(at).cloned().unwrap_or_default();
            sst.range = KeyRange { start: std::mem::replace(&mut start, end.clone()), end };
            sst.generations = generations;
        }
    }
    ssts.reverse();
    ssts
}

impl Leading {
    /// What a load of this table would be of, if it began now.
    pub(super) fn begin_load(&self, replica: &Replica, table: &str, id: LoadId) -> Result<LoadJob> {
        self.check_serves(replica)?;
        replica.configuration().check_allows(Feature::Load)?;
        if replica.partition.has_loaded(id) {
            return Err(Error::invalid("the load was committed already"));
        }
        let manifest = replica.partition.manifest();
        let entry = manifest
            .table_by_name(table)
            .ok_or_else(|| Error::new(ErrorKind::UnknownTable, format!("no table {table:?}")))?;
        let current = replica.partition.table(entry.table).map_or(Generation(1), |t| t.generation());
        let now_ns = replica.shared.env.clock.grantor_ns();
        let number = replica.shared.load.number(id, self.tenure.term, now_ns)?;
        let count = replica.shared.load.count();
        let first = load::first_generation(self.tenure.term, number, current);
        let seq = load::seq_ahead(replica.partition.last_seq() + 1);
        let (Some(first), Some(seq)) = (first, seq) else {
            return Err(Error::unavailable("this leader has begun too many loads: transfer the leadership"));
        };
        Ok(LoadJob {
            count,
            term: self.tenure.term,
            epoch: self.tenure.epoch,
            table: entry.table,
            name: entry.name.clone(),
            options: entry.options.clone(),
            plan: replica.partition.last(),
            lineage: replica.configuration().lineage,
            first,
            seq,
        })
    }

    /// Whether a load is seen. An error: that is not decided.
    pub(super) fn has_loaded(&self, replica: &Replica, id: LoadId) -> Result<bool> {
        self.check_serves(replica)?;
        if self.adoption.is_some() || replica.partition.is_adopting() {
            return Err(Error::retry("a load is being committed"));
        }
        Ok(replica.partition.has_loaded(id))
    }

    /// Whether a load may be adopted now, as far as can be said before its table is flushed for it.
    pub(super) fn may_adopt(&self, replica: &Replica) -> Result<()> {
        self.check_serves(replica)?;
        self.adoption_rest.check(replica.shared.env.clock.grantor_ns())
    }

    /// Everything that was in its log when it began is applied.
    fn check_serves(&self, replica: &Replica) -> Result<()> {
        match replica.shared.serving() {
            Some(term) if term == self.tenure.term => Ok(()),
            _ => Err(not_leading()),
        }
    }

    /// Begins to hold back what must not be under way when the load is seen.
    pub(super) fn adopt(&mut self, replica: &Replica, load: Written, done: oneshot::Sender<Adopted>) {
        if replica.partition.has_loaded(load.id) {
            return drop(done.send(Adopted::Seen));
        }
        match self.tenure.term == load.term {
            true => self.begin_adoption(replica, Adopting::Load(load), done),
            false => drop(done.send(Adopted::NotNow(not_leading()))),
        }
    }

    /// The same, when a table is to be dropped, or to have other options.
    pub(super) fn change_table(
        &mut self,
        replica: &Replica,
        table: TableId,
        wanted: TableWish,
        done: oneshot::Sender<Adopted>,
    ) {
        self.begin_adoption(replica, Adopting::Change(table, wanted), done);
    }

    fn begin_adoption(&mut self, replica: &Replica, what: Adopting, done: oneshot::Sender<Adopted>) {
        let busy = || Error::retry("a load, or another change of a table, is being committed");
        let refused = match self.check_serves(replica) {
            Ok(()) if self.adoption.is_some() || replica.partition.is_adopting() => Some(busy()),
            Ok(()) if self.handover.is_some() => Some(not_leading()),
            Ok(()) => self.adoption_rest.check(replica.shared.env.clock.grantor_ns()).err(),
            Err(e) => Some(e),
        };
        if let Some(e) = refused {
            return drop(done.send(Adopted::NotNow(e)));
        }
        let there = replica.partition.manifest().table(what.table());
        match &what {
            Adopting::Change(table, wanted) if is_so(replica, *table, wanted) => {
                return drop(done.send(Adopted::Seen));
            }
            // (Partition 0 has every table first: what it does not know there never was. Elsewhere it may be on its way.)
            Adopting::Change(_, TableWish::Gone) if replica.shared.id != ALLOCATOR => {}
            _ if there.is_none() => {
                let e = Error::new(ErrorKind::UnknownTable, "there is no such table");
                return drop(done.send(Adopted::NotNow(e)));
            }
            _ => {}
        }
        let shared = &replica.shared;
        let until_ns = shared.env.clock.grantor_ns() + HOLD_NS;
        shared.desk.withhold(true);
        // Whoever acknowledges it uses no lease from before.
        shared.desk.push([Run::Invalidated { slots: vec![0] }]);
        shared.news.notify_waiters();
        shared.env.tell(|| ProbeEvent::LoadHeld { partition: shared.id, node: shared.node });
        self.adoption = Some(Adoption { what, until_ns, proposed: false, done });
    }

    /// No group is formed while a load is on its way, or a change of a table: it would be newer, and know nothing of it.
    pub(super) fn holds_groups(&self, replica: &Replica) -> bool {
        self.adoption.is_some() || replica.partition.is_adopting()
    }

    pub fn see_to_adoption(&mut self, replica: &Replica) {
        let Some(Adoption { what, until_ns, proposed, .. }) = &self.adoption else { return };
        if *proposed {
            return self.withdraw_adoption_when_full(replica);
        }
        let (table, is_drop) = (what.table(), what.is_drop());
        let state = replica.partition.table(table);
        let is_change = matches!(what, Adopting::Change(..));
        let over_memtable = is_change && mutant::active(Mutant::OptionsOverMemtable);
        let now = replica.shared.now();
        let facts = Facts {
            is_written_to: !(is_drop || over_memtable) && state.is_some_and(|s| !s.active.is_empty()),
            is_flushing: self.upkeep.is_freezing(table)
                || !is_drop && state.is_some_and(|s| !s.frozen.is_empty()),
            is_cutting: is_drop && replica.partition.is_cutting(),
            is_leased: (replica.shared.desk.holders(now).1 > 0 || now.mono_ns < self.tenure.hold_until_ns)
                && !mutant::active(Mutant::LoadUnderLease),
            is_proposing: self.sequencer.proposal.is_some(),
            now_ns: now.mono_ns,
            until_ns: *until_ns,
        };
        match next_step(facts) {
            Step::Freeze => self.freeze(replica, table, None),
            Step::Wait => {}
            Step::Propose => self.propose_adoption(replica),
            Step::GiveUp => {
                self.give_adoption_up(replica, Error::retry("leases or flushes took too long: try again"));
            }
        }
    }

    /// Every load, and every change of a table, goes into the log from here.
    fn propose_adoption(&mut self, replica: &Replica) {
        let Some(adoption) = &self.adoption else { return };
        let table = adoption.what.table();
        let generation = replica.partition.table(table).map_or(Generation(1), |t| t.generation());
        let next_seq = replica.partition.last_seq() + 1;
        let Written { id, seq, ssts, first, .. } = match &adoption.what {
            Adopting::Load(written) => written,
            Adopting::Change(_, wanted) => {
                let term = self.tenure.term;
                let entry = replica.partition.manifest().table(table);
                let alteration = match (wanted, entry) {
                    (TableWish::Gone, _) => Alteration::Drop,
                    (TableWish::Altered(change), Some(entry)) => {
                        Alteration::Options(change.applied_to(&entry.options))
                    }
                    (TableWish::Altered(_), None) => {
                        return self.give_adoption_up(replica, Error::retry("the table was dropped"));
                    }
                };
                let change = ChangeTable { term, table, next_seq, generation, alteration };
                return self.queue_adoption(replica, Command::ChangeTable(change));
            }
        };
        if generation >= *first || next_seq > *seq {
            let e = Error::retry("too much was written since the load began: begin again");
            return self.give_adoption_up(replica, e);
        }
        let below = replica.partition.manifest().table(table).map(|t| t.ssts.clone()).unwrap_or_default();
        let flushed = Generation(first.0 + (ssts.len() as u64).max(1) - 1);
        let load = Load {
            term: self.tenure.term,
            table,
            id: *id,
            generation,
            next_seq,
            seq: *seq,
            flushed,
            ssts: placed(ssts.clone(), &below, flushed),
        };
        self.queue_adoption(replica, Command::Load(load));
    }

    /// It is the next command, if the log has room for it. (It does not wait for room: leases and groups are held back meanwhile.)
    fn queue_adoption(&mut self, replica: &Replica, command: Command) {
        if let Err(e) = replica.log_takes_command(command.encode().len()) {
            return self.give_adoption_up(replica, e);
        }
        if let Some(adoption) = &mut self.adoption {
            adoption.proposed = true;
        }
        self.command(command, None);
    }

    /// It waits for its turn, and other partitions of this server have filled the log meanwhile.
    fn withdraw_adoption_when_full(&mut self, replica: &Replica) {
        let Err(e) = replica.log_takes_commands() else { return };
        if self.sequencer.take_own(is_adoption).is_some() {
            let why = format!("the log takes no more commands: {e}");
            self.give_adoption_up(replica, Error::new(ErrorKind::Overloaded, why));
        }
    }

    /// It was not proposed, or no replica has taken it.
    pub(super) fn give_adoption_up(&mut self, replica: &Replica, why: Error) {
        let Some(adoption) = self.adoption.take() else { return };
        self.adoption_rest.begin(replica.shared.env.clock.grantor_ns());
        replica.shared.desk.withhold(false);
        replica.shared.news.notify_waiters();
        let _ = adoption.done.send(Adopted::NotNow(why));
    }

    /// An entry did nothing: was it what is to be adopted?
    pub(super) fn adoption_was_ignored(&mut self, replica: &Replica) {
        let is_proposed = self.adoption.as_ref().is_some_and(|adoption| adoption.proposed);
        let is_queued = self.sequencer.has_own(is_adoption);
        if is_proposed && !is_queued && !replica.partition.is_adopting() {
            self.give_adoption_up(replica, Error::retry("the log changed meanwhile: try again"));
        }
    }

    /// The manifest has a load, and so has the view: whatever p-nodes keep ends with the ring, and who gets a lease gets the manifest.
    pub(super) fn loaded(&mut self, replica: &mut Replica, id: LoadId) {
        self.end_hold(replica);
        let is_it = |what: &Adopting| matches!(what, Adopting::Load(load) if load.id == id);
        if let Some(adoption) = self.adoption.take_if(|adoption| is_it(&adoption.what)) {
            let _ = adoption.done.send(Adopted::Seen);
        }
    }

    /// The manifest has a change of a table, and so has the view.
    pub(super) fn table_changed(&mut self, replica: &mut Replica, table: TableId) {
        self.end_hold(replica);
        let is_it = |what: &Adopting| matches!(what, Adopting::Change(of, _) if *of == table);
        let Some(Adoption { what, done, .. }) = self.adoption.take_if(|adoption| is_it(&adoption.what))
        else {
            return;
        };
        let is_seen = matches!(&what, Adopting::Change(_, wanted) if is_so(replica, table, wanted));
        let _ = done.send(match is_seen {
            true => Adopted::Seen,
            false => Adopted::NotNow(Error::retry("the table changed meanwhile: try again")),
        });
    }

    fn end_hold(&mut self, replica: &mut Replica) {
        if !mutant::active(Mutant::LoadKeepsRing) {
            self.renew_ring(replica);
        }
        self.adoption_rest = Rest::default();
        replica.shared.desk.withhold(false);
    }
}

fn is_adoption(command: &Command) -> bool {
    matches!(command, Command::Load(_) | Command::ChangeTable(_))
}

/// Whether a table is as it is wanted. (One that is not there is not gone: it may come.)
fn is_so(replica: &Replica, table: TableId, wanted: &TableWish) -> bool {
    match (wanted, replica.partition.manifest().table(table)) {
        (TableWish::Gone, entry) => entry.is_none() && replica.partition.dropped().has(table),
        (TableWish::Altered(change), Some(entry)) => change.applied_to(&entry.options) == entry.options,
        (TableWish::Altered(_), None) => false,
    }
}

#[cfg(test)]
mod tests;
