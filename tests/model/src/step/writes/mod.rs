//! Writes: from a client's request to the publication of its group. Here is which of their steps may happen.
//!
//! * [`requests`]: what clients send, and send again.
//! * [`sequencer`]: requests become a proposed group, which is appended or refused.
//! * [`verdict`]: what one request comes to.
//! * [`duplicates`]: what is remembered of requests.
//! * [`ring`]: bits, and a new incarnation of their ring.
//! * [`publication`]: commits, the publish rule, and the answers that wait for it.

mod duplicates;
mod publication;
mod requests;
mod ring;
mod sequencer;
mod verdict;

use super::{Action, Protocol};
use crate::state::log::EntryKind;
use crate::state::{Outcome, State, WriteKind};

impl Protocol {
    pub(in crate::step) fn write_actions(&self, s: &State, out: &mut Vec<Action>) {
        let bounds = &self.bounds;
        let unsent = (0..bounds.writes).find(|w| s.writes[*w].outcome == Outcome::Unsent);
        for kind in &bounds.kinds {
            // Writes are interchangeable until they begin.
            let Some(write) = unsent else { break };
            let sets = if bounds.keys == 1 { 1..=1 } else { 1..=3 };
            for keys in sets.filter(|k| *k != 3 || (bounds.batches && *kind == WriteKind::Update)) {
                // Only a search depends on who does it.
                let pnodes = if kind.needs_base() { bounds.pnodes } else { 1 };
                let expires = if *kind == WriteKind::Delete { &[0][..] } else { &bounds.expiries };
                let kind = *kind;
                let begins = |expires: u8| move |pnode| Action::Begin { write, kind, keys, expires, pnode };
                out.extend(expires.iter().flat_map(|expires| (0..pnodes).map(begins(*expires))));
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
        if self.holds_groups(s) {
            return;
        }
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
}
