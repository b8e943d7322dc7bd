//! The cluster on turmoil: which hosts there are, and what runs on each.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use sextant_common::ids::NodeId;
use sextant_environment::config::{ClusterConfig, Server};
use sextant_memtable_server::{MemtableServer, MemtableServerConfig};
use sextant_pnode::{PNodeConfig, PNodeServer};
use sextant_sstable_server::{SstServer, SstServerConfig};

use crate::counters::Counters;
use crate::host::Host;
use crate::plan::{MEMTABLE_SERVERS, PNODES, Plan, SSTABLE_SERVERS};
use crate::world::World;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tier {
    Memtable,
    Sstable,
    PNode,
}

pub struct Cluster {
    /// By name: `m1`, `s1`, `p1` and so on.
    pub hosts: BTreeMap<String, (Tier, Arc<Host>)>,
    pub counters: Arc<Counters>,
}

const MEMTABLE_PORT: u16 = 7000;
const SSTABLE_PORT: u16 = 7100;
const PNODE_PORT: u16 = 7200;
const RESP_PORT: u16 = 7300;
const ADMIN_PORT: u16 = 7400;

/// The address of a p-node's gRPC services.
pub fn pnode_addr(index: usize) -> String {
    format!("p{}:{PNODE_PORT}", index + 1)
}

/// Where a p-node speaks the Redis protocol.
pub fn resp_addr(index: usize) -> String {
    format!("p{}:{RESP_PORT}", index + 1)
}

/// What all servers agree on.
pub fn config(plan: &Plan) -> ClusterConfig {
    let servers = |tier: &str, n: usize, port: u16| {
        (1..=n).map(|i| Server::new(i as u64, format!("{tier}{i}:{port}"))).collect()
    };
    ClusterConfig {
        id: "sim".into(),
        partitions: plan.partitions,
        memtable: servers("m", MEMTABLE_SERVERS, MEMTABLE_PORT),
        sstable: servers("s", SSTABLE_SERVERS, SSTABLE_PORT),
        lease: plan.lease.clone(),
    }
}

impl Cluster {
    /// Registers all servers with the simulation.
    pub fn build(
        sim: &mut turmoil::Sim<'static>,
        world: &Arc<World>,
        plan: &Plan,
        rng: &mut fastrand::Rng,
    ) -> Self {
        let config = config(plan);
        let counters = Arc::new(Counters::default());
        let mut hosts = BTreeMap::new();
        let mut place = |name: String, tier: Tier, index: usize| {
            let host = Host::new(world, index, &name, plan.clocks(rng), plan.disk);
            hosts.insert(name, (tier, host.clone()));
            host
        };
        for i in 1..=SSTABLE_SERVERS {
            let host = place(format!("s{i}"), Tier::Sstable, 100 + i);
            world.add_disk(host.disk.clone());
            let server = SstServerConfig {
                block_cache_bytes: Some(64 << 10),
                scrub_interval_s: 5,
                ..SstServerConfig::new(
                    NodeId(i as u64),
                    config.clone(),
                    format!("0.0.0.0:{SSTABLE_PORT}"),
                    "/disk",
                )
            };
            let counters = counters.clone();
            sim.host(host.name.clone(), move || sstable(host.clone(), server.clone(), counters.clone()));
        }
        for i in 1..=MEMTABLE_SERVERS {
            let host = place(format!("m{i}"), Tier::Memtable, 200 + i);
            let server = MemtableServerConfig {
                id: NodeId(i as u64),
                cluster: config.clone(),
                listen: format!("0.0.0.0:{MEMTABLE_PORT}"),
                http: None,
                data_dir: "/disk".into(),
                log_devices: vec![],
                clock: Default::default(),
                tls: None,
                tuning: plan.tuning.clone(),
            };
            let counters = counters.clone();
            sim.host(host.name.clone(), move || memtable(host.clone(), server.clone(), counters.clone()));
        }
        for i in 1..=PNODES {
            let host = place(format!("p{i}"), Tier::PNode, 300 + i);
            let server = PNodeConfig {
                cache_bytes: plan.cache_bytes,
                register_reads: plan.register_reads,
                admin: Some(format!("0.0.0.0:{ADMIN_PORT}")),
                resp: Some(format!("0.0.0.0:{RESP_PORT}")),
                resp_threads: 1,
                ..PNodeConfig::new(NodeId(i as u64), config.clone(), format!("0.0.0.0:{PNODE_PORT}"))
            };
            let counters = counters.clone();
            sim.host(host.name.clone(), move || pnode(host.clone(), server.clone(), counters.clone()));
        }
        Self { hosts, counters }
    }

    pub fn host(&self, name: &str) -> &Arc<Host> {
        &self.hosts[name].1
    }

    /// The names of a tier's hosts.
    pub fn tier(&self, tier: Tier) -> Vec<String> {
        self.hosts.iter().filter(|(_, (t, _))| *t == tier).map(|(name, _)| name.clone()).collect()
    }
}

/// A server's life: it runs until it is killed, or asked to stop.
macro_rules! life {
    ($host:ident, $start:expr, $counted:expr) => {{
        let env = $host.boot();
        match $start(env).await {
            Err(e) => $host.ended(Err(format!("{} does not start: {e}", $host.name))),
            Ok(server) => {
                $counted(&server);
                $host.stop.notified().await;
                server.shutdown().await;
                $host.ended(Ok(()));
            }
        }
        // Whoever watches the host takes it down.
        loop {
            tokio::time::sleep(Duration::from_secs(3600)).await;
        }
    }};
}

async fn memtable(host: Arc<Host>, config: MemtableServerConfig, counters: Arc<Counters>) -> turmoil::Result {
    host.world.memtable_starts();
    life!(host, async |env| MemtableServer::start(env, config).await, |server: &MemtableServer| {
        counters.memtable.lock().push(server.metrics().clone())
    })
}

async fn sstable(host: Arc<Host>, config: SstServerConfig, counters: Arc<Counters>) -> turmoil::Result {
    life!(host, async |env| SstServer::start(env, config).await, |server: &SstServer| {
        counters.sstable.lock().push(server.metrics().clone())
    })
}

async fn pnode(host: Arc<Host>, config: PNodeConfig, counters: Arc<Counters>) -> turmoil::Result {
    life!(host, async |env| PNodeServer::start(env, config).await, |server: &PNodeServer| {
        counters.pnode.lock().push(server.local().clone_metrics())
    })
}
