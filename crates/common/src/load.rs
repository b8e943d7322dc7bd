//! The numbers of a bulk load. Its tables are written before anybody knows what else will have been written when they are adopted, so
//! their generations and their seq lie ahead of all that may come until then, and the partition's numbers jump there when it adopts them.
//!
//! Invariants: no two loads of a table have a generation in common, whether they are adopted or not; numbers that were jumped over are
//! no version's and no memtable's.

use crate::ids::Generation;

/// A generation has so many low bits that count on from the load before.
const ORDINAL_BITS: u32 = 24;
/// Loads that one leader may begin.
const COUNT_BITS: u32 = 16;
/// So generations stay below half of what their type holds (`NUMBER_MAX` of a snapshot).
const TERM_BITS: u32 = 22;
/// Writes for which there is room between the beginning of a load and its end, and at most twice as many.
const SEQS_AHEAD_BITS: u32 = 36;
const SEQ_MAX: u64 = u64::MAX / 4;

/// SSTables that a load may be made of, in a partition: their generations follow each other.
pub const LOADED_SSTS_MAX: usize = 1024;

/// The generation of the first SSTable of a leader's load number `count`, from 1 on. None: there are no more.
pub fn first_generation(term: u64, count: u64, current: Generation) -> Option<Generation> {
    if term >= 1 << TERM_BITS || count == 0 || count >= 1 << COUNT_BITS {
        return None;
    }
    let first = (term << COUNT_BITS | count) << ORDINAL_BITS;
    (first > current.0).then_some(Generation(first))
}

/// Whether no memtable came just before this generation: numbers were jumped over.
pub fn begins_a_load(generation: Generation) -> bool {
    generation.0 > 0 && generation.0.trailing_zeros() >= ORDINAL_BITS
}

/// The seq of what is loaded, ahead of everything that is written meanwhile. None: there are no more.
pub fn seq_ahead(next_seq: u64) -> Option<u64> {
    (next_seq <= SEQ_MAX).then(|| ((next_seq >> SEQS_AHEAD_BITS) + 2) << SEQS_AHEAD_BITS)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_load_begins_where_no_memtable_was_and_only_the_first_of_its_tables_does() {
        let first = first_generation(3, 1, Generation(17)).unwrap();
        assert!(begins_a_load(first) && first > Generation(17));
        assert!(!begins_a_load(Generation(first.0 + 1)) && !begins_a_load(Generation(1)));
        assert!(!begins_a_load(Generation(0)));
        let later = first_generation(3, 2, Generation(first.0 + LOADED_SSTS_MAX as u64)).unwrap();
        assert!(later > Generation(first.0 + LOADED_SSTS_MAX as u64));
    }

    #[test]
    fn numbers_end_before_their_types_do() {
        let last = first_generation((1 << TERM_BITS) - 1, (1 << COUNT_BITS) - 1, Generation(1)).unwrap();
        assert!(last.0 < u64::MAX / 2);
        for (term, count) in [(1 << TERM_BITS, 1), (1, 1 << COUNT_BITS), (1, 0)] {
            assert_eq!(first_generation(term, count, Generation(1)), None);
        }
        assert_eq!(first_generation(1, 1, last), None, "a memtable is ahead of it");
        assert_eq!(seq_ahead(u64::MAX), None);
    }

    proptest! {
        #[test]
        fn no_two_loads_share_a_generation(a in (0u64..1 << 22, 1u64..1 << 16), b in (0u64..1 << 22, 1u64..1 << 16)) {
            let of = |(term, count)| first_generation(term, count, Generation(0)).unwrap().0;
            prop_assert_eq!(of(a) == of(b), a == b);
            prop_assert!(a == b || of(a).abs_diff(of(b)) > LOADED_SSTS_MAX as u64);
            prop_assert_eq!(of(a) < of(b), a < b);
        }

        #[test]
        fn there_is_room_for_what_is_written_meanwhile(next in 0u64..1 << 61) {
            let seq = seq_ahead(next).unwrap();
            prop_assert!(seq - next > 1 << SEQS_AHEAD_BITS && seq - next <= 2 << SEQS_AHEAD_BITS);
        }
    }
}
