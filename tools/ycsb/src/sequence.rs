//! The record numbers that inserts take, and up to where the records exist (YCSB's acknowledged counter).

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

/// Shared by the threads of a phase. Numbers below [`Sequence::end`] may be read: their inserts have been answered.
#[derive(Debug)]
pub struct Sequence {
    next: AtomicU64,
    end: AtomicU64,
    /// Answered, but not yet contiguous with `end`: at most one for each thread that is still waiting.
    ahead: Mutex<BTreeSet<u64>>,
    /// Inserts that failed: these records may be missing. Counted as errors when they failed, not again when they are read.
    failed: Mutex<BTreeSet<u64>>,
}

impl Sequence {
    /// Records 0..records exist.
    pub fn new(records: u64) -> Self {
        Self {
            next: AtomicU64::new(records),
            end: AtomicU64::new(records),
            ahead: Mutex::default(),
            failed: Mutex::default(),
        }
    }

    /// The number of a record to insert.
    pub fn take(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// The insert of `number` was answered.
    pub fn settle(&self, number: u64, inserted: bool) {
        if !inserted {
            self.failed.lock().insert(number);
        }
        let mut ahead = self.ahead.lock();
        ahead.insert(number);
        let mut end = self.end.load(Ordering::Relaxed);
        while ahead.remove(&end) {
            end += 1;
        }
        self.end.store(end, Ordering::Release);
    }

    /// All records below were inserted, or tried.
    pub fn end(&self) -> u64 {
        self.end.load(Ordering::Acquire)
    }

    /// Whether the record may be missing because its insert failed.
    pub fn may_be_missing(&self, number: u64) -> bool {
        self.failed.lock().contains(&number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_waits_for_the_oldest_insert() {
        let sequence = Sequence::new(10);
        let taken: Vec<_> = (0..4).map(|_| sequence.take()).collect();
        assert_eq!(taken, [10, 11, 12, 13]);
        sequence.settle(11, true);
        sequence.settle(13, false);
        assert_eq!(sequence.end(), 10, "10 is not answered");
        sequence.settle(10, true);
        assert_eq!(sequence.end(), 12);
        sequence.settle(12, true);
        assert_eq!(sequence.end(), 14);
        assert!(sequence.may_be_missing(13) && !sequence.may_be_missing(12));
    }
}
