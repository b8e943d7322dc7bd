//! Builds a block out of sorted records.

use sextant_common::marks::Marks;

use super::MARKS_BYTES;
use crate::table::codec::{common_prefix, put_varint};

/// What a record has besides its key and seq.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content<'v> {
    Value(&'v [u8]),
    /// A value, and what is marked of it.
    Marked(&'v [u8], Marks),
    Tombstone,
}

impl<'v> Content<'v> {
    /// `value`: None: a tombstone.
    pub fn new(value: Option<&'v [u8]>, marks: Marks) -> Self {
        match value {
            None => Content::Tombstone,
            Some(value) if marks.is_none() => Content::Value(value),
            Some(value) => Content::Marked(value, marks),
        }
    }

    pub fn is_tombstone(self) -> bool {
        self == Content::Tombstone
    }

    pub fn marks(self) -> Marks {
        if let Content::Marked(_, marks) = self { marks } else { Marks::NONE }
    }

    /// Empty for a tombstone.
    pub fn value(self) -> &'v [u8] {
        match self {
            Content::Value(value) | Content::Marked(value, _) => value,
            Content::Tombstone => &[],
        }
    }

    /// What stands before the value, and the value.
    fn parts(self) -> (Option<[u8; MARKS_BYTES]>, &'v [u8]) {
        let marks = self.marks();
        ((!marks.is_none()).then(|| marks.word().to_le_bytes()), self.value())
    }
}

/// Reusable: [`BlockBuilder::clear`] keeps its buffers.
#[derive(Debug)]
pub struct BlockBuilder {
    bytes: Vec<u8>,
    restarts: Vec<u32>,
    last_key: Vec<u8>,
    interval: usize,
    until_restart: usize,
}

impl BlockBuilder {
    /// `interval` records from one restart to the next.
    pub fn new(interval: usize) -> Self {
        Self { bytes: Vec::new(), restarts: Vec::new(), last_key: Vec::new(), interval, until_restart: 0 }
    }

    /// The caller keeps the keys in rising order.
    pub fn add(&mut self, key: &[u8], seq: u64, content: Content<'_>) {
        debug_assert!(self.bytes.is_empty() || key > self.last_key.as_slice());
        let shared = if self.until_restart == 0 {
            self.restarts.push(self.bytes.len() as u32);
            self.until_restart = self.interval;
            0
        } else {
            common_prefix(key, &self.last_key)
        };
        self.until_restart -= 1;
        put_varint(&mut self.bytes, shared as u64);
        put_varint(&mut self.bytes, (key.len() - shared) as u64);
        let (head, value) = content.parts();
        let head = head.as_ref().map_or(&[][..], |head| head);
        let len = (head.len() + value.len()) as u64;
        put_varint(&mut self.bytes, len << 1 | u64::from(content.is_tombstone() || !head.is_empty()));
        put_varint(&mut self.bytes, seq);
        self.bytes.extend_from_slice(&key[shared..]);
        self.bytes.extend_from_slice(head);
        self.bytes.extend_from_slice(value);
        self.last_key.truncate(shared);
        self.last_key.extend_from_slice(&key[shared..]);
    }

    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Bytes of the block if it were finished now.
    pub fn len(&self) -> usize {
        self.bytes.len() + 4 * self.restarts.len() + 4
    }

    /// Completes the block. Call [`BlockBuilder::clear`] before the next one.
    pub fn finish(&mut self) -> &[u8] {
        for restart in &self.restarts {
            self.bytes.extend_from_slice(&restart.to_le_bytes());
        }
        self.bytes.extend_from_slice(&(self.restarts.len() as u32).to_le_bytes());
        &self.bytes
    }

    pub fn clear(&mut self) {
        self.bytes.clear();
        self.restarts.clear();
        self.last_key.clear();
        self.until_restart = 0;
    }
}
