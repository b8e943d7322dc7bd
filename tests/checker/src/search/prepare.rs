//! What the search works on: the operations of a key with small state numbers, and unknown outcomes settled as far as they
//! can be without searching.
//!
//! * A value that no result names is like any other such value: all of them become one state, `UNSEEN`.
//! * An unknown write whose value somebody saw, and that nobody else wrote, did take effect, before the first who saw it
//!   returned: it becomes an acknowledged one that returned then.
//! * An unknown write that nobody can have noticed is dropped. A put of an unseen value goes unnoticed only if no result on
//!   the key reveals that there is *some* record; a delete, only if none depends on there being none.
//! * What remains is optional. Unknown puts of unseen values differ only in their calls, and so do unknown inserts of such
//!   values, and unknown deletes: if one of them is used, it may as well be the one that was called first.

use super::evidence::Evidence;
use crate::history::{ABSENT, Action, Op, Value};

/// The state of every record whose value nobody names.
const UNSEEN: Value = 1;

#[derive(Debug)]
pub(super) struct Prepared {
    pub items: Vec<Item>,
    /// Number of different states.
    pub states: usize,
    /// Number of unknown writes that may or may not take effect.
    pub optional: usize,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Item {
    pub action: Action,
    pub call: u64,
    pub ret: u64,
    pub role: Role,
    /// Its number among the unknown writes, if it is one of them.
    pub optional_index: Option<u32>,
    /// Index of the operation.
    pub source: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Has its place in every order.
    Mandatory,
    /// May take effect or not.
    Unique,
    /// The same, and interchangeable with the others of its kind.
    UnseenPut,
    UnseenInsert,
    Delete,
}

impl Item {
    pub fn is_mandatory(&self) -> bool {
        self.role == Role::Mandatory
    }

    /// The one state that it certainly has to meet.
    pub fn needs(&self) -> Option<Value> {
        self.action.needs().filter(|_| self.is_mandatory())
    }
}

impl Prepared {
    pub fn new(ops: &[Op]) -> Self {
        let named = named_values(ops);
        let states = named.len() + 2;
        let small = |value: Value| match named.binary_search(&value) {
            _ if value == ABSENT => ABSENT,
            Ok(at) => at as Value + 2,
            Err(_) => UNSEEN,
        };
        let mut items: Vec<Item> = ops
            .iter()
            .enumerate()
            .map(|(source, op)| Item {
                action: op.action.with_values(small),
                call: op.call,
                ret: op.ret,
                role: if op.is_unknown() { Role::Unique } else { Role::Mandatory },
                optional_index: None,
                source,
            })
            .collect();
        if items.iter().any(|item| !item.is_mandatory()) {
            settle(&mut items, states);
            drop_unnoticed(&mut items);
        }
        let mut optional = 0;
        for item in items.iter_mut().filter(|item| !item.is_mandatory()) {
            item.optional_index = Some(optional);
            optional += 1;
        }
        Self { items, states, optional: optional as usize }
    }

    /// An operation that met a state which nobody had begun to bring about when it returned.
    pub fn value_from_nowhere(&self) -> Option<Evidence> {
        let mut soonest = vec![u64::MAX; self.states];
        soonest[ABSENT as usize] = 0;
        for item in &self.items {
            if let Some(state) = item.action.produces() {
                let soonest = &mut soonest[state as usize];
                *soonest = item.call.min(*soonest);
            }
        }
        let too_soon = |item: &&Item| item.needs().is_some_and(|state| soonest[state as usize] > item.ret);
        self.items.iter().find(too_soon).map(|item| Evidence::FromNowhere(item.source))
    }
}

/// Values that some operation compares with, sorted.
fn named_values(ops: &[Op]) -> Vec<Value> {
    let mut named: Vec<Value> = ops
        .iter()
        .filter_map(|op| match op.action {
            Action::Get { out } => Some(out),
            Action::Cas { expected, .. } => Some(expected),
            _ => None,
        })
        .filter(|value| *value != ABSENT)
        .collect();
    named.sort_unstable();
    named.dedup();
    named
}

/// Unknown writes that were certainly seen become mandatory.
fn settle(items: &mut [Item], states: usize) {
    /// Who produces a state.
    #[derive(Clone, Copy)]
    enum Producer {
        Nobody,
        Only(usize),
        Several,
    }
    let mut producers = vec![Producer::Nobody; states];
    for (i, item) in items.iter().enumerate() {
        if let Some(state) = item.action.produces() {
            let producer = &mut producers[state as usize];
            *producer =
                if matches!(producer, Producer::Nobody) { Producer::Only(i) } else { Producer::Several };
        }
    }
    let unknown: Vec<bool> = items.iter().map(|item| !item.is_mandatory()).collect();
    // Who certainly met a state, and when that was over. A write that is settled may settle the one before it.
    let mut seen: Vec<(Value, u64)> =
        items.iter().filter_map(|item| item.needs().map(|state| (state, item.ret))).collect();
    while let Some((state, by)) = seen.pop() {
        let Producer::Only(i) = producers[state as usize] else { continue };
        let item = &mut items[i];
        // Seen before it was called: an illegal history, which the search explains better.
        let possible = by >= item.call && by < item.ret;
        if !unknown[i] || !possible || state == ABSENT || state == UNSEEN {
            continue;
        }
        item.role = Role::Mandatory;
        item.ret = by;
        item.action = match item.action {
            Action::Insert { value, applied: None } => Action::Insert { value, applied: Some(true) },
            Action::Cas { expected, new, applied: None } => {
                Action::Cas { expected, new, applied: Some(true) }
            }
            other => other,
        };
        seen.extend(item.needs().map(|state| (state, by)));
    }
}

fn drop_unnoticed(items: &mut Vec<Item>) {
    let existence_shows = items.iter().any(|item| item.is_mandatory() && item.action.reveals_existence());
    let absence_shows = items.iter().any(|item| {
        item.needs() == Some(ABSENT)
            || match item.action {
                Action::Insert { applied: None, .. } => true,
                Action::Cas { applied: Some(false), .. } => true,
                Action::Cas { expected, applied: None, .. } => expected == ABSENT,
                _ => false,
            }
    });
    items.retain_mut(|item| {
        if item.is_mandatory() {
            return true;
        }
        match item.action {
            Action::Put { value: UNSEEN } => item.role = Role::UnseenPut,
            Action::Insert { value: UNSEEN, .. } => item.role = Role::UnseenInsert,
            Action::Delete { .. } => item.role = Role::Delete,
            _ => {}
        }
        match item.action.produces() {
            Some(ABSENT) => absence_shows,
            Some(UNSEEN) => existence_shows,
            _ => true,
        }
    });
}

impl Action {
    fn with_values(self, map: impl Fn(Value) -> Value) -> Self {
        match self {
            Action::Get { out } => Action::Get { out: map(out) },
            Action::Put { value } => Action::Put { value: map(value) },
            Action::Insert { value, applied } => Action::Insert { value: map(value), applied },
            Action::Delete { existed } => Action::Delete { existed },
            Action::Cas { expected, new, applied } => {
                Action::Cas { expected: map(expected), new: map(new), applied }
            }
        }
    }
}
