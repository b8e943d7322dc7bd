//! A Bloom filter that grows in layers, so that a small table costs little.
//!
//! Layer i is dimensioned for [`FIRST_LAYER_KEYS`] * 4^i keys at [`BITS_PER_KEY`] bits each; when it has taken so many, the
//! next one is started. The same hashes in the same order give the same bytes everywhere.
//!
//! Bytes: version u8 = 1, layers u8, then per layer: keys u64, length u32, bitmap as `bloomfilter` 3 lays it out.

use bloomfilter::Bloom;

use crate::error::{Error, Result};

/// Keys of the first layer: 3 KiB of bits.
const FIRST_LAYER_KEYS: u64 = 2048;
/// The layers' false positives add up; 12 bits a key keep the sum below one percent.
const BITS_PER_KEY: u64 = 12;
/// 2048 * 4^11 keys are more than any memtable holds.
const LAYERS_MAX: usize = 12;
/// Fixed for ever: part of the format. Its two halves differ (if they are equal, false positives triple).
const SEED: [u8; 32] = *b"sextant bloom filter seed, v1 \x7e\xa3";
const VERSION: u8 = 1;

struct Layer {
    bloom: Bloom<u64>,
    keys: u64,
    capacity: u64,
}

/// See the module's head.
pub struct LayeredBloom {
    layers: Vec<Layer>,
}

impl std::fmt::Debug for LayeredBloom {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LayeredBloom {{ keys: {}, bytes: {} }}", self.keys(), self.memory_bytes())
    }
}

impl Default for LayeredBloom {
    fn default() -> Self {
        Self::new()
    }
}

fn capacity_of(layer: usize) -> u64 {
    FIRST_LAYER_KEYS << (2 * layer.min(LAYERS_MAX - 1))
}

fn new_layer(index: usize) -> Layer {
    let capacity = capacity_of(index);
    let bitmap_bytes = (capacity * BITS_PER_KEY / 8) as usize;
    // Fails only for sizes or counts of 0, or without randomness; the seed is given.
    let bloom =
        Bloom::new_with_seed(bitmap_bytes, capacity as usize, &SEED).expect("constant dimensions are valid");
    Layer { bloom, keys: 0, capacity }
}

impl LayeredBloom {
    /// An empty filter takes no memory for bits.
    pub fn new() -> Self {
        Self { layers: Vec::new() }
    }

    pub fn insert(&mut self, hash: u64) {
        if self.layers.last().is_none_or(|l| l.keys >= l.capacity) {
            let index = self.layers.len();
            self.layers.push(new_layer(index));
        }
        if let Some(layer) = self.layers.last_mut() {
            layer.bloom.set(&hash);
            layer.keys += 1;
        }
    }

    pub fn contains(&self, hash: u64) -> bool {
        self.layers.iter().rev().any(|l| l.bloom.check(&hash))
    }

    /// How many hashes were inserted (repetitions count).
    pub fn keys(&self) -> u64 {
        self.layers.iter().map(|l| l.keys).sum()
    }

    pub fn memory_bytes(&self) -> usize {
        self.layers.iter().map(|l| l.bloom.len() as usize / 8).sum()
    }

    /// Everything that either filter contains. Used when a truncated freeze is undone: the layers are simply kept side by
    /// side (extra layers cost probes, never an answer).
    pub fn union(&mut self, other: LayeredBloom) {
        let last = self.layers.pop();
        self.layers.extend(other.layers);
        self.layers.extend(last);
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = vec![VERSION, self.layers.len() as u8];
        for layer in &self.layers {
            let bytes = layer.bloom.to_bytes();
            out.extend_from_slice(&layer.keys.to_le_bytes());
            out.extend_from_slice(&layer.capacity.to_le_bytes());
            out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
            out.extend_from_slice(&bytes);
        }
        out
    }

    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let bad = |what: &'static str| Error::corrupt(format!("Bloom filter: {what}"));
        let [version, count, rest @ ..] = bytes else { return Err(bad("too short")) };
        let mut rest = rest;
        if *version != VERSION {
            return Err(bad("unknown version"));
        }
        let mut layers = Vec::new();
        for _ in 0..*count {
            let (head, tail) = rest.split_at_checked(20).ok_or_else(|| bad("truncated header"))?;
            let keys = u64::from_le_bytes(head[..8].try_into().unwrap_or_default());
            let capacity = u64::from_le_bytes(head[8..16].try_into().unwrap_or_default());
            let len = u32::from_le_bytes(head[16..20].try_into().unwrap_or_default()) as usize;
            let (bitmap, tail) = tail.split_at_checked(len).ok_or_else(|| bad("truncated layer"))?;
            let bloom = Bloom::from_slice(bitmap).map_err(|_| bad("bad layer"))?;
            if bloom.seed() != SEED {
                return Err(bad("foreign seed"));
            }
            layers.push(Layer { bloom, keys, capacity });
            rest = tail;
        }
        if !rest.is_empty() {
            return Err(bad("trailing bytes"));
        }
        Ok(Self { layers })
    }
}

impl Clone for LayeredBloom {
    fn clone(&self) -> Self {
        let copy = |l: &Layer| Layer { bloom: l.bloom.clone(), keys: l.keys, capacity: l.capacity };
        Self { layers: self.layers.iter().map(copy).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn false_positives_stay_below_two_percent_through_four_layers() {
        let mut filter = LayeredBloom::new();
        let hash = |i: u64| crate::key::filter_hash(&i.to_le_bytes());
        for i in 0..100_000 {
            filter.insert(hash(i));
        }
        assert_eq!(filter.layers.len(), 4);
        let false_positives = (100_000..200_000).filter(|i| filter.contains(hash(*i))).count();
        assert!(false_positives < 2_000, "{false_positives}");
    }

    #[test]
    fn the_bytes_are_pinned() {
        let mut filter = LayeredBloom::new();
        for i in 0..10u64 {
            filter.insert(i.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        }
        // Golden: leader and p-nodes of different builds must agree.
        assert_eq!(
            xxhash_rust::xxh3::xxh3_64(&filter.to_bytes()),
            GOLDEN,
            "{:#x}",
            xxhash_rust::xxh3::xxh3_64(&filter.to_bytes())
        );
    }
    const GOLDEN: u64 = 0;

    proptest! {
        #[test]
        fn contains_all_that_was_inserted_also_after_a_round_trip(hashes in prop::collection::vec(any::<u64>(), 0..6000)) {
            let mut filter = LayeredBloom::new();
            hashes.iter().for_each(|h| filter.insert(*h));
            let copy = LayeredBloom::from_bytes(&filter.to_bytes()).unwrap();
            prop_assert_eq!(copy.to_bytes(), filter.to_bytes());
            for h in &hashes {
                prop_assert!(filter.contains(*h) && copy.contains(*h));
            }
        }

        #[test]
        fn a_union_contains_both(a in prop::collection::vec(any::<u64>(), 0..3000), b in prop::collection::vec(any::<u64>(), 0..3000)) {
            let (mut left, mut right) = (LayeredBloom::new(), LayeredBloom::new());
            a.iter().for_each(|h| left.insert(*h));
            b.iter().for_each(|h| right.insert(*h));
            left.union(right);
            for h in a.iter().chain(&b) {
                prop_assert!(left.contains(*h));
            }
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = LayeredBloom::from_bytes(&bytes);
        }
    }
}
