//! Loads: a table from outside replaces everything that was there (or, if it is empty, drops it). No client wrote that, and no bit
//! leads to it, so it is announced: when the announcement is published, whoever holds a lease asks the leader for every key, until
//! he uses the load's manifest. Then the load is proposed, with a seq of its own, and everything that was kept is invalidated.
//!
//! It ends all memtables before it, as a freeze and a flush would. It is shown (by manifest, and by the answer that older ones are
//! stale) when it may be published, and its seq is published after that: two stores, and reads go on between them.
//!
//! What the servers do (`adopted`) is another kind: tables come on top of others, when everything before is flushed and no lease lives.
//! Nothing announces it, and none of its seqs is swapped into slots. It is shown when it is committed, and the ring begins anew: so what
//! was kept ends, and whoever gets a lease gets its manifest. (In the model it brings every key, so "on top" is "instead".)
//! A table that is dropped goes in the same way, with what its memtables have.

use super::{Action, Protocol};
use crate::Mutant;
use crate::state::log::{Entry, EntryKind, NO_SST};
use crate::state::{Bit, Cell, KEYS, Proposal, State, What};

impl Protocol {
    pub(super) fn load_actions(&self, s: &State, out: &mut Vec<Action>) {
        if self.bounds.loads == 0 {
            return;
        }
        let early = self.is(Mutant::LoadPublishedFirst);
        if early && !s.shown && s.load().is_some_and(|(at, _)| at <= s.published) {
            out.push(Action::Show);
        }
        if s.proposal.on || s.late != 0 || s.load().is_some() {
            return;
        }
        if self.bounds.adopted {
            if self.may_adopt(s) {
                out.push(Action::Load);
            }
            return;
        }
        match s.announcement() {
            _ if self.is(Mutant::LoadNotAnnounced) || self.is(Mutant::LoadAnnouncesItself) => {
                out.push(Action::Load);
            }
            None => out.push(Action::Announce),
            Some(at) if at <= s.published || self.is(Mutant::LoadProposedEarly) => out.push(Action::Load),
            Some(_) => {}
        }
    }

    /// The leader serves, everything before is flushed (unless it goes with a table that is dropped), and no lease is in use.
    fn may_adopt(&self, s: &State) -> bool {
        let (active, is_drop) = (s.generation(), self.bounds.loaded == Cell::NOTHING);
        let is_flushed = is_drop || self.manifest(s).next_to_flush() == active && s.is_empty(active);
        let is_leased = s.pnodes.iter().any(|p| p.grants != 0 || p.old_grant);
        self.serves(s) && is_flushed && (!is_leased || self.is(Mutant::LoadUnderLease))
    }

    /// A load of the servers' kind is on its way: from the moment that it is proposed until it is shown.
    fn is_adopting(&self, s: &State) -> bool {
        let is_proposed = s.proposal.on && s.proposal.what == What::Load;
        self.bounds.adopted && (is_proposed || (s.load().is_some() && !s.shown))
    }

    /// No lease is granted meanwhile.
    pub(super) fn withholds(&self, s: &State) -> bool {
        self.is_adopting(s) && !self.is(Mutant::LoadGrantsOn)
    }

    /// Nor is a group formed: it could know nothing of what is loaded.
    pub(super) fn holds_groups(&self, s: &State) -> bool {
        self.is_adopting(s) && !self.is(Mutant::BaseOverLoad)
    }

    /// It is shown as soon as it is committed.
    pub(super) fn show_if_committed(&self, s: &mut State) {
        let is_committed = s.load().is_some_and(|(at, _)| at <= s.known_committed);
        if self.bounds.adopted && is_committed && !s.shown {
            self.show(s);
            if !self.is(Mutant::LoadKeepsRing) && !self.is(Mutant::LoadRenewsEarly) {
                self.renew_ring(s);
            }
            self.loaded(s);
        }
    }

    /// What the log says, to a new leader; and to one whose announcement was refused.
    pub(super) fn read_announcement(&self, s: &mut State) {
        s.announced = !s.shown && (s.announcement().is_some() || s.load().is_some());
    }

    /// What whole filters say.
    pub(super) fn is_announced(&self, s: &State) -> bool {
        let appended = !self.is(Mutant::AnnouncedWhenAppended) || s.announcement().is_some();
        s.announced && appended && !self.is(Mutant::WholeFiltersWithoutAnnouncement)
    }

    /// An announcement, or the load itself, is to be proposed.
    pub(super) fn propose(&self, s: &mut State, what: What) -> Result<(), String> {
        s.proposal = Proposal { on: true, what, generation: s.generation(), ..Proposal::default() };
        if self.bounds.adopted {
            s.proposal.out = true;
            if self.is(Mutant::LoadRenewsEarly) {
                self.renew_ring(s);
            }
            return Ok(());
        }
        self.begin_swaps(s)
    }

    pub(super) fn put_out_announcement(&self, s: &mut State) -> Result<(), String> {
        s.announced = true;
        self.push(s, Bit::ANNOUNCEMENT)
    }

    pub(super) fn put_out_load(&self, s: &mut State) -> Result<(), String> {
        if self.is(Mutant::LoadAnnouncesItself) {
            self.put_out_announcement(s)?;
        }
        match self.is(Mutant::LoadInvalidatesNothing) {
            true => Ok(()),
            false => self.push(s, Bit::invalidation(self.all_slots())),
        }
    }

    pub(super) fn append_load(&self, s: &mut State, proposal: &Proposal) -> Result<(), String> {
        let Proposal { what, generation, serial, .. } = *proposal;
        if what == What::Announcement {
            return self.append(s, Entry { kind: EntryKind::Announce, serial, ..Entry::default() });
        }
        let mut sst = NO_SST;
        if self.bounds.loaded != Cell::NOTHING {
            sst = s.free_sst().ok_or("the model has too few tables for these bounds")?;
            s.ssts[usize::from(sst)] = [self.bounds.loaded; KEYS];
        }
        self.append(s, Entry { kind: EntryKind::Load, generation, serial, sst, ..Entry::default() })
    }

    /// The memtables up to this one are older than a load in the log: whoever evaluates after it sees nothing of them.
    pub(super) fn replaced(&self, s: &State) -> u8 {
        s.load().map_or(0, |(_, generation)| generation)
    }

    /// While a load is in the log and not shown, no p-node can have searched what it brings.
    pub(super) fn bases_are_void(&self, s: &State) -> bool {
        s.load().is_some() && !s.shown && !self.is(Mutant::BaseOverLoad)
    }

    /// Whether a load is next to be published, and readers do not have its manifest yet.
    pub(super) fn is_to_be_shown(&self, s: &State) -> bool {
        let Some((at, _)) = s.load() else { return false };
        !s.shown && !self.is(Mutant::LoadPublishedFirst) && self.next_published(s) == Some(at)
    }

    /// Readers are given the load's manifest; those of older ones are told that they are stale, without a grace.
    pub(super) fn show(&self, s: &mut State) {
        (s.shown, s.announced) = (true, false);
        let manifest = self.manifest(s);
        for generation in (1..=s.filters.len() as u8).filter(|g| manifest.is_flushed(*g)) {
            s.filters[usize::from(generation) - 1] = 0;
        }
        if !self.is(Mutant::LoadInGrace) {
            s.dropped = manifest.last_flush;
        }
        if self.is(Mutant::LoadPublishedFirst) {
            self.loaded(s);
        }
    }

    /// The load's seq is published.
    pub(super) fn publish_load(&self, s: &mut State) {
        if self.is(Mutant::LoadPublishedFirst) {
            return;
        }
        if !s.shown {
            self.show(s);
        }
        self.loaded(s);
    }

    /// Whoever asked for it is told.
    fn loaded(&self, s: &mut State) {
        let Some((at, _)) = s.load() else { return };
        s.floor[..self.bounds.keys].iter_mut().for_each(|floor| *floor = (*floor).max(at));
    }
}
