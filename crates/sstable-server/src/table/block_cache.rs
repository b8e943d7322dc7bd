//! The cache of decompressed blocks, shared by all tables of a server.
//!
//! Bounded by weight (bytes). Filled by point reads only: a scan looks into it but leaves it as it is.

use std::collections::HashSet;

use quick_cache::Weighter;
use quick_cache::sync::Cache;

use super::block::Block;

/// Number of an open table within this process (a repaired table gets a new one) and the offset of the block.
type BlockKey = (u64, u64);

/// Bytes that an entry costs beyond its block: key, handle, the cache's bookkeeping.
const ENTRY_BYTES: u64 = 96;
/// Larger blocks (large values) are left to the page cache of the operating system: one of them would push out hundreds
/// of ordinary ones.
const CACHED_BLOCK_BYTES_MAX: usize = 1024 * 1024;
/// What a block weighs on average, to dimension the cache's tables.
const EXPECTED_BLOCK_BYTES: u64 = 4096;

#[derive(Clone, Debug)]
struct BlockWeighter;

impl Weighter<BlockKey, Block> for BlockWeighter {
    fn weight(&self, _: &BlockKey, block: &Block) -> u64 {
        block.size_bytes() as u64 + ENTRY_BYTES
    }
}

#[derive(Debug)]
pub struct BlockCache {
    cache: Option<Cache<BlockKey, Block, BlockWeighter>>,
}

impl BlockCache {
    /// Capacity in bytes; 0: nothing is cached.
    pub fn new(capacity_bytes: u64) -> Self {
        let expected = (capacity_bytes / EXPECTED_BLOCK_BYTES) as usize;
        Self {
            cache: (capacity_bytes > 0)
                .then(|| Cache::with_weighter(expected, capacity_bytes, BlockWeighter)),
        }
    }

    #[inline]
    pub fn get(&self, table: u64, offset: u64) -> Option<Block> {
        self.cache.as_ref()?.get(&(table, offset))
    }

    /// Looks without counting as a use.
    pub fn peek(&self, table: u64, offset: u64) -> Option<Block> {
        self.cache.as_ref()?.peek(&(table, offset))
    }

    pub fn insert(&self, table: u64, offset: u64, block: &Block) {
        if let Some(cache) = &self.cache
            && block.size_bytes() <= CACHED_BLOCK_BYTES_MAX
        {
            cache.insert((table, offset), block.clone());
        }
    }

    /// Drops the blocks of tables that are gone.
    pub fn forget(&self, tables: &HashSet<u64>) {
        if let Some(cache) = &self.cache
            && !tables.is_empty()
        {
            cache.retain(|(table, _), _| !tables.contains(table));
        }
    }

    pub fn used_bytes(&self) -> u64 {
        self.cache.as_ref().map_or(0, |c| c.weight())
    }

    pub fn capacity_bytes(&self) -> u64 {
        self.cache.as_ref().map_or(0, |c| c.capacity())
    }
}
