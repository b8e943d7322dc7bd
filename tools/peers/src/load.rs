//! What is asked of the servers. Keys are those of `redis-benchmark`, so that both clients find the same records.

use clap::ValueEnum;
use serde::Serialize;
use sextant_ycsb::{Chooser, Distribution};

pub const VALUE_BYTES: usize = 100;
pub const KEY_BYTES: usize = 16;

/// Ranges of records that do not get into each other's way.
const RECENT: u64 = 1_000_000_000;
const SETS: u64 = 2_000_000_000;
const ABSENT: u64 = 3_000_000_000;

/// How many records count as just written: few beside those that are there before.
const RECENT_SHARE: u64 = 10;
const ABSENT_PERCENT: u8 = 5;
const MIXED_SETS_PERCENT: u8 = 5;
/// YCSB's.
const THETA: f64 = 0.99;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Load {
    Cached,
    Absent,
    Recent,
    Mixed,
    Set,
}

impl Load {
    /// In this order: what is written by one disturbs none before it.
    pub const ALL: [Load; 5] = [Load::Cached, Load::Absent, Load::Recent, Load::Mixed, Load::Set];

    pub fn title(self) -> &'static str {
        match self {
            Load::Cached => "GET, cached",
            Load::Absent => "GET, 5 % absent",
            Load::Recent => "GET, just written",
            Load::Mixed => "95 % GET, 5 % SET, zipfian",
            Load::Set => "SET",
        }
    }

    pub fn about(self) -> &'static str {
        match self {
            Load::Cached => {
                "Uniform over all records, which Sextant has flushed and its p-node has read once."
            }
            Load::Absent => "The same, and of 100 keys 5 do not exist.",
            Load::Recent => {
                "Uniform over a tenth as many records, written just before: Sextant has them in memtables."
            }
            Load::Mixed => "YCSB's workload B over all records.",
            Load::Set => "Uniform over keys of its own, written again and again.",
        }
    }
}

/// How many clients, and how many operations each has under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Shape {
    pub clients: usize,
    pub pipeline: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Get { number: u64, exists: bool },
    Set { number: u64 },
}

/// Operations for one client.
pub struct Source {
    load: Load,
    records: u64,
    zipfian: Chooser,
    rng: fastrand::Rng,
}

impl Source {
    pub fn new(load: Load, records: u64, seed: u64) -> Self {
        let zipfian = Chooser::new(Distribution::Zipfian, THETA, records, 0);
        Self { load, records, zipfian, rng: fastrand::Rng::with_seed(seed) }
    }

    pub fn next(&mut self) -> Operation {
        let any = self.rng.u64(..self.records);
        match self.load {
            Load::Cached => Operation::Get { number: any, exists: true },
            Load::Absent => {
                let exists = self.rng.u8(..100) >= ABSENT_PERCENT;
                Operation::Get { number: if exists { any } else { ABSENT + any }, exists }
            }
            Load::Recent => {
                Operation::Get { number: RECENT + any % recent_records(self.records), exists: true }
            }
            Load::Mixed => {
                let number = self.zipfian.next(&mut self.rng, self.records);
                if self.rng.u8(..100) < MIXED_SETS_PERCENT {
                    Operation::Set { number }
                } else {
                    Operation::Get { number, exists: true }
                }
            }
            Load::Set => Operation::Set { number: SETS + any },
        }
    }
}

fn recent_records(records: u64) -> u64 {
    records.div_ceil(RECENT_SHARE)
}

/// Writes all records.
pub fn load_all(records: u64) -> impl Iterator<Item = Operation> {
    (0..records).map(|number| Operation::Set { number })
}

/// Reads all records once.
pub fn read_all(records: u64) -> impl Iterator<Item = Operation> {
    (0..records).map(|number| Operation::Get { number, exists: true })
}

/// Writes what [`Load::Recent`] reads.
pub fn write_recent(records: u64) -> impl Iterator<Item = Operation> {
    (0..recent_records(records)).map(|number| Operation::Set { number: RECENT + number })
}

pub fn key(number: u64) -> [u8; KEY_BYTES] {
    let mut key = *b"key:000000000000";
    let mut rest = number;
    for digit in key[4..].iter_mut().rev() {
        *digit += (rest % 10) as u8;
        rest /= 10;
    }
    key
}

/// Begins with its key, and does not compress to nothing.
pub fn value(number: u64) -> [u8; VALUE_BYTES] {
    let mut value = [b'.'; VALUE_BYTES];
    value[..KEY_BYTES].copy_from_slice(&key(number));
    for (i, byte) in value[KEY_BYTES..VALUE_BYTES / 2].iter_mut().enumerate() {
        *byte = b'a' + (number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> i) as u8 % 26;
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_those_of_redis_benchmark() {
        assert_eq!(&key(0), b"key:000000000000");
        assert_eq!(&key(1_234_567_890), b"key:001234567890");
        assert_eq!(value(17)[..KEY_BYTES], key(17));
    }

    #[test]
    fn loads_do_as_they_are_called() {
        let count = |load, what: fn(&Operation) -> bool| {
            let mut source = Source::new(load, 1000, 7);
            (0..10_000).map(|_| source.next()).filter(what).count()
        };
        let set = |op: &Operation| matches!(op, Operation::Set { .. });
        let absent =
            |op: &Operation| matches!(op, Operation::Get { number, exists: false } if *number >= ABSENT);
        assert_eq!((count(Load::Cached, set), count(Load::Cached, absent)), (0, 0));
        assert!((400..600).contains(&count(Load::Absent, absent)));
        assert!((400..600).contains(&count(Load::Mixed, set)));
        assert_eq!(count(Load::Set, set), 10_000);
        let written: Vec<_> = write_recent(1000).collect();
        let mut source = Source::new(Load::Recent, 1000, 1);
        assert!((0..1000).all(|_| match source.next() {
            Operation::Get { number, exists: true } => written.contains(&Operation::Set { number }),
            _ => false,
        }));
    }
}
