//! Numbers for people, and what stands for many.

const KIB: f64 = 1024.0;
const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];

/// The value below which so many per cent of them are; 0 if there are none.
pub fn percentile(values: &[u64], percent: usize) -> u64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied().unwrap_or(0)
}

pub fn median(values: &[u64]) -> u64 {
    percentile(values, 50)
}

/// In the unit that a reader would choose.
pub fn duration(ns: u64) -> String {
    match ns {
        0..1_000_000 => format!("{} us", ns / 1_000),
        1_000_000..10_000_000 => format!("{:.1} ms", ns as f64 / 1e6),
        10_000_000..1_000_000_000 => format!("{} ms", ns / 1_000_000),
        _ => format!("{:.1} s", ns as f64 / 1e9),
    }
}

pub fn bytes(n: u64) -> String {
    let (mut amount, mut unit) = (n as f64, 0);
    while amount >= KIB && unit + 1 < UNITS.len() {
        (amount, unit) = (amount / KIB, unit + 1);
    }
    let digits = usize::from(unit > 0 && amount < 100.0);
    format!("{amount:.digits$} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_values_are_told_by_their_middle_and_their_end() {
        let values: Vec<u64> = (1..=100).rev().collect();
        assert_eq!((median(&values), percentile(&values, 99), percentile(&values, 100)), (50, 99, 100));
        assert_eq!((median(&[7]), percentile(&[7], 99), median(&[])), (7, 7, 0));
    }

    #[test]
    fn numbers_have_the_unit_that_suits_them() {
        let times = [0, 999_999, 1_250_000, 12_345_678, 1_500_000_000].map(duration);
        assert_eq!(times, ["0 us", "999 us", "1.2 ms", "12 ms", "1.5 s"]);
        let sizes = [0, 1023, 1536, 256 << 20, 3 << 30, u64::MAX].map(bytes);
        assert_eq!(sizes, ["0 B", "1023 B", "1.5 KiB", "256 MiB", "3.0 GiB", "16777216 TiB"]);
    }
}
