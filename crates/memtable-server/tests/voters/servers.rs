//! Four servers, some of which vote.

use std::time::Duration;

use bytes::Bytes;
use sextant_common::{Error, ErrorKind};
use sextant_environment::Env;
use sextant_environment::config::{ClusterConfig, LeaseConfig, Server};
use sextant_environment::env::{Party, cluster_channel, error_of, free_addrs};
use sextant_memtable_server::{MemtableServer, MemtableServerConfig, Tuning};
use sextant_proto::v1;
use sextant_proto::v1::admin_client::AdminClient;
use sextant_proto::v1::raft_client::RaftClient;
use sextant_proto::v1::rows_client::RowsClient;
use tonic::transport::Channel;

use crate::support::{self, eventually};

/// Servers of the configuration; server `i` has id `i + 1`.
pub const SERVERS: usize = 4;

pub struct Cluster {
    pub env: Env,
    pub config: ClusterConfig,
    pub servers: Vec<Option<MemtableServer>>,
    pub dir: tempfile::TempDir,
    /// What was acknowledged.
    pub written: Vec<String>,
}

impl Cluster {
    /// As a tool of the cluster: servers answer nobody else.
    pub fn channel(&self, i: usize) -> Channel {
        cluster_channel(&self.env.net, &self.config.memtable[i].addr, &self.config, Party::TOOL, None)
    }

    pub async fn start() -> Self {
        Self::found(SERVERS).await
    }

    /// Starts the first `founders` servers; the configuration names no others yet.
    pub async fn found(founders: usize) -> Self {
        if std::env::var_os("RUST_LOG").is_some() {
            sextant_environment::logging::init();
        }
        let addrs = free_addrs(&Env::real(), SERVERS + 1).await.unwrap();
        let server = |i: usize| Server::new(i as u64 + 1, &addrs[i]);
        let config = ClusterConfig {
            id: "test".into(),
            partitions: 1,
            memtable: (0..founders).map(server).collect(),
            // It has nothing and takes nothing.
            sstable: vec![Server::new(1, addrs[SERVERS].clone())],
            lease: LeaseConfig::default(),
        };
        support::sstable::serve_nothing(&addrs[SERVERS]);
        let dir = tempfile::tempdir().unwrap();
        let servers = (0..SERVERS).map(|_| None).collect();
        let mut cluster = Self { env: Env::real(), config, servers, dir, written: Vec::new() };
        for i in 0..founders {
            cluster.start_one(i).await;
        }
        cluster.config.memtable = (0..SERVERS).map(server).collect();
        cluster
    }

    pub async fn start_one(&mut self, i: usize) {
        let config = MemtableServerConfig {
            id: self.config.memtable[i].id,
            cluster: self.config.clone(),
            listen: self.config.memtable[i].addr.clone(),
            http: None,
            data_dir: self.dir.path().join(format!("memtable-{i}")),
            log_devices: vec![],
            clock: Default::default(),
            tls: None,
            tuning: Tuning { log_segment_bytes: 4 << 20, ..Tuning::default() },
        };
        // (On a busy machine a server that was stopped may hold its directories a little longer.)
        let started =
            eventually(async || match MemtableServer::start(self.env.clone(), config.clone()).await {
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

    pub fn up(&self) -> impl Iterator<Item = usize> {
        (0..SERVERS).filter(|i| self.servers[*i].is_some())
    }

    pub fn partition(&self, i: usize) -> serde_json::Value {
        let status = self.servers[i].as_ref().unwrap().status();
        serde_json::from_str::<serde_json::Value>(&status).unwrap()["partitions"][0].clone()
    }

    pub async fn leader(&self) -> usize {
        eventually(async || self.up().find(|i| self.partition(*i)["serving"] == true)).await
    }

    /// Writes a key until it is acknowledged, and remembers it.
    pub async fn write(&mut self, key: &str) {
        let op = v1::WriteOp {
            table: 1,
            key: Bytes::copy_from_slice(key.as_bytes()),
            value: Bytes::copy_from_slice(key.as_bytes()),
            ..Default::default()
        };
        let write = v1::WriteRequest { partition: 0, ops: vec![op], ..Default::default() };
        eventually(async || {
            for i in self.up() {
                let mut rows = RowsClient::new(self.channel(i));
                let batch = v1::WriteBatch { writes: vec![write.clone()], ..Default::default() };
                let sent = tokio::time::timeout(Duration::from_secs(2), rows.write(batch)).await;
                let Ok(Ok(reply)) = sent else { continue };
                if reply.into_inner().replies.remove(0).status() == v1::WriteStatus::WriteOk {
                    return Some(());
                }
            }
            None
        })
        .await;
        self.written.push(key.to_owned());
    }

    /// Whoever serves has everything that was acknowledged.
    pub async fn check(&self) {
        for key in &self.written {
            let value = eventually(async || {
                let i = self.leader().await;
                let key = Bytes::copy_from_slice(key.as_bytes());
                let read = v1::ReadRequest {
                    partition: 0,
                    table: 1,
                    key,
                    manifest_version: u64::MAX,
                    register: false,
                };
                let mut rows = RowsClient::new(self.channel(i));
                let reply =
                    rows.read(v1::ReadBatch { reads: vec![read], ..Default::default() }).await.ok()?;
                let reply = reply.into_inner().replies.remove(0);
                match reply.status() {
                    v1::ReadStatus::ReadNotLeader | v1::ReadStatus::ReadNotReady => None,
                    _ => Some(reply.value),
                }
            })
            .await;
            assert_eq!(&value[..], key.as_bytes());
        }
    }

    /// Asks all servers, in the name of one, for it to be let in as an incarnation (0: asks for nothing). What each of them is.
    pub async fn wish(&self, from: u64, let_in: u64) -> Vec<u64> {
        let cluster = format!("{}/{:016x}", self.config.id, self.config.fingerprint());
        let mut incarnations = Vec::new();
        for i in self.up() {
            let answer = eventually(async || {
                let (to, cluster) = (i as u64 + 1, cluster.clone().into());
                let message = v1::IsFoundedRequest { partition: 0, to, cluster, from, let_in };
                RaftClient::new(self.channel(i)).is_founded(message).await.ok()
            })
            .await;
            incarnations.push(answer.into_inner().incarnation);
        }
        incarnations
    }

    /// Asks one server, once.
    pub async fn ask(&self, via: usize, voters: &[u64]) -> Result<Vec<u64>, Error> {
        let mut admin = AdminClient::new(self.channel(via));
        let request = v1::ChangeVotersRequest { partition: 0, voters: voters.to_vec() };
        Ok(admin.change_voters(request).await.map_err(error_of)?.into_inner().voters)
    }

    /// Has whoever leads leave the voters, until it is done or refused for good. Who it was.
    pub async fn remove_leader(&self) -> Result<usize, Error> {
        eventually(async || {
            let leader = self.leader().await;
            // Of a new partition the configuration may still be changing, and leadership as well.
            let rest = without(&[leader as u64 + 1]);
            match self.ask(leader, &rest).await {
                Err(e) if self.passes(&e, &rest) => None,
                result => Some(result.map(|_| leader)),
            }
        })
        .await
    }

    /// Whether a change to these voters, refused like this, may be made later.
    fn passes(&self, refused: &Error, voters: &[u64]) -> bool {
        // Servers that are up are slow to answer on a busy machine.
        let is_up = |id: &u64| self.servers.get(*id as usize - 1).is_some_and(Option::is_some);
        let late = ["does not answer", "do not catch up", "and have the log"];
        let is_late = || voters.iter().all(is_up) && late.iter().any(|what| refused.message.contains(what));
        refused.is_retryable() || refused.kind == ErrorKind::Unavailable || is_late()
    }

    /// Asks whoever leads, until it is done or refused for good.
    pub async fn change(&self, voters: &[u64]) -> Result<Vec<u64>, Error> {
        eventually(async || match self.ask(self.leader().await, voters).await {
            Err(e) if self.passes(&e, voters) => None,
            result => Some(result),
        })
        .await
    }

    /// The leader says that these vote, and nobody learns.
    pub async fn settled(&self, voters: &[u64]) {
        eventually(async || {
            let partition = self.partition(self.leader().await);
            let is = serde_json::json!(voters);
            (partition["voters"] == is && partition["learners"] == serde_json::json!([])).then_some(())
        })
        .await;
    }

    /// A server has everything that the leader has.
    pub async fn caught_up(&self, i: usize) {
        eventually(async || {
            let last = self.partition(self.leader().await)["last_index"].as_u64();
            (self.partition(i)["committed_index"].as_u64() >= last).then_some(())
        })
        .await;
    }

    /// Asks whoever leads, until it leads.
    pub async fn transfer(&self, to: u64) {
        let leads = async || self.ask_transfer(to).await.is_ok_and(|leader| leader == to).then_some(());
        eventually(leads).await;
    }

    /// Asks whoever leads, until there is an answer. Who leads then: on a busy machine it may be another one; and one that is slow is
    /// refused.
    pub async fn ask_transfer(&self, to: u64) -> Result<u64, Error> {
        eventually(async || {
            let mut admin = AdminClient::new(self.channel(self.leader().await));
            match admin.transfer(v1::TransferRequest { partition: 0, to }).await.map_err(error_of) {
                Err(e) if e.is_retryable() || e.kind == ErrorKind::Unavailable => None,
                result => Some(result.map(|reply| reply.into_inner().leader)),
            }
        })
        .await
    }
}

/// All ids but these.
pub fn without(ids: &[u64]) -> Vec<u64> {
    (1..=SERVERS as u64).filter(|id| !ids.contains(id)).collect()
}
