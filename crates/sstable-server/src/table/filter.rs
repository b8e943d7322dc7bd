//! The filter section: a [`SealedFilter`] over [`filter_hash`] of every key, tombstones included. Deterministic: the same
//! keys give the same bytes.

use sextant_common::filter::SealedFilter;
use sextant_common::key::filter_hash;

/// Collects the hashes while the records are written: 8 bytes a record until the table is finished.
#[derive(Debug, Default)]
pub struct FilterBuilder {
    hashes: Vec<u64>,
}

impl FilterBuilder {
    pub fn add(&mut self, key: &[u8]) {
        self.hashes.push(filter_hash(key));
    }

    pub fn finish(mut self) -> SealedFilter {
        SealedFilter::build(&mut self.hashes)
    }
}
