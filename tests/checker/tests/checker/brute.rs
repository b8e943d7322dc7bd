//! The definition of linearizability, tried out: every order, and every choice of unknown operations that took effect.

use sextant_checker::{ABSENT, Action, Op, UNKNOWN, Value};

pub fn linearizable(ops: &[Op]) -> bool {
    go(ops, &mut vec![false; ops.len()], ABSENT)
}

fn go(ops: &[Op], done: &mut [bool], state: Value) -> bool {
    if (0..ops.len()).all(|i| done[i] || ops[i].ret == UNKNOWN) {
        return true;
    }
    (0..ops.len()).any(|i| {
        let may_come_next = !done[i] && (0..ops.len()).all(|j| done[j] || ops[j].ret >= ops[i].call);
        may_come_next && {
            let Some(next) = step(ops[i].action, state) else { return false };
            done[i] = true;
            let found = go(ops, done, next);
            done[i] = false;
            found
        }
    })
}

/// The specification, once more.
fn step(action: Action, state: Value) -> Option<Value> {
    match action {
        Action::Get { out } => (out == state).then_some(state),
        Action::Put { value } => Some(value),
        Action::Insert { value, applied } => {
            let applies = state == ABSENT;
            applied.is_none_or(|a| a == applies).then_some(if applies { value } else { state })
        }
        Action::Delete { existed } => existed.is_none_or(|e| e == (state != ABSENT)).then_some(ABSENT),
        Action::Cas { expected, new, applied } => {
            let applies = state == expected;
            applied.is_none_or(|a| a == applies).then_some(if applies { new } else { state })
        }
    }
}
