//! Leadership that is given up: on request, and because the log's device hangs.

mod support;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use sextant_common::ErrorKind;
use sextant_environment::Env;
use sextant_environment::config::{ClusterConfig, LeaseConfig, Server};
use sextant_environment::env::{Party, cluster_channel, error_of, free_addrs};
use sextant_environment::vfs::{OpenMode, RealVfs, Vfs, VfsFile};
use sextant_memtable_server::{MemtableServer, MemtableServerConfig, Tuning};
use sextant_proto::v1;
use sextant_proto::v1::admin_client::AdminClient;
use sextant_proto::v1::rows_client::RowsClient;
use tonic::transport::Channel;

use support::eventually;

/// A disk whose fsyncs can be made to hang.
#[derive(Clone, Default)]
struct Gate(Arc<(Mutex<bool>, Condvar)>);

impl Gate {
    fn set_hung(&self, hung: bool) {
        *self.0.0.lock() = hung;
        self.0.1.notify_all();
    }

    fn pass(&self) {
        let mut hung = self.0.0.lock();
        self.0.1.wait_while(&mut hung, |hung| *hung);
    }
}

struct GatedVfs {
    inner: RealVfs,
    gate: Gate,
}

struct GatedFile {
    inner: Arc<dyn VfsFile>,
    gate: Gate,
}

impl Vfs for GatedVfs {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn VfsFile>> {
        let inner = self.inner.open(path, mode)?;
        Ok(Arc::new(GatedFile { inner, gate: self.gate.clone() }))
    }
    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        self.inner.create_dir_all(path)
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<PathBuf>> {
        self.inner.list(dir)
    }
    fn exists(&self, path: &Path) -> bool {
        self.inner.exists(path)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.inner.rename(from, to)
    }
    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.inner.remove_file(path)
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.inner.sync_dir(dir)
    }
    fn lock(&self, path: &Path) -> io::Result<Box<dyn Send + Sync>> {
        self.inner.lock(path)
    }
}

impl VfsFile for GatedFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.inner.read_at(buf, offset)
    }
    fn write_all_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.inner.write_all_at(buf, offset)
    }
    fn sync_data(&self) -> io::Result<()> {
        self.gate.pass();
        self.inner.sync_data()
    }
    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.inner.set_len(len)
    }
}

struct Cluster {
    env: Env,
    config: ClusterConfig,
    servers: Vec<MemtableServer>,
    gates: Vec<Gate>,
    _dir: tempfile::TempDir,
}

impl Cluster {
    /// As a tool of the cluster: servers answer nobody else.
    fn channel(&self, i: usize) -> Channel {
        cluster_channel(&self.env.net, &self.config.memtable[i].addr, &self.config, Party::TOOL, None)
    }

    async fn start() -> Self {
        let addrs = free_addrs(&Env::real(), 4).await.unwrap();
        let server = |i: usize| Server::new(i as u64 + 1, &addrs[i]);
        let config = ClusterConfig {
            id: "test".into(),
            partitions: 1,
            memtable: (0..3).map(server).collect(),
            sstable: vec![Server::new(1, addrs[3].clone())],
            lease: LeaseConfig::default(),
        };
        support::sstable::serve_nothing(&addrs[3]);
        let dir = tempfile::tempdir().unwrap();
        let (mut servers, mut gates) = (Vec::new(), Vec::new());
        for i in 0..3 {
            let gate = Gate::default();
            let env = Env { vfs: Arc::new(GatedVfs { inner: RealVfs, gate: gate.clone() }), ..Env::real() };
            let config = MemtableServerConfig {
                id: config.memtable[i].id,
                cluster: config.clone(),
                listen: config.memtable[i].addr.clone(),
                http: None,
                data_dir: dir.path().join(format!("memtable-{i}")),
                log_devices: vec![],
                clock: Default::default(),
                tls: None,
                tuning: Tuning { log_segment_bytes: 4 << 20, disk_stall_ms: 500, ..Tuning::default() },
            };
            servers.push(MemtableServer::start(env, config).await.unwrap());
            gates.push(gate);
        }
        Self { env: Env::real(), config, servers, gates, _dir: dir }
    }

    fn partition(&self, i: usize) -> serde_json::Value {
        let status: serde_json::Value = serde_json::from_str(&self.servers[i].status()).unwrap();
        status["partitions"][0].clone()
    }

    /// Who serves, of those that are asked.
    async fn leader(&self, among: &[usize]) -> usize {
        eventually(async || among.iter().copied().find(|i| self.partition(*i)["serving"] == true)).await
    }

    /// Writes through one server, once.
    async fn try_write(&self, i: usize, key: &str) -> Option<v1::WriteReply> {
        let op = v1::WriteOp {
            table: 1,
            key: Bytes::copy_from_slice(key.as_bytes()),
            value: Bytes::from_static(b"v"),
            ..Default::default()
        };
        let write = v1::WriteRequest { partition: 0, ops: vec![op], ..Default::default() };
        let mut rows = RowsClient::new(self.channel(i));
        let sent = rows.write(v1::WriteBatch { writes: vec![write], ..Default::default() });
        let reply = tokio::time::timeout(Duration::from_secs(2), sent).await.ok()?.ok()?;
        reply.into_inner().replies.pop()
    }

    /// Until one of these has taken it.
    async fn write(&self, among: &[usize], key: &str) {
        eventually(async || {
            for i in among {
                let reply = self.try_write(*i, key).await;
                if reply.is_some_and(|r| r.status() == v1::WriteStatus::WriteOk) {
                    return Some(());
                }
            }
            None
        })
        .await;
    }

    async fn read(&self, i: usize, key: &str) -> Option<v1::ReadReply> {
        let key = Bytes::copy_from_slice(key.as_bytes());
        let read =
            v1::ReadRequest { partition: 0, table: 1, key, manifest_version: u64::MAX, register: false };
        let mut rows = RowsClient::new(self.channel(i));
        let reply = rows.read(v1::ReadBatch { reads: vec![read], ..Default::default() }).await.ok()?;
        reply.into_inner().replies.pop()
    }

    /// What comes of asking a leader that led before and after: a busy machine may change leaders at any time.
    async fn under_one_leader<T>(&self, mut ask: impl AsyncFnMut(usize) -> T) -> T {
        eventually(async || {
            let leader = self.leader(&ALL).await;
            let term = self.partition(leader)["term"].clone();
            let answer = ask(leader).await;
            let after = self.partition(leader);
            (after["serving"] == true && after["term"] == term).then_some(answer)
        })
        .await
    }

    async fn transfer(&self, via: usize, to: usize) -> Result<v1::TransferReply, tonic::Status> {
        let mut admin = AdminClient::new(self.channel(via));
        let request = v1::TransferRequest { partition: 0, to: to as u64 + 1 };
        admin.transfer(request).await.map(tonic::Response::into_inner)
    }
}

const ALL: [usize; 3] = [0, 1, 2];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leadership_goes_where_it_is_sent_and_nothing_is_lost() {
    let c = Cluster::start().await;
    c.write(&ALL, "before").await;
    for turn in 0..3 {
        let (leader, term, reply) = eventually(async || {
            let leader = c.leader(&ALL).await;
            let term = c.partition(leader)["term"].as_u64().unwrap();
            match c.transfer(leader, (leader + 1) % 3).await {
                Ok(reply) => Some((leader, term, reply)),
                // A busy machine may change leaders at any time, and a successor may be slow.
                Err(e) => {
                    let e = error_of(e);
                    let is_slow = e.message.contains("stays where it is");
                    assert!(e.is_retryable() || e.kind == ErrorKind::Unavailable || is_slow, "{e}");
                    None
                }
            }
        })
        .await;
        assert!(reply.term > term, "{reply:?}");
        // Another may have been faster; then it leads. Whoever let go does not serve by itself.
        eventually(async || (c.partition(leader)["term"].as_u64() >= Some(reply.term)).then_some(())).await;
        let next = c.leader(&ALL).await;
        c.write(&ALL, &format!("turn{turn}")).await;
        let seen = eventually(async || {
            let reply = c.read(c.leader(&ALL).await, "before").await?;
            (reply.status() == v1::ReadStatus::ReadValue).then_some(reply)
        })
        .await;
        assert_eq!(&seen.value[..], b"v", "server {next}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transfer_is_refused_by_a_follower_and_to_nobody() {
    let c = Cluster::start().await;
    c.write(&ALL, "k").await;
    let refusal = |answer: Result<v1::TransferReply, tonic::Status>| error_of(answer.unwrap_err()).kind;
    let by_a_follower = c.under_one_leader(async |leader| c.transfer((leader + 1) % 3, leader).await).await;
    assert_eq!(refusal(by_a_follower), ErrorKind::NotLeader);
    let to_nobody = c.under_one_leader(async |leader| c.transfer(leader, 7).await).await;
    assert_eq!(refusal(to_nobody), ErrorKind::Invalid);
    let (leader, stays) = eventually(async || {
        let leader = c.leader(&ALL).await;
        // (It has to have its lease at that moment.)
        Some((leader, c.transfer(leader, leader).await.ok()?))
    })
    .await;
    assert_eq!(stays.leader, leader as u64 + 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_whose_log_device_hangs_hands_over_and_never_serves_in_that_term_again() {
    let c = Cluster::start().await;
    c.write(&ALL, "before").await;
    let hung = c.leader(&ALL).await;
    let others: Vec<usize> = ALL.into_iter().filter(|i| *i != hung).collect();
    c.gates[hung].set_hung(true);
    // Something must be written for a device to hang on.
    c.write(&ALL, "during").await;
    let next = c.leader(&others).await;
    assert_ne!(c.partition(hung)["serving"], true);
    c.write(&others, "after").await;
    c.gates[hung].set_hung(false);
    // It follows again, and has everything.
    eventually(async || {
        let (ours, theirs) = (c.partition(hung), c.partition(next));
        (ours["committed_index"] == theirs["committed_index"] && ours["leader"] == theirs["leader"])
            .then_some(())
    })
    .await;
    for key in ["before", "during", "after"] {
        let reply = eventually(async || {
            let reply = c.read(c.leader(&ALL).await, key).await?;
            (reply.status() == v1::ReadStatus::ReadValue).then_some(reply)
        })
        .await;
        assert_eq!(&reply.value[..], b"v", "{key}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_is_told_to_stop_hands_over_first_and_the_last_ones_just_stop() {
    let mut tries = 0;
    let (mut c, leader, term) = eventually(async || {
        tries += 1;
        assert!(tries <= 3, "it does not stop when another leads");
        let mut c = Cluster::start().await;
        c.write(&ALL, "before").await;
        let leader = c.leader(&ALL).await;
        let term = c.partition(leader)["term"].as_u64().unwrap();
        let stopping = c.servers.remove(leader);
        let metrics = stopping.metrics().clone();
        let before = metrics.handovers.get();
        stopping.shutdown().await;
        // (A busy machine may have changed leaders before, and a successor may be too slow.)
        (metrics.handovers.get() > before).then_some((c, leader, term))
    })
    .await;
    c.config.memtable.remove(leader);
    let left = [0, 1];
    let next = c.leader(&left).await;
    assert!(c.partition(next)["term"].as_u64() > Some(term));
    c.write(&left, "after").await;
    // Both at once: each may ask the other, and neither waits for a leadership that nobody takes.
    let stops = c.servers.drain(..).map(MemtableServer::shutdown);
    futures::future::join_all(stops).await;
}
