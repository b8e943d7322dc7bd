//! What became of partitions whose memory was lost.

use sextant_common::error::{Error, Result};
use sextant_common::ids::{NodeId, PartitionId};
use sextant_common::load::LoadName;
use sextant_common::recovery::{RecoveredPartition, RecoveryOrder, RecoveryOutcome, UndecidedLoad};

use crate::v1;
use crate::v1::recovered_partition::Outcome;

impl From<&RecoveryOrder> for v1::RecoverRequest {
    fn from(order: &RecoveryOrder) -> Self {
        let names = |names: &[LoadName]| names.iter().map(ToString::to_string).collect();
        Self {
            dry_run: order.dry_run,
            without: order.without.iter().map(|node| node.0).collect(),
            accept_loss: order.accept_loss,
            with_loads: names(&order.with_loads),
            without_loads: names(&order.without_loads),
        }
    }
}

impl TryFrom<v1::RecoverRequest> for RecoveryOrder {
    type Error = Error;

    fn try_from(m: v1::RecoverRequest) -> Result<Self> {
        let names = |names: Vec<String>| names.iter().map(|name| name.parse()).collect::<Result<_>>();
        Ok(Self {
            dry_run: m.dry_run,
            without: m.without.into_iter().map(NodeId).collect(),
            accept_loss: m.accept_loss,
            with_loads: names(m.with_loads)?,
            without_loads: names(m.without_loads)?,
        })
    }
}

impl From<RecoveredPartition> for v1::RecoveredPartition {
    fn from(recovered: RecoveredPartition) -> Self {
        let outcome = match recovered.outcome {
            RecoveryOutcome::Founded => Outcome::Founded,
            RecoveryOutcome::Planned => Outcome::Planned,
            RecoveryOutcome::Recovered => Outcome::Recovered,
            RecoveryOutcome::Refused => Outcome::Refused,
        };
        let RecoveredPartition { partition, message, found, losses, undecided, .. } = recovered;
        let undecided = undecided.into_iter().map(Into::into).collect();
        Self { partition: partition.0, outcome: outcome.into(), message, found, losses, undecided }
    }
}

impl TryFrom<v1::RecoveredPartition> for RecoveredPartition {
    type Error = Error;

    fn try_from(p: v1::RecoveredPartition) -> Result<Self> {
        let outcome = match p.outcome() {
            Outcome::Founded => RecoveryOutcome::Founded,
            Outcome::Planned => RecoveryOutcome::Planned,
            Outcome::Recovered => RecoveryOutcome::Recovered,
            Outcome::Refused => RecoveryOutcome::Refused,
        };
        let v1::RecoveredPartition { partition, message, found, losses, undecided, .. } = p;
        let undecided = undecided.into_iter().map(TryInto::try_into).collect::<Result<_>>()?;
        Ok(Self { partition: PartitionId(partition), outcome, message, found, losses, undecided })
    }
}

impl From<UndecidedLoad> for v1::UndecidedLoad {
    fn from(load: UndecidedLoad) -> Self {
        let UndecidedLoad { name, table, ssts, records, bytes, copies } = load;
        Self { name: name.to_string(), table, ssts, records, bytes, copies }
    }
}

impl TryFrom<v1::UndecidedLoad> for UndecidedLoad {
    type Error = Error;

    fn try_from(load: v1::UndecidedLoad) -> Result<Self> {
        let v1::UndecidedLoad { name, table, ssts, records, bytes, copies } = load;
        Ok(Self { name: name.parse()?, table, ssts, records, bytes, copies })
    }
}
