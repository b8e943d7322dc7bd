//! What the tests of this crate share: a file in memory, and tables that are built from maps.

use std::collections::BTreeMap;

use std::sync::Arc;

use parking_lot::Mutex;
use proptest::prelude::*;
use sextant_common::ids::{Epoch, LogPosition, PartitionId, SstId, TableId};
use sextant_common::manifest::{Compression, Origin, SstMeta, TableOptions};
use sextant_common::marks::Marks;
use sextant_environment::config::{ClusterConfig, LeaseConfig, Server};
use sextant_simulated::MemoryFile;

use crate::table::block_cache::BlockCache;
use crate::table::{Content, Opened, Table, TableWriter};

/// Key -> (value, seq, tombstone).
pub type Model = BTreeMap<Vec<u8>, (Vec<u8>, u64, bool)>;

pub fn sst_id(counter: u32) -> SstId {
    SstId {
        partition: PartitionId(1),
        plan: LogPosition { term: 2, index: 3 },
        epoch: Epoch { term: 4, incarnation: 5 },
        counter,
    }
}

pub fn options(lz4: bool) -> TableOptions {
    let compression = if lz4 { Compression::Lz4 } else { Compression::None };
    TableOptions { compression, ..TableOptions::default() }
}

/// The bytes of a table that holds the model's records.
pub fn table_bytes(model: &Model, id: SstId, options: TableOptions) -> (Vec<u8>, SstMeta) {
    table_bytes_from(model, id, options, None)
}

/// The same, of a table that says where it comes from.
pub fn table_bytes_from(
    model: &Model,
    id: SstId,
    options: TableOptions,
    origin: Option<Origin>,
) -> (Vec<u8>, SstMeta) {
    let file = Arc::new(MemoryFile::default());
    let mut writer = TableWriter::new(file.clone(), id, TableId(9), options).with_origin(origin);
    for (key, (value, seq, tombstone)) in model {
        writer.add(key, *seq, Content::new((!tombstone).then_some(value), Marks::NONE)).unwrap();
    }
    let meta = writer.finish().unwrap();
    let bytes = std::mem::take(&mut *file.0.lock());
    (bytes, meta)
}

pub fn open_bytes(bytes: Vec<u8>, id: SstId, cache_bytes: u64) -> sextant_common::Result<Opened> {
    let file = Arc::new(MemoryFile(Mutex::new(bytes)));
    Table::open(file, id, 1, Arc::new(BlockCache::new(cache_bytes)))
}

pub fn open_model(model: &Model, counter: u32, options: TableOptions) -> Arc<Table> {
    let (bytes, _) = table_bytes(model, sst_id(counter), options);
    let opened = open_bytes(bytes, sst_id(counter), 1 << 20).unwrap();
    assert!(opened.filter_damage.is_none());
    Arc::new(opened.table)
}

/// Keys over few letters: many common prefixes, keys that are prefixes of others.
pub fn any_key() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        8 => prop::collection::vec(0u8..4, 1..12),
        2 => prop::collection::vec(any::<u8>(), 1..40),
        1 => prop::collection::vec(254u8..=255, 1..6),
    ]
}

fn any_record() -> impl Strategy<Value = (Vec<u8>, u64, bool)> {
    let value = prop_oneof![
        10 => prop::collection::vec(any::<u8>(), 0..60),
        10 => (0u8..9, 0usize..300).prop_map(|(byte, len)| vec![byte; len]),
        1 => prop::collection::vec(any::<u8>(), 4000..9000),
    ];
    (value, any::<u64>(), any::<bool>()).prop_map(|(value, seq, tombstone)| {
        if tombstone { (Vec::new(), seq, true) } else { (value, seq, false) }
    })
}

pub fn any_model(records: std::ops::Range<usize>) -> impl Strategy<Value = Model> {
    prop::collection::btree_map(any_key(), any_record(), records)
}

pub fn cluster_config(sstable: &[&str]) -> ClusterConfig {
    let server = |(i, addr): (usize, &&str)| Server::new(i as u64 + 1, *addr);
    ClusterConfig {
        id: "test".into(),
        partitions: 4,
        memtable: vec![Server::new(1, "127.0.0.1:1")],
        sstable: sstable.iter().enumerate().map(server).collect(),
        lease: LeaseConfig::default(),
    }
}
