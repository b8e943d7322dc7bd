//! Operations, checked, with their tables and the one partition that they are of.

use std::sync::Arc;

use sextant_common::ids::PartitionId;
use sextant_common::key::{SlotMap, filter_hash};
use sextant_common::limits::{LARGE_BYTES, answer_weight_max, check_batch, numbers_taken};
use sextant_common::manifest::TableInfo;
use sextant_common::operation::{Operation, Returns};
use sextant_common::{Error, Result};

use super::numbers::{PNODE_SPAN, Size};
use crate::tables::Tables;
use crate::upstream::Deadline;
use crate::view::ReadKey;

/// An operation with its table, hashed once.
pub(super) struct PreparedOp {
    pub table: Arc<TableInfo>,
    pub partition: PartitionId,
    pub hash: u64,
    pub op: Operation,
}

impl PreparedOp {
    pub fn of(table: Arc<TableInfo>, slots: &SlotMap, op: Operation) -> Result<Self> {
        op.check()?;
        let partition = slots.partition_of(&op.key, &table.options);
        Ok(Self { hash: filter_hash(&op.key), table, partition, op })
    }

    /// The same of another table, which places its keys alike.
    pub fn of_table(&self, table: Arc<TableInfo>) -> Self {
        Self { table, partition: self.partition, hash: self.hash, op: self.op.clone() }
    }

    pub fn at(&self) -> ReadKey<'_> {
        ReadKey { partition: self.partition, key: &self.op.key, hash: self.hash }
    }

    pub fn needs_search(&self) -> bool {
        !self.op.is_blind()
    }
}

/// Whether so many operations may be one batch.
pub(crate) fn check_is_batch(ops: &[Operation]) -> Result<()> {
    check_batch(ops.len(), ops.iter().map(Operation::written_bytes).sum())
}

/// Checks limits, finds the tables and the one partition.
pub(super) async fn prepare(
    tables: &Tables,
    slots: &SlotMap,
    ops: Vec<Operation>,
    deadline: Deadline,
) -> Result<Vec<PreparedOp>> {
    check_is_batch(&ops)?;
    let mut prepared: Vec<PreparedOp> = Vec::with_capacity(ops.len());
    for op in ops {
        let table = match prepared.last() {
            Some(before) if before.op.table == op.table => before.table.clone(),
            _ => tables.get(&op.table, deadline).await?,
        };
        let op = PreparedOp::of(table, slots, op)?;
        if prepared.first().is_some_and(|first| first.partition != op.partition) {
            return Err(Error::invalid(
                "the keys of a batch must be of one partition: keys with the same {hash tag} are",
            ));
        }
        prepared.push(op);
    }
    Ok(prepared)
}

/// Where a write travels, and in which session: what is before a small one is small.
pub(super) fn is_large(ops: &[PreparedOp]) -> bool {
    ops.iter().map(|op| op.op.carried_bytes()).sum::<usize>() > LARGE_BYTES
}

/// What it takes of its session.
pub(super) fn size_of(ops: &[PreparedOp]) -> Size {
    let telling = ops.iter().filter(|op| op.op.returns != Returns::Nothing).count();
    let weight = answer_weight_max(ops.len(), telling);
    Size { is_large: is_large(ops), span: numbers_taken(weight, PNODE_SPAN) }
}
