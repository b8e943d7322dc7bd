//! What became of partitions whose memory was lost, as it is told to operators.

use std::fmt;

use crate::ids::{NodeId, PartitionId};
use crate::load::LoadName;

/// What an operator allows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecoveryOrder {
    /// Only to say what would be done.
    pub dry_run: bool,
    /// sstable servers that are given up: gone for good.
    pub without: Vec<NodeId>,
    /// Flushed records may be missing.
    pub accept_loss: bool,
    /// Loads of which nothing tells whether they were committed: these were.
    pub with_loads: Vec<LoadName>,
    /// And these were not.
    pub without_loads: Vec<LoadName>,
}

/// What a recovery did, or would do, with a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecoveryOutcome {
    /// It has a group: nothing to be done.
    Founded,
    /// Nothing was done; the losses have to be accepted, and what is undecided decided.
    Planned,
    Recovered,
    /// It cannot be rebuilt, or not now.
    Refused,
}

/// The same, with what people want to know of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecoveredPartition {
    pub partition: PartitionId,
    pub outcome: RecoveryOutcome,
    /// Why it was refused.
    pub message: String,
    /// What was found, a line each.
    pub found: Vec<String>,
    /// Flushed records that are missing, a line each.
    pub losses: Vec<String>,
    /// Of which the operator has to say whether they are to count.
    pub undecided: Vec<UndecidedLoad>,
}

/// A bulk load of which there are SSTables, and nothing tells whether it was committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UndecidedLoad {
    pub name: LoadName,
    pub table: String,
    pub ssts: u64,
    pub records: u64,
    pub bytes: u64,
    /// How many sound copies there are of the SSTable that has fewest.
    pub copies: u32,
}

impl fmt::Display for UndecidedLoad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, table, ssts, records, bytes, copies } = self;
        write!(
            f,
            "load {name} of table {table:?}: {ssts} SSTables, {records} records, {bytes} bytes, {copies} sound copies of each at least"
        )
    }
}
