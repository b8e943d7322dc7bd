//! Where the entries of one partition are: 16 bytes an entry, and the terms as runs.
//!
//! Invariant: the entries are consecutive, `first .. first + slots.len()`; the terms' runs start at `first` or before it.

use std::collections::VecDeque;

use crate::format::record::RECORD_HEADER_BYTES;

/// The segment of an entry that is queued: its `offset` is then the low half of its lsn.
const QUEUED: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Slot {
    /// Bytes of the partition's log up to and including this entry, counted since the index was made.
    end: u64,
    segment: u32,
    /// Of the record's header in the segment's file.
    offset: u32,
}

/// Where an entry's record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub segment: u32,
    pub offset: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IndexedEntry {
    pub index: u64,
    pub term: u64,
    /// Of the payload.
    pub length: u32,
    /// None: not written yet.
    pub place: Option<Place>,
}

impl IndexedEntry {
    /// Bytes of the whole record.
    pub fn record_bytes(&self) -> u64 {
        RECORD_HEADER_BYTES as u64 + u64::from(self.length)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Index {
    first: u64,
    slots: VecDeque<Slot>,
    /// Bytes before the first entry, counted as in [`Slot::end`].
    start: u64,
    /// First index of each run of entries of one term, and the term.
    terms: VecDeque<(u64, u64)>,
}

impl Index {
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Index of the first entry, or of the next one if there is none.
    pub fn first(&self) -> u64 {
        self.first
    }

    /// The index after the last entry.
    pub fn end(&self) -> u64 {
        self.first + self.slots.len() as u64
    }

    /// Term and index of the last entry.
    pub fn last(&self) -> Option<(u64, u64)> {
        let (_, term) = *self.terms.back()?;
        (!self.is_empty()).then(|| (term, self.end() - 1))
    }

    /// Adds the entry after the last one. If there is none, the log starts here.
    pub fn push_queued(&mut self, index: u64, term: u64, length: u32, lsn: u64) {
        self.push(index, term, length, Place { segment: QUEUED, offset: lsn as u32 });
    }

    pub fn push(&mut self, index: u64, term: u64, length: u32, place: Place) {
        if self.is_empty() {
            self.first = index;
            self.terms.clear();
        }
        debug_assert_eq!(index, self.end());
        if self.terms.back().is_none_or(|(_, last)| *last != term) {
            self.terms.push_back((index, term));
        }
        let end = self.bytes_end() + RECORD_HEADER_BYTES as u64 + u64::from(length);
        self.slots.push_back(Slot { end, segment: place.segment, offset: place.offset });
    }

    /// A queued entry was written. Does nothing if the entry was truncated or purged meanwhile.
    pub fn set_place(&mut self, index: u64, lsn: u64, place: Place) {
        let Some(at) = index.checked_sub(self.first) else { return };
        if let Some(slot) = self.slots.get_mut(at as usize)
            && (slot.segment, slot.offset) == (QUEUED, lsn as u32)
        {
            (slot.segment, slot.offset) = (place.segment, place.offset);
        }
    }

    /// Removes the entries from `end` on.
    pub fn truncate(&mut self, end: u64) {
        self.slots.truncate(end.saturating_sub(self.first) as usize);
        let end = self.end();
        while self.terms.back().is_some_and(|(start, _)| *start >= end) {
            self.terms.pop_back();
        }
    }

    /// Removes the entries up to and including `upto`.
    pub fn purge(&mut self, upto: u64) {
        let after = upto.saturating_add(1);
        let count = after.saturating_sub(self.first).min(self.slots.len() as u64) as usize;
        if let Some(slot) = count.checked_sub(1).and_then(|last| self.slots.get(last)) {
            self.start = slot.end;
        }
        self.slots.drain(..count);
        self.first = (self.first + count as u64).max(if self.slots.is_empty() { after } else { 0 });
        while self.terms.get(1).is_some_and(|(start, _)| *start <= self.first) {
            self.terms.pop_front();
        }
        if self.is_empty() {
            self.terms.clear();
            // Years of appends and purges must not leave the room of the largest moment behind.
            self.slots.shrink_to(1024);
        }
    }

    pub fn get(&self, index: u64) -> Option<IndexedEntry> {
        let at = index.checked_sub(self.first)? as usize;
        let slot = self.slots.get(at)?;
        let run = self.terms.partition_point(|(start, _)| *start <= index).checked_sub(1)?;
        let before = at.checked_sub(1).map_or(self.start, |at| self.slots[at].end);
        Some(IndexedEntry {
            index,
            term: self.terms[run].1,
            length: (slot.end - before) as u32 - RECORD_HEADER_BYTES as u32,
            place: (slot.segment != QUEUED).then_some(Place { segment: slot.segment, offset: slot.offset }),
        })
    }

    /// Bytes of the log from `index` to its end, record headers included.
    pub fn bytes_since(&self, index: u64) -> u64 {
        let before = match index.saturating_sub(self.first) as usize {
            0 => self.start,
            at => self.slots.get(at - 1).map_or(self.bytes_end(), |slot| slot.end),
        };
        self.bytes_end() - before
    }

    fn bytes_end(&self) -> u64 {
        self.slots.back().map_or(self.start, |slot| slot.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(n: u32) -> Place {
        Place { segment: n, offset: 64 * n }
    }

    fn filled() -> Index {
        let mut index = Index::default();
        for (i, term) in [(5, 1), (6, 1), (7, 2), (8, 4), (9, 4)] {
            index.push(i, term, i as u32, place(i as u32));
        }
        index
    }

    #[test]
    fn entries_are_found_with_term_length_and_place() {
        let index = filled();
        assert_eq!((index.first(), index.end(), index.last()), (5, 10, Some((4, 9))));
        for (i, term) in [(5, 1), (6, 1), (7, 2), (8, 4), (9, 4)] {
            let expected = IndexedEntry { index: i, term, length: i as u32, place: Some(place(i as u32)) };
            assert_eq!(index.get(i), Some(expected));
        }
        assert_eq!((index.get(4), index.get(10)), (None, None));
        assert_eq!(index.bytes_since(0), 5 * 32 + 35);
        assert_eq!(index.bytes_since(8), 2 * 32 + 17);
        assert_eq!(index.bytes_since(10), 0);
        assert_eq!(index.bytes_since(u64::MAX), 0);
    }

    #[test]
    fn truncating_and_purging_keep_terms_and_lengths() {
        let mut index = filled();
        index.truncate(8);
        assert_eq!((index.last(), index.get(7).unwrap().term, index.get(8)), (Some((2, 7)), 2, None));
        index.push(8, 9, 100, place(1));
        assert_eq!(
            index.get(8).unwrap(),
            IndexedEntry { index: 8, term: 9, length: 100, place: Some(place(1)) }
        );
        index.purge(6);
        assert_eq!((index.first(), index.get(6), index.get(7).unwrap().term), (7, None, 2));
        assert_eq!(index.get(7).unwrap().length, 7);
        index.purge(3);
        assert_eq!(index.first(), 7);
        index.purge(20);
        assert_eq!((index.is_empty(), index.first(), index.last()), (true, 21, None));
        index.push(21, 9, 1, place(2));
        assert_eq!((index.bytes_since(0), index.get(21).unwrap().length), (33, 1));
        index.truncate(0);
        assert_eq!((index.is_empty(), index.last(), index.bytes_since(0)), (true, None, 0));
    }

    #[test]
    fn a_place_goes_only_to_the_entry_that_it_was_written_for() {
        let mut index = Index::default();
        index.push_queued(1, 1, 10, 100);
        assert_eq!(index.get(1).unwrap().place, None);
        index.truncate(1);
        index.push_queued(1, 2, 10, 102);
        index.set_place(1, 100, place(1));
        assert_eq!(index.get(1).unwrap().place, None);
        index.set_place(1, 102, place(2));
        index.set_place(9, 9, place(3));
        assert_eq!(index.get(1).unwrap().place, Some(place(2)));
    }
}
