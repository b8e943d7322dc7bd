//! The index: which data block may hold a key.
//!
//! Owns the entries and the choice between one level and two. Does not own reading (`reader`).
//!
//! An index block is a [`super::block`] that restarts at every record. Entry: key = lower bound of a block, value = varint
//! offset and varint length of its frame. The lower bound of a block is the shortest prefix of its first key that is larger
//! than the last key of the block before it; that of the first block is empty. A key is looked for in the last block whose
//! lower bound is not larger. With two levels the entries of the top block name leaf index blocks, which name data blocks.

use sextant_common::error::{Error, Result};

use super::block::{Block, BlockBuilder, Content, Malformed};
use super::codec::{common_prefix, put_varint, varint};

/// A table with a larger index has two levels: the top one then holds a few entries, and leaves compete for the block
/// cache like data does. One level spares a lookup a cache access; 1 MiB indexes 100 to 150 MB of data: 0.8 % of it, read at once.
pub const FULL_INDEX_BYTES_MAX: usize = 1024 * 1024;
/// Payload of a leaf: 500 blocks, a top block 500 times smaller.
pub const LEAF_BYTES: usize = 16 * 1024;

/// Where a frame lies in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Handle {
    pub offset: u64,
    /// Length on disk.
    pub bytes: u64,
}

impl Handle {
    fn encode(self) -> Vec<u8> {
        let mut out = Vec::with_capacity(10);
        put_varint(&mut out, self.offset);
        put_varint(&mut out, self.bytes);
        out
    }

    fn decode(value: &[u8]) -> Result<Self, Malformed> {
        let mut at = 0;
        let offset = varint(value, &mut at).ok_or(Malformed)?;
        let bytes = varint(value, &mut at).ok_or(Malformed)?;
        if at != value.len() || offset.checked_add(bytes).is_none() {
            return Err(Malformed);
        }
        Ok(Handle { offset, bytes })
    }

    pub fn end(&self) -> u64 {
        self.offset.saturating_add(self.bytes)
    }
}

/// The handle of entry `at` of an index block.
pub fn handle(block: &Block, at: usize) -> Result<Handle, Malformed> {
    Handle::decode(block.restart_value(at)?)
}

/// The entry that covers a key; the first one for keys below all lower bounds.
pub fn covering(block: &Block, key: &[u8]) -> Result<usize, Malformed> {
    Ok(block.floor(key)?.unwrap_or(0))
}

/// The shortest prefix of `first` that is larger than `before`, the key just before it.
pub fn lower_bound<'k>(before: &[u8], first: &'k [u8]) -> &'k [u8] {
    &first[..(common_prefix(before, first) + 1).min(first.len())]
}

/// Collects the entries while the data blocks are written.
#[derive(Debug, Default)]
pub struct IndexBuilder {
    bounds: Vec<u8>,
    bound_ends: Vec<usize>,
    handles: Vec<Handle>,
}

/// What was written for an index.
#[derive(Clone, Copy, Debug)]
pub struct WrittenIndex {
    pub top: Handle,
    pub levels: u32,
}

impl IndexBuilder {
    pub fn add(&mut self, lower_bound: &[u8], handle: Handle) {
        self.bounds.extend_from_slice(lower_bound);
        self.bound_ends.push(self.bounds.len());
        self.handles.push(handle);
    }

    pub fn blocks(&self) -> usize {
        self.handles.len()
    }

    /// Writes the index through `write`, which appends a frame to the file and tells where it lies.
    pub fn finish(&self, mut write: impl FnMut(&[u8]) -> Result<Handle>) -> Result<WrittenIndex> {
        if self.handles.is_empty() {
            return Err(Error::internal("an index needs a block"));
        }
        // 20 bytes an entry for lengths, handle and restart: an estimate suffices, as it is the same everywhere.
        if self.bounds.len() + 20 * self.handles.len() <= FULL_INDEX_BYTES_MAX {
            let mut block = BlockBuilder::new(1);
            self.entries().for_each(|(bound, handle)| block.add(bound, 0, Content::Value(&handle.encode())));
            return Ok(WrittenIndex { top: write(block.finish())?, levels: 1 });
        }
        let (mut top, mut leaf) = (BlockBuilder::new(1), BlockBuilder::new(1));
        let mut leaf_bound: &[u8] = &[];
        for (bound, handle) in self.entries() {
            if leaf.is_empty() {
                leaf_bound = bound;
            }
            leaf.add(bound, 0, Content::Value(&handle.encode()));
            if leaf.len() >= LEAF_BYTES {
                top.add(leaf_bound, 0, Content::Value(&write(leaf.finish())?.encode()));
                leaf.clear();
            }
        }
        if !leaf.is_empty() {
            top.add(leaf_bound, 0, Content::Value(&write(leaf.finish())?.encode()));
        }
        Ok(WrittenIndex { top: write(top.finish())?, levels: 2 })
    }

    fn entries(&self) -> impl Iterator<Item = (&[u8], Handle)> {
        self.handles.iter().enumerate().map(|(i, handle)| {
            let start = if i == 0 { 0 } else { self.bound_ends[i - 1] };
            (&self.bounds[start..self.bound_ends[i]], *handle)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_lower_bound_separates(a in prop::collection::vec(0u8..3, 0..8), b in prop::collection::vec(0u8..3, 1..8)) {
            prop_assume!(a < b);
            let bound = lower_bound(&a, &b);
            prop_assert!(a.as_slice() < bound && bound <= b.as_slice());
        }
    }

    #[test]
    fn a_small_index_has_one_level_and_a_large_one_two() {
        for (blocks, levels) in [(1, 1), (100, 1), (100_000, 2)] {
            let mut index = IndexBuilder::default();
            for i in 0..blocks {
                index.add(&u32::to_be_bytes(i)[..], Handle { offset: u64::from(i) * 100, bytes: 100 });
            }
            let mut frames = Vec::new();
            let written = index
                .finish(|payload| {
                    frames.push(payload.to_vec());
                    Ok(Handle { offset: frames.len() as u64 - 1, bytes: 1 })
                })
                .unwrap();
            assert_eq!(written.levels, levels);
            let frame = |h: Handle| Block::parse(frames[h.offset as usize].clone().into()).unwrap();
            for i in [0, blocks / 2, blocks - 1] {
                let mut block = frame(written.top);
                let key = [&u32::to_be_bytes(i)[..], b"x"].concat();
                if levels == 2 {
                    block = frame(handle(&block, covering(&block, &key).unwrap()).unwrap());
                }
                let found = handle(&block, covering(&block, &key).unwrap()).unwrap();
                assert_eq!(found.offset, u64::from(i) * 100);
            }
        }
    }
}
