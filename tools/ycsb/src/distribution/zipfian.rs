//! YCSB's zipfian generator: the rejection-free method of Gray et al., "Quickly generating billion-record synthetic
//! databases" (SIGMOD 1994).

/// Numbers 0, 1, 2 ... with probabilities proportional to 1 / (number + 1)^theta.
#[derive(Clone, Debug)]
pub struct Zipfian {
    items: u64,
    theta: f64,
    zeta: f64,
    alpha: f64,
    eta: f64,
    half_to_theta: f64,
}

/// Terms that [`zeta`] sums one by one; the rest is an integral with its corrections, exact to 13 digits from here on.
const ZETA_TERMS_SUMMED: u64 = 10_000;

/// The generalised harmonic number: the sum of 1 / i^theta for i in 1..=items.
pub fn zeta(items: u64, theta: f64) -> f64 {
    zeta_range(0, items, theta)
}

/// The sum of 1 / i^theta for i in after+1..=upto.
fn zeta_range(after: u64, upto: u64, theta: f64) -> f64 {
    let summed_upto = upto.min(after.max(ZETA_TERMS_SUMMED));
    let mut sum: f64 = (after + 1..=summed_upto).map(|i| (i as f64).powf(-theta)).sum();
    if summed_upto < upto {
        // Euler-Maclaurin for the sum over summed_upto < i <= upto.
        let (a, b) = (summed_upto as f64, upto as f64);
        let integral = (b.powf(1.0 - theta) - a.powf(1.0 - theta)) / (1.0 - theta);
        let ends = (b.powf(-theta) - a.powf(-theta)) / 2.0;
        let slopes = -theta * (b.powf(-theta - 1.0) - a.powf(-theta - 1.0)) / 12.0;
        sum += integral + ends + slopes;
    }
    sum
}

impl Zipfian {
    /// `items` at least 1, `theta` in 0.0 < theta < 1.0.
    pub fn new(items: u64, theta: f64) -> Self {
        Self::with_zeta(items, theta, zeta(items, theta))
    }

    pub fn with_zeta(items: u64, theta: f64, zeta: f64) -> Self {
        let mut zipfian = Self {
            items,
            theta,
            zeta,
            alpha: 1.0 / (1.0 - theta),
            eta: 0.0,
            half_to_theta: 0.5f64.powf(theta),
        };
        zipfian.eta = zipfian.eta();
        zipfian
    }

    fn eta(&self) -> f64 {
        let zeta_of_2 = 1.0 + self.half_to_theta;
        (1.0 - (2.0 / self.items as f64).powf(1.0 - self.theta)) / (1.0 - zeta_of_2 / self.zeta)
    }

    /// More items: only the new terms of zeta are computed. Fewer are ignored.
    pub fn grow(&mut self, items: u64) {
        if items > self.items {
            self.zeta += zeta_range(self.items, items, self.theta);
            self.items = items;
            self.eta = self.eta();
        }
    }

    /// A number in 0..items.
    pub fn next(&self, rng: &mut fastrand::Rng) -> u64 {
        let u = rng.f64();
        let uz = u * self.zeta;
        let number = if uz < 1.0 {
            0
        } else if uz < 1.0 + self.half_to_theta {
            1
        } else {
            (self.items as f64 * (self.eta * u - self.eta + 1.0).powf(self.alpha)) as u64
        };
        number.min(self.items - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeta_agrees_with_ycsb_s_constant() {
        let computed = zeta(10_000_000_000, 0.99);
        assert!((computed - 26.469_028_201_783_02).abs() < 1e-9, "{computed}");
    }

    #[test]
    fn zeta_agrees_with_plain_summation() {
        for theta in [0.1, 0.5, 0.99] {
            let plain: f64 = (1..=100_000u64).map(|i| (i as f64).powf(-theta)).sum();
            assert!((zeta(100_000, theta) / plain - 1.0).abs() < 1e-12, "theta {theta}");
        }
    }

    #[test]
    fn growing_is_the_same_as_starting_large() {
        let mut grown = Zipfian::new(10, 0.99);
        for items in [11, 500, 20_000, 1_000_000] {
            grown.grow(items);
        }
        let fresh = Zipfian::new(1_000_000, 0.99);
        assert!((grown.zeta / fresh.zeta - 1.0).abs() < 1e-12);
        assert!((grown.eta / fresh.eta - 1.0).abs() < 1e-12);
    }

    #[test]
    fn frequencies_follow_the_law() {
        let (items, draws) = (1000, 1_000_000);
        let zipfian = Zipfian::new(items, 0.99);
        let mut rng = fastrand::Rng::with_seed(5);
        let mut counts = vec![0u32; items as usize];
        for _ in 0..draws {
            counts[zipfian.next(&mut rng) as usize] += 1;
        }
        for rank in [0usize, 1] {
            let expected = ((rank + 1) as f64).powf(-0.99) / zeta(items, 0.99);
            let share = f64::from(counts[rank]) / f64::from(draws);
            assert!((share / expected - 1.0).abs() < 0.02, "rank {rank}: {share} instead of {expected}");
        }
        // The method is exact for the first two and approximate beyond: sums over ranges are what it gets right.
        let top_100: u32 = counts[..100].iter().sum();
        let expected = zeta(100, 0.99) / zeta(items, 0.99);
        assert!((f64::from(top_100) / f64::from(draws) / expected - 1.0).abs() < 0.02);
    }

    #[test]
    fn a_single_item_is_always_chosen() {
        let zipfian = Zipfian::new(1, 0.99);
        let mut rng = fastrand::Rng::with_seed(1);
        assert!((0..1000).all(|_| zipfian.next(&mut rng) == 0));
    }
}
