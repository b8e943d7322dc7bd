//! A bulk load is adopted: its SSTables, which are durable, come on top of what their table has, and are seen by everybody from one
//! moment on (design, section 14).
//!
//! Owns the order of the steps, and what is held back meanwhile: leases are granted no more, and no group is formed, until the load is
//! applied, or given up before it was proposed. Does not own how its SSTables were written (`maintenance::loads`).
//!
//! Invariants: when it is proposed no lease lives, everything written to the table before is in the manifest, and nothing is under way.
//! What is proposed is given up no more. Leases are granted again by a ring of another epoch, for the manifest that has it.

use sextant_common::configuration::Feature;
use sextant_common::error::{Error, ErrorKind, Result};
use sextant_common::ids::{Generation, LoadId};
use sextant_common::key_range::KeyRange;
use sextant_common::load;
use sextant_common::manifest::{Generations, SstList, SstMeta};
use sextant_rules::mutant::{self, Mutant};
use sextant_rules::probe::ProbeEvent;
use tokio::sync::oneshot;

use super::Leading;
use super::upkeep::generations;
use crate::command::{Command, Load};
use crate::leadership::not_leading;
use crate::lease::ring::Run;
use crate::replica::{Adopted, LoadJob, Written};
use crate::worker::replica::Replica;

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

/// A load that is to be seen.
pub(super) struct Adoption {
    load: Written,
    until_ns: u64,
    proposed: bool,
    done: oneshot::Sender<Adopted>,
}

/// What decides what comes next.
#[derive(Clone, Copy, Debug)]
struct Facts {
    /// The table's active memtable holds something.
    is_written_to: bool,
    /// Memtables of it are frozen, or about to be.
    is_flushing: bool,
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
        Facts { is_written_to: false, is_flushing: false, is_leased: false, is_proposing: false, .. } => {
            Step::Propose
        }
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
        if self.adoption.is_some() || replica.partition.is_loading() {
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
        let busy = || Error::retry("another load is being committed");
        let refused = match self.check_serves(replica) {
            _ if replica.partition.has_loaded(load.id) => return drop(done.send(Adopted::Seen)),
            Ok(()) if self.adoption.is_some() || replica.partition.is_loading() => Some(busy()),
            Ok(()) if self.tenure.term != load.term || self.handover.is_some() => Some(not_leading()),
            Ok(()) => self.adoption_rest.check(replica.shared.env.clock.grantor_ns()).err(),
            Err(e) => Some(e),
        };
        if let Some(e) = refused {
            return drop(done.send(Adopted::NotNow(e)));
        }
        let shared = &replica.shared;
        let until_ns = shared.env.clock.grantor_ns() + HOLD_NS;
        shared.desk.withhold(true);
        // Whoever acknowledges it uses no lease from before.
        shared.desk.push([Run::Invalidated { slots: vec![0] }]);
        shared.news.notify_waiters();
        shared.env.tell(|| ProbeEvent::LoadHeld { partition: shared.id, node: shared.node });
        self.adoption = Some(Adoption { load, until_ns, proposed: false, done });
    }

    /// No group is formed while a load is on its way: it would be newer than the load, and know nothing of it.
    pub(super) fn holds_groups(&self, replica: &Replica) -> bool {
        self.adoption.is_some() || replica.partition.is_loading()
    }

    pub fn see_to_adoption(&mut self, replica: &Replica) {
        let Some(Adoption { load, until_ns, proposed: false, .. }) = &self.adoption else { return };
        let table = load.table;
        let Some(state) = replica.partition.table(table) else {
            return self.give_adoption_up(replica, "the partition does not know the table");
        };
        let now = replica.shared.now();
        let facts = Facts {
            is_written_to: !state.active.is_empty(),
            is_flushing: !state.frozen.is_empty() || self.upkeep.is_freezing(table),
            is_leased: (replica.shared.desk.holders(now).1 > 0 || now.mono_ns < self.tenure.hold_until_ns)
                && !mutant::active(Mutant::LoadUnderLease),
            is_proposing: self.sequencer.proposal.is_some(),
            now_ns: now.mono_ns,
            until_ns: *until_ns,
        };
        match next_step(facts) {
            Step::Freeze => self.freeze(replica, table, None),
            Step::Wait => {}
            Step::Propose => self.propose_load(replica),
            Step::GiveUp => self.give_adoption_up(replica, "leases or flushes took too long: try again"),
        }
    }

    /// Every load goes into the log from here.
    fn propose_load(&mut self, replica: &Replica) {
        let Some(adoption) = &mut self.adoption else { return };
        let Written { id, table, seq, ssts, first, .. } = &adoption.load;
        let generation = replica.partition.table(*table).map_or(Generation(1), |t| t.generation());
        let next_seq = replica.partition.last_seq() + 1;
        if generation >= *first || next_seq > *seq {
            return self.give_adoption_up(replica, "too much was written since the load began: begin again");
        }
        let below = replica.partition.manifest().table(*table).map(|t| t.ssts.clone()).unwrap_or_default();
        let flushed = Generation(first.0 + (ssts.len() as u64).max(1) - 1);
        let load = Load {
            term: self.tenure.term,
            table: *table,
            id: *id,
            generation,
            next_seq,
            seq: *seq,
            flushed,
            ssts: placed(ssts.clone(), &below, flushed),
        };
        adoption.proposed = true;
        self.command(Command::Load(load), None);
    }

    /// It was not proposed, or no replica has taken it.
    fn give_adoption_up(&mut self, replica: &Replica, why: &'static str) {
        let Some(adoption) = self.adoption.take() else { return };
        self.adoption_rest.begin(replica.shared.env.clock.grantor_ns());
        replica.shared.desk.withhold(false);
        replica.shared.news.notify_waiters();
        let _ = adoption.done.send(Adopted::NotNow(Error::retry(why)));
    }

    /// An entry did nothing: was it the load?
    pub(super) fn load_was_ignored(&mut self, replica: &Replica) {
        let is_proposed = self.adoption.as_ref().is_some_and(|adoption| adoption.proposed);
        let is_queued = self.sequencer.has_own(|command| matches!(command, Command::Load(_)));
        if is_proposed && !is_queued && !replica.partition.is_loading() {
            self.give_adoption_up(replica, "the log changed meanwhile: try again");
        }
    }

    /// The manifest has a load, and so has the view: whatever p-nodes keep ends with the ring, and who gets a lease gets the manifest.
    pub(super) fn loaded(&mut self, replica: &mut Replica, id: LoadId) {
        if !mutant::active(Mutant::LoadKeepsRing) {
            self.renew_ring(replica);
        }
        self.adoption_rest = Rest::default();
        replica.shared.desk.withhold(false);
        if let Some(adoption) = self.adoption.take_if(|adoption| adoption.load.id == id) {
            let _ = adoption.done.send(Adopted::Seen);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::partition::testing::sst;

    fn ready() -> Facts {
        Facts {
            is_written_to: false,
            is_flushing: false,
            is_leased: false,
            is_proposing: false,
            now_ns: 5,
            until_ns: 10,
        }
    }

    #[test]
    fn a_load_is_proposed_when_no_lease_lives_and_nothing_is_under_way() {
        assert_eq!(next_step(ready()), Step::Propose);
        assert_eq!(next_step(Facts { is_leased: true, ..ready() }), Step::Wait);
        assert_eq!(next_step(Facts { is_flushing: true, ..ready() }), Step::Wait);
        assert_eq!(next_step(Facts { is_proposing: true, ..ready() }), Step::Wait);
        assert_eq!(next_step(Facts { is_written_to: true, ..ready() }), Step::Freeze);
        assert_eq!(next_step(Facts { is_written_to: true, is_proposing: true, ..ready() }), Step::Wait);
    }

    #[test]
    fn writes_are_not_held_back_for_ever() {
        let late = Facts { now_ns: 10, ..ready() };
        assert_eq!(next_step(Facts { is_leased: true, ..late }), Step::GiveUp);
        assert_eq!(next_step(late), Step::Propose, "it is ready");
    }

    #[test]
    fn after_a_vain_attempt_writes_go_on_for_longer_each_time_up_to_a_bound() {
        let mut rest = Rest::default();
        assert!(rest.check(5).is_ok());
        let mut now_ns = 5;
        let mut rests = Vec::new();
        for _ in 0..5 {
            rest.begin(now_ns);
            assert!(rest.check(now_ns).unwrap_err().is_retryable());
            rests.push((rest.until_ns - now_ns) / HOLD_NS);
            assert!(rest.check(rest.until_ns - 1).is_err());
            now_ns = rest.until_ns;
            assert!(rest.check(now_ns).is_ok());
        }
        assert_eq!(rests, [1, 2, 4, 4, 4]);
        now_ns += FORGIVEN_NS;
        rest.begin(now_ns);
        assert_eq!(rest.until_ns, now_ns + HOLD_NS, "long ago");
    }

    #[test]
    fn loaded_tables_are_columns_where_nothing_was_and_answer_for_all_keys_above_others() {
        let loaded = |counter, key: &'static str| SstMeta {
            min_key: key.into(),
            generations: Generations::new(100 + u64::from(counter), 100 + u64::from(counter)),
            ..sst(counter)
        };
        let three = || vec![loaded(0, "c"), loaded(1, "m"), loaded(2, "t")];
        let columns = placed(three(), &SstList::default(), Generation(102));
        let ranges: Vec<_> =
            columns.iter().map(|sst| (sst.range.start.clone(), sst.range.end.clone())).collect();
        assert_eq!(ranges, [("t".into(), "".into()), ("m".into(), "t".into()), ("".into(), "m".into())]);
        assert!(columns.iter().all(|sst| sst.generations == Generations::new(1, 102)));
        let above = placed(three(), &vec![sst(9)].into(), Generation(102));
        assert!(above.iter().all(|sst| sst.range.is_all()));
        assert_eq!(above[0].generations, Generations::new(102, 102), "newest first");
    }
}
