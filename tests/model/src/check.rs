//! What has to hold.
//!
//! The order of writes is the log's. An operation that completed, or a read that saw something, raises its key's *floor*: the
//! oldest position that an operation which begins later may see. A read has to find its result at some position from its floor
//! to the newest committed one, and takes the oldest such: so the floors constrain the least, and the check is exact.

use crate::state::log::EntryKind;
use crate::state::{Cell, Outcome, State, WriteKind, keys_of};
use crate::step::Protocol;

impl Protocol {
    /// A read of a key returned a value, or "absent" ([`Cell::NOTHING`]).
    pub(crate) fn check_read(&self, s: &mut State, key: usize, floor: u8, got: Cell) -> Result<(), String> {
        let matches = |at: u8| {
            let value = s.value_at(key, at);
            if got.is_value() { value == got } else { !value.is_value() }
        };
        match (floor..=s.committed).find(|at| matches(*at)) {
            Some(at) => {
                self.raise_floor(s, key, at);
                Ok(())
            }
            None if got.is_value() && (0..floor).any(matches) => {
                Err(format!("stale read of key {key}: {got:?} was overwritten before the read began"))
            }
            None if got.is_value() => Err(format!("read of key {key}: {got:?} comes from nowhere")),
            None => Err(format!("read of key {key}: absent, but the key existed all the time")),
        }
    }

    /// A scan returned this of the keys: all of one position, which none of them may be too old for.
    pub(crate) fn check_scan(&self, s: &mut State, got: &[Cell]) -> Result<(), String> {
        let is_as_seen = |key: usize, at: u8| {
            let value = s.value_at(key, at);
            if got[key].is_value() { value == got[key] } else { !value.is_value() }
        };
        let keys = 0..got.len();
        let floor = keys.clone().map(|key| s.floor[key]).max().unwrap_or(0);
        let Some(at) = (floor..=s.committed).find(|at| keys.clone().all(|key| is_as_seen(key, *at))) else {
            return Err(format!("a scan returned {got:?}, which was there at no position from {floor} on"));
        };
        keys.for_each(|key| self.raise_floor(s, key, at));
        Ok(())
    }

    /// An operation saw a key as it was at a position, or later. Time is all keys': whoever reads another one after that may not find
    /// it earlier either.
    fn raise_floor(&self, s: &mut State, key: usize, at: u8) {
        let keys = if self.bounds.ticks == 0 { key..key + 1 } else { 0..self.bounds.keys };
        s.floor[keys].iter_mut().for_each(|floor| *floor = (*floor).max(at));
    }

    /// Whether a write's condition holds on a state of a key.
    fn holds(kind: WriteKind, cell: Cell) -> bool {
        match kind {
            WriteKind::Insert => !cell.is_value(),
            WriteKind::Replace => cell.is_value(),
            _ => true,
        }
    }

    /// An entry is committed for good.
    pub(crate) fn check_committed(&self, s: &State, at: u8) -> Result<(), String> {
        let entry = s.log[usize::from(at) - 1];
        if entry.kind != EntryKind::Group {
            return Ok(());
        }
        let mut earlier: Vec<usize> = Vec::new();
        for (write, asked) in entry.asked() {
            if !asked.applied {
                continue;
            }
            let w = &s.writes[write];
            for key in keys_of(w.keys) {
                let in_group = earlier.iter().rev().find(|e| s.writes[**e].keys & (1 << key) != 0);
                let before = in_group.map_or_else(|| s.value_at(key, at - 1), |e| s.cell_of(*e));
                let before = if s.has_expired(before, at) { Cell::NOTHING } else { before };
                if !Self::holds(w.kind, before) {
                    return Err(format!("{} of key {key} took effect on {before:?}", w.kind.name()));
                }
            }
            if w.outcome == Outcome::Failed {
                return Err(format!("write {write} took effect after its client was told that it failed"));
            }
            if s.effects_of(write).any(|other| other < at) {
                return Err(format!("write {write} took effect twice"));
            }
            earlier.push(write);
        }
        Ok(())
    }

    /// A client gets its answer.
    pub(crate) fn complete(&self, s: &mut State, write: usize, ok: bool) -> Result<(), String> {
        let w = s.writes[write];
        if w.outcome != Outcome::Pending {
            return Ok(());
        }
        let effect = s.effects_of(write).find(|at| *at <= s.committed);
        match (ok, effect) {
            (true, None) => {
                return Err(format!("write {write} is acknowledged, and its entry is not committed"));
            }
            (true, Some(at)) => {
                keys_of(w.keys).for_each(|key| self.raise_floor(s, key, at));
            }
            (false, Some(_)) => return Err(format!("write {write} failed, and took effect")),
            (false, None) => {
                for key in keys_of(w.keys) {
                    let fails = |at: &u8| !Self::holds(w.kind, s.value_at(key, *at));
                    let Some(at) = (w.floor[key]..=s.committed).find(fails) else {
                        return Err(format!(
                            "{} of key {key} failed, and nothing explains it",
                            w.kind.name()
                        ));
                    };
                    self.raise_floor(s, key, at);
                }
            }
        }
        let w = &mut s.writes[write];
        w.outcome = if ok { Outcome::Ok } else { Outcome::Failed };
        (w.floor, w.deferred, w.deferred_after, w.unknown) = Default::default();
        Ok(())
    }

    /// From every state everything appended can be published, although every p-node goes on renewing its lease and never
    /// acknowledges: only grants made before a group may delay it.
    pub(crate) fn check_progress(&self, s: &State) -> Result<(), String> {
        if s.published == s.len && !s.proposal.on {
            return Ok(());
        }
        let mut s = s.clone();
        if s.proposal.on {
            self.finish_forming(&mut s)?;
            self.append_proposal(&mut s)?;
        }
        self.renew_newest_grants(&mut s);
        while s.published < s.len {
            if self.next_published(&s).is_none() {
                if s.known_committed == s.len {
                    return Err(format!("entry {} can never be published", s.published + 1));
                }
                self.commit(&mut s)?;
                // It may have begun a new ring.
                self.renew_newest_grants(&mut s);
                continue;
            }
            self.publish(&mut s, false)?;
        }
        let waits = |w: &crate::state::Write| w.outcome == Outcome::Pending && w.deferred.is_some();
        match s.writes.iter().position(waits) {
            Some(write) => Err(format!("write {write} is never answered")),
            None => Ok(()),
        }
    }

    /// The newest grant is renewed for ever; all older ones expire.
    fn renew_newest_grants(&self, s: &mut State) {
        for pnode in 0..self.bounds.pnodes {
            let p = &mut s.pnodes[pnode];
            (p.grants, p.old_grant) = (1 << s.serial, false);
        }
    }
}
