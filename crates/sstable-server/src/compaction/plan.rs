//! A compaction that was asked for and found sound. What is asked for is chosen by the partition's leader: memtable-server,
//! `worker/leading/upkeep/compactions.rs`.

use std::sync::Arc;

use bytes::Bytes;
use sextant_common::expiry::Tick;
use sextant_common::ids::{SstId, TableId};
use sextant_common::key_range::KeyRange;
use sextant_common::manifest::{Origin, TableOptions};

use crate::table::Table;

/// What is to be done, with the inputs at hand.
pub(super) struct Plan {
    pub(super) inputs: Vec<Arc<Table>>,
    /// In the order of their ranges; there may be fewer.
    pub(super) outputs: Vec<SstId>,
    /// Where outputs are cut, rising.
    pub(super) cuts: Vec<Bytes>,
    /// And when one has about so many bytes; 0: not by size.
    pub(super) output_bytes: u64,
    pub(super) table: TableId,
    pub(super) options: TableOptions,
    pub(super) drop_tombstones: bool,
    pub(super) expired_by: Tick,
    pub(super) origin: Option<Origin>,
}

impl Plan {
    /// Most hashes that the filter of an output is built of.
    pub(super) fn output_hashes(&self) -> u64 {
        let hashes: u64 = self.inputs.iter().map(|input| self.hashes_of(input)).sum();
        let bytes: u64 = self.inputs.iter().map(|input| input.trailer().file_bytes).sum();
        if self.output_bytes == 0 {
            return hashes;
        }
        // (The last one also has what is too little for one of its own: half as much.)
        let most = self.output_bytes.saturating_add(self.output_bytes / 2).min(bytes);
        (u128::from(hashes) * u128::from(most) / u128::from(bytes.max(1))) as u64
    }

    /// How many hashes an input brings.
    fn hashes_of(&self, input: &Table) -> u64 {
        let (records, option) = (input.meta().records, self.options.filter_prefix);
        match () {
            () if option == 0 => records,
            // Its filter has them: nine bits each, and some more.
            () if input.meta().options.filter_prefix == option => {
                (input.trailer().filter.bytes * 8 / 9).clamp(records, records.saturating_mul(2))
            }
            // Each record may have a prefix of its own.
            () => records.saturating_mul(2),
        }
    }

    /// The keys that are taken.
    pub(super) fn range(&self) -> KeyRange {
        self.origin.as_ref().map(|origin| origin.range.clone()).unwrap_or_default()
    }
}
