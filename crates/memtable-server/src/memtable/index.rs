//! The point index: hash -> record of a key. Readers take no lock and never wait; one writer.
//!
//! Extendible hashing: the upper bits of the hash choose a segment through the directory, the next 6 its home line in there.
//! A line has 12 slots, each a byte of the hash and the place of a record; what does not fit into its home line goes to one of the three
//! after it. A segment that has no room is replaced by one of twice the lines (up to 64), then by two; the directory doubles when
//! a segment has just one entry in it.
//!
//! *Growth.* A reader may be in a segment that was replaced meanwhile, or even used again. What it finds there is right: the
//! record says which key it is. What it does not find there may be elsewhere: each replacement counts `replaced` up before the segment
//! can be used again, and who finds the number changed asks the ordered index.
//!
//! *Chosen keys.* Who knows the hash can make keys that meet in one segment. It is not replaced if there are too few keys in all
//! for it to be full by chance; what finds no room is in the ordered index only, and the home line says so. So a point read is a look at 4 lines
//! at most, or a search of the ordered index.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64, fence};

use super::arena::{Arena, At, Bump, Line, Record};

/// Slots of a line.
const SLOTS: usize = 12;
/// Words of a line: 3 of bytes of hashes (0: free), one that is not 0 if a key is missing whose home line it is, 12 of places.
const MISSING: usize = 3;
const PLACES: usize = 4;
/// Lines in which a key can be.
const WINDOW: usize = 4;
/// Lines of a segment: 4 KiB.
const LINES_LOG2_MAX: u32 = 6;
/// A full segment that should by the number of keys hold so few is full on purpose.
const KEYS_MIN: usize = (SLOTS << LINES_LOG2_MAX) / 8;

#[derive(Debug, Default)]
pub struct Index {
    /// Upper half: bits of the hash that choose an entry of the directory; lower half: its place, 0: there is none.
    directory: AtomicU64,
    /// Segments that were replaced.
    replaced: AtomicU32,
}

/// What the writer knows.
#[derive(Debug, Default)]
pub struct Growth {
    keys: usize,
    /// Segments that were replaced.
    spare: Vec<At>,
}

pub enum Found<'a> {
    Here(Record<'a>),
    Nowhere,
    /// The ordered index knows.
    Unknown,
}

/// An entry of the directory: place of a segment (lines begin at multiples of 64 bytes, so three bits are free) and its number of lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry(u32);

impl Entry {
    fn new(at: At, lines_log2: u32) -> Self {
        Self(at.0 | lines_log2)
    }

    fn at(self) -> At {
        At(self.0 & !7)
    }

    fn lines_log2(self) -> u32 {
        self.0 & 7
    }

    fn lines(self, arena: &Arena) -> &[Line] {
        arena.lines(self.at(), 1 << self.lines_log2())
    }
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
        let directory = self.directory.load(Acquire);
        if directory == 0 {
            return Found::Nowhere;
        }
        let bits = (directory >> 32) as u32;
        let entries = arena.words(At(directory as u32), 1 << bits);
        let lines = Entry(entries[upper_bits(hash, bits)].load(Acquire)).lines(arena);
        let tags = tag(hash) * LOW_BITS;
        'window: for Line(line) in window(lines, hash) {
            for word in 0..MISSING {
                let slots = line[word].load(Acquire);
                let mut same = zero_bytes(slots ^ tags);
                while same != 0 {
                    let slot = word * 4 + same.trailing_zeros() as usize / 8;
                    let at = At(line[PLACES + slot].load(Acquire));
                    if at.0 != 0 {
                        let record = arena.record(at);
                        if record.key() == key {
                            return Found::Here(record);
                        }
                    }
                    same &= same - 1;
                }
                if zero_bytes(slots) != 0 {
                    break 'window;
                }
            }
        }
        let is_missing = |Line(home): &Line| home[MISSING].load(Acquire) != 0;
        let may_be_missing = window(lines, hash).next().is_some_and(is_missing);
        fence(Acquire);
        if may_be_missing || self.replaced.load(Relaxed) != replaced {
            return Found::Unknown;
        }
        Found::Nowhere
    }

    /// Adds the record of a key that is not here.
    pub fn insert(&self, arena: &Arena, bump: &mut Bump, growth: &mut Growth, hash: u64, at: At) {
        growth.keys += 1;
        if self.directory.load(Relaxed) == 0 {
            let segment = Entry::new(arena.put_lines(bump, 1), 0);
            self.publish(arena.put_words(bump, &[segment.0]), 0);
        }
        loop {
            let (entries, bits) = self.entries(arena);
            let chosen = upper_bits(hash, bits);
            let segment = Entry(entries[chosen].load(Relaxed));
            let lines = segment.lines(arena);
            if put(lines, hash, at) {
                return;
            }
            if !self.grow(arena, bump, growth, chosen) {
                miss(lines, hash);
                return;
            }
        }
    }

    fn entries<'a>(&self, arena: &'a Arena) -> (&'a [AtomicU32], u32) {
        let directory = self.directory.load(Relaxed);
        let bits = (directory >> 32) as u32;
        (arena.words(At(directory as u32), 1 << bits), bits)
    }

    fn publish(&self, directory: At, bits: u32) {
        self.directory.store(u64::from(bits) << 32 | u64::from(directory.0), Release);
    }

    /// Replaces the segment of an entry of the directory by larger or more ones. Whether that was done.
    fn grow(&self, arena: &Arena, bump: &mut Bump, growth: &mut Growth, chosen: usize) -> bool {
        let (entries, bits) = self.entries(arena);
        let old = Entry(entries[chosen].load(Relaxed));
        // The entries that lead to it: as many as a power of two, the first one a multiple of that.
        let mut run = 1;
        while run < entries.len() && entries[(chosen / run ^ 1) * run].load(Relaxed) == old.0 {
            run *= 2;
        }
        let first = chosen / run * run;
        let old_lines = old.lines(arena);
        if old.lines_log2() < LINES_LOG2_MAX {
            let lines_log2 = old.lines_log2() + 1;
            let new = Entry::new(arena.put_lines(bump, 1 << lines_log2), lines_log2);
            copy(arena, old_lines, |_| new.lines(arena));
            entries[first..first + run].iter().for_each(|entry| entry.store(new.0, Release));
            self.replaced.fetch_add(1, Release);
            return true;
        }
        if growth.keys / (entries.len() / run) < KEYS_MIN {
            return false;
        }
        if run == 1 {
            let twice: Vec<u32> = entries.iter().flat_map(|entry| [entry.load(Relaxed); 2]).collect();
            self.publish(arena.put_words(bump, &twice), bits + 1);
            return self.grow(arena, bump, growth, chosen * 2);
        }
        let mut half = || match growth.spare.pop() {
            Some(at) => {
                let lines = arena.lines(at, 1 << LINES_LOG2_MAX);
                lines.iter().flat_map(|line| &line.0).for_each(|word| word.store(0, Release));
                Entry::new(at, LINES_LOG2_MAX)
            }
            None => Entry::new(arena.put_lines(bump, 1 << LINES_LOG2_MAX), LINES_LOG2_MAX),
        };
        let halves = [half(), half()];
        let middle = first + run / 2;
        copy(arena, old_lines, |hash| halves[usize::from(upper_bits(hash, bits) >= middle)].lines(arena));
        entries[first..middle].iter().for_each(|entry| entry.store(halves[0].0, Release));
        entries[middle..first + run].iter().for_each(|entry| entry.store(halves[1].0, Release));
        self.replaced.fetch_add(1, Release);
        growth.spare.push(old.at());
        true
    }
}

/// Puts a record into the first line of its window that has room. False: none has.
fn put(lines: &[Line], hash: u64, at: At) -> bool {
    for Line(line) in window(lines, hash) {
        for word in 0..MISSING {
            let slots = line[word].load(Relaxed);
            let free = zero_bytes(slots);
            if free != 0 {
                let byte = free.trailing_zeros() / 8;
                line[PLACES + word * 4 + byte as usize].store(at.0, Release);
                line[word].store(slots | tag(hash) << (byte * 8), Release);
                return true;
            }
        }
    }
    false
}

/// Notes that a key is in the ordered index only.
fn miss(lines: &[Line], hash: u64) {
    if let Some(Line(home)) = window(lines, hash).next() {
        home[MISSING].store(1, Release);
    }
}

/// Copies a segment's records to where `to` tells for a hash.
fn copy<'l>(arena: &Arena, from: &[Line], to: impl Fn(u64) -> &'l [Line]) {
    // Records are all over the memory: looked at in a row, they come while others are waited for.
    let places = from.iter().flat_map(|Line(line)| &line[PLACES..]).map(|at| At(at.load(Relaxed)));
    let hashes: Vec<_> =
        places.filter(|at| at.0 != 0).map(|at| (hash(arena.record(at).key()), at)).collect();
    for (hash, at) in hashes {
        let lines = to(hash);
        if !put(lines, hash, at) {
            miss(lines, hash);
        }
    }
    // Which keys are missing is not known, nor where they would belong now.
    if from.iter().any(|line| line.0[MISSING].load(Relaxed) != 0) {
        for half in [0, u64::MAX] {
            to(half).iter().for_each(|line| line.0[MISSING].store(1, Release));
        }
    }
}

/// The hash of a key for this index.
#[inline]
pub fn hash(key: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(key)
}
