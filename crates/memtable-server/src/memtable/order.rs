//! The ordered index: each key once (`crossbeam-skiplist`). Keys stay in it as long as the memtable is there.
//!
//! Beginnings of keys stand in the list's nodes, as numbers that compare as the keys do: most comparisons need not look at a record.
//! A number is two bits and 62 of the key: bits 01, and what comes after the *common* beginning of the keys, for those that have
//! it; 00 and 10, and the first bytes, for those before and after them. Any common beginning is right; the best is that of
//! the memtable before this one.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::ops::Bound;

use crossbeam_skiplist::SkipSet;
use crossbeam_skiplist::set::Entry;

use super::arena::{Arena, Record, RecordPointer};

#[derive(Debug)]
pub struct Order {
    common: Box<[u8]>,
    keys: SkipSet<Key>,
}

/// A key's place in the order.
pub type Place<'m> = Entry<'m, Key>;

/// A key that is here.
#[derive(Debug)]
pub struct Key {
    number: u64,
    record: RecordPointer,
}

/// A key that may be here.
struct Sought<'k> {
    number: u64,
    key: &'k [u8],
}

/// One of both.
trait AnyKey {
    fn number(&self) -> u64;
    fn key(&self) -> &[u8];
}

impl Order {
    pub fn new(common: &[u8]) -> Self {
        Self { common: common.into(), keys: SkipSet::new() }
    }

    /// With what all keys begin.
    pub fn common_beginning(&self) -> Vec<u8> {
        let (Some(first), Some(last)) = (self.keys.front(), self.keys.back()) else { return Vec::new() };
        let pairs = first.key().iter().zip(last.key());
        pairs.take_while(|(a, b)| a == b).map(|(a, _)| *a).collect()
    }

    /// Adds the key of a record. The record that has it: another one if it was here already.
    pub fn insert<'a>(&self, arena: &'a Arena, record: &Record<'a>) -> Record<'a> {
        let number = self.number(record.key());
        // SAFETY: the list is a part of the memtable that the arena is a part of: both are there as long as each other, and nobody
        // gets a key but by a reference to the memtable. The list does not look at keys when it is dropped.
        let key = Key { number, record: unsafe { record.pointer() } };
        self.keys.get_or_insert(key).record(arena)
    }

    pub fn find<'a>(&self, arena: &'a Arena, key: &[u8]) -> Option<Record<'a>> {
        Some(self.keys.get(sought(&self.sought(key)))?.record(arena))
    }

    /// The first key above a bound.
    pub fn first(&self, bound: Bound<&[u8]>) -> Option<Place<'_>> {
        let bound = bound.map(|key| self.sought(key));
        self.keys.lower_bound(bound.as_ref().map(sought))
    }

    /// The last key below a bound.
    pub fn last(&self, bound: Bound<&[u8]>) -> Option<Place<'_>> {
        let bound = bound.map(|key| self.sought(key));
        self.keys.upper_bound(bound.as_ref().map(sought))
    }

    fn sought<'k>(&self, key: &'k [u8]) -> Sought<'k> {
        Sought { number: self.number(key), key }
    }

    /// See the head.
    fn number(&self, key: &[u8]) -> u64 {
        let (beginning, rest) = key.split_at(key.len().min(self.common.len()));
        match beginning.cmp(&self.common) {
            Ordering::Less => first_62_bits(key),
            Ordering::Equal => 1 << 62 | first_62_bits(rest),
            Ordering::Greater => 2 << 62 | first_62_bits(key),
        }
    }
}

fn first_62_bits(bytes: &[u8]) -> u64 {
    let mut first = [0; 8];
    let len = bytes.len().min(8);
    first[..len].copy_from_slice(&bytes[..len]);
    u64::from_be_bytes(first) >> 2
}

impl Key {
    /// The record of a key of this arena.
    pub fn record<'a>(&self, arena: &'a Arena) -> Record<'a> {
        arena.at_pointer(self.record)
    }
}

fn sought<'s>(key: &'s Sought<'_>) -> &'s (dyn AnyKey + 's) {
    key
}

impl AnyKey for Key {
    #[inline]
    fn number(&self) -> u64 {
        self.number
    }

    #[inline]
    fn key(&self) -> &[u8] {
        self.record.key()
    }
}

impl AnyKey for Sought<'_> {
    #[inline]
    fn number(&self) -> u64 {
        self.number
    }

    #[inline]
    fn key(&self) -> &[u8] {
        self.key
    }
}

#[inline]
fn compare<K: AnyKey + ?Sized>(a: &K, b: &K) -> Ordering {
    a.number().cmp(&b.number()).then_with(|| a.key().cmp(b.key()))
}

impl<'k> Borrow<dyn AnyKey + 'k> for Key {
    fn borrow(&self) -> &(dyn AnyKey + 'k) {
        self
    }
}

macro_rules! ordered {
    ($($key:ty),*) => {$(
        impl Ord for $key {
            #[inline]
            fn cmp(&self, other: &Self) -> Ordering {
                compare(self, other)
            }
        }

        impl PartialOrd for $key {
            #[inline]
            fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
                Some(self.cmp(other))
            }
        }

        impl PartialEq for $key {
            #[inline]
            fn eq(&self, other: &Self) -> bool {
                self.cmp(other).is_eq()
            }
        }

        impl Eq for $key {}
    )*};
}

ordered!(Key, dyn AnyKey + '_);
