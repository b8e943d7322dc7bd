//! Operations, checked, with their tables and the one partition that they are of.

use std::sync::Arc;

use sextant_common::ids::PartitionId;
use sextant_common::key::{SlotMap, filter_hash};
use sextant_common::limits::{LARGE_BYTES, check_batch, check_key, check_value};
use sextant_common::{Error, Result};

use crate::api::{BatchOp, OpCondition, OpKind};
use crate::tables::Tables;
use crate::upstream::Deadline;
use crate::view::{ReadKey, TableInfo};

/// An operation with its table, hashed once.
pub(super) struct PreparedOp {
    pub table: Arc<TableInfo>,
    pub partition: PartitionId,
    pub hash: u64,
    pub op: BatchOp,
}

impl PreparedOp {
    pub fn at(&self) -> ReadKey<'_> {
        ReadKey { partition: self.partition, key: &self.op.key, hash: self.hash }
    }

    /// Keys and values.
    fn bytes(&self) -> usize {
        let value = if let OpKind::Put(value) = &self.op.kind { value.len() } else { 0 };
        let expected = if let OpCondition::ValueEquals(value) = &self.op.condition { value.len() } else { 0 };
        self.op.key.len() + value + expected
    }

    pub fn needs_search(&self) -> bool {
        self.op.condition != OpCondition::None
    }
}

/// Checks limits, finds the tables and the one partition.
pub(super) async fn prepare(
    tables: &Tables,
    slots: &SlotMap,
    ops: Vec<BatchOp>,
    deadline: Deadline,
) -> Result<Vec<PreparedOp>> {
    let size = |op: &BatchOp| op.key.len() + if let OpKind::Put(value) = &op.kind { value.len() } else { 0 };
    check_batch(ops.len(), ops.iter().map(size).sum())?;
    let mut prepared: Vec<PreparedOp> = Vec::with_capacity(ops.len());
    for op in ops {
        check_key(&op.key)?;
        if let OpKind::Put(value) = &op.kind {
            check_value(value)?;
        }
        if let OpCondition::ValueEquals(value) = &op.condition {
            check_value(value)?;
        }
        let table = match prepared.last() {
            Some(before) if before.op.table == op.table => before.table.clone(),
            _ => tables.get(&op.table, deadline).await?,
        };
        let partition = slots.partition_of(&op.key, &table.options);
        if prepared.first().is_some_and(|first| first.partition != partition) {
            return Err(Error::invalid(
                "the keys of a batch must be of one partition: keys with the same {hash tag} are",
            ));
        }
        prepared.push(PreparedOp { hash: filter_hash(&op.key), table, partition, op });
    }
    Ok(prepared)
}

/// Where a write travels, and in which session: what is before a small one is small.
pub(super) fn is_large(ops: &[PreparedOp]) -> bool {
    ops.iter().map(PreparedOp::bytes).sum::<usize>() > LARGE_BYTES
}
