//! Keys: the one hash that filters use, the way from a key to its partition, ranges.

use bytes::Bytes;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::ids::{PartitionId, TableId};
use crate::manifest::TableOptions;
use crate::object;

/// The 64-bit hash of a key for every filter (xxh3_64, seed 0). Computed once a request; part of the table format and
/// of the bf-log: it must never change.
pub fn filter_hash(key: &[u8]) -> u64 {
    xxh3_64(key)
}

/// What keeps prefixes apart from keys that are the same bytes: part of the table format.
const PREFIX_SEED: u64 = u64::from_be_bytes(*b"prefixes");

/// The hash by which the filter of an SSTable knows a prefix of keys.
pub fn prefix_hash(prefix: &[u8]) -> u64 {
    xxh3_64_with_seed(prefix, PREFIX_SEED)
}

/// What the option [`TableOptions::filter_prefix`] of this value takes of a key. None: the key is too short to have it. Of the common
/// beginning of several keys it is what it takes of each of them.
pub fn filter_prefix(key: &[u8], option: u32) -> Option<&[u8]> {
    match option {
        0 => None,
        TableOptions::BY_INNER_KEY => object::version_part(key),
        length => key.get(..length as usize),
    }
}

/// The registration slot of a key, of `slots` (a power of two). Leaders and holders must agree on it. `hash`: [`filter_hash`] of the
/// key. (Its middle bits: the index of a memtable goes by the upper ones, filters by the others.)
#[inline]
pub fn registration_slot(table: TableId, hash: u64, slots: usize) -> usize {
    let mixed = hash ^ u64::from(table.0).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 20) as usize & (slots - 1)
}

/// Number of hash slots. Slot -> partition is a versioned map, so that partitions can move and split later.
pub const SLOTS: u16 = 16_384;

/// The part of the key that decides its partition: that of the key inside if the table's keys have one, the table's prefix if it has one, else what stands in the first
/// `{braces}` if that is not empty (as in Redis Cluster), else the whole key.
pub fn routing_part<'k>(key: &'k [u8], options: &TableOptions) -> &'k [u8] {
    if options.partition_prefix == TableOptions::BY_INNER_KEY {
        return object::inner_key(key).map_or(key, |inner| routing_part(inner, &TableOptions::default()));
    }
    if options.partition_prefix > 0 {
        return &key[..key.len().min(options.partition_prefix as usize)];
    }
    if let Some(open) = key.iter().position(|b| *b == b'{') {
        let tail = &key[open + 1..];
        if let Some(len) = tail.iter().position(|b| *b == b'}')
            && len > 0
        {
            return &tail[..len];
        }
    }
    key
}

/// The slot of a key: CRC-16/XMODEM of the routing part modulo [`SLOTS`], as in Redis Cluster, so that its tools agree.
pub fn slot(key: &[u8], options: &TableOptions) -> u16 {
    crc16(routing_part(key, options)) % SLOTS
}

/// Which partition owns which slot. Fixed when the cluster is created: partition i of n owns the i-th of n equal
/// ranges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotMap {
    /// Rises with each change.
    pub version: u64,
    partitions: u32,
}

impl SlotMap {
    pub fn even(partitions: u32) -> Self {
        assert!(partitions > 0 && partitions <= u32::from(SLOTS), "1 to 16384 partitions");
        Self { version: 1, partitions }
    }

    pub fn partitions(&self) -> u32 {
        self.partitions
    }

    pub fn partition_of_slot(&self, slot: u16) -> PartitionId {
        PartitionId(u32::from(slot) * self.partitions / u32::from(SLOTS))
    }

    pub fn partition_of(&self, key: &[u8], options: &TableOptions) -> PartitionId {
        self.partition_of_slot(slot(key, options))
    }
}

/// The smallest key above all keys that begin with `prefix`; empty: there is none.
pub fn prefix_end(prefix: &[u8]) -> Bytes {
    let kept = prefix.iter().rposition(|b| *b != 0xff).map_or(0, |at| at + 1);
    let mut end = prefix[..kept].to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    end.into()
}

/// CRC-16/XMODEM (polynomial 0x1021, initial value 0): the hash of Redis Cluster.
fn crc16(bytes: &[u8]) -> u16 {
    const TABLE: [u16; 256] = {
        let mut table = [0u16; 256];
        let mut i = 0;
        while i < 256 {
            let mut crc = (i as u16) << 8;
            let mut bit = 0;
            while bit < 8 {
                crc = if crc & 0x8000 != 0 { (crc << 1) ^ 0x1021 } else { crc << 1 };
                bit += 1;
            }
            table[i] = crc;
            i += 1;
        }
        table
    };
    bytes.iter().fold(0, |crc, b| (crc << 8) ^ TABLE[usize::from((crc >> 8) as u8 ^ b)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_agree_with_redis_cluster() {
        let options = TableOptions::default();
        // From the Redis Cluster specification and `redis-cli cluster keyslot`.
        assert_eq!(crc16(b"123456789"), 0x31c3);
        assert_eq!(slot(b"foo", &options), 12182);
        assert_eq!(slot(b"{user1000}.following", &options), slot(b"{user1000}.followers", &options));
        assert_eq!(slot(b"foo{}{bar}", &options), crc16(b"foo{}{bar}") % SLOTS);
        assert_eq!(slot(b"foo{{bar}}zap", &options), crc16(b"{bar") % SLOTS);
    }

    #[test]
    fn every_slot_has_a_partition_and_every_partition_has_slots() {
        for partitions in [1, 2, 3, 5, 16_384] {
            let map = SlotMap::even(partitions);
            let mut seen = vec![0u32; partitions as usize];
            for slot in 0..SLOTS {
                seen[map.partition_of_slot(slot).0 as usize] += 1;
            }
            assert!(seen.iter().all(|n| *n > 0), "{partitions}");
        }
    }

    #[test]
    fn the_filter_hash_is_pinned() {
        // Golden values: a change makes every stored filter and every bf-log unreadable.
        assert_eq!(filter_hash(b""), 0x2d06_8005_38d3_94c2);
        assert_eq!(filter_hash(b"sextant"), 0xf489_12a2_99b1_5a37);
        assert_eq!(filter_hash(&[b'k'; 300]), 0x3e90_1c94_ff54_faa0);
        assert_eq!(prefix_hash(b"sextant"), 0x1f4f_5bee_2be5_8469);
    }

    #[test]
    fn the_end_of_a_prefix_is_above_all_its_keys() {
        assert_eq!(prefix_end(b"ab"), Bytes::from_static(b"ac"));
        assert_eq!(prefix_end(b"a\xff\xff"), Bytes::from_static(b"b"));
        assert_eq!(prefix_end(b"\xff"), Bytes::new());
        assert_eq!(prefix_end(b""), Bytes::new());
    }

    #[test]
    fn a_prefix_decides_alone() {
        let options = TableOptions { partition_prefix: 3, ..TableOptions::default() };
        assert_eq!(slot(b"abc1", &options), slot(b"abc2{x}", &options));
        assert_eq!(routing_part(b"ab", &options), b"ab");
    }

    #[test]
    fn what_filters_take_of_a_key() {
        assert_eq!(filter_prefix(b"abcd", 3), Some(&b"abc"[..]));
        assert_eq!(filter_prefix(b"abc", 3), Some(&b"abc"[..]));
        assert_eq!((filter_prefix(b"ab", 3), filter_prefix(b"ab", 0)), (None, None));
        let element = object::element_key(b"key", 7, object::Tag::Field, b"field");
        let version = object::version_prefix(b"key", 7);
        assert_eq!(filter_prefix(&element, TableOptions::BY_INNER_KEY), Some(&version[..]));
        assert_eq!(filter_prefix(&element[..version.len()], TableOptions::BY_INNER_KEY), Some(&version[..]));
        for cut in 0..version.len() {
            assert_eq!(filter_prefix(&element[..cut], TableOptions::BY_INNER_KEY), None);
        }
    }

    proptest::proptest! {
        #[test]
        fn every_key_has_a_partition_and_braces_keep_keys_together(
            key in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..40),
            tag in "[a-z]{1,8}",
            partitions in 1..=16_384u32,
            partition_prefix in 0..5u32,
        ) {
            let map = SlotMap::even(partitions);
            let options = TableOptions { partition_prefix, ..TableOptions::default() };
            proptest::prop_assert!(map.partition_of(&key, &options).0 < partitions);
            let tagged = [b"{", tag.as_bytes(), b"}", &key[..]].concat();
            let plain = TableOptions::default();
            proptest::prop_assert_eq!(slot(&tagged, &plain), slot(tag.as_bytes(), &plain));
        }
    }
}
