//! A compaction that was asked for and found sound. What is asked for is chosen by the partition's leader: memtable-server,
//! `worker/leading/upkeep/compactions.rs`.

use std::sync::Arc;

use sextant_common::expiry::Tick;
use sextant_common::ids::{SstId, TableId};
use sextant_common::manifest::{Origin, TableOptions};

use crate::table::Table;

/// What is to be done, with the inputs at hand.
pub(super) struct Plan {
    pub(super) inputs: Vec<Arc<Table>>,
    pub(super) output: SstId,
    pub(super) table: TableId,
    pub(super) options: TableOptions,
    pub(super) drop_tombstones: bool,
    pub(super) expired_by: Tick,
    pub(super) origin: Option<Origin>,
}
