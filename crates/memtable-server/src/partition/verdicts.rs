//! Which entries of the log had an effect: what a replica remembers of its own verdicts, for whoever reads the log.
//!
//! Whether an entry fits is decided once, when it is taken in ([`super::ingest`]), by the state that the log before it has made. Nobody
//! judges it a second time: an entry that is not ignored here took effect on every replica, as all decide alike.
//!
//! Invariant: of each entry after `since` that is in the log, the verdict is known.

use std::collections::VecDeque;

use sextant_common::ids::LogPosition;

/// Entries that are ignored are rare: a leader that has just begun may leave a few. If there are more, the oldest are forgotten, and with
/// them what comes before.
const IGNORED_MAX: usize = 4096;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdicts {
    /// The entries after this one were taken in here. (That of index 0 is the first membership, and writes nothing.)
    since: LogPosition,
    /// Those of them that did nothing, in order.
    ignored: VecDeque<LogPosition>,
}

impl Verdicts {
    /// Of a replica that starts from a snapshot of this position.
    pub fn since(since: LogPosition) -> Self {
        Self { since, ignored: VecDeque::new() }
    }

    pub(super) fn ignore(&mut self, at: LogPosition) {
        if self.ignored.len() == IGNORED_MAX
            && let Some(oldest) = self.ignored.pop_front()
        {
            self.since = oldest;
        }
        self.ignored.push_back(at);
    }

    /// Entries from `first` on are gone.
    pub(super) fn truncate_from(&mut self, first: u64) {
        while self.ignored.back().is_some_and(|at| at.index >= first) {
            self.ignored.pop_back();
        }
    }

    /// The position after which they are known.
    pub fn known_after(&self) -> LogPosition {
        self.since
    }

    /// Of an entry after that.
    pub fn is_ignored(&self, index: u64) -> bool {
        self.ignored.binary_search_by_key(&index, |at| at.index).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(index: u64) -> LogPosition {
        LogPosition { term: 1, index }
    }

    #[test]
    fn what_was_cut_off_is_judged_anew() {
        let mut verdicts = Verdicts::since(at(3));
        [5, 8, 9].into_iter().for_each(|index| verdicts.ignore(at(index)));
        verdicts.truncate_from(8);
        let ignored: Vec<u64> = (4..12).filter(|index| verdicts.is_ignored(*index)).collect();
        assert_eq!(ignored, [5]);
        verdicts.ignore(at(9));
        assert!(verdicts.is_ignored(9) && !verdicts.is_ignored(8));
    }

    #[test]
    fn of_what_is_forgotten_nothing_is_said() {
        let mut verdicts = Verdicts::since(at(3));
        (0..IGNORED_MAX as u64 + 2).for_each(|n| verdicts.ignore(at(10 + 2 * n)));
        assert_eq!(verdicts.known_after(), at(12), "the second is the last that was forgotten");
        assert!(verdicts.is_ignored(14) && !verdicts.is_ignored(15));
    }
}
