//! Positions from which no order was found.
//!
//! A position is the set of mandatory operations placed, the set of unknown writes used, and the state. Mandatory sets are
//! compared by a 128-bit Zobrist hash, so that a false match is out of the question in practice. Sets of unknown writes are
//! kept, because having used more of them is never of help: whoever comes with a superset of those of a hopeless position is
//! in a hopeless one.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::history::Value;

/// Sets of unknown writes that are kept for each mandatory set and state. Forgetting costs time, no more.
const SETS_MAX: usize = 64;

/// What has been placed.
#[derive(Clone, Debug)]
pub(super) struct Position {
    mandatory: u128,
    used: Used,
}

/// Unknown writes, a bit for each.
type Used = Box<[u64]>;

#[derive(Default)]
pub(super) struct Memo {
    /// By mandatory set and state: the smallest hopeless sets of unknown writes.
    hopeless: HashMap<(u128, Value), Vec<Used>, BuildHasherDefault<Folded>>,
}

impl Position {
    /// Nothing is placed. `optional`: how many unknown writes there are.
    pub fn start(optional: usize) -> Self {
        Self { mandatory: 0, used: vec![0; optional.div_ceil(64)].into() }
    }

    /// Adds an operation, or takes it out again. `optional`: its number among the unknown writes, if it is one.
    pub fn toggle(&mut self, item: u32, optional: Option<u32>) {
        match optional {
            Some(n) => self.used[n as usize / 64] ^= 1 << (n % 64),
            None => self.mandatory ^= zobrist(item),
        }
    }
}

impl Memo {
    pub fn is_hopeless(&self, position: &Position, state: Value) -> bool {
        let Some(sets) = self.hopeless.get(&(position.mandatory, state)) else { return false };
        sets.iter().any(|set| is_subset(set, &position.used))
    }

    pub fn note_hopeless(&mut self, position: Position, state: Value) {
        let sets = self.hopeless.entry((position.mandatory, state)).or_default();
        sets.retain(|set| !is_subset(&position.used, set));
        if sets.len() < SETS_MAX {
            sets.push(position.used);
        }
    }
}

fn is_subset(small: &[u64], large: &[u64]) -> bool {
    small.iter().zip(large).all(|(s, l)| s & !l == 0)
}

/// The 128 random-looking bits of an operation.
fn zobrist(item: u32) -> u128 {
    let half = |n: u64| {
        let mut z = n.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(0x1234_5678_9abc_def1);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    let n = u64::from(item) * 2;
    u128::from(half(n)) << 64 | u128::from(half(n + 1))
}

/// Sets are hashed already: the parts of a position are only put together.
#[derive(Default)]
struct Folded(u64);

impl Hasher for Folded {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u32(u32::from(*byte));
        }
    }

    fn write_u32(&mut self, n: u32) {
        self.0 = (self.0.rotate_left(5) ^ u64::from(n)).wrapping_mul(0x517c_c1b7_2722_0a95);
    }

    fn write_u128(&mut self, n: u128) {
        self.0 ^= (n as u64) ^ ((n >> 64) as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn position(mandatory: &[u32], used: &[u32]) -> Position {
        let mut position = Position::start(100);
        mandatory.iter().for_each(|item| position.toggle(*item, None));
        used.iter().for_each(|n| position.toggle(1000 + n, Some(*n)));
        position
    }

    #[test]
    fn more_unknown_writes_used_are_no_better() {
        let mut memo = Memo::default();
        memo.note_hopeless(position(&[1, 2], &[70]), 5);
        assert!(memo.is_hopeless(&position(&[2, 1], &[70]), 5));
        assert!(memo.is_hopeless(&position(&[2, 1], &[3, 70]), 5));
        assert!(!memo.is_hopeless(&position(&[2, 1], &[3]), 5));
        assert!(!memo.is_hopeless(&position(&[1, 2], &[70]), 6));
        assert!(!memo.is_hopeless(&position(&[1], &[70]), 5));
        memo.note_hopeless(position(&[1, 2], &[]), 5);
        assert!(memo.is_hopeless(&position(&[1, 2], &[3]), 5));
    }
}
