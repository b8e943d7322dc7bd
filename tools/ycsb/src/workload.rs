//! YCSB's core workloads: what share of the operations is of which kind, and which records they touch.

use serde::{Deserialize, Serialize};

use crate::distribution::Distribution;

/// A to F, as YCSB ships them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Workload {
    /// Update heavy: 50 % reads, 50 % updates.
    A,
    /// Read mostly: 95 % reads, 5 % updates.
    B,
    /// Reads only.
    C,
    /// Read latest: 95 % reads, 5 % inserts.
    D,
    /// Short ranges: 95 % scans, 5 % inserts.
    E,
    /// Read-modify-write: 50 % reads, 50 % read-modify-writes.
    F,
}

/// The kind of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operation {
    Read,
    Update,
    Insert,
    Scan,
    ReadModifyWrite,
}

impl Operation {
    pub const ALL: [Operation; 5] =
        [Operation::Read, Operation::Update, Operation::Insert, Operation::Scan, Operation::ReadModifyWrite];

    pub fn name(self) -> &'static str {
        match self {
            Operation::Read => "read",
            Operation::Update => "update",
            Operation::Insert => "insert",
            Operation::Scan => "scan",
            Operation::ReadModifyWrite => "read-modify-write",
        }
    }
}

/// Records of a scan: 1 to this many, uniformly.
pub const SCAN_RECORDS_MAX: u32 = 100;

impl Workload {
    pub fn name(self) -> &'static str {
        match self {
            Workload::A => "a",
            Workload::B => "b",
            Workload::C => "c",
            Workload::D => "d",
            Workload::E => "e",
            Workload::F => "f",
        }
    }

    /// The most frequent operation, the other one, and the percentage of the other one.
    fn mix(self) -> (Operation, Operation, u8) {
        match self {
            Workload::A => (Operation::Read, Operation::Update, 50),
            Workload::B => (Operation::Read, Operation::Update, 5),
            Workload::C => (Operation::Read, Operation::Read, 0),
            Workload::D => (Operation::Read, Operation::Insert, 5),
            Workload::E => (Operation::Scan, Operation::Insert, 5),
            Workload::F => (Operation::Read, Operation::ReadModifyWrite, 50),
        }
    }

    pub fn next(self, rng: &mut fastrand::Rng) -> Operation {
        let (main, other, percent) = self.mix();
        if percent > 0 && rng.u8(..100) < percent { other } else { main }
    }

    /// The distribution that YCSB ships with the workload.
    pub fn distribution(self) -> Distribution {
        if self == Workload::D { Distribution::Latest } else { Distribution::Zipfian }
    }

    pub fn inserts(self) -> bool {
        self.mix().1 == Operation::Insert
    }

    pub fn scans(self) -> bool {
        self.mix().0 == Operation::Scan
    }

    /// How many inserts so many operations are expected to have.
    pub fn expected_inserts(self, operations: u64) -> u64 {
        if self.inserts() { operations * u64::from(self.mix().2) / 100 } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_those_of_ycsb() {
        let expected = [
            (Workload::A, Operation::Update, 0.50),
            (Workload::B, Operation::Update, 0.05),
            (Workload::C, Operation::Update, 0.00),
            (Workload::D, Operation::Insert, 0.05),
            (Workload::E, Operation::Insert, 0.05),
            (Workload::F, Operation::ReadModifyWrite, 0.50),
        ];
        for (workload, operation, share) in expected {
            let mut rng = fastrand::Rng::with_seed(1);
            let draws = 100_000;
            let hits = (0..draws).filter(|_| workload.next(&mut rng) == operation).count();
            assert!((hits as f64 / f64::from(draws) - share).abs() < 0.01, "{workload:?}");
        }
    }

    #[test]
    fn only_d_and_e_insert() {
        let inserting: Vec<_> =
            [Workload::A, Workload::B, Workload::C, Workload::D, Workload::E, Workload::F]
                .into_iter()
                .filter(|w| w.inserts())
                .collect();
        assert_eq!(inserting, [Workload::D, Workload::E]);
        assert_eq!(Workload::E.expected_inserts(1000), 50);
        assert_eq!(Workload::A.expected_inserts(1000), 0);
    }
}
