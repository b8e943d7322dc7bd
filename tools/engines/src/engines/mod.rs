//! What is compared. Each has checks of what it reads from the disk, and a filter of ten bits a key.

mod lsm;
mod ours;
#[cfg(feature = "rocksdb")]
mod rocks;

use std::path::Path;

use crate::records::Records;
use crate::report::Row;

/// Room for everything.
const CACHE_BYTES: u64 = 4 << 30;
const BLOCK_BYTES: u32 = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    None,
    Lz4,
    Zstd,
}

pub trait Engine {
    fn name(&self) -> &'static str;
    fn has(&self, compression: Compression) -> bool;
    /// Writes one table into the folder. Nobody waits for the disk.
    fn build(&self, place: &Path, records: &Records, compression: Compression);
    /// With a cache that has room for everything, and with one of `small` bytes. Indexes and filters are in memory; of ours as
    /// far as the cache, which they share with blocks, keeps them.
    fn open(&self, place: &Path, compression: Compression, small: u64) -> Box<dyn Opened>;
}

pub trait Opened {
    /// Length of the value. [`Row::SmallCache`]: by the small cache.
    fn get(&self, key: &[u8], row: Row) -> Option<usize>;
    /// Number of records, and their bytes; past the caches, or by the small one.
    fn scan(&self, backward: bool) -> (usize, usize);
}

/// Ours first.
pub fn all() -> Vec<Box<dyn Engine>> {
    vec![
        Box::new(ours::Ours),
        Box::new(lsm::Lsm),
        #[cfg(feature = "rocksdb")]
        Box::new(rocks::Rocks),
    ]
}
