//! Expiry: ticks, and who judges by which whether a record has expired.
//!
//! A tick is proposed like a group, with one ring entry and no write; published, it changes what is visible of every record that
//! expires by it. Its time is any that is later than the newest in the log: so the leaders' clocks show anything, and a leader whose
//! clock is behind proposes none. What is right does not depend on ticks that are not in the log: [`State::has_expired`].

use sextant_common::expiry::{Life, is_expired, judge};

use super::{Action, Protocol};
use crate::Mutant;
use crate::state::log::{Entry, EntryKind};
use crate::state::pnode::Times;
use crate::state::{Bit, Cell, Proposal, State, What, tick};

impl Protocol {
    pub(super) fn tick_actions(&self, s: &State, out: &mut Vec<Action>) {
        if s.proposal.on || s.late != 0 {
            return;
        }
        let newest = s.time_at(s.len);
        let later = (newest + 1..=self.bounds.ticks).map(|time| Action::Tick { time });
        out.extend(later);
        if self.is(Mutant::TickGoesBack) && s.failovers > 0 {
            out.extend((1..newest).map(|time| Action::Tick { time }));
        }
    }

    pub(super) fn propose_tick(&self, s: &mut State, time: u8) -> Result<(), String> {
        let (on, what, generation) = (true, What::Tick, s.generation());
        s.proposal = Proposal { on, what, time, generation, ..Proposal::default() };
        self.put_out(s)
    }

    pub(super) fn put_out_tick(&self, s: &mut State) -> Result<(), String> {
        s.announced_tick = s.proposal.time;
        if self.is(Mutant::TickWaitsForNobody) { Ok(()) } else { self.push(s, Bit::tick(s.proposal.time)) }
    }

    /// It speaks of no memtable: a freeze may come between.
    pub(super) fn append_tick(&self, s: &mut State, proposal: &Proposal) -> Result<(), String> {
        let (serial, inputs) = (proposal.serial, proposal.time);
        self.append(s, Entry { kind: EntryKind::Tick, serial, inputs, ..Entry::default() })
    }

    /// What whole filters say.
    pub(super) fn announced_tick(&self, s: &State) -> u8 {
        if self.is(Mutant::WholeFiltersOfAppendedTicks) { s.time_at(s.len) } else { s.announced_tick }
    }

    /// The time that the leader reads at, which has loaded a published position.
    pub(super) fn time_of_read(&self, s: &State, position: u8) -> u8 {
        match () {
            _ if self.is(Mutant::TickNotPublished) => s.time_at(s.len),
            _ if self.is(Mutant::TickReadApart) => s.time_at(s.published),
            _ => s.time_at(position),
        }
    }

    /// The newest published tick, as the leader tells p-nodes.
    pub(super) fn published_tick(&self, s: &State) -> u8 {
        self.time_of_read(s, s.published)
    }

    /// The time by which the sequencer judges.
    pub(super) fn time_of_conditions(&self, s: &State) -> u8 {
        s.time_at(if self.is(Mutant::ConditionsByPublishedTick) { s.published } else { s.len })
    }

    /// Whether a merge takes a record for a tombstone.
    pub(super) fn merges_as_tombstone(&self, s: &State, cell: Cell) -> bool {
        let up_to = if self.is(Mutant::MergeByUnpublishedTick) { s.len } else { s.published };
        cell.is_tombstone() || is_expired(s.expires_at(cell), tick(s.time_at(up_to)))
    }

    /// What a record is, for a p-node that goes by these times.
    pub(super) fn life(&self, s: &State, cell: Cell, times: Times) -> Life {
        let expires_at = s.expires_at(cell);
        match judge(expires_at, times.ticks()) {
            // Its clock is ahead.
            _ if self.is(Mutant::ExpiryByOwnClock) && expires_at.is_some() => Life::Expired,
            Life::Unknown if self.is(Mutant::ExpiredByKnownTick) => Life::Expired,
            Life::Unknown if self.is(Mutant::AliveByPublishedTick) => Life::Alive,
            life => life,
        }
    }
}
