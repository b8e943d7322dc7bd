//! Registered reads: the sequencer's swaps, a memtable read's steps, and what a p-node makes of them.
//!
//! Separate steps, because separate threads: the sequencer's swap of each slot, its ring entries, the append; a read's (epoch,
//! serial), its bit, its published position with what it finds. What has gone from the leader is kept at once, although the
//! answer takes time: whether it is usable is asked at each use, of things that do not change meanwhile, so early is worst.
//! Likewise a p-node's slots and its view change in one step, although slots change in place and before: that makes fewer answers
//! usable, never more. Whether a read is to be kept is the p-node's choice, and both are explored.

use sextant_common::ids::{Epoch, Serial};
use sextant_pnode::rules::{self, Answer, Step};

use super::{Action, Protocol};
use crate::Mutant;
use crate::state::pnode::{PNode, Reader, Reply};
use crate::state::registered::{Kept, Phase, Registration, SLOTS, Said, Slot, Slots, slots_of};
use crate::state::{Bit, Cell, Proposal, State, What, keys_of};

impl Protocol {
    fn slot_of(&self, key: usize) -> usize {
        if self.bounds.shared_slot { 0 } else { key }
    }

    /// All that are in use.
    pub(super) fn all_slots(&self) -> Slots {
        (0..self.bounds.keys).fold(0, |slots, key| slots | 1 << self.slot_of(key))
    }

    /// What the sequencer does next with a group that is being formed; false: it forms none.
    pub(super) fn forming_actions(&self, s: &State, out: &mut Vec<Action>) -> bool {
        let forming = s.proposal.on && !s.proposal.out;
        let late = self.is(Mutant::SwapAfterProposal) && forming;
        match () {
            _ if s.late != 0 || (forming && s.proposal.due != 0 && !late) => out.push(Action::Swap),
            _ if forming => out.push(Action::PutOut),
            _ => return false,
        }
        true
    }

    /// A group, or a load, was evaluated: the first slot is swapped at once, because nobody sees the evaluation.
    pub(super) fn begin_swaps(&self, s: &mut State) -> Result<(), String> {
        let Proposal { asked, what, .. } = s.proposal;
        let written = asked.iter().filter(|a| a.applied).filter_map(|a| a.write());
        let written = written.flat_map(|write| keys_of(s.writes[write].keys));
        let of_keys = written.fold(0, |slots, key| slots | 1 << self.slot_of(key));
        let every = what == What::Load && !self.is(Mutant::LoadSwapsNothing);
        s.proposal.due = if every { self.all_slots() } else { of_keys };
        match s.proposal.due {
            0 if what == What::Group => self.put_out(s),
            0 => Ok(()),
            _ if self.is(Mutant::SwapAfterProposal) => Ok(()),
            _ => self.swap(s),
        }
    }

    /// Whatever is still to be done before it may be appended.
    pub(crate) fn finish_forming(&self, s: &mut State) -> Result<(), String> {
        while !s.proposal.out {
            let late = self.is(Mutant::SwapAfterProposal);
            if s.proposal.due == 0 || late { self.put_out(s)? } else { self.swap(s)? }
        }
        Ok(())
    }

    /// One atomic swap of the next slot with (seq, unregistered).
    pub(super) fn swap(&self, s: &mut State) -> Result<(), String> {
        let late = s.late != 0;
        let due = if late { s.late } else { s.proposal.due };
        let (slot, seq) = (due.trailing_zeros() as usize, s.seq_at(s.len) + u8::from(!late));
        let bit: Slots = 1 << slot;
        let was_registered = s.slots[slot].registered;
        if self.is(Mutant::SwapInHalves) && s.proposal.half & bit == 0 {
            s.proposal.half |= bit;
            s.proposal.found |= bit * u8::from(was_registered);
            return Ok(());
        }
        s.slots[slot] = Slot { seq, registered: false };
        if late {
            // A mutant: the group's serial is known already.
            s.late &= !bit;
            return if was_registered { self.push(s, Bit::invalidation(bit)) } else { Ok(()) };
        }
        if !self.is(Mutant::SwapInHalves) {
            s.proposal.found |= bit * u8::from(was_registered);
        }
        s.proposal.due &= !bit;
        s.proposal.half &= !bit;
        let Proposal { due, found, what, asked, .. } = s.proposal;
        let nothing = found == 0 && what == What::Group && asked.iter().all(|a| a.bits == 0);
        if due == 0 && nothing { self.put_out(s) } else { Ok(()) }
    }

    /// The ring entries of a proposal that are no bits: for a group, of what its swaps found.
    pub(super) fn put_out_invalidations(&self, s: &mut State) -> Result<(), String> {
        match s.proposal.what {
            What::Group | What::Tick => {}
            What::Announcement => return self.put_out_announcement(s),
            What::Load => return self.put_out_load(s),
        }
        slots_of(s.proposal.found).try_for_each(|slot| self.push(s, Bit::invalidation(1 << slot)))
    }

    /// A group was ignored, whose swaps have taken registrations away, and whose invalidations are out. When it is evaluated again
    /// it may find none and leave no bit, and would wait for nobody: so the ring ends, as it does when a group is refused.
    pub(super) fn ignored(&self, s: &mut State, proposal: &Proposal) {
        self.read_announcement(s);
        if self.bounds.registered && proposal.serial != 0 && !self.is(Mutant::IgnoredBitsStay) {
            self.renew_ring(s);
        }
    }

    /// What a new leader knows of slots, and what becomes of reads that the old one was about to answer.
    pub(super) fn new_slots(&self, s: &mut State) {
        if !self.bounds.registered {
            return;
        }
        let newest = if self.is(Mutant::SlotsStartAtNothing) { 0 } else { s.seq_at(s.len) };
        s.slots = [Slot::default(); SLOTS];
        slots_of(self.all_slots()).for_each(|slot| s.slots[slot].seq = newest);
        s.late = 0;
        for reader in s.pnodes.iter_mut().flat_map(|p| &mut p.reader) {
            (reader.registration, reader.loaded) = Default::default();
        }
    }

    /// A memtable read that may be registered; true: it is in the middle of that.
    pub(super) fn registration_actions(
        &self,
        s: &State,
        pnode: usize,
        reader: &Reader,
        out: &mut Vec<Action>,
    ) -> bool {
        if !self.bounds.registered || !self.serves(s) {
            return reader.registration.phase != Phase::None;
        }
        match reader.registration.phase {
            Phase::None if reader.loaded != 0 => {}
            Phase::None => out.push(Action::Register { pnode }),
            Phase::Both => {}
            Phase::First if self.is(Mutant::PublishedBeforeBit) && reader.loaded == 0 => {
                out.push(Action::LoadPublished { pnode });
                return true;
            }
            Phase::First | Phase::Halfway => {
                out.push(Action::Register { pnode });
                return true;
            }
        }
        false
    }

    /// The next step of a registration: first (epoch, serial), under one lock; then the slot's bit.
    pub(super) fn register(&self, s: &mut State, pnode: usize) {
        let Some(reader) = s.pnodes[pnode].reader else { return };
        let (epoch, serial) = (s.epoch(), s.serial);
        let slot = &mut s.slots[self.slot_of(usize::from(reader.key))];
        let mut r = reader.registration;
        let mut set_bit = |r: &mut Registration| {
            slot.registered = true;
            r.seq = slot.seq;
        };
        let bit_first = self.is(Mutant::SerialAfterBit);
        r.phase = match r.phase {
            Phase::None if bit_first => {
                set_bit(&mut r);
                Phase::First
            }
            Phase::None if self.is(Mutant::EpochAndSerialApart) => {
                r.serial = serial;
                Phase::Halfway
            }
            Phase::None => {
                (r.epoch, r.serial) = (epoch, serial);
                Phase::First
            }
            Phase::Halfway => {
                r.epoch = epoch;
                Phase::First
            }
            Phase::First if bit_first => {
                (r.epoch, r.serial) = (epoch, serial);
                Phase::Both
            }
            Phase::First | Phase::Both => {
                set_bit(&mut r);
                Phase::Both
            }
        };
        s.pnodes[pnode].reader = Some(Reader { registration: r, ..reader });
    }

    /// What the memtables said of published position `up_to`, and what is next: to be kept, if no write is on its way that has
    /// seen no registration.
    pub(super) fn keep(
        &self,
        s: &mut State,
        pnode: usize,
        reader: &mut Reader,
        up_to: u8,
        (step, cell): (Step, Cell),
    ) {
        let Registration { phase, epoch, serial, seq } = std::mem::take(&mut reader.registration);
        if phase != Phase::Both || (seq > s.seq_at(up_to) && !self.is(Mutant::SlotSeqNotCompared)) {
            return;
        }
        let said = match step {
            Step::Done(Answer::Value) => Said::Value(cell),
            Step::Done(Answer::Absent) => Said::Absent,
            Step::AskMemtables | Step::AskSstables => Said::NoEntry,
        };
        reader.keeps = said == Said::NoEntry;
        let p = &mut s.pnodes[pnode];
        let (epoch, serial) =
            if self.is(Mutant::KeptAtArrival) { (p.epoch, p.serial) } else { (epoch, serial) };
        p.kept[usize::from(reader.key)] = Kept { said, epoch, serial };
    }

    /// What the SSTables said to a read that no memtable had an entry for.
    pub(super) fn keep_sstables(&self, s: &mut State, pnode: usize, key: usize, cell: Cell) {
        let kept = &mut s.pnodes[pnode].kept[key];
        if kept.said == Said::NoEntry && !self.bounds.sstables_not_kept {
            kept.said = if cell.is_value() { Said::Value(cell) } else { Said::Absent };
        }
    }

    /// What a p-node keeps of a key and may use, where it consults its view.
    pub fn kept(&self, s: &State, pnode: usize, key: usize, leased: bool) -> Said {
        let p = &s.pnodes[pnode];
        let Kept { said, epoch, serial } = p.kept[key];
        let leased = leased || self.is(Mutant::KeptWithoutLease);
        let in_epoch = |incarnation: u8| Epoch { term: 1, incarnation: u64::from(incarnation) };
        let epoch = in_epoch(if self.is(Mutant::KeptOverEpoch) { p.epoch } else { epoch });
        let kept_with = rules::Registration { epoch, serial: Serial(u64::from(serial)) };
        let over_at = Serial(u64::from(p.slot_serials[self.slot_of(key)]));
        let usable = leased && rules::is_usable(kept_with, in_epoch(p.epoch), over_at);
        if usable { said } else { Said::Nothing }
    }

    /// Whole filters are installed: what happened to the slots before is unknown, in a new epoch too.
    pub(super) fn install_slots(&self, p: &mut PNode, reply: &Reply) {
        if !self.bounds.registered {
            return;
        }
        let first = reply.epoch != p.epoch;
        match () {
            _ if first && self.is(Mutant::KeptOverFirstFilters) => p.slot_serials = [0; SLOTS],
            _ if !first && self.is(Mutant::KeptOverWholeFilters) => {}
            _ => slots_of(self.all_slots()).for_each(|slot| p.slot_serials[slot] = reply.serial),
        }
    }

    /// Invalidations have arrived; they are applied before they are acknowledged.
    pub(super) fn invalidate(&self, p: &mut PNode, reply: &Reply) {
        let apart = self.is(Mutant::AcknowledgedBeforeApplied);
        let serials = if apart { &mut p.unapplied } else { &mut p.slot_serials };
        for (serial, new) in serials.iter_mut().zip(reply.slots) {
            *serial = (*serial).max(new);
        }
    }

    /// A mutant: what was acknowledged is applied.
    pub(super) fn apply_invalidations(&self, s: &mut State, pnode: usize) {
        let p = &mut s.pnodes[pnode];
        for (serial, new) in p.slot_serials.iter_mut().zip(std::mem::take(&mut p.unapplied)) {
            *serial = (*serial).max(new);
        }
    }
}
