//! The explorer: breadth first over hashed states, with parent pointers for the shortest trace. Knows nothing of the protocol.
//!
//! A state is kept only while it waits to be expanded; what stays of it is a 64-bit fingerprint, its parent and which of the
//! parent's actions led to it. (Two of n states share a fingerprint with a probability of about n^2 / 2^65: one in 20,000 for
//! 40 million states. Then one of the two is not looked at.)

use std::collections::HashSet;
use std::hash::{BuildHasherDefault, Hash, Hasher};

/// What can be explored.
pub trait Model {
    type State: Clone + Hash;
    type Action: Copy;

    fn roots(&self) -> Vec<Self::State>;
    /// What may happen next, always in the same order.
    fn actions(&self, state: &Self::State, out: &mut Vec<Self::Action>);
    /// The state after an action. `Err`: a property is violated, and how.
    fn step(&self, state: &Self::State, action: Self::Action) -> Result<Self::State, String>;
    /// What has to hold in every state.
    fn check(&self, state: &Self::State) -> Result<(), String>;
    fn describe(&self, state: &Self::State, action: Self::Action) -> String;
}

/// How a property was violated.
#[derive(Clone, Debug)]
pub struct Violation {
    pub what: String,
    /// A shortest way there: one line a step.
    pub trace: Vec<String>,
}

/// What an exploration saw.
#[derive(Clone, Debug)]
pub struct Explored {
    pub states: u64,
    pub transitions: u64,
    /// Steps of the longest of all shortest ways to a state.
    pub depth: u32,
    /// Every reachable state was seen (false: the limit was reached, or a violation ended it).
    pub exhausted: bool,
    pub violation: Option<Violation>,
}

/// A fingerprint is its own hash.
#[derive(Default)]
pub struct AsItIs(u64);

impl Hasher for AsItIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {}

    fn write_u64(&mut self, n: u64) {
        self.0 = n;
    }
}

/// Folded multiplication, a word at a time. Words and single bytes may alternate: where they do is the same for all states
/// that are equal so far.
#[derive(Default)]
struct Fold {
    hash: u64,
    word: u64,
    bytes: u32,
}

impl Fold {
    fn mix(&mut self, word: u64) {
        let wide =
            u128::from(self.hash.rotate_left(23) ^ word ^ 0x9e37_79b9_7f4a_7c15) * 0xa076_1d64_78bd_642f;
        self.hash = (wide as u64) ^ ((wide >> 64) as u64);
    }
}

impl Hasher for Fold {
    fn finish(&self) -> u64 {
        let mut last = Fold { hash: self.hash, ..Fold::default() };
        last.mix(self.word);
        last.mix(u64::from(self.bytes) ^ 0x5851_f42d_4c95_7f2d);
        last.hash
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|b| self.write_u8(*b));
    }

    fn write_u8(&mut self, n: u8) {
        self.word = (self.word << 8) | u64::from(n);
        self.bytes += 1;
        if self.bytes == 8 {
            self.mix(self.word);
            (self.word, self.bytes) = (0, 0);
        }
    }

    fn write_u64(&mut self, n: u64) {
        self.mix(n);
    }

    // Discriminants and lengths: small, and of fixed places.
    fn write_isize(&mut self, n: isize) {
        self.write_u8(n as u8);
    }

    fn write_usize(&mut self, n: usize) {
        self.write_u8(n as u8);
    }
}

/// The fingerprint of anything that can be hashed. The same in every run.
pub fn fingerprint(of: &impl Hash) -> u64 {
    let mut hasher = Fold::default();
    of.hash(&mut hasher);
    hasher.finish()
}

/// Where a state was first reached from.
#[derive(Clone, Copy)]
struct Reached {
    parent: u32,
    /// Which of the parent's actions; for a root: which root.
    action: u16,
}

const ROOT: u32 = u32::MAX;

/// Explores until everything was seen, a property is violated, or `states_max` states were found.
pub fn explore<M: Model>(model: &M, states_max: u64) -> Explored {
    let states_max = states_max.min(u64::from(ROOT) - 1);
    let mut seen: HashSet<u64, BuildHasherDefault<AsItIs>> = HashSet::default();
    let mut reached: Vec<Reached> = Vec::new();
    let mut layer: Vec<(u32, M::State)> = Vec::new();
    let mut explored = Explored { states: 0, transitions: 0, depth: 0, exhausted: true, violation: None };
    for (at, root) in model.roots().into_iter().enumerate() {
        if seen.insert(fingerprint(&root)) {
            layer.push((reached.len() as u32, root));
            reached.push(Reached { parent: ROOT, action: at as u16 });
        }
    }
    let mut actions = Vec::new();
    while !layer.is_empty() {
        let mut next: Vec<(u32, M::State)> = Vec::new();
        for (id, state) in &layer {
            actions.clear();
            model.actions(state, &mut actions);
            for (at, action) in actions.iter().enumerate() {
                explored.transitions += 1;
                let after = match model.step(state, *action) {
                    Ok(after) => after,
                    Err(what) => {
                        let trace = trace(model, &reached, *id, Some(*action));
                        explored.states = reached.len() as u64;
                        explored.exhausted = false;
                        explored.violation = Some(Violation { what, trace });
                        return explored;
                    }
                };
                if !seen.insert(fingerprint(&after)) {
                    continue;
                }
                let new = reached.len() as u32;
                reached.push(Reached { parent: *id, action: at as u16 });
                if let Err(what) = model.check(&after) {
                    let trace = trace(model, &reached, new, None);
                    explored.states = reached.len() as u64;
                    explored.exhausted = false;
                    explored.violation = Some(Violation { what, trace });
                    return explored;
                }
                next.push((new, after));
            }
            if reached.len() as u64 >= states_max {
                explored.states = reached.len() as u64;
                explored.exhausted = false;
                return explored;
            }
        }
        layer = next;
        explored.depth += u32::from(!layer.is_empty());
    }
    explored.states = reached.len() as u64;
    explored
}

/// The steps from a root to a state, and one more: found again by taking the recorded choices.
fn trace<M: Model>(model: &M, reached: &[Reached], id: u32, last: Option<M::Action>) -> Vec<String> {
    let mut choices = Vec::new();
    let mut at = reached[id as usize];
    while at.parent != ROOT {
        choices.push(at.action);
        at = reached[at.parent as usize];
    }
    let mut state = model.roots().swap_remove(usize::from(at.action));
    let mut lines = Vec::new();
    let mut actions = Vec::new();
    for choice in choices.into_iter().rev() {
        actions.clear();
        model.actions(&state, &mut actions);
        let action = actions[usize::from(choice)];
        lines.push(model.describe(&state, action));
        match model.step(&state, action) {
            Ok(after) => state = after,
            Err(_) => return lines,
        }
    }
    lines.extend(last.map(|action| model.describe(&state, action)));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two counters; they must not both be 3.
    struct Counters;

    impl Model for Counters {
        type State = (u8, u8);
        type Action = bool;

        fn roots(&self) -> Vec<(u8, u8)> {
            vec![(0, 0), (1, 0)]
        }

        fn actions(&self, state: &(u8, u8), out: &mut Vec<bool>) {
            out.extend((state.0 < 4).then_some(false));
            out.extend((state.1 < 4).then_some(true));
        }

        fn step(&self, state: &(u8, u8), action: bool) -> Result<(u8, u8), String> {
            Ok(if action { (state.0, state.1 + 1) } else { (state.0 + 1, state.1) })
        }

        fn check(&self, state: &(u8, u8)) -> Result<(), String> {
            if *state == (3, 3) { Err("both are 3".into()) } else { Ok(()) }
        }

        fn describe(&self, state: &(u8, u8), action: bool) -> String {
            format!("{state:?} {action}")
        }
    }

    #[test]
    fn the_trace_is_a_shortest_one() {
        let violation = explore(&Counters, 1000).violation.unwrap();
        assert_eq!(violation.what, "both are 3");
        assert_eq!(violation.trace.len(), 5, "from (1, 0): {:?}", violation.trace);
    }

    #[test]
    fn small_differences_make_other_fingerprints() {
        let all: HashSet<u64> =
            (0..200u16).flat_map(|a| (0..200u16).map(move |b| fingerprint(&[a, b, 0, 0]))).collect();
        assert_eq!(all.len(), 40_000);
    }
}
