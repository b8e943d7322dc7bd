//! Memory of a memtable's records: chunks that are only added to, and freed with the memtable. Nearly all `unsafe` of a memtable is
//! here: [`order`](super::order) has one promise more.
//!
//! A place ([`At`]) is the number of a chunk and an offset in units of 8 bytes. Chunks grow from 4 to 128 KiB; what does not fit
//! is a chunk of its own.
//!
//! A record is a version, of a key or (the key's first one) together with it; 12 bytes, then key and value:
//!
//! | bytes | what |
//! |---|---|
//! | 0..4 | link: place of the next older version; in a key's record: of its newest one; 0: none |
//! | 4..8 | seq, low half |
//! | 8..10 | length of the key, low half; 0: a version of a key that stands elsewhere |
//! | 10..12 | length of the value (11 bits), and flags |
//! | 12..20 | only if `WIDE`: upper halves of seq and length of the key |
//! | 8 bytes more | only if `MARKED`: its marks (what it is, from which tick on it is absent) |
//!
//! A long value is no part of its record: there a `Bytes` stands for it, at the next multiple of 8 bytes, which readers clone.
//!
//! Invariants, which every `unsafe` here rests on:
//!
//! * A place or a pointer is made by [`Writing::put`] alone, once the record is written, and means something in its arena only. A
//!   memtable has one arena, and hands out neither.
//! * But for its link and its flag `REMOVED`, which are atomics, a record never changes.
//! * Chunks are neither moved nor freed while the arena is there. What a reader holds borrows the arena.

use std::ptr::NonNull;
use std::slice;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicPtr, AtomicU16, AtomicU32};

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use sextant_common::marks::Marks;

const UNIT_BYTES: usize = size_of::<u64>();
/// Of a place, bits of the offset.
const OFFSET_BITS: u32 = 14;
/// Bits of the number: 2^18 chunks are 31 GiB, without long values.
const NUMBER_BITS: u32 = 32 - OFFSET_BITS;
/// Asked for a power of two, mimalloc rounds up by as much as a third; for so much less, not at all.
const SPARED_BYTES: usize = 64;
const CHUNK_BYTES_MIN: usize = 4 * 1024;
/// What offsets can tell.
const CHUNK_BYTES_MAX: usize = (UNIT_BYTES << OFFSET_BITS) - SPARED_BYTES;

/// Longer values stand apart from their records. Copying fewer bytes for a reader takes no longer than counting references
/// (figures: docs/benchmarks/memtable.md).
pub const INLINE_BYTES_MAX: usize = 1024;

const VALUE_LEN: u16 = (1 << 11) - 1;
const MARKED: u16 = 1 << 11;
const TOMBSTONE: u16 = 1 << 12;
/// The value is a `Bytes`.
const APART: u16 = 1 << 13;
const WIDE: u16 = 1 << 14;
/// The version that stands in a key's record is not there any more.
const REMOVED: u16 = 1 << 15;

/// The place of a record in its arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct At(u32);

/// No record is at this place.
pub const NOWHERE: At = At(0);

/// Where a place can stand for readers to find it.
#[derive(Debug, Default)]
pub struct AtomicAt(AtomicU32);

impl AtomicAt {
    #[inline]
    pub fn load(&self) -> At {
        At(self.0.load(Acquire))
    }

    /// A reader that loads this place finds the record as it was put there.
    pub fn store(&self, at: At) {
        self.0.store(at.0, Release);
    }
}

#[repr(C)]
struct Header {
    link: AtomicAt,
    seq: u32,
    key_len: u16,
    meta: AtomicU16,
}

const HEADER_BYTES: usize = size_of::<Header>();
type WideHalves = [u32; 2];

/// Where what is not in each record begins, and key and value: counted from its header.
struct Layout {
    /// Only if it has any.
    marks: usize,
    key: usize,
    value: usize,
}

impl Layout {
    #[inline]
    fn of(meta: u16, key_len: usize) -> Self {
        let marks = HEADER_BYTES + if meta & WIDE != 0 { size_of::<WideHalves>() } else { 0 };
        let key = marks + if meta & MARKED != 0 { size_of::<u64>() } else { 0 };
        let end = key + key_len;
        let value = if meta & APART != 0 { end.next_multiple_of(align_of::<Bytes>()) } else { end };
        Self { marks, key, value }
    }
}

// Records begin at multiples of 8 bytes, so what stands at a multiple of 8 or 4 in one is aligned.
const _: () = assert!(align_of::<Header>() == 4 && HEADER_BYTES.is_multiple_of(align_of::<WideHalves>()));
const _: () = assert!(align_of::<Bytes>() <= UNIT_BYTES && INLINE_BYTES_MAX <= VALUE_LEN as usize);

#[derive(Debug, Default)]
pub struct Arena {
    /// Where chunks begin: level k has those with the numbers 2^k - 1 to 2^(k+1) - 2.
    levels: [OnceLock<Box<[AtomicPtr<u8>]>>; NUMBER_BITS as usize + 1],
    /// The upper half of the seqs whose records are not wide: that of the first one.
    seq_high: OnceLock<u32>,
    memory: Mutex<Memory>,
}

/// What only a writer needs.
#[derive(Debug, Default)]
struct Memory {
    /// They stay empty vectors: what is written beyond their length is none of theirs.
    chunks: Vec<Vec<u64>>,
    /// Offset of what is free in the newest chunk, and its end.
    free: usize,
    end: usize,
    /// Records whose values stand apart.
    apart: Vec<At>,
}

/// The right to write to an arena, and to what hangs from it: one has it at a time.
#[derive(Debug)]
pub struct Writing<'a> {
    arena: &'a Arena,
    memory: MutexGuard<'a, Memory>,
}

/// What is put into a new record.
#[derive(Clone, Copy, Debug)]
pub struct New<'a> {
    /// None: a version of a key that stands elsewhere.
    pub key: Option<&'a [u8]>,
    pub seq: u64,
    pub value: Option<&'a [u8]>,
    pub marks: Marks,
    pub link: At,
}

impl Arena {
    /// There is one writer: nobody waits for the lock.
    pub fn write(&self) -> Writing<'_> {
        Writing { arena: self, memory: self.memory.lock() }
    }

    /// The record at a place of this arena.
    #[inline]
    pub fn record(&self, at: At) -> Record<'_> {
        let number = (at.0 >> OFFSET_BITS) as usize + 1;
        let level = number.ilog2();
        let chunks = self.levels[level as usize].get().expect("a place in a chunk that is there");
        let start = chunks[number - (1 << level)].load(Acquire);
        let offset = (at.0 % (1 << OFFSET_BITS)) as usize * UNIT_BYTES;
        let header = NonNull::new(start.wrapping_add(offset)).expect("chunks are not at address 0");
        self.at_pointer(RecordPointer(header.cast()))
    }

    /// The record that a pointer leads to, one of this arena's.
    #[inline]
    pub fn at_pointer(&self, header: RecordPointer) -> Record<'_> {
        Record { arena: self, header }
    }

    /// What was allocated, but for values that stand apart.
    #[cfg(test)]
    pub fn bytes(&self) -> usize {
        self.memory.lock().chunks.iter().map(|chunk| chunk.capacity() * UNIT_BYTES).sum()
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        for at in std::mem::take(&mut self.memory.get_mut().apart) {
            let value = self.record(at).header.value_start().cast::<Bytes>();
            // SAFETY: `put` wrote a `Bytes` there and noted the record once; nobody reads it any more, because readers borrow the
            // arena. Its chunk is still there: the fields are dropped after this.
            unsafe { value.drop_in_place() };
        }
    }
}

impl<'a> Writing<'a> {
    /// The place of `bytes` new bytes, which nobody else has a way to.
    fn allocate(&mut self, bytes: usize) -> (At, NonNull<u8>) {
        // What begins beyond could not be told: the rest of a chunk of its own is left over.
        if self.memory.free + bytes > self.memory.end || self.memory.free >= CHUNK_BYTES_MAX {
            self.grow(bytes);
        }
        let Memory { chunks, free, end, .. } = &mut *self.memory;
        let start = *free;
        *free = (start + bytes).next_multiple_of(UNIT_BYTES);
        assert!(*free <= *end, "a record lies within its chunk");
        let number = chunks.len() - 1;
        let place = chunks[number].as_mut_ptr().cast::<u8>().wrapping_add(start);
        let at = At(((number << OFFSET_BITS) | (start / UNIT_BYTES)) as u32);
        (at, NonNull::new(place).expect("chunks are not at address 0"))
    }

    /// Begins a chunk that has room for `bytes`.
    #[cold]
    fn grow(&mut self, bytes: usize) {
        let number = self.memory.chunks.len();
        assert!(number < 1 << NUMBER_BITS, "a memtable of 31 GiB was not frozen");
        let usual = ((CHUNK_BYTES_MIN << number.min(16)) - SPARED_BYTES).min(CHUNK_BYTES_MAX);
        // Nothing is at place 0.
        let skipped = if number == 0 { UNIT_BYTES } else { 0 };
        let len = usual.max((skipped + bytes).next_multiple_of(UNIT_BYTES));
        let mut chunk = Vec::<u64>::with_capacity(len / UNIT_BYTES);
        let level = (number + 1).ilog2();
        let chunks = self.arena.levels[level as usize]
            .get_or_init(|| (0..1usize << level).map(|_| AtomicPtr::default()).collect());
        chunks[number + 1 - (1 << level)].store(chunk.as_mut_ptr().cast(), Release);
        self.memory.chunks.push(chunk);
        (self.memory.free, self.memory.end) = (skipped, len);
    }

    /// Writes a record.
    pub fn put(&mut self, new: New<'_>) -> (At, Record<'a>) {
        let key = new.key.unwrap_or_default();
        let key_len = u32::try_from(key.len()).expect("a key has no 4 GiB");
        let (low, high) = (new.seq as u32, (new.seq >> 32) as u32);
        let is_wide = high != *self.arena.seq_high.get_or_init(|| high) || key_len > u32::from(u16::MAX);
        let apart = new.value.filter(|value| value.len() > INLINE_BYTES_MAX).map(Bytes::copy_from_slice);
        let inline = if apart.is_some() { &[] } else { new.value.unwrap_or_default() };
        let mut meta = inline.len() as u16;
        let flags = [
            (TOMBSTONE, new.value.is_none()),
            (APART, apart.is_some()),
            (WIDE, is_wide),
            (MARKED, !new.marks.is_none()),
        ];
        for (flag, is_set) in flags {
            meta |= if is_set { flag } else { 0 };
        }
        let layout = Layout::of(meta, key.len());
        let value_len = if apart.is_some() { size_of::<Bytes>() } else { inline.len() };
        let (at, place) = self.allocate(layout.value + value_len);
        let header = Header {
            link: AtomicAt(AtomicU32::new(new.link.0)),
            seq: low,
            key_len: key_len as u16,
            meta: AtomicU16::new(meta),
        };
        // SAFETY: all is written to the `layout.value + value_len` bytes that were just allocated, at offsets that `Layout` keeps
        // apart; nobody else has a way to them. `place` is a multiple of 8, so what is not bytes is aligned (see `Layout`).
        // `key` and `inline` are in other memory: nobody has a slice of what was not yet written.
        unsafe {
            place.cast().write(header);
            if is_wide {
                place.add(HEADER_BYTES).cast::<WideHalves>().write([high, key_len >> 16]);
            }
            if !new.marks.is_none() {
                place.add(layout.marks).cast().write_unaligned(new.marks.word());
            }
            place.add(layout.key).copy_from_nonoverlapping(NonNull::from(key).cast(), key.len());
            let value = place.add(layout.value);
            match apart {
                Some(bytes) => value.cast().write(bytes),
                None => value.copy_from_nonoverlapping(NonNull::from(inline).cast(), inline.len()),
            }
        }
        if meta & APART != 0 {
            self.memory.apart.push(at);
        }
        (at, self.arena.at_pointer(RecordPointer(place.cast())))
    }
}

/// Where a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordPointer(NonNull<Header>);

// SAFETY: it leads to what does not change, or changes as atomics only, and to values of type `Bytes`, which may be sent and shared.
unsafe impl Send for RecordPointer {}
// SAFETY: as above.
unsafe impl Sync for RecordPointer {}

impl RecordPointer {
    #[inline]
    pub fn key(&self) -> &[u8] {
        self.key_bytes()
    }

    // The lifetimes that follow are chosen by who calls: `Record`, which borrows the arena, and `key`, whose caller got the pointer
    // by a promise (`Record::pointer`).

    #[inline]
    fn header<'a>(self) -> &'a Header {
        // SAFETY: `put` wrote the header before anybody could get a pointer to it; see the invariants.
        unsafe { self.0.as_ref() }
    }

    #[inline]
    fn meta(self) -> u16 {
        self.header().meta.load(Relaxed)
    }

    /// Upper halves of seq and length of the key, if the record is wide.
    #[inline]
    fn wide(self) -> Option<WideHalves> {
        // SAFETY: `put` wrote them behind the header of a wide record, and aligned: the header ends at a multiple of 4.
        (self.meta() & WIDE != 0).then(|| unsafe { self.0.add(1).cast().read() })
    }

    #[inline]
    fn key_len(self) -> usize {
        let low = usize::from(self.header().key_len);
        self.wide().map_or(low, |[_, high]| low | (high as usize) << 16)
    }

    #[inline]
    fn key_bytes<'a>(self) -> &'a [u8] {
        let len = self.key_len();
        let start = self.0.as_ptr().cast::<u8>().wrapping_add(Layout::of(self.meta(), len).key);
        // SAFETY: `put` wrote so many bytes there; they do not change.
        unsafe { slice::from_raw_parts(start, len) }
    }

    #[inline]
    fn marks(self) -> Marks {
        let meta = self.meta();
        let start = self.0.as_ptr().cast::<u8>().wrapping_add(Layout::of(meta, 0).marks);
        if meta & MARKED == 0 {
            return Marks::NONE;
        }
        // SAFETY: `put` wrote it there in a record that is marked, at any alignment; it does not change.
        Marks::from_word(unsafe { start.cast::<u64>().read_unaligned() })
    }

    #[inline]
    fn value_start(self) -> *mut u8 {
        self.0.as_ptr().cast::<u8>().wrapping_add(Layout::of(self.meta(), self.key_len()).value)
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
        let (meta, start) = (self.header.meta(), self.header.value_start());
        if meta & TOMBSTONE != 0 {
            Value::Tombstone
        } else if meta & APART != 0 {
            // SAFETY: `put` wrote a `Bytes` there, aligned, which stays until the arena is dropped.
            Value::Apart(unsafe { &*start.cast() })
        } else {
            // SAFETY: `put` wrote so many bytes there; they do not change.
            Value::Inline(unsafe { slice::from_raw_parts(start, usize::from(meta & VALUE_LEN)) })
        }
    }

    /// From when on it is absent; None: never.
    #[inline]
    pub fn marks(&self) -> Marks {
        self.header.marks()
    }

    /// The place of the next older version (of a key: of its newest one).
    #[inline]
    pub fn link(&self) -> At {
        self.header.header().link.load()
    }

    /// The record that the link leads to.
    #[inline]
    pub fn next(&self) -> Option<Record<'a>> {
        let at = self.link();
        (at != NOWHERE).then(|| self.arena.record(at))
    }

    pub fn set_link(&self, at: At) {
        self.header.header().link.store(at);
    }

    /// Of a key's record: whether the version in it was removed.
    #[inline]
    pub fn is_removed(&self) -> bool {
        self.header.meta() & REMOVED != 0
    }

    pub fn set_removed(&self) {
        self.header.header().meta.fetch_or(REMOVED, Relaxed);
    }

    #[inline]
    pub fn is_same(&self, other: &Record<'_>) -> bool {
        self.header == other.header
    }

    /// A pointer that the compiler does not know to borrow the arena.
    ///
    /// # Safety
    ///
    /// It is used, or given to [`Arena::at_pointer`], only while this record's arena is there, and only with this one.
    pub unsafe fn pointer(&self) -> RecordPointer {
        self.header
    }
}
