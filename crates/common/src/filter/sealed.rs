//! The filter of a sealed SSTable.
//!
//! Bytes: kind u8, version u8 = 1, then
//! * kind 0: nothing; an empty table, matches nothing.
//! * kind 1: a [`super::LayeredBloom`], for tables whose hashes could not be made into kind 2.
//! * kind 2 (binary fuse, 8-bit fingerprints, `xorf`), little-endian: seed u64, segment length u32, segment length mask u32,
//!   segment count length u32, fingerprints. The segment length L is a power of two, the mask L - 1, the segment count length
//!   C a multiple of L, and there are C + 2 L fingerprints.
//! * kind 3: the table's option `filter_prefix` (u32, not 0), then a filter of kind 1 or 2 that holds the keys' hashes and those
//!   of their prefixes ([`crate::key::prefix_hash`]).
//!
//! Invariant: a filter that was read from bytes, whatever they were, can be asked for any hash without leaving its bounds.

use xorf::{BinaryFuse8, Descriptor, DmaSerializable, Filter};

use super::LayeredBloom;
use crate::error::{Error, Result};
use crate::key::{filter_prefix, prefix_hash};

const VERSION: u8 = 1;
const KIND_EMPTY: u8 = 0;
const KIND_BLOOM: u8 = 1;
const KIND_FUSE8: u8 = 2;
const KIND_PREFIXED: u8 = 3;

/// `xorf` counts in 32 bits; no table has so many records.
const FUSE_KEYS_MAX: usize = 1 << 31;
/// The longest segment that `xorf` makes.
const SEGMENT_LENGTH_MAX: u32 = 1 << 18;

/// Answers "may the table contain a key with this hash?"; immutable. Costs a few nanoseconds and 9 bits a key; 0.4 % false
/// positives.
#[derive(Clone, Debug)]
pub enum SealedFilter {
    Empty,
    Bloom(LayeredBloom),
    Fuse(BinaryFuse8),
    /// One of the others, that holds prefixes too.
    Prefixed(u32, Box<SealedFilter>),
}

impl SealedFilter {
    /// Builds the filter of a set of hashes; sorts and deduplicates them in place. The same set gives the same bytes.
    pub fn build(hashes: &mut Vec<u64>) -> Self {
        hashes.sort_unstable();
        hashes.dedup();
        if hashes.is_empty() {
            return SealedFilter::Empty;
        }
        if hashes.len() <= FUSE_KEYS_MAX
            && let Ok(fuse) = BinaryFuse8::try_from(hashes.as_slice())
            // A filter that misses a key makes reads wrong for as long as the table lives: look before it is sealed.
            && hashes.iter().all(|hash| fuse.contains(hash))
        {
            return SealedFilter::Fuse(fuse);
        }
        // The construction tries some seeds and may give up; a Bloom filter never does.
        SealedFilter::Bloom(bloom_of(hashes))
    }

    /// The same of a table with this option `filter_prefix`; `hashes`: of keys and of prefixes.
    pub fn build_prefixed(hashes: &mut Vec<u64>, option: u32) -> Self {
        match Self::build(hashes) {
            filter @ (SealedFilter::Bloom(_) | SealedFilter::Fuse(_)) if option > 0 => {
                SealedFilter::Prefixed(option, Box::new(filter))
            }
            filter => filter,
        }
    }

    pub fn contains(&self, hash: u64) -> bool {
        match self {
            SealedFilter::Empty => false,
            SealedFilter::Bloom(bloom) => bloom.contains(hash),
            SealedFilter::Fuse(fuse) => fuse.contains(&hash),
            SealedFilter::Prefixed(_, filter) => filter.contains(hash),
        }
    }

    /// Whether the table may have a key that begins with `start`. (A filter that knows prefixes of another length may have any.)
    pub fn may_contain_prefix(&self, start: &[u8]) -> bool {
        match self {
            SealedFilter::Empty => false,
            SealedFilter::Bloom(_) | SealedFilter::Fuse(_) => true,
            SealedFilter::Prefixed(option, filter) => {
                filter_prefix(start, *option).is_none_or(|prefix| filter.contains(prefix_hash(prefix)))
            }
        }
    }

    pub fn memory_bytes(&self) -> usize {
        match self {
            SealedFilter::Empty => 0,
            SealedFilter::Bloom(bloom) => bloom.memory_bytes(),
            SealedFilter::Fuse(fuse) => fuse.fingerprints.len(),
            SealedFilter::Prefixed(_, filter) => size_of::<SealedFilter>() + filter.memory_bytes(),
        }
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        match self {
            SealedFilter::Empty => vec![KIND_EMPTY, VERSION],
            SealedFilter::Bloom(bloom) => [&[KIND_BLOOM, VERSION][..], &bloom.to_bytes()].concat(),
            SealedFilter::Fuse(fuse) => {
                let mut descriptor = [0; BinaryFuse8::DESCRIPTOR_LEN];
                fuse.dma_copy_descriptor_to(&mut descriptor);
                [&[KIND_FUSE8, VERSION][..], &descriptor, fuse.dma_fingerprints()].concat()
            }
            SealedFilter::Prefixed(option, filter) => {
                [&[KIND_PREFIXED, VERSION][..], &option.to_le_bytes(), &filter.to_bytes()].concat()
            }
        }
    }

    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let Some((&[kind, version], rest)) = bytes.split_first_chunk() else { return Err(bad("too short")) };
        if version != VERSION {
            return Err(bad("unknown version"));
        }
        match kind {
            KIND_EMPTY if rest.is_empty() => Ok(SealedFilter::Empty),
            KIND_EMPTY => Err(bad("trailing bytes")),
            KIND_BLOOM => Ok(SealedFilter::Bloom(LayeredBloom::from_bytes(rest)?)),
            KIND_FUSE8 => fuse_from_bytes(rest).map(SealedFilter::Fuse),
            KIND_PREFIXED => prefixed_from_bytes(rest),
            _ => Err(bad("unknown kind")),
        }
    }
}

fn bad(what: &'static str) -> Error {
    Error::corrupt(format!("SSTable filter: {what}"))
}

fn bloom_of(hashes: &[u64]) -> LayeredBloom {
    let mut bloom = LayeredBloom::new();
    hashes.iter().for_each(|hash| bloom.insert(*hash));
    bloom
}

fn prefixed_from_bytes(bytes: &[u8]) -> Result<SealedFilter> {
    match bytes.split_first_chunk() {
        Some((option, [KIND_BLOOM | KIND_FUSE8, ..])) if *option != [0; 4] => {
            let filter = SealedFilter::from_bytes(&bytes[option.len()..])?;
            Ok(SealedFilter::Prefixed(u32::from_le_bytes(*option), Box::new(filter)))
        }
        _ => Err(bad("bad prefix option, or nothing that goes with it")),
    }
}

fn fuse_from_bytes(bytes: &[u8]) -> Result<BinaryFuse8> {
    let truncated = || bad("truncated header");
    let (seed, rest) = bytes.split_first_chunk().ok_or_else(truncated)?;
    let (segment_length, rest) = rest.split_first_chunk().ok_or_else(truncated)?;
    let (segment_length_mask, rest) = rest.split_first_chunk().ok_or_else(truncated)?;
    let (segment_count_length, fingerprints) = rest.split_first_chunk().ok_or_else(truncated)?;
    let descriptor = Descriptor {
        seed: u64::from_le_bytes(*seed),
        segment_length: u32::from_le_bytes(*segment_length),
        segment_length_mask: u32::from_le_bytes(*segment_length_mask),
        segment_count_length: u32::from_le_bytes(*segment_count_length),
    };
    // A lookup takes a position h < C, and one each in the two segments after it: (h + L) and (h + 2 L) with the bits below L
    // exchanged. All three are below C + 2 L, because C is a multiple of L and L a power of two.
    let (length, count_length) = (descriptor.segment_length, descriptor.segment_count_length);
    if !length.is_power_of_two()
        || length > SEGMENT_LENGTH_MAX
        || descriptor.segment_length_mask != length - 1
    {
        return Err(bad("bad segment length"));
    }
    if count_length == 0 || !count_length.is_multiple_of(length) {
        return Err(bad("bad number of segments"));
    }
    let expected = count_length.checked_add(2 * length).ok_or_else(|| bad("too many segments"))?;
    if fingerprints.len() != expected as usize {
        return Err(bad("wrong number of fingerprints"));
    }
    Ok(BinaryFuse8 { descriptor, fingerprints: fingerprints.into() })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn hashes(n: u64) -> Vec<u64> {
        (0..n).map(|i| crate::key::filter_hash(&i.to_le_bytes())).collect()
    }

    #[test]
    fn the_bytes_are_pinned() {
        // Golden: tables are kept for years, and replicas must agree on their checksums.
        for (n, len, golden) in [
            (1, 34, 0xad8e_9299_613c_d401),
            (5, 46, 0x16be_4f11_a82c_af50),
            (1_000, 1430, 0x8ec1_ce8d_9809_83fe),
            (50_000, 61462, 0xdab9_110e_1627_7965),
        ] {
            let bytes = SealedFilter::build(&mut hashes(n)).to_bytes();
            let digest = xxhash_rust::xxh3::xxh3_64(&bytes);
            assert_eq!((bytes.len(), digest), (len, golden), "{n}: {}, {digest:#x}", bytes.len());
        }
        assert_eq!(SealedFilter::build(&mut vec![]).to_bytes(), [KIND_EMPTY, VERSION]);
    }

    #[test]
    fn a_filter_with_prefixes_knows_how_keys_begin() {
        let keys: Vec<String> = (0..2000).map(|n| format!("user{:03}:{n:04}", n / 10)).collect();
        let hash = |key: &String| crate::key::filter_hash(key.as_bytes());
        let mut hashes: Vec<u64> = keys.iter().map(hash).collect();
        hashes.extend(keys.iter().filter_map(|key| Some(prefix_hash(filter_prefix(key.as_bytes(), 7)?))));
        let filter = SealedFilter::build_prefixed(&mut hashes.clone(), 7);
        let bytes = filter.to_bytes();
        assert_eq!(bytes[..8], [KIND_PREFIXED, VERSION, 7, 0, 0, 0, KIND_FUSE8, VERSION]);
        assert_eq!(bytes[6..], SealedFilter::build(&mut hashes.clone()).to_bytes());
        let copy = SealedFilter::from_bytes(&bytes).unwrap();
        assert_eq!(copy.to_bytes(), bytes);
        assert!(keys.iter().all(|key| copy.contains(hash(key)) && copy.may_contain_prefix(key.as_bytes())));
        assert!(copy.may_contain_prefix(b"user10") && copy.may_contain_prefix(b""), "too short to say");
        let others =
            (0..800).filter(|n| copy.may_contain_prefix(format!("user{}", n + 200).as_bytes())).count();
        assert!(others < 20, "{others} of 800");
        assert!(SealedFilter::build(&mut hashes).may_contain_prefix(b"user999"), "it knows no prefixes");
        assert!(!SealedFilter::build_prefixed(&mut vec![], 7).may_contain_prefix(b"user100"));
    }

    #[test]
    fn few_false_positives_and_nine_bits_a_key() {
        let all = hashes(300_000);
        let filter = SealedFilter::build(&mut all[..100_000].to_vec());
        let false_positives = all[100_000..].iter().filter(|hash| filter.contains(**hash)).count();
        assert!(false_positives < 1_000, "{false_positives} of 200000");
        assert!(filter.memory_bytes() * 8 < 1_000_000, "{}", filter.memory_bytes());
    }

    #[test]
    fn a_bloom_filter_takes_the_place_of_one_that_could_not_be_built() {
        let filter = SealedFilter::Bloom(bloom_of(&hashes(3_000)));
        let copy = SealedFilter::from_bytes(&filter.to_bytes()).unwrap();
        assert!(hashes(3_000).iter().all(|hash| copy.contains(*hash)));
        assert_eq!(copy.to_bytes(), filter.to_bytes());
    }

    #[test]
    fn a_wrong_descriptor_is_refused() {
        let good = SealedFilter::build(&mut hashes(1_000)).to_bytes();
        SealedFilter::from_bytes(&good).unwrap();
        let with = |at: usize, value: u32| {
            let mut bytes = good.clone();
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
            bytes
        };
        let u32_at = |at: usize| u32::from_le_bytes(good[at..at + 4].try_into().unwrap());
        let (length, count_length) = (u32_at(10), u32_at(18));
        for (bytes, what) in [
            (with(10, 0), "segment length"),
            (with(10, length + 1), "segment length"),
            (with(10, length * 2), "segment length"),
            (with(10, SEGMENT_LENGTH_MAX * 2), "segment length"),
            (with(14, length), "segment length"),
            (with(18, 0), "number of segments"),
            (with(18, count_length + 1), "number of segments"),
            (with(18, count_length + length), "number of fingerprints"),
            (with(18, u32::MAX - length + 1), "too many segments"),
            (good[..good.len() - 1].to_vec(), "number of fingerprints"),
            (good[..21].to_vec(), "truncated"),
            (vec![KIND_EMPTY, VERSION, 0], "trailing"),
            (vec![9, VERSION], "unknown kind"),
            (vec![KIND_FUSE8, 2], "unknown version"),
            (vec![KIND_FUSE8], "too short"),
            (vec![KIND_PREFIXED, VERSION], "prefix option"),
            ([&[KIND_PREFIXED, VERSION, 0, 0, 0, 0][..], &good].concat(), "prefix option"),
            ([&[KIND_PREFIXED, VERSION, 7, 0, 0, 0][..], &[KIND_EMPTY, VERSION]].concat(), "prefix option"),
            (
                [&[KIND_PREFIXED, VERSION, 7, 0, 0, 0, KIND_PREFIXED, VERSION, 7, 0, 0, 0][..], &good]
                    .concat(),
                "prefix option",
            ),
            (
                [&[KIND_PREFIXED, VERSION, 7, 0, 0, 0][..], &good[..good.len() - 1]].concat(),
                "number of fingerprints",
            ),
        ] {
            let error = SealedFilter::from_bytes(&bytes).expect_err(what);
            assert!(error.message.contains(what), "{error} is not about {what}");
        }
    }

    proptest! {
        #[test]
        fn contains_all_of_its_set_also_after_a_round_trip(set in prop::collection::vec(any::<u64>(), 0..5000)) {
            let filter = SealedFilter::build(&mut set.clone());
            let mut reversed: Vec<u64> = set.iter().rev().chain(&set).copied().collect();
            prop_assert_eq!(filter.to_bytes(), SealedFilter::build(&mut reversed).to_bytes(), "only the set counts");
            let copy = SealedFilter::from_bytes(&filter.to_bytes()).unwrap();
            prop_assert_eq!(copy.to_bytes(), filter.to_bytes());
            for hash in &set {
                prop_assert!(filter.contains(*hash) && copy.contains(*hash));
            }
        }

        /// Sets that a hash would not give: neighbours, multiples, few bits.
        #[test]
        fn contains_all_of_a_regular_set(start: u64, step: u64, n in 1..3000u64) {
            let mut set: Vec<u64> = (0..n).map(|i| start.wrapping_add(i.wrapping_mul(step))).collect();
            let filter = SealedFilter::build(&mut set);
            prop_assert!(set.iter().all(|hash| filter.contains(*hash)));
        }

        #[test]
        fn no_bytes_make_a_lookup_leave_its_bounds(
            kind in 0..4u8,
            rest in prop::collection::vec(any::<u8>(), 0..200),
            (log_length, segments) in (0..6u32, 0..8u32),
            (noise, at) in (any::<u32>(), 0..4usize),
            hashes in prop::collection::vec(any::<u64>(), 50),
        ) {
            let mut descriptor = [7, 1 << log_length, (1 << log_length) - 1, segments << log_length];
            let fingerprints = (segments as usize + 2) << log_length;
            for noisy in [false, true] {
                if noisy {
                    descriptor[at] = noise;
                }
                let mut bytes = vec![KIND_FUSE8, VERSION];
                bytes.extend(u64::from(descriptor[0]).to_le_bytes());
                descriptor[1..].iter().for_each(|field| bytes.extend(field.to_le_bytes()));
                bytes.resize(bytes.len() + fingerprints, 0x5a);
                let random = [&[kind, VERSION][..], &rest].concat();
                for bytes in [bytes, random] {
                    if let Ok(filter) = SealedFilter::from_bytes(&bytes) {
                        for hash in hashes.iter().chain(&[0, u64::MAX]) {
                            filter.contains(*hash);
                        }
                    }
                }
            }
        }
    }
}
