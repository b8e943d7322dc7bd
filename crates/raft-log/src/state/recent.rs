//! The newest entries of a partition, in memory: all that are queued, and as many written ones as the budget allows.

use std::collections::VecDeque;

use openraft::EntryPayload;

use crate::types::Entry;

/// What an entry costs beside its payload.
const ENTRY_OVERHEAD_BYTES: u64 = std::mem::size_of::<Entry>() as u64;

#[derive(Debug)]
pub(crate) struct Recent {
    /// Consecutive, and up to the end of the log.
    entries: VecDeque<Entry>,
    bytes: u64,
    bytes_max: u64,
}

impl Recent {
    pub fn new(bytes_max: u64) -> Self {
        Self { entries: VecDeque::new(), bytes: 0, bytes_max }
    }

    pub fn push(&mut self, entry: Entry) {
        self.bytes += cost(&entry);
        self.entries.push_back(entry);
    }

    /// Index of the oldest entry that is here.
    pub fn first(&self) -> Option<u64> {
        self.entries.front().map(|entry| entry.log_id.index)
    }

    pub fn get(&self, index: u64) -> Option<&Entry> {
        self.entries.get(index.checked_sub(self.first()?)? as usize)
    }

    /// Removes the entries from `end` on.
    pub fn truncate(&mut self, end: u64) {
        while self.entries.back().is_some_and(|entry| entry.log_id.index >= end) {
            self.bytes -= self.entries.pop_back().as_ref().map_or(0, cost);
        }
    }

    /// Removes the entries up to and including `upto`.
    pub fn purge(&mut self, upto: u64) {
        while self.entries.front().is_some_and(|entry| entry.log_id.index <= upto) {
            self.pop_front();
        }
    }

    /// Removes the oldest entries while there are too many bytes, as long as `is_written` says yes.
    pub fn evict(&mut self, is_written: impl Fn(u64) -> bool) {
        while self.bytes > self.bytes_max
            && self.entries.front().is_some_and(|entry| is_written(entry.log_id.index))
        {
            self.pop_front();
        }
    }

    fn pop_front(&mut self) {
        self.bytes -= self.entries.pop_front().as_ref().map_or(0, cost);
    }
}

fn cost(entry: &Entry) -> u64 {
    ENTRY_OVERHEAD_BYTES
        + match &entry.payload {
            EntryPayload::Normal(payload) => payload.0.len() as u64,
            _ => 0,
        }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{Payload, log_id};

    fn entry(index: u64) -> Entry {
        Entry { log_id: log_id(1, index), payload: EntryPayload::Normal(Payload(vec![0; 1000].into())) }
    }

    #[test]
    fn written_entries_go_first_and_queued_ones_stay() {
        let mut recent = Recent::new(2500);
        (1..=6).for_each(|i| recent.push(entry(i)));
        recent.evict(|index| index <= 2);
        assert_eq!(recent.first(), Some(3));
        recent.evict(|_| true);
        assert_eq!(recent.first(), Some(5));
        assert_eq!(
            (recent.get(4).is_none(), recent.get(6).is_some(), recent.get(7).is_none()),
            (true, true, true)
        );
        recent.truncate(6);
        recent.purge(5);
        assert_eq!((recent.first(), recent.bytes), (None, 0));
    }
}
