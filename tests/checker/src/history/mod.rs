//! A history in memory: operations by key, values as small numbers.

mod parse;

use std::collections::HashMap;

use crate::objects::{Groups, ObjectLine};

/// A value, interned: equal numbers are equal values.
pub type Value = u32;
/// "No such record." The state of every key at the start.
pub const ABSENT: Value = 0;
/// The return time of an operation whose outcome is unknown.
pub const UNKNOWN: u64 = u64::MAX;

/// What was asked, and what was answered. `None` as an answer: not known, or not told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Get {
        out: Value,
    },
    Put {
        value: Value,
    },
    /// Only if there is no record.
    Insert {
        value: Value,
        applied: Option<bool>,
    },
    Delete {
        existed: Option<bool>,
    },
    /// Only if the value is `expected`; either value may be [`ABSENT`].
    Cas {
        expected: Value,
        new: Value,
        applied: Option<bool>,
    },
}

/// One operation on one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Op {
    pub client: u64,
    pub action: Action,
    /// Nanoseconds, on the recorder's clock.
    pub call: u64,
    /// [`UNKNOWN`]: the operation may take effect at any time after `call`, or never.
    pub ret: u64,
    /// Of what was written; of what was seen, if nothing was written.
    pub version: Option<u64>,
    /// Line of the history, from 1.
    pub line: u32,
}

impl Op {
    pub fn is_unknown(&self) -> bool {
        self.ret == UNKNOWN
    }
}

/// Operations by key. Reads with an unknown outcome say nothing and are only counted.
#[derive(Debug, Default)]
pub struct History {
    keys: Vec<String>,
    ops: Vec<Vec<Op>>,
    values: Vec<String>,
    key_ids: HashMap<String, u32>,
    value_ids: HashMap<String, Value>,
    /// Commands on objects, which are judged by themselves.
    pub(crate) objects: Groups,
    /// Lines that describe operations.
    pub operations: u64,
    /// Operations whose outcome is unknown, reads among them.
    pub unknown: u64,
    /// Lines that describe faults.
    pub notes: u64,
}

impl History {
    /// Keys in the order of their first appearance, each with its operations in the order of the history.
    pub fn by_key(&self) -> impl Iterator<Item = (&str, &[Op])> {
        self.keys.iter().map(String::as_str).zip(self.ops.iter().map(Vec::as_slice))
    }

    pub fn keys(&self) -> usize {
        self.keys.len()
    }

    /// The text of a value; `None` for [`ABSENT`].
    pub fn value(&self, value: Value) -> Option<&str> {
        (value != ABSENT).then(|| self.values[value as usize - 1].as_str())
    }

    /// The same; `None` for a number that was not given out, too.
    pub fn try_value(&self, value: Value) -> Option<&str> {
        self.values.get(value.checked_sub(1)? as usize).map(String::as_str)
    }

    /// The number of a value.
    pub fn intern(&mut self, value: Option<&str>) -> Value {
        let Some(text) = value else { return ABSENT };
        if let Some(id) = self.value_ids.get(text) {
            return *id;
        }
        self.values.push(text.to_owned());
        let id = self.values.len() as Value;
        self.value_ids.insert(text.to_owned(), id);
        id
    }

    /// # Errors
    /// What is wrong with the line.
    pub(crate) fn push_commands(&mut self, line: ObjectLine, number: u32) -> Result<(), String> {
        self.operations += 1;
        self.unknown += u64::from(line.ret.is_none());
        self.objects.push(line, number)
    }

    pub fn push(&mut self, key: &str, op: Op) {
        self.operations += 1;
        self.unknown += u64::from(op.is_unknown());
        if op.is_unknown() && matches!(op.action, Action::Get { .. }) {
            return;
        }
        let id = match self.key_ids.get(key) {
            Some(id) => *id,
            None => {
                let id = self.keys.len() as u32;
                self.keys.push(key.to_owned());
                self.ops.push(Vec::new());
                self.key_ids.insert(key.to_owned(), id);
                id
            }
        };
        self.ops[id as usize].push(op);
    }
}
