//! Snapshots on their way to others: a new server that takes one is not at a standstill, however long its log does not grow.

use std::collections::HashMap;

use parking_lot::Mutex;

#[derive(Debug, Default)]
pub struct SnapshotsOut(Mutex<HashMap<u64, Way>>);

/// To one server.
#[derive(Debug, Default)]
struct Way {
    /// Of all attempts: who refuses a snapshot each time takes nothing new.
    furthest: usize,
    /// It has the last piece for the first time, and has not answered yet.
    installs: bool,
}

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
        Attempt { out: self, to }
    }

    /// So many pieces of `all` have left.
    pub fn left(&self, to: u64, pieces: usize, all: usize) {
        let mut ways = self.0.lock();
        let way = ways.entry(to).or_default();
        if pieces > way.furthest {
            *way = Way { furthest: pieces, installs: pieces == all };
        }
    }

    /// How far these are, all together; None: one has all of it, and is at work.
    pub fn so_far(&self, to: impl IntoIterator<Item = u64>) -> Option<usize> {
        let ways = self.0.lock();
        let far = |to| ways.get(&to).map_or(Some(0), |way| (!way.installs).then_some(way.furthest));
        to.into_iter().map(far).sum()
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if let Some(way) = self.out.0.lock().get_mut(&self.to) {
            way.installs = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_again_is_nothing_new() {
        let out = SnapshotsOut::default();
        out.expect(2);
        assert_eq!(out.so_far([2, 3]), Some(0));
        let first = out.attempt(2);
        (1..=2).for_each(|piece| out.left(2, piece, 3));
        assert_eq!(out.so_far([2, 3]), Some(2));
        out.left(2, 3, 3);
        assert_eq!((out.so_far([2, 3]), out.so_far([3])), (None, Some(0)), "it is at work");
        drop(first);
        assert_eq!(out.so_far([2]), Some(3));
        // It refuses.
        let _again = out.attempt(2);
        (1..=3).for_each(|piece| out.left(2, piece, 3));
        assert_eq!(out.so_far([2]), Some(3));
        out.expect(2);
        out.left(2, 1, 3);
        assert_eq!(out.so_far([2]), Some(1));
    }
}
