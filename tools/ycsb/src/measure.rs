//! What happened to the operations: latencies in HDR histograms, errors by kind. One set a thread, merged at the end.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use sextant_common::error::Error;

use crate::record::Wrong;
use crate::workload::Operation;

/// Three significant digits: a latency is off by 0.1 % at the most.
const DIGITS: u8 = 3;

/// Why an operation counts as an error.
#[derive(Clone, Debug)]
pub enum Failure {
    /// The target said so.
    Error(Error),
    /// The target gave a value that cannot be right.
    Wrong(Wrong),
    /// A record that exists was not found.
    Missing,
    /// A record that does not exist was found by an insert.
    Exists,
    /// A scan's answer breaks its order, its bounds or its limit, or lacks the record that it starts with.
    BadScan,
}

impl Failure {
    /// Stable name, for tables and JSON.
    pub fn name(&self) -> &'static str {
        match self {
            Failure::Error(e) => e.kind.name(),
            Failure::Wrong(wrong) => wrong.name(),
            Failure::Missing => "missing",
            Failure::Exists => "exists",
            Failure::BadScan => "bad-scan",
        }
    }

    fn message(&self) -> String {
        match self {
            Failure::Error(e) => e.message.to_string(),
            Failure::Wrong(Wrong::Shape) => "the value has not the shape of this run's records".into(),
            Failure::Wrong(Wrong::Stamp) => "the value does not belong to its key, or is damaged".into(),
            Failure::Missing => "a record that was written was not found".into(),
            Failure::Exists => "the record exists already".into(),
            Failure::BadScan => "the scan's answer is out of order, out of bounds or incomplete".into(),
        }
    }
}

impl From<Error> for Failure {
    fn from(e: Error) -> Self {
        Failure::Error(e)
    }
}

impl From<Wrong> for Failure {
    fn from(wrong: Wrong) -> Self {
        Failure::Wrong(wrong)
    }
}

/// One kind of operation.
#[derive(Clone, Debug)]
pub struct OperationStats {
    /// Nanoseconds, of successful operations only.
    pub latency_ns: Histogram<u64>,
    pub errors: BTreeMap<&'static str, u64>,
    /// The message of the first error of each kind.
    pub examples: BTreeMap<&'static str, String>,
}

impl OperationStats {
    fn new() -> Self {
        // The digits are a constant that the library accepts.
        let latency_ns = Histogram::new(DIGITS).expect("0 to 5 digits");
        Self { latency_ns, errors: BTreeMap::new(), examples: BTreeMap::new() }
    }

    pub fn error_count(&self) -> u64 {
        self.errors.values().sum()
    }
}

/// All kinds of operations of a thread, or of a phase.
#[derive(Clone, Debug, Default)]
pub struct Measurements {
    kinds: BTreeMap<Operation, OperationStats>,
}

impl Measurements {
    fn of(&mut self, operation: Operation) -> &mut OperationStats {
        self.kinds.entry(operation).or_insert_with(OperationStats::new)
    }

    pub fn succeeded(&mut self, operation: Operation, latency_ns: u64) {
        // An auto-resizing histogram takes any value.
        let _ = self.of(operation).latency_ns.record(latency_ns.max(1));
    }

    pub fn failed(&mut self, operation: Operation, failure: &Failure) {
        let stats = self.of(operation);
        *stats.errors.entry(failure.name()).or_default() += 1;
        stats.examples.entry(failure.name()).or_insert_with(|| failure.message());
    }

    pub fn merge(&mut self, other: Measurements) {
        for (operation, theirs) in other.kinds {
            let ours = self.of(operation);
            let _ = ours.latency_ns.add(&theirs.latency_ns);
            for (kind, count) in theirs.errors {
                *ours.errors.entry(kind).or_default() += count;
            }
            for (kind, message) in theirs.examples {
                ours.examples.entry(kind).or_insert(message);
            }
        }
    }

    pub fn kinds(&self) -> impl Iterator<Item = (Operation, &OperationStats)> {
        self.kinds.iter().map(|(operation, stats)| (*operation, stats))
    }

    /// Operations that succeeded.
    pub fn count(&self) -> u64 {
        self.kinds.values().map(|s| s.latency_ns.len()).sum()
    }

    pub fn error_count(&self) -> u64 {
        self.kinds.values().map(OperationStats::error_count).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merging_adds_latencies_and_errors() {
        let mut a = Measurements::default();
        let mut b = Measurements::default();
        for ns in 1..=1000 {
            a.succeeded(Operation::Read, ns * 1000);
            b.succeeded(Operation::Read, (1000 + ns) * 1000);
        }
        b.failed(Operation::Update, &Failure::Missing);
        b.failed(Operation::Update, &Failure::Error(Error::retry("later")));
        a.merge(b);
        assert_eq!((a.count(), a.error_count()), (2000, 2));
        let (operation, reads) = a.kinds().next().unwrap();
        assert_eq!(operation, Operation::Read);
        let median_us = reads.latency_ns.value_at_quantile(0.5) as f64 / 1000.0;
        assert!((median_us - 1000.0).abs() < 2.0, "{median_us}");
        let (_, updates) = a.kinds().nth(1).unwrap();
        assert_eq!(updates.errors, BTreeMap::from([("missing", 1), ("retry", 1)]));
        assert_eq!(updates.examples["retry"], "later");
    }
}
