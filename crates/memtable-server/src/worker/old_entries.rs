//! Which entries are old: the server's log has grown by so many bytes since they were its newest. Of what is flushed some entries are
//! kept for those that lag, by their number; but all partitions share the log's segments, and the entries of one in which little
//! happens must not hold up those of all others.

use std::collections::VecDeque;

/// Marks for the bytes that entries are kept for: so exact is their age.
const MARKS: u64 = 4;

/// Marks in the log of a partition, oldest first.
#[derive(Debug, Default)]
pub(super) struct OldEntries {
    /// Bytes of the server's log since it was opened, and the partition's newest entry then.
    marks: VecDeque<(u64, u64)>,
}

impl OldEntries {
    /// Up to which entry they are older than `kept_bytes`, or by a quarter more; None: none is known to be.
    pub fn up_to(&mut self, log_bytes: u64, newest: u64, kept_bytes: u64) -> Option<u64> {
        let apart = (kept_bytes / MARKS).max(1);
        if self.marks.back().is_none_or(|(at, _)| log_bytes.saturating_sub(*at) >= apart) {
            self.marks.push_back((log_bytes, newest));
        }
        let is_old = |(at, _): &(u64, u64)| log_bytes.saturating_sub(*at) >= kept_bytes;
        // (Of those that are old, the newest says it all.)
        while self.marks.get(1).is_some_and(is_old) {
            self.marks.pop_front();
        }
        // (A log that was truncated since is shorter.)
        self.marks.front().filter(|mark| is_old(mark)).map(|(_, index)| (*index).min(newest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_old_when_the_log_of_all_partitions_has_grown() {
        let mut entries = OldEntries::default();
        assert_eq!(entries.up_to(0, 10, 1000), None);
        assert_eq!(entries.up_to(999, 20, 1000), None);
        assert_eq!(entries.up_to(1000, 20, 1000), Some(10));
        assert_eq!(entries.up_to(1998, 20, 1000), Some(10));
        assert_eq!(entries.up_to(1999, 21, 1000), Some(20));
        // Nothing happens in this one.
        assert_eq!(entries.up_to(9000, 21, 1000), Some(20));
        assert_eq!(entries.up_to(10_000, 21, 1000), Some(21));
    }

    #[test]
    fn few_marks_are_kept_and_none_behind_the_end_of_the_log_counts() {
        let mut entries = OldEntries::default();
        for at in 0..10_000 {
            let old = entries.up_to(10 * at, at, 1000);
            assert!(old.is_none_or(|index| (100..=126).contains(&(at - index))), "{at}: {old:?}");
            assert_eq!(old.is_some(), at >= 100);
            assert!(entries.marks.len() <= 6);
        }
        assert_eq!(entries.up_to(100_000, 7, 1000), Some(7));
    }
}
