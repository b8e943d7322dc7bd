//! The duplicate table: what is remembered of requests, for as long as their sessions are.

use super::Protocol;
use crate::Mutant;
use crate::state::State;
use crate::state::log::{Entry, EntryKind};

/// What the duplicate table says of one request.
pub(super) enum Seen {
    New,
    Answered { applied: bool },
    Forgotten,
}

impl Protocol {
    /// The duplicate table.
    pub(super) fn seen(&self, s: &State, write: usize) -> Seen {
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
    pub(in crate::step) fn forget(&self, s: &mut State, write: usize) -> Result<(), String> {
        self.append(s, Entry { kind: EntryKind::Forget, inputs: 1 << write, ..Entry::default() })
    }
}
