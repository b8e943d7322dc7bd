//! Which partitions a range of keys can touch. Pure.

use sextant_common::ids::PartitionId;
use sextant_common::key::{SlotMap, routing_part};
use sextant_common::manifest::TableOptions;
use sextant_common::object::inner_key;

/// The longest prefix that every key of `[start, end)` certainly has. (`end` empty: no bound.)
pub(super) fn common_prefix<'k>(start: &'k [u8], end: &[u8]) -> &'k [u8] {
    if end.is_empty() {
        // Above a run of 0xff there are only keys that begin with it.
        let run = start.iter().take_while(|b| **b == 0xff).count();
        return &start[..run];
    }
    let mut len = start.iter().zip(end).take_while(|(a, b)| a == b).count();
    // "ab" up to "ac": every key begins with "ab". After that, a 0xff of the start cannot be passed either.
    if end.len() == len + 1 && start.get(len).is_some_and(|b| *b < 0xff && b + 1 == end[len]) {
        len += 1;
        len += start[len..].iter().take_while(|b| **b == 0xff).count();
    }
    &start[..len]
}

/// The one partition of all keys of `[start, end)`, if the range pins it: by the table's prefix or by a `{hash tag}`.
pub(crate) fn pinned_partition(
    start: &[u8],
    end: &[u8],
    options: &TableOptions,
    slots: &SlotMap,
) -> Option<PartitionId> {
    let prefix = common_prefix(start, end);
    let decides = match options.partition_prefix as usize {
        n if n == TableOptions::BY_INNER_KEY as usize => inner_key(prefix).is_some(),
        // Without a whole tag the routing part is the prefix itself: then the rest of the key decides too.
        0 => routing_part(prefix, options).len() < prefix.len(),
        n => prefix.len() >= n,
    };
    decides.then(|| slots.partition_of(prefix, options))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use sextant_common::key::prefix_end;

    use super::*;

    fn options(partition_prefix: u32) -> TableOptions {
        TableOptions { partition_prefix, ..TableOptions::default() }
    }

    #[test]
    fn a_prefix_scan_stays_in_one_partition() {
        let slots = SlotMap::even(8);
        let pinned = |start: &[u8], end: &[u8], n| pinned_partition(start, end, &options(n), &slots);
        assert_eq!(pinned(b"abc", &prefix_end(b"abc"), 3), Some(slots.partition_of(b"abcd", &options(3))));
        assert_eq!(pinned(b"abcx", b"abcz", 3), Some(slots.partition_of(b"abcd", &options(3))));
        assert_eq!(pinned(b"ab", &prefix_end(b"ab"), 3), None);
        assert_eq!(
            pinned(b"{user}", &prefix_end(b"{user}"), 0),
            Some(slots.partition_of(b"{user}7", &options(0)))
        );
        assert_eq!(pinned(b"{use", &prefix_end(b"{use"), 0), None);
        assert_eq!(pinned(b"{}x", &prefix_end(b"{}x"), 0), None, "an empty tag is no tag");
        assert_eq!(pinned(b"", b"", 0), None);
        assert_eq!(
            pinned(b"a\xff\xff", &prefix_end(b"a\xff\xff"), 3),
            Some(slots.partition_of(b"a\xff\xff", &options(3)))
        );
    }

    proptest! {
        #[test]
        fn every_key_of_the_range_has_the_common_prefix(
            start in prop::collection::vec(prop_oneof![Just(0u8), Just(1), Just(0xfe), Just(0xff)], 0..4),
            end in prop::collection::vec(prop_oneof![Just(0u8), Just(1), Just(0xfe), Just(0xff)], 0..4),
            key in prop::collection::vec(prop_oneof![Just(0u8), Just(1), Just(0xfe), Just(0xff)], 0..6),
        ) {
            let in_range = start <= key && (end.is_empty() || key < end);
            if in_range {
                prop_assert!(key.starts_with(common_prefix(&start, &end)), "{:?}", common_prefix(&start, &end));
            }
        }

        #[test]
        fn a_pinned_range_has_no_key_of_another_partition(
            start in "[{}ab]{0,4}", end in "[{}ab]{0,4}", key in "[{}ab]{0,6}", n in 0u32..3,
        ) {
            let slots = SlotMap::even(64);
            let (start, end, key) = (start.as_bytes(), end.as_bytes(), key.as_bytes());
            if start <= key && (end.is_empty() || key < end)
                && let Some(partition) = pinned_partition(start, end, &options(n), &slots) {
                prop_assert_eq!(slots.partition_of(key, &options(n)), partition);
            }
        }
    }
}
