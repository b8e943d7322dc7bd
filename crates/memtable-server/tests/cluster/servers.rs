//! The three servers, and their client.

use std::path::Path;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use sextant_common::ErrorKind;
use sextant_environment::Env;
use sextant_environment::config::{ClusterConfig, LeaseConfig, Server};
use sextant_environment::env::{Party, cluster_channel, free_addrs};
use sextant_memtable_server::{MemtableServer, MemtableServerConfig, Tuning};
use sextant_proto::v1;
use sextant_proto::v1::admin_client::AdminClient;
use sextant_proto::v1::lease_client::LeaseClient;
use sextant_proto::v1::rows_client::RowsClient;
use sextant_rules::probe::{PausePoint, Probe, ProbeEvent};
use tonic::transport::Channel;

use crate::support::{self, eventually};

pub struct Cluster {
    pub env: Env,
    /// The servers'.
    pub envs: Vec<Env>,
    pub config: ClusterConfig,
    pub servers: Vec<Option<MemtableServer>>,
    pub tuning: Tuning,
    pub dir: tempfile::TempDir,
}

/// Stops a leader's worker for a moment between a group's bits and its proposal. What happens meanwhile, it sees when the group is
/// on its way into the log.
pub struct HoldsUpProposals;

impl Probe for HoldsUpProposals {
    fn event(&self, _event: ProbeEvent) {}

    fn pause(&self, at: PausePoint) -> Option<Duration> {
        (at == PausePoint::BitsOut).then_some(Duration::from_millis(2))
    }
}

/// What a lease client of the test has seen of a partition.
#[derive(Default)]
pub struct Held {
    /// Of the newest lease.
    pub mode: AtomicI32,
    pub acknowledged: AtomicU64,
}

impl Cluster {
    /// As a tool of the cluster: servers answer nobody else.
    pub fn channel(&self, i: usize) -> Channel {
        cluster_channel(&self.env.net, &self.config.memtable[i].addr, &self.config, Party::TOOL, None)
    }

    pub async fn start(partitions: u32) -> Self {
        let threads = partitions as usize;
        Self::start_with(partitions, Tuning { threads, log_segment_bytes: 4 << 20, ..Tuning::default() })
            .await
    }

    pub async fn start_with(partitions: u32, tuning: Tuning) -> Self {
        if std::env::var_os("RUST_LOG").is_some() {
            sextant_environment::logging::init();
        }
        Self::start_on(vec![Env::real(); 3], partitions, tuning, LeaseConfig::default()).await
    }

    /// Each server in an environment of its own.
    pub async fn start_on(envs: Vec<Env>, partitions: u32, tuning: Tuning, lease: LeaseConfig) -> Self {
        let addrs = free_addrs(&Env::real(), 4).await.unwrap();
        let server = |i: usize| Server::new(i as u64 + 1, &addrs[i]);
        let config = ClusterConfig {
            id: "test".into(),
            partitions,
            memtable: (0..3).map(server).collect(),
            // It has nothing and takes nothing: flushes fail and are tried again.
            sstable: vec![Server::new(1, addrs[3].clone())],
            lease,
        };
        support::sstable::serve_nothing(&addrs[3]);
        let dir = tempfile::tempdir().unwrap();
        let servers = vec![None, None, None];
        let mut cluster = Self { env: Env::real(), envs, config, servers, tuning, dir };
        for i in 0..3 {
            cluster.start_one(i).await;
        }
        cluster
    }

    pub async fn start_one(&mut self, i: usize) {
        let config = server_config(&self.config, &self.tuning, self.dir.path(), i);
        // (On a busy machine a server that was stopped may hold its directories a little longer.)
        let started =
            eventually(async || match MemtableServer::start(self.envs[i].clone(), config.clone()).await {
                Err(e) if e.kind == ErrorKind::Unavailable => None,
                started => Some(started.unwrap()),
            });
        self.servers[i] = Some(started.await);
    }

    pub async fn stop_one(&mut self, i: usize) {
        if let Some(server) = self.servers[i].take() {
            server.shutdown().await;
        }
    }

    pub fn rows(&self, i: usize) -> RowsClient<Channel> {
        RowsClient::new(self.channel(i))
    }

    pub fn admin(&self, i: usize) -> AdminClient<Channel> {
        AdminClient::new(self.channel(i))
    }

    /// Opens a session in the first partition.
    pub async fn open_session(&self, session: u64) {
        let open = v1::OpenSessionRequest { partition: 0, session };
        eventually(async || {
            let leader = self.leader(0).await;
            let opened = self.rows(leader).open_session(open).await.ok()?.into_inner();
            (opened.status() == v1::WriteStatus::WriteOk).then_some(())
        })
        .await;
    }

    /// Sends a write to whoever takes it, again if its outcome is unknown.
    pub async fn write(&self, request: v1::WriteRequest) -> v1::WriteReply {
        eventually(async || {
            for i in 0..3 {
                if self.servers[i].is_none() {
                    continue;
                }
                let batch = v1::WriteBatch { writes: vec![request.clone()], ..Default::default() };
                let reply = self.rows(i).write(batch).await.ok()?.into_inner().replies.remove(0);
                match reply.status() {
                    v1::WriteStatus::WriteNotLeader
                    | v1::WriteStatus::WriteRetry
                    | v1::WriteStatus::WriteOverloaded
                    | v1::WriteStatus::WriteOutcomeUnknown => {}
                    _ => return Some(reply),
                }
            }
            None
        })
        .await
    }

    pub async fn read(&self, partition: u32, key: &str) -> v1::ReadReply {
        let read = v1::ReadRequest {
            partition,
            table: 1,
            key: bytes(key),
            manifest_version: u64::MAX,
            register: false,
        };
        eventually(async || {
            for i in 0..3 {
                if self.servers[i].is_none() {
                    continue;
                }
                let batch = v1::ReadBatch { reads: vec![read.clone()], ..Default::default() };
                let reply = self.rows(i).read(batch).await.ok()?.into_inner().replies.remove(0);
                match reply.status() {
                    v1::ReadStatus::ReadNotLeader | v1::ReadStatus::ReadNotReady => {}
                    _ => return Some(reply),
                }
            }
            None
        })
        .await
    }

    /// An entry that only remembers an answer: that of a session's write whose condition does not hold.
    pub async fn write_nothing(&self, session: u64, number: u64) {
        let mut request = put(0, "k", "v");
        (request.session, request.request_no) = (session, number);
        request.ops[0].condition = v1::Condition::Present.into();
        request.ops[0].base = Some(v1::Base { manifest_version: u64::MAX, ..Default::default() });
        assert_eq!(self.write(request).await.status(), v1::WriteStatus::WriteConditionFailed);
    }

    pub async fn create_table(&self, partition: u32) {
        eventually(async || {
            for i in 0..3 {
                let request =
                    v1::EnsureTableRequest { partition, name: "default".into(), options: None, id: 1 };
                let reply = self.admin(i).ensure_table(request).await.ok()?.into_inner();
                if reply.status() == v1::WriteStatus::WriteOk {
                    return Some(());
                }
            }
            None
        })
        .await;
    }

    /// Holds leases of a partition as a p-node does, for ever: each pull acknowledges what the one before has brought.
    pub async fn hold(&self, partition: u32, held: &Held) {
        let servers: Vec<_> =
            (0..self.config.memtable.len()).map(|i| LeaseClient::new(self.channel(i))).collect();
        for mut client in servers.into_iter().cycle() {
            let holder = Bytes::from(vec![partition as u8 + 1; 16]);
            let fetch = v1::FetchFiltersRequest { holder: holder.clone(), partition, ..Default::default() };
            let fetched = async {
                let mut chunks = client.fetch_filters(fetch).await.ok()?.into_inner();
                let header = chunks.message().await.ok()??.header?;
                while chunks.message().await.ok()?.is_some() {}
                (header.status() == v1::PartitionStatus::PartitionOk).then_some(header)
            };
            let Some(header) = fetched.await else { continue };
            let (epoch, mut serial) = (header.epoch, header.serial);
            loop {
                let position = v1::PartitionPosition {
                    partition,
                    epoch,
                    serial,
                    has_filters: true,
                    ..Default::default()
                };
                let positions = vec![position];
                let pull = v1::PullRequest { holder: holder.clone(), positions, ..Default::default() };
                let pulled = async {
                    let mut replies = client.pull(tokio_stream::iter([pull])).await.ok()?.into_inner();
                    replies.message().await.ok()??.updates.pop()
                };
                let Some(update) = pulled.await else { break };
                use v1::PartitionStatus as S;
                if !matches!(update.status(), S::PartitionOk | S::PartitionThrottled) {
                    break;
                }
                serial = update.serial_to;
                held.acknowledged.store(serial, Ordering::Relaxed);
                if let Some(lease) = update.lease {
                    held.mode.store(lease.mode, Ordering::Relaxed);
                }
            }
        }
    }

    /// Writes a new key after the other, for ever, and counts those that are acknowledged.
    pub async fn keep_writing(&self, partition: u32, writer: u32, written: &AtomicU64) {
        let servers: Vec<_> = (0..3).map(|i| self.rows(i)).collect();
        let mut at = 0;
        for n in 0u64.. {
            let write = put(partition, &format!("{writer}-{n}"), "v");
            let batch = v1::WriteBatch { writes: vec![write], ..Default::default() };
            let reply = servers[at].clone().write(batch).await.ok().map(|r| r.into_inner().replies.remove(0));
            match reply {
                Some(reply) if reply.status() == v1::WriteStatus::WriteOk => {
                    written.fetch_add(1, Ordering::Relaxed);
                }
                _ => {
                    at = (at + 1) % 3;
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            }
        }
    }

    pub fn status(&self, i: usize) -> serde_json::Value {
        serde_json::from_str(&self.servers[i].as_ref().unwrap().status()).unwrap()
    }

    /// The server that leads the partition.
    pub async fn leader(&self, partition: usize) -> usize {
        eventually(async || {
            (0..3)
                .filter(|i| self.servers[*i].is_some())
                .find(|i| self.status(*i)["partitions"][partition]["serving"].as_bool().unwrap_or(false))
        })
        .await
    }
}

pub fn server_config(cluster: &ClusterConfig, tuning: &Tuning, dir: &Path, i: usize) -> MemtableServerConfig {
    MemtableServerConfig {
        id: cluster.memtable[i].id,
        cluster: cluster.clone(),
        listen: cluster.memtable[i].addr.clone(),
        http: None,
        data_dir: dir.join(format!("memtable-{i}")),
        log_devices: vec![],
        clock: Default::default(),
        tls: None,
        tuning: tuning.clone(),
    }
}

pub fn bytes(s: &str) -> Bytes {
    Bytes::copy_from_slice(s.as_bytes())
}

pub fn put(partition: u32, key: &str, value: &str) -> v1::WriteRequest {
    let op = v1::WriteOp { table: 1, key: bytes(key), value: bytes(value), ..Default::default() };
    v1::WriteRequest { partition, ops: vec![op], ..Default::default() }
}
