//! A compaction that was asked for and found sound. What is asked for is chosen by the partition's leader: memtable-server,
//! `worker/leading/upkeep/compactions.rs`.

use std::sync::Arc;

use bytes::Bytes;
use sextant_common::expiry::Tick;
use sextant_common::ids::{SstId, TableId};
use sextant_common::key_range::KeyRange;
use sextant_common::manifest::{HASH_WEIGHT_BYTES, Origin, TableOptions, large, weight};

use crate::table::Table;

/// What is to be done, with the inputs at hand.
pub(super) struct Plan {
    pub(super) inputs: Vec<Arc<Table>>,
    /// In the order of their ranges; there may be fewer.
    pub(super) outputs: Vec<SstId>,
    /// Where outputs are cut, rising.
    pub(super) cuts: Vec<Bytes>,
    /// And when one weighs about so much ([`sextant_common::manifest::weight`]); 0: not by size.
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
        if self.output_bytes == 0 {
            return self.hashes();
        }
        // (The record with which it becomes large has two at most.)
        self.hashes().min(large(self.output_hash_weight()) / HASH_WEIGHT_BYTES + 2)
    }

    /// What the hashes of an output weigh when it ends for them. With too few ids for what all of them weigh (leaders of older versions
    /// go by bytes) they are shared by all outputs.
    pub(super) fn output_hash_weight(&self) -> u64 {
        let ids = self.outputs.len().saturating_sub(self.cuts.len()).max(1) as u64;
        self.output_bytes.max(weight(0, self.hashes()).div_ceil(ids))
    }

    fn hashes(&self) -> u64 {
        self.inputs.iter().map(|input| self.hashes_of(input)).sum()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Model, open_model, options, sst_id};

    /// Of an input with so many tiny records.
    fn plan(records: u64, output_bytes: u64, ids: u32) -> Plan {
        let record = |i: u64| (i.to_be_bytes().to_vec(), (Vec::new(), i + 1, false));
        let model: Model = (0..records).map(record).collect();
        Plan {
            inputs: vec![open_model(&model, 1, options(true))],
            outputs: (10..10 + ids).map(sst_id).collect(),
            cuts: Vec::new(),
            output_bytes,
            table: TableId(9),
            options: options(true),
            drop_tombstones: true,
            expired_by: Tick(0),
            origin: None,
        }
    }

    #[test]
    fn room_is_taken_for_as_many_hashes_as_an_output_may_have_however_few_bytes_its_records_are() {
        assert_eq!(plan(10_000, 0, 1).output_hashes(), 10_000, "one has all");
        assert_eq!(plan(10_000, 64_000, 20).output_hashes(), 1_502);
        assert_eq!(plan(1_000, 64_000, 20).output_hashes(), 1_000, "no more than there are");
        let bytes = plan(10_000, 64_000, 20).inputs[0].trailer().file_bytes;
        assert!(bytes < 64_000 * 3, "as bytes they would be two: {bytes}");
        // Ids by bytes: they share the hashes.
        assert_eq!(plan(10_000, 64_000, 4).output_hashes(), 3_752);
    }
}
