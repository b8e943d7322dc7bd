//! Merging walks over several tables: the newest record of each key.
//!
//! A walk that waits has its place by a key that none of its records comes before, and is opened when it is the next one. So a
//! table is read only if the merge comes to its keys, and no record is given before all that are newer are known.

use std::cmp::Ordering;

use bytes::Bytes;
use sextant_common::error::{Error, Result};
use sextant_common::marks::Marks;

use super::direction::Direction;
use super::iter::TableIter;

/// A heap of walks. Stands on the newest record of a key, or is at the end.
#[derive(Debug)]
pub struct Merge {
    iters: Vec<TableIter>,
    /// Indices of the walks that are not at their end, as a binary heap: the first is open, has the next key, and among
    /// equal keys the newest record.
    heap: Vec<usize>,
    direction: Direction,
    passed_key: Vec<u8>,
    passed: u64,
    disk_bytes: u64,
}

impl Merge {
    /// `iters` newest first, all open and in this direction.
    pub fn new(iters: Vec<TableIter>, direction: Direction) -> Self {
        let heap = (0..iters.len()).filter(|i| !iters[*i].is_at_end()).collect();
        let disk_bytes = iters.iter().map(TableIter::disk_bytes).sum();
        let mut merge = Self { iters, heap, direction, passed_key: Vec::new(), passed: 0, disk_bytes };
        for at in (0..merge.heap.len() / 2).rev() {
            merge.sift_down(at);
        }
        merge
    }

    /// The same of walks that may wait.
    pub(crate) fn of_waiting(iters: Vec<TableIter>, direction: Direction) -> Result<Self> {
        let mut merge = Self::new(iters, direction);
        merge.open_first()?;
        Ok(merge)
    }

    pub fn is_at_end(&self) -> bool {
        self.heap.is_empty()
    }

    fn present(&self) -> Option<&TableIter> {
        self.heap.first().map(|i| &self.iters[*i])
    }

    pub fn key(&self) -> &[u8] {
        self.present().map_or(&[], TableIter::key)
    }

    pub fn value(&self) -> Bytes {
        self.present().map(TableIter::value).unwrap_or_default()
    }

    pub fn value_ref(&self) -> &[u8] {
        self.present().map_or(&[], TableIter::value_ref)
    }

    pub fn seq(&self) -> u64 {
        self.present().map_or(0, TableIter::seq)
    }

    pub fn is_tombstone(&self) -> bool {
        self.present().is_some_and(TableIter::is_tombstone)
    }

    pub fn marks(&self) -> Marks {
        self.present().map_or(Marks::NONE, TableIter::marks)
    }

    /// How many records it has left behind, of all tables.
    pub fn passed(&self) -> u64 {
        self.passed
    }

    pub fn disk_bytes(&self) -> u64 {
        self.disk_bytes
    }

    /// Moves past all records of the present key. Tables that were not named newest first are noticed here.
    pub fn advance(&mut self) -> Result<()> {
        let Some(first) = self.heap.first().copied() else { return Ok(()) };
        if self.heap.len() == 1 {
            return self.advance_first();
        }
        let newest = self.iters[first].seq();
        self.passed_key.clear();
        self.passed_key.extend_from_slice(self.iters[first].key());
        self.advance_first()?;
        while let Some(iter) = self.present()
            && iter.key() == self.passed_key
        {
            if iter.seq() > newest {
                return Err(Error::invalid(
                    "tables are not named newest first: an older one has a newer record",
                ));
            }
            self.advance_first()?;
        }
        Ok(())
    }

    fn advance_first(&mut self) -> Result<()> {
        if let Some(first) = self.heap.first().copied() {
            let before = self.iters[first].disk_bytes();
            self.iters[first].advance()?;
            self.disk_bytes += self.iters[first].disk_bytes() - before;
            self.passed += 1;
            self.settle_first(first);
        }
        self.open_first()
    }

    /// Opens walks until the next one is open.
    fn open_first(&mut self) -> Result<()> {
        while let Some(first) = self.heap.first().copied()
            && self.iters[first].waits()
        {
            self.iters[first].open()?;
            self.disk_bytes += self.iters[first].disk_bytes();
            self.settle_first(first);
        }
        Ok(())
    }

    /// Gives the first walk, which has moved, its place.
    fn settle_first(&mut self, first: usize) {
        if self.iters[first].is_at_end() {
            self.heap.swap_remove(0);
        }
        self.sift_down(0);
    }

    fn sift_down(&mut self, mut at: usize) {
        loop {
            let left = 2 * at + 1;
            if left >= self.heap.len() {
                return;
            }
            let right = left + 1;
            let child = if right < self.heap.len() && self.before(right, left) { right } else { left };
            if !self.before(child, at) {
                return;
            }
            self.heap.swap(at, child);
            at = child;
        }
    }

    fn before(&self, a: usize, b: usize) -> bool {
        let (a, b) = (self.heap[a], self.heap[b]);
        let keys = self.iters[a].key().cmp(self.iters[b].key());
        let keys = if self.direction == Direction::Backward { keys.reverse() } else { keys };
        keys.then(a.cmp(&b)) == Ordering::Less
    }
}
