//! lsm-tree's tables as such, without the tree: index and filter in memory.

use std::path::Path;
use std::sync::Arc;

use lsm_tree::table::Writer;
use lsm_tree::table::filter::standard_bloom::Builder;
use lsm_tree::{Cache, Checksum, CompressionType, InternalValue, Table, ValueType};

use super::{BLOCK_BYTES, CACHE_BYTES, Compression, Engine, Opened};
use crate::records::Records;
use crate::report::Row;

/// Above all numbers of records.
const NOW: u64 = u64::MAX >> 1;

pub struct Lsm;

struct Tables {
    cached: Table,
    small: Table,
}

impl Engine for Lsm {
    fn name(&self) -> &'static str {
        "lsm-tree"
    }

    fn has(&self, compression: Compression) -> bool {
        compression != Compression::Zstd
    }

    fn build(&self, place: &Path, records: &Records, compression: Compression) {
        let compression = match compression {
            Compression::Lz4 => CompressionType::Lz4,
            _ => CompressionType::None,
        };
        let writer = Writer::new(place.join("table"), 0, 0).expect("a new file");
        let mut writer = writer.use_data_block_size(BLOCK_BYTES).use_data_block_compression(compression);
        for (seq, (key, value)) in records.iter().enumerate() {
            let record = InternalValue::from_components(&key[..], value, seq as u64, ValueType::Value);
            writer.write(record).expect("rising keys");
        }
        let (_, checksum) = writer.finish().expect("a table").expect("not an empty one");
        std::fs::write(place.join("checksum"), checksum.into_u128().to_le_bytes()).expect("a file");
    }

    fn open(&self, place: &Path, _: Compression, small: u64) -> Box<dyn Opened> {
        let checksum = std::fs::read(place.join("checksum")).expect("written with the table");
        let checksum = Checksum::from_raw(u128::from_le_bytes(checksum[..].try_into().expect("16 bytes")));
        let open = |bytes| {
            let cache = Arc::new(Cache::with_capacity_bytes(bytes));
            Table::recover(place.join("table"), checksum, 0, 0, cache, None, true, true).expect("a table")
        };
        Box::new(Tables { cached: open(CACHE_BYTES), small: open(small) })
    }
}

impl Opened for Tables {
    fn get(&self, key: &[u8], row: Row) -> Option<usize> {
        let table = if row == Row::SmallCache { &self.small } else { &self.cached };
        let found = table.get(key, NOW, Builder::get_hash(key)).expect("it reads");
        found.map(|record| record.value.len())
    }

    fn scan(&self, backward: bool) -> (usize, usize) {
        let mut sum = (0, 0);
        let mut add = |record: lsm_tree::Result<InternalValue>| {
            let record = record.expect("it reads");
            sum = (sum.0 + 1, sum.1 + record.key.user_key.len() + record.value.len());
        };
        if backward {
            self.small.iter().rev().for_each(&mut add)
        } else {
            self.small.iter().for_each(&mut add)
        }
        sum
    }
}
