//! What the replicas of a partition must agree on, as plain data. What follows from it (how long a leader serves and a
//! voter abstains, which changes are safe) is in memtable-server `command/configuration.rs`.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

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
