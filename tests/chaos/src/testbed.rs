//! The cluster under test: server processes, each with what the machine offers to break it.
//!
//! Owns networks, disks and clocks of the servers. Starting, stopping and signalling them is `sextant-dev-cluster`'s: this only
//! says where each runs ([`Place`]).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use sextant_client::http;
use sextant_common::error::{Error, Result};
use sextant_dev_cluster::{DevCluster, DevOptions, Place, Placement, Role, Tuning};
use sextant_environment::Env;
use sextant_environment::rng::Rng;

use crate::fault::Kind;
use crate::host::capability::{Capabilities, Capability};
use crate::host::net::{self, Node};
use crate::host::rules::Rule;
use crate::host::shim::{Shim, Skew, Sync};
use crate::host::throttle::Throttle;
use crate::host::volume::Volume;
use crate::server::{Id, MEMTABLE_SERVERS, PNODES, SSTABLE_SERVERS};

/// Each memtable server leads some.
pub const PARTITIONS: u32 = 3;
/// A volume holds a log with its spare segments, or some hundred small tables.
const VOLUME_MIB: u64 = 96;
/// How long a server may take to tell its status.
const STATUS_WITHIN: Duration = Duration::from_secs(1);

/// How much clocks may be off.
#[derive(Clone, Copy, Debug)]
pub struct Clocks {
    /// What the servers are told as the bound on their wall clock's error, in milliseconds.
    pub bound_ms: u64,
    /// What monotonic clocks drift at the most, in parts per million: below the configured bound.
    pub drift_ppm: u64,
}

/// What kind of cluster.
#[derive(Clone, Debug)]
pub struct Shape {
    pub binary: PathBuf,
    pub dir: PathBuf,
    pub seed: u64,
    /// Each process starts with other clocks; `None`: all have the true ones.
    pub clocks: Option<Clocks>,
    /// Whether memtable and sstable servers get disks of their own.
    pub volumes: bool,
    pub tuning: Tuning,
}

/// What the servers are started in.
struct Hosts {
    nodes: BTreeMap<Id, Node>,
    shims: BTreeMap<Id, Shim>,
    timens: bool,
    clocks: Option<Clocks>,
    rng: Arc<dyn Rng>,
    skews: Mutex<BTreeMap<Id, Skew>>,
}

impl Hosts {
    fn skew(&self, clocks: Clocks) -> Skew {
        let within = |bound: u64| self.rng.below(2 * bound + 1) as i64 - bound as i64;
        // Nine tenths of the bound, so that the reading's own error is covered too.
        let wall_ns = within(clocks.bound_ms * 900_000);
        Skew { wall_ns, drift_ppm: within(clocks.drift_ppm) }
    }
}

impl Place for Hosts {
    fn host(&self, role: Role, index: usize) -> String {
        let node = self.nodes.get(&Id::new(role, index));
        node.map_or_else(|| "127.0.0.1".into(), |node| node.address.clone())
    }

    fn wrap(&self, role: Role, index: usize) -> Vec<String> {
        let id = Id::new(role, index);
        let mut words = self.nodes.get(&id).map_or_else(Vec::new, Node::enter);
        if self.timens && self.clocks.is_some() {
            let offset = self.rng.below(10_000_000).to_string();
            words.extend(
                ["unshare", "--time", "--monotonic", &offset, "--boottime", &offset].map(str::to_owned),
            );
        }
        if let Some(shim) = self.shims.get(&id) {
            let skew = self.clocks.map_or_else(Skew::default, |clocks| self.skew(clocks));
            self.skews.lock().insert(id, skew);
            words.extend(shim.wrap(skew));
        }
        words
    }
}

/// The cluster, and what breaks it. All of it ends with the program.
pub struct Testbed {
    pub env: Env,
    pub cluster: DevCluster,
    hosts: Arc<Hosts>,
    volumes: BTreeMap<Id, Volume>,
    throttles: BTreeMap<Id, Throttle>,
    /// What is in force.
    filters: BTreeMap<Id, Vec<Rule>>,
    data: PathBuf,
    /// Servers that were wiped and are not yet voters of everything again: what they were started with.
    wiped: BTreeMap<Id, Kind>,
}

impl Testbed {
    /// Makes the network and the disks as far as the machine can, and starts the servers; returns when all are ready.
    pub async fn start(env: Env, has: &Capabilities, shape: Shape) -> Result<Testbed> {
        let (mut nodes, mut shims) = (BTreeMap::new(), BTreeMap::new());
        let (mut volumes, mut throttles) = (BTreeMap::new(), BTreeMap::new());
        let data = shape.dir.join("data");
        std::fs::create_dir_all(&data)?;
        if has.has(Capability::Netns) {
            net::make_bridge().await?;
        }
        for (number, id) in Id::all().into_iter().enumerate() {
            if has.has(Capability::Netns) {
                let node = Node::new(id.to_string(), number + 11);
                net::make_node(&node).await?;
                nodes.insert(id, node);
            }
            if has.has(Capability::Shim) {
                let shim = Shim::new(&shape.dir, &id.to_string());
                shim.order(Sync::Normal)?;
                shims.insert(id, shim);
            }
            if shape.volumes && has.has(Capability::Loop) && id.role != Role::PNode {
                let volume = Volume::make(&data.join(id.to_string()), VOLUME_MIB).await?;
                if has.has(Capability::Blkio) {
                    throttles.insert(id, Throttle::make(&id.to_string(), volume.path()).await?);
                }
                volumes.insert(id, volume);
            }
        }
        let mut tuning = shape.tuning;
        let skewed = shape.clocks.filter(|_| has.has(Capability::Shim));
        if let Some(clocks) = skewed {
            let clock: toml::Table = [
                ("source".to_owned(), "fixed".into()),
                ("error_us".to_owned(), toml::Value::Integer(clocks.bound_ms as i64 * 1000)),
            ]
            .into_iter()
            .collect();
            tuning.memtable.insert("clock".into(), clock.clone().into());
            tuning.pnode.insert("clock".into(), clock.into());
        }
        let hosts = Arc::new(Hosts {
            nodes,
            shims,
            timens: has.has(Capability::Timens),
            clocks: skewed,
            rng: Arc::new(sextant_environment::rng::SeededRng::new(shape.seed)),
            skews: Mutex::default(),
        });
        let options = DevOptions {
            partitions: Some(PARTITIONS),
            memtable: Some(MEMTABLE_SERVERS),
            sstable: Some(SSTABLE_SERVERS),
            pnodes: PNODES,
            processes: Some(shape.binary),
            tuning,
            placement: Some(Placement(hosts.clone())),
            ..DevOptions::on_free_ports(data)
        };
        let data = shape.dir.join("data");
        let cluster = DevCluster::start(env.clone(), options).await?;
        let (filters, wiped) = (BTreeMap::new(), BTreeMap::new());
        Ok(Testbed { env, cluster, hosts, volumes, throttles, filters, data, wiped })
    }

    /// gRPC addresses of the p-nodes.
    pub fn pnodes(&self) -> Vec<String> {
        self.cluster.grpc_addrs()
    }

    /// Where the p-nodes speak the Redis protocol.
    pub fn resp_addrs(&self) -> Result<Vec<String>> {
        (0..PNODES).map(|at| self.cluster.resp(at).map(str::to_owned)).collect()
    }

    pub fn address(&self, id: Id) -> String {
        self.hosts.host(id.role, id.index)
    }

    /// How far the clocks of the process that now runs are off.
    pub fn skew(&self, id: Id) -> Option<Skew> {
        self.hosts.clocks.and_then(|_| self.hosts.skews.lock().get(&id).copied())
    }

    fn node(&self, id: Id) -> Result<&Node> {
        self.hosts.nodes.get(&id).ok_or_else(|| Error::invalid(format!("{id} has no network of its own")))
    }

    pub fn volume(&self, id: Id) -> Result<&Volume> {
        self.volumes.get(&id).ok_or_else(|| Error::invalid(format!("{id} has no disk of its own")))
    }

    pub fn sync(&self, id: Id, sync: Sync) -> Result<()> {
        let shim = self.hosts.shims.get(&id);
        shim.ok_or_else(|| Error::invalid(format!("{id} runs without the library")))?.order(sync)
    }

    pub async fn link(&self, id: Id, up: bool) -> Result<()> {
        self.node(id)?.link(up).await
    }

    pub async fn rate(&self, id: Id, kilobits: Option<u32>) -> Result<()> {
        self.node(id)?.rate(kilobits).await
    }

    /// Limits what a server writes to its disk, in bytes per second; 0: no limit.
    pub fn throttle(&self, id: Id, bytes: u64) -> Result<()> {
        let throttle = self.throttles.get(&id);
        let throttle = throttle.ok_or_else(|| Error::invalid(format!("{id} has no disk to throttle")))?;
        throttle.limit(bytes)?;
        let Some(pid) = self.cluster.pid(id.role, id.index)? else { return Ok(()) };
        if bytes > 0 { throttle.add(pid) } else { throttle.release(pid) }
    }

    /// Puts packet filters in force; servers that are not named have none.
    pub async fn filter(&mut self, wanted: BTreeMap<Id, Vec<Rule>>) -> Result<()> {
        let none = Vec::new();
        for (id, node) in &self.hosts.nodes {
            let (new, old) = (wanted.get(id).unwrap_or(&none), self.filters.get(id).unwrap_or(&none));
            if new != old {
                node.filter(new).await?;
            }
        }
        self.filters = wanted;
        Ok(())
    }

    /// Servers that ended although nobody stopped them, and how.
    pub fn ended(&self) -> Vec<(Id, String)> {
        let ended = |id: Id| self.cluster.ended(id.role, id.index).ok().flatten().map(|how| (id, how));
        Id::all().into_iter().filter_map(ended).collect()
    }

    /// The status document of a server, if it answers.
    pub async fn status(&self, id: Id) -> Option<serde_json::Value> {
        let addr = self.cluster.http(id.role, id.index).ok()?;
        let answer = http::get(&self.env, addr, "/status", STATUS_WITHIN).await.ok()?;
        serde_json::from_str(&answer.text()).ok()
    }

    /// Where a memtable or sstable server has its data.
    pub fn data_dir(&self, id: Id) -> PathBuf {
        self.data.join(id.to_string())
    }

    /// Whether a memtable server says that it votes in every partition and has its memory.
    async fn stands(&self, id: Id) -> bool {
        let Some(status) = self.status(id).await else { return false };
        let node = id.index as u64 + 1;
        let partitions = status["partitions"].as_array().map_or(&[][..], Vec::as_slice);
        let is_voter = |partition: &serde_json::Value| {
            let voters = partition["voters"].as_array().map_or(&[][..], Vec::as_slice);
            voters.iter().any(|v| v.as_u64() == Some(node)) && partition["lost_memory"] != true
        };
        !partitions.is_empty() && partitions.iter().all(is_voter)
    }

    /// Whether all other memtable servers stand, and nobody is without its memory.
    pub async fn others_stand(&self, id: Id) -> bool {
        for other in Id::tier(Role::Memtable).into_iter().filter(|other| *other != id) {
            if !self.stands(other).await {
                return false;
            }
        }
        self.wiped.is_empty()
    }

    pub fn wiped(&mut self, kind: Kind, id: Id) {
        self.wiped.insert(id, kind);
    }

    /// What a server was wiped to that is not a voter of everything again.
    pub fn wiped_to(&self, id: Id) -> Option<Kind> {
        self.wiped.get(&id).copied()
    }

    /// Servers that were wiped and stand again: how many.
    pub async fn survivors(&mut self) -> u64 {
        let mut survived = 0;
        for id in self.wiped.keys().copied().collect::<Vec<_>>() {
            if self.stands(id).await {
                self.wiped.remove(&id);
                survived += 1;
            }
        }
        survived
    }

    /// Which memtable server serves each partition, as far as they say.
    pub async fn leaders(&self) -> BTreeMap<u64, Id> {
        let tier = Id::tier(Role::Memtable);
        let asked = tier.iter().map(|id| async move { (*id, self.status(*id).await) });
        let mut leaders = BTreeMap::new();
        for (id, status) in futures::future::join_all(asked).await {
            let partitions = status.as_ref().and_then(|s| s["partitions"].as_array()).into_iter().flatten();
            for partition in partitions.filter(|p| p["serving"] == true) {
                leaders.insert(partition["partition"].as_u64().unwrap_or(0), id);
            }
        }
        leaders
    }

    /// Stops the servers in order and gives their disks back.
    ///
    /// # Errors
    /// The first failure; everything is tried.
    pub async fn finish(self) -> Result<()> {
        let mut first = self.cluster.shutdown().await;
        drop(self.throttles);
        for volume in self.volumes.into_values() {
            first = first.and(volume.remove().await);
        }
        first
    }

    /// After an interrupt: whatever is in force, the servers end and the disks go, so that the run's files can be removed.
    pub async fn abandon(self) {
        drop(self.cluster);
        drop(self.throttles);
        for volume in self.volumes.into_values() {
            volume.detach().await;
        }
    }

    pub fn log(&self, id: Id) -> Result<PathBuf> {
        self.cluster.log_path(id.role, id.index)
    }
}

/// The server binary that belongs to this program.
pub fn binary(given: Option<&Path>) -> Result<PathBuf> {
    let path = match given {
        Some(path) => path.to_owned(),
        None => std::env::current_exe()?.with_file_name("sextant"),
    };
    let path = std::path::absolute(path)?;
    if path.is_file() {
        Ok(path)
    } else {
        Err(Error::invalid(format!("no server binary at {}", path.display())))
    }
}
