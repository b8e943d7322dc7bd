//! Three memtable servers over real sockets: elections, writes, reads, leases, restarts.

mod support;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use sextant_common::ids::NodeId;
use sextant_environment::Env;
use sextant_environment::config::{ClusterConfig, LeaseConfig, Server};
use sextant_environment::env::{Party, cluster_channel, free_addrs};
use sextant_environment::vfs::IoKind;
use sextant_memtable_server::{MemtableServer, MemtableServerConfig, Tuning};
use sextant_proto::v1;
use sextant_proto::v1::admin_client::AdminClient;
use sextant_proto::v1::lease_client::LeaseClient;
use sextant_proto::v1::rows_client::RowsClient;
use sextant_rules::probe::{PausePoint, Probe, ProbeEvent};
use sextant_simulated::{Fault, FaultyVfs};
use tonic::transport::Channel;

use support::eventually;

struct Cluster {
    env: Env,
    /// The servers'.
    envs: Vec<Env>,
    config: ClusterConfig,
    servers: Vec<Option<MemtableServer>>,
    tuning: Tuning,
    dir: tempfile::TempDir,
}

/// Stops a leader's worker for a moment between a group's bits and its proposal. What happens meanwhile, it sees when the group is
/// on its way into the log.
struct HoldsUpProposals;

impl Probe for HoldsUpProposals {
    fn event(&self, _event: ProbeEvent) {}

    fn pause(&self, at: PausePoint) -> Option<Duration> {
        (at == PausePoint::BitsOut).then_some(Duration::from_millis(2))
    }
}

/// What a lease client of the test has seen of a partition.
#[derive(Default)]
struct Held {
    /// Of the newest lease.
    mode: AtomicI32,
    acknowledged: AtomicU64,
}

impl Cluster {
    /// As a tool of the cluster: servers answer nobody else.
    fn channel(&self, i: usize) -> Channel {
        cluster_channel(&self.env.net, &self.config.memtable[i].addr, &self.config, Party::TOOL, None)
    }

    async fn start(partitions: u32) -> Self {
        Self::start_with(partitions, Tuning { log_segment_bytes: 4 << 20, ..Tuning::default() }).await
    }

    async fn start_with(partitions: u32, tuning: Tuning) -> Self {
        if std::env::var_os("RUST_LOG").is_some() {
            sextant_environment::logging::init();
        }
        Self::start_on(vec![Env::real(); 3], partitions, tuning, LeaseConfig::default()).await
    }

    /// Each server in an environment of its own.
    async fn start_on(envs: Vec<Env>, partitions: u32, tuning: Tuning, lease: LeaseConfig) -> Self {
        let addrs = free_addrs(&Env::real(), 4).await.unwrap();
        let server = |i: usize| Server { id: NodeId(i as u64 + 1), addr: addrs[i].clone() };
        let config = ClusterConfig {
            id: "test".into(),
            partitions,
            memtable: (0..3).map(server).collect(),
            // It has nothing and takes nothing: flushes fail and are tried again.
            sstable: vec![Server { id: NodeId(1), addr: addrs[3].clone() }],
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

    async fn start_one(&mut self, i: usize) {
        let config = server_config(&self.config, &self.tuning, self.dir.path(), i);
        self.servers[i] = Some(MemtableServer::start(self.envs[i].clone(), config).await.unwrap());
    }

    async fn stop_one(&mut self, i: usize) {
        if let Some(server) = self.servers[i].take() {
            server.shutdown().await;
        }
    }

    fn rows(&self, i: usize) -> RowsClient<Channel> {
        RowsClient::new(self.channel(i))
    }

    fn admin(&self, i: usize) -> AdminClient<Channel> {
        AdminClient::new(self.channel(i))
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

    /// Holds leases of a partition as a p-node does, for ever: each pull acknowledges what the one before has brought.
    async fn hold(&self, partition: u32, held: &Held) {
        let servers: Vec<_> =
            (0..self.config.memtable.len()).map(|i| LeaseClient::new(self.channel(i))).collect();
        for mut client in servers.into_iter().cycle() {
            let holder = Bytes::from(vec![partition as u8 + 1; 16]);
            let fetch = v1::FetchFiltersRequest { holder: holder.clone(), partition };
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
    async fn keep_writing(&self, partition: u32, writer: u32, written: &AtomicU64) {
        let servers: Vec<_> = (0..3).map(|i| self.rows(i)).collect();
        let mut at = 0;
        for n in 0u64.. {
            let write = put(partition, &format!("{writer}-{n}"), "v");
            let batch = v1::WriteBatch { writes: vec![write] };
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
async fn a_follower_whose_disk_is_full_refuses_a_snapshot_and_takes_it_when_there_is_room() {
    // The error of its disk ended the replica's Raft, and so the process, and again after each start.
    let tuning = Tuning {
        log_segment_bytes: 4 << 20,
        freeze_log_bytes: 64 << 10,
        log_entries_kept: 0,
        ..Tuning::default()
    };
    let disks: Vec<FaultyVfs> = (0..3).map(FaultyVfs::new).collect();
    let envs = disks.iter().map(|disk| Env { vfs: Arc::new(disk.clone()), ..Env::real() });
    let mut c = Cluster::start_on(envs.collect(), 1, tuning, LeaseConfig::default()).await;
    c.create_table(0).await;
    let leader = c.leader(0).await;
    let number = |c: &Cluster, i: usize, name: &str| c.status(i)["partitions"][0][name].as_u64();
    let lagging = (leader + 1) % 3;
    let had = number(&c, lagging, "last_index").unwrap();
    c.stop_one(lagging).await;

    // The others go on until they could not bring it up to date without a snapshot.
    let open = v1::OpenSessionRequest { partition: 0, session: 77 };
    let opened = c.rows(leader).open_session(open).await.unwrap().into_inner();
    assert_eq!(opened.status(), v1::WriteStatus::WriteOk);
    let mut no = 0;
    eventually(async || {
        for _ in 0..50 {
            no += 1;
            let mut request = put(0, "k", "v");
            (request.session, request.request_no) = (77, no);
            request.ops[0].condition = v1::Condition::Present.into();
            request.ops[0].base = Some(v1::Base { manifest_version: u64::MAX, ..Default::default() });
            assert_eq!(c.write(request).await.status(), v1::WriteStatus::WriteConditionFailed);
        }
        let others = (0..3).filter(|i| *i != lagging);
        others.map(|i| number(&c, i, "purged_index")).all(|purged| purged > Some(had + 1)).then_some(())
    })
    .await;

    // Full for anything as large as a snapshot.
    let is_snapshot = |path: &Path| path.to_string_lossy().contains(".snapshot");
    disks[lagging].fail_next(IoKind::Write, u64::MAX, Fault::NoSpace, is_snapshot);
    c.start_one(lagging).await;
    eventually(async || {
        let refused = c.servers[lagging].as_ref().unwrap().metrics().snapshots_refused.get();
        (refused >= 2).then_some(())
    })
    .await;
    let installed = |c: &Cluster| c.servers[lagging].as_ref().unwrap().metrics().snapshots_installed.get();
    assert_eq!(installed(&c), 0);
    assert_eq!(c.write(put(0, "meanwhile", "v")).await.status(), v1::WriteStatus::WriteOk);

    disks[lagging].clear_faults();
    let newest = number(&c, c.leader(0).await, "last_index");
    eventually(async || (number(&c, lagging, "last_index") >= newest).then_some(())).await;
    assert!(installed(&c) >= 1);
    // It is a follower like any other: a majority with one of the two, and after a restart too.
    c.stop_one(lagging).await;
    c.start_one(lagging).await;
    let gone = c.leader(0).await;
    c.stop_one(if gone == lagging { (lagging + 1) % 3 } else { gone }).await;
    assert_eq!(c.write(put(0, "after", "v")).await.status(), v1::WriteStatus::WriteOk);
    assert_eq!(c.read(0, "meanwhile").await.value, bytes("v"));
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
async fn changes_of_mode_and_drift_bound_under_load_hold_up_no_publication() {
    // Each change begins a new ring. The group that was on its way into the log just then kept its serial of the old one, and
    // waited for holders to acknowledge what the new ring might reach in days.
    const PARTITIONS: u32 = 2;
    const WRITERS: u32 = 12;
    let env = Env { probe: Some(Arc::new(HoldsUpProposals)), ..Env::real() };
    // There is nearly always a group on its way, also when the change is committed.
    let tuning = Tuning { groups_in_flight: 64, ..Tuning::default() };
    let c = Cluster::start_on(vec![env; 3], PARTITIONS, tuning, LeaseConfig::default()).await;
    for partition in 0..PARTITIONS {
        c.create_table(partition).await;
    }
    let held: Vec<Held> = (0..PARTITIONS).map(|_| Held::default()).collect();
    let written: Vec<AtomicU64> = (0..PARTITIONS).map(|_| AtomicU64::new(0)).collect();
    let (mut holders, mut writers) = (Vec::new(), Vec::new());
    for partition in 0..PARTITIONS {
        let at = partition as usize;
        holders.push(c.hold(partition, &held[at]));
        writers.extend((0..WRITERS).map(|w| c.keep_writing(partition, w, &written[at])));
    }
    let changes = async {
        for round in 0..9 {
            // Each differs from the one before.
            let mode = if round % 3 == 2 { v1::LeaseMode::Timed } else { v1::LeaseMode::Ack };
            let drift_ppm = if round % 2 == 0 { 600 } else { 500 };
            let change = v1::ConfigureRequest {
                lease_mode: Some(mode.into()),
                drift_ppm: Some(drift_ppm),
                ..Default::default()
            };
            eventually(async || {
                let mut done = BTreeSet::new();
                for i in 0..3 {
                    done.extend(c.admin(i).configure(change.clone()).await.ok()?.into_inner().done);
                }
                (done.len() == PARTITIONS as usize).then_some(())
            })
            .await;
            let before: Vec<u64> = written.iter().map(|w| w.load(Ordering::Relaxed)).collect();
            eventually(async || {
                let goes_on = |(now, before): (&AtomicU64, &u64)| now.load(Ordering::Relaxed) > before + 60;
                written.iter().zip(&before).all(goes_on).then_some(())
            })
            .await;
            // The mode travels with the leases.
            let told = |h: &Held| h.mode.load(Ordering::Relaxed) == mode as i32;
            eventually(async || held.iter().all(told).then_some(())).await;
        }
        assert!(held.iter().all(|h| h.acknowledged.load(Ordering::Relaxed) > 0), "somebody was waited for");
    };
    tokio::select! {
        () = changes => {}
        _ = futures::future::join_all(holders) => unreachable!("they hold for ever"),
        _ = futures::future::join_all(writers) => unreachable!("they write for ever"),
    }
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
    let batch = v1::ReadBatch { reads: vec![read], ..Default::default() };
    let reply = c.rows(leader).read(batch).await.unwrap().into_inner().replies.remove(0);
    assert!(
        matches!(reply.status(), v1::ReadStatus::ReadNotLeader | v1::ReadStatus::ReadNotReady),
        "no stale answer: {reply:?}"
    );
}
