//! A cluster in this process: three memtable servers, three sstable servers, two p-nodes, over loopback sockets.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use sextant_common::ids::NodeId;
use sextant_environment::Env;
use sextant_environment::config::{ClusterConfig, LeaseConfig, Server};
use sextant_environment::env::{Fatal, Party, cluster_channel, free_addrs};
use sextant_memtable_server::{MemtableServer, MemtableServerConfig, Tuning};
use sextant_pnode::{PNodeConfig, PNodeServer};
use sextant_proto::v1;
use sextant_proto::v1::admin_client::AdminClient;
use sextant_simulated::FaultyVfs;
use sextant_sstable_server::{SstServer, SstServerConfig};

use crate::eventually;

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
                log_segment_bytes: 4 << 20,
                sst_delete_grace_ms: 1_000,
                repair_interval_ms: 100,
                ..Tuning::default()
            },
            lease: LeaseConfig::default(),
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

/// A server's place: what survives its restarts.
struct Place {
    env: Env,
    disk: Option<FaultyVfs>,
    dir: PathBuf,
    fatal: Arc<CountFatal>,
}

pub struct Cluster {
    pub config: ClusterConfig,
    pub options: Options,
    memtable_places: Vec<Place>,
    sstable_places: Vec<Place>,
    pub memtable: Vec<Option<MemtableServer>>,
    pub sstable: Vec<Option<SstServer>>,
    pub pnodes: Vec<PNodeServer>,
    pub env: Env,
    _dir: tempfile::TempDir,
}

impl Cluster {
    /// Starts everything and waits until the p-nodes can route.
    pub async fn start(options: Options) -> Self {
        if std::env::var_os("RUST_LOG").is_some() {
            sextant_environment::logging::init();
        }
        let addrs = free_addrs(&Env::real(), options.memtable + options.sstable).await.expect("free ports");
        let servers = |from: usize, n: usize| {
            (0..n).map(|i| Server { id: NodeId(i as u64 + 1), addr: addrs[from + i].clone() }).collect()
        };
        let config = ClusterConfig {
            id: "test".into(),
            partitions: options.partitions,
            memtable: servers(0, options.memtable),
            sstable: servers(options.memtable, options.sstable),
            lease: options.lease.clone(),
        };
        let dir = tempfile::tempdir().expect("a temporary directory");
        let place = |tier: &str, i: usize| {
            let mut env = Env::real();
            let fatal = Arc::new(CountFatal::default());
            env.fatal = fatal.clone();
            let disk = options.faulty_disks.then(|| {
                FaultyVfs::new(options.seed * 1000 + i as u64 + if tier == "memtable" { 0 } else { 100 })
            });
            if let Some(disk) = &disk {
                env.vfs = Arc::new(disk.clone());
            }
            let dir = match disk {
                Some(_) => PathBuf::from("/disk"),
                None => dir.path().join(format!("{tier}-{i}")),
            };
            Place { env, disk, dir, fatal }
        };
        let mut cluster = Self {
            memtable_places: (0..options.memtable).map(|i| place("memtable", i)).collect(),
            sstable_places: (0..options.sstable).map(|i| place("sstable", i)).collect(),
            memtable: (0..options.memtable).map(|_| None).collect(),
            sstable: (0..options.sstable).map(|_| None).collect(),
            pnodes: Vec::new(),
            env: Env::real(),
            config,
            options,
            _dir: dir,
        };
        for i in 0..cluster.sstable.len() {
            cluster.start_sstable(i).await;
        }
        for i in 0..cluster.memtable.len() {
            cluster.start_memtable(i).await;
        }
        for i in 0..cluster.options.pnodes {
            let mut config =
                PNodeConfig::new(NodeId(i as u64 + 1), cluster.config.clone(), "127.0.0.1:0".to_owned());
            config.resp = Some("127.0.0.1:0".into());
            (cluster.options.pnode_config)(&mut config);
            let server = PNodeServer::start(cluster.env.clone(), config).await.expect("the p-node starts");
            cluster.pnodes.push(server);
        }
        cluster.ready().await;
        cluster
    }

    /// Waits until every p-node can route to every partition, and the default table exists.
    pub async fn ready(&self) {
        for pnode in &self.pnodes {
            pnode.engine().ready(Duration::from_secs(60)).await.expect("the p-node becomes ready");
        }
        if let Some(pnode) = self.pnodes.first() {
            eventually("the default table exists", async || {
                pnode.engine().create_table("default", Default::default()).await.ok()
            })
            .await;
        }
    }

    pub async fn start_memtable(&mut self, i: usize) {
        let place = &self.memtable_places[i];
        let config = MemtableServerConfig {
            id: self.config.memtable[i].id,
            cluster: self.config.clone(),
            listen: self.config.memtable[i].addr.clone(),
            http: None,
            data_dir: place.dir.clone(),
            log_devices: vec![],
            clock: Default::default(),
            tuning: self.options.tuning.clone(),
        };
        let server =
            MemtableServer::start(place.env.clone(), config).await.expect("the memtable server starts");
        self.memtable[i] = Some(server);
    }

    pub async fn start_sstable(&mut self, i: usize) {
        let place = &self.sstable_places[i];
        let mut config = SstServerConfig::new(
            self.config.sstable[i].id,
            self.config.clone(),
            self.config.sstable[i].addr.clone(),
            place.dir.clone(),
        );
        (self.options.sstable_config)(&mut config);
        let server = SstServer::start(place.env.clone(), config).await.expect("the sstable server starts");
        self.sstable[i] = Some(server);
    }

    pub async fn stop_memtable(&mut self, i: usize) {
        if let Some(server) = self.memtable[i].take() {
            server.shutdown().await;
        }
    }

    pub async fn stop_sstable(&mut self, i: usize) {
        if let Some(server) = self.sstable[i].take() {
            server.shutdown().await;
        }
    }

    /// The power fails at these memtable servers at once: what was not fsynced is lost.
    pub async fn crash_memtable(&mut self, which: &[usize]) {
        for i in which {
            self.memtable_places[*i].disk.as_ref().expect("faulty disks").crash();
        }
        for i in which {
            self.stop_memtable(*i).await;
        }
    }

    pub async fn crash_sstable(&mut self, which: &[usize]) {
        for i in which {
            self.sstable_places[*i].disk.as_ref().expect("faulty disks").crash();
        }
        for i in which {
            self.stop_sstable(*i).await;
        }
    }

    /// A connection to a p-node's RESP front end that waits as long as the p-node does.
    pub async fn redis(&self, i: usize) -> redis::aio::MultiplexedConnection {
        let addr = self.pnodes[i].resp_addr().expect("RESP is on");
        let client = redis::Client::open(format!("redis://{addr}/")).expect("an address");
        let config = redis::AsyncConnectionConfig::new().set_response_timeout(None);
        client.get_multiplexed_async_connection_with_config(&config).await.expect("a connection")
    }

    /// Where an sstable server keeps a table.
    pub fn sstable_file(&self, i: usize, id: &str) -> PathBuf {
        self.sstable_places[i].dir.join(format!("{id}.sst"))
    }

    /// The disk of an sstable server, if disks are faulty.
    pub fn sstable_disk(&self, i: usize) -> &FaultyVfs {
        self.sstable_places[i].disk.as_ref().expect("faulty disks")
    }

    pub fn memtable_disk(&self, i: usize) -> &FaultyVfs {
        self.memtable_places[i].disk.as_ref().expect("faulty disks")
    }

    /// How often a memtable server would have ended its process.
    pub fn memtable_fatals(&self, i: usize) -> usize {
        self.memtable_places[i].fatal.count()
    }

    /// An sstable server's status document.
    pub fn sstable_status(&self, i: usize) -> serde_json::Value {
        let server = self.sstable[i].as_ref().expect("running");
        serde_json::from_str(&server.status_json()).expect("valid JSON")
    }

    /// A memtable server's status document.
    pub fn status(&self, i: usize) -> serde_json::Value {
        let server = self.memtable[i].as_ref().expect("running");
        serde_json::from_str(&server.status()).expect("valid JSON")
    }

    /// The memtable server that serves a partition.
    pub async fn leader(&self, partition: usize) -> usize {
        eventually("a leader serves", async || {
            (0..self.memtable.len())
                .filter(|i| self.memtable[*i].is_some())
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

    /// Freeze, flush or compact, at every memtable server, until it has been done in all partitions.
    pub async fn maintain(&self, what: Maintenance, table: &str) {
        let all: Vec<u32> = (0..self.config.partitions).collect();
        let mut left = all.clone();
        eventually("maintenance is done in every partition", async || {
            for (i, server) in self.config.memtable.iter().enumerate() {
                if self.memtable[i].is_none() || left.is_empty() {
                    continue;
                }
                let request = v1::MaintenanceRequest { table: table.into(), partitions: left.clone() };
                let mut admin = AdminClient::new(self.tool(&server.addr));
                let reply = match what {
                    Maintenance::Freeze => admin.freeze(request).await,
                    Maintenance::Flush => admin.flush(request).await,
                    Maintenance::Compact => admin.compact(request).await,
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

    pub async fn shutdown(mut self) {
        for pnode in self.pnodes.drain(..) {
            pnode.shutdown().await;
        }
        for i in 0..self.memtable.len() {
            self.stop_memtable(i).await;
        }
        for i in 0..self.sstable.len() {
            self.stop_sstable(i).await;
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub enum Maintenance {
    Freeze,
    Flush,
    Compact,
}
