//! Walking over the records of a block, in either direction.

use std::ops::Range;

use super::{Block, INTERVAL_RECORDS_MAX, Malformed, Slot};

/// Stands on a record or behind the last one.
#[derive(Debug)]
pub struct ForwardCursor {
    block: Block,
    next: usize,
    key: Vec<u8>,
    slot: Option<Slot>,
}

impl ForwardCursor {
    /// Stands on the first record.
    pub fn first(block: Block) -> Result<Self, Malformed> {
        Self { block, next: 0, key: Vec::new(), slot: None }.advanced()
    }

    /// Stands on the first record whose key is `key` or larger.
    pub fn seek(block: Block, key: &[u8]) -> Result<Self, Malformed> {
        let next = match block.floor(key)? {
            Some(restart) => block.restart_offset(restart)?,
            None => 0,
        };
        let mut cursor = Self { block, next, key: Vec::new(), slot: None }.advanced()?;
        while cursor.slot.is_some() && cursor.key.as_slice() < key {
            cursor.advance()?;
        }
        Ok(cursor)
    }

    fn advanced(mut self) -> Result<Self, Malformed> {
        self.advance()?;
        Ok(self)
    }

    #[inline]
    pub fn advance(&mut self) -> Result<(), Malformed> {
        if self.next >= self.block.records_end {
            self.slot = None;
            return Ok(());
        }
        let header = self.block.header(self.next)?;
        if header.shared > self.key.len() {
            return Err(Malformed);
        }
        self.key.truncate(header.shared);
        self.key.extend_from_slice(&self.block.bytes[header.key_at..header.key_end]);
        self.slot = Some(header.slot());
        self.next = header.end;
        Ok(())
    }

    pub fn block(&self) -> &Block {
        &self.block
    }

    pub fn key(&self) -> &[u8] {
        &self.key
    }

    pub fn slot(&self) -> Option<&Slot> {
        self.slot.as_ref()
    }
}

/// Decodes one restart interval at a time and hands its records out from its end.
#[derive(Debug)]
pub struct BackwardCursor {
    block: Block,
    /// Restart intervals before the one that is decoded.
    intervals_left: usize,
    /// The keys of the decoded interval, one behind the other.
    keys: Vec<u8>,
    records: Vec<(Range<usize>, Slot)>,
}

impl BackwardCursor {
    /// Stands on the last record.
    pub fn last(block: Block) -> Result<Self, Malformed> {
        let intervals_left = block.restarts;
        let mut cursor = Self { block, intervals_left, keys: Vec::new(), records: Vec::new() };
        cursor.load()?;
        Ok(cursor)
    }

    /// Stands on the last record whose key is smaller than `end`.
    pub fn seek_before(block: Block, end: &[u8]) -> Result<Self, Malformed> {
        // The interval of the last restart that is not larger: it and those before it hold all smaller keys.
        let intervals_left = block.floor(end)?.map_or(0, |restart| restart + 1);
        let mut cursor = Self { block, intervals_left, keys: Vec::new(), records: Vec::new() };
        cursor.load()?;
        while cursor.slot().is_some() && cursor.key() >= end {
            cursor.advance()?;
        }
        Ok(cursor)
    }

    pub fn advance(&mut self) -> Result<(), Malformed> {
        self.records.pop();
        if self.records.is_empty() { self.load() } else { Ok(()) }
    }

    fn load(&mut self) -> Result<(), Malformed> {
        self.keys.clear();
        self.records.clear();
        let Some(interval) = self.intervals_left.checked_sub(1) else { return Ok(()) };
        let mut at = self.block.restart_offset(interval)?;
        let end = if self.intervals_left < self.block.restarts {
            self.block.restart_offset(self.intervals_left)?
        } else {
            self.block.records_end
        };
        self.intervals_left = interval;
        let mut before = 0..0;
        while at < end {
            let header = self.block.header(at)?;
            if header.shared > before.len() || self.records.len() == INTERVAL_RECORDS_MAX {
                return Err(Malformed);
            }
            let start = self.keys.len();
            self.keys.extend_from_within(before.start..before.start + header.shared);
            self.keys.extend_from_slice(&self.block.bytes[header.key_at..header.key_end]);
            before = start..self.keys.len();
            self.records.push((before.clone(), header.slot()));
            at = header.end;
        }
        // An interval has a record, and ends where the next one starts.
        if self.records.is_empty() || at != end { Err(Malformed) } else { Ok(()) }
    }

    pub fn block(&self) -> &Block {
        &self.block
    }

    pub fn key(&self) -> &[u8] {
        self.records.last().map_or(&[], |(key, _)| &self.keys[key.clone()])
    }

    pub fn slot(&self) -> Option<&Slot> {
        self.records.last().map(|(_, slot)| slot)
    }
}
