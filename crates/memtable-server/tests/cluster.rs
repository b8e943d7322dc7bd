//! Three memtable servers over real sockets: elections, writes, reads, leases, restarts.

mod support;

use std::path::Path;

use bytes::Bytes;
use sextant_common::Env;
use sextant_common::config::{ClusterConfig, LeaseConfig, Server};
use sextant_common::env::{free_addrs, grpc_channel};
use sextant_common::ids::NodeId;
use sextant_memtable_server::{MemtableServer, MemtableServerConfig, Tuning};
use sextant_proto::v1;
use sextant_proto::v1::admin_client::AdminClient;
use sextant_proto::v1::rows_client::RowsClient;
use tonic::transport::Channel;

use support::eventually;

struct Cluster {
    env: Env,
    config: ClusterConfig,
    servers: Vec<Option<MemtableServer>>,
    tuning: Tuning,
    dir: tempfile::TempDir,
}

impl Cluster {
    async fn start(partitions: u32) -> Self {
        Self::start_with(partitions, Tuning { log_segment_bytes: 4 << 20, ..Tuning::default() }).await
    }

    async fn start_with(partitions: u32, tuning: Tuning) -> Self {
        if std::env::var_os("RUST_LOG").is_some() {
            sextant_common::logging::init();
        }
        let addrs = free_addrs(&Env::real(), 4).await.unwrap();
        let server = |i: usize| Server { id: NodeId(i as u64 + 1), addr: addrs[i].clone() };
        let config = ClusterConfig {
            id: "test".into(),
            partitions,
            memtable: (0..3).map(server).collect(),
            // Nobody listens there: flushes fail and are tried again.
            sstable: vec![Server { id: NodeId(1), addr: addrs[3].clone() }],
            lease: LeaseConfig::default(),
        };
        let dir = tempfile::tempdir().unwrap();
        let mut cluster = Self { env: Env::real(), config, servers: vec![None, None, None], tuning, dir };
        for i in 0..3 {
            cluster.start_one(i).await;
        }
        cluster
    }

    async fn start_one(&mut self, i: usize) {
        let config = server_config(&self.config, &self.tuning, self.dir.path(), i);
        self.servers[i] = Some(MemtableServer::start(self.env.clone(), config).await.unwrap());
    }

    async fn stop_one(&mut self, i: usize) {
        if let Some(server) = self.servers[i].take() {
            server.shutdown().await;
        }
    }

    fn rows(&self, i: usize) -> RowsClient<Channel> {
        RowsClient::new(grpc_channel(&self.env.net, &self.config.memtable[i].addr))
    }

    fn admin(&self, i: usize) -> AdminClient<Channel> {
        AdminClient::new(grpc_channel(&self.env.net, &self.config.memtable[i].addr))
    }

    /// Sends a write to whoever takes it.
    async fn write(&self, request: v1::WriteRequest) -> v1::WriteReply {
        eventually(async || {
            for i in 0..3 {
                if self.servers[i].is_none() {
                    continue;
                }
                let batch = v1::WriteBatch { writes: vec![request.clone()] };
                let reply = self.rows(i).write(batch).await.ok()?.into_inner().replies.remove(0);
                match reply.status() {
                    v1::WriteStatus::WriteNotLeader | v1::WriteStatus::WriteRetry => {}
                    _ => return Some(reply),
                }
            }
            None
        })
        .await
    }

    async fn read(&self, partition: u32, key: &str) -> v1::ReadReply {
        let read = v1::ReadRequest { partition, table: 1, key: bytes(key), manifest_version: u64::MAX };
        eventually(async || {
            for i in 0..3 {
                if self.servers[i].is_none() {
                    continue;
                }
                let batch = v1::ReadBatch { batch: 0, reads: vec![read.clone()] };
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

    async fn create_table(&self, partition: u32) {
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

    fn status(&self, i: usize) -> serde_json::Value {
        serde_json::from_str(&self.servers[i].as_ref().unwrap().status()).unwrap()
    }

    /// The server that leads the partition.
    async fn leader(&self, partition: usize) -> usize {
        eventually(async || {
            (0..3)
                .filter(|i| self.servers[*i].is_some())
                .find(|i| self.status(*i)["partitions"][partition]["serving"].as_bool().unwrap_or(false))
        })
        .await
    }
}

fn server_config(cluster: &ClusterConfig, tuning: &Tuning, dir: &Path, i: usize) -> MemtableServerConfig {
    MemtableServerConfig {
        id: cluster.memtable[i].id,
        cluster: cluster.clone(),
        listen: cluster.memtable[i].addr.clone(),
        http: None,
        data_dir: dir.join(format!("memtable-{i}")),
        log_devices: vec![],
        clock: Default::default(),
        tuning: tuning.clone(),
    }
}

fn bytes(s: &str) -> Bytes {
    Bytes::copy_from_slice(s.as_bytes())
}

fn put(partition: u32, key: &str, value: &str) -> v1::WriteRequest {
    let op = v1::WriteOp { table: 1, key: bytes(key), value: bytes(value), ..Default::default() };
    v1::WriteRequest { partition, ops: vec![op], ..Default::default() }
}

/// Waits for a condition, for at most 30 seconds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_are_read_and_survive_a_restart_of_everything() {
    let mut c = Cluster::start(2).await;
    for partition in 0..2 {
        c.create_table(partition).await;
        for i in 0..50 {
            let reply = c.write(put(partition, &format!("k{i}"), &format!("v{i}"))).await;
            assert_eq!(reply.status(), v1::WriteStatus::WriteOk, "{reply:?}");
        }
    }
    let reply = c.read(1, "k7").await;
    assert_eq!((reply.status(), &reply.value[..]), (v1::ReadStatus::ReadValue, &b"v7"[..]));
    assert_eq!(c.read(1, "k99").await.status(), v1::ReadStatus::ReadNoEntry);
    for i in 0..3 {
        c.stop_one(i).await;
    }
    for i in 0..3 {
        c.start_one(i).await;
    }
    for partition in 0..2 {
        for i in 0..50 {
            let reply = c.read(partition, &format!("k{i}")).await;
            assert_eq!(reply.value, bytes(&format!("v{i}")), "{reply:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_leader_is_replaced_and_nothing_acknowledged_is_lost() {
    let mut c = Cluster::start(1).await;
    c.create_table(0).await;
    for i in 0..20 {
        c.write(put(0, &format!("k{i}"), "before")).await;
    }
    let first = c.leader(0).await;
    c.stop_one(first).await;
    for i in 20..40 {
        let reply = c.write(put(0, &format!("k{i}"), "after")).await;
        assert_eq!(reply.status(), v1::WriteStatus::WriteOk);
    }
    assert_ne!(c.leader(0).await, first);
    for i in 0..40 {
        let want = if i < 20 { "before" } else { "after" };
        assert_eq!(c.read(0, &format!("k{i}")).await.value, bytes(want));
    }
    c.start_one(first).await;
    let second = c.leader(0).await;
    c.stop_one(second).await;
    assert_eq!(
        c.read(0, "k39").await.value,
        bytes("after"),
        "the one that came back has caught up or follows"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retry_under_the_same_session_and_number_takes_effect_once() {
    let mut c = Cluster::start(1).await;
    c.create_table(0).await;
    let leader = c.leader(0).await;
    let open = v1::OpenSessionRequest { partition: 0, session: 77 };
    let opened = c.rows(leader).open_session(open).await.unwrap().into_inner();
    assert_eq!(opened.status(), v1::WriteStatus::WriteOk);
    let base = v1::Base { manifest_version: u64::MAX, ..Default::default() };
    let insert = |number| {
        let mut request = put(0, "k", "v");
        (request.session, request.request_no) = (77, number);
        request.ops[0].condition = v1::Condition::Absent.into();
        request.ops[0].base = Some(base);
        request
    };
    let first = c.write(insert(1)).await;
    assert_eq!(first.status(), v1::WriteStatus::WriteOk);
    c.stop_one(leader).await;
    let again = c.write(insert(1)).await;
    assert_eq!(again, first, "also after a failover");
    let failed = c.write(insert(2)).await;
    assert_eq!(failed.status(), v1::WriteStatus::WriteConditionFailed);
    // A copy of the failed one that comes late, when its condition would hold, at yet another leader: still failed.
    let mut delete = put(0, "k", "");
    delete.ops[0].kind = v1::WriteKind::WriteDelete.into();
    assert_eq!(c.write(delete).await.status(), v1::WriteStatus::WriteOk);
    c.start_one(leader).await;
    let second = c.leader(0).await;
    c.stop_one(second).await;
    assert_eq!(c.write(insert(2)).await, failed);
    assert_eq!(c.read(0, "k").await.status(), v1::ReadStatus::ReadTombstone);
    let mut stranger = insert(1);
    stranger.session = 78;
    assert_eq!(c.write(stranger).await.status(), v1::WriteStatus::WriteUnknownSession);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_wrote_nothing_do_not_hold_the_log() {
    // Failed conditions of sessions are entries too, and no memtable ever holds anything that would be flushed.
    let tuning = Tuning {
        log_segment_bytes: 4 << 20,
        freeze_log_bytes: 64 << 10,
        log_entries_kept: 0,
        ..Tuning::default()
    };
    let c = Cluster::start_with(1, tuning).await;
    c.create_table(0).await;
    let leader = c.leader(0).await;
    let open = v1::OpenSessionRequest { partition: 0, session: 77 };
    assert_eq!(
        c.rows(leader).open_session(open).await.unwrap().into_inner().status(),
        v1::WriteStatus::WriteOk
    );
    let mut number = 0;
    let mut persisted_before = 0;
    // Twice, so that it is not the first freeze only.
    for _ in 0..2 {
        persisted_before = eventually(async || {
            for _ in 0..50 {
                number += 1;
                let mut request = put(0, "k", "v");
                (request.session, request.request_no) = (77, number);
                request.ops[0].condition = v1::Condition::Present.into();
                request.ops[0].base = Some(v1::Base { manifest_version: u64::MAX, ..Default::default() });
                assert_eq!(c.write(request).await.status(), v1::WriteStatus::WriteConditionFailed);
            }
            // On followers too.
            let persisted = |i| c.status(i)["partitions"][0]["persisted_index"].as_u64().unwrap();
            let least = (0..3).map(persisted).min().unwrap();
            (least > persisted_before + 20).then_some(least)
        })
        .await;
    }
    let last = c.status(leader)["partitions"][0]["last_index"].as_u64().unwrap();
    assert!(persisted_before <= last);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_configuration_is_replicated_and_outlives_the_files() {
    let mut c = Cluster::start(1).await;
    c.create_table(0).await;
    let configure = async |c: &Cluster, request: v1::ConfigureRequest| {
        eventually(async || {
            let leader = c.leader(0).await;
            let reply = c.admin(leader).configure(request.clone()).await.ok()?.into_inner();
            if reply.done == [0] || reply.errors.iter().any(|e| e.contains("at most")) {
                Some(reply)
            } else {
                None
            }
        })
        .await
    };
    // Whether all servers say so.
    let agreed =
        async |c: &Cluster, revision: u64, lease_ms: u64, leader_lease_ms: u64, memory_bytes: u64| {
            eventually(async || {
                let same = (0..3).all(|i| {
                    let status = c.status(i);
                    let is = |name: &str| status["partitions"][0]["configuration"][name].as_u64().unwrap();
                    is("revision") == revision
                        && is("lease_ms") == lease_ms
                        && is("leader_lease_ms") == leader_lease_ms
                        && is("memory_bytes") == memory_bytes
                });
                same.then_some(())
            })
            .await
        };
    let memory = Tuning::default().memory_bytes;
    agreed(&c, 1, 300, 400, memory).await;
    let shorter =
        v1::ConfigureRequest { lease_ms: Some(150), leader_lease_ms: Some(200), ..Default::default() };
    assert!(configure(&c, shorter).await.errors.is_empty());
    agreed(&c, 2, 150, 200, memory).await;
    let longer = v1::ConfigureRequest { leader_lease_ms: Some(500), ..Default::default() };
    assert!(configure(&c, longer).await.errors.is_empty());
    agreed(&c, 3, 150, 500, memory).await;
    let refused = v1::ConfigureRequest { lease_ms: Some(501), ..Default::default() };
    let refused = configure(&c, refused).await;
    assert!(refused.done.is_empty() && refused.errors[0].contains("lease_ms"), "{refused:?}");
    let smaller = v1::ConfigureRequest { memory_bytes: Some(1 << 20), ..Default::default() };
    assert!(configure(&c, smaller).await.errors.is_empty());
    agreed(&c, 4, 150, 500, 1 << 20).await;
    assert_eq!(c.write(put(0, "k", "v")).await.status(), v1::WriteStatus::WriteOk);
    for i in 0..3 {
        c.stop_one(i).await;
    }
    for i in 0..3 {
        c.start_one(i).await;
    }
    // The files still say 300, 400 and the default.
    agreed(&c, 4, 150, 500, 1 << 20).await;
    assert_eq!(c.read(0, "k").await.value, bytes("v"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_majority_nothing_is_acknowledged_and_no_read_is_answered() {
    let mut c = Cluster::start(1).await;
    c.create_table(0).await;
    c.write(put(0, "k", "v")).await;
    let leader = c.leader(0).await;
    for i in (0..3).filter(|i| *i != leader) {
        c.stop_one(i).await;
    }
    eventually(async || {
        let serving = c.status(leader)["partitions"][0]["serving"].as_bool();
        (serving == Some(false)).then_some(())
    })
    .await;
    let read = v1::ReadRequest { partition: 0, table: 1, key: bytes("k"), manifest_version: u64::MAX };
    let batch = v1::ReadBatch { batch: 0, reads: vec![read] };
    let reply = c.rows(leader).read(batch).await.unwrap().into_inner().replies.remove(0);
    assert!(
        matches!(reply.status(), v1::ReadStatus::ReadNotLeader | v1::ReadStatus::ReadNotReady),
        "no stale answer: {reply:?}"
    );
}
