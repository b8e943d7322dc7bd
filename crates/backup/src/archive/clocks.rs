//! Whether times far in the future are wrong, or the clock here is. Pure: what time it is where logs are read goes in, and what
//! is to be believed comes out.
//!
//! Invariant: no time is taken for none, unless at least half of those who lead the partitions have about the time that it is here, or
//! an earlier one. Of two clocks nobody knows which one is wrong.

use std::collections::BTreeMap;

use sextant_common::archive::LogPage;
use sextant_common::error::{Error, Result};
use sextant_common::ids::PartitionId;

use super::AHEAD_MS_MAX;
use crate::repository::Repository;

/// By so much leaders' clocks may be ahead of one that is right. (Far less than what is taken for no time: an answer takes a while.)
const BEHIND_MS_MAX: u64 = AHEAD_MS_MAX / 2;
const MS_NS: u64 = 1_000_000;

/// By the clocks here.
#[derive(Clone, Copy, Debug)]
pub struct Time {
    /// Since 1970. May be wrong, and be set meanwhile.
    pub ms: u64,
    /// Only goes on.
    pub holder_ns: u64,
}

impl Time {
    pub fn of(repository: &Repository) -> Self {
        let clock = &repository.env.clock;
        Self { ms: clock.wall_guess_ns() / MS_NS, holder_ns: clock.holder_ns() }
    }

    /// Times that are later are none, if the clock here is right.
    pub fn limit_ms(&self) -> u64 {
        self.ms.saturating_add(AHEAD_MS_MAX)
    }
}

/// What time it was where the log of each partition was read last, and when that was.
#[derive(Debug, Default)]
pub struct Clocks(BTreeMap<PartitionId, (u64, u64)>);

impl Clocks {
    pub fn hear(&mut self, partition: PartitionId, page: &LogPage, at: Time) {
        // (An older server says it only where nothing comes next.)
        let said_ms = page.now_ms.max(page.complete_until_ms);
        if said_ms > 0 {
            self.0.insert(partition, (said_ms, at.holder_ns));
        }
    }

    pub fn now(&self, here: Time) -> Now {
        let passed_ms = |read_ns: u64| here.holder_ns.saturating_sub(read_ns) / MS_NS;
        let there_ms = |(said_ms, read_ns): &(u64, u64)| said_ms.saturating_add(passed_ms(*read_ns));
        let mut ahead: Vec<u64> =
            self.0.values().map(|read| there_ms(read).saturating_sub(here.ms)).collect();
        ahead.sort_unstable();
        let half = ahead.len().saturating_sub(1) / 2;
        Now { ms: here.ms, limit_ms: here.limit_ms(), behind_ms: ahead.get(half).copied() }
    }
}

/// The time here, and what is known of how good it is.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    pub ms: u64,
    limit_ms: u64,
    /// At least half of the leaders are ahead of it by no more. None: nobody has said anything.
    behind_ms: Option<u64>,
}

impl Now {
    /// No time is later than it can be.
    pub const NEVER: Self = Self { ms: u64::MAX, limit_ms: u64::MAX, behind_ms: None };

    /// Far in the future by the clock here.
    pub fn is_odd(&self, ms: u64) -> bool {
        ms > self.limit_ms
    }

    /// Before a time that is odd is taken for none.
    pub fn check(&self) -> Result<()> {
        match self.behind_ms {
            Some(behind_ms) if behind_ms <= BEHIND_MS_MAX => Ok(()),
            Some(behind_ms) => {
                let seconds = behind_ms.saturating_add(500) / 1000;
                Err(Error::retry(format!("the clock here is {seconds} s behind the leaders'")))
            }
            None => Err(Error::retry(
                "there are times far in the future by the clock here, and no leader has said what time it is",
            )),
        }
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    const NOW: u64 = 1_795_000_000_000;
    const MINUTE: u64 = 60_000;

    fn time(ms: u64, seconds: u64) -> Time {
        Time { ms, holder_ns: seconds * 1_000_000_000 }
    }

    /// Where a leader is ahead by so much.
    pub fn now(ms: u64, behind_ms: u64) -> Now {
        let mut clocks = Clocks::default();
        hear(&mut clocks, 0, ms.saturating_add(behind_ms));
        clocks.now(time(ms, 0))
    }

    fn hear(clocks: &mut Clocks, partition: u32, now_ms: u64) {
        clocks.hear(PartitionId(partition), &LogPage { now_ms, ..LogPage::default() }, time(0, 0));
    }

    /// Leaders that are ahead by so much each.
    fn leaders(ahead_ms: &[u64]) -> Result<()> {
        let mut clocks = Clocks::default();
        ahead_ms
            .iter()
            .zip(0..)
            .for_each(|(ms, partition)| hear(&mut clocks, partition, NOW.saturating_add(*ms)));
        clocks.now(time(NOW, 0)).check()
    }

    #[test]
    fn the_clock_here_is_right_if_half_of_the_leaders_are_not_ahead_of_it() {
        for good in
            [&[0][..], &[BEHIND_MS_MAX], &[0, u64::MAX], &[10 * MINUTE, 0, 5], &[u64::MAX, 9, u64::MAX, 9]]
        {
            leaders(good).unwrap();
        }
        for bad in [&[10 * MINUTE][..], &[BEHIND_MS_MAX + 1], &[10 * MINUTE, 10 * MINUTE, 0]] {
            leaders(bad).unwrap_err();
        }
        let told = leaders(&[10 * MINUTE - 400; 3]).unwrap_err();
        assert_eq!(&*told.message, "the clock here is 600 s behind the leaders'");
        assert!(leaders(&[]).unwrap_err().message.contains("no leader has said"));
    }

    #[test]
    fn a_leader_that_is_behind_tells_nothing_against_the_clock_here() {
        let mut clocks = Clocks::default();
        hear(&mut clocks, 0, NOW - 10 * MINUTE);
        clocks.now(time(NOW, 0)).check().unwrap();
    }

    #[test]
    fn what_was_said_last_counts_and_goes_on_with_the_time_however_the_clock_here_is_set() {
        let mut clocks = Clocks::default();
        hear(&mut clocks, 0, u64::MAX);
        hear(&mut clocks, 0, NOW);
        clocks.now(time(NOW + 20 * MINUTE, 1200)).check().unwrap();
        let told = clocks.now(time(NOW + 10 * MINUTE, 1200)).check().unwrap_err();
        assert_eq!(&*told.message, "the clock here is 600 s behind the leaders'");
        // A page of an older server, which does not say it, changes nothing; one that is complete says it, too.
        hear(&mut clocks, 0, 0);
        clocks.now(time(NOW, 0)).check().unwrap();
        let complete = LogPage { complete_until_ms: NOW + 10 * MINUTE, ..LogPage::default() };
        clocks.hear(PartitionId(0), &complete, time(NOW, 0));
        clocks.now(time(NOW, 0)).check().unwrap_err();
    }

    #[test]
    fn a_time_is_odd_if_it_is_later_than_clocks_differ() {
        let now = now(NOW, 0);
        assert!(!now.is_odd(NOW + AHEAD_MS_MAX) && now.is_odd(NOW + AHEAD_MS_MAX + 1));
        assert!(!Now::NEVER.is_odd(u64::MAX));
    }
}
