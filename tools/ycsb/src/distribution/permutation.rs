//! A random order of the numbers below n, without storing it: a Feistel network, walked until the result falls below n.

/// Rounds of the network. Four make it pseudo-random (Luby and Rackoff); two more cost nothing here.
const ROUNDS: u64 = 6;

/// A bijection of 0..n onto itself that depends on a seed. Its first k values are k different numbers, each set alike
/// probable: a sample without repetition in no memory.
#[derive(Clone, Copy, Debug)]
pub struct Permutation {
    items: u64,
    seed: u64,
    half_bits: u32,
}

impl Permutation {
    pub fn new(items: u64, seed: u64) -> Self {
        let bits = 64 - items.saturating_sub(1).leading_zeros();
        Self { items, seed, half_bits: bits.div_ceil(2).max(1) }
    }

    pub fn len(&self) -> u64 {
        self.items
    }

    pub fn is_empty(&self) -> bool {
        self.items == 0
    }

    /// The `index`-th number; `index` must be below n. The network's domain is less than four times n, so the walk ends
    /// after fewer than four steps on average.
    pub fn at(&self, index: u64) -> u64 {
        assert!(index < self.items, "index {index} of a permutation of {}", self.items);
        let mut number = index;
        loop {
            number = self.network(number);
            if number < self.items {
                return number;
            }
        }
    }

    fn network(&self, number: u64) -> u64 {
        let mask = (1u64 << self.half_bits) - 1;
        let (mut left, mut right) = (number >> self.half_bits, number & mask);
        for round in 0..ROUNDS {
            (left, right) =
                (right, left ^ (mix(right ^ self.seed.rotate_left(round as u32 * 8), round) & mask));
        }
        left << self.half_bits | right
    }
}

/// The finalizer of SplitMix64.
fn mix(x: u64, round: u64) -> u64 {
    let x = x.wrapping_add((round + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_number_comes_once(items in 1u64..3000, seed: u64) {
            let permutation = Permutation::new(items, seed);
            let mut seen = vec![false; items as usize];
            for index in 0..items {
                let number = permutation.at(index) as usize;
                prop_assert!(!seen[number]);
                seen[number] = true;
            }
        }
    }

    #[test]
    fn a_sample_is_spread_evenly_and_depends_on_the_seed() {
        let items = 200_000;
        let sample = |seed| -> Vec<u64> {
            let permutation = Permutation::new(items, seed);
            (0..items / 20).map(|i| permutation.at(i)).collect()
        };
        let one = sample(1);
        let mut tenths = [0u32; 10];
        for number in &one {
            tenths[(number * 10 / items) as usize] += 1;
        }
        // 1000 expected in each tenth; six standard deviations.
        assert!(tenths.iter().all(|c| (810..1190).contains(c)), "{tenths:?}");
        assert_eq!(one, sample(1));
        let other: std::collections::BTreeSet<_> = sample(2).into_iter().collect();
        let common = one.iter().filter(|n| other.contains(n)).count();
        assert!((350..650).contains(&common), "{common} of 10000: 500 expected by chance");
    }
}
