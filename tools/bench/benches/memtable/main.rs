//! The memtable against the one before it (`old.rs`: a skip list of versions), in the same process and in turns: first a table of
//! such rounds, then criterion's own measurements.
//!
//! `SEXTANT_BENCH_10M` measures 10 million keys too: 4 GiB, minutes.

#[allow(dead_code, reason = "it is kept as it was")]
mod old;
mod rounds;

use bytes::Bytes;
use criterion::{BenchmarkId, Criterion};
use rounds::Table;
use sextant_memtable_server::memtable as new;

/// As in the servers.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn measure<T: Table>(criterion: &mut Criterion, name: &str, keys: u64) {
    let table = T::fresh();
    rounds::write(&table, 0..keys, 0);
    let mut number = 0;
    let mut next = || {
        number = (number + 7_919) % keys;
        number
    };
    let mut group = criterion.benchmark_group("memtable");
    group.bench_function(BenchmarkId::new(format!("hit/{name}"), keys), |b| {
        b.iter_batched(
            || Bytes::copy_from_slice(&rounds::key(next())),
            |key| table.get(&key),
            criterion::BatchSize::SmallInput,
        );
    });
    group.bench_function(BenchmarkId::new(format!("miss/{name}"), keys), |b| {
        b.iter_batched(
            || Bytes::copy_from_slice(&rounds::key(keys + next())),
            |key| table.get(&key),
            criterion::BatchSize::SmallInput,
        );
    });
    group.bench_function(BenchmarkId::new(format!("scan 100/{name}"), keys), |b| {
        b.iter_batched(
            || Bytes::copy_from_slice(&rounds::key(next())),
            |key| table.scan(key, 100),
            criterion::BatchSize::SmallInput,
        );
    });
    group.bench_function(BenchmarkId::new(format!("insert all/{name}"), keys), |b| {
        b.iter_with_large_drop(|| {
            let table = T::fresh();
            rounds::write(&table, 0..keys, 0);
            table
        });
    });
    group.finish();
}

fn main() {
    rounds::compare(10_000, 25);
    rounds::compare(1_000_000, 7);
    if std::env::var_os("SEXTANT_BENCH_10M").is_some() {
        rounds::compare(10_000_000, 3);
    }
    let mut criterion = Criterion::default().configure_from_args().sample_size(10);
    for keys in [10_000, 1_000_000] {
        measure::<old::Memtable>(&mut criterion, "old", keys);
        measure::<new::Memtable>(&mut criterion, "new", keys);
    }
    criterion.final_summary();
}
