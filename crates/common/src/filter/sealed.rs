//! The filter of a sealed SSTable.
//!
//! Bytes: kind u8, version u8 = 1, then for kind 2 (binary fuse, 8-bit fingerprints, `xorf`): seed u64, segment length u32,
//! segment length mask u32, segment count length u32, fingerprints. Kind 0: empty, matches nothing. Kind 1: a
//! [`super::LayeredBloom`], for tables whose hashes could not be sealed.

use xorf::{BinaryFuse8, DmaSerializable, Filter};

use super::LayeredBloom;
use crate::error::{Error, Result};

const VERSION: u8 = 1;
const KIND_EMPTY: u8 = 0;
const KIND_BLOOM: u8 = 1;
const KIND_FUSE8: u8 = 2;

/// Answers "may the table contain a key with this hash?"; immutable.
#[derive(Debug)]
pub enum SealedFilter {
    Empty,
    Bloom(LayeredBloom),
    Fuse(BinaryFuse8),
}

impl SealedFilter {
    /// Builds the filter of a set of hashes; sorts and deduplicates them in place.
    pub fn build(hashes: &mut Vec<u64>) -> Self {
        hashes.sort_unstable();
        hashes.dedup();
        if hashes.is_empty() {
            return SealedFilter::Empty;
        }
        match BinaryFuse8::try_from(hashes.as_slice()) {
            Ok(fuse) => SealedFilter::Fuse(fuse),
            // Construction is randomised and may give up; a Bloom filter never does.
            Err(_) => {
                let mut bloom = LayeredBloom::new();
                hashes.iter().for_each(|h| bloom.insert(*h));
                SealedFilter::Bloom(bloom)
            }
        }
    }

    pub fn contains(&self, hash: u64) -> bool {
        match self {
            SealedFilter::Empty => false,
            SealedFilter::Bloom(bloom) => bloom.contains(hash),
            SealedFilter::Fuse(fuse) => fuse.contains(&hash),
        }
    }

    pub fn memory_bytes(&self) -> usize {
        match self {
            SealedFilter::Empty => 0,
            SealedFilter::Bloom(bloom) => bloom.memory_bytes(),
            SealedFilter::Fuse(fuse) => fuse.fingerprints.len(),
        }
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        match self {
            SealedFilter::Empty => vec![KIND_EMPTY, VERSION],
            SealedFilter::Bloom(bloom) => {
                let mut out = vec![KIND_BLOOM, VERSION];
                out.extend_from_slice(&bloom.to_bytes());
                out
            }
            SealedFilter::Fuse(fuse) => {
                let mut out = vec![KIND_FUSE8, VERSION];
                out.resize(2 + BinaryFuse8::DESCRIPTOR_LEN, 0);
                fuse.dma_copy_descriptor_to(&mut out[2..]);
                out.extend_from_slice(fuse.dma_fingerprints());
                out
            }
        }
    }

    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let bad = |what: &'static str| Error::corrupt(format!("SSTable filter: {what}"));
        let [kind, version, rest @ ..] = bytes else { return Err(bad("too short")) };
        if *version != VERSION {
            return Err(bad("unknown version"));
        }
        match *kind {
            KIND_EMPTY => Ok(SealedFilter::Empty),
            KIND_BLOOM => Ok(SealedFilter::Bloom(LayeredBloom::from_bytes(rest)?)),
            KIND_FUSE8 => Err(bad("not yet")),
            _ => Err(bad("unknown kind")),
        }
    }
}
