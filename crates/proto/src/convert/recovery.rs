//! What became of partitions whose memory was lost.

use sextant_common::ids::PartitionId;
use sextant_common::recovery::{RecoveredPartition, RecoveryOutcome};

use crate::v1;
use crate::v1::recovered_partition::Outcome;

impl From<RecoveredPartition> for v1::RecoveredPartition {
    fn from(recovered: RecoveredPartition) -> Self {
        let outcome = match recovered.outcome {
            RecoveryOutcome::Founded => Outcome::Founded,
            RecoveryOutcome::Planned => Outcome::Planned,
            RecoveryOutcome::Recovered => Outcome::Recovered,
            RecoveryOutcome::Refused => Outcome::Refused,
        };
        let RecoveredPartition { partition, message, found, losses, .. } = recovered;
        Self { partition: partition.0, outcome: outcome.into(), message, found, losses }
    }
}

impl From<v1::RecoveredPartition> for RecoveredPartition {
    fn from(p: v1::RecoveredPartition) -> Self {
        let outcome = match p.outcome() {
            Outcome::Founded => RecoveryOutcome::Founded,
            Outcome::Planned => RecoveryOutcome::Planned,
            Outcome::Recovered => RecoveryOutcome::Recovered,
            Outcome::Refused => RecoveryOutcome::Refused,
        };
        let v1::RecoveredPartition { partition, message, found, losses, .. } = p;
        Self { partition: PartitionId(partition), outcome, message, found, losses }
    }
}
