//! How long things took: a histogram that many threads add to without a lock.
//!
//! Owns the buckets, which are the same for everything that clients and servers wait for, so that figures of different servers can be
//! added up and laid beside each other. Their bounds double from 4.1 us to 17.2 s; an observation costs two atomic additions,
//! many equal ones no more.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::encoding::{EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::{MetricType, TypedMetric};

/// The first bucket holds what took up to 2^12 ns.
const FIRST_BITS: u32 = 12;
/// The last one with a bound: up to 2^34 ns.
const BOUNDED: usize = 23;

/// See the module's head. Cheap to clone: clones are the same histogram.
#[derive(Clone, Default)]
pub struct Latencies(Arc<Counts>);

#[derive(Default)]
struct Counts {
    /// The last one: beyond all bounds.
    buckets: [AtomicU64; BOUNDED + 1],
    sum_ns: AtomicU64,
}

impl Latencies {
    #[inline]
    pub fn observe_ns(&self, took_ns: u64) {
        self.observe_many_ns(took_ns, 1);
    }

    /// `times`: things that took as long each.
    #[inline]
    pub fn observe_many_ns(&self, took_ns: u64, times: u64) {
        self.0.buckets[bucket(took_ns)].fetch_add(times, Ordering::Relaxed);
        self.0.sum_ns.fetch_add(took_ns.saturating_mul(times), Ordering::Relaxed);
    }

    /// How long all of them took together.
    pub fn sum_ns(&self) -> u64 {
        self.0.sum_ns.load(Ordering::Relaxed)
    }

    /// How many were observed.
    pub fn count(&self) -> u64 {
        self.0.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed)).sum()
    }
}

/// The bucket of what took so long: the first whose bound is not less.
fn bucket(took_ns: u64) -> usize {
    let bits = u64::BITS - took_ns.saturating_sub(1).leading_zeros();
    (bits.saturating_sub(FIRST_BITS) as usize).min(BOUNDED)
}

/// In seconds.
fn bound(bucket: usize) -> f64 {
    match bucket {
        BOUNDED.. => f64::MAX,
        _ => (1u64 << (FIRST_BITS as usize + bucket)) as f64 / 1e9,
    }
}

impl TypedMetric for Latencies {
    const TYPE: MetricType = MetricType::Histogram;
}

impl EncodeMetric for Latencies {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        let buckets = self.0.buckets.each_ref().map(|bucket| bucket.load(Ordering::Relaxed));
        // Of one reading, so that the last bucket and the count agree.
        let count = buckets.iter().sum();
        let bounded: Vec<(f64, u64)> =
            buckets.into_iter().enumerate().map(|(at, count)| (bound(at), count)).collect();
        let sum_s = self.0.sum_ns.load(Ordering::Relaxed) as f64 / 1e9;
        encoder.encode_histogram::<NoLabelSet>(sum_s, count, &bounded, None)
    }

    fn metric_type(&self) -> MetricType {
        Self::TYPE
    }
}

impl fmt::Debug for Latencies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Latencies({})", self.count())
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::registry::Registry;

    use super::*;

    #[test]
    fn every_time_is_in_the_first_bucket_whose_bound_is_not_less() {
        for (took_ns, expected) in [(0, 0), (1, 0), (4_096, 0), (4_097, 1), (8_192, 1), (1 << 34, 22)] {
            assert_eq!(bucket(took_ns), expected, "{took_ns}");
        }
        for beyond in [(1 << 34) + 1, u64::MAX] {
            assert_eq!(bucket(beyond), BOUNDED);
        }
        for at in 0..BOUNDED {
            let bound_ns = (bound(at) * 1e9).round() as u64;
            assert_eq!((bucket(bound_ns), bucket(bound_ns + 1)), (at, at + 1));
        }
    }

    #[test]
    fn it_is_shown_as_prometheus_wants_it() {
        let latencies = Latencies::default();
        latencies.observe_ns(1_000);
        latencies.observe_many_ns(1_000_000, 3);
        latencies.observe_ns(60_000_000_000);
        let mut registry = Registry::default();
        registry.register("took_seconds", "How long it took", latencies.clone());
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for line in [
            "took_seconds_bucket{le=\"0.000004096\"} 1\n",
            "took_seconds_bucket{le=\"0.000524288\"} 1\n",
            "took_seconds_bucket{le=\"0.001048576\"} 4\n",
            "took_seconds_bucket{le=\"17.179869184\"} 4\n",
            "took_seconds_bucket{le=\"+Inf\"} 5\n",
            "took_seconds_count 5\n",
            "took_seconds_sum 60.003001\n",
        ] {
            assert!(text.contains(line), "{line}{text}");
        }
        assert_eq!(latencies.count(), 5);
    }
}
