//! A new leader. The vote guard and the leader's own lease make every lease of the old one end before; their arithmetic is not
//! modelled.

use super::{Action, Protocol};
use crate::Mutant;
use crate::state::log::{Asked, Entry, EntryKind};
use crate::state::{Bit, FLUSH, FREEZE, GENERATIONS, JobPhase, Keys, MERGE, Outcome, State, ZOMBIE, keys_of};

impl Protocol {
    pub(super) fn failover_actions(&self, s: &State, out: &mut Vec<Action>) {
        if s.failovers >= self.bounds.failovers {
            return;
        }
        for kept in s.committed..=s.len {
            // What the new leader does not know to be committed matters where it changes the manifest or the mode of leases, and
            // where it begins.
            let changes = |at: u8| {
                matches!(
                    s.log[usize::from(at)].kind,
                    EntryKind::Flush | EntryKind::Merge | EntryKind::Configure | EntryKind::Load
                )
            };
            let lags = (0..=s.committed).filter(|at| *at == s.committed || *at == 0 || changes(*at));
            for known in lags {
                let filters = self.filters_of_log(s, kept, known);
                out.push(Action::Failover { kept, known, stale_bits: false });
                if self.united(s, kept, filters) != filters {
                    out.push(Action::Failover { kept, known, stale_bits: true });
                }
            }
        }
    }

    /// The filters that ingesting the log makes.
    fn filters_of_log(&self, s: &State, kept: u8, known: u8) -> [Keys; GENERATIONS] {
        let manifest = s.manifest_at(known, self.reading);
        let up_to = if self.is(Mutant::FiltersOfCommittedOnly) { known } else { kept };
        let mut filters = [0; GENERATIONS];
        for (_, entry) in s.entries().filter(|(at, e)| *at <= up_to && e.kind == EntryKind::Group) {
            if !manifest.is_flushed(entry.generation) {
                let bits = entry.asked.iter().fold(0, |bits, a| bits | a.bits);
                filters[usize::from(entry.generation) - 1] |= bits;
            }
        }
        filters
    }

    /// With bits that truncated entries left behind: the filter of a memtable whose freeze was truncated too takes what came
    /// after it.
    fn united(&self, s: &State, kept: u8, mut filters: [Keys; GENERATIONS]) -> [Keys; GENERATIONS] {
        let active = usize::from(s.generation_at(kept)) - 1;
        for (generation, bits) in s.filters.iter().enumerate() {
            filters[generation.min(active)] |= bits;
        }
        filters
    }

    pub(super) fn fail_over(
        &self,
        s: &mut State,
        kept: u8,
        known: u8,
        stale_bits: bool,
    ) -> Result<(), String> {
        let mut filters = self.filters_of_log(s, kept, known);
        if stale_bits {
            filters = self.united(s, kept, filters);
        }
        self.forget_clients(s, kept);
        for entry in &mut s.log[usize::from(kept)..] {
            *entry = Entry::default();
        }
        s.len = kept;
        // Whatever leases bound older entries have ended.
        s.log.iter_mut().for_each(|e| e.serial = 0);
        s.failovers += 1;
        s.term += 1;
        s.incarnation = 1;
        self.append(s, Entry { kind: EntryKind::First, ..Entry::default() })?;
        s.first = s.len;
        (s.known_committed, s.published) = (known, known);
        s.shown = s.load().is_some_and(|(at, _)| at <= known);
        self.read_announcement(s);
        s.announced_tick = s.time_at(if self.is(Mutant::TicksOfCommittedOnly) { known } else { s.len });
        self.new_slots(s);
        s.filters = filters;
        s.dropped = self.manifest(s).last_flush;
        (s.ring, s.serial) = Default::default();
        if self.is(Mutant::SerialsGoOn) {
            self.renumber(s)?;
        }
        let zombie = [FLUSH, MERGE].into_iter().find(|j| s.jobs[*j].phase == JobPhase::Planned);
        let zombie = zombie.map_or(s.jobs[ZOMBIE], |j| s.jobs[j]);
        s.jobs = Default::default();
        if self.is(Mutant::TableReplaced) {
            s.jobs[ZOMBIE] = zombie;
        } else {
            s.forget_orphans();
        }
        self.end_leases(s);
        Ok(())
    }

    /// The old leader answers nobody any more; what the new one does not have is gone.
    fn forget_clients(&self, s: &mut State, kept: u8) {
        let proposal = std::mem::take(&mut s.proposal);
        for (asked, copy) in proposal.asked.iter().zip(proposal.copies) {
            if let Some(write) = asked.write() {
                s.writes[write].copies[usize::from(copy)] = Default::default();
                s.writes[write].unknown = true;
            }
        }
        let mut truncated = 0u8;
        for (at, entry) in s.log.iter_mut().enumerate() {
            for asked in &mut entry.asked {
                if let Some(write) = asked.write() {
                    if asked.waits {
                        s.writes[write].unknown = true;
                    }
                    if asked.applied && at >= usize::from(kept) {
                        truncated |= 1 << write;
                    }
                    *asked = Asked { waits: false, ..*asked };
                }
            }
        }
        if self.is(Mutant::DuplicateTableNotUndone) {
            s.ghosts |= truncated;
        }
        s.remembered = 0;
        for write in &mut s.writes {
            if write.deferred.take().is_some() {
                write.unknown = true;
            }
            write.deferred_after = 0;
            write.unknown &= write.outcome == Outcome::Pending;
        }
    }

    fn end_leases(&self, s: &mut State) {
        for p in &mut s.pnodes {
            if self.is(Mutant::PublishUnderOldLease) {
                p.old_grant |= p.grants != 0;
            } else {
                (p.lease, p.old_grant) = (None, false);
                p.replies.iter_mut().for_each(|r| r.leased = false);
            }
            (p.acked, p.grants) = (0, 0);
        }
    }

    /// A mutant: serials count through the log, whoever leads.
    fn renumber(&self, s: &mut State) -> Result<(), String> {
        for at in 0..usize::from(s.len) {
            let entry = s.log[at];
            let mut fits = true;
            match entry.kind {
                EntryKind::Freeze => {
                    fits &= s.push_bit(Bit { generation: entry.generation + 1, key: FREEZE })
                }
                EntryKind::Group => {
                    for asked in entry.asked {
                        for key in keys_of(asked.bits) {
                            fits &= s.push_bit(Bit { generation: entry.generation, key: key as u8 });
                        }
                    }
                }
                _ => {}
            }
            if !fits {
                return Err("the model's ring is too short for these bounds".into());
            }
        }
        Ok(())
    }
}
