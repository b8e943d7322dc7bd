//! A block: sorted records with prefix truncation. Data blocks and index blocks have the same layout.
//!
//! Owns the layout of a payload, point lookups in it and cursors over it. Does not own checksums or compression (`frame`).
//!
//! Bytes: records, then the offset (u32) of each restart record, then their number (u32). A record: `shared` varint (bytes of
//! the key that it has in common with the record before it; 0 at a restart), `unshared` varint, `length * 2 + flag`
//! varint, seq varint, the unshared bytes of the key, then `length` bytes: without the flag the value; with it nothing (a tombstone), or
//! (in version 3 of the format) the tick from which on the record is absent (u64), and the value. Data blocks restart at every 16th record, index blocks at
//! every record.
//!
//! Invariant: no bytes make it panic or read outside of the block; what cannot be decoded is [`Malformed`].

mod builder;
mod cursor;

use std::ops::Range;

use bytes::Bytes;

use sextant_common::limits::KEY_BYTES_MAX;
use sextant_common::marks::Marks;

use super::codec::{common_prefix, u32_at, u64_at, varint};

pub use builder::{BlockBuilder, Content};
pub use cursor::{BackwardCursor, ForwardCursor};

/// Records from one restart to the next in a data block: 16 cost a lookup about 8 comparisons of suffixes and save most
/// of the common prefixes.
pub const RESTART_INTERVAL: usize = 16;

/// No writer makes longer intervals. A walk backwards holds the keys of one, so this bounds its memory whatever the bytes are.
const INTERVAL_RECORDS_MAX: usize = 64;

/// What marks take before their value.
const MARKS_BYTES: usize = size_of::<u64>();

/// The payload is not a block, although its checksum was right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

/// A record's place in a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    pub seq: u64,
    pub tombstone: bool,
    pub marks: Marks,
    pub value: Range<usize>,
}

/// A decompressed block. Cloning shares the bytes.
#[derive(Clone, Debug)]
pub struct Block {
    bytes: Bytes,
    records_end: usize,
    restarts: usize,
}

/// A record's header, checked to lie inside of the block.
#[derive(Clone, Copy)]
struct Header {
    shared: usize,
    tombstone: bool,
    marks: Marks,
    seq: u64,
    key_at: usize,
    /// Where the key ends.
    key_end: usize,
    value_at: usize,
    end: usize,
}

impl Block {
    pub fn parse(bytes: Bytes) -> Result<Block, Malformed> {
        let count_at = bytes.len().checked_sub(4).ok_or(Malformed)?;
        let restarts = u32_at(&bytes, count_at).ok_or(Malformed)? as usize;
        let records_end = restarts.checked_mul(4).and_then(|n| count_at.checked_sub(n)).ok_or(Malformed)?;
        if restarts == 0 || records_end == 0 || u32_at(&bytes, records_end) != Some(0) {
            return Err(Malformed);
        }
        Ok(Block { bytes, records_end, restarts })
    }

    pub fn size_bytes(&self) -> usize {
        self.bytes.len()
    }

    pub fn restarts(&self) -> usize {
        self.restarts
    }

    /// The value of a slot, without a copy.
    pub fn value(&self, slot: &Slot) -> Bytes {
        self.bytes.slice(slot.value.clone())
    }

    pub fn value_ref(&self, range: &Range<usize>) -> &[u8] {
        &self.bytes[range.clone()]
    }

    /// The record with this key, if there is one.
    pub fn get(&self, key: &[u8]) -> Result<Option<Slot>, Malformed> {
        let Some(restart) = self.floor(key)? else { return Ok(None) };
        let mut at = self.restart_offset(restart)?;
        // Bytes that the key before has in common with the one that is searched; it is smaller than that.
        let mut matched = 0;
        while at < self.records_end {
            let header = self.header(at)?;
            if header.shared < matched {
                // It leaves the common prefix, upwards.
                return Ok(None);
            }
            if header.shared == matched {
                let suffix = &self.bytes[header.key_at..header.key_end];
                let rest = &key[matched..];
                let more = common_prefix(suffix, rest);
                match (suffix.get(more), rest.get(more)) {
                    (None, None) => return Ok(Some(header.slot())),
                    (Some(_), None) => return Ok(None),
                    (Some(s), Some(k)) if s > k => return Ok(None),
                    _ => matched += more,
                }
            }
            at = header.end;
        }
        Ok(None)
    }

    /// The last restart whose key is not larger than `key`.
    pub fn floor(&self, key: &[u8]) -> Result<Option<usize>, Malformed> {
        let (mut low, mut high) = (0, self.restarts);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.restart_key(middle)? <= key {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Ok(low.checked_sub(1))
    }

    pub fn restart_key(&self, restart: usize) -> Result<&[u8], Malformed> {
        let header = self.restart_header(restart)?;
        Ok(&self.bytes[header.key_at..header.key_end])
    }

    /// The value of a restart record: what an index block is asked for.
    pub fn restart_value(&self, restart: usize) -> Result<&[u8], Malformed> {
        let header = self.restart_header(restart)?;
        Ok(&self.bytes[header.value_at..header.end])
    }

    fn restart_header(&self, restart: usize) -> Result<Header, Malformed> {
        let header = self.header(self.restart_offset(restart)?)?;
        if header.shared != 0 { Err(Malformed) } else { Ok(header) }
    }

    #[inline]
    fn restart_offset(&self, restart: usize) -> Result<usize, Malformed> {
        if restart >= self.restarts {
            return Err(Malformed);
        }
        Ok(u32_at(&self.bytes, self.records_end + 4 * restart).ok_or(Malformed)? as usize)
    }

    #[inline]
    fn header(&self, mut at: usize) -> Result<Header, Malformed> {
        let records = &self.bytes[..self.records_end];
        let mut next = || varint(records, &mut at).ok_or(Malformed);
        let (shared, unshared, kind, seq) = (next()?, next()?, next()?, next()?);
        if shared.saturating_add(unshared) > KEY_BYTES_MAX as u64 {
            return Err(Malformed);
        }
        let (unshared, value_len) = (usize::try_from(unshared), usize::try_from(kind >> 1));
        let key_end = unshared.ok().and_then(|n| at.checked_add(n)).ok_or(Malformed)?;
        let end = value_len.ok().and_then(|n| key_end.checked_add(n)).ok_or(Malformed)?;
        if end > self.records_end {
            return Err(Malformed);
        }
        let shared = usize::try_from(shared).map_err(|_| Malformed)?;
        let (mut value_at, mut marks) = (key_end, Marks::NONE);
        let is_flagged = kind & 1 == 1;
        if is_flagged && end > key_end {
            value_at = key_end + MARKS_BYTES;
            let head = records.get(key_end..value_at).filter(|_| value_at <= end).ok_or(Malformed)?;
            marks = Marks::from_word(u64_at(head, 0).ok_or(Malformed)?);
        }
        let tombstone = is_flagged && value_at == key_end;
        Ok(Header { shared, tombstone, marks, seq, key_at: at, key_end, value_at, end })
    }
}

impl Header {
    fn slot(&self) -> Slot {
        let Header { seq, tombstone, marks, .. } = *self;
        Slot { seq, tombstone, marks, value: self.value_at..self.end }
    }
}

#[cfg(test)]
mod tests;
