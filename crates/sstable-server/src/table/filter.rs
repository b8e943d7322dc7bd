//! The filter section: a [`SealedFilter`] over [`filter_hash`] of every key, tombstones included, and over [`prefix_hash`] of what the
//! option `filter_prefix` takes of them. Deterministic: the same keys give the same bytes.

use sextant_common::filter::SealedFilter;
use sextant_common::key::{filter_hash, filter_prefix, prefix_hash};

/// Collects the hashes while the records are written: 8 bytes a record, and a prefix, until the table is finished.
#[derive(Debug)]
pub struct FilterBuilder {
    hashes: Vec<u64>,
    /// The table's option.
    prefix_option: u32,
    last_prefix: Option<Vec<u8>>,
}

impl FilterBuilder {
    pub fn new(prefix_option: u32) -> Self {
        Self { hashes: Vec::new(), prefix_option, last_prefix: None }
    }

    /// Keys rise.
    pub fn add(&mut self, key: &[u8]) {
        self.hashes.push(filter_hash(key));
        let Some(prefix) = filter_prefix(key, self.prefix_option) else { return };
        if self.last_prefix.as_deref() != Some(prefix) {
            self.hashes.push(prefix_hash(prefix));
            let last = self.last_prefix.get_or_insert_default();
            last.clear();
            last.extend_from_slice(prefix);
        }
    }

    /// So many there are.
    pub fn hashes(&self) -> usize {
        self.hashes.len()
    }

    pub fn finish(mut self) -> SealedFilter {
        // (What it has grown for would stand beside what the construction takes.)
        self.hashes.shrink_to_fit();
        SealedFilter::build_prefixed(&mut self.hashes, self.prefix_option)
    }
}
