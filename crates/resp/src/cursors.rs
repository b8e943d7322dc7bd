//! Where scans go on: what the numbers mean that `SCAN` answers with.
//!
//! A number is good at the server that gave it, for any connection, again and again, until as many others have been given as there is
//! room for. The numbers are random, so that one of another server, or of before a restart, is unknown rather than mistaken.

use std::collections::{HashMap, VecDeque};

use parking_lot::Mutex;
use sextant_environment::Env;

use crate::store::Position;

/// Most positions that are remembered.
const POSITIONS_MAX: usize = 16_384;
/// Most bytes of keys in them.
const BYTES_MAX: usize = 8 * 1024 * 1024;

#[derive(Debug, Default)]
pub(crate) struct Cursors(Mutex<Given>);

#[derive(Debug, Default)]
struct Given {
    positions: HashMap<u64, Position>,
    /// The oldest first.
    order: VecDeque<u64>,
    bytes: usize,
}

impl Cursors {
    /// A number for a position; never 0.
    pub fn give(&self, position: Position, env: &Env) -> u64 {
        let mut given = self.0.lock();
        let number = loop {
            // 53 bits: clients may read it as a number with a sign, or as a floating-point one.
            let number = env.rng.next_u64() >> 11;
            if number != 0 && !given.positions.contains_key(&number) {
                break number;
            }
        };
        given.bytes += position.from.len();
        given.positions.insert(number, position);
        given.order.push_back(number);
        while given.order.len() > POSITIONS_MAX || given.bytes > BYTES_MAX && given.order.len() > 1 {
            let Some(oldest) = given.order.pop_front() else { break };
            given.bytes -= given.positions.remove(&oldest).map_or(0, |position| position.from.len());
        }
        number
    }

    pub fn find(&self, number: u64) -> Option<Position> {
        self.0.lock().positions.get(&number).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_found_until_too_many_others_are_given() {
        let (cursors, env) = (Cursors::default(), Env::real());
        let position =
            |from: &str| Position { part: 3, from: bytes::Bytes::copy_from_slice(from.as_bytes()) };
        let first = cursors.give(position("k"), &env);
        assert_eq!((cursors.find(first), cursors.find(first)), (Some(position("k")), Some(position("k"))));
        assert_eq!(cursors.find(first ^ 1), None);
        for _ in 1..POSITIONS_MAX {
            cursors.give(position(""), &env);
        }
        assert!(cursors.find(first).is_some());
        cursors.give(position(""), &env);
        assert_eq!(cursors.find(first), None);
        let long = "x".repeat(BYTES_MAX / 4);
        let all: Vec<u64> = (0..5).map(|_| cursors.give(position(&long), &env)).collect();
        assert_eq!(all.iter().filter(|number| cursors.find(**number).is_some()).count(), 4);
    }
}
