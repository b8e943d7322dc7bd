//! A key on its way to a record.

use sextant_common::ids::PartitionId;

/// A key with its place, hashed once: what views, filters and the record cache are asked for.
#[derive(Clone, Copy)]
pub(crate) struct ReadKey<'k> {
    pub partition: PartitionId,
    pub key: &'k [u8],
    /// [`sextant_common::key::filter_hash`] of the key.
    pub hash: u64,
}
