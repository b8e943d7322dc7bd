//! Groups of a partition, in their order, become batches in which each key comes once. Pure.
//!
//! Who writes a batch when the one before is written leaves each key as its last write did.

use std::collections::BTreeMap;

use bytes::Bytes;
use sextant_common::archive::LogGroup;
use sextant_common::expiry::{Tick, is_expired};
use sextant_common::ids::TableId;
use sextant_common::marks::Marks;
use sextant_common::sstable::RecordVersion;

/// Of a batch; it is not larger by more than a group.
const BYTES_MAX: usize = 4 * 1024 * 1024;
const RECORDS_MAX: usize = 10_000;
/// Of a record, beside key and value.
const RECORD_BYTES: usize = 64;

pub type Batch = BTreeMap<TableId, Vec<RecordVersion>>;

#[derive(Debug, Default)]
pub struct Fold {
    last: BTreeMap<(TableId, Bytes), RecordVersion>,
    bytes: usize,
}

impl Fold {
    /// A batch that is full with it, if there is one.
    pub fn push(&mut self, group: LogGroup) -> Option<Batch> {
        for writes in group.writes {
            for record in writes.records {
                self.bytes += bytes(&record);
                let key = (writes.table, record.key.clone());
                let newer = self.last.get(&key).is_none_or(|before| before.seq < record.seq);
                if newer && let Some(before) = self.last.insert(key, record) {
                    self.bytes -= bytes(&before);
                }
            }
        }
        (self.bytes >= BYTES_MAX || self.last.len() >= RECORDS_MAX).then(|| self.take())
    }

    /// What is left.
    pub fn take(&mut self) -> Batch {
        self.bytes = 0;
        let mut batch = Batch::new();
        for ((table, _), record) in std::mem::take(&mut self.last) {
            batch.entry(table).or_default().push(record);
        }
        batch
    }
}

fn bytes(record: &RecordVersion) -> usize {
    record.key.len() + record.value.as_ref().map_or(0, Bytes::len) + RECORD_BYTES
}

/// As it is now: what has expired is gone, and takes what was before it along.
pub fn as_of(record: RecordVersion, now: Tick) -> RecordVersion {
    match is_expired(record.marks.expires_at(), now) {
        true => RecordVersion { value: None, marks: Marks::NONE, ..record },
        false => record,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use sextant_common::archive::LogWrites;
    use sextant_common::ids::Seq;

    use super::*;

    proptest! {
        /// Whatever is written, in batches of any size: the last write of each key counts.
        #[test]
        fn the_last_write_of_each_key_counts(writes in prop::collection::vec((0u32..2, 0u8..6, prop::option::of(0usize..900_000)), 1..60), per_group in 1usize..5) {
            let mut seq = 0;
            let (mut fold, mut model, mut written) = (Fold::default(), BTreeMap::new(), BTreeMap::new());
            let mut write = |batch: Batch| {
                for (table, records) in batch {
                    let keys: std::collections::BTreeSet<_> = records.iter().map(|r| r.key.clone()).collect();
                    assert_eq!(keys.len(), records.len(), "each key once");
                    for record in records {
                        written.insert((table, record.key.clone()), record);
                    }
                }
            };
            for group in writes.chunks(per_group) {
                let mut tables: BTreeMap<TableId, Vec<RecordVersion>> = BTreeMap::new();
                for (table, key, length) in group {
                    seq += 1;
                    let value = length.map(|length| Bytes::from(vec![seq as u8; length]));
                    let key = Bytes::copy_from_slice(&[*key]);
                    let record = RecordVersion { key: key.clone(), seq: Seq(seq), value, marks: Marks::NONE };
                    model.insert((TableId(*table), key), record.clone());
                    tables.entry(TableId(*table)).or_default().push(record);
                }
                let writes = tables.into_iter().map(|(table, records)| LogWrites { table, records }).collect();
                if let Some(batch) = fold.push(LogGroup { index: seq, time_ms: 1, writes }) {
                    write(batch);
                }
                prop_assert!(fold.bytes < BYTES_MAX);
            }
            write(fold.take());
            prop_assert!(written == model);
        }
    }

    #[test]
    fn what_has_expired_deletes() {
        let record = RecordVersion {
            key: "k".into(),
            seq: Seq(1),
            value: Some("v".into()),
            marks: Marks::until(Tick(10)),
        };
        assert_eq!(as_of(record.clone(), Tick(9)), record);
        let gone = as_of(record, Tick(10));
        assert!(gone.value.is_none() && gone.marks.is_none());
    }
}
