//! Manifests of many SSTables: a flush among them, at the leader and at a p-node, a point read, and bytes on the wire.

use std::hint::black_box;
use std::sync::Arc;

use bytes::Bytes;
use criterion::{BatchSize, BenchmarkId, Criterion, criterion_group, criterion_main};
use prost::Message;
use sextant_common::ids::{Generation, NodeId, PartitionId, SstId, TableId};
use sextant_common::key_range::KeyRange;
use sextant_common::manifest::{
    FlushRecord, Generations, Manifest, ManifestChange, SstMeta, TableManifest, TableOptions, Versions,
};
use sextant_pnode::measuring::Followed;
use sextant_proto::convert::manifest;
use sextant_proto::v1;

const T: TableId = TableId(1);
const SIZES: [u32; 3] = [100, 1_000, 10_000];
/// SSTables that answer for a key: columns of so many, and flushes above.
const DEPTH: u32 = 4;

fn key(n: u32) -> Bytes {
    format!("user{n:012}").into()
}

fn sst(counter: u32, range: KeyRange, keys: (u32, u32)) -> SstMeta {
    let id =
        SstId { partition: PartitionId(0), plan: Default::default(), epoch: Default::default(), counter };
    SstMeta {
        id,
        table: T,
        records: 100_000,
        tombstones: 0,
        min_key: key(keys.0),
        max_key: key(keys.1),
        min_seq: 1,
        max_seq: 2,
        file_bytes: 64 << 20,
        checksum: u64::from(counter),
        generations: Generations::new(1, 1),
        range,
        expiring: Default::default(),
        replicas: vec![NodeId(1), NodeId(2), NodeId(3)],
    }
}

/// So many SSTables, in columns, newest first.
fn founded(ssts: u32) -> Manifest {
    let columns = (ssts / DEPTH).max(1);
    let column = |at: u32| {
        let end = if at + 1 == columns { Bytes::new() } else { key((at + 1) * 1000) };
        KeyRange { start: if at == 0 { Bytes::new() } else { key(at * 1000) }, end }
    };
    let mut table = TableManifest::new(T, "default".into(), TableOptions::default());
    let all = (0..ssts).map(|n| {
        let at = n % columns;
        sst(n, column(at), (at * 1000, at * 1000 + 999))
    });
    table.ssts = all.collect();
    Manifest { tables: vec![table], ..Manifest::empty(PartitionId(0)) }
}

fn flushed(before: &Manifest, counter: u32) -> Manifest {
    let mut next = before.clone();
    next.version.0 += 1;
    let (version, keys) = (next.version, before.tables[0].ssts.len() as u32 * 1000);
    let new = sst(counter, KeyRange::all(), (0, keys));
    let id = Some(new.id);
    if let Some(table) = next.table_mut(T) {
        table.flushed_generation = Generation(table.flushed_generation.0 + 1);
        table.last_flush_version = version;
        table.ssts.insert(0, new);
    }
    next.remember_flush(FlushRecord { version, table: T, id });
    next
}

fn leader(c: &mut Criterion) {
    let mut group = c.benchmark_group("leader_flush");
    for ssts in SIZES {
        let versions = Versions::from(Arc::new(founded(ssts)));
        group.bench_function(BenchmarkId::from_parameter(ssts), |b| {
            b.iter_batched(
                || versions.clone(),
                |mut versions| {
                    versions.follow(Arc::new(flushed(&versions.newest, 1_000_000)));
                    versions
                },
                BatchSize::SmallInput,
            );
        });
    }
    group.finish();
}

fn pnode(c: &mut Criterion) {
    for ssts in SIZES {
        let before = founded(ssts);
        let after = flushed(&before, 1_000_000);
        let change = ManifestChange::between(&before, &after).expect("a change");
        let view = Followed::whole(before.clone());
        c.bench_function(&format!("pnode_change/{ssts}"), |b| {
            b.iter(|| black_box(view.changed(&change).is_ok()));
        });
        c.bench_function(&format!("pnode_whole/{ssts}"), |b| {
            b.iter_batched(|| after.clone(), |m| view.replaced(m), BatchSize::SmallInput);
        });
        let after_view = view.changed(&change).expect("it fits");
        let keys: Vec<Bytes> =
            (0..1024u32).map(|n| key(n.wrapping_mul(2_654_435_761) % (ssts / DEPTH * 1000))).collect();
        let mut next = 0;
        c.bench_function(&format!("pnode_read/{ssts}"), |b| {
            b.iter(|| {
                next = (next + 1) % keys.len();
                black_box(after_view.candidates(T, &keys[next]))
            });
        });
        let (whole, changed) =
            (manifest::encode(&after).len(), v1::ManifestChange::from(&change).encoded_len());
        println!("{ssts} SSTables: a flush is {changed} bytes on the wire, the whole manifest {whole}");
    }
}

criterion_group!(benches, leader, pnode);
criterion_main!(benches);
