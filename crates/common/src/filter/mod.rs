//! Filters over key hashes ([`crate::key::filter_hash`]).
//!
//! * [`LayeredBloom`]: grows by inserts; B_m, on the leader and as copies at p-nodes, by the same rule on both sides.
//! * [`SealedFilter`]: the filter of a sealed SSTable, in a stable byte format with a kind and a version.

mod layered_bloom;
mod sealed;

pub use layered_bloom::LayeredBloom;
pub use sealed::SealedFilter;
