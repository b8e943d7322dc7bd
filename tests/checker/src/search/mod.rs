//! The search for a legal order of the operations on one key, blind to versions.
//!
//! Wing and Gong's search with Lowe's list and memo: at each point the operations that may come next are those called before
//! the first return of the rest. What is added to it, none of which can miss an order:
//!
//! * Operations that never change a state are placed as soon as they are legal: placing one earlier harms nothing.
//! * A state that somebody still has to see, and that nobody left can bring back, is not overwritten.
//! * Unknown writes that are interchangeable are placed in the order of their calls (see [`prepare`]).
//!
//! * Contradictions between values that were written once are found beforehand (see [`zones`]).
//! * A position is hopeless if one is that differs only in having used fewer unknown writes.

mod entries;
mod evidence;
mod memo;
mod prepare;
mod zones;

use self::entries::Entries;
pub(crate) use self::evidence::{DeadEnd, Evidence};
use self::memo::{Memo, Position};
use self::prepare::{Prepared, Role};
use crate::history::{ABSENT, Op, Value};
use crate::register::Step;

/// What the search found for a key.
#[derive(Debug, PartialEq)]
pub(crate) enum Found {
    Legal,
    Illegal(Evidence),
    /// The steps were not enough.
    BudgetExceeded,
}

/// How many of the operations placed last a dead end remembers.
const LAST_PLACED: usize = 8;

/// `budget`: operations looked at, at most. Time and memory are proportional to what is used of it.
pub(crate) fn search(ops: &[Op], budget: u64) -> Found {
    let prepared = Prepared::new(ops);
    if let Some(evidence) = prepared.value_from_nowhere().or_else(|| zones::contradiction(&prepared)) {
        return Found::Illegal(evidence);
    }
    Search::new(&prepared, budget).run()
}

/// A point at which there was a choice.
struct Choice {
    position: Position,
    /// Operations placed before it.
    placed: usize,
    /// Its first candidate, and the first that was not tried yet.
    candidates: usize,
    next: usize,
    /// What was placed to get here, and the state before that.
    by: Option<(u32, Value)>,
}

struct Search<'p> {
    prepared: &'p Prepared,
    /// Operations that are not placed.
    entries: Entries,
    state: Value,
    /// The operations placed: as sets, in order, and those of them that may change a state.
    sets: Position,
    order: Vec<u32>,
    writers: Vec<u32>,
    mandatory_left: usize,
    /// By state: how many mandatory operations left need it, and how many of all left may bring it about.
    needs: Vec<u32>,
    producers: Vec<u32>,
    choices: Vec<Choice>,
    /// Of all open choices.
    candidates: Vec<u32>,
    memo: Memo,
    steps_left: u64,
    furthest: Option<DeadEnd>,
}

impl<'p> Search<'p> {
    fn new(prepared: &'p Prepared, budget: u64) -> Self {
        let mut needs = vec![0; prepared.states];
        let mut producers = vec![0; prepared.states];
        for item in &prepared.items {
            if let Some(state) = item.needs() {
                needs[state as usize] += 1;
            }
            if let Some(state) = item.action.produces() {
                producers[state as usize] += 1;
            }
        }
        Self {
            entries: Entries::new(&prepared.items),
            state: ABSENT,
            sets: Position::start(prepared.optional),
            order: Vec::with_capacity(prepared.items.len()),
            writers: Vec::new(),
            mandatory_left: prepared.items.iter().filter(|item| item.is_mandatory()).count(),
            needs,
            producers,
            choices: Vec::new(),
            candidates: Vec::new(),
            memo: Memo::default(),
            steps_left: budget,
            furthest: None,
            prepared,
        }
    }

    fn run(mut self) -> Found {
        self.open_choice(None);
        loop {
            if self.mandatory_left == 0 {
                return Found::Legal;
            }
            if self.steps_left == 0 {
                return Found::BudgetExceeded;
            }
            let Some(choice) = self.choices.last_mut() else {
                // An illegal history has met at least one dead end.
                return self
                    .furthest
                    .map_or(Found::Legal, |dead_end| Found::Illegal(Evidence::DeadEnd(dead_end)));
            };
            let Some(&item) = self.candidates.get(choice.next) else {
                self.close_choice();
                continue;
            };
            choice.next += 1;
            self.steps_left -= 1;
            if self.buries_a_needed_state(item) {
                continue;
            }
            let before = self.state;
            self.place(item);
            if self.memo.is_hopeless(&self.sets, self.state) {
                self.unplace(item, before);
            } else {
                self.open_choice(Some((item, before)));
            }
        }
    }

    /// Places what is free to be placed, and collects the candidates among the rest: the operation that must return first,
    /// then the other acknowledged ones, then unknown writes.
    fn open_choice(&mut self, by: Option<(u32, Value)>) {
        let position = self.sets.clone();
        let placed = self.order.len();
        let candidates = self.candidates.len();
        let mut unknown = Vec::new();
        let mut cursor = self.entries.first();
        while let Some(item) = self.entries.called(cursor) {
            self.steps_left = self.steps_left.saturating_sub(1);
            let what = &self.prepared.items[item as usize];
            let step = what.action.step(self.state);
            let next = self.entries.next(cursor);
            match what.role {
                _ if step == Step::Illegal => {}
                Role::Mandatory if what.action.is_pure() => {
                    cursor = self.entries.next_but(cursor, item);
                    self.place(item);
                    continue;
                }
                Role::Mandatory => self.candidates.push(item),
                _ if step == Step::Legal(self.state) => {}
                Role::Unique => unknown.push(item),
                role => {
                    if !unknown.iter().any(|other: &u32| self.prepared.items[*other as usize].role == role) {
                        unknown.push(item);
                    }
                }
            }
            cursor = next;
        }
        if let Some(due) = self.entries.first_return(cursor)
            && let Some(at) = self.candidates[candidates..].iter().position(|item| *item == due)
        {
            self.candidates[candidates..=candidates + at].rotate_right(1);
        }
        self.candidates.extend(unknown);
        self.choices.push(Choice { position, placed, candidates, next: candidates, by });
    }

    /// Nothing led on from here.
    fn close_choice(&mut self) {
        let Some(choice) = self.choices.pop() else { return };
        if self.furthest.as_ref().is_none_or(|f| self.order.len() > f.placed) {
            self.furthest = Some(self.dead_end());
        }
        self.candidates.truncate(choice.candidates);
        while self.order.len() > choice.placed
            && let Some(&item) = self.order.last()
        {
            self.unplace(item, self.state);
        }
        self.memo.note_hopeless(choice.position, self.state);
        if let Some((item, before)) = choice.by {
            self.unplace(item, before);
        }
    }

    fn place(&mut self, item: u32) {
        let what = &self.prepared.items[item as usize];
        if let Step::Legal(next) = what.action.step(self.state) {
            self.state = next;
        }
        self.sets.toggle(item, what.optional_index);
        self.order.push(item);
        if !what.action.is_pure() {
            self.writers.push(item);
        }
        self.mandatory_left -= usize::from(what.is_mandatory());
        if let Some(state) = what.needs() {
            self.needs[state as usize] -= 1;
        }
        if let Some(state) = what.action.produces() {
            self.producers[state as usize] -= 1;
        }
        self.entries.remove(item);
    }

    /// Takes back what was placed last.
    fn unplace(&mut self, item: u32, before: Value) {
        let what = &self.prepared.items[item as usize];
        self.entries.restore(item);
        if let Some(state) = what.action.produces() {
            self.producers[state as usize] += 1;
        }
        if let Some(state) = what.needs() {
            self.needs[state as usize] += 1;
        }
        self.mandatory_left += usize::from(what.is_mandatory());
        if !what.action.is_pure() {
            self.writers.pop();
        }
        self.order.pop();
        self.sets.toggle(item, what.optional_index);
        self.state = before;
    }

    /// Whether it would end a state that somebody left needs and nobody left can bring back.
    fn buries_a_needed_state(&self, item: u32) -> bool {
        let what = &self.prepared.items[item as usize];
        let state = self.state;
        if what.action.step(state) == Step::Legal(state) || self.producers[state as usize] > 0 {
            return false;
        }
        self.needs[state as usize] > u32::from(what.needs() == Some(state))
    }

    fn dead_end(&self) -> DeadEnd {
        let source = |item: &u32| self.prepared.items[*item as usize].source;
        let last = self.order[self.order.len().saturating_sub(LAST_PLACED)..].iter().map(source).collect();
        // Something mandatory is left, or this would be no dead end; so there is a return.
        let mut cursor = self.entries.first();
        while self.entries.called(cursor).is_some() {
            cursor = self.entries.next(cursor);
        }
        let stuck = self.entries.first_return(cursor).map_or(0, |item| source(&item));
        DeadEnd { placed: self.order.len(), last, stuck, written_by: self.writers.last().map(source) }
    }
}
