//! Builders of test data, and a cluster of fakes: memtable and sstable servers on loopback that do what a test tells them to.
//! Partitions are the real ones, without Raft; SSTables are maps.

mod cluster;
mod fake_leases;
mod fake_memtable;
mod fake_partition;
mod fake_sstable;

use std::net::SocketAddr;

use bytes::Bytes;
use sextant_common::ids::{
    Epoch, Generation, LogPosition, ManifestVersion, NodeId, PartitionId, SstId, TableId,
};
use sextant_common::manifest::{FlushRecord, Manifest, SstMeta, TableManifest, TableOptions};
use sextant_environment::Env;
use sextant_environment::env::{Door, grpc_incoming};

pub use cluster::{Cluster, PATIENCE_MS, until};
pub use fake_memtable::FakeMemtable;
pub use fake_partition::Partition;
pub use fake_sstable::FakeSst;

/// The life of a fake server: a runtime of its own, so that its death closes every connection.
pub struct Process(parking_lot::Mutex<Option<tokio::runtime::Runtime>>);

impl Process {
    /// Binds a port and serves there; the address.
    pub async fn start(
        env: &Env,
        routes: tonic::transport::server::Router,
    ) -> (std::sync::Arc<Self>, SocketAddr) {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let net = env.net.clone();
        let bound = runtime.spawn(async move {
            let listener = net.bind("127.0.0.1:0".into(), Door::Members).await.unwrap();
            let addr = listener.local_addr().unwrap();
            tokio::spawn(async move { drop(routes.serve_with_incoming(grpc_incoming(listener)).await) });
            addr
        });
        let addr = bound.await.unwrap();
        (std::sync::Arc::new(Self(parking_lot::Mutex::new(Some(runtime)))), addr)
    }

    pub fn kill(&self) {
        if let Some(runtime) = self.0.lock().take() {
            runtime.shutdown_background();
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A record as the fakes keep it: value (None: tombstone) and seq.
pub type Stored = (Option<Bytes>, u64);

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
        generations: Default::default(),
        range: Default::default(),
        expiring: Default::default(),
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
        ssts: ssts.into(),
    }
}

pub fn manifest(version: u64, tables: Vec<TableManifest>) -> Manifest {
    Manifest { version: ManifestVersion(version), tables, ..Manifest::empty(PartitionId(0)) }
}

pub fn flush_record(version: u64, table: u32, counter: Option<u32>) -> FlushRecord {
    FlushRecord { version: ManifestVersion(version), table: TableId(table), id: counter.map(sst_id) }
}
