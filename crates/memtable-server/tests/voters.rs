//! Changes of a partition's voters, on real servers: removed, added again, the leader itself, refused.

mod support;

use std::time::Duration;

use bytes::Bytes;
use sextant_common::ids::NodeId;
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

use support::eventually;

/// Servers of the configuration; server `i` has id `i + 1`.
const SERVERS: usize = 4;

struct Cluster {
    env: Env,
    config: ClusterConfig,
    servers: Vec<Option<MemtableServer>>,
    dir: tempfile::TempDir,
    /// What was acknowledged.
    written: Vec<String>,
}

impl Cluster {
    /// As a tool of the cluster: servers answer nobody else.
    fn channel(&self, i: usize) -> Channel {
        cluster_channel(&self.env.net, &self.config.memtable[i].addr, &self.config, Party::TOOL, None)
    }

    async fn start() -> Self {
        Self::found(SERVERS).await
    }

    /// Starts the first `founders` servers; the configuration names no others yet.
    async fn found(founders: usize) -> Self {
        if std::env::var_os("RUST_LOG").is_some() {
            sextant_environment::logging::init();
        }
        let addrs = free_addrs(&Env::real(), SERVERS + 1).await.unwrap();
        let server = |i: usize| Server { id: NodeId(i as u64 + 1), addr: addrs[i].clone() };
        let config = ClusterConfig {
            id: "test".into(),
            partitions: 1,
            memtable: (0..founders).map(server).collect(),
            // It has nothing and takes nothing.
            sstable: vec![Server { id: NodeId(1), addr: addrs[SERVERS].clone() }],
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

    async fn start_one(&mut self, i: usize) {
        let config = MemtableServerConfig {
            id: self.config.memtable[i].id,
            cluster: self.config.clone(),
            listen: self.config.memtable[i].addr.clone(),
            http: None,
            data_dir: self.dir.path().join(format!("memtable-{i}")),
            log_devices: vec![],
            clock: Default::default(),
            tuning: Tuning { log_segment_bytes: 4 << 20, ..Tuning::default() },
        };
        self.servers[i] = Some(MemtableServer::start(self.env.clone(), config).await.unwrap());
    }

    async fn stop_one(&mut self, i: usize) {
        if let Some(server) = self.servers[i].take() {
            server.shutdown().await;
        }
    }

    fn up(&self) -> impl Iterator<Item = usize> {
        (0..SERVERS).filter(|i| self.servers[*i].is_some())
    }

    fn partition(&self, i: usize) -> serde_json::Value {
        let status = self.servers[i].as_ref().unwrap().status();
        serde_json::from_str::<serde_json::Value>(&status).unwrap()["partitions"][0].clone()
    }

    async fn leader(&self) -> usize {
        eventually(async || self.up().find(|i| self.partition(*i)["serving"] == true)).await
    }

    /// Writes a key until it is acknowledged, and remembers it.
    async fn write(&mut self, key: &str) {
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
                let batch = v1::WriteBatch { writes: vec![write.clone()] };
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
    async fn check(&self) {
        for key in &self.written {
            let value = eventually(async || {
                let i = self.leader().await;
                let key = Bytes::copy_from_slice(key.as_bytes());
                let read = v1::ReadRequest { partition: 0, table: 1, key, manifest_version: u64::MAX };
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
    async fn wish(&self, from: u64, let_in: u64) -> Vec<u64> {
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
    async fn ask(&self, via: usize, voters: &[u64]) -> Result<Vec<u64>, Error> {
        let mut admin = AdminClient::new(self.channel(via));
        let request = v1::ChangeVotersRequest { partition: 0, voters: voters.to_vec() };
        Ok(admin.change_voters(request).await.map_err(error_of)?.into_inner().voters)
    }

    /// Asks whoever leads, until it is done or refused for good.
    async fn change(&self, voters: &[u64]) -> Result<Vec<u64>, Error> {
        eventually(async || match self.ask(self.leader().await, voters).await {
            Err(e) if e.is_retryable() || e.kind == ErrorKind::Unavailable => None,
            result => Some(result),
        })
        .await
    }

    /// The leader says that these vote, and nobody learns.
    async fn settled(&self, voters: &[u64]) {
        eventually(async || {
            let partition = self.partition(self.leader().await);
            let is = serde_json::json!(voters);
            (partition["voters"] == is && partition["learners"] == serde_json::json!([])).then_some(())
        })
        .await;
    }

    /// A server has everything that the leader has.
    async fn caught_up(&self, i: usize) {
        eventually(async || {
            let last = self.partition(self.leader().await)["last_index"].as_u64();
            (self.partition(i)["committed_index"].as_u64() >= last).then_some(())
        })
        .await;
    }

    async fn transfer(&self, to: u64) -> Result<u64, Error> {
        let via = self.leader().await;
        let mut admin = AdminClient::new(self.channel(via));
        Ok(admin
            .transfer(v1::TransferRequest { partition: 0, to })
            .await
            .map_err(error_of)?
            .into_inner()
            .leader)
    }
}

/// All ids but these.
fn without(ids: &[u64]) -> Vec<u64> {
    (1..=SERVERS as u64).filter(|id| !ids.contains(id)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn voters_go_and_come_back_and_nothing_is_lost() {
    let mut c = Cluster::start().await;
    c.write("before").await;
    c.settled(&[1, 2, 3, 4]).await;
    let removed = (c.leader().await + 1) % SERVERS;
    let without_it = without(&[removed as u64 + 1]);
    assert_eq!(c.change(&without_it).await.unwrap(), without_it);
    c.write("three").await;
    c.settled(&without_it).await;
    let partition = c.partition(removed);
    assert_eq!(
        (&partition["voters"], &partition["role"]),
        (&serde_json::json!(without_it), &"follower".into())
    );
    // It gets nothing any more, and nobody can make it leader.
    let refused = c.transfer(removed as u64 + 1).await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Invalid, "{refused}");
    c.write("not for all").await;
    assert!(
        c.partition(removed)["last_index"].as_u64() < c.partition(c.leader().await)["last_index"].as_u64()
    );

    assert_eq!(c.change(&[1, 2, 3, 4]).await.unwrap(), [1, 2, 3, 4]);
    c.write("four again").await;
    c.settled(&[1, 2, 3, 4]).await;
    c.caught_up(removed).await;

    let other = (c.leader().await + 2) % SERVERS;
    c.change(&without(&[other as u64 + 1])).await.unwrap();
    c.write("another removed").await;
    c.settled(&without(&[other as u64 + 1])).await;
    c.check().await;
    // The change is what a restart finds.
    for i in 0..SERVERS {
        c.stop_one(i).await;
    }
    for i in 0..SERVERS {
        c.start_one(i).await;
    }
    c.settled(&without(&[other as u64 + 1])).await;
    assert_ne!(c.leader().await, other);
    c.check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_removes_itself_and_another_serves() {
    let mut c = Cluster::start().await;
    c.write("before").await;
    for turn in 0..2 {
        let leader = c.leader().await;
        let rest = without(&[leader as u64 + 1]);
        assert_eq!(c.ask(leader, &rest).await.unwrap(), rest);
        eventually(async || (c.partition(leader)["serving"] != true).then_some(())).await;
        c.settled(&rest).await;
        let next = c.leader().await;
        assert_ne!(next, leader);
        assert_eq!(c.partition(leader)["epoch"], serde_json::Value::Null, "its desk is closed");
        c.write(&format!("turn {turn}")).await;
        c.check().await;
        // Everybody again; its log holds entries of an old term.
        c.change(&[1, 2, 3, 4]).await.unwrap();
        c.caught_up(leader).await;
    }
    assert_eq!(c.transfer(1).await.unwrap(), c.leader().await as u64 + 1);
    c.check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_could_cost_the_majority_is_refused() {
    let mut c = Cluster::start().await;
    c.write("k").await;
    let leader = c.leader().await;
    let [me, a, b, down] = [0, 1, 2, 3].map(|i| ((leader + i) % SERVERS) as u64 + 1);
    for bad in [&[][..], &[me, me], &[me, 9]] {
        assert_eq!(c.ask(leader, bad).await.unwrap_err().kind, ErrorKind::Invalid);
    }
    let elsewhere = c.ask(a as usize - 1, &[me, a, b]).await.unwrap_err();
    assert_eq!(elsewhere.kind, ErrorKind::NotLeader);
    // A server that is down can be removed, but it cannot be added.
    c.stop_one(down as usize - 1).await;
    let mut rest = vec![me, a, b];
    rest.sort_unstable();
    assert_eq!(c.change(&rest).await.unwrap(), rest);
    c.settled(&rest).await;
    let refused = c.change(&[me, a, down]).await.unwrap_err();
    assert!(refused.kind == ErrorKind::Invalid && refused.message.contains("does not answer"), "{refused}");
    c.settled(&rest).await;
    // Nor can it be counted on where it would be half of the voters.
    c.start_one(down as usize - 1).await;
    c.change(&[1, 2, 3, 4]).await.unwrap();
    c.stop_one(down as usize - 1).await;
    let refused = c.change(&[me, down]).await.unwrap_err();
    assert!(refused.kind == ErrorKind::Invalid && refused.message.contains("majority"), "{refused}");
    c.settled(&[1, 2, 3, 4]).await;
    c.write("goes on").await;
    c.check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_change_at_a_time() {
    let mut c = Cluster::start().await;
    c.write("k").await;
    let leader = c.leader().await;
    let others: Vec<u64> = without(&[leader as u64 + 1]);
    // The first has to wait for its quorum or Raft; the second comes meanwhile.
    let (one, two) = (without(&others[..1]), without(&others[1..2]));
    let (first, second) = tokio::join!(c.ask(leader, &one), c.ask(leader, &two));
    assert!(first.is_ok() != second.is_ok(), "{first:?} {second:?}");
    let refused = first.clone().err().or(second.clone().err()).unwrap();
    assert!(refused.kind == ErrorKind::Retry && refused.message.contains("under way"), "{refused}");
    c.settled(&first.or(second).unwrap()).await;
    // The same again is no change.
    let now = c.partition(c.leader().await)["voters"].clone();
    let now: Vec<u64> = serde_json::from_value(now).unwrap();
    assert_eq!(c.change(&now).await.unwrap(), now);
    c.check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_voter_alone_and_three_again() {
    let mut c = Cluster::start().await;
    c.write("four").await;
    let alone = c.leader().await as u64 + 1;
    assert_eq!(c.change(&[alone]).await.unwrap(), [alone]);
    c.settled(&[alone]).await;
    c.write("one").await;
    let mut three = vec![alone, alone % 4 + 1, (alone + 1) % 4 + 1];
    three.sort_unstable();
    c.change(&three).await.unwrap();
    c.settled(&three).await;
    c.write("three").await;
    // The new ones have it all.
    c.stop_one(alone as usize - 1).await;
    c.write("two of three").await;
    c.check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_new_in_the_configuration_becomes_a_voter() {
    let mut c = Cluster::found(3).await;
    c.write("three").await;
    c.settled(&[1, 2, 3]).await;
    for i in 0..3 {
        c.stop_one(i).await;
    }
    for i in 0..SERVERS {
        c.start_one(i).await;
    }
    c.settled(&[1, 2, 3]).await;
    c.write("without it").await;
    assert_eq!(c.partition(3)["voters"], serde_json::json!([]), "it founds no group of its own");
    assert_eq!(c.change(&[1, 2, 3, 4]).await.unwrap(), [1, 2, 3, 4]);
    c.settled(&[1, 2, 3, 4]).await;
    c.change(&[2, 3, 4]).await.unwrap();
    c.settled(&[2, 3, 4]).await;
    c.stop_one(0).await;
    c.write("with it").await;
    c.caught_up(3).await;
    c.check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_stops_in_the_middle_leaves_one_set_of_voters() {
    let mut c = Cluster::start().await;
    c.write("before").await;
    for round in 0..8 {
        c.change(&[1, 2, 3, 4]).await.unwrap();
        let leader = c.leader().await;
        // Out goes the leader in one round, somebody else in the next.
        let rest = without(&[(leader as u64 + round % 2) % SERVERS as u64 + 1]);
        let before = c.partition(leader)["last_index"].as_u64();
        let asked = c.ask(leader, &rest);
        let begun = async {
            // As soon as something of it is in the log, or a little later.
            while c.partition(leader)["last_index"].as_u64() == before {
                tokio::task::yield_now().await;
            }
            for _ in 0..round * 10 {
                tokio::task::yield_now().await;
            }
        };
        // The answer is lost, if it was not given yet.
        tokio::select! {
            biased;
            () = begun => {}
            _ = asked => {}
        }
        c.stop_one(leader).await;
        c.write(&format!("round {round}")).await;
        // Made or not made, but not half.
        eventually(async || {
            let partition = c.partition(c.leader().await);
            let is = |voters: &[u64]| partition["voters"] == serde_json::json!(voters);
            (partition["learners"] == serde_json::json!([]) && (is(&rest) || is(&[1, 2, 3, 4]))).then_some(())
        })
        .await;
        c.start_one(leader).await;
        c.check().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whom_an_operator_has_left_out_is_not_let_in_by_itself_whoever_leads() {
    let mut c = Cluster::start().await;
    c.write("before").await;
    let out = (c.leader().await + 1) % SERVERS;
    let rest = without(&[out as u64 + 1]);
    c.change(&rest).await.unwrap();
    c.settled(&rest).await;
    c.stop_one(out).await;
    // Under this leader, and under the next one, which was told nothing.
    for turn in 0..2 {
        let leader = c.leader().await;
        c.wish(out as u64 + 1, 77).await;
        // The leader has taken a turn since, and nothing is under way.
        c.write(&format!("turn {turn}")).await;
        assert_eq!(c.change(&rest).await.unwrap(), rest);
        let leads = c.leader().await;
        assert_eq!(c.partition(leads)["learners"], serde_json::json!([]));
        if turn == 0 {
            let next = rest.iter().find(|id| **id != leader as u64 + 1).unwrap();
            eventually(async || c.transfer(*next).await.ok()).await;
        }
    }
    // Named again, it is one of them.
    c.start_one(out).await;
    c.change(&[1, 2, 3, 4]).await.unwrap();
    c.settled(&[1, 2, 3, 4]).await;
    c.caught_up(out).await;
    c.check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_is_no_other_server_asks_in_vain_and_is_in_nobodys_way() {
    let mut c = Cluster::found(3).await;
    c.write("three").await;
    c.settled(&[1, 2, 3]).await;
    for i in 0..3 {
        c.stop_one(i).await;
    }
    for i in 0..SERVERS {
        c.start_one(i).await;
    }
    c.settled(&[1, 2, 3]).await;
    let leader = c.leader().await as u64 + 1;
    let fourth = c.wish(0, 0).await[3];
    eventually(async || {
        for nobody in [0, leader] {
            c.wish(nobody, 77).await;
        }
        c.wish(4, fourth).await;
        (c.partition(c.leader().await)["voters"] == serde_json::json!([1, 2, 3, 4])).then_some(())
    })
    .await;
    c.check().await;
}
