//! The sequencer: copies of requests are evaluated into one proposed group, whose bits are out before it is appended or refused.

use sextant_common::ids::Generation;
use sextant_memtable_server::partition::rules;

use super::Protocol;
use super::duplicates::Seen;
use super::verdict::Verdict;
use crate::Mutant;
use crate::state::log::{Asked, Entry, EntryKind};
use crate::state::{Proposal, RequestCopy, State, What};

impl Protocol {
    pub(in crate::step) fn evaluate(
        &self,
        s: &mut State,
        first: (usize, usize),
        second: Option<(usize, usize)>,
    ) -> Result<(), String> {
        let mut proposal = Proposal { generation: s.generation(), ..Proposal::default() };
        let mut effects: [Option<usize>; 2] = [None; 2];
        let (mut failed_without_session, mut at) = (Vec::new(), 0);
        for (write, copy) in [Some(first), second].into_iter().flatten() {
            match self.seen(s, write) {
                Seen::New => {}
                Seen::Answered { applied } => {
                    s.writes[write].copies[copy].sent = false;
                    self.answer_later(s, write, applied, s.len)?;
                    continue;
                }
                Seen::Forgotten => {
                    // This copy is certainly not executed; what became of others the client does not learn any more.
                    s.writes[write].copies[copy].sent = false;
                    continue;
                }
            }
            match self.decide(s, write, copy, &effects) {
                Verdict::Stale => {
                    s.writes[write].copies[copy] = RequestCopy::default();
                    continue;
                }
                Verdict::Applied { bits } => {
                    proposal.asked[at] = Asked { who: write as u8 + 1, applied: true, waits: true, bits };
                    effects[at] = Some(write);
                }
                Verdict::Failed if self.is(Mutant::FailedAtOnce) => {
                    s.writes[write].copies[copy] = RequestCopy::default();
                    self.complete(s, write, false)?;
                    continue;
                }
                Verdict::Failed if self.bounds.sessions && !self.is(Mutant::FailedForgotten) => {
                    // Recorded in the log, so that no copy can take effect after the answer was given.
                    proposal.asked[at] = Asked { who: write as u8 + 1, applied: false, waits: true, bits: 0 };
                }
                Verdict::Failed => {
                    s.writes[write].copies[copy] = RequestCopy::default();
                    failed_without_session.push(write);
                    continue;
                }
            }
            proposal.copies[at] = copy as u8;
            at += 1;
        }
        self.clean_copies(s);
        proposal.on = at > 0;
        if !proposal.on {
            for write in failed_without_session {
                self.answer_later(s, write, false, s.len)?;
            }
            return Ok(());
        }
        // What changed nothing may have seen an effect of this very group: it is answered with it.
        for write in failed_without_session {
            self.answer_later(s, write, false, s.len + 1)?;
        }
        s.proposal = proposal;
        if self.bounds.registered { self.begin_swaps(s) } else { self.put_out(s) }
    }

    /// The ring entries of a group, before it is proposed.
    pub(in crate::step) fn put_out(&self, s: &mut State) -> Result<(), String> {
        s.proposal.out = true;
        if self.is(Mutant::BitsAfterPublication) {
            return Ok(());
        }
        let (before, proposal) = (s.serial, s.proposal);
        for asked in proposal.asked {
            self.push_bits(s, proposal.generation, asked.bits)?;
        }
        match proposal.what {
            What::Tick => self.put_out_tick(s)?,
            _ => self.put_out_invalidations(s)?,
        }
        s.proposal.serial = if s.serial == before { 0 } else { s.serial };
        Ok(())
    }

    fn clean_copies(&self, s: &mut State) {
        for copy in s.writes.iter_mut().flat_map(|w| &mut w.copies) {
            if !copy.sent {
                *copy = RequestCopy::default();
            }
        }
    }

    pub(crate) fn append_proposal(&self, s: &mut State) -> Result<(), String> {
        let proposal = std::mem::take(&mut s.proposal);
        for (asked, copy) in proposal.asked.iter().zip(proposal.copies) {
            if let Some(write) = asked.write() {
                s.writes[write].copies[usize::from(copy)] = RequestCopy::default();
            }
        }
        let current = s.generation();
        let fits = proposal.what == What::Tick
            || rules::fits(Generation(u64::from(proposal.generation)), Generation(u64::from(current)));
        if !fits && !self.is(Mutant::FreezeSlipsIn) {
            // Every replica ignores it; its clients may send it again.
            self.ignored(s, &proposal);
            return Ok(());
        }
        match proposal.what {
            What::Group => {}
            What::Tick => return self.append_tick(s, &proposal),
            What::Announcement | What::Load => return self.append_load(s, &proposal),
        }
        s.late = if self.is(Mutant::SwapAfterProposal) { proposal.due } else { 0 };
        let entry = Entry {
            kind: EntryKind::Group,
            generation: current,
            serial: proposal.serial,
            asked: proposal.asked,
            ..Entry::default()
        };
        self.append(s, entry)
    }

    /// Raft refuses the group. Its bits may be out: the ring starts a new incarnation, and everything waits for the old one's
    /// leases. The requests are evaluated again.
    pub(in crate::step) fn refuse(&self, s: &mut State) {
        let proposal = std::mem::take(&mut s.proposal);
        s.refusals += 1;
        self.read_announcement(s);
        s.announced_tick = s.time_at(s.len);
        let stay = match proposal.what {
            What::Tick => self.is(Mutant::RefusedTickKeepsRing),
            _ => [Mutant::RefusedBitsStay, Mutant::FilterSaysInMemtable, Mutant::FilterSaysPrefix]
                .into_iter()
                .any(|mutant| self.is(mutant)),
        };
        if proposal.serial != 0 && !stay {
            self.renew_ring(s);
        }
    }
}
