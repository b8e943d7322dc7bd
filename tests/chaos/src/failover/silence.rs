//! The longest silence. Pure.

/// The longest time between two successes, from the last one before the fault to the end of the window. `done`: when
/// successes were seen, in any order. All in nanoseconds of one clock.
pub fn longest(done: &[u64], fault: u64, until: u64) -> u64 {
    let before = done.iter().copied().filter(|at| *at <= fault).max().unwrap_or(fault);
    let mut after: Vec<u64> = done.iter().copied().filter(|at| *at > fault && *at <= until).collect();
    after.sort_unstable();
    after.push(until);
    let mut last = before;
    let mut longest = 0;
    for at in after {
        longest = longest.max(at.saturating_sub(last));
        last = at;
    }
    longest
}

/// The value that a share of all values does not exceed; 0 if there are none.
pub fn quantile(values: &[u64], share: f64) -> u64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    let rank = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(rank.max(1) - 1).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silence_is_counted_from_the_last_success_before_the_fault() {
        assert_eq!(longest(&[10, 20, 90, 100], 25, 110), 70);
        assert_eq!(longest(&[100, 90, 20, 10], 25, 110), 70, "in any order");
        // It may begin later, or not end.
        assert_eq!(longest(&[10, 20, 30, 40, 80, 90], 25, 95), 40);
        assert_eq!(longest(&[10, 20], 25, 200), 180);
        assert_eq!(longest(&[], 25, 200), 175);
        assert_eq!(longest(&[20, 300], 25, 200), 180, "what comes after the window does not count");
    }

    #[test]
    fn quantiles_are_values_that_were_measured() {
        let values = [5, 1, 3, 2, 4];
        assert_eq!(quantile(&values, 0.5), 3);
        assert_eq!(quantile(&values, 1.0), 5);
        assert_eq!(quantile(&values, 0.0), 1);
        assert_eq!(quantile(&[], 0.5), 0);
    }
}
