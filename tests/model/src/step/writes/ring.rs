//! Bits: in the leader's filters and in the ring; and what gives the ring a new incarnation.

use super::Protocol;
use crate::Mutant;
use crate::state::log::{Entry, EntryKind};
use crate::state::{Bit, Keys, State, keys_of};

impl Protocol {
    pub(super) fn push_bits(&self, s: &mut State, generation: u8, bits: Keys) -> Result<(), String> {
        s.filters[usize::from(generation) - 1] |= bits;
        for key in keys_of(bits) {
            self.push(s, Bit { generation, key: key as u8 })?;
        }
        Ok(())
    }

    pub(in crate::step) fn push(&self, s: &mut State, bit: Bit) -> Result<(), String> {
        if s.push_bit(bit) { Ok(()) } else { Err("the model's ring is too short for these bounds".into()) }
    }

    /// A new incarnation of the ring, at serial 0. Whatever is appended or proposed waits for the old one's leases as a whole, and
    /// for no serial any more: those that it has are of a ring that is gone.
    pub(in crate::step) fn renew_ring(&self, s: &mut State) {
        for p in &mut s.pnodes {
            if p.grants != 0 {
                p.old_grant = !self.is(Mutant::IncarnationForgetsLeases);
            }
            (p.grants, p.acked) = (0, 0);
        }
        s.incarnation += 1;
        (s.ring, s.serial) = Default::default();
        s.log.iter_mut().for_each(|e| e.serial = 0);
        if !self.is(Mutant::ProposalKeepsSerial) {
            s.proposal.serial = 0;
        }
    }

    /// The leases' other mode, as an entry: it takes effect when it is committed.
    pub(in crate::step) fn configure(&self, s: &mut State) -> Result<(), String> {
        self.append(s, Entry { kind: EntryKind::Configure, ..Entry::default() })
    }
}
