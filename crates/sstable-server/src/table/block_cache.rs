//! What all tables of a server keep in memory, within one number of bytes: decompressed blocks, and sections
//! ([`super::section`]).
//!
//! Blocks are weighed, and filled in by point reads only: a scan looks into the cache but leaves it as it is. Leaves of large
//! indexes are blocks here: one names hundreds of others, and is used as much more often. How much blocks may have, and how
//! sections come and go: [`super::budget`].

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};

use quick_cache::Weighter;
use quick_cache::sync::{Cache, GuardResult};
use sextant_common::error::Result;

use super::block::Block;
use super::budget::{Blocks, Budget, Kind};

/// Number of an open table within this process (a repaired table gets a new one) and the offset of the block.
type BlockKey = (u64, u64);
type Cached = Cache<BlockKey, Block, BlockWeighter>;

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

impl Blocks for Option<Cached> {
    fn set_capacity(&self, bytes: u64) {
        if let Some(cache) = self {
            // Each shard gets its part, rounded up.
            cache.set_capacity(bytes - bytes % cache.num_shards() as u64);
        }
    }

    fn used_bytes(&self) -> u64 {
        self.as_ref().map_or(0, |cache| cache.weight())
    }
}

/// See the module's head.
#[derive(Debug)]
pub struct BlockCache {
    blocks: Option<Cached>,
    budget: Budget,
    /// By [`Kind`]: sections that had to be read.
    loads: [AtomicU64; Kind::ALL.len()],
}

impl BlockCache {
    /// Capacity in bytes; 0: nothing is kept.
    pub fn new(capacity_bytes: u64) -> Self {
        let expected = (capacity_bytes / EXPECTED_BLOCK_BYTES) as usize;
        let blocks =
            (capacity_bytes > 0).then(|| Cache::with_weighter(expected, capacity_bytes, BlockWeighter));
        blocks.set_capacity(capacity_bytes);
        Self { blocks, budget: Budget::new(capacity_bytes), loads: Default::default() }
    }

    #[inline]
    pub fn get(&self, table: u64, offset: u64) -> Option<Block> {
        self.blocks.as_ref()?.get(&(table, offset))
    }

    /// Looks without counting as a use.
    pub fn peek(&self, table: u64, offset: u64) -> Option<Block> {
        self.blocks.as_ref()?.peek(&(table, offset))
    }

    pub fn insert(&self, table: u64, offset: u64, block: &Block) {
        if let Some(blocks) = &self.blocks
            && block.size_bytes() <= CACHED_BLOCK_BYTES_MAX
        {
            blocks.insert((table, offset), block.clone());
            self.came_in(block);
        }
    }

    /// The block, or what `read` gives, which is called by one of those who want it at a time; and whether it was here.
    pub fn get_or_read(
        &self,
        table: u64,
        offset: u64,
        read: impl FnOnce() -> Result<Block>,
    ) -> Result<(Block, bool)> {
        let Some(blocks) = &self.blocks else { return Ok((read()?, false)) };
        match blocks.get_value_or_guard(&(table, offset), None) {
            GuardResult::Value(block) => Ok((block, true)),
            GuardResult::Guard(guard) => {
                let block = read()?;
                if block.size_bytes() <= CACHED_BLOCK_BYTES_MAX {
                    // (Not if the table was forgotten meanwhile.)
                    let _ = guard.insert(block.clone());
                    self.came_in(&block);
                }
                Ok((block, false))
            }
            // There is no time limit.
            GuardResult::Timeout => Ok((read()?, false)),
        }
    }

    fn came_in(&self, block: &Block) {
        self.budget.age(block.size_bytes() as u64 + ENTRY_BYTES, &self.blocks);
    }

    /// Drops the blocks of tables that are gone.
    pub fn forget(&self, tables: &HashSet<u64>) {
        if let Some(blocks) = &self.blocks
            && !tables.is_empty()
        {
            blocks.retain(|(table, _), _| !tables.contains(table));
        }
    }

    /// Of blocks, leaves of indexes among them.
    pub fn block_bytes(&self) -> u64 {
        self.blocks.used_bytes()
    }

    /// Of sections, or of what every open table keeps.
    pub fn section_bytes(&self, kind: Kind) -> u64 {
        self.budget.used_bytes(kind)
    }

    /// All of it.
    pub fn used_bytes(&self) -> u64 {
        Kind::ALL.iter().map(|kind| self.section_bytes(*kind)).sum::<u64>() + self.block_bytes()
    }

    pub fn capacity_bytes(&self) -> u64 {
        self.budget.capacity()
    }

    /// How many sections of this kind were read because they were not here.
    pub fn loads(&self, kind: Kind) -> u64 {
        self.loads[kind as usize].load(Ordering::Relaxed)
    }

    pub(super) fn count_load(&self, kind: Kind) {
        self.loads[kind as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn budget(&self) -> (&Budget, &dyn Blocks) {
        (&self.budget, &self.blocks)
    }
}
