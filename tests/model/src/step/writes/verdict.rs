//! What one request comes to, by the servers' own rules: whether its condition holds, and which bits it leaves.

use sextant_common::expiry::is_expired;
use sextant_common::ids::ManifestVersion;
use sextant_common::marks::Marks;
use sextant_common::operation::Base;
use sextant_memtable_server::partition::evaluate::Refusal;
use sextant_memtable_server::partition::rules::{self, Asks, InMemtable};

use super::Protocol;
use crate::Mutant;
use crate::state::{Cell, Keys, State, WriteKind, keys_of, tick};

/// What the sequencer says of one request.
pub(super) enum Verdict {
    Applied { bits: Keys },
    Failed,
    Stale,
}

impl Protocol {
    pub(super) fn decide(
        &self,
        s: &State,
        write: usize,
        copy: usize,
        effects: &[Option<usize>; 2],
    ) -> Verdict {
        let w = &s.writes[write];
        let copy = &w.copies[copy];
        let manifest = self.manifest(s);
        let (active, replaced) = (s.generation(), self.replaced(s));
        let asks = match w.kind {
            WriteKind::Insert => Asks::Absent,
            WriteKind::Replace => Asks::Present,
            _ => Asks::Nothing,
        };
        let now = tick(self.time_of_conditions(s));
        let mut bits = 0;
        for key in keys_of(w.keys) {
            let earlier = effects.iter().flatten().rev().find(|e| s.writes[**e].keys & (1 << key) != 0);
            let in_memtable = s.newest(key, s.len, |g| !manifest.is_flushed(g) && g > replaced);
            let newest = match (earlier, in_memtable) {
                (Some(earlier), _) => Some(s.cell_of(*earlier)),
                (None, Some(version)) => Some(version.cell),
                (None, None) => None,
            };
            let exists = |cell: Cell| cell.is_value() && !is_expired(s.expires_at(cell), now);
            let facts = newest.map(|cell| InMemtable { exists: exists(cell), seq: 0, value_matches: false });
            let found = copy.present & (1 << key) != 0;
            let expires = copy.expires[key];
            let base = Base {
                present: found,
                marks: if expires == 0 { Marks::NONE } else { Marks::until(tick(expires)) },
                ..Base::absent(ManifestVersion(u64::from(copy.searched)))
            };
            let base_expired = base.has_expired(now);
            let base = w.kind.needs_base().then_some(base.as_of(now));
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
            let expired = match newest {
                Some(cell) => cell.is_value() && !exists(cell),
                None => base_expired,
            };
            let counts = !expired || !self.is(Mutant::ExpiredLeavesNoBit);
            let in_frozen = counts && in_memtable.is_some_and(|v| v.generation != active);
            let matched = counts && copy.matched & (1 << key) != 0;
            let put_as_insert = w.kind == WriteKind::Put
                && !matched
                && copy.searched >= manifest.last_flush
                && !self.bases_are_void(s)
                && (!in_frozen || self.is(Mutant::PutAsInsertOverFrozen));
            // What has expired is there for whoever has not heard so: its INSERT is none.
            let is_insert = (asks.is_insert() && !(expired && counts)) || put_as_insert;
            if self.bounds.scans {
                bits |= u8::from(self.leaves_prefix(s, effects, is_insert));
                continue;
            }
            let leaves = rules::leaves_bit(in_active, is_insert, self.bounds.filter_inserts);
            bits |= u8::from(leaves) << key;
        }
        Verdict::Applied { bits }
    }

    /// Of any key: all begin alike.
    fn leaves_prefix(&self, s: &State, earlier: &[Option<usize>; 2], is_insert: bool) -> bool {
        let (active, manifest) = (s.generation(), self.manifest(s));
        let has_prefix = |generation: u8| {
            (0..self.bounds.keys).any(|key| s.newest(key, s.len, |g| g == generation).is_some())
        };
        let in_active = match () {
            _ if self.is(Mutant::FilterSaysPrefix) => s.filters[usize::from(active) - 1] & 1 != 0,
            _ if self.is(Mutant::FrozenPrefixCounts) => {
                (1..=active).any(|g| !manifest.is_flushed(g) && has_prefix(g))
            }
            _ => has_prefix(active),
        };
        let in_group = earlier.iter().flatten().next().is_some();
        let in_active = in_active || in_group || is_insert && self.is(Mutant::InsertLeavesNoPrefix);
        rules::leaves_prefix(in_active)
    }
}
