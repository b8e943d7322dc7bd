//! From commit to publication: what is committed, whether the leases let it be seen, and the answers that wait for that.

use sextant_common::ids::Serial;
use sextant_memtable_server::publication::{Appended, Next, Permission, Position, PublishQueue, forbids};

use super::Protocol;
use crate::Mutant;
use crate::state::log::EntryKind;
use crate::state::{Outcome, State};

impl Protocol {
    pub(crate) fn commit(&self, s: &mut State) -> Result<(), String> {
        let was_timed = s.is_timed();
        // A leader counts replicas only for entries of its own term.
        s.known_committed = (s.known_committed + 1).max(s.first);
        if s.is_timed() != was_timed {
            self.renew_ring(s);
        }
        for at in s.committed + 1..=s.known_committed {
            s.committed = at;
            self.check_committed(s, at)?;
        }
        self.show_if_committed(s);
        let manifest = self.manifest(s);
        for generation in (1..).take(s.filters.len()).filter(|g| manifest.is_flushed(*g)) {
            s.filters[usize::from(generation) - 1] = 0;
        }
        if !self.bounds.grace {
            s.dropped = manifest.last_flush;
        }
        Ok(())
    }

    /// The publish rule, for one group.
    fn permits(&self, s: &State, serial: u8) -> bool {
        let bound = |p: &crate::state::pnode::PNode| {
            let granted = (0..16u64).filter(|g| p.grants & (1 << g) != 0);
            let (acked, serial) = (u64::from(p.acked), u64::from(serial));
            match self.is(Mutant::LaterGrantsCount) {
                true => p.grants != 0 && acked < serial + 1 && serial > 0,
                false => granted.into_iter().any(|granted| forbids(granted, acked, serial)),
            }
        };
        let old = !self.is(Mutant::PublishUnderOldLease) && s.pnodes.iter().any(|p| p.old_grant);
        !old && (serial == 0 || !s.pnodes.iter().any(bound))
    }

    /// Up to where the next publication goes.
    pub(crate) fn next_published(&self, s: &State) -> Option<u8> {
        if s.published >= s.known_committed {
            return None;
        }
        let mut queue = PublishQueue::new(u64::from(s.published));
        for (at, entry) in s.entries().filter(|(at, _)| *at > s.published) {
            let (index, serial) = (u64::from(at), Serial(u64::from(entry.serial)));
            queue.push(Appended { index, position: Position::default(), serial, waiting: () });
        }
        let permit = |serial: Serial| match self.permits(s, serial.0 as u8) {
            true => Permission::Granted,
            false => Permission::WaitUntil(1),
        };
        match queue.next(u64::from(s.known_committed), permit) {
            Next::Publish(entry) => Some(entry.index as u8),
            _ if self.is(Mutant::BitlessOvertakes) => s
                .entries()
                .find(|(at, e)| {
                    let waiting = *at > s.published && *at <= s.known_committed;
                    waiting && e.kind == EntryKind::Group && e.serial == 0
                })
                .map(|(at, _)| at),
            _ => None,
        }
    }

    pub(crate) fn publish(&self, s: &mut State, lost: bool) -> Result<(), String> {
        let Some(to) = self.next_published(s) else { return Ok(()) };
        for at in s.published + 1..=to {
            s.published = at;
            let entry = s.log[usize::from(at) - 1];
            if entry.kind == EntryKind::Load {
                self.publish_load(s);
            }
            if self.is(Mutant::BitsAfterPublication) {
                for asked in entry.asked {
                    self.push_bits(s, entry.generation, asked.bits)?;
                }
            }
            for (slot, asked) in entry.asked.into_iter().enumerate() {
                let Some(write) = asked.write().filter(|_| asked.waits) else { continue };
                s.log[usize::from(at) - 1].asked[slot].waits = false;
                if lost {
                    s.writes[write].unknown = true;
                } else {
                    self.complete(s, write, asked.applied)?;
                }
            }
        }
        self.answer_deferred(s)
    }

    /// An answer about appended state is given when everything that it saw is published.
    pub(super) fn answer_later(
        &self,
        s: &mut State,
        write: usize,
        ok: bool,
        after: u8,
    ) -> Result<(), String> {
        if s.writes[write].outcome != Outcome::Pending || s.writes[write].deferred.is_some() {
            return Ok(());
        }
        if self.is(Mutant::DuplicateAtOnce) && ok {
            return self.complete(s, write, ok);
        }
        s.writes[write].deferred = Some(ok);
        s.writes[write].deferred_after = after;
        self.answer_deferred(s)
    }

    fn answer_deferred(&self, s: &mut State) -> Result<(), String> {
        if !self.serves(s) {
            return Ok(());
        }
        for write in 0..s.writes.len() {
            let w = &s.writes[write];
            if let Some(ok) = w.deferred
                && w.deferred_after <= s.published
            {
                if !ok && self.is(Mutant::FailedForgotten) {
                    s.remembered |= 1 << write;
                }
                self.complete(s, write, ok)?;
            }
        }
        Ok(())
    }
}
