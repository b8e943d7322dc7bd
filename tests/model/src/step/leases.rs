//! Pulls, replies, leases.

use super::{Action, Protocol};
use crate::Mutant;
use crate::state::pnode::{Reply, ReplyKind};
use crate::state::registered::{SLOTS, slots_of};
use crate::state::{Bit, GENERATIONS, State};

impl Protocol {
    pub(super) fn lease_actions(&self, s: &State, out: &mut Vec<Action>) {
        for pnode in 0..self.bounds.pnodes {
            let p = &s.pnodes[pnode];
            for (reply, r) in p.replies.iter().enumerate() {
                if r.kind != ReplyKind::None {
                    out.extend([Action::Deliver { pnode, reply }, Action::Lose { pnode, reply }]);
                }
            }
            if p.grants != 0 {
                out.push(Action::Expire { pnode });
            }
            if p.old_grant {
                out.push(Action::ExpireOld { pnode });
            }
            let manifest = self.manifest(s);
            if p.unapplied != [0; SLOTS] {
                out.push(Action::ApplyInvalidations { pnode });
            }
            if self.is(Mutant::LeaseWithoutManifest) && manifest.version > p.manifest {
                out.push(Action::Refresh { pnode });
            }
            // No manifest is served before the leader's own first entry is applied.
            if s.known_committed < s.first || self.free_reply(s, pnode).is_none() {
                continue;
            }
            if !self.may_pull(s, pnode) {
                out.push(Action::FetchFilters { pnode });
                continue;
            }
            // The ring has lost what the p-node lacks.
            if self.bounds.overflows && p.serial < s.serial {
                out.push(Action::FetchFilters { pnode });
            }
            let ticked = self.published_tick(s) > p.times.published;
            let news = p.acked < p.serial || s.serial > p.serial || manifest.version > p.manifest || ticked;
            if news {
                out.push(Action::Pull { pnode, grant: false });
            }
            if (news || p.lease.is_none()) && !self.withholds(s) {
                out.push(Action::Pull { pnode, grant: true });
            }
        }
    }

    fn epoch(&self, s: &State) -> u8 {
        if self.is(Mutant::SerialsGoOn) { 1 } else { s.epoch() }
    }

    /// Whether the p-node's filters can be brought up to date by bf-log entries.
    fn may_pull(&self, s: &State, pnode: usize) -> bool {
        let p = &s.pnodes[pnode];
        p.epoch == self.epoch(s) && p.serial <= s.serial
    }

    /// One reply of each server may be on its way.
    fn free_reply(&self, s: &State, pnode: usize) -> Option<usize> {
        let replies = &s.pnodes[pnode].replies;
        let term_of = |epoch: u8| epoch / 16;
        let busy = replies.iter().any(|r| r.kind != ReplyKind::None && term_of(r.epoch) == s.term);
        if busy || (!self.bounds.two_replies && replies[0].kind != ReplyKind::None) {
            return None;
        }
        replies.iter().position(|r| r.kind == ReplyKind::None)
    }

    pub(super) fn pull(&self, s: &mut State, pnode: usize, grant: bool) {
        let epoch = self.epoch(s);
        let manifest = self.manifest(s).version;
        let free = self.free_reply(s, pnode);
        let (serial, ring, timed) = (s.serial, s.ring, s.is_timed());
        let published_tick = self.published_tick(s);
        let p = &mut s.pnodes[pnode];
        if !timed {
            p.acked = p.acked.max(p.serial);
            // What was acknowledged binds no longer.
            p.grants &= !((1u16 << p.acked) - 1);
        }
        if grant {
            p.grants |= 1 << serial;
        }
        let kind = ReplyKind::News;
        let mut reply = Reply {
            kind,
            epoch,
            from: p.serial,
            serial,
            manifest,
            leased: grant,
            published_tick,
            ..Reply::default()
        };
        for (at, bit) in (p.serial + 1..=serial).zip(&ring[usize::from(p.serial)..]) {
            if bit.is_of_a_key() {
                reply.bits[usize::from(bit.generation) - 1] |= 1 << bit.key;
            }
            slots_of(bit.slots()).for_each(|slot| reply.slots[slot] = at);
            reply.announced |= *bit == Bit::ANNOUNCEMENT;
            reply.tick = bit.is_tick().unwrap_or(reply.tick);
        }
        if let Some(free) = free {
            p.replies[free] = reply;
        }
    }

    pub(super) fn fetch_filters(&self, s: &mut State, pnode: usize) {
        let reply = Reply {
            kind: ReplyKind::Whole,
            epoch: self.epoch(s),
            from: 0,
            serial: s.serial,
            bits: s.filters,
            manifest: self.manifest(s).version,
            announced: self.is_announced(s),
            tick: self.announced_tick(s),
            published_tick: self.published_tick(s),
            ..Reply::default()
        };
        if let Some(free) = self.free_reply(s, pnode) {
            s.pnodes[pnode].replies[free] = reply;
        }
    }

    /// The p-node knows the manifest's newest version.
    pub(super) fn refresh(&self, s: &mut State, pnode: usize) {
        let version = self.manifest(s).version;
        self.install_manifest(s, pnode, version);
    }

    /// What a manifest has flushed needs no filter any more.
    fn install_manifest(&self, s: &mut State, pnode: usize, version: u8) {
        let manifest = self.manifest_of(s, version);
        let p = &mut s.pnodes[pnode];
        if version <= p.manifest {
            return;
        }
        p.manifest = version;
        p.announced &= manifest.loaded == 0;
        p.seen |= manifest.tables().iter().fold(0, |set, sst| set | 1 << sst);
        for generation in (1..=GENERATIONS as u8).filter(|g| manifest.is_flushed(*g)) {
            p.filters[usize::from(generation) - 1] = 0;
        }
    }

    pub(super) fn deliver(&self, s: &mut State, pnode: usize, reply: usize) {
        let reply = std::mem::take(&mut s.pnodes[pnode].replies[reply]);
        if reply.kind == ReplyKind::Whole {
            let p = &s.pnodes[pnode];
            if (reply.epoch, reply.serial) < (p.epoch, p.serial) {
                return;
            }
        }
        if !self.is(Mutant::LeaseWithoutManifest) {
            self.install_manifest(s, pnode, reply.manifest);
        }
        let version = s.pnodes[pnode].manifest.max(reply.manifest);
        let manifest = self.manifest_of(s, version);
        let p = &mut s.pnodes[pnode];
        let kept = |generation: usize| !manifest.is_flushed(generation as u8 + 1);
        match reply.kind {
            ReplyKind::None => {}
            ReplyKind::Whole => {
                self.install_slots(p, &reply);
                p.announced = reply.announced && manifest.loaded == 0;
                p.times.announced = reply.tick;
                (p.epoch, p.serial, p.lease) = (reply.epoch, reply.serial, None);
                p.filters = std::array::from_fn(|g| if kept(g) { reply.bits[g] } else { 0 });
            }
            ReplyKind::News => {
                if reply.epoch != p.epoch || reply.from != p.serial {
                    return;
                }
                p.filters = std::array::from_fn(|g| if kept(g) { p.filters[g] | reply.bits[g] } else { 0 });
                self.invalidate(p, &reply);
                p.announced |= reply.announced && manifest.loaded == 0;
                if reply.tick != 0 {
                    p.times.announced = reply.tick;
                }
                let moved_on = p.serial != reply.serial;
                p.serial = reply.serial;
                if reply.leased {
                    p.lease = Some(reply.serial);
                } else if moved_on && !self.is(Mutant::LeaseOutlivesItsSerial) {
                    // To acknowledge a serial ends the grants below it.
                    p.lease = None;
                }
            }
        }
        p.times.published = p.times.published.max(reply.published_tick);
    }

    /// The oldest grant expires, and with it what it made usable. (A holder's clocks let it go no later than the grantor's.)
    pub(super) fn expire(&self, s: &mut State, pnode: usize) {
        let epoch = self.epoch(s);
        let p = &mut s.pnodes[pnode];
        let serial = p.grants.trailing_zeros() as u8;
        p.grants &= p.grants - 1;
        if p.epoch == epoch && p.lease == Some(serial) {
            p.lease = None;
        }
        for reply in &mut p.replies {
            reply.leased &= !(reply.epoch == epoch && reply.serial == serial);
        }
    }

    pub(super) fn expire_old(&self, s: &mut State, pnode: usize) {
        let epoch = self.epoch(s);
        let p = &mut s.pnodes[pnode];
        p.old_grant = false;
        if p.epoch != epoch {
            p.lease = None;
        }
        for reply in &mut p.replies {
            reply.leased &= reply.epoch == epoch;
        }
    }
}
