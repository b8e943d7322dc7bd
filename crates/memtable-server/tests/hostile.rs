//! What a server answers to callers and numbers that no honest cluster has.

mod support;

use bytes::Bytes;
use sextant_common::ids::NodeId;
use sextant_common::{Error, ErrorKind};
use sextant_environment::Env;
use sextant_environment::config::{ClusterConfig, LeaseConfig, Server};
use sextant_environment::env::{Party, PartyRole, cluster_channel, error_of, free_addrs, grpc_channel};
use sextant_memtable_server::{MemtableServer, MemtableServerConfig, Tuning};
use sextant_proto::v1;
use sextant_proto::v1::raft_client::RaftClient;
use sextant_proto::v1::rows_client::RowsClient;
use tonic::transport::Channel;

use support::eventually;

const ME: Party = Party { role: PartyRole::Memtable, id: NodeId(1) };
const OTHER: Party = Party { role: PartyRole::Memtable, id: NodeId(2) };
const PNODE: Party = Party { role: PartyRole::PNode, id: NodeId(1) };

/// One server, the only voter of its only partition.
struct Alone {
    env: Env,
    config: ClusterConfig,
    server: MemtableServer,
    _dir: tempfile::TempDir,
}

impl Alone {
    async fn start() -> Self {
        let env = Env::real();
        let addrs = free_addrs(&env, 2).await.unwrap();
        let server = |addr: &String| vec![Server::new(1, addr.clone())];
        let config = ClusterConfig {
            id: "test".into(),
            partitions: 1,
            memtable: server(&addrs[0]),
            sstable: server(&addrs[1]),
            lease: LeaseConfig::default(),
        };
        support::sstable::serve_nothing(&addrs[1]);
        let dir = tempfile::tempdir().unwrap();
        let server = MemtableServerConfig {
            id: NodeId(1),
            cluster: config.clone(),
            listen: addrs[0].clone(),
            http: None,
            data_dir: dir.path().join("memtable"),
            log_devices: vec![],
            clock: Default::default(),
            tls: None,
            tuning: Tuning { log_segment_bytes: 4 << 20, ..Tuning::default() },
        };
        let server = MemtableServer::start(env.clone(), server).await.unwrap();
        let alone = Self { env, config, server, _dir: dir };
        alone.write("founded").await;
        alone
    }

    fn addr(&self) -> &str {
        &self.config.memtable[0].addr
    }

    fn channel(&self, from: Party, to: Party) -> Channel {
        cluster_channel(&self.env.net, self.addr(), &self.config, from, Some(to))
    }

    fn raft(&self) -> RaftClient<Channel> {
        RaftClient::new(self.channel(OTHER, ME))
    }

    fn cluster(&self) -> Bytes {
        Bytes::from(format!("{}/{:016x}", self.config.id, self.config.fingerprint()))
    }

    fn term(&self) -> u64 {
        let status: serde_json::Value = serde_json::from_str(&self.server.status()).unwrap();
        status["partitions"][0]["term"].as_u64().unwrap()
    }

    /// Which one messages have to mean.
    fn incarnation(&self) -> u64 {
        let status: serde_json::Value = serde_json::from_str(&self.server.status()).unwrap();
        u64::from_str_radix(status["incarnation"].as_str().unwrap(), 16).unwrap()
    }

    async fn try_write(&self, channel: Channel, key: &str) -> Result<v1::WriteReply, Error> {
        let op = v1::WriteOp { table: 1, key: Bytes::from(key.to_owned()), ..Default::default() };
        let write = v1::WriteRequest { partition: 0, ops: vec![op], ..Default::default() };
        let reply = RowsClient::new(channel)
            .write(v1::WriteBatch { writes: vec![write], ..Default::default() })
            .await
            .map_err(error_of)?;
        Ok(reply.into_inner().replies.remove(0))
    }

    /// Until it is taken.
    async fn write(&self, key: &str) {
        eventually(async || {
            let reply = self.try_write(self.channel(PNODE, ME), key).await.ok()?;
            (reply.status() == v1::WriteStatus::WriteOk).then_some(())
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_of_the_last_term_there_is_changes_nothing() {
    let alone = Alone::start().await;
    let mut raft = alone.raft();
    let (cluster, before, to_incarnation) = (alone.cluster(), alone.term(), alone.incarnation());
    for term in [u64::MAX, u64::MAX - 1, before + (1 << 33)] {
        let vote = |committed| Some(v1::RaftVote { term, node: 2, committed });
        let append = v1::AppendEntriesRequest {
            from: 2,
            to: 1,
            cluster: cluster.clone(),
            to_incarnation,
            vote: vote(true),
            ..Default::default()
        };
        let far = v1::AppendEntriesRequest {
            vote: Some(v1::RaftVote { term: before, node: 1, committed: true }),
            prev: Some(v1::LogPosition { term: before, index: u64::MAX }),
            ..append.clone()
        };
        for append in [append, far] {
            raft.append_entries(append.clone()).await.unwrap_err();
            let streamed = raft.stream_append(tokio_stream::iter([append])).await;
            let answer = match streamed {
                Ok(replies) => replies.into_inner().message().await,
                Err(status) => Err(status),
            };
            assert!(answer.is_err(), "{answer:?}");
        }
        let request = v1::VoteRequest {
            from: 2,
            to: 1,
            cluster: cluster.clone(),
            to_incarnation,
            vote: vote(false),
            ..Default::default()
        };
        raft.vote(request.clone()).await.unwrap_err();
        raft.pre_vote(request).await.unwrap_err();
        let snapshot = v1::InstallSnapshotRequest {
            from: 2,
            to: 1,
            cluster: cluster.clone(),
            to_incarnation,
            vote: vote(true),
            last_log: Some(v1::LogPosition { term: 1, index: u64::MAX }),
            ..Default::default()
        };
        raft.install_snapshot(tokio_stream::iter([snapshot])).await.unwrap_err();
        let wish = v1::TransferLeaderRequest {
            from: 2,
            to: 1,
            cluster: cluster.clone(),
            from_leader: vote(true),
            ..Default::default()
        };
        raft.transfer_leader(wish).await.unwrap_err();
    }
    alone.write("goes on").await;
    // It may have been elected anew meanwhile, on a machine that stood still.
    assert!(alone.term() < before + 1000, "from {before} to {}", alone.term());
    alone.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_is_answered_who_does_not_name_the_cluster_himself_and_this_server() {
    let alone = Alone::start().await;
    let other = ClusterConfig { id: "other".into(), ..alone.config.clone() };
    let wrong = [
        (grpc_channel(&alone.env.net, alone.addr()), "servers of its cluster only"),
        (cluster_channel(&alone.env.net, alone.addr(), &other, PNODE, Some(ME)), "another cluster"),
        (alone.channel(PNODE, Party::memtable(NodeId(3))), "this is memtable-1, not memtable-3"),
        (alone.channel(PNODE, Party::sstable(NodeId(1))), "this is memtable-1, not sstable-1"),
    ];
    for (channel, why) in wrong {
        let refused = eventually(async || {
            let refused = alone.try_write(channel.clone(), "k").await.unwrap_err();
            (refused.kind != ErrorKind::Unavailable).then_some(refused)
        })
        .await;
        assert_eq!(refused.kind, ErrorKind::Invalid);
        assert!(refused.message.contains(why), "{refused}");
    }
    alone.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_role_is_answered_what_it_needs_and_nothing_else() {
    let alone = Alone::start().await;
    let refused = alone.try_write(alone.channel(OTHER, ME), "k").await.unwrap_err();
    assert_eq!((refused.kind, &*refused.message), (ErrorKind::Denied, "memtable-2 may not call Rows.Write"));
    let vote = RaftClient::new(alone.channel(PNODE, ME)).vote(v1::VoteRequest::default()).await;
    let refused = error_of(vote.unwrap_err());
    assert_eq!((refused.kind, &*refused.message), (ErrorKind::Denied, "pnode-1 may not call Raft.Vote"));
    alone.server.shutdown().await;
}
