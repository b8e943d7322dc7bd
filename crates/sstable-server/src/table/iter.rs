//! Walking over the records of a table within a range of keys, in either direction.

use std::sync::Arc;

use bytes::Bytes;
use sextant_common::error::Result;
use sextant_common::key_range::KeyRange;
use sextant_common::marks::Marks;

use super::block::{BackwardCursor, Block, ForwardCursor, Malformed, Slot};
use super::direction::Direction;
use super::index::Handle;
use super::index_cursor::IndexCursor;
use super::read_ahead::ReadAhead;
use super::reader::{Access, Table};
use super::zstd::Unpacker;

/// Where a walk takes its blocks from. It never fills the cache with data blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caching {
    /// Looks into the block cache; reads small pieces first.
    Look,
    /// Passes the cache by; reads large pieces: compaction and rebuilding.
    Bypass,
}

impl Caching {
    /// To sections, and leaves of the index: they serve point reads as well, and are worth keeping even when a scan needed them
    /// first.
    pub(super) fn access(self) -> Access {
        if self == Caching::Look { Access::Fill } else { Access::NoFill }
    }
}

/// Pieces that a scan reads from disk. A page is often short, so the first one is small.
pub const SCAN_FIRST_BYTES: u64 = 16 * 1024;
pub const SCAN_MOST_BYTES: u64 = 256 * 1024;
/// Pieces that a compaction reads: large enough for a disk to be sequential among several inputs.
pub const BYPASS_BYTES: u64 = 512 * 1024;

#[derive(Debug)]
enum Cursor {
    Forward(ForwardCursor),
    Backward(BackwardCursor),
}

/// Stands on a record of the range, or is at its end; or waits before the first, and has read nothing.
#[derive(Debug)]
pub struct TableIter {
    table: Arc<Table>,
    range: KeyRange,
    direction: Direction,
    caching: Caching,
    index: IndexCursor,
    read_ahead: ReadAhead,
    /// A job has a dictionary of its own (and the room for it).
    unpacker: Option<Unpacker>,
    cursor: Option<Cursor>,
    waits: bool,
    /// The bound ahead lies within the table, so that it has to be checked at every record.
    bounded: bool,
}

impl TableIter {
    /// Stands on the first record of the range in this direction.
    pub fn new(table: Arc<Table>, range: KeyRange, direction: Direction, caching: Caching) -> Result<Self> {
        let pieces = if caching == Caching::Look { SCAN_MOST_BYTES } else { BYPASS_BYTES };
        Self::with_pieces(table, range, direction, caching, pieces)
    }

    /// The same, reading pieces of at most so many bytes (or of one block).
    pub fn with_pieces(
        table: Arc<Table>,
        range: KeyRange,
        direction: Direction,
        caching: Caching,
        bytes_max: u64,
    ) -> Result<Self> {
        let mut iter = Self::waiting(table, range, direction, caching, bytes_max);
        iter.open()?;
        Ok(iter)
    }

    /// The same, but it waits to be opened (unless the range and the table have no key in common: then it is at its end).
    pub(crate) fn waiting(
        table: Arc<Table>,
        range: KeyRange,
        direction: Direction,
        caching: Caching,
        bytes_max: u64,
    ) -> Self {
        let meta = table.meta();
        let below = !range.end.is_empty() && range.end <= meta.min_key;
        let overlaps =
            !below && range.start <= meta.max_key && (range.end.is_empty() || range.start < range.end);
        let bounded = match direction {
            Direction::Forward => !range.end.is_empty() && range.end <= meta.max_key,
            Direction::Backward => range.start > meta.min_key,
        };
        let read_ahead = match caching {
            Caching::Look => ReadAhead::new(SCAN_FIRST_BYTES.min(bytes_max), bytes_max),
            Caching::Bypass => ReadAhead::new(bytes_max, bytes_max),
        };
        let index = IndexCursor::new(direction, caching);
        Self {
            table,
            range,
            direction,
            caching,
            index,
            read_ahead,
            unpacker: None,
            cursor: None,
            waits: overlaps,
            bounded,
        }
    }

    /// Goes to the first record of the range, if it waits before it.
    pub(crate) fn open(&mut self) -> Result<()> {
        if !std::mem::take(&mut self.waits) {
            return Ok(());
        }
        if self.caching == Caching::Bypass {
            self.unpacker = Some(self.table.own_unpacker()?);
        }
        match self.direction {
            Direction::Forward => self.seek_forward()?,
            Direction::Backward => self.seek_backward()?,
        }
        self.settle()
    }

    pub(super) fn waits(&self) -> bool {
        self.waits
    }

    /// No record of the table and the range comes before this key: known without reading.
    fn bound(&self) -> &[u8] {
        let (KeyRange { start, end }, meta) = (&self.range, self.table.meta());
        match self.direction {
            Direction::Forward => std::cmp::max(&start[..], &meta.min_key[..]),
            Direction::Backward if end.is_empty() => &meta.max_key[..],
            Direction::Backward => std::cmp::min(&end[..], &meta.max_key[..]),
        }
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
            self.index.seek_last(&self.table)?
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
            let Some(at) = self.index.advance(&self.table)? else {
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
        match &self.unpacker {
            Some(unpacker) => self.table.decode_with(at, &bytes, unpacker),
            None => self.table.decode(at, &bytes, self.caching.access()),
        }
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
        advanced.map_err(|Malformed| self.table.malformed(self.index.at()))?;
        self.settle()
    }

    pub fn is_at_end(&self) -> bool {
        self.cursor.is_none() && !self.waits
    }

    /// The key of the present record; empty at the end. While it waits: one that none of its records comes before.
    #[inline]
    pub fn key(&self) -> &[u8] {
        match self.slot_and_key() {
            Some((_, key)) => key,
            None if self.waits => self.bound(),
            None => &[],
        }
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
