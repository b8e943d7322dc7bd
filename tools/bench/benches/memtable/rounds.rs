//! The memtable against the one before it, in turns: what else the machine does hits both.

use std::hint::black_box;
use std::ops::Bound;

use bytes::Bytes;
use sextant_common::ids::Generation;
use sextant_memtable_server::memtable as new;

use super::old;

const VALUE_BYTES: usize = 100;
/// Key and value.
pub const ENTRY_BYTES: usize = 16 + VALUE_BYTES;
/// Writes of a group: keys and values are slices of one buffer, as the log's entries are decoded.
const GROUP: u64 = 64;
const SCAN_RECORDS: usize = 100;
/// Operations of a round, but for inserts: those are as many as there are keys.
const OPERATIONS: u64 = 200_000;

/// Nanoseconds that this thread has had a core: others who want the machine do not count.
pub fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: it writes to `time`, which outlives the call.
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) }, 0);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// 16 bytes, in no order.
pub fn key(i: u64) -> [u8; 16] {
    let mut key = *b"user000000000000";
    // No two are the same: the factor and the modulus have no divisor in common.
    let mut number = (u128::from(i + 1) * 618_033_988_749 % 1_000_000_000_000) as u64;
    for digit in key[4..].iter_mut().rev() {
        *digit += (number % 10) as u8;
        number /= 10;
    }
    key
}

/// What both can do.
pub trait Table: Sized {
    /// An empty one. It follows one that held a few such keys, as after a freeze.
    fn fresh() -> Self;
    fn insert(&self, key: Bytes, seq: u64, value: Bytes);
    /// Looks for a key before it is written, as a leader does for conditions and bits.
    fn look(&self, key: &Bytes) -> bool;
    /// A value goes into the reply, as in a server.
    fn get(&self, key: &Bytes, reply: &mut Vec<u8>) -> bool;
    /// So do keys and values. How many records there were.
    fn scan(&self, from: Bytes, records: usize, reply: &mut Vec<u8>) -> usize;
    fn bytes(&self) -> usize;
}

macro_rules! table {
    ($module:ident, $successor:expr, $look:expr) => {
        impl Table for $module::Memtable {
            fn fresh() -> Self {
                let before = Self::new(Generation(1));
                write(&before, 0..1000, 0, false);
                $successor(before)
            }
            fn insert(&self, key: Bytes, seq: u64, value: Bytes) {
                self.insert(key, seq, Some(value), seq, 0);
            }
            fn look(&self, key: &Bytes) -> bool {
                $look(self, key)
            }
            fn get(&self, key: &Bytes, reply: &mut Vec<u8>) -> bool {
                reply.clear();
                let found = self.get(key, u64::MAX);
                found.iter().filter_map(|v| v.value.as_ref()).for_each(|v| reply.extend_from_slice(v));
                found.is_some()
            }
            fn scan(&self, from: Bytes, records: usize, reply: &mut Vec<u8>) -> usize {
                let found = self.range(Bound::Included(from), Bound::Unbounded, u64::MAX).take(records);
                let encode = |(key, version): (Bytes, $module::Version)| {
                    reply.clear();
                    reply.extend_from_slice(&key);
                    version.value.iter().for_each(|v| reply.extend_from_slice(v));
                };
                found.map(encode).count()
            }
            fn bytes(&self) -> usize {
                self.bytes()
            }
        }
    };
}

table!(old, |_| old::Memtable::new(Generation(2)), |table: &old::Memtable, key| table.newest(key).is_some());
table!(new, |before: new::Memtable| before.successor(), |table: &new::Memtable, key| table
    .seek(key)
    .newest()
    .is_some());

/// Writes the keys of so many numbers in groups; `looks`: after it has looked for those of a group.
pub fn write(table: &impl Table, numbers: impl Iterator<Item = u64>, mut seq: u64, looks: bool) {
    let mut numbers = numbers.peekable();
    while numbers.peek().is_some() {
        let group: Vec<u64> = numbers.by_ref().take(GROUP as usize).collect();
        let mut section = Vec::with_capacity(group.len() * ENTRY_BYTES);
        for i in &group {
            section.extend_from_slice(&key(*i));
            section.extend_from_slice(&[*i as u8; VALUE_BYTES]);
        }
        let section = Bytes::from(section);
        let starts = || (0..group.len()).map(|write| write * ENTRY_BYTES);
        let found = starts().filter(|at| looks && table.look(&section.slice(*at..*at + 16))).count();
        assert!(!looks || found == group.len());
        for at in starts() {
            seq += 1;
            table.insert(section.slice(at..at + 16), seq, section.slice(at + 16..at + ENTRY_BYTES));
        }
    }
}

/// Numbers in no order, some of them more than once.
pub fn some(seed: u64, below: u64) -> impl Iterator<Item = u64> {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..OPERATIONS.min(below)).map(move |_| random.u64(..below))
}

pub const NAMES: [&str; 8] =
    ["insert", "update", "look, update", "hit", "miss", "scan 100", "scan all", "drop"];

/// Nanoseconds of an operation (of a record, for scans) for each of `NAMES`.
pub fn round<T: Table>(keys: u64, seed: u64) -> [f64; 8] {
    let table = T::fresh();
    let time = |count: u64, operations: &mut dyn FnMut()| {
        let start = now();
        operations();
        (now() - start) as f64 / count as f64
    };
    let count = OPERATIONS.min(keys);
    let gets = |numbers: Vec<u64>, found: bool| {
        let keys: Vec<_> = numbers.into_iter().map(|i| Bytes::copy_from_slice(&key(i))).collect();
        let mut reply = Vec::with_capacity(ENTRY_BYTES);
        time(count, &mut || keys.iter().for_each(|k| assert_eq!(table.get(k, &mut reply), found)))
    };
    let insert = time(keys, &mut || write(&table, 0..keys, 0, false));
    let hit = gets(some(seed, keys).collect(), true);
    let miss = gets(some(seed, keys).map(|i| i + keys).collect(), false);
    let scans: Vec<_> = some(seed, keys).take(2000).map(|i| Bytes::copy_from_slice(&key(i))).collect();
    let (mut records, mut reply) = (0, Vec::with_capacity(ENTRY_BYTES));
    let total = time(1, &mut || {
        records = scans.iter().map(|from| table.scan(from.clone(), SCAN_RECORDS, &mut reply)).sum::<usize>();
    });
    let scan = total / records as f64;
    let scan_all =
        time(keys, &mut || assert_eq!(table.scan(Bytes::new(), usize::MAX, &mut reply) as u64, keys));
    let update = time(count, &mut || write(&table, some(seed, keys), keys, false));
    let look_update = time(count, &mut || write(&table, some(seed + 1000, keys), keys + count, true));
    black_box(table.bytes());
    let mut table = Some(table);
    let drop = time(keys + 2 * count, &mut || drop(table.take()));
    [insert, update, look_update, hit, miss, scan, scan_all, drop]
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

pub fn compare(keys: u64, rounds: u64) {
    let mut times = (Vec::new(), Vec::new());
    for seed in 0..rounds {
        times.0.push(round::<old::Memtable>(keys, seed));
        times.1.push(round::<new::Memtable>(keys, seed));
    }
    println!("{keys} keys, {rounds} rounds; ns      old      new   old/new (median of the rounds' ratios)");
    for (i, name) in NAMES.iter().enumerate() {
        let (old, new) = (median(times.0.iter().map(|t| t[i])), median(times.1.iter().map(|t| t[i])));
        let ratio = median(times.0.iter().zip(&times.1).map(|(old, new)| old[i] / new[i]));
        println!("{name:>20} {old:>12.0} {new:>8.0} {ratio:>9.2}");
    }
}
