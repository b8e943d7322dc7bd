//! Writing, point reads and scans of one table, on the page cache: records of 16-byte keys and 100-byte or 1-KiB values.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use sextant_common::ids::{Epoch, LogPosition, PartitionId, SstId, TableId};
use sextant_common::key::filter_hash;
use sextant_common::manifest::{Compression, Generations, Origin, TableOptions};
use sextant_environment::vfs::{OpenMode, RealVfs, Vfs, VfsFile};
use sextant_sstable_server::table::block_cache::BlockCache;
use sextant_sstable_server::table::reader::Tally;
use sextant_sstable_server::table::{
    Access, Caching, Content, Direction, KeyRange, Lookup, Merge, Table, TableIter, TableWriter,
};

const DATA_BYTES: u64 = 64 << 20;

fn id(counter: u32) -> SstId {
    let (plan, epoch) = (LogPosition { term: 1, index: 1 }, Epoch { term: 1, incarnation: 1 });
    SstId { partition: PartitionId(0), plan, epoch, counter }
}

/// 16 bytes; rising with `i`.
fn key(i: u64) -> [u8; 16] {
    let mut key = *b"user000000000000";
    key[4..].copy_from_slice(format!("{i:012}").as_bytes());
    key
}

/// Half of it compresses.
fn value(i: u64, len: usize) -> Vec<u8> {
    let noise = (0..len as u64 / 16).flat_map(|j| filter_hash(&(i * 1000 + j).to_le_bytes()).to_le_bytes());
    let mut value: Vec<u8> = noise.collect();
    value.resize(len, b'.');
    value
}

struct Shape {
    name: &'static str,
    value_len: usize,
    compression: Compression,
}

const SHAPES: [Shape; 6] = [
    Shape { name: "100B/none", value_len: 100, compression: Compression::None },
    Shape { name: "100B/lz4", value_len: 100, compression: Compression::Lz4 },
    Shape { name: "100B/zstd", value_len: 100, compression: Compression::Zstd },
    Shape { name: "1KiB/none", value_len: 1024, compression: Compression::None },
    Shape { name: "1KiB/lz4", value_len: 1024, compression: Compression::Lz4 },
    Shape { name: "1KiB/zstd", value_len: 1024, compression: Compression::Zstd },
];

fn records(shape: &Shape) -> Vec<([u8; 16], Vec<u8>)> {
    let count = DATA_BYTES / (16 + shape.value_len as u64);
    // Every second key exists.
    (0..count).map(|i| (key(2 * i), value(i, shape.value_len))).collect()
}

/// As a compaction does where nothing older lies below. Returns the size of the file.
fn write(file: Arc<dyn VfsFile>, shape: &Shape, records: &[([u8; 16], Vec<u8>)]) -> u64 {
    let options = TableOptions { compression: shape.compression, ..TableOptions::default() };
    let (name, generations) = ("bench".to_owned(), Generations::new(1, 1));
    let origin = Origin { lineage: 1, name, generations, range: KeyRange::all() };
    let writer = TableWriter::new(file, id(1), TableId(1), options).with_origin(Some(origin));
    let mut writer = writer.at_the_bottom();
    for (i, (key, value)) in records.iter().enumerate() {
        writer.add(key, i as u64, Content::Value(value)).unwrap();
    }
    black_box(writer.finish().unwrap()).file_bytes
}

/// Takes all writes and keeps none: what is measured is the writer.
struct NoFile;

impl VfsFile for NoFile {
    fn read_at(&self, _: &mut [u8], _: u64) -> std::io::Result<usize> {
        Ok(0)
    }
    fn write_all_at(&self, _: &[u8], _: u64) -> std::io::Result<()> {
        Ok(())
    }
    fn sync_data(&self) -> std::io::Result<()> {
        Ok(())
    }
    fn len(&self) -> std::io::Result<u64> {
        Ok(0)
    }
    fn set_len(&self, _: u64) -> std::io::Result<()> {
        Ok(())
    }
}

fn tables(c: &mut Criterion) {
    let dir = tempfile::tempdir().unwrap();
    for shape in &SHAPES {
        let records = records(shape);
        let count = records.len() as u64;
        let mut group = c.benchmark_group("write");
        group.throughput(Throughput::Bytes(DATA_BYTES)).sample_size(10);
        group.bench_function(shape.name, |b| {
            b.iter_batched(|| Arc::new(NoFile), |file| write(file, shape, &records), BatchSize::PerIteration);
        });
        group.finish();

        let file = RealVfs.open(&dir.path().join(shape.name.replace('/', "-")), OpenMode::CreateNew).unwrap();
        let file_bytes = write(file.clone(), shape, &records);
        println!("size/{:<12} {:.3} of the records", shape.name, file_bytes as f64 / DATA_BYTES as f64);
        drop(records);
        let open = || {
            let cache = Arc::new(BlockCache::new(4 * DATA_BYTES));
            Arc::new(Table::open(file.clone(), id(1), 1, cache).unwrap().table)
        };
        // Index and filter are in memory in any case.
        let (warm, uncached) = (open(), open());
        for i in 0..count {
            get(&warm, &key(2 * i), true, Access::Fill);
        }
        let mut random = fastrand::Rng::with_seed(1);
        let mut group = c.benchmark_group("get");
        for (name, table, access) in
            [("warm", &warm, Access::Fill), ("page cache", &uncached, Access::NoFill)]
        {
            group.bench_function(BenchmarkId::new(name, shape.name), |b| {
                b.iter_batched(
                    || key(2 * random.u64(..count)),
                    |k| get(table, &k, true, access),
                    BatchSize::SmallInput,
                );
            });
        }
        group.bench_function(BenchmarkId::new("absent", shape.name), |b| {
            b.iter_batched(
                || key(2 * random.u64(..count) + 1),
                |k| get(&warm, &k, false, Access::Fill),
                BatchSize::SmallInput,
            );
        });
        group.finish();

        let mut group = c.benchmark_group("scan");
        group.throughput(Throughput::Elements(count)).sample_size(10);
        for direction in [Direction::Forward, Direction::Backward] {
            group.bench_function(BenchmarkId::new(format!("{direction:?}"), shape.name), |b| {
                b.iter(|| {
                    let mut iter =
                        TableIter::new(uncached.clone(), KeyRange::all(), direction, Caching::Bypass)
                            .unwrap();
                    while !iter.is_at_end() {
                        black_box((iter.key(), iter.value_ref()));
                        iter.advance().unwrap();
                    }
                });
            });
        }
        group.throughput(Throughput::Elements(100));
        group.bench_function(BenchmarkId::new("page of 100", shape.name), |b| {
            b.iter(|| page(&warm, &key(2 * random.u64(..count - 100))));
        });
        group.finish();
    }
}

fn get(table: &Table, key: &[u8], exists: bool, access: Access) {
    let found = table.get(key, filter_hash(key), access, &mut Tally::default()).unwrap();
    if exists {
        assert!(matches!(found, Lookup::Found(_)));
    }
    black_box(found);
}

fn page(table: &Arc<Table>, start: &[u8]) -> Vec<(Bytes, Bytes)> {
    let range = KeyRange { start: Bytes::copy_from_slice(start), end: Bytes::new() };
    let iter = TableIter::new(table.clone(), range, Direction::Forward, Caching::Look).unwrap();
    let mut merge = Merge::new(vec![iter], Direction::Forward);
    let mut records = Vec::with_capacity(100);
    while records.len() < 100 {
        records.push((Bytes::copy_from_slice(merge.key()), merge.value()));
        merge.advance().unwrap();
    }
    records
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .without_plots()
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2));
    targets = tables
}
criterion_main!(benches);
