//! The newest visible versions of a range of keys, in order.
//!
//! Keys are taken in batches: first places in the order, then the records, then copies of all of them in one buffer. What a record
//! waits for, the next ones wait for at the same time; and a batch is allocated once. Batches are small at first: a reader may
//! want one key only.

use std::ops::Bound;

use bytes::Bytes;

use super::arena::Record;
use super::order::Place;
use super::versions::{self, Seen};
use super::{Memtable, Version};

/// Keys of a batch.
const BATCH_MIN: usize = 2;
const BATCH_MAX: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    Forward,
    Backward,
}

#[derive(Debug)]
pub struct Range<'m> {
    memtable: &'m Memtable,
    start: Bound<Bytes>,
    end: Bound<Bytes>,
    direction: Direction,
    /// Versions up to this seq are visible.
    at: u64,
    /// Of the last key that was looked at.
    place: Option<Place<'m>>,
    batch: std::vec::IntoIter<(Bytes, Version)>,
    batch_keys: usize,
    is_complete: bool,
}

impl<'m> Range<'m> {
    pub fn new(
        memtable: &'m Memtable,
        start: Bound<Bytes>,
        end: Bound<Bytes>,
        direction: Direction,
        at: u64,
    ) -> Self {
        let batch = Vec::new().into_iter();
        let (place, batch_keys, is_complete) = (None, BATCH_MIN, false);
        Self { memtable, start, end, direction, at, place, batch, batch_keys, is_complete }
    }

    fn next_place(&self) -> Option<Place<'m>> {
        let order = &self.memtable.order;
        match (&self.place, self.direction) {
            (None, Direction::Forward) => order.first(borrowed(&self.start)),
            (None, Direction::Backward) => order.last(borrowed(&self.end)),
            (Some(before), Direction::Forward) => before.next(),
            (Some(before), Direction::Backward) => before.prev(),
        }
    }

    fn is_inside(&self, key: &[u8]) -> bool {
        match self.direction {
            Direction::Forward => is_below(key, &self.end),
            Direction::Backward => is_above(key, &self.start),
        }
    }

    /// The versions of the next keys: empty if none is visible.
    fn take_batch(&mut self) -> Vec<(Bytes, Version)> {
        let mut records = [None; BATCH_MAX];
        for record in &mut records[..self.batch_keys] {
            let Some(place) = self.next_place() else {
                self.is_complete = true;
                break;
            };
            *record = Some(place.record(&self.memtable.arena));
            self.place = Some(place);
        }
        self.batch_keys = (2 * self.batch_keys).min(BATCH_MAX);
        let mut versions: Vec<(Record<'m>, Seen<'m>)> = Vec::with_capacity(BATCH_MAX);
        let mut len = 0;
        for record in records.into_iter().flatten() {
            if !self.is_inside(record.key()) {
                self.is_complete = true;
                break;
            }
            if let Some(version) = versions::newest(record, self.at) {
                len += record.key().len() + version.inline_value().len();
                versions.push((record, version));
            }
        }
        let mut buffer = Vec::with_capacity(len);
        for (record, version) in &versions {
            buffer.extend_from_slice(record.key());
            buffer.extend_from_slice(version.inline_value());
        }
        let mut rest = Bytes::from(buffer);
        let copied = versions.into_iter().map(|(record, version)| {
            let key = rest.split_to(record.key().len());
            let inline = rest.split_to(version.inline_value().len());
            (key, version.with_value(inline))
        });
        copied.collect()
    }
}

impl Iterator for Range<'_> {
    type Item = (Bytes, Version);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(next) = self.batch.next() {
                return Some(next);
            }
            if self.is_complete {
                return None;
            }
            self.batch = self.take_batch().into_iter();
        }
    }
}

fn borrowed(bound: &Bound<Bytes>) -> Bound<&[u8]> {
    bound.as_ref().map(|key| &key[..])
}

pub(super) fn is_below(key: &[u8], end: &Bound<Bytes>) -> bool {
    match end {
        Bound::Included(end) => key <= &end[..],
        Bound::Excluded(end) => key < &end[..],
        Bound::Unbounded => true,
    }
}

pub(super) fn is_above(key: &[u8], start: &Bound<Bytes>) -> bool {
    match start {
        Bound::Included(start) => key >= &start[..],
        Bound::Excluded(start) => key > &start[..],
        Bound::Unbounded => true,
    }
}
