//! As a compaction writes it where nothing older lies below.

use std::path::Path;
use std::sync::Arc;

use sextant_common::ids::{Epoch, LogPosition, PartitionId, SstId, TableId};
use sextant_common::key::filter_hash;
use sextant_common::manifest::{self, Generations, Origin, TableOptions};
use sextant_environment::vfs::{OpenMode, RealVfs, Vfs};
use sextant_sstable_server::table::block_cache::BlockCache;
use sextant_sstable_server::table::reader::Tally;
use sextant_sstable_server::table::{
    Access, Caching, Content, Direction, KeyRange, Lookup, Table, TableIter, TableWriter,
};

use super::{CACHE_BYTES, Compression, Engine, Opened};
use crate::records::Records;
use crate::report::Row;

pub struct Ours;

struct Tables {
    cached: Arc<Table>,
    small: Arc<Table>,
}

fn id() -> SstId {
    let (plan, epoch) = (LogPosition { term: 1, index: 1 }, Epoch { term: 1, incarnation: 1 });
    SstId { partition: PartitionId(0), plan, epoch, counter: 1 }
}

impl Engine for Ours {
    fn name(&self) -> &'static str {
        "sextant"
    }

    fn has(&self, _: Compression) -> bool {
        true
    }

    fn build(&self, place: &Path, records: &Records, compression: Compression) {
        let compression = match compression {
            Compression::None => manifest::Compression::None,
            Compression::Lz4 => manifest::Compression::Lz4,
            Compression::Zstd => manifest::Compression::Zstd,
        };
        let options = TableOptions { compression, ..TableOptions::default() };
        let file = RealVfs.open(&place.join("table"), OpenMode::CreateNew).expect("a new file");
        let (name, generations) = ("bench".to_owned(), Generations::new(1, 1));
        let origin = Origin { lineage: 1, name, generations, range: KeyRange::all() };
        let writer = TableWriter::new(file, id(), TableId(1), options).with_origin(Some(origin));
        let mut writer = writer.at_the_bottom();
        for (seq, (key, value)) in records.iter().enumerate() {
            writer.add(&key, seq as u64, Content::Value(value)).expect("rising keys");
        }
        writer.finish().expect("a table");
    }

    fn open(&self, place: &Path, _: Compression, small: u64) -> Box<dyn Opened> {
        let file = RealVfs.open(&place.join("table"), OpenMode::Existing).expect("a file");
        let open = |bytes| {
            let cache = Arc::new(BlockCache::new(bytes));
            Arc::new(Table::open(file.clone(), id(), 1, cache).expect("a table").table)
        };
        Box::new(Tables { cached: open(CACHE_BYTES), small: open(small) })
    }
}

impl Opened for Tables {
    fn get(&self, key: &[u8], row: Row) -> Option<usize> {
        let table = if row == Row::SmallCache { &self.small } else { &self.cached };
        match table.get(key, filter_hash(key), Access::Fill, &mut Tally::default()).expect("it reads") {
            Lookup::Found(found) => Some(found.value.len()),
            _ => None,
        }
    }

    fn scan(&self, backward: bool) -> (usize, usize) {
        let direction = if backward { Direction::Backward } else { Direction::Forward };
        let mut records = TableIter::new(self.small.clone(), KeyRange::all(), direction, Caching::Bypass)
            .expect("it reads");
        let (mut count, mut bytes) = (0, 0);
        while !records.is_at_end() {
            count += 1;
            bytes += records.key().len() + records.value_ref().len();
            records.advance().expect("it reads");
        }
        (count, bytes)
    }
}
