//! Walking over the records of a table within a range of keys, in either direction.

use std::sync::Arc;

use bytes::Bytes;
use sextant_common::error::Result;
use sextant_common::key_range::KeyRange;
use sextant_common::marks::Marks;

use super::block::{BackwardCursor, Block, ForwardCursor, Malformed, Slot};
use super::direction::Direction;
use super::index::{Handle, covering, handle};
use super::read_ahead::ReadAhead;
use super::reader::{Access, Table, Tally};

/// Where a walk takes its blocks from. It never fills the cache with data blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caching {
    /// Looks into the block cache; reads small pieces first.
    Look,
    /// Passes the cache by; reads large pieces: compaction and rebuilding.
    Bypass,
}

/// Pieces that a scan reads from disk. A page is often short, so the first one is small.
const SCAN_FIRST_BYTES: u64 = 16 * 1024;
const SCAN_MOST_BYTES: u64 = 256 * 1024;
/// Pieces that a compaction reads: large enough for a disk to be sequential among several inputs.
const BYPASS_BYTES: u64 = 512 * 1024;

#[derive(Debug)]
enum Cursor {
    Forward(ForwardCursor),
    Backward(BackwardCursor),
}

/// Stands on a record of the range, or is at its end.
#[derive(Debug)]
pub struct TableIter {
    table: Arc<Table>,
    range: KeyRange,
    direction: Direction,
    caching: Caching,
    index: IndexCursor,
    read_ahead: ReadAhead,
    cursor: Option<Cursor>,
    /// The bound ahead lies within the table, so that it has to be checked at every record.
    bounded: bool,
}

impl TableIter {
    /// Stands on the first record of the range in this direction.
    pub fn new(table: Arc<Table>, range: KeyRange, direction: Direction, caching: Caching) -> Result<Self> {
        let meta = table.meta();
        let below = !range.end.is_empty() && range.end <= meta.min_key;
        let overlaps =
            !below && range.start <= meta.max_key && (range.end.is_empty() || range.start < range.end);
        let bounded = match direction {
            Direction::Forward => !range.end.is_empty() && range.end <= meta.max_key,
            Direction::Backward => range.start > meta.min_key,
        };
        let read_ahead = match caching {
            Caching::Look => ReadAhead::new(SCAN_FIRST_BYTES, SCAN_MOST_BYTES),
            Caching::Bypass => ReadAhead::new(BYPASS_BYTES, BYPASS_BYTES),
        };
        let index = IndexCursor {
            // Leaves serve point reads as well: worth caching even when a scan needed them first.
            access: if caching == Caching::Look { Access::Fill } else { Access::NoFill },
            top_at: 0,
            leaf: None,
            at: Handle { offset: 0, bytes: 0 },
        };
        let mut iter = Self { table, range, direction, caching, index, read_ahead, cursor: None, bounded };
        if overlaps {
            match direction {
                Direction::Forward => iter.seek_forward()?,
                Direction::Backward => iter.seek_backward()?,
            }
            iter.settle()?;
        }
        Ok(iter)
    }

    fn seek_forward(&mut self) -> Result<()> {
        let at = self.index.seek(&self.table, &self.range.start)?;
        let block = self.load(at)?;
        let cursor = if self.range.start.is_empty() {
            ForwardCursor::first(block)
        } else {
            ForwardCursor::seek(block, &self.range.start)
        };
        self.cursor = Some(Cursor::Forward(cursor.map_err(|Malformed| self.table.malformed(at))?));
        Ok(())
    }

    fn seek_backward(&mut self) -> Result<()> {
        let open = self.range.end.is_empty() || self.range.end > self.table.meta().max_key;
        let at = if open {
            self.index.last(&self.table)?
        } else {
            self.index.seek(&self.table, &self.range.end)?
        };
        let block = self.load(at)?;
        let cursor = if open {
            BackwardCursor::last(block)
        } else {
            BackwardCursor::seek_before(block, &self.range.end)
        };
        self.cursor = Some(Cursor::Backward(cursor.map_err(|Malformed| self.table.malformed(at))?));
        Ok(())
    }

    /// Goes on to the next block while the present one is used up, and ends where the range does.
    fn settle(&mut self) -> Result<()> {
        while self.slot_and_key().is_none() {
            let next = match self.direction {
                Direction::Forward => self.index.next(&self.table)?,
                Direction::Backward => self.index.previous(&self.table)?,
            };
            let Some(at) = next else {
                self.cursor = None;
                return Ok(());
            };
            let block = self.load(at)?;
            let cursor = match self.direction {
                Direction::Forward => ForwardCursor::first(block).map(Cursor::Forward),
                Direction::Backward => BackwardCursor::last(block).map(Cursor::Backward),
            };
            self.cursor = Some(cursor.map_err(|Malformed| self.table.malformed(at))?);
        }
        if self.bounded
            && let Some((_, key)) = self.slot_and_key()
            && !self.range.contains(key)
        {
            self.cursor = None;
        }
        Ok(())
    }

    fn load(&mut self, at: Handle) -> Result<Block> {
        if self.caching == Caching::Look
            && let Some(block) = self.table.cache().peek(self.table.number(), at.offset)
        {
            return Ok(block);
        }
        let bytes = self.read_ahead.frame(&self.table, at, self.direction)?;
        self.table.decode(at, &bytes)
    }

    #[inline]
    fn slot_and_key(&self) -> Option<(&Slot, &[u8])> {
        match self.cursor.as_ref()? {
            Cursor::Forward(c) => c.slot().map(|slot| (slot, c.key())),
            Cursor::Backward(c) => c.slot().map(|slot| (slot, c.key())),
        }
    }

    /// Moves to the next record in the direction of the walk.
    #[inline]
    pub fn advance(&mut self) -> Result<()> {
        let advanced = match &mut self.cursor {
            None => return Ok(()),
            Some(Cursor::Forward(c)) => c.advance(),
            Some(Cursor::Backward(c)) => c.advance(),
        };
        advanced.map_err(|Malformed| self.table.malformed(self.index.at))?;
        self.settle()
    }

    pub fn is_at_end(&self) -> bool {
        self.cursor.is_none()
    }

    /// The key of the present record; empty at the end.
    #[inline]
    pub fn key(&self) -> &[u8] {
        self.slot_and_key().map_or(&[], |(_, key)| key)
    }

    pub fn seq(&self) -> u64 {
        self.slot_and_key().map_or(0, |(slot, _)| slot.seq)
    }

    pub fn is_tombstone(&self) -> bool {
        self.slot_and_key().is_some_and(|(slot, _)| slot.tombstone)
    }

    /// From when on the present record is absent; None: never.
    pub fn marks(&self) -> Marks {
        self.slot_and_key().map_or(Marks::NONE, |(slot, _)| slot.marks)
    }

    /// The value of the present record, a slice of its block.
    pub fn value(&self) -> Bytes {
        match &self.cursor {
            Some(Cursor::Forward(c)) => c.slot().map(|slot| c.block().value(slot)).unwrap_or_default(),
            Some(Cursor::Backward(c)) => c.slot().map(|slot| c.block().value(slot)).unwrap_or_default(),
            None => Bytes::new(),
        }
    }

    pub fn value_ref(&self) -> &[u8] {
        match &self.cursor {
            Some(Cursor::Forward(c)) => c.slot().map_or(&[], |slot| c.block().value_ref(&slot.value)),
            Some(Cursor::Backward(c)) => c.slot().map_or(&[], |slot| c.block().value_ref(&slot.value)),
            None => &[],
        }
    }

    /// Bytes read from the file so far.
    pub fn disk_bytes(&self) -> u64 {
        self.read_ahead.disk_bytes
    }
}

/// Walks over the handles of the data blocks.
#[derive(Debug)]
struct IndexCursor {
    access: Access,
    /// Entry of the top block.
    top_at: usize,
    /// With two levels: the leaf that entry names, where it lies, and the entry in it.
    leaf: Option<(Block, Handle, usize)>,
    /// The data block that the cursor stands on.
    at: Handle,
}

impl IndexCursor {
    /// The block that may hold the key.
    fn seek(&mut self, table: &Table, key: &[u8]) -> Result<Handle> {
        self.top_at =
            covering(table.top(), key).map_err(|Malformed| table.malformed(table.trailer().index))?;
        self.open_leaf(table, |leaf| covering(leaf, key))
    }

    fn last(&mut self, table: &Table) -> Result<Handle> {
        self.top_at = table.top().restarts() - 1;
        self.open_leaf(table, |leaf| Ok(leaf.restarts() - 1))
    }

    fn next(&mut self, table: &Table) -> Result<Option<Handle>> {
        if let Some((leaf, _, at)) = &mut self.leaf
            && *at + 1 < leaf.restarts()
        {
            *at += 1;
            return self.present(table).map(Some);
        }
        if self.top_at + 1 >= table.top().restarts() {
            return Ok(None);
        }
        self.top_at += 1;
        self.open_leaf(table, |_| Ok(0)).map(Some)
    }

    fn previous(&mut self, table: &Table) -> Result<Option<Handle>> {
        if let Some((_, _, at)) = &mut self.leaf
            && *at > 0
        {
            *at -= 1;
            return self.present(table).map(Some);
        }
        if self.top_at == 0 {
            return Ok(None);
        }
        self.top_at -= 1;
        self.open_leaf(table, |leaf| Ok(leaf.restarts() - 1)).map(Some)
    }

    /// Opens the leaf of the present top entry (if there are leaves) at the entry that `choose` picks.
    fn open_leaf(
        &mut self,
        table: &Table,
        choose: impl FnOnce(&Block) -> std::result::Result<usize, Malformed>,
    ) -> Result<Handle> {
        if table.trailer().index_levels == 2 {
            let at = handle(table.top(), self.top_at)
                .map_err(|Malformed| table.malformed(table.trailer().index))?;
            let leaf = table.block(at, self.access, &mut Tally::default())?;
            let leaf = leaf.ok_or_else(|| table.malformed(at))?;
            let entry = choose(&leaf).map_err(|Malformed| table.malformed(at))?;
            self.leaf = Some((leaf, at, entry));
        }
        self.present(table)
    }

    fn present(&mut self, table: &Table) -> Result<Handle> {
        self.at = match &self.leaf {
            Some((leaf, lies_at, at)) => handle(leaf, *at).map_err(|Malformed| table.malformed(*lies_at))?,
            None => handle(table.top(), self.top_at)
                .map_err(|Malformed| table.malformed(table.trailer().index))?,
        };
        Ok(self.at)
    }
}
