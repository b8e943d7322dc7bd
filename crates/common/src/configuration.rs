//! What the replicas of a partition must agree on, as plain data. What follows from it (how long a leader serves and a
//! voter abstains, which changes are safe) is in memtable-server `command/configuration.rs`.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::ids::PartitionId;

/// The newest format of a partition that this version reads and writes. 0: all that a log said before there were formats.
pub const FORMAT_NEWEST: u32 = 4;

/// How the refusal of what a new partition cannot have yet begins.
const PARTITION_IS_NEW: &str = "the partition is new";

/// Whether that is why, as far as words tell.
pub fn is_of_new_partition(error: &Error) -> bool {
    error.message.contains(PARTITION_IS_NEW)
}

/// What a partition's log may say only from a certain format on: an older server cannot go on when it meets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feature {
    /// Tables that were made elsewhere are taken over.
    Load,
    /// A point of the log to which a backup reaches.
    Cut,
    /// Tables that are compressed with Zstd.
    Zstd,
    /// Tables are dropped, and get other options.
    ChangeTable,
    /// Tables whose filters hold prefixes of keys.
    FilterPrefix,
    /// Headers of sorted sets with [bounds](crate::object::Bounds). (P-nodes of an older version take them for damaged.)
    Bounds,
}

impl Feature {
    /// The first format that has it.
    pub fn format(self) -> u32 {
        match self {
            Feature::Load | Feature::Cut | Feature::Zstd => 1,
            Feature::ChangeTable => 2,
            Feature::FilterPrefix => 3,
            Feature::Bounds => 4,
        }
    }
}

/// How leases are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LeaseMode {
    /// Leases of some hundred milliseconds; holders acknowledge bf-logs while Raft replicates.
    #[default]
    Ack,
    /// The paper's: expiry = now + group interval + a lower bound of the log write time; no acknowledgements, commit
    /// wait.
    Timed,
}

/// A partition's replicated configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Configuration {
    /// 1 for the first; each change has the next.
    pub revision: u64,
    pub mode: LeaseMode,
    /// Longest lease of a p-node.
    pub lease_ms: u64,
    pub leader_lease_ms: u64,
    /// Bound on the drift of monotonic clocks, in parts per million.
    pub drift_ppm: u64,
    /// Memory for memtables of this partition that are not yet flushed, in bytes, on every replica.
    pub memory_bytes: u64,
    /// Of the partition's history: random, drawn with the first revision, the same in all that follow. It is in every
    /// SSTable, and who deletes one has to name it. 0: the first revision was written by an older version.
    pub lineage: u64,
    /// Memtable servers that the last choice of voters by an operator left out: a leader lets none of them in by
    /// itself, whatever they ask for and whoever led when they were left out.
    pub left_out: BTreeSet<u64>,
    /// sstable servers that are to hold no tables: what they have moves to others.
    pub draining: BTreeSet<u64>,
    /// What the log may say: see [`Configuration::allows`]. It never falls.
    pub format: u32,
    /// The partition is new: its format is the newest that all members can, as soon as they have said so.
    pub format_open: bool,
}

impl Configuration {
    pub fn allows(&self, feature: Feature) -> bool {
        self.allows_format(feature.format())
    }

    pub fn allows_format(&self, format: u32) -> bool {
        self.format >= format
    }

    /// Why an entry that needs this format cannot be written.
    pub fn check_format(&self, format: u32) -> Result<()> {
        if self.allows_format(format) {
            return Ok(());
        }
        if self.format_open {
            return Err(Error::retry(format!(
                "{PARTITION_IS_NEW}: its members have not all said yet what they can read"
            )));
        }
        Err(Error::invalid(format!(
            "the cluster's format is {}: raise it (sextant admin raise-format)",
            self.format
        )))
    }

    pub fn check_allows(&self, feature: Feature) -> Result<()> {
        self.check_format(feature.format())
    }
}

/// What became of the wish to raise a partition's format, or what could become of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionFormat {
    pub partition: PartitionId,
    /// Now.
    pub format: u32,
    /// What all members can read.
    pub possible: u32,
    /// Members that cannot read what was asked for, or do not answer, a line each.
    pub hindrances: Vec<String>,
    /// It was asked for and not done: why. Empty: as asked for.
    pub refused: String,
}

/// What an operator wants changed of a [`Configuration`]; None: as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfigurationChange {
    pub mode: Option<LeaseMode>,
    pub lease_ms: Option<u64>,
    pub leader_lease_ms: Option<u64>,
    pub drift_ppm: Option<u64>,
    pub memory_bytes: Option<u64>,
    pub draining: Option<BTreeSet<u64>>,
}
