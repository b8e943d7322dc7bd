//! Memory of a memtable: chunks that are only added to, and freed with the memtable. All of its `unsafe` is here.
//!
//! A place ([`At`]) is the number of a chunk and an offset in units of 8 bytes. Chunks grow from 4 to 124 KiB; what does not fit
//! is a chunk of its own.
//!
//! A record is a version, of a key or (the key's first one) together with it; 12 bytes, then key and value:
//!
//! | bytes | what |
//! |---|---|
//! | 0..4 | link: place of the next older version; in a key's record: of its newest one; 0: none |
//! | 4..8 | seq, low half |
//! | 8..10 | length of the key, low half; 0: a version of a key that stands elsewhere |
//! | 10..12 | length of the value (12 bits), and flags |
//! | 12..20 | only if `WIDE`: upper halves of seq and length of the key |
//!
//! A long value is no part of its record: there a `Bytes` stands for it, which readers clone.
//!
//! Invariant: but for its link and its flag `REMOVED` a record does not change once a place of it was handed out.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ptr::NonNull;
use std::slice;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicPtr, AtomicU16, AtomicU32};

use bytes::Bytes;

const UNIT_BYTES: usize = 8;
/// Of a place, bits of the offset.
const OFFSET_BITS: u32 = 14;
/// Bits of the number: 2^18 chunks are 31 GiB, without long values.
const NUMBER_BITS: u32 = 32 - OFFSET_BITS;
const CHUNK_BYTES_MIN: usize = 4 * 1024;
/// What offsets can tell, less what an allocator takes for itself: asked for a power of two, mimalloc rounds up by as much as a quarter.
const CHUNK_BYTES_MAX: usize = (UNIT_BYTES << OFFSET_BITS) - 4096;
const LINE_BYTES: usize = size_of::<Line>();

/// Longer values stand apart from their records. Copying fewer bytes for a reader takes no longer than counting references
/// (figures: docs/benchmarks/memtable.md).
pub const INLINE_BYTES_MAX: usize = 1024;

const VALUE_LEN: u16 = (1 << 12) - 1;
const TOMBSTONE: u16 = 1 << 12;
/// The value is a `Bytes`.
const APART: u16 = 1 << 13;
const WIDE: u16 = 1 << 14;
/// The version that stands in a key's record is not there any more.
const REMOVED: u16 = 1 << 15;

/// A place in an arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct At(pub u32);

/// No record is at this place.
pub const NOWHERE: At = At(0);

/// A cache line of the index.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Line(pub [AtomicU32; 16]);

#[repr(C)]
struct Header {
    link: AtomicU32,
    seq: u32,
    key_len: u16,
    meta: AtomicU16,
}

const HEADER_BYTES: usize = size_of::<Header>();
const WIDE_BYTES: usize = 8;

/// What readers of an arena need.
#[derive(Debug, Default)]
pub struct Arena {
    /// Where chunks begin: level k has those with the numbers 2^k - 1 to 2^(k+1) - 2.
    levels: [OnceLock<Box<[AtomicPtr<u8>]>>; NUMBER_BITS as usize + 1],
    /// The upper half of the seqs whose records are not wide: that of the first one.
    seq_high: OnceLock<u32>,
}

#[derive(Debug)]
struct Chunk {
    memory: NonNull<u8>,
    layout: Layout,
    /// Where its first line begins.
    start: NonNull<u8>,
}

/// The right to allocate in one arena, and its memory.
#[derive(Debug, Default)]
pub struct Bump {
    chunks: Vec<Chunk>,
    /// Offset of what is free in the newest chunk, and its end.
    free: usize,
    end: usize,
    /// Values that stand apart.
    apart: Vec<NonNull<Bytes>>,
}

// SAFETY: it owns what its pointers lead to: chunks, and values of type `Bytes`, which may be sent.
unsafe impl Send for Bump {}

impl Bump {
    /// What was allocated, but for values that stand apart.
    #[cfg(test)]
    pub fn bytes(&self) -> usize {
        self.chunks.iter().map(|chunk| chunk.layout.size()).sum()
    }
}

impl Drop for Bump {
    fn drop(&mut self) {
        for value in &self.apart {
            // SAFETY: `put` wrote each of them once, into a chunk that is still there; nobody reads them any more, because readers
            // borrow the memtable that owns this.
            unsafe { value.drop_in_place() };
        }
        for chunk in &self.chunks {
            // SAFETY: allocated in `Arena::grow` with this layout.
            unsafe { dealloc(chunk.memory.as_ptr(), chunk.layout) };
        }
    }
}

/// What is put into a new record.
#[derive(Clone, Copy, Debug)]
pub struct New<'a> {
    /// Empty: a version of a key that stands elsewhere.
    pub key: Option<&'a [u8]>,
    pub seq: u64,
    pub value: Option<&'a [u8]>,
    pub link: At,
}

impl Arena {
    /// The place of `bytes` new bytes, whose address is a multiple of `align` (8 to 64).
    fn alloc(&self, bump: &mut Bump, bytes: usize, align: usize) -> (At, NonNull<u8>) {
        let mut start = bump.free.next_multiple_of(align);
        // What begins beyond could not be told: the rest of a chunk of its own is left over.
        if start + bytes > bump.end || start >= CHUNK_BYTES_MAX {
            self.grow(bump, bytes);
            start = bump.free.next_multiple_of(align);
        }
        bump.free = (start + bytes).next_multiple_of(UNIT_BYTES);
        let number = bump.chunks.len() - 1;
        // SAFETY: within the chunk: `start + bytes <= end`, its length.
        let place = unsafe { bump.chunks[number].start.add(start) };
        (At((number << OFFSET_BITS | start / UNIT_BYTES) as u32), place)
    }

    /// Begins a chunk that has room for `bytes`.
    #[cold]
    fn grow(&self, bump: &mut Bump, bytes: usize) {
        let number = bump.chunks.len();
        assert!(number < 1 << NUMBER_BITS, "a memtable of 31 GiB was not frozen");
        let usual = (CHUNK_BYTES_MIN << number.min(16)).min(CHUNK_BYTES_MAX);
        // Nothing is at place 0.
        let skipped = if number == 0 { LINE_BYTES } else { 0 };
        let len = usual.max((bytes + skipped + LINE_BYTES).next_multiple_of(LINE_BYTES));
        // The allocator is not asked to align it to lines: it might take half as much more for that.
        let layout = Layout::from_size_align(len, 16).expect("a chunk is not that long");
        // SAFETY: the layout is not empty.
        let memory = unsafe { alloc(layout) };
        let Some(memory) = NonNull::new(memory) else { handle_alloc_error(layout) };
        let unaligned = memory.align_offset(LINE_BYTES);
        // SAFETY: less than a line, and the chunk has more.
        let start = unsafe { memory.add(unaligned) };
        bump.chunks.push(Chunk { memory, layout, start });
        (bump.free, bump.end) = (skipped, len - unaligned);
        let level = (number + 1).ilog2();
        let bases = self.levels[level as usize]
            .get_or_init(|| (0..1usize << level).map(|_| AtomicPtr::default()).collect());
        bases[number + 1 - (1 << level)].store(start.as_ptr(), Release);
    }

    #[inline]
    fn pointer(&self, at: At) -> *mut u8 {
        let number = (at.0 >> OFFSET_BITS) as usize + 1;
        let level = number.ilog2();
        let bases = self.levels[level as usize].get().expect("a place in a chunk that is there");
        let base = bases[number - (1 << level)].load(Acquire);
        // SAFETY: `at` was made by `alloc`: it lies in the chunk that begins at `base`.
        unsafe { base.add((at.0 % (1 << OFFSET_BITS)) as usize * UNIT_BYTES) }
    }

    /// Writes a record.
    pub fn put(&self, bump: &mut Bump, new: New<'_>) -> (At, Record<'_>) {
        let key = new.key.unwrap_or_default();
        let (low, high) = (new.seq as u32, (new.seq >> 32) as u32);
        let is_wide = high != *self.seq_high.get_or_init(|| high) || key.len() > usize::from(u16::MAX);
        let key_at = HEADER_BYTES + if is_wide { WIDE_BYTES } else { 0 };
        let mut value_at = key_at + key.len();
        let (mut meta, mut value_len) = (if is_wide { WIDE } else { 0 }, 0);
        match new.value {
            None => meta |= TOMBSTONE,
            Some(value) if value.len() > INLINE_BYTES_MAX => {
                meta |= APART;
                value_at = value_at.next_multiple_of(align_of::<Bytes>());
                value_len = size_of::<Bytes>();
            }
            Some(value) => {
                meta |= value.len() as u16;
                value_len = value.len();
            }
        }
        let (at, place) = self.alloc(bump, value_at + value_len, UNIT_BYTES);
        // SAFETY: all is written within the bytes that were just allocated, to which nobody else has a way. `place` is a multiple
        // of 8, as is `value_at` where a `Bytes` is written: aligned.
        unsafe {
            place.cast::<Header>().write(Header {
                link: AtomicU32::new(new.link.0),
                seq: low,
                key_len: key.len() as u16,
                meta: AtomicU16::new(meta),
            });
            if is_wide {
                place.add(HEADER_BYTES).cast::<[u32; 2]>().write([high, (key.len() >> 16) as u32]);
            }
            place.add(key_at).copy_from_nonoverlapping(NonNull::from(key).cast(), key.len());
            if let Some(value) = new.value {
                let to = place.add(value_at);
                if meta & APART != 0 {
                    let to = to.cast::<Bytes>();
                    to.write(Bytes::copy_from_slice(value));
                    bump.apart.push(to);
                } else {
                    to.copy_from_nonoverlapping(NonNull::from(value).cast(), value.len());
                }
            }
        }
        (at, Record { arena: self, header: RecordPointer(place.cast()) })
    }

    /// The record at a place of this arena.
    #[inline]
    pub fn record(&self, at: At) -> Record<'_> {
        let header = NonNull::new(self.pointer(at)).expect("chunks are not at address 0");
        Record { arena: self, header: RecordPointer(header.cast()) }
    }

    /// The record that a pointer leads to, one of this arena's.
    #[inline]
    pub fn at_pointer(&self, header: RecordPointer) -> Record<'_> {
        Record { arena: self, header }
    }

    /// New lines of the index, all zero.
    pub fn put_lines(&self, bump: &mut Bump, count: usize) -> At {
        let (at, place) = self.alloc(bump, count * LINE_BYTES, LINE_BYTES);
        // SAFETY: these bytes were just allocated.
        unsafe { place.write_bytes(0, count * LINE_BYTES) };
        at
    }

    /// Lines that `put_lines` made here.
    #[inline]
    pub fn lines(&self, at: At, count: usize) -> &[Line] {
        // SAFETY: there are so many lines, initialised, aligned, and changed as atomics only; they live as long as the memtable
        // that owns the arena.
        unsafe { slice::from_raw_parts(self.pointer(at).cast(), count) }
    }

    /// A new array for the index.
    pub fn put_words(&self, bump: &mut Bump, words: &[u32]) -> At {
        let (at, place) = self.alloc(bump, size_of_val(words), UNIT_BYTES);
        // SAFETY: these bytes were just allocated, for so many words; an atomic has the layout of its number.
        unsafe { place.cast().copy_from_nonoverlapping(NonNull::from(words).cast::<u32>(), words.len()) };
        at
    }

    /// An array that `put_words` made here.
    #[inline]
    pub fn words(&self, at: At, count: usize) -> &[AtomicU32] {
        // SAFETY: as in `lines`.
        unsafe { slice::from_raw_parts(self.pointer(at).cast(), count) }
    }
}

/// Where a record is, while its arena is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordPointer(NonNull<Header>);

// SAFETY: it leads to what does not change, or changes as atomics only.
unsafe impl Send for RecordPointer {}
// SAFETY: as above.
unsafe impl Sync for RecordPointer {}

impl RecordPointer {
    #[inline]
    pub fn key(&self) -> &[u8] {
        self.key_bytes()
    }

    #[inline]
    fn header<'a>(self) -> &'a Header {
        // SAFETY: `put` wrote the header before it handed out the pointer, or a place that leads to it. Pointers do not leave the
        // memtable that owns the arena, nor does what they lead to: see `Record` and `order::Key`.
        unsafe { self.0.as_ref() }
    }

    #[inline]
    fn meta(self) -> u16 {
        self.header().meta.load(Relaxed)
    }

    /// Upper halves of seq and length of the key, if the record is wide.
    #[inline]
    fn wide(self) -> Option<[u32; 2]> {
        // SAFETY: `put` wrote them behind the header of a wide record.
        (self.meta() & WIDE != 0).then(|| unsafe { self.0.add(1).cast().read() })
    }

    #[inline]
    fn key_range(self) -> (usize, usize) {
        let low = usize::from(self.header().key_len);
        match self.wide() {
            None => (HEADER_BYTES, low),
            Some([_, high]) => (HEADER_BYTES + WIDE_BYTES, low | (high as usize) << 16),
        }
    }

    #[inline]
    fn key_bytes<'a>(self) -> &'a [u8] {
        let (at, len) = self.key_range();
        // SAFETY: `put` wrote so many bytes there; they do not change. For how long: see `header`.
        unsafe { slice::from_raw_parts(self.0.cast::<u8>().as_ptr().add(at), len) }
    }
}

/// A record of an arena.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    arena: &'a Arena,
    header: RecordPointer,
}

/// A value as it is kept.
#[derive(Clone, Copy, Debug)]
pub enum Value<'a> {
    Tombstone,
    Inline(&'a [u8]),
    Apart(&'a Bytes),
}

impl<'a> Record<'a> {
    /// Empty if it is a version of a key that stands elsewhere.
    #[inline]
    pub fn key(&self) -> &'a [u8] {
        self.header.key_bytes()
    }

    #[inline]
    pub fn seq(&self) -> u64 {
        let high = match self.header.wide() {
            Some([high, _]) => high,
            None => *self.arena.seq_high.get().expect("set before the first record"),
        };
        u64::from(high) << 32 | u64::from(self.header.header().seq)
    }

    #[inline]
    pub fn value(&self) -> Value<'a> {
        let meta = self.header.meta();
        let (key_at, key_len) = self.header.key_range();
        let at = key_at + key_len;
        let start = self.header.0.cast::<u8>().as_ptr();
        if meta & TOMBSTONE != 0 {
            Value::Tombstone
        } else if meta & APART != 0 {
            // SAFETY: `put` wrote a `Bytes` there, which stays until the arena is dropped.
            Value::Apart(unsafe { &*start.add(at.next_multiple_of(align_of::<Bytes>())).cast() })
        } else {
            // SAFETY: `put` wrote so many bytes there; they do not change.
            Value::Inline(unsafe { slice::from_raw_parts(start.add(at), usize::from(meta & VALUE_LEN)) })
        }
    }

    /// The place of the next older version (of a key: of its newest one).
    #[inline]
    pub fn link(&self) -> At {
        At(self.header.header().link.load(Acquire))
    }

    /// The record that the link leads to.
    #[inline]
    pub fn next(&self) -> Option<Record<'a>> {
        let at = self.link();
        (at != NOWHERE).then(|| self.arena.record(at))
    }

    pub fn set_link(&self, at: At) {
        self.header.header().link.store(at.0, Release);
    }

    /// Of a key's record: whether the version in it was removed.
    #[inline]
    pub fn is_removed(&self) -> bool {
        self.header.meta() & REMOVED != 0
    }

    pub fn set_removed(&self) {
        self.header.header().meta.fetch_or(REMOVED, Relaxed);
    }

    /// It must not outlive the arena.
    pub fn pointer(&self) -> RecordPointer {
        self.header
    }
}
