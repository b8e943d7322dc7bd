//! Builders of test data.

use bytes::Bytes;
use sextant_common::ids::{
    Epoch, Generation, LogPosition, ManifestVersion, NodeId, PartitionId, SstId, TableId,
};
use sextant_common::manifest::{FlushRecord, Manifest, SstMeta, TableManifest, TableOptions};

pub fn sst_id(counter: u32) -> SstId {
    SstId {
        partition: PartitionId(0),
        plan: LogPosition { term: 1, index: u64::from(counter) },
        epoch: Epoch { term: 1, incarnation: 1 },
        counter,
    }
}

/// An SSTable with its id's counter, a range, and replicas 1, 2, 3.
pub fn sst_meta(counter: u32, min_key: &'static [u8], max_key: &'static [u8]) -> SstMeta {
    SstMeta {
        id: sst_id(counter),
        table: TableId(1),
        records: 10,
        tombstones: 0,
        min_key: Bytes::from_static(min_key),
        max_key: Bytes::from_static(max_key),
        min_seq: 1,
        max_seq: 10,
        file_bytes: 1000,
        checksum: 1,
        replicas: vec![NodeId(1), NodeId(2), NodeId(3)],
    }
}

/// `ssts`: newest first.
pub fn table_manifest(table: u32, ssts: Vec<SstMeta>) -> TableManifest {
    TableManifest {
        table: TableId(table),
        name: if table == 1 { "default".into() } else { format!("t{table}") },
        options: TableOptions::default(),
        flushed_generation: Generation(0),
        last_flush_version: ManifestVersion(0),
        persisted: LogPosition::default(),
        ssts,
    }
}

pub fn manifest(version: u64, tables: Vec<TableManifest>) -> Manifest {
    Manifest { version: ManifestVersion(version), tables, ..Manifest::empty(PartitionId(0)) }
}

pub fn flush_record(version: u64, table: u32, counter: Option<u32>) -> FlushRecord {
    FlushRecord { version: ManifestVersion(version), table: TableId(table), id: counter.map(sst_id) }
}
