//! Whether times far in the future are wrong, or the clock here is. Pure: what time it is where logs are read goes in, and what
//! is to be believed comes out.
//!
//! Invariant: no time is taken for none, unless at least half of those who lead the partitions have about the time that it is here, or
//! an earlier one. Of two clocks nobody knows which one is wrong.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use sextant_common::archive::LogPage;
use sextant_common::error::{Error, Result};
use sextant_common::ids::PartitionId;

use super::AHEAD_MS_MAX;
use crate::repository::Repository;

/// By so much leaders' clocks may be ahead of one that is right. (Far less than what is taken for no time: an answer takes a while.)
const BEHIND_MS_MAX: u64 = AHEAD_MS_MAX / 2;
const MS_NS: u64 = 1_000_000;
/// Times that may be wrong come again within this, and twice the time between marks, or it is another doubt.
const DOUBT_NS: u64 = 60_000_000_000;

/// A page may be read so many times later than it was made as what clocks are ahead by at most, and the next one at once.
const FORGOTTEN: u64 = 8;

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
#[derive(Debug)]
pub struct Clocks {
    partitions: usize,
    doubt_ns: u64,
    said: BTreeMap<PartitionId, (u64, u64)>,
    /// The same of the page of each partition that was furthest ahead of the clock here: one that waited while others were written is not.
    furthest: BTreeMap<PartitionId, (u64, u64)>,
    /// Since when, and when last, there were times that may be wrong (holder's clock): what was said before does not tell. The machine
    /// here may have stood still since, and all of its clocks.
    doubt: Option<(u64, u64)>,
}

impl Clocks {
    /// `every`: how often marks are written, which may be wrong.
    pub fn of(partitions: u32, every: Duration) -> Arc<Mutex<Self>> {
        let every_ns = u64::try_from(every.as_nanos()).unwrap_or(u64::MAX);
        let doubt_ns = every_ns.saturating_mul(2).saturating_add(DOUBT_NS);
        let clocks = Self {
            partitions: partitions as usize,
            doubt_ns,
            said: BTreeMap::new(),
            furthest: BTreeMap::new(),
            doubt: None,
        };
        Arc::new(Mutex::new(clocks))
    }

    pub fn hear(&mut self, partition: PartitionId, page: &LogPage, at: Time) {
        // (An older server says it only where nothing comes next.)
        let said_ms = page.now_ms.max(page.complete_until_ms);
        if said_ms == 0 {
            return;
        }
        // What somebody's clock has gained since, the one here may have lost, while all of this machine stood still. (A clock that was
        // ahead once, and is no longer, is forgotten in time.)
        let passed_ms = |read_ns: u64| at.holder_ns.saturating_sub(read_ns) / MS_NS;
        let expected_ms = self.furthest.get(&partition).map(|(before_ms, read_ns)| {
            before_ms.saturating_add(passed_ms(*read_ns) - passed_ms(*read_ns) / FORGOTTEN)
        });
        let last_ms = self.said.get(&partition).map(|(ms, read_ns)| ms.saturating_add(passed_ms(*read_ns)));
        if expected_ms.max(last_ms).is_some_and(|ms| said_ms.saturating_sub(ms) > BEHIND_MS_MAX) {
            self.said.clear();
            self.furthest.clear();
            self.doubt = None;
        }
        if expected_ms.is_none_or(|expected_ms| said_ms >= expected_ms) {
            self.furthest.insert(partition, (said_ms, at.holder_ns));
        }
        self.said.insert(partition, (said_ms, at.holder_ns));
    }

    /// At least half of all leaders are ahead of the time here by no more. None: too few have said anything.
    fn behind_ms(&mut self, here: Time) -> Option<u64> {
        let now_ns = here.holder_ns;
        let since_ns = match self.doubt {
            Some((since_ns, last_ns)) if now_ns.saturating_sub(last_ns) < self.doubt_ns => since_ns,
            _ => now_ns,
        };
        self.doubt = Some((since_ns, now_ns));
        let passed_ms = |read_ns: u64| now_ns.saturating_sub(read_ns) / MS_NS;
        let said = self.said.values().filter(|(_, read_ns)| *read_ns >= since_ns);
        let mut ahead: Vec<u64> = said
            .map(|(said_ms, read_ns)| said_ms.saturating_add(passed_ms(*read_ns)).saturating_sub(here.ms))
            .collect();
        ahead.sort_unstable();
        ahead.get(self.partitions.saturating_sub(1) / 2).copied()
    }
}

/// The time here, and who knows how good it is.
#[derive(Clone, Debug)]
pub struct Now {
    here: Time,
    /// None: nobody has to.
    clocks: Option<Arc<Mutex<Clocks>>>,
}

impl Now {
    /// No time is later than it can be.
    pub const NEVER: Self = Self { here: Time { ms: u64::MAX, holder_ns: 0 }, clocks: None };

    pub fn new(here: Time, clocks: &Arc<Mutex<Clocks>>) -> Self {
        Self { here, clocks: Some(clocks.clone()) }
    }

    pub fn ms(&self) -> u64 {
        self.here.ms
    }

    /// Far in the future by the clock here.
    pub fn is_odd(&self, ms: u64) -> bool {
        ms > self.here.limit_ms()
    }

    /// Before a time that is odd is taken for none.
    pub fn check(&self) -> Result<()> {
        let Some(clocks) = &self.clocks else { return Ok(()) };
        match clocks.lock().behind_ms(self.here) {
            Some(behind_ms) if behind_ms <= BEHIND_MS_MAX => Ok(()),
            Some(behind_ms) => {
                let seconds = behind_ms.saturating_add(500) / 1000;
                Err(Error::retry(format!("the clock here is {seconds} s behind the leaders'")))
            }
            None => Err(Error::retry(
                "there are times far in the future by the clock here, and too few leaders have said what time it is",
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
        let clocks = Clocks::of(1, Duration::ZERO);
        hear(&clocks, 0, ms.saturating_add(behind_ms), 0);
        Now::new(time(ms, 0), &clocks)
    }

    fn hear(clocks: &Mutex<Clocks>, partition: u32, now_ms: u64, seconds: u64) {
        let page = LogPage { now_ms, ..LogPage::default() };
        clocks.lock().hear(PartitionId(partition), &page, time(0, seconds));
    }

    /// Leaders that are ahead by so much each, of so many partitions.
    fn leaders(ahead_ms: &[u64], partitions: u32) -> Result<()> {
        let clocks = Clocks::of(partitions, Duration::ZERO);
        ahead_ms
            .iter()
            .zip(0..)
            .for_each(|(ms, partition)| hear(&clocks, partition, NOW.saturating_add(*ms), 0));
        Now::new(time(NOW, 0), &clocks).check()
    }

    #[test]
    fn the_clock_here_is_right_if_half_of_the_leaders_are_not_ahead_of_it() {
        let all = |ahead: &[u64]| leaders(ahead, ahead.len() as u32);
        for good in
            [&[0][..], &[BEHIND_MS_MAX], &[0, u64::MAX], &[10 * MINUTE, 0, 5], &[u64::MAX, 9, u64::MAX, 9]]
        {
            all(good).unwrap();
        }
        for bad in [&[10 * MINUTE][..], &[BEHIND_MS_MAX + 1], &[10 * MINUTE, 10 * MINUTE, 0]] {
            all(bad).unwrap_err();
        }
        let told = all(&[10 * MINUTE - 400; 3]).unwrap_err();
        assert_eq!(&*told.message, "the clock here is 600 s behind the leaders'");
        assert!(leaders(&[], 1).unwrap_err().message.contains("too few leaders have said"));
        // The first one that is heard may be on this very machine.
        assert!(leaders(&[0, 10 * MINUTE], 8).unwrap_err().message.contains("too few leaders have said"));
        leaders(&[0, 10 * MINUTE, 0, 10 * MINUTE, 0, 0], 8).unwrap();
    }

    #[test]
    fn a_leader_that_is_behind_tells_nothing_against_the_clock_here() {
        let clocks = Clocks::of(1, Duration::ZERO);
        hear(&clocks, 0, NOW - 10 * MINUTE, 0);
        Now::new(time(NOW, 0), &clocks).check().unwrap();
    }

    #[test]
    fn what_was_said_last_counts_and_goes_on_with_the_time_however_the_clock_here_is_set() {
        let clocks = Clocks::of(1, Duration::ZERO);
        let check = |ms, seconds| Now::new(time(ms, seconds), &clocks).check();
        hear(&clocks, 0, u64::MAX, 0);
        hear(&clocks, 0, NOW, 0);
        check(NOW, 0).unwrap();
        check(NOW + MINUTE / 2, 30).unwrap();
        let told = check(NOW - 10 * MINUTE, 60).unwrap_err();
        assert_eq!(&*told.message, "the clock here is 660 s behind the leaders'");
        // A page of an older server, which does not say it, changes nothing; one that is complete says it, too.
        hear(&clocks, 0, 0, 61);
        check(NOW + MINUTE, 61).unwrap();
        let complete = LogPage { complete_until_ms: NOW + 10 * MINUTE, ..LogPage::default() };
        clocks.lock().hear(PartitionId(0), &complete, time(NOW, 62));
        check(NOW, 62).unwrap_err();
    }

    #[test]
    fn what_was_said_before_there_was_a_doubt_does_not_count() {
        let clocks = Clocks::of(2, Duration::ZERO);
        let check = |ms, seconds| Now::new(time(ms, seconds), &clocks).check();
        (0..2).for_each(|partition| hear(&clocks, partition, NOW, 0));
        // The machine has stood still, and its clocks; only the first page since says so.
        hear(&clocks, 0, NOW + 10 * MINUTE, 1);
        check(NOW, 1).unwrap_err();
        hear(&clocks, 1, NOW + 10 * MINUTE, 2);
        check(NOW, 2).unwrap_err();
        check(NOW + 10 * MINUTE, 3).unwrap();
    }

    #[test]
    fn a_machine_that_stood_still_in_the_middle_of_a_doubt_begins_another_one() {
        let clocks = Clocks::of(4, Duration::ZERO);
        let check = |ms, seconds| Now::new(time(ms, seconds), &clocks).check();
        (0..4).for_each(|partition| {
            hear(&clocks, partition, NOW + if partition == 0 { 60 * MINUTE } else { 0 }, 0)
        });
        check(NOW, 0).unwrap();
        check(NOW, 30).unwrap();
        // Ten minutes that nobody here has seen.
        hear(&clocks, 1, NOW + 10 * MINUTE + 31_000, 31);
        check(NOW + 31_000, 31).unwrap_err();
        hear(&clocks, 2, NOW + 10 * MINUTE + 32_000, 32);
        let told = check(NOW + 32_000, 32).unwrap_err();
        assert_eq!(&*told.message, "the clock here is 600 s behind the leaders'");
    }

    #[test]
    fn pages_that_waited_while_one_was_written_say_nothing_of_the_machine() {
        let clocks = Clocks::of(4, Duration::ZERO);
        let check = |ms, seconds| Now::new(time(ms, seconds), &clocks).check();
        hear(&clocks, 0, NOW, 0);
        hear(&clocks, 1, NOW + 100_000, 100);
        // Made at once, and read when the one before it had been written.
        hear(&clocks, 0, NOW + 1_000, 100);
        hear(&clocks, 0, NOW + 100_000, 100);
        check(NOW + 100_000, 100).unwrap();
        // But then nobody here has seen ten minutes.
        hear(&clocks, 0, NOW + 10 * MINUTE + 101_000, 101);
        check(NOW + 101_000, 101).unwrap_err();
    }

    #[test]
    fn what_is_looked_at_seldom_is_one_doubt() {
        let clocks = Clocks::of(1, Duration::from_secs(300));
        hear(&clocks, 0, NOW, 0);
        Now::new(time(NOW, 0), &clocks).check().unwrap();
        Now::new(time(NOW + 5 * MINUTE, 300), &clocks).check().unwrap();
    }

    #[test]
    fn a_time_is_odd_if_it_is_later_than_clocks_differ() {
        let now = now(NOW, 0);
        assert!(!now.is_odd(NOW + AHEAD_MS_MAX) && now.is_odd(NOW + AHEAD_MS_MAX + 1));
        assert!(!Now::NEVER.is_odd(u64::MAX));
    }
}
