//! A Bloom filter that grows in layers, so that a small table costs little.
//!
//! A layer of step s is dimensioned for [`FIRST_LAYER_KEYS`] * 8^s keys at [`BITS_PER_KEY`] bits each. When the newest layer has
//! taken so many, one of the next step is started; before the first insert there is none. The same hashes in the same order
//! give the same bytes everywhere. Growing eightfold, a filter of a million keys has four layers: few probes, and at most one
//! large layer that is not full yet.
//!
//! Bytes: version u8 = 1, layers u8, then per layer: step u8, keys u64 (little-endian), bitmap with its header as
//! `bloomfilter` 3 lays them out; the step decides the bitmap's length.

use bloomfilter::Bloom;

use crate::error::{Error, Result};

/// Keys of the first layer: 3 KiB of bits.
const FIRST_LAYER_KEYS: u64 = 2048;
/// The layers' false positives add up: 0.31 % for each full one, so less than 2 % for any memtable.
const BITS_PER_KEY: u64 = 12;
/// 2048 * 8^7 keys, 4 billion, are more than any memtable holds.
const STEP_MAX: u8 = 7;
/// A union keeps layers side by side; beyond so many it lays one over another. Bounds the probes of a lookup.
const LAYERS_MAX: usize = 16;
/// No honest count is higher, and the sum of all layers' counts cannot overflow.
const LAYER_KEYS_MAX: u64 = 1 << 48;
/// Fixed for ever: part of the format. Its two halves differ (if they are equal, false positives triple).
const SEED: [u8; 32] = *b"sextant bloom filter seed, v1 \x7e\xa3";
const VERSION: u8 = 1;
/// Version u8, length u64, number of hash functions u32, seed: what `bloomfilter` 3 puts before the bits.
const BITMAP_HEADER_BYTES: usize = 1 + 8 + 4 + 32;

#[derive(Clone)]
struct Layer {
    step: u8,
    keys: u64,
    bloom: Bloom<u64>,
}

/// See the module's head.
#[derive(Clone, Default)]
pub struct LayeredBloom {
    layers: Vec<Layer>,
}

impl std::fmt::Debug for LayeredBloom {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LayeredBloom {{ keys: {}, bytes: {} }}", self.keys(), self.memory_bytes())
    }
}

fn capacity_of(step: u8) -> u64 {
    FIRST_LAYER_KEYS << (3 * step.min(STEP_MAX))
}

fn bitmap_bytes_of(step: u8) -> usize {
    (capacity_of(step) * BITS_PER_KEY / 8) as usize
}

impl Layer {
    fn new(step: u8) -> Self {
        // Steps are at most STEP_MAX, also in bytes from outside: the dimensions are constants, and never 0.
        let bloom = Bloom::new_with_seed(bitmap_bytes_of(step), capacity_of(step) as usize, &SEED)
            .expect("constant dimensions are valid");
        Self { step, keys: 0, bloom }
    }

    fn is_full(&self) -> bool {
        self.keys >= capacity_of(self.step)
    }

    /// Lays the bits of a layer of the same step over this one's.
    fn overlay(&mut self, other: &Layer) {
        let mut bytes = self.bloom.to_bytes();
        let bits = bytes.iter_mut().zip(other.bloom.as_slice()).skip(BITMAP_HEADER_BYTES);
        bits.for_each(|(mine, theirs)| *mine |= theirs);
        // The header is this layer's own: these bytes are always valid.
        if let Ok(bloom) = Bloom::from_bytes(bytes) {
            self.bloom = bloom;
            self.keys += other.keys;
        }
    }
}

impl LayeredBloom {
    /// An empty filter takes no memory for bits.
    pub fn new() -> Self {
        Self::default()
    }

    pub fn insert(&mut self, hash: u64) {
        if self.layers.last().is_none_or(Layer::is_full) {
            let step = self.layers.last().map_or(0, |newest| (newest.step + 1).min(STEP_MAX));
            self.layers.push(Layer::new(step));
        }
        if let Some(newest) = self.layers.last_mut() {
            newest.bloom.set(&hash);
            newest.keys += 1;
        }
    }

    pub fn contains(&self, hash: u64) -> bool {
        // The newest layer is the largest and holds most keys.
        self.layers.iter().rev().any(|layer| layer.bloom.check(&hash))
    }

    /// How many hashes were inserted (repetitions count).
    pub fn keys(&self) -> u64 {
        self.layers.iter().map(|layer| layer.keys).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.layers.is_empty()
    }

    pub fn memory_bytes(&self) -> usize {
        self.layers.iter().map(|layer| layer.bloom.as_slice().len()).sum()
    }

    /// Takes in everything that `other` contains. Used when a truncated freeze is undone. Layers that fit into one are merged,
    /// the others kept side by side (which costs probes, never an answer).
    pub fn union(&mut self, other: LayeredBloom) {
        for layer in other.layers {
            let fits = |mine: &&mut Layer| {
                mine.step == layer.step && mine.keys.saturating_add(layer.keys) <= capacity_of(layer.step)
            };
            if let Some(mine) = self.layers.iter_mut().find(fits) {
                mine.overlay(&layer);
            } else {
                self.layers.push(layer);
            }
        }
        // The newest layer, which takes the inserts, is the largest one.
        self.layers.sort_by_key(|layer| layer.step);
        while self.layers.len() > LAYERS_MAX {
            // There are more layers than steps: two neighbours are of the same one. The smallest lose least.
            let Some(at) = self.layers.windows(2).position(|pair| pair[0].step == pair[1].step) else {
                return;
            };
            let layer = self.layers.remove(at);
            self.layers[at].overlay(&layer);
        }
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(2 + self.memory_bytes() + self.layers.len() * 9);
        out.extend([VERSION, self.layers.len() as u8]);
        for layer in &self.layers {
            out.push(layer.step);
            out.extend_from_slice(&layer.keys.to_le_bytes());
            out.extend_from_slice(layer.bloom.as_slice());
        }
        out
    }

    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let bad = |what: &'static str| Error::corrupt(format!("Bloom filter: {what}"));
        let Some((&[version, count], mut rest)) = bytes.split_first_chunk() else {
            return Err(bad("too short"));
        };
        if version != VERSION {
            return Err(bad("unknown version"));
        }
        if usize::from(count) > LAYERS_MAX {
            return Err(bad("too many layers"));
        }
        let mut layers: Vec<Layer> = Vec::with_capacity(usize::from(count));
        for _ in 0..count {
            let (&[step], tail) = rest.split_first_chunk().ok_or_else(|| bad("truncated"))?;
            let (keys, tail) = tail.split_first_chunk().ok_or_else(|| bad("truncated"))?;
            let keys = u64::from_le_bytes(*keys);
            if step > STEP_MAX || layers.last().is_some_and(|before| before.step > step) {
                return Err(bad("bad step of a layer"));
            }
            if keys > LAYER_KEYS_MAX {
                return Err(bad("bad number of keys"));
            }
            let bytes = BITMAP_HEADER_BYTES + bitmap_bytes_of(step);
            let (bitmap, tail) = tail.split_at_checked(bytes).ok_or_else(|| bad("truncated layer"))?;
            let bloom = Bloom::from_slice(bitmap).map_err(|_| bad("bad layer"))?;
            // A foreign seed would make lookups wrong, a huge number of hash functions would make them endless.
            if bloom.seed() != SEED || bloom.number_of_hash_functions() != hash_functions() {
                return Err(bad("foreign parameters"));
            }
            layers.push(Layer { step, keys, bloom });
            rest = tail;
        }
        if !rest.is_empty() {
            return Err(bad("trailing bytes"));
        }
        Ok(Self { layers })
    }
}

/// As `bloomfilter` chooses them: bits per key * ln 2.
fn hash_functions() -> u32 {
    (BITS_PER_KEY as f64 * std::f64::consts::LN_2).round() as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hash(i: u64) -> u64 {
        crate::key::filter_hash(&i.to_le_bytes())
    }

    fn filter_of(keys: std::ops::Range<u64>) -> LayeredBloom {
        let mut filter = LayeredBloom::new();
        keys.for_each(|i| filter.insert(hash(i)));
        filter
    }

    #[test]
    fn false_positives_stay_below_two_percent_when_all_layers_are_full() {
        let full = (0..3).map(capacity_of).sum();
        let filter = filter_of(0..full);
        assert_eq!(filter.layers.iter().map(|l| l.step).collect::<Vec<_>>(), [0, 1, 2]);
        assert!(filter.layers.iter().all(Layer::is_full));
        let false_positives = (full..full + 100_000).filter(|i| filter.contains(hash(*i))).count();
        assert!(false_positives < 2_000, "{false_positives}");
    }

    #[test]
    fn a_small_table_costs_little() {
        assert_eq!(LayeredBloom::new().memory_bytes(), 0);
        assert_eq!(LayeredBloom::new().to_bytes(), [1, 0]);
        assert!(filter_of(0..FIRST_LAYER_KEYS).memory_bytes() < 3200);
    }

    #[test]
    fn the_bytes_are_pinned() {
        // Golden: leader and p-nodes of different builds must agree, bit for bit.
        let mut filter = LayeredBloom::new();
        for i in 0..3000u64 {
            filter.insert(i.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        }
        let bytes = filter.to_bytes();
        assert_eq!(bytes.len(), 2 + 2 * (1 + 8 + BITMAP_HEADER_BYTES) + 3072 + 24_576);
        assert_eq!(bytes[..11], [1, 2, 0, 0, 8, 0, 0, 0, 0, 0, 0], "two layers; step 0 with 2048 keys");
        let digest = xxhash_rust::xxh3::xxh3_64(&bytes);
        assert_eq!(digest, 0x6289_05f2_4174_3607, "{digest:#x}");
    }

    #[test]
    fn a_union_that_fits_takes_no_layer_more() {
        let mut filter = filter_of(0..1000);
        filter.union(filter_of(1000..2000));
        assert_eq!((filter.layers.len(), filter.keys()), (1, 2000));
        assert_eq!(filter.to_bytes(), filter_of(0..2000).to_bytes());
        filter.union(filter_of(2000..3000));
        assert_eq!(filter.layers.len(), 2);
        assert!((0..3000).all(|i| filter.contains(hash(i))));
    }

    #[test]
    fn many_unions_stay_bounded_and_small() {
        let mut filter = LayeredBloom::new();
        for n in 0..100 {
            filter.union(filter_of(n * 2000..(n + 1) * 2000));
            filter.insert(hash(n + 1_000_000));
        }
        assert!(filter.layers.len() <= LAYERS_MAX && filter.memory_bytes() < 500_000, "{filter:?}");
        assert!((0..200_000).chain(1_000_000..1_000_100).all(|i| filter.contains(hash(i))));
        assert_eq!(LayeredBloom::from_bytes(&filter.to_bytes()).unwrap().to_bytes(), filter.to_bytes());
    }

    #[test]
    fn foreign_parameters_are_refused() {
        let good = filter_of(0..10).to_bytes();
        LayeredBloom::from_bytes(&good).unwrap();
        let head = 2 + 1 + 8;
        for (at, what) in [
            (0, "version"),
            (1, "number of layers"),
            (2, "step"),
            (10, "keys"),
            (head, "version of the bitmap"),
            (head + 1, "its length"),
            (head + 9, "its hash functions"),
            (head + 12, "its hash functions"),
            (head + 13, "its seed"),
        ] {
            let mut bytes = good.clone();
            bytes[at] ^= 0x55;
            let error = LayeredBloom::from_bytes(&bytes).expect_err(what);
            assert_eq!(error.kind, crate::ErrorKind::Corrupt, "{what}");
        }
        assert!(LayeredBloom::from_bytes(&good[..good.len() - 1]).is_err());
        assert!(LayeredBloom::from_bytes(&[&good[..], &[0]].concat()).is_err());
    }

    proptest! {
        #[test]
        fn contains_all_that_was_inserted_also_after_a_round_trip(hashes in prop::collection::vec(any::<u64>(), 0..6000)) {
            let mut filter = LayeredBloom::new();
            hashes.iter().for_each(|h| filter.insert(*h));
            let copy = LayeredBloom::from_bytes(&filter.to_bytes()).unwrap();
            prop_assert_eq!(copy.to_bytes(), filter.to_bytes());
            prop_assert_eq!(copy.keys(), hashes.len() as u64);
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
            prop_assert_eq!(left.keys(), (a.len() + b.len()) as u64);
            for h in a.iter().chain(&b) {
                prop_assert!(left.contains(*h));
            }
        }

        #[test]
        fn no_bytes_make_it_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..200), at in 0..100usize, value: u8) {
            let _ = LayeredBloom::from_bytes(&bytes);
            if let Some(first) = bytes.first_mut() {
                *first = VERSION;
            }
            let _ = LayeredBloom::from_bytes(&bytes);
            let mut near = filter_of(0..5).to_bytes();
            near[at] = value;
            if let Ok(filter) = LayeredBloom::from_bytes(&near) {
                filter.contains(7);
                filter.keys();
            }
        }
    }
}
