//! Randomness, behind a trait so that a simulation can replay it.

use parking_lot::Mutex;

/// A source of random numbers. Not for secrets.
pub trait Rng: Send + Sync + 'static {
    fn next_u64(&self) -> u64;
}

/// Methods that every source has.
impl dyn Rng {
    /// A number in `0..bound` (0 if the bound is 0).
    pub fn below(&self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64 }
    }

    /// A number in `0.0..1.0`.
    pub fn unit_f64(&self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// 16 random bytes, for ids that are random per process.
    pub fn id16(&self) -> [u8; 16] {
        let mut out = [0; 16];
        out[..8].copy_from_slice(&self.next_u64().to_le_bytes());
        out[8..].copy_from_slice(&self.next_u64().to_le_bytes());
        out
    }

    /// A random id that is not 0.
    pub fn nonzero_u64(&self) -> u64 {
        self.next_u64().max(1)
    }
}

/// A generator with a seed: the same seed gives the same numbers.
#[derive(Debug)]
pub struct SeededRng(Mutex<fastrand::Rng>);

impl SeededRng {
    pub fn new(seed: u64) -> Self {
        Self(Mutex::new(fastrand::Rng::with_seed(seed)))
    }

    /// A generator whose seed the operating system chose.
    #[allow(clippy::disallowed_methods, reason = "the one place where real randomness enters")]
    pub fn from_os() -> Self {
        Self::new(fastrand::Rng::new().u64(..) ^ u64::from(std::process::id()) << 32)
    }
}

impl Rng for SeededRng {
    fn next_u64(&self) -> u64 {
        self.0.lock().u64(..)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_numbers() {
        let numbers = |seed| {
            let rng = SeededRng::new(seed);
            (0..100).map(|_| rng.next_u64()).collect::<Vec<_>>()
        };
        assert_eq!(numbers(3), numbers(3));
        assert_ne!(numbers(3), numbers(4));
        let (a, b): (Box<dyn Rng>, Box<dyn Rng>) =
            (Box::new(SeededRng::from_os()), Box::new(SeededRng::from_os()));
        assert_ne!(a.id16(), b.id16());
    }

    #[test]
    fn numbers_stay_in_their_range_and_fill_it() {
        let rng: Box<dyn Rng> = Box::new(SeededRng::new(1));
        let mut seen = [0u32; 10];
        for _ in 0..10_000 {
            seen[rng.below(10) as usize] += 1;
            assert!((0.0..1.0).contains(&rng.unit_f64()));
            assert_ne!(rng.nonzero_u64(), 0);
        }
        assert!(seen.iter().all(|n| (800..1200).contains(n)), "{seen:?}");
        assert_eq!((rng.below(0), rng.below(1)), (0, 0));
        assert!(rng.below(u64::MAX) < u64::MAX);
    }

    #[test]
    fn the_ends_of_the_source_are_the_ends_of_the_range() {
        struct Constant(u64);
        impl Rng for Constant {
            fn next_u64(&self) -> u64 {
                self.0
            }
        }
        let (low, high): (Box<dyn Rng>, Box<dyn Rng>) = (Box::new(Constant(0)), Box::new(Constant(u64::MAX)));
        assert_eq!((low.below(7), high.below(7)), (0, 6));
        assert_eq!((low.nonzero_u64(), low.unit_f64()), (1, 0.0));
        assert!(high.unit_f64() < 1.0);
    }
}
