//! The sequential specification: one record that is there or not.

use crate::history::{ABSENT, Action, Value};

/// What an operation does to a state, if its result is possible there at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Illegal,
    Legal(Value),
}

impl Action {
    /// Where the answer is not known, the operation does what it would.
    pub fn step(self, state: Value) -> Step {
        let legal_if =
            |condition: bool, next: Value| if condition { Step::Legal(next) } else { Step::Illegal };
        let exists = state != ABSENT;
        match self {
            Action::Get { out } => legal_if(state == out, state),
            Action::Put { value } => Step::Legal(value),
            Action::Insert { value, applied: Some(true) } => legal_if(!exists, value),
            Action::Insert { applied: Some(false), .. } => legal_if(exists, state),
            Action::Insert { value, applied: None } => Step::Legal(if exists { state } else { value }),
            Action::Delete { existed: Some(existed) } => legal_if(existed == exists, ABSENT),
            Action::Delete { existed: None } => Step::Legal(ABSENT),
            Action::Cas { expected, new, applied: Some(true) } => legal_if(state == expected, new),
            Action::Cas { expected, applied: Some(false), .. } => legal_if(state != expected, state),
            Action::Cas { expected, new, applied: None } => {
                Step::Legal(if state == expected { new } else { state })
            }
        }
    }

    /// Never changes a state, whichever it meets: it only says something about it.
    pub fn is_pure(self) -> bool {
        matches!(
            self,
            Action::Get { .. }
                | Action::Insert { applied: Some(false), .. }
                | Action::Delete { existed: Some(false) }
                | Action::Cas { applied: Some(false), .. }
        )
    }

    /// The state that it leaves if it takes effect; `None` if it never does.
    pub fn produces(self) -> Option<Value> {
        if self.is_pure() {
            return None;
        }
        Some(match self {
            Action::Get { out } => out,
            Action::Put { value } | Action::Insert { value, .. } => value,
            Action::Delete { .. } => ABSENT,
            Action::Cas { new, .. } => new,
        })
    }

    /// The one state in which its result is possible, if there is only one.
    pub fn needs(self) -> Option<Value> {
        match self {
            Action::Get { out } => Some(out),
            Action::Insert { applied: Some(true), .. } | Action::Delete { existed: Some(false) } => {
                Some(ABSENT)
            }
            Action::Cas { expected, applied: Some(true), .. } => Some(expected),
            _ => None,
        }
    }

    /// Its result says that there was a record, or that there was some other than a certain one, without saying which.
    pub fn reveals_existence(self) -> bool {
        matches!(
            self,
            Action::Insert { applied: Some(false), .. }
                | Action::Delete { existed: Some(true) }
                | Action::Cas { applied: Some(false), .. }
        )
    }
}
