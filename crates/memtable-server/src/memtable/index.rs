//! The point index: hash -> record of a key. Readers take no lock and never wait; one writer.
//!
//! Extendible hashing: the upper bits of the hash choose a segment through the directory, the next 6 its home line in there.
//! A line has 12 slots, each a byte of the hash and the place of a record; what does not fit into its home line goes to one of the three
//! after it. A segment that has no room is replaced by one of twice the lines (up to 64), then by two; the directory doubles when
//! a segment has just one entry in it.
//!
//! *Growth.* A reader may be in a segment that was replaced meanwhile, or even used again. What it finds there is right: the
//! record says which key it is. What it does not find there may be elsewhere: each replacement counts `replaced` up before the segment
//! can be used again, and who finds the number changed asks the ordered index. (Who reads a slot of the segment's next use, reads
//! what was released after the number was.)
//!
//! *Chosen keys.* Who knows the hash can make keys that meet in one segment. It is not replaced if there are too few keys in all
//! for it to be full by chance; what finds no room is in the ordered index only, and the home line says so. So a point read is a look at 4 lines
//! at most, or a search of the ordered index.

use std::sync::OnceLock;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, fence};

use parking_lot::Mutex;

use super::arena::{Arena, At, NOWHERE, Record};
use super::segments::{LINES_MAX, Line, SLOTS, Segments, Spare, WORDS};

/// Lines in which a key can be.
const WINDOW: usize = 4;
/// A full segment that should by the number of keys hold so few is full on purpose.
const KEYS_MIN: usize = SLOTS * LINES_MAX / 8;
/// Bits of a hash that a directory goes by: as many segments have room for more keys than an arena.
const BITS_MAX: usize = 26;

#[derive(Debug, Default)]
pub struct Index {
    /// How many upper bits of a hash choose an entry of the directory.
    bits: AtomicU32,
    /// By their bits; the entries are numbers of segments. Those before the newest are what readers may still be in.
    directories: [OnceLock<Box<[AtomicU32]>>; BITS_MAX + 1],
    segments: Segments,
    /// Segments that were replaced.
    replaced: AtomicU32,
    growth: Mutex<Growth>,
}

/// What the writer knows.
#[derive(Debug, Default)]
struct Growth {
    keys: usize,
    spare: Spare,
}

pub enum Found<'a> {
    Here(At, Record<'a>),
    Nowhere,
    /// The ordered index knows.
    Unknown,
}

fn upper_bits(hash: u64, bits: u32) -> usize {
    hash.checked_shr(64 - bits).unwrap_or(0) as usize
}

/// The byte of a hash that stands in its slot.
fn tag(hash: u64) -> u32 {
    u32::from((hash as u8).max(1))
}

const LOW_BITS: u32 = 0x0101_0101;
const HIGH_BITS: u32 = 0x8080_8080;

/// The highest bit of each byte that is 0; above such a byte, of others too.
fn zero_bytes(word: u32) -> u32 {
    word.wrapping_sub(LOW_BITS) & !word & HIGH_BITS
}

/// The lines in which a key can be, its home line first.
fn window(lines: &[Line], hash: u64) -> impl Iterator<Item = &Line> {
    let home = (hash >> 8) as usize;
    (home..home + WINDOW.min(lines.len())).map(|line| &lines[line & (lines.len() - 1)])
}

impl Index {
    pub fn find<'a>(&self, arena: &'a Arena, hash: u64, key: &[u8]) -> Found<'a> {
        let replaced = self.replaced.load(Acquire);
        let bits = self.bits.load(Acquire);
        let Some(entries) = self.directories[bits as usize].get() else { return Found::Nowhere };
        let lines = self.segments.lines(entries[upper_bits(hash, bits)].load(Acquire));
        let tags = tag(hash) * LOW_BITS;
        'window: for line in window(lines, hash) {
            for word in 0..WORDS {
                let slots = line.hashes[word].load(Acquire);
                let mut same = zero_bytes(slots ^ tags);
                while same != 0 {
                    let at = line.places[word * 4 + same.trailing_zeros() as usize / 8].load();
                    if at != NOWHERE {
                        let record = arena.record(at);
                        if record.key() == key {
                            return Found::Here(at, record);
                        }
                    }
                    same &= same - 1;
                }
                if zero_bytes(slots) != 0 {
                    break 'window;
                }
            }
        }
        let is_missing = |home: &Line| home.is_missing.load(Acquire) != 0;
        let may_be_missing = window(lines, hash).next().is_some_and(is_missing);
        fence(Acquire);
        if may_be_missing || self.replaced.load(Relaxed) != replaced {
            return Found::Unknown;
        }
        Found::Nowhere
    }

    /// Adds the record of a key that is not here.
    pub fn insert(&self, arena: &Arena, hash: u64, at: At) {
        let mut growth = self.growth.lock();
        growth.keys += 1;
        loop {
            let (entries, bits) = self.entries(&mut growth);
            let chosen = upper_bits(hash, bits);
            let lines = self.segments.lines(entries[chosen].load(Relaxed));
            if put(lines, hash, at) {
                return;
            }
            if !self.grow(arena, &mut growth, chosen) {
                miss(lines, hash);
                return;
            }
        }
    }

    /// The newest directory, and the bits that it goes by.
    fn entries(&self, growth: &mut Growth) -> (&[AtomicU32], u32) {
        let bits = self.bits.load(Relaxed);
        let mut first = || [AtomicU32::new(self.segments.take(&mut growth.spare))];
        (self.directories[bits as usize].get_or_init(|| Box::new(first())), bits)
    }

    /// Replaces the segment of an entry of the directory by larger or more ones. Whether that was done.
    fn grow(&self, arena: &Arena, growth: &mut Growth, chosen: usize) -> bool {
        let (entries, bits) = self.entries(growth);
        let old = entries[chosen].load(Relaxed);
        // The entries that lead to it: as many as a power of two, the first one a multiple of that.
        let mut run = 1;
        while run < entries.len() && entries[((chosen / run) ^ 1) * run].load(Relaxed) == old {
            run *= 2;
        }
        let first = chosen / run * run;
        let old_lines = self.segments.lines(old);
        if old_lines.len() < LINES_MAX {
            // The first segments are each twice as large as the one before.
            let new = self.segments.take(&mut growth.spare);
            copy(arena, old_lines, |_| self.segments.lines(new));
            entries[first..first + run].iter().for_each(|entry| entry.store(new, Release));
            self.replaced.fetch_add(1, Release);
            return true;
        }
        if growth.keys / (entries.len() / run) < KEYS_MIN {
            return false;
        }
        if run == 1 {
            if bits as usize == BITS_MAX {
                return false;
            }
            let twice = entries.iter().flat_map(|entry| [entry.load(Relaxed); 2]).map(AtomicU32::new);
            self.directories[bits as usize + 1].get_or_init(|| twice.collect());
            self.bits.store(bits + 1, Release);
            return self.grow(arena, growth, chosen * 2);
        }
        let halves = [self.segments.take(&mut growth.spare), self.segments.take(&mut growth.spare)];
        let middle = first + run / 2;
        let half_of = |hash| self.segments.lines(halves[usize::from(upper_bits(hash, bits) >= middle)]);
        copy(arena, old_lines, half_of);
        entries[first..middle].iter().for_each(|entry| entry.store(halves[0], Release));
        entries[middle..first + run].iter().for_each(|entry| entry.store(halves[1], Release));
        self.replaced.fetch_add(1, Release);
        growth.spare.give(old);
        true
    }

    #[cfg(test)]
    pub fn bytes(&self) -> usize {
        self.growth.lock().spare.bytes()
    }
}

/// Puts a record into the first line of its window that has room. False: none has.
fn put(lines: &[Line], hash: u64, at: At) -> bool {
    for line in window(lines, hash) {
        for word in 0..WORDS {
            let slots = line.hashes[word].load(Relaxed);
            let free = zero_bytes(slots);
            if free != 0 {
                let byte = free.trailing_zeros() / 8;
                line.places[word * 4 + byte as usize].store(at);
                line.hashes[word].store(slots | tag(hash) << (byte * 8), Release);
                return true;
            }
        }
    }
    false
}

/// Notes that a key is in the ordered index only.
fn miss(lines: &[Line], hash: u64) {
    if let Some(home) = window(lines, hash).next() {
        home.is_missing.store(1, Release);
    }
}

/// Copies a segment's records to where `to` tells for a hash.
fn copy<'l>(arena: &Arena, from: &[Line], to: impl Fn(u64) -> &'l [Line]) {
    // Records are all over the memory: looked at in a row, they come while others are waited for.
    let places = from.iter().flat_map(|line| &line.places).map(|at| at.load()).filter(|at| *at != NOWHERE);
    let hashes: Vec<_> = places.map(|at| (hash(arena.record(at).key()), at)).collect();
    for (hash, at) in hashes {
        let lines = to(hash);
        if !put(lines, hash, at) {
            miss(lines, hash);
        }
    }
    // Which keys are missing is not known, nor where they would belong now.
    if from.iter().any(|line| line.is_missing.load(Relaxed) != 0) {
        for half in [0, u64::MAX] {
            to(half).iter().for_each(|line| line.is_missing.store(1, Release));
        }
    }
}

/// The hash of a key for this index.
#[inline]
pub fn hash(key: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(key)
}
