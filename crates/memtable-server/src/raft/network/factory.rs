//! Who the peers of a partition are, and what they are asked beside Raft's own messages.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use openraft::network::RaftNetworkFactory;
use sextant_common::error::Result;
use sextant_common::ids::NodeId;
use sextant_environment::config::{ClusterConfig, Server};
use sextant_environment::env::Party;
use sextant_raft_log::{Member, TypeConfig};

use super::super::threads::PartitionThread;
use super::super::wire::{self, Address, Introduction, PeerClient};
use super::Network;
use super::call::{HEIR_TIMEOUT, INTRODUCTION_TIMEOUT, call};
use super::heartbeats::Heartbeats;
use crate::incarnation::Memory;
use crate::replica::ReplicaState;

/// One thread's connections to a peer: heartbeats have one of their own, so that no bulk of data delays them.
#[derive(Clone)]
pub struct Peer {
    pub addr: String,
    data: PeerClient,
    heartbeat: PeerClient,
    heartbeats: Heartbeats,
}

impl Peer {
    /// The connections belong to this thread.
    pub async fn connect(
        env: &sextant_environment::Env,
        to: &Server,
        cluster: &ClusterConfig,
        me: NodeId,
        thread: &PartitionThread,
    ) -> Result<Self> {
        let addr = to.addr.clone();
        let (net, to, cluster) = (env.net.clone(), to.clone(), cluster.clone());
        let client = move || wire::peer_client(&net, &to, &cluster, Party::memtable(me));
        let clock = env.clock.clone();
        let connected = thread.run(async move {
            let (data, heartbeat) = (client(), client());
            let heartbeats = Heartbeats::start(heartbeat.clone(), clock);
            (data, heartbeat, heartbeats)
        });
        let (data, heartbeat, heartbeats) = connected.await?;
        Ok(Self { addr, data, heartbeat, heartbeats })
    }
}

/// Makes the networks of one partition.
#[derive(Clone)]
pub struct NetworkFactory {
    pub shared: Arc<ReplicaState>,
    pub cluster: Bytes,
    pub peers: Arc<std::collections::HashMap<u64, Peer>>,
    pub purged: Purged,
}

/// Tells up to which index this node's log of the partition is purged.
#[derive(Clone)]
pub struct Purged(pub Arc<dyn Fn() -> Option<u64> + Send + Sync>);

impl NetworkFactory {
    fn address(&self, target: u64) -> Address {
        Address {
            partition: self.shared.id.0,
            from: self.shared.node,
            to: target,
            cluster: self.cluster.clone(),
            to_incarnation: 0,
        }
    }

    /// Tells a node that the leader of `term`, this node, lets go and wants it to lead next. If the message is lost, somebody is
    /// elected all the same, only a little later. Whether the node means to: one that is stopping does not.
    pub async fn name_heir(&self, to: u64, term: u64) -> bool {
        let Some(peer) = self.peers.get(&to) else { return false };
        let message = wire::heir_to_wire(self.address(to), term);
        let mut client = peer.heartbeat.clone();
        match call(HEIR_TIMEOUT, client.transfer_leader(message)).await {
            Ok(reply) => reply.accepted,
            Err(e) => {
                tracing::debug!(partition = %self.shared.id, to, "the successor was not told: {e}");
                false
            }
        }
    }

    /// Which of these nodes say that their logs have room for a leader's writes, and that they are not stopping. Nothing follows
    /// from it there.
    pub async fn would_lead(&self, of: Vec<u64>) -> Vec<u64> {
        let asked = of.into_iter().map(|to| async move {
            let mut client = self.peers.get(&to)?.heartbeat.clone();
            let message = wire::would_lead_to_wire(self.address(to));
            let reply = call(HEIR_TIMEOUT, client.transfer_leader(message)).await.ok()?;
            reply.accepted.then_some(to)
        });
        futures::future::join_all(asked).await.into_iter().flatten().collect()
    }

    /// What each of these peers says of itself; those that do not answer are left out. `let_in`: this server has lost its memory
    /// and asks to be let in as this incarnation; 0: it only asks.
    pub async fn introductions(
        &self,
        of: impl IntoIterator<Item = u64>,
        let_in: u64,
    ) -> BTreeMap<u64, Introduction> {
        let peers = of.into_iter().filter_map(|to| self.peers.get(&to).map(|peer| (to, peer)));
        let asked = peers.map(|(to, peer)| {
            let message = wire::introduction_to_wire(self.address(to), let_in);
            let mut client = peer.heartbeat.clone();
            async move {
                let answer = call(INTRODUCTION_TIMEOUT, client.is_founded(message)).await.ok()?;
                Some((to, wire::introduction_from_wire(answer)))
            }
        });
        futures::future::join_all(asked).await.into_iter().flatten().collect()
    }

    /// The peers' ids.
    pub fn others(&self) -> Vec<u64> {
        self.peers.keys().copied().collect()
    }

    fn network(&self, target: u64, node: &Member, pick: impl Fn(&Peer) -> PeerClient) -> Network {
        let address = Address { to_incarnation: node.incarnation, ..self.address(target) };
        Network {
            shared: self.shared.clone(),
            address,
            purged: self.purged.clone(),
            client: self.peers.get(&target).map(pick),
            heartbeats: None,
        }
    }

    /// What each other memtable server remembers of the partition; None: no answer.
    pub async fn memories(&self) -> Vec<(NodeId, Option<Memory>)> {
        let asked = self.peers.iter().map(|(to, peer)| {
            let message = wire::memory_to_wire(self.address(*to));
            let mut client = peer.heartbeat.clone();
            async move {
                let answer = call(INTRODUCTION_TIMEOUT, client.remembers(message)).await.ok();
                (NodeId(*to), answer.map(wire::memory_from_wire))
            }
        });
        let mut memories = futures::future::join_all(asked).await;
        memories.sort_by_key(|(node, _)| *node);
        memories
    }
}

impl RaftNetworkFactory<TypeConfig> for NetworkFactory {
    type Network = Network;

    async fn new_client(&mut self, target: u64, node: &Member) -> Network {
        self.network(target, node, |p| p.data.clone())
    }

    async fn new_heartbeat_client(&mut self, target: u64, node: &Member) -> Network {
        let heartbeats = self.peers.get(&target).map(|peer| peer.heartbeats.clone());
        Network { heartbeats, ..self.network(target, node, |p| p.heartbeat.clone()) }
    }
}
