//! The numbers of a bulk load. Its tables are written before anybody knows what else will have been written when they are adopted, so
//! their generations and their seq lie ahead of all that may come until then, and the partition's numbers jump there when it adopts them.
//!
//! A generation is made of a term, a count and an ordinal, so it tells which load it is of, or came after ([`LoadNumber`]). Terms that
//! elections alone have made have 22 bits; those of a rebuilt partition begin at the seconds of a clock, and are laid out another way,
//! above all of the first kind:
//!
//! ```text
//! bit 62: 0   term 22   count 16   ordinal 24
//! bit 62: 1   term 34   count 10   ordinal 18
//! ```
//!
//! Invariants: no two loads of a table have a generation in common, whether they are adopted or not; numbers that were jumped over are
//! no version's and no memtable's. (An ordinal would have to run over: 200,000 flushes without a load between, at least.)

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};
use crate::ids::{Generation, PartitionId};
use crate::manifest::SstMeta;

#[derive(Clone, Copy)]
struct Layout {
    base: u64,
    term_bits: u32,
    /// Loads that one leader may begin.
    count_bits: u32,
    /// Low bits that count on from the load before.
    ordinal_bits: u32,
}

const OF_ELECTIONS: Layout = Layout { base: 0, term_bits: 22, count_bits: 16, ordinal_bits: 24 };
const OF_CLOCKS: Layout = Layout { base: 1 << 62, term_bits: 34, count_bits: 10, ordinal_bits: 18 };

/// Writes for which there is room between the beginning of a load and its end, and at most twice as many.
const SEQS_AHEAD_BITS: u32 = 36;
const SEQ_MAX: u64 = u64::MAX / 4;

/// SSTables that a load may be made of, in a partition: their generations follow each other.
pub const LOADED_SSTS_MAX: usize = 1024;

impl Layout {
    fn of_term(term: u64) -> Self {
        if term < 1 << OF_ELECTIONS.term_bits { OF_ELECTIONS } else { OF_CLOCKS }
    }

    fn of(generation: Generation) -> Self {
        if generation.0 < OF_CLOCKS.base { OF_ELECTIONS } else { OF_CLOCKS }
    }

    fn first(self, term: u64, count: u64) -> Option<u64> {
        let fits = term < 1 << self.term_bits && count < 1 << self.count_bits;
        fits.then(|| self.base + ((term << self.count_bits | count) << self.ordinal_bits))
    }
}

/// Which of a partition's loads: the term of the leader that began it, and how many that one had begun, this one included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LoadNumber {
    pub term: u64,
    pub count: u64,
}

impl LoadNumber {
    /// The load that has this generation, or after which it came. None: no load came before it, nor since the partition was rebuilt.
    pub fn of(generation: Generation) -> Option<Self> {
        let layout = Layout::of(generation);
        let number = (generation.0 - layout.base) >> layout.ordinal_bits;
        let count = number & ((1 << layout.count_bits) - 1);
        (count > 0).then_some(Self { term: number >> layout.count_bits, count })
    }

    /// The generation of its first SSTable.
    pub fn first(self) -> Option<Generation> {
        Layout::of_term(self.term).first(self.term, self.count).map(Generation)
    }

    /// The load that an SSTable, as its file says it, was written for. (All of a load has one seq, which no memtable of one write has,
    /// as long as a partition has not seen 2^36 of them without a load. A compaction of one SSTable of it, of all keys, looks the same.)
    pub fn written_for(sst: &SstMeta) -> Option<Self> {
        let generation = sst.generations.first;
        let has_one = sst.generations.last == generation
            && sst.min_seq == sst.max_seq
            && sst.max_seq > 0
            && sst.max_seq.trailing_zeros() >= SEQS_AHEAD_BITS
            && sst.range.is_all();
        let number = Self::of(generation).filter(|_| has_one)?;
        let ordinal = generation.0 - number.first()?.0;
        (ordinal < LOADED_SSTS_MAX as u64).then_some(number)
    }
}

/// A load of a partition, as operators name it: `PARTITION-TERM-COUNT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LoadName {
    pub partition: PartitionId,
    pub number: LoadNumber,
}

impl fmt::Display for LoadName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-{}", self.partition.0, self.number.term, self.number.count)
    }
}

impl FromStr for LoadName {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let parts: Vec<&str> = text.split('-').collect();
        let parsed = match parts[..] {
            [partition, term, count] => {
                (partition.parse().ok()).zip(term.parse().ok()).zip(count.parse().ok())
            }
            _ => None,
        };
        let ((partition, term), count) = parsed
            .ok_or_else(|| Error::invalid(format!("a load is named PARTITION-TERM-COUNT, not {text:?}")))?;
        Ok(Self { partition: PartitionId(partition), number: LoadNumber { term, count } })
    }
}

/// The generation of the first SSTable of a leader's load number `count`, from 1 on. None: there are no more.
pub fn first_generation(term: u64, count: u64, current: Generation) -> Option<Generation> {
    let first = LoadNumber { term, count }.first()?;
    (count > 0 && first > current).then_some(first)
}

/// Whether no memtable came just before this generation: numbers were jumped over.
pub fn begins_a_load(generation: Generation) -> bool {
    LoadNumber::of(generation).is_some_and(|number| number.first() == Some(generation))
}

/// The last generation that counts as flushed where a partition begins that was rebuilt in this term: behind all loads of terms before
/// and, as they go on from there, in no load's numbers. None: the term is too large for that.
pub fn flushed_when_rebuilt(term: u64) -> Option<Generation> {
    OF_CLOCKS.first(term, 0).map(Generation)
}

/// The seq of what is loaded, ahead of everything that is written meanwhile. None: there are no more.
pub fn seq_ahead(next_seq: u64) -> Option<u64> {
    (next_seq <= SEQ_MAX).then(|| ((next_seq >> SEQS_AHEAD_BITS) + 2) << SEQS_AHEAD_BITS)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ids::{Epoch, LogPosition, SstId, TableId};
    use crate::key_range::KeyRange;
    use crate::manifest::Generations;

    const OF_ELECTIONS_END: u64 = 1 << 22;
    /// Seconds of a clock.
    const REBUILT: u64 = 1_790_000_000;

    #[test]
    fn a_load_begins_where_no_memtable_was_and_only_the_first_of_its_tables_does() {
        for term in [3, OF_ELECTIONS_END, REBUILT, (1 << 34) - 1] {
            let first = first_generation(term, 1, Generation(17)).unwrap();
            assert!(begins_a_load(first) && first > Generation(17));
            assert!(!begins_a_load(Generation(first.0 + 1)) && !begins_a_load(Generation(1)));
            assert!(!begins_a_load(Generation(0)));
            let later = first_generation(term, 2, Generation(first.0 + LOADED_SSTS_MAX as u64)).unwrap();
            assert!(later > Generation(first.0 + LOADED_SSTS_MAX as u64));
        }
    }

    #[test]
    fn numbers_are_laid_out_as_in_files_that_are_there_and_those_of_rebuilt_partitions_lie_above() {
        assert_eq!(first_generation(3, 1, Generation(1)), Some(Generation((3 << 16 | 1) << 24)));
        let last = first_generation(OF_ELECTIONS_END - 1, (1 << 16) - 1, Generation(1)).unwrap();
        assert!(first_generation(OF_ELECTIONS_END, 1, last).is_some());
    }

    #[test]
    fn numbers_end_before_their_types_do() {
        let last = first_generation((1 << 34) - 1, (1 << 10) - 1, Generation(1)).unwrap();
        assert!(last.0 < u64::MAX / 2);
        for (term, count) in [(1 << 34, 1), (1, 1 << 16), (REBUILT, 1 << 10), (1, 0), (REBUILT, 0)] {
            assert_eq!(first_generation(term, count, Generation(1)), None);
        }
        assert_eq!(first_generation(1, 1, last), None, "a memtable is ahead of it");
        assert_eq!(seq_ahead(u64::MAX), None);
    }

    #[test]
    fn a_rebuilt_partition_begins_behind_all_loads_and_in_none() {
        let before = first_generation(REBUILT - 1, (1 << 10) - 1, Generation(1)).unwrap();
        let begins = flushed_when_rebuilt(REBUILT).unwrap();
        assert!(begins > before && begins > first_generation(9, 9, Generation(1)).unwrap());
        assert_eq!(LoadNumber::of(Generation(begins.0 + 5)), None);
        assert!(first_generation(REBUILT, 1, Generation(begins.0 + 5)).is_some(), "it takes loads");
        assert_eq!(flushed_when_rebuilt(1 << 40), None, "by a clock that was very wrong");
    }

    fn sst(generations: Generations, seqs: (u64, u64)) -> SstMeta {
        let at = LogPosition { term: 1, index: 1 };
        SstMeta {
            id: SstId {
                partition: PartitionId(0),
                plan: at,
                epoch: Epoch { term: 1, incarnation: 1 },
                counter: 1,
            },
            table: TableId(1),
            records: 1,
            tombstones: 0,
            min_key: "a".into(),
            max_key: "z".into(),
            min_seq: seqs.0,
            max_seq: seqs.1,
            file_bytes: 1,
            checksum: 1,
            generations,
            range: KeyRange::all(),
            expiring: Default::default(),
            replicas: Vec::new(),
        }
    }

    #[test]
    fn an_sstable_of_a_load_is_told_from_others() {
        let number = LoadNumber { term: REBUILT, count: 7 };
        let (first, seq) = (number.first().unwrap().0, seq_ahead(100).unwrap());
        let of =
            |generation, seqs| LoadNumber::written_for(&sst(Generations::new(generation, generation), seqs));
        assert_eq!(of(first, (seq, seq)), Some(number));
        assert_eq!(of(first + 1023, (seq, seq)), Some(number));
        assert_eq!(of(first + 1024, (seq, seq)), None);
        assert_eq!(of(first + 1, (seq + 1, seq + 1)), None, "one write after it");
        assert_eq!(of(first + 1, (seq, seq + 1)), None);
        assert_eq!(of(5, (seq, seq)), None);
        let merged = sst(Generations::new(first, first + 1), (seq, seq));
        assert_eq!(LoadNumber::written_for(&merged), None);
        let pushed_down =
            SstMeta { range: KeyRange::new("a", "c"), ..sst(Generations::new(first, first), (seq, seq)) };
        assert_eq!(LoadNumber::written_for(&pushed_down), None);
    }

    #[test]
    fn a_load_is_named_by_its_partition_and_number() {
        let name = LoadName { partition: PartitionId(2), number: LoadNumber { term: 3, count: 1 } };
        assert_eq!(name.to_string(), "2-3-1");
        assert_eq!("2-3-1".parse::<LoadName>().unwrap(), name);
        for wrong in ["", "2-3", "2-3-1-4", "2-x-1", "-1-2-3", "99999999999-1-1"] {
            assert!(wrong.parse::<LoadName>().is_err(), "{wrong}");
        }
    }

    fn begun() -> impl Strategy<Value = (u64, u64)> {
        prop_oneof![(0..OF_ELECTIONS_END, 1u64..1 << 16), (OF_ELECTIONS_END..1 << 34, 1u64..1 << 10),]
    }

    proptest! {
        #[test]
        fn no_two_loads_share_a_generation(a in begun(), b in begun()) {
            let of = |(term, count)| first_generation(term, count, Generation(0)).unwrap().0;
            prop_assert_eq!(of(a) == of(b), a == b);
            prop_assert!(a == b || of(a).abs_diff(of(b)) > LOADED_SSTS_MAX as u64);
            prop_assert_eq!(of(a) < of(b), a < b);
        }

        #[test]
        fn a_generation_tells_the_load_that_it_came_after((term, count) in begun(), ordinal in 0u64..1 << 18) {
            let first = first_generation(term, count, Generation(0)).unwrap();
            let number = LoadNumber::of(Generation(first.0 + ordinal));
            prop_assert_eq!(number, Some(LoadNumber { term, count }));
        }

        #[test]
        fn there_is_room_for_what_is_written_meanwhile(next in 0u64..1 << 61) {
            let seq = seq_ahead(next).unwrap();
            prop_assert!(seq - next > 1 << SEQS_AHEAD_BITS && seq - next <= 2 << SEQS_AHEAD_BITS);
        }
    }
}
