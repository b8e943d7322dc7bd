//! Walking over an index, for a walk over the table.
//!
//! A walk may be slow, and there may be one of each of many tables: so it takes the places of some data blocks out of the index
//! at a time, and holds nothing of the index between.

use sextant_common::error::Result;

use super::block::{Block, Malformed};
use super::direction::Direction;
use super::index::{Handle, covering, handle};
use super::iter::Caching;
use super::reader::{Access, Table, Tally};

/// Most places that are taken at a time by a scan: 64 blocks are a piece that it reads, and 1 KiB.
const SCAN_RUN: usize = 64;
/// By a job, for which the index may have to be read each time: 16 MiB of blocks, and 64 KiB.
const JOB_RUN: usize = 4096;
/// By a scan the first time: pages are often short.
const FIRST_RUN: usize = 8;

/// Where places are taken from.
#[derive(Clone, Copy, Debug)]
enum Start<'k> {
    /// The one that may hold the key.
    Key(&'k [u8]),
    Last,
    /// An entry of the top block, and of its leaf, if there are leaves; `None`: the first one in the direction of the walk.
    Next(usize, Option<usize>),
}

/// Stands on the place of a data block.
#[derive(Debug)]
pub(super) struct IndexCursor {
    direction: Direction,
    access: Access,
    /// Places of the blocks to come, the next one last.
    run: Vec<Handle>,
    at: Handle,
    run_next: usize,
    run_most: usize,
    /// Where the next run begins; `None`: there is none.
    next: Option<(usize, Option<usize>)>,
}

impl IndexCursor {
    pub fn new(direction: Direction, caching: Caching) -> Self {
        let (run_next, run_most) =
            if caching == Caching::Look { (FIRST_RUN, SCAN_RUN) } else { (JOB_RUN, JOB_RUN) };
        let (access, at) = (caching.access(), Handle { offset: 0, bytes: 0 });
        Self { direction, access, run: Vec::new(), at, run_next, run_most, next: None }
    }

    /// The block that the cursor stands on.
    pub fn at(&self) -> Handle {
        self.at
    }

    /// To the block that may hold the key.
    pub fn seek(&mut self, table: &Table, key: &[u8]) -> Result<Handle> {
        self.take(table, Start::Key(key))
    }

    pub fn seek_last(&mut self, table: &Table) -> Result<Handle> {
        self.take(table, Start::Last)
    }

    /// To the next block in the direction of the walk.
    pub fn advance(&mut self, table: &Table) -> Result<Option<Handle>> {
        if let Some(at) = self.run.pop() {
            self.at = at;
            return Ok(Some(at));
        }
        match self.next {
            Some((top_at, entry)) => self.take(table, Start::Next(top_at, entry)).map(Some),
            None => Ok(None),
        }
    }

    /// Takes a run of places; stands on its first.
    fn take(&mut self, table: &Table, start: Start<'_>) -> Result<Handle> {
        let top = table.top(self.access)?;
        let (top, index_at) = (&top.part, table.trailer().index);
        let in_top = |Malformed| table.malformed(index_at);
        let next = if table.trailer().index_levels == 2 {
            let top_at = match start {
                Start::Key(key) => covering(top, key).map_err(in_top)?,
                Start::Last => top.restarts() - 1,
                Start::Next(top_at, _) => top_at,
            };
            let leaf_at = handle(top, top_at).map_err(in_top)?;
            let leaf = table.leaf(leaf_at, self.access, &mut Tally::default())?;
            let leaf = leaf.ok_or_else(|| table.malformed(leaf_at))?;
            let malformed = |Malformed| table.malformed(leaf_at);
            let entry = self.entry(&leaf, start).map_err(malformed)?;
            let next = self.copy(&leaf, entry).map_err(malformed)?;
            next.map(|entry| (top_at, Some(entry))).or_else(|| self.beside(top, top_at))
        } else {
            let entry = match start {
                Start::Next(entry, _) => entry,
                start => self.entry(top, start).map_err(in_top)?,
            };
            self.copy(top, entry).map_err(in_top)?.map(|entry| (entry, None))
        };
        self.next = next;
        self.run_next = (self.run_next * 2).min(self.run_most);
        self.at = self.run.pop().ok_or_else(|| table.malformed(index_at))?;
        Ok(self.at)
    }

    fn entry(&self, block: &Block, start: Start<'_>) -> Result<usize, Malformed> {
        match start {
            Start::Key(key) => covering(block, key),
            Start::Next(_, Some(entry)) => Ok(entry),
            Start::Next(_, None) if self.direction == Direction::Forward => Ok(0),
            Start::Last | Start::Next(_, None) => Ok(block.restarts() - 1),
        }
    }

    /// Copies places from `entry` on; returns the entry after them, if there is one.
    fn copy(&mut self, block: &Block, entry: usize) -> Result<Option<usize>, Malformed> {
        let most = self.run_next;
        let (entries, next) = match self.direction {
            Direction::Forward => {
                let end = block.restarts().min(entry + most);
                (entry..end, (end < block.restarts()).then_some(end))
            }
            Direction::Backward => {
                let start = (entry + 1).saturating_sub(most);
                (start..entry + 1, start.checked_sub(1))
            }
        };
        self.run.clear();
        for at in entries {
            self.run.push(handle(block, at)?);
        }
        if self.direction == Direction::Forward {
            self.run.reverse();
        }
        Ok(next)
    }

    /// The neighbour of an entry of the top block.
    fn beside(&self, top: &Block, at: usize) -> Option<(usize, Option<usize>)> {
        let beside = match self.direction {
            Direction::Forward => Some(at + 1).filter(|next| *next < top.restarts()),
            Direction::Backward => at.checked_sub(1),
        };
        beside.map(|at| (at, None))
    }
}
