//! Which record is next: YCSB's generators.
//!
//! Owns: the distributions and nothing else. Each thread has a generator and a random source of its own, seeded from the
//! run's seed and the thread's index, so that a run can be repeated.

mod permutation;
mod zipfian;

use serde::{Deserialize, Serialize};

use crate::keys::fnv_hash64;

pub use permutation::Permutation;
pub use zipfian::{Zipfian, zeta};

/// Number of items that YCSB's scrambled zipfian draws from before it folds them onto the records.
const SCRAMBLED_ITEMS: u64 = 10_000_000_000;
/// YCSB's zeta(10^10, 0.99).
const SCRAMBLED_ZETA_99: f64 = 26.469_028_201_783_02;
/// YCSB's skew.
pub const THETA_DEFAULT: f64 = 0.99;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Distribution {
    /// Every record alike.
    Uniform,
    /// A few records are hot, spread over the whole keyspace (YCSB's scrambled zipfian).
    Zipfian,
    /// The newest records are hot.
    Latest,
}

/// Chooses record numbers for one thread.
#[derive(Clone, Debug)]
pub struct Chooser(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Uniform,
    /// Folds onto `items`, and draws again what does not exist yet.
    Scrambled {
        zipfian: Zipfian,
        items: u64,
    },
    Latest(Zipfian),
}

impl Chooser {
    /// `records` exist; `expected_inserts` more may come while the phase runs.
    pub fn new(distribution: Distribution, theta: f64, records: u64, expected_inserts: u64) -> Self {
        Self(match distribution {
            Distribution::Uniform => Kind::Uniform,
            Distribution::Zipfian => {
                let zeta =
                    if theta == THETA_DEFAULT { SCRAMBLED_ZETA_99 } else { zeta(SCRAMBLED_ITEMS, theta) };
                let zipfian = Zipfian::with_zeta(SCRAMBLED_ITEMS, theta, zeta);
                // YCSB leaves room for twice the inserts that it expects.
                Kind::Scrambled { zipfian, items: records + 2 * expected_inserts }
            }
            Distribution::Latest => Kind::Latest(Zipfian::new(records.max(1), theta)),
        })
    }

    /// The number of an existing record: below `end`, which must not be 0 and must not fall.
    pub fn next(&mut self, rng: &mut fastrand::Rng, end: u64) -> u64 {
        match &mut self.0 {
            Kind::Uniform => rng.u64(..end),
            Kind::Scrambled { zipfian, items } => loop {
                let number = fnv_hash64(zipfian.next(rng)) % (*items).max(end);
                if number < end {
                    return number;
                }
            },
            Kind::Latest(zipfian) => {
                zipfian.grow(end);
                end - 1 - zipfian.next(rng)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draw(distribution: Distribution, records: u64, draws: usize, seed: u64) -> Vec<u64> {
        let mut chooser = Chooser::new(distribution, THETA_DEFAULT, records, 0);
        let mut rng = fastrand::Rng::with_seed(seed);
        (0..draws).map(|_| chooser.next(&mut rng, records)).collect()
    }

    fn share_of(numbers: &[u64], number: u64) -> f64 {
        numbers.iter().filter(|n| **n == number).count() as f64 / numbers.len() as f64
    }

    #[test]
    fn all_stay_within_the_records_and_repeat_with_their_seed() {
        for distribution in [Distribution::Uniform, Distribution::Zipfian, Distribution::Latest] {
            for records in [1, 2, 3, 1000] {
                let numbers = draw(distribution, records, 10_000, 7);
                assert!(numbers.iter().all(|n| *n < records), "{distribution:?} of {records}");
                assert_eq!(numbers, draw(distribution, records, 10_000, 7));
            }
            assert_ne!(draw(distribution, 1000, 100, 7), draw(distribution, 1000, 100, 8));
        }
    }

    #[test]
    fn uniform_is_flat() {
        let mut counts = [0u32; 100];
        for n in draw(Distribution::Uniform, 100, 100_000, 1) {
            counts[n as usize] += 1;
        }
        // 1000 expected each; six standard deviations.
        assert!(counts.iter().all(|c| (810..1190).contains(c)), "{counts:?}");
    }

    #[test]
    fn the_hottest_record_of_the_scrambled_zipfian_is_as_hot_as_in_ycsb() {
        // Item 0 of 10^10 has probability 1 / zeta = 3.78 %, and lands where its hash falls.
        let records = 200_000;
        let numbers = draw(Distribution::Zipfian, records, 400_000, 1);
        let share = share_of(&numbers, fnv_hash64(0) % records);
        assert!((0.0370..0.0390).contains(&share), "{share}");
        let second = share_of(&numbers, fnv_hash64(1) % records);
        assert!((0.0180..0.0204).contains(&second), "{second}: 1 / (zeta * 2^0.99) = 1.90 %");
    }

    #[test]
    fn latest_prefers_the_newest_and_follows_the_inserts() {
        let records = 10_000;
        let numbers = draw(Distribution::Latest, records, 200_000, 1);
        let expected = 1.0 / zeta(records, THETA_DEFAULT);
        let share = share_of(&numbers, records - 1);
        assert!((share / expected - 1.0).abs() < 0.05, "{share} instead of {expected}");

        let mut chooser = Chooser::new(Distribution::Latest, THETA_DEFAULT, records, 100);
        let mut rng = fastrand::Rng::with_seed(2);
        let after: Vec<_> = (0..50_000).map(|_| chooser.next(&mut rng, records + 100)).collect();
        assert!(after.iter().all(|n| *n < records + 100));
        assert!(share_of(&after, records + 99) > 0.08, "the newest is the hottest");
    }

    #[test]
    fn records_that_do_not_exist_yet_are_not_chosen() {
        let mut chooser = Chooser::new(Distribution::Zipfian, THETA_DEFAULT, 1000, 500);
        let mut rng = fastrand::Rng::with_seed(3);
        let before: Vec<_> = (0..20_000).map(|_| chooser.next(&mut rng, 1000)).collect();
        assert!(before.iter().all(|n| *n < 1000));
        let after: Vec<_> = (0..20_000).map(|_| chooser.next(&mut rng, 1500)).collect();
        assert!(after.iter().any(|n| *n >= 1000), "inserted records are read too");
    }
}
