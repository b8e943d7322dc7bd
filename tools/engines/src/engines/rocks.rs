//! A table by RocksDB's writer of files, taken into a database of its own: it has no way to read a single one.

use std::path::Path;

use rocksdb::{
    BlockBasedOptions, Cache, DB, DBCompressionType, IngestExternalFileOptions, Options, ReadOptions,
    SstFileWriter,
};

use super::{BLOCK_BYTES, CACHE_BYTES, Compression, Engine, Opened};
use crate::records::Records;
use crate::report::Row;

pub struct Rocks;

struct Databases {
    cached: DB,
    small: DB,
}

fn options(compression: Compression, cache_bytes: u64) -> Options {
    let mut blocks = BlockBasedOptions::default();
    blocks.set_block_size(BLOCK_BYTES as usize);
    blocks.set_bloom_filter(10.0, false);
    blocks.set_format_version(5);
    blocks.set_block_cache(&Cache::new_lru_cache(cache_bytes as usize));
    let mut options = Options::default();
    options.create_if_missing(true);
    options.set_compression_type(match compression {
        Compression::None => DBCompressionType::None,
        Compression::Lz4 => DBCompressionType::Lz4,
        Compression::Zstd => DBCompressionType::Zstd,
    });
    options.set_block_based_table_factory(&blocks);
    options
}

impl Engine for Rocks {
    fn name(&self) -> &'static str {
        "RocksDB"
    }

    fn has(&self, _: Compression) -> bool {
        true
    }

    fn build(&self, place: &Path, records: &Records, compression: Compression) {
        let options = options(compression, CACHE_BYTES);
        let mut writer = SstFileWriter::create(&options);
        writer.open(place.join("table")).expect("a new file");
        for (key, value) in records.iter() {
            writer.put(key, value).expect("rising keys");
        }
        writer.finish().expect("a table");
    }

    fn open(&self, place: &Path, compression: Compression, small: u64) -> Box<dyn Opened> {
        let open = |name: &str, bytes| {
            let db = DB::open(&options(compression, bytes), place.join(name)).expect("a database");
            let how = IngestExternalFileOptions::default();
            db.ingest_external_file_opts(&how, vec![place.join("table")]).expect("its own table");
            db
        };
        Box::new(Databases { cached: open("cached", CACHE_BYTES), small: open("small", small) })
    }
}

impl Opened for Databases {
    fn get(&self, key: &[u8], row: Row) -> Option<usize> {
        let db = if row == Row::SmallCache { &self.small } else { &self.cached };
        db.get_pinned(key).expect("it reads").map(|value| value.len())
    }

    fn scan(&self, backward: bool) -> (usize, usize) {
        let mut sum = (0, 0);
        let mut records = self.small.raw_iterator_opt(past_the_cache());
        if backward {
            records.seek_to_last()
        } else {
            records.seek_to_first()
        }
        while let Some((key, value)) = records.item() {
            sum = (sum.0 + 1, sum.1 + key.len() + value.len());
            if backward { records.prev() } else { records.next() }
        }
        records.status().expect("it reads");
        sum
    }
}

fn past_the_cache() -> ReadOptions {
    let mut options = ReadOptions::default();
    options.fill_cache(false);
    options
}
