//! Clients' requests: which are on their way, and what a p-node finds out for them before it sends them.

use sextant_common::expiry::Life;
use sextant_pnode::rules::Carry;

use super::Protocol;
use crate::Mutant;
use crate::state::{Cell, Keys, Outcome, RequestCopy, State, WriteKind, keys_of};

impl Protocol {
    /// Whether an answer to the write is on its way, or a copy of it is.
    fn is_under_way(&self, s: &State, write: usize) -> bool {
        let w = &s.writes[write];
        w.copies.iter().any(|c| c.sent)
            || w.deferred.is_some()
            || s.proposal.on && s.proposal.asked.iter().any(|a| a.write() == Some(write))
            || s.entries().any(|(_, e)| e.asked().any(|(of, a)| of == write && a.waits))
    }

    pub(super) fn may_resend(&self, s: &State, write: usize) -> bool {
        let w = &s.writes[write];
        if w.outcome != Outcome::Pending || w.copies.iter().all(|c| c.sent) {
            return false;
        }
        // After a certain "not executed" the client sends it again. Else only under a session.
        let certain = !w.unknown && !self.is_under_way(s, write);
        certain || (self.bounds.sessions && s.retries < self.bounds.retries)
    }

    pub(in crate::step) fn begin(
        &self,
        s: &mut State,
        (write, kind, keys, expires): (usize, WriteKind, Keys, u8),
        pnode: usize,
    ) {
        let floor = s.floor;
        let w = &mut s.writes[write];
        (w.kind, w.keys, w.outcome, w.floor) = (kind, keys, Outcome::Pending, floor);
        w.expires = expires;
        self.send(s, write, pnode);
    }

    pub(in crate::step) fn resend(&self, s: &mut State, write: usize, pnode: usize) {
        if s.writes[write].unknown || self.is_under_way(s, write) {
            s.retries += 1;
        }
        self.send(s, write, pnode);
    }

    fn send(&self, s: &mut State, write: usize, pnode: usize) {
        let w = s.writes[write];
        let mut copy = RequestCopy { sent: true, ..RequestCopy::default() };
        if w.kind.needs_base() {
            copy.searched = s.pnodes[pnode].manifest;
            for key in keys_of(w.keys) {
                let cell = match self.cached(s, pnode, key) {
                    Some((cell, _)) => cell,
                    None => self.search(s, copy.searched, key, s.pnodes[pnode].times),
                };
                // What has expired is the sequencer's to say.
                let expires_at = s.expires_at(cell).map_or(0, |at| at.0 as u8);
                let present = match self.is(Mutant::BaseJudgedByPnode) {
                    true => cell.is_value() && self.life(s, cell, s.pnodes[pnode].times) != Life::Expired,
                    false => cell.is_value(),
                };
                let judged = self.is(Mutant::BaseJudgedByPnode);
                copy.expires[key] = if judged { 0 } else { expires_at };
                copy.present |= u8::from(present) << key;
                copy.matched |= u8::from(cell != Cell::NOTHING) << key;
            }
        }
        let free = usize::from(w.copies[0].sent);
        s.writes[write].copies[free] = copy;
    }

    /// What a cache has of a key at the p-node's manifest; the stamp that it has then.
    pub(in crate::step) fn cached(&self, s: &State, pnode: usize, key: usize) -> Option<(Cell, u8)> {
        let entry = s.pnodes[pnode].cache[key];
        if entry.cell == Cell::NOTHING {
            return None;
        }
        match self.carried(s, pnode, key) {
            Carry::Valid => Some((entry.cell, entry.stamp)),
            Carry::Forward => Some((entry.cell, s.pnodes[pnode].manifest)),
            Carry::Unusable | Carry::Drop => None,
        }
    }
}
