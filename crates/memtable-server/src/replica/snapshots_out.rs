//! Snapshots on their way to others: a new server that takes one is not at a standstill, however long its log does not grow.

use std::collections::HashMap;

use parking_lot::Mutex;

#[derive(Debug, Default)]
pub struct SnapshotsOut(Mutex<HashMap<u64, Way>>);

/// To one server.
#[derive(Debug, Default)]
struct Way {
    /// Pieces of the attempt that came furthest.
    furthest: usize,
    /// The attempt under way has come further than those before.
    is_further: bool,
    /// Attempts in a row that came no further: a connection may break off, who refuses it again and again takes nothing new.
    fruitless: u32,
    /// Pieces that count.
    moved: usize,
    /// It has the last piece, which counts, and has not answered yet.
    installs: bool,
}

/// After so many fruitless attempts only what comes further counts.
const FRUITLESS_MAX: u32 = 2;

/// An attempt, until this is dropped.
pub struct Attempt<'o> {
    out: &'o SnapshotsOut,
    to: u64,
}

impl SnapshotsOut {
    /// A new server may need one. What became of earlier attempts does not count.
    pub fn expect(&self, to: u64) {
        self.0.lock().insert(to, Way::default());
    }

    pub fn attempt(&self, to: u64) -> Attempt<'_> {
        let mut ways = self.0.lock();
        let way = ways.entry(to).or_default();
        (way.is_further, way.installs) = (false, false);
        Attempt { out: self, to }
    }

    /// So many pieces of `all` have left.
    pub fn left(&self, to: u64, pieces: usize, all: usize) {
        let mut ways = self.0.lock();
        let way = ways.entry(to).or_default();
        way.is_further |= pieces > way.furthest;
        way.furthest = way.furthest.max(pieces);
        if way.is_further || way.fruitless < FRUITLESS_MAX {
            way.moved += 1;
            way.installs = pieces == all;
        }
    }

    /// How far these are, all together; None: one has all of it, and is at work.
    pub fn so_far(&self, to: impl IntoIterator<Item = u64>) -> Option<usize> {
        let ways = self.0.lock();
        let far = |to| ways.get(&to).map_or(Some(0), |way| (!way.installs).then_some(way.moved));
        to.into_iter().map(far).sum()
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if let Some(way) = self.out.0.lock().get_mut(&self.to) {
            way.fruitless = if way.is_further { 0 } else { way.fruitless + 1 };
            way.installs = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_may_break_off_but_who_refuses_it_again_and_again_takes_nothing_new() {
        let out = SnapshotsOut::default();
        out.expect(2);
        assert_eq!(out.so_far([2, 3]), Some(0));
        let sends = |pieces: usize| {
            let attempt = out.attempt(2);
            (1..=pieces).for_each(|piece| out.left(2, piece, 3));
            attempt
        };
        drop(sends(2));
        assert_eq!(out.so_far([2, 3]), Some(2));
        let whole = sends(3);
        assert_eq!((out.so_far([2, 3]), out.so_far([3])), (None, Some(0)), "it is at work");
        drop(whole);
        assert_eq!(out.so_far([2]), Some(5));
        drop(sends(3));
        drop(sends(3));
        assert_eq!(out.so_far([2]), Some(11));
        let fruitless = sends(3);
        assert_eq!(out.so_far([2]), Some(11), "nothing counts any more, nor that it is at work");
        drop(fruitless);
        out.expect(2);
        drop(sends(1));
        assert_eq!(out.so_far([2]), Some(1));
    }
}
