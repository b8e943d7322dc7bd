//! The lines of the point index, in segments, which numbers name. Segments are only added; readers need no lock.

use std::sync::OnceLock;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Release;

use super::arena::{AtomicAt, NOWHERE};

/// Slots of a line.
pub const SLOTS: usize = 12;
/// Words of a line with bytes of hashes.
pub const WORDS: usize = SLOTS / 4;
/// Lines of a segment: 4 KiB. The first segments have 1, 2, 4, ...
pub const LINES_MAX: usize = 64;
/// 2^27 segments have room for more keys than an arena has.
const LEVELS: usize = 27;

/// A line of the processor's cache.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Line {
    /// A byte of the hash for each slot; 0: it is free.
    pub hashes: [AtomicU32; WORDS],
    /// Not 0: a key whose home line this is may be in the ordered index only.
    pub is_missing: AtomicU32,
    pub places: [AtomicAt; SLOTS],
}

const _: () = assert!(size_of::<Line>() == 64);

impl Line {
    /// For another use. Who is still reading it finds out: see `index`.
    fn clear(&self) {
        self.places.iter().for_each(|place| place.store(NOWHERE));
        self.hashes.iter().chain([&self.is_missing]).for_each(|word| word.store(0, Release));
    }
}

type Segment = Box<[Line]>;

#[derive(Debug, Default)]
pub struct Segments {
    /// Level k has the segments 2^k - 1 to 2^(k+1) - 2.
    levels: [OnceLock<Box<[OnceLock<Segment>]>>; LEVELS],
}

/// What only the writer knows of segments.
#[derive(Debug, Default)]
pub struct Spare {
    /// How many there are.
    count: u32,
    /// Those that can be used again.
    numbers: Vec<u32>,
}

impl Segments {
    /// The lines of a segment, whose number `take` gave.
    #[inline]
    pub fn lines(&self, segment: u32) -> &[Line] {
        let level = (segment + 1).ilog2();
        let segments = self.levels[level as usize].get().expect("as many as were added");
        segments[(segment + 1 - (1 << level)) as usize].get().expect("it was added")
    }

    /// An empty segment.
    pub fn take(&self, spare: &mut Spare) -> u32 {
        if let Some(segment) = spare.numbers.pop() {
            self.lines(segment).iter().for_each(Line::clear);
            return segment;
        }
        let segment = spare.count;
        spare.count += 1;
        let level = (segment + 1).ilog2();
        let segments =
            self.levels[level as usize].get_or_init(|| (0..1u32 << level).map(|_| OnceLock::new()).collect());
        let lines = 1 << segment.min(LINES_MAX.ilog2());
        segments[(segment + 1 - (1 << level)) as usize]
            .get_or_init(|| (0..lines).map(|_| Line::default()).collect());
        segment
    }
}

impl Spare {
    /// Gives a segment back: no entry of the newest directory leads to it any more.
    pub fn give(&mut self, segment: u32) {
        self.numbers.push(segment);
    }

    #[cfg(test)]
    pub fn bytes(&self) -> usize {
        self.count as usize * LINES_MAX * size_of::<Line>()
    }
}
