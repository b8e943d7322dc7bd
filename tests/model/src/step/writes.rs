//! Writes: from a client's request to the publication of its group.

use sextant_common::ids::{Generation, ManifestVersion, Serial};
use sextant_memtable_server::partition::evaluate::{Base, Refusal};
use sextant_memtable_server::partition::rules::{self, Asks, InMemtable};
use sextant_memtable_server::publication::{Appended, Next, Permission, PublishQueue, forbids};
use sextant_pnode::rules::Carry;

use super::{Action, Protocol};
use crate::Mutant;
use crate::state::log::{Asked, Entry, EntryKind};
use crate::state::{Bit, Cell, Keys, Outcome, Proposal, RequestCopy, State, What, WriteKind, keys_of};

/// What the duplicate table says of one request.
enum Seen {
    New,
    Answered { applied: bool },
    Forgotten,
}

/// What the sequencer says of one request.
enum Verdict {
    Applied { bits: Keys },
    Failed,
    Stale,
}

impl Protocol {
    pub(super) fn write_actions(&self, s: &State, out: &mut Vec<Action>) {
        let bounds = &self.bounds;
        let unsent = (0..bounds.writes).find(|w| s.writes[*w].outcome == Outcome::Unsent);
        for kind in &bounds.kinds {
            // Writes are interchangeable until they begin.
            let Some(write) = unsent else { break };
            let sets = if bounds.keys == 1 { 1..=1 } else { 1..=3 };
            for keys in sets.filter(|k| *k != 3 || (bounds.batches && *kind == WriteKind::Update)) {
                // Only a search depends on who does it.
                let pnodes = if kind.needs_base() { bounds.pnodes } else { 1 };
                out.extend((0..pnodes).map(|pnode| Action::Begin { write, kind: *kind, keys, pnode }));
            }
        }
        for (write, w) in s.writes.iter().enumerate() {
            if self.may_resend(s, write) {
                let pnodes = if w.kind.needs_base() { bounds.pnodes } else { 1 };
                out.extend((0..pnodes).map(|pnode| Action::Resend { write, pnode }));
            }
        }
        // Entries go through one door: none gets between a group's evaluation and its append.
        let forgets = s.entries().filter(|(_, e)| e.kind == EntryKind::Forget).count();
        if bounds.sessions && forgets < usize::from(bounds.session_expiries) && !s.proposal.on {
            let begun = (0..bounds.writes).filter(|w| s.writes[*w].outcome != Outcome::Unsent);
            out.extend(begun.filter(|w| !s.is_forgotten(*w)).map(|write| Action::Forget { write }));
        }
        let changes = s.entries().filter(|(_, e)| e.kind == EntryKind::Configure).count();
        if changes < usize::from(bounds.mode_changes) && !s.proposal.on {
            out.push(Action::Configure);
        }
        if self.forming_actions(s, out) {
            // It does one thing at a time.
        } else if s.proposal.on {
            out.push(Action::Append);
            if s.refusals < bounds.refusals {
                out.push(Action::Refuse);
            }
        } else {
            self.evaluations(s, out);
        }
        if s.known_committed < s.len {
            out.push(Action::Commit);
        }
        if self.is_to_be_shown(s) {
            out.push(Action::Show);
        } else if self.next_published(s).is_some() {
            out.push(Action::Publish { lost: false });
            let answers = s.log[usize::from(s.published)]
                .asked()
                .any(|(w, a)| a.waits && s.writes[w].outcome == Outcome::Pending);
            if bounds.retries > 0 && answers {
                out.push(Action::Publish { lost: true });
            }
        }
    }

    fn evaluations(&self, s: &State, out: &mut Vec<Action>) {
        let copies: Vec<(usize, usize)> = s
            .writes
            .iter()
            .enumerate()
            .flat_map(|(w, write)| (0..2).filter(|c| write.copies[*c].sent).map(move |c| (w, c)))
            .collect();
        for first in &copies {
            out.push(Action::Evaluate { first: *first, second: None });
            if self.bounds.shared_groups {
                let others = copies.iter().filter(|second| second.0 != first.0);
                out.extend(others.map(|second| Action::Evaluate { first: *first, second: Some(*second) }));
            }
        }
    }

    /// Whether an answer to the write is on its way, or a copy of it is.
    fn is_under_way(&self, s: &State, write: usize) -> bool {
        let w = &s.writes[write];
        w.copies.iter().any(|c| c.sent)
            || w.deferred.is_some()
            || s.proposal.on && s.proposal.asked.iter().any(|a| a.write() == Some(write))
            || s.entries().any(|(_, e)| e.asked().any(|(of, a)| of == write && a.waits))
    }

    fn may_resend(&self, s: &State, write: usize) -> bool {
        let w = &s.writes[write];
        if w.outcome != Outcome::Pending || w.copies.iter().all(|c| c.sent) {
            return false;
        }
        // After a certain "not executed" the client sends it again. Else only under a session.
        let certain = !w.unknown && !self.is_under_way(s, write);
        certain || (self.bounds.sessions && s.retries < self.bounds.retries)
    }

    pub(super) fn begin(&self, s: &mut State, write: usize, kind: WriteKind, keys: Keys, pnode: usize) {
        let floor = s.floor;
        let w = &mut s.writes[write];
        (w.kind, w.keys, w.outcome, w.floor) = (kind, keys, Outcome::Pending, floor);
        self.send(s, write, pnode);
    }

    pub(super) fn resend(&self, s: &mut State, write: usize, pnode: usize) {
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
                    None => self.search(s, copy.searched, key),
                };
                copy.present |= u8::from(cell.is_value()) << key;
                copy.matched |= u8::from(cell != Cell::NOTHING) << key;
            }
        }
        let free = usize::from(w.copies[0].sent);
        s.writes[write].copies[free] = copy;
    }

    pub(super) fn evaluate(
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
    pub(super) fn put_out(&self, s: &mut State) -> Result<(), String> {
        s.proposal.out = true;
        if self.is(Mutant::BitsAfterPublication) {
            return Ok(());
        }
        let (before, proposal) = (s.serial, s.proposal);
        for asked in proposal.asked {
            self.push_bits(s, proposal.generation, asked.bits)?;
        }
        self.put_out_invalidations(s)?;
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

    fn push_bits(&self, s: &mut State, generation: u8, bits: Keys) -> Result<(), String> {
        s.filters[usize::from(generation) - 1] |= bits;
        for key in keys_of(bits) {
            self.push(s, Bit { generation, key: key as u8 })?;
        }
        Ok(())
    }

    pub(super) fn push(&self, s: &mut State, bit: Bit) -> Result<(), String> {
        if s.push_bit(bit) { Ok(()) } else { Err("the model's ring is too short for these bounds".into()) }
    }

    /// The duplicate table.
    fn seen(&self, s: &State, write: usize) -> Seen {
        if !self.bounds.sessions || self.is(Mutant::NoDuplicateTable) {
            return Seen::New;
        }
        if s.is_forgotten(write) {
            return if self.is(Mutant::ForgottenExecuted) { Seen::New } else { Seen::Forgotten };
        }
        if s.ghosts & (1 << write) != 0 {
            return Seen::Answered { applied: true };
        }
        if s.remembered & (1 << write) != 0 {
            return Seen::Answered { applied: false };
        }
        s.remembered_in_log(write).map_or(Seen::New, |(_, applied)| Seen::Answered { applied })
    }

    /// The session of a request is forgotten.
    pub(super) fn forget(&self, s: &mut State, write: usize) -> Result<(), String> {
        self.append(s, Entry { kind: EntryKind::Forget, inputs: 1 << write, ..Entry::default() })
    }

    fn decide(&self, s: &State, write: usize, copy: usize, effects: &[Option<usize>; 2]) -> Verdict {
        let w = &s.writes[write];
        let copy = &w.copies[copy];
        let manifest = self.manifest(s);
        let (active, replaced) = (s.generation(), self.replaced(s));
        let asks = match w.kind {
            WriteKind::Insert => Asks::Absent,
            WriteKind::Replace => Asks::Present,
            _ => Asks::Nothing,
        };
        let mut bits = 0;
        for key in keys_of(w.keys) {
            let earlier = effects.iter().flatten().rev().find(|e| s.writes[**e].keys & (1 << key) != 0);
            let in_memtable = s.newest(key, s.len, |g| !manifest.is_flushed(g) && g > replaced);
            let newest = match (earlier, in_memtable) {
                (Some(earlier), _) => Some(s.cell_of(*earlier)),
                (None, Some(version)) => Some(version.cell),
                (None, None) => None,
            };
            let facts =
                newest.map(|cell| InMemtable { exists: cell.is_value(), seq: 0, value_matches: false });
            let base = w.kind.needs_base().then_some(Base {
                manifest: ManifestVersion(u64::from(copy.searched)),
                present: copy.present & (1 << key) != 0,
                seq: 0,
                value_matches: false,
            });
            let last_flush = match () {
                _ if self.is(Mutant::InsertNotVoided) => 0,
                _ if self.bases_are_void(s) => u8::MAX,
                _ => manifest.last_flush,
            };
            match rules::check(asks, facts, base, ManifestVersion(u64::from(last_flush))) {
                Ok(checked) if checked.holds => {}
                Ok(_) => return Verdict::Failed,
                Err(Refusal::StaleManifest) => return Verdict::Stale,
                Err(_) => return Verdict::Stale,
            }
            let by_filter = self.is(Mutant::FilterSaysInMemtable) || self.is(Mutant::FilterSaysWithNewRing);
            let in_active = if by_filter {
                s.filters[usize::from(active) - 1] & (1 << key) != 0
            } else {
                earlier.is_some() || in_memtable.is_some_and(|v| v.generation == active)
            };
            // A blind put may be treated as an INSERT if no SSTable filter of the current manifest matches the key, and no
            // frozen memtable holds it.
            let in_frozen = in_memtable.is_some_and(|v| v.generation != active);
            let put_as_insert = w.kind == WriteKind::Put
                && copy.matched & (1 << key) == 0
                && copy.searched >= manifest.last_flush
                && !self.bases_are_void(s)
                && (!in_frozen || self.is(Mutant::PutAsInsertOverFrozen));
            let is_insert = asks.is_insert() || put_as_insert;
            let leaves = rules::leaves_bit(in_active, is_insert, self.bounds.filter_inserts);
            bits |= u8::from(leaves) << key;
        }
        Verdict::Applied { bits }
    }

    pub(crate) fn append_proposal(&self, s: &mut State) -> Result<(), String> {
        let proposal = std::mem::take(&mut s.proposal);
        for (asked, copy) in proposal.asked.iter().zip(proposal.copies) {
            if let Some(write) = asked.write() {
                s.writes[write].copies[usize::from(copy)] = RequestCopy::default();
            }
        }
        let current = s.generation();
        let fits = rules::fits(Generation(u64::from(proposal.generation)), Generation(u64::from(current)));
        if !fits && !self.is(Mutant::FreezeSlipsIn) {
            // Every replica ignores it; its clients may send it again.
            self.ignored(s, &proposal);
            return Ok(());
        }
        if proposal.what != What::Group {
            return self.append_load(s, &proposal);
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
    pub(super) fn refuse(&self, s: &mut State) {
        let proposal = std::mem::take(&mut s.proposal);
        s.refusals += 1;
        self.read_announcement(s);
        let stay = self.is(Mutant::RefusedBitsStay) || self.is(Mutant::FilterSaysInMemtable);
        if proposal.serial != 0 && !stay {
            self.renew_ring(s);
        }
    }

    /// The leases' other mode, as an entry: it takes effect when it is committed.
    pub(super) fn configure(&self, s: &mut State) -> Result<(), String> {
        self.append(s, Entry { kind: EntryKind::Configure, ..Entry::default() })
    }

    /// A new incarnation of the ring, at serial 0. Whatever is appended or proposed waits for the old one's leases as a whole, and
    /// for no serial any more: those that it has are of a ring that is gone.
    pub(super) fn renew_ring(&self, s: &mut State) {
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
            queue.push(Appended { index, last_seq: index, serial, waiting: () });
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
    fn answer_later(&self, s: &mut State, write: usize, ok: bool, after: u8) -> Result<(), String> {
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

    /// What a cache has of a key at the p-node's manifest; the stamp that it has then.
    pub(super) fn cached(&self, s: &State, pnode: usize, key: usize) -> Option<(Cell, u8)> {
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
