//! How long a pull may wait for news.

use std::time::Duration;

/// A parked pull without any lease to keep is answered after this time.
const PARK_MAX: Duration = Duration::from_millis(100);

/// A pull is answered at the latest when one of the holder's leases is past half its life. `leases`: what is left of each that it
/// has, as it says, and how long one lasts; in nanoseconds.
pub fn park_for(leases: impl Iterator<Item = (u64, u64)>) -> Duration {
    let until_half = leases.map(|(left, lasts)| Duration::from_nanos(left.saturating_sub(lasts / 2)));
    until_half.min().unwrap_or(PARK_MAX).min(PARK_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn the_lease_that_is_past_half_its_life_first_decides() {
        let wait = |leases: &[(u64, u64)]| park_for(leases.iter().copied());
        assert_eq!(wait(&[]), PARK_MAX);
        assert_eq!(wait(&[(90 * MS, 100 * MS), (70 * MS, 100 * MS)]), Duration::from_millis(20));
        assert_eq!(wait(&[(90 * MS, 100 * MS), (0, 100 * MS)]), Duration::ZERO, "it has none any more");
        assert_eq!(wait(&[(900 * MS, 1000 * MS)]), PARK_MAX);
    }
}
