//! A cluster in this process: three memtable servers, three sstable servers, two p-nodes, over loopback sockets.
//!
//! Starting and stopping them is `sextant-dev-cluster`'s; this says what each server runs in ([`Homes`]), and asks and tells them
//! what tests want.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use sextant_common::ids::TableId;
use sextant_dev_cluster::{DevCluster, DevOptions, LocalConfig, Place, Placement, Role, Tuning as DevTuning};
use sextant_environment::Env;
use sextant_environment::config::{ClusterConfig, LeaseConfig};
use sextant_environment::env::{Fatal, Party, cluster_channel};
use sextant_memtable_server::{MemtableServer, Tuning};
use sextant_pnode::{PNodeConfig, PNodeServer};
use sextant_proto::v1;
use sextant_proto::v1::admin_client::AdminClient;
use sextant_simulated::FaultyVfs;
use sextant_sstable_server::{SstServer, SstServerConfig};

use crate::{PATIENCE, eventually};

/// What a test may choose.
#[derive(Clone, Debug)]
pub struct Options {
    pub partitions: u32,
    pub memtable: usize,
    pub sstable: usize,
    pub pnodes: usize,
    /// Disks in memory that lose what was not fsynced when they crash; otherwise real files.
    pub faulty_disks: bool,
    pub seed: u64,
    pub tuning: Tuning,
    pub lease: LeaseConfig,
    /// The zone of each sstable server, one after the other; none: each is in its own.
    pub zones: &'static [&'static str],
    /// Changes the configuration of every sstable server.
    pub sstable_config: fn(&mut SstServerConfig),
    /// Changes the configuration of every p-node.
    pub pnode_config: fn(&mut PNodeConfig),
}

impl Default for Options {
    fn default() -> Self {
        Self {
            partitions: 2,
            memtable: 3,
            sstable: 3,
            pnodes: 2,
            faulty_disks: false,
            seed: 1,
            tuning: Tuning {
                // As on a larger machine; `dev` has one.
                threads: 2,
                log_segment_bytes: 4 << 20,
                sst_delete_grace_ms: 1_000,
                repair_interval_ms: 100,
                ..Tuning::default()
            },
            lease: LeaseConfig::default(),
            zones: &[],
            sstable_config: |_| (),
            pnode_config: |_| (),
        }
    }
}

/// Counts instead of ending the process: a server whose disk lost its power is meant to stop.
#[derive(Default)]
pub struct CountFatal(AtomicUsize);

impl CountFatal {
    pub fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

impl Fatal for CountFatal {
    fn fatal(&self, message: &str) {
        eprintln!("a server stopped: {message}");
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// What survives a server's restarts.
struct Home {
    env: Env,
    disk: Option<FaultyVfs>,
    fatal: Arc<CountFatal>,
}

impl Home {
    /// `disk`: the seed of a faulty one.
    fn new(disk: Option<u64>) -> Self {
        let fatal = Arc::new(CountFatal::default());
        let mut env = Env { fatal: fatal.clone(), ..Env::real() };
        let disk = disk.map(FaultyVfs::new);
        if let Some(disk) = &disk {
            env.vfs = Arc::new(disk.clone());
        }
        Self { env, disk, fatal }
    }
}

/// Where faulty disks have their files.
const DISK: &str = "/disk";

/// Where the servers are at home, and what a test changes about them.
struct Homes {
    options: Options,
    memtable: Vec<Home>,
    sstable: Vec<Home>,
}

impl Homes {
    fn new(options: Options) -> Self {
        let home = |i: usize, tier: u64| {
            Home::new(options.faulty_disks.then_some(options.seed * 1000 + i as u64 + tier))
        };
        Self {
            memtable: (0..options.memtable).map(|i| home(i, 0)).collect(),
            sstable: (0..options.sstable).map(|i| home(i, 100)).collect(),
            options,
        }
    }
}

impl Place for Homes {
    fn environment(&self, role: Role, index: usize, env: Env) -> Env {
        match role {
            Role::Memtable => self.memtable[index].env.clone(),
            Role::Sstable => self.sstable[index].env.clone(),
            Role::PNode => env,
        }
    }

    fn configure(&self, _index: usize, config: &mut LocalConfig) {
        match config {
            LocalConfig::Memtable(config) => {
                config.http = None;
                config.tuning = self.options.tuning.clone();
                for (server, zone) in config.cluster.sstable.iter_mut().zip(self.options.zones) {
                    server.zone = Some((*zone).to_owned());
                }
                if self.options.faulty_disks {
                    config.data_dir = DISK.into();
                }
            }
            LocalConfig::Sstable(config) => {
                config.http = None;
                if self.options.faulty_disks {
                    config.data_dir = DISK.into();
                }
                (self.options.sstable_config)(config);
            }
            LocalConfig::PNode(config) => {
                config.http = None;
                // Nobody has to know them beforehand.
                let any_port = || "127.0.0.1:0".to_owned();
                (config.grpc, config.resp, config.admin) = (any_port(), Some(any_port()), None);
                config.default_deadline_ms = PATIENCE.as_millis() as u64;
                (self.options.pnode_config)(config);
            }
        }
    }
}

pub struct Cluster {
    pub config: ClusterConfig,
    pub env: Env,
    dev: DevCluster,
    homes: Arc<Homes>,
    dir: tempfile::TempDir,
}

impl Cluster {
    /// Starts everything and waits until the p-nodes can route.
    pub async fn start(options: Options) -> Self {
        if std::env::var_os("RUST_LOG").is_some() {
            sextant_environment::logging::init();
        }
        let dir = tempfile::tempdir().expect("a temporary directory");
        let homes = Arc::new(Homes::new(options.clone()));
        let dev = DevOptions {
            partitions: Some(options.partitions),
            memtable: Some(options.memtable),
            sstable: Some(options.sstable),
            pnodes: options.pnodes,
            tuning: DevTuning { lease: Some(options.lease), ..DevTuning::default() },
            placement: Some(Placement(homes.clone())),
            ready_within: PATIENCE,
            ..DevOptions::on_free_ports(dir.path())
        };
        let env = Env::real();
        let dev = DevCluster::start(env.clone(), dev).await.expect("the cluster starts");
        let cluster = Self { config: dev.cluster_config().clone(), env, dev, homes, dir };
        cluster.ready().await;
        cluster
    }

    /// Waits until every p-node can route to every partition, and the default table exists.
    pub async fn ready(&self) {
        for pnode in self.pnodes() {
            pnode.local().ready(PATIENCE).await.expect("the p-node becomes ready");
        }
        if let Some(pnode) = self.pnodes().first() {
            eventually("the default table exists", async || {
                pnode.local().create_table("default", Default::default()).await.ok()
            })
            .await;
        }
    }

    pub async fn start_memtable(&mut self, i: usize) {
        self.relaunch(Role::Memtable, i).await;
    }

    pub async fn start_sstable(&mut self, i: usize) {
        self.relaunch(Role::Sstable, i).await;
    }

    /// (On a busy machine the one that was stopped may hold its directories a little longer.)
    async fn relaunch(&mut self, role: Role, i: usize) {
        eventually("the server starts", async || self.dev.relaunch(role, i).await.ok()).await;
    }

    /// Stops the first three servers of both tiers, and starts them again.
    pub async fn restart_tiers(&mut self) {
        for i in 0..3 {
            self.stop_memtable(i).await;
            self.stop_sstable(i).await;
        }
        for i in 0..3 {
            self.start_sstable(i).await;
            self.start_memtable(i).await;
        }
        self.ready().await;
    }

    pub async fn stop_memtable(&mut self, i: usize) {
        self.dev.stop(Role::Memtable, i).await.expect("the memtable server stops");
    }

    pub async fn stop_sstable(&mut self, i: usize) {
        self.dev.stop(Role::Sstable, i).await.expect("the sstable server stops");
    }

    /// A memtable server, if it runs.
    pub fn memtable(&self, i: usize) -> Option<&MemtableServer> {
        self.dev.memtable(i)
    }

    /// An sstable server, if it runs.
    pub fn sstable(&self, i: usize) -> Option<&SstServer> {
        self.dev.sstable(i)
    }

    pub fn pnode(&self, i: usize) -> &PNodeServer {
        self.dev.pnode(i).expect("p-nodes run as long as the cluster")
    }

    pub fn pnodes(&self) -> Vec<&PNodeServer> {
        (0..self.homes.options.pnodes).map(|i| self.pnode(i)).collect()
    }

    /// The power fails at these memtable servers at once: what was not fsynced is lost.
    pub async fn crash_memtable(&mut self, which: &[usize]) {
        for i in which {
            self.memtable_disk(*i).crash();
        }
        for i in which {
            self.stop_memtable(*i).await;
        }
    }

    pub async fn crash_sstable(&mut self, which: &[usize]) {
        for i in which {
            self.sstable_disk(*i).crash();
        }
        for i in which {
            self.stop_sstable(*i).await;
        }
    }

    /// A connection to a p-node's RESP front end that waits as long as the p-node does.
    pub async fn redis(&self, i: usize) -> redis::aio::MultiplexedConnection {
        let addr = self.pnode(i).resp_addr().expect("RESP is on");
        let client = redis::Client::open(format!("redis://{addr}/")).expect("an address");
        let config =
            redis::AsyncConnectionConfig::new().set_response_timeout(None).set_connection_timeout(None);
        client.get_multiplexed_async_connection_with_config(&config).await.expect("a connection")
    }

    /// Where an sstable server keeps a table.
    pub fn sstable_file(&self, i: usize, id: &str) -> PathBuf {
        let dir = match self.homes.options.faulty_disks {
            true => PathBuf::from(DISK),
            false => self.dir.path().join(format!("sstable-{}", i + 1)),
        };
        dir.join(format!("{id}.sst"))
    }

    /// The disk of an sstable server, if disks are faulty.
    pub fn sstable_disk(&self, i: usize) -> &FaultyVfs {
        self.homes.sstable[i].disk.as_ref().expect("faulty disks")
    }

    pub fn memtable_disk(&self, i: usize) -> &FaultyVfs {
        self.homes.memtable[i].disk.as_ref().expect("faulty disks")
    }

    /// How often a memtable server would have ended its process.
    pub fn memtable_fatals(&self, i: usize) -> usize {
        self.homes.memtable[i].fatal.count()
    }

    /// An sstable server's status document.
    pub fn sstable_status(&self, i: usize) -> serde_json::Value {
        let server = self.sstable(i).expect("running");
        serde_json::from_str(&server.status_json()).expect("valid JSON")
    }

    /// A memtable server's status document.
    pub fn status(&self, i: usize) -> serde_json::Value {
        let server = self.memtable(i).expect("running");
        serde_json::from_str(&server.status()).expect("valid JSON")
    }

    /// The memtable server that serves a partition.
    pub async fn leader(&self, partition: usize) -> usize {
        eventually("a leader serves", async || {
            (0..self.config.memtable.len())
                .filter(|i| self.memtable(*i).is_some())
                .find(|i| self.status(*i)["partitions"][partition]["serving"] == true)
        })
        .await
    }

    /// To a server's internal services.
    fn tool(&self, addr: &str) -> tonic::transport::Channel {
        cluster_channel(&self.env.net, addr, &self.config, Party::TOOL, None)
    }

    /// Makes these memtable servers (counted from 0) the voters of a partition; asks until it is done.
    pub async fn change_voters(&self, partition: u32, servers: &[usize]) {
        let voters: Vec<u64> = servers.iter().map(|i| self.config.memtable[*i].id.0).collect();
        eventually("the voters have changed", async || {
            let leader = &self.config.memtable[self.leader(partition as usize).await];
            let mut admin = AdminClient::new(self.tool(&leader.addr));
            admin.change_voters(v1::ChangeVotersRequest { partition, voters: voters.clone() }).await.ok()
        })
        .await;
    }

    /// Gives the leadership of a partition to the memtable server with this id.
    pub async fn transfer(&self, partition: u32, to: u64) -> Result<(), tonic::Status> {
        let leader = &self.config.memtable[self.leader(partition as usize).await];
        let mut admin = AdminClient::new(self.tool(&leader.addr));
        admin.transfer(v1::TransferRequest { partition, to }).await.map(drop)
    }

    /// Creates a table in one partition only. Its id; 0: it was dropped.
    pub async fn create_in(&self, partition: u32, name: &str, id: u32) -> TableId {
        eventually("the partition has created the table", async || {
            let leader = &self.config.memtable[self.leader(partition as usize).await];
            let mut admin = AdminClient::new(self.tool(&leader.addr));
            let request = v1::EnsureTableRequest { partition, name: name.to_owned(), options: None, id };
            let reply = admin.ensure_table(request).await.ok()?.into_inner();
            let is_decided =
                matches!(reply.status(), v1::WriteStatus::WriteOk | v1::WriteStatus::WriteUnknownTable);
            is_decided.then_some(TableId(reply.id))
        })
        .await
    }

    /// Drops a table in one partition only.
    pub async fn drop_in(&self, partition: u32, table: TableId) {
        eventually("the partition has dropped the table", async || {
            let leader = &self.config.memtable[self.leader(partition as usize).await];
            let mut admin = AdminClient::new(self.tool(&leader.addr));
            let change = Some(v1::change_table_request::Change::Drop(v1::DropTable {}));
            let request = v1::ChangeTableRequest { partition, id: table.0, change };
            let reply = admin.change_table(request).await.ok()?.into_inner();
            (reply.status() == v1::WriteStatus::WriteOk).then_some(())
        })
        .await;
    }

    /// Freeze, flush, compact or drain, at every memtable server, until it has been done in all partitions. `table`: of all but the last.
    pub async fn maintain(&self, what: Maintenance<'_>, table: &str) {
        let all: Vec<u32> = (0..self.config.partitions).collect();
        let mut left = all.clone();
        eventually("maintenance is done in every partition", async || {
            for (i, server) in self.config.memtable.iter().enumerate() {
                if self.memtable(i).is_none() || left.is_empty() {
                    continue;
                }
                let request = v1::MaintenanceRequest { table: table.into(), partitions: left.clone() };
                let mut admin = AdminClient::new(self.tool(&server.addr));
                let reply = match what {
                    Maintenance::Freeze => admin.freeze(request).await,
                    Maintenance::Flush => admin.flush(request).await,
                    Maintenance::Compact => admin.compact(request).await,
                    Maintenance::Drain(nodes) => {
                        let (draining, partitions) = (v1::Draining { nodes: nodes.to_vec() }, left.clone());
                        let change = v1::ConfigureRequest {
                            partitions,
                            draining: Some(draining),
                            ..Default::default()
                        };
                        admin.configure(change).await
                    }
                };
                if let Ok(reply) = reply {
                    let done = reply.into_inner().done;
                    left.retain(|p| !done.contains(p));
                }
            }
            left.is_empty().then_some(())
        })
        .await;
    }

    pub async fn shutdown(self) {
        self.dev.shutdown().await.expect("the cluster stops");
    }
}

#[derive(Clone, Copy, Debug)]
pub enum Maintenance<'n> {
    Freeze,
    Flush,
    Compact,
    /// These sstable servers, by id, are to hold no tables.
    Drain(&'n [u64]),
}
