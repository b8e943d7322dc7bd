//! What became of partitions whose memory was lost, as it is told to operators.

use crate::ids::PartitionId;

/// What a recovery did, or would do, with a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecoveryOutcome {
    /// It has a group: nothing to be done.
    Founded,
    /// Nothing was done; the losses have to be accepted.
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
}
