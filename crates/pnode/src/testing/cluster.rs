//! Two memtable servers, two sstable servers, and a p-node.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use sextant_common::ids::{ManifestVersion, NodeId, PartitionId, TableId};
use sextant_common::key::SlotMap;
use sextant_common::manifest::{SstMeta, TableOptions};
use sextant_environment::Env;
use sextant_environment::config::{ClusterConfig, LeaseConfig, Server};

use super::{FakeMemtable, FakeSst, Partition, Stored, sst_meta};
use crate::{LibraryConfig, PNode};

/// How long a condition may take to come true before the test fails: only a bound.
pub const PATIENCE_MS: u64 = 120_000;
const PATIENCE: Duration = Duration::from_millis(PATIENCE_MS);

/// Waits for a condition that comes true by itself.
pub async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let waited = tokio::time::timeout(PATIENCE, async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    assert!(waited.await.is_ok(), "never happened: {what}");
}

pub struct Cluster {
    pub env: Env,
    pub memtables: Vec<FakeMemtable>,
    pub ssts: Vec<FakeSst>,
    pub config: ClusterConfig,
    next_sst: u32,
}

impl Cluster {
    /// All partitions are led by the first memtable server, in term 5.
    pub async fn start(partitions: u32) -> Self {
        let env = Env::real();
        let memtables = vec![FakeMemtable::start(&env, 1).await, FakeMemtable::start(&env, 2).await];
        let ssts = vec![FakeSst::start(&env).await, FakeSst::start(&env).await];
        for partition in 0..partitions {
            memtables[0].state.lock().partitions.insert(partition, Partition::new(partition, 5));
            memtables[1].state.lock().hints.insert(partition, (1, 5));
        }
        let servers = |addrs: Vec<String>| {
            addrs.into_iter().zip(1..).map(|(addr, id)| Server::new(id, addr)).collect::<Vec<_>>()
        };
        let config = ClusterConfig {
            id: "test".into(),
            partitions,
            memtable: servers(memtables.iter().map(|m| m.addr.to_string()).collect()),
            sstable: servers(ssts.iter().map(|s| s.addr.to_string()).collect()),
            lease: LeaseConfig::default(),
        };
        Self { env, memtables, ssts, config, next_sst: 1 }
    }

    pub fn library_config(&self) -> LibraryConfig {
        LibraryConfig {
            cache_bytes: 1 << 20,
            default_deadline: PATIENCE,
            ..LibraryConfig::new(self.config.clone())
        }
    }

    /// A p-node that is ready and holds leases for everything.
    pub async fn pnode(&self) -> PNode {
        let pnode = self.pnode_without_leases().await;
        let leased = || {
            let core = pnode.core();
            core.views.partitions().all(|p| core.views.peek(p).leased_copies(&*self.env.clock).is_some())
        };
        until("leases", leased).await;
        pnode
    }

    /// A p-node that is ready.
    pub async fn pnode_without_leases(&self) -> PNode {
        let pnode = PNode::start(self.env.clone(), self.library_config()).await.unwrap();
        pnode.ready(PATIENCE).await.unwrap();
        pnode
    }

    /// While held, gets are received and not answered.
    pub fn hold_gets(&self, held: bool) {
        for sst in &self.ssts {
            sst.gate.send_replace(held);
        }
    }

    pub fn leader(&self) -> &FakeMemtable {
        &self.memtables[0]
    }

    pub fn partition_of(&self, key: &str) -> u32 {
        SlotMap::even(self.config.partitions).partition_of(key.as_bytes(), &TableOptions::default()).0
    }

    /// Stores an SSTable on the given sstable servers (by place) and returns its meta.
    pub fn store(&mut self, partition: u32, records: &[(&str, Option<&str>, u64)], on: &[usize]) -> SstMeta {
        let contents: BTreeMap<Bytes, Stored> = records
            .iter()
            .map(|(k, v, seq)| {
                (
                    Bytes::copy_from_slice(k.as_bytes()),
                    (v.map(|v| Bytes::copy_from_slice(v.as_bytes())), *seq),
                )
            })
            .collect();
        self.store_contents(partition, contents, on)
    }

    fn store_contents(&mut self, partition: u32, contents: BTreeMap<Bytes, Stored>, on: &[usize]) -> SstMeta {
        let counter = self.next_sst;
        self.next_sst += 1;
        let mut meta = sst_meta(counter, b"", b"");
        meta.id.partition = PartitionId(partition);
        meta.min_key = contents.keys().next().cloned().unwrap_or_default();
        meta.max_key = contents.keys().next_back().cloned().unwrap_or_default();
        meta.replicas = on.iter().map(|at| NodeId(*at as u64 + 1)).collect();
        for at in on {
            let id = Bytes::copy_from_slice(&meta.id.to_bytes());
            self.ssts[*at].state.lock().tables.insert(id, contents.clone());
        }
        meta
    }

    /// The default table gets an SSTable on both servers, without a flush (as if it had been there before).
    pub fn add_sst(&mut self, partition: u32, records: &[(&str, Option<&str>, u64)]) -> SstMeta {
        let meta = self.store(partition, records, &[0, 1]);
        self.install_sst(partition, meta.clone());
        meta
    }

    pub fn install_sst(&self, partition: u32, meta: SstMeta) {
        self.leader().with(partition, |p| {
            p.manifest.version.0 += 1;
            if let Some(table) = p.manifest.table_mut(TableId(1)) {
                table.ssts.insert(0, meta);
            }
        });
    }

    /// Freezes and flushes the default table: each of its memtables becomes an SSTable on both servers and is gone. The last one.
    pub fn flush(&mut self, partition: u32) -> SstMeta {
        let leader = self.leader().clone();
        let table = TableId(1);
        leader.with(partition, |p| p.freeze(table));
        loop {
            let contents =
                leader.with_quietly(partition, |p| p.oldest_frozen(table)).expect("it was frozen just now");
            let meta = self.store_contents(partition, contents, &[0, 1]);
            let left = leader.with(partition, |p| {
                p.flush(table, &meta);
                p.oldest_frozen(table)
            });
            if left.is_none() {
                return meta;
            }
        }
    }

    /// Waits until the p-node uses the leader's newest serial and manifest under a lease, and all filters of SSTables are here.
    pub async fn settled(&self, pnode: &PNode, partition: u32) {
        let leader = self.leader();
        until("the p-node is up to date", || {
            let (epoch, serial, version) =
                leader.with_quietly(partition, |p| (p.epoch, p.serial(), p.manifest.version));
            let view = pnode.core().views.peek(PartitionId(partition));
            let current = view.copies.as_ref().is_some_and(|c| c.epoch == epoch && c.serial.0 == serial);
            let filters = view.manifest.ssts().all(|s| s.has_filter());
            let leased = view.leased_copies(&*self.env.clock).is_some();
            current && view.manifest.version == version && leased && filters
        })
        .await;
    }

    pub fn version(&self, partition: u32) -> ManifestVersion {
        self.leader().with_quietly(partition, |p| p.manifest.version)
    }

    /// Leadership of a partition goes to the second memtable server, in a new term, with everything that is there.
    pub fn fail_over(&self, partition: u32) {
        let mut old = self.memtables[0].state.lock();
        let mut p = old.partitions.remove(&partition).expect("led by the first");
        p.epoch.term += 1;
        p.log.clear();
        p.log_start = 0;
        let hint = (2, p.epoch.term);
        old.hints.insert(partition, hint);
        drop(old);
        let mut new = self.memtables[1].state.lock();
        new.hints.remove(&partition);
        new.partitions.insert(partition, p);
        drop(new);
        self.memtables.iter().for_each(|m| m.news.notify_waiters());
    }
}
