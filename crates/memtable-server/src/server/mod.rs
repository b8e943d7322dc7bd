//! Wiring: opens the log, recovers partitions ([`recovered`]), starts Raft, workers and services ([`grpc`], [`http`]).

mod grpc;
mod http;
mod recovered;
mod snapshots;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use prometheus_client::registry::Registry;
use sextant_common::error::{Error, ErrorKind, Result};
use sextant_common::ids::PartitionId;
use sextant_environment::Env;
use sextant_environment::clock::OtherClocks;
use sextant_environment::disk_space::DiskSpace;
use sextant_environment::env::{Door, Listening, cannot_listen};
use sextant_environment::room::Room;
use sextant_environment::shutdown::{self, ShutdownTrigger};
use sextant_raft_log::RaftLog;
use tokio::sync::{Notify, oneshot, watch};

use crate::balance::{Balanced, balance};
use crate::clocks;
use crate::command::{Configuration, ConfigurationRules};
use crate::config::MemtableServerConfig;
use crate::drain;
use crate::flush::{Background, repair_loop};
use crate::founding;
use crate::incarnation::{DirectoryLock, Incarnation, with_advice};
use crate::metrics::Metrics;
use crate::raft::acceptor::Acceptor;
use crate::raft::network::{NetworkFactory, Peer, Purged};
use crate::raft::pulse::pulse;
use crate::raft::threads::PartitionThreads;
use crate::raft::{Raft, StateMachine, election};
use crate::recover::{Gate, Memories, Rebuilding};
use crate::replica::{Event, Handle, LogFeed};
use crate::service::rows;
use crate::service::{Context, Recovery};
use crate::upstream::SstServers;
use crate::worker::{Parts, Worker};
use recovered::recover;

/// How long a stopping server waits for its parts.
/// Pages of the log that are made at a time.
const LOG_PAGES_AT_ONCE: usize = 4;
const STOP_TIMEOUT: Duration = Duration::from_secs(5);
/// A running memtable server.
pub struct MemtableServer {
    addr: SocketAddr,
    http: Option<SocketAddr>,
    context: Arc<Context>,
    /// For the hand-over of each partition before the server stops.
    replicas: Vec<(Handle, NetworkFactory)>,
    drain: ShutdownTrigger,
    stop: ShutdownTrigger,
    listening: Listening,
    _lock: DirectoryLock,
    /// After `stop`: who sees Raft end is to know why.
    _threads: PartitionThreads,
}

impl MemtableServer {
    /// Starts a server; returns when its services listen. Elections follow in the background.
    pub fn start(env: Env, config: MemtableServerConfig) -> BoxFuture<'static, Result<MemtableServer>> {
        Box::pin(async move {
            config.validate()?;
            let (env, listening) = Listening::counted(env);
            let started_ns = env.clock.holder_ns();
            // What every server registers names itself in full.
            let mut registry = Registry::default();
            let metrics = Arc::new(Metrics::register(registry.sub_registry_with_prefix("sextant")));
            let calls = grpc::calls(&env, &mut registry);
            let directories: Vec<_> = [config.data_dir.clone()].into_iter().chain(config.devices()).collect();
            DiskSpace::register(&env, directories.clone(), &mut registry);
            let clocks = OtherClocks::register(registry.sub_registry_with_prefix("sextant"));
            let (stop, shutdown) = shutdown::channel();
            let (drain, draining) = shutdown::channel();
            let lease = &config.cluster.lease;

            let incarnation = {
                let (env, config) = (env.clone(), config.clone());
                env.clone().blocking(move || Incarnation::open(&env, &config)).await
            };
            let (incarnation, lock) = incarnation.ok_or_else(stopping)??;
            let incarnation = Arc::new(incarnation);
            let ids: Vec<PartitionId> = (0..config.cluster.partitions).map(PartitionId).collect();
            let threads = PartitionThreads::start(&env, config.tuning.threads, ids.len());
            // Whoever waits for the log is answered where Raft runs.
            let (log, registry) = {
                let (env, log, ids) = (env.clone(), config.log(), ids.clone());
                let opening = async move {
                    let opened =
                        RaftLog::open(env, log, &ids, registry.sub_registry_with_prefix("sextant")).await;
                    (opened, registry)
                };
                threads.first().run(opening).await?
            };
            let damaged = |e: Error| with_advice(e, &directories);
            let log = Arc::new(log.map_err(damaged)?);
            let report = log.report();
            let counted = incarnation.clone();
            env.blocking(move || counted.began()).await.ok_or_else(stopping)??;

            // Bound from here on: what this node promised before it stopped is forgotten.
            let memory_bytes = config.tuning.memory_bytes / u64::from(config.cluster.partitions);
            let founding = Configuration {
                format_open: config.tuning.format_max > 0,
                ..Configuration::founding(lease, memory_bytes)
            };
            let news = Arc::new(Notify::new());
            let replay_start = env.clock.holder_ns();
            let mut replicas = Vec::new();
            for id in &ids {
                let recovered = recover(&env, &config, *id, &log, &founding, &news, &incarnation);
                replicas.push(recovered.map_err(damaged)?);
            }
            let recovery = Recovery {
                log_seconds: report.seconds,
                log_entries: report.entries,
                log_bytes: report.bytes,
                torn_bytes: report.torn_bytes,
                replay_seconds: (env.clock.holder_ns() - replay_start) as f64 / 1e9,
                replayed_writes: replicas.iter().map(|r| r.partition.counters.writes).sum(),
                skipped_writes: replicas.iter().map(|r| r.partition.counters.skipped).sum(),
            };

            let cannot = |e: std::io::Error| cannot_listen("listen", &e);
            let listener = env.net.bind(config.listen.clone(), Door::Members).await.map_err(cannot)?;
            let addr = listener.local_addr().map_err(cannot)?;
            let cluster = Bytes::from(format!("{}/{:016x}", config.cluster.id, config.cluster.fingerprint()));
            let mut peers_of = Vec::new();
            for thread in threads.all() {
                let mut peers = HashMap::new();
                for server in config.cluster.memtable.iter().filter(|s| s.id != config.id) {
                    let peer = Peer::connect(&env, server, &config.cluster, config.id, thread).await?;
                    peers.insert(server.id.0, peer);
                }
                peers_of.push(Arc::new(peers));
            }
            let servers = Arc::new(SstServers::connect(&env, &config.cluster, config.id));
            let attempts = Arc::new(AtomicU32::new(env.rng.next_u64() as u32));
            let orders = Arc::new(AtomicU64::new(1));

            let memories = {
                let at_start = replicas.iter().any(|replica| replica.partition.next_index() > 0);
                Memories::new(at_start, incarnation.clone())
            };
            let (mut partitions, mut rafts, mut gates) = (HashMap::new(), HashMap::new(), HashMap::new());
            let (mut networks, mut stores) = (HashMap::new(), HashMap::new());
            let mut backgrounds = HashMap::new();
            let mut to_drain = Vec::new();
            for replica in replicas {
                let id = replica.shared.id;
                let partition_log = log.partition(id);
                partition_log.set_observer(Arc::new(LogFeed(replica.events.clone())));
                let state_machine = StateMachine::new(id, replica.events.clone(), replica.store.clone());
                let network = NetworkFactory {
                    shared: replica.shared.clone(),
                    cluster: cluster.clone(),
                    peers: peers_of[threads.index_of(id)].clone(),
                    purged: {
                        let log = partition_log.clone();
                        Purged(Arc::new(move || log.purged().map(|id| id.index)))
                    },
                };
                let leader_lease_ms = replica.shared.configuration.load().leader_lease_ms;
                let raft_config = Arc::new(crate::raft::config(lease, leader_lease_ms, &config.tuning)?);
                let (node, net, raft_log) = (config.id.0, network.clone(), partition_log.clone());
                let raft = threads
                    .of(id)
                    .run(async move { Raft::new(node, raft_config, net, raft_log, state_machine).await })
                    .await?
                    .map_err(|e| Error::internal(format!("partition {id}: Raft cannot start: {e}")))?;
                let background = Background {
                    runtime: tokio::runtime::Handle::current(),
                    shared: replica.shared.clone(),
                    servers: servers.clone(),
                    events: replica.events.clone(),
                    tuning: config.tuning.clone(),
                    attempts: attempts.clone(),
                    orders: orders.clone(),
                    metrics: metrics.clone(),
                };
                let (snapshots, offered) = watch::channel(None);
                stores.insert(id, replica.store.clone());
                tokio::spawn(snapshots::keep(replica.store, offered, raft.clone()));
                tokio::spawn(repair_loop(background.clone(), shutdown.clone()));
                let rank = preference(&config, id, config.id.0);
                memories.add(id, raft.clone());
                let gate = Gate {
                    shared: replica.shared.clone(),
                    servers: servers.clone(),
                    network: network.clone(),
                    memories: memories.clone(),
                    sst_replicas: config.tuning.sst_replicas,
                    founding: founding.clone(),
                    founder: Arc::default(),
                };
                tokio::spawn(gate.clone().watch(shutdown.clone()));
                tokio::spawn(founding::found_or_ask(
                    raft.clone(),
                    config.clone(),
                    gate.clone(),
                    shutdown.clone(),
                ));
                networks.insert(id, network.clone());
                backgrounds.insert(id, background.clone());
                gates.insert(id, gate);
                let election = election::election_loop(
                    raft.clone(),
                    replica.shared.clone(),
                    lease.clone(),
                    election::Device { log: log.clone() },
                    rank,
                    draining.clone(),
                );
                threads.of(id).spawn(election)?;
                let parts = Parts {
                    shared: replica.shared.clone(),
                    partition: replica.partition,
                    raft: raft.clone(),
                    log: partition_log,
                    server_log: log.clone(),
                    tuning: config.tuning.clone(),
                    founding: founding.clone(),
                    heartbeat_ms: lease.heartbeat_ms,
                    group_interval: Duration::from_micros(lease.group_interval_us),
                    metrics: metrics.clone(),
                    background,
                    network: network.clone(),
                    snapshots,
                    recovered: replica.recovered,
                    of_snapshot: replica.of_snapshot,
                };
                let worker = Worker::new(parts, replica.event_queue, replica.write_queue, shutdown.clone());
                threads.of(id).spawn(worker.run())?;
                let handle =
                    Handle { shared: replica.shared, events: replica.events, writes: replica.writes };
                to_drain.push((handle.clone(), network));
                partitions.insert(id, handle);
                rafts.insert(id, raft);
            }

            if let Some(network) = networks.get(&PartitionId(0)) {
                tokio::spawn(clocks::compare(network.clone(), clocks, shutdown.clone()));
            }
            if config.tuning.balance_ms > 0 {
                let balanced = ids.iter().filter_map(|id| {
                    let (handle, network) = (partitions.get(id)?.clone(), networks.get(id)?.clone());
                    Some(Balanced { handle, raft: rafts.get(id)?.clone(), network })
                });
                let interval = Duration::from_millis(config.tuning.balance_ms);
                let (balanced, config) = (balanced.collect(), config.clone());
                let rank = move |id, node| preference(&config, id, node);
                tokio::spawn(balance(balanced, interval, rank, draining.clone()));
            }
            for (n, thread) in threads.all().enumerate() {
                let here = rafts.iter().filter(|(id, _)| threads.index_of(**id) == n);
                let here: Vec<_> = here.map(|(_, raft)| raft.clone()).collect();
                thread.spawn(pulse(here, Duration::from_millis(lease.heartbeat_ms), shutdown.clone()))?;
            }
            let rafts = Arc::new(rafts);
            let acceptors = partitions.iter().filter_map(|(id, handle): (&PartitionId, &Handle)| {
                let acceptor = Acceptor {
                    shared: handle.shared.clone(),
                    raft: rafts.get(id)?.clone(),
                    rafts: rafts.clone(),
                    store: stores.remove(id)?,
                    log: log.clone(),
                    metrics: metrics.clone(),
                    disk_stall_ms: config.tuning.disk_stall_ms,
                    group_bytes: config.tuning.group_bytes,
                };
                Some((*id, acceptor))
            });
            let acceptors = acceptors.collect();
            let rebuilding = Arc::new(Rebuilding {
                env: env.clone(),
                node: config.id,
                cluster: config.cluster.clone(),
                gates,
                rafts: rafts.clone(),
            });
            let context = Arc::new(Context {
                boot: env.rng.nonzero_u64(),
                env: env.clone(),
                node: config.id,
                cluster: config.cluster.clone(),
                partitions,
                rafts,
                acceptors,
                networks,
                backgrounds,
                rebuilding,
                memories,
                news,
                metrics,
                recovery,
                log,
                answers: Room::new(rows::ANSWER_BYTES_MAX),
                log_pages: tokio::sync::Semaphore::new(LOG_PAGES_AT_ONCE),
                started_ns,
                draining,
                shutdown: shutdown.clone(),
            });
            grpc::serve(listener, &threads, (&context, &calls), &cluster, &shutdown)?;
            let http = match &config.http {
                Some(at) => Some(http::serve(&env, at, registry, &context, shutdown).await?),
                None => None,
            };
            tracing::info!(node = %config.id, %addr, "memtable server is up");
            Ok(MemtableServer {
                addr,
                http,
                context,
                replicas: to_drain,
                drain,
                stop,
                listening,
                _lock: lock,
                _threads: threads,
            })
        })
    }

    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    pub fn http_addr(&self) -> Option<SocketAddr> {
        self.http
    }

    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.context.metrics
    }

    /// The status document.
    pub fn status(&self) -> String {
        crate::service::status::json(&self.context)
    }

    /// Hands over what it leads, then stops in order: service, workers, Raft, log. Everything that was acknowledged is durable
    /// already.
    pub fn shutdown(self) -> BoxFuture<'static, ()> {
        Box::pin(self.shut_down())
    }

    async fn shut_down(self) {
        self.drain.trigger();
        drain::hand_over_all(&self.replicas).await;
        self.stop.trigger();
        let stop = async {
            for handle in self.context.partitions.values() {
                let (done, stopped) = oneshot::channel();
                if handle.events.send(Event::Stop(done)).is_ok() {
                    let _ = stopped.await;
                }
            }
            for raft in self.context.rafts.values() {
                let _ = raft.shutdown().await;
            }
            self.context.log.shutdown().await;
            self.listening.closed().await;
        };
        if tokio::time::timeout(STOP_TIMEOUT, stop).await.is_err() {
            tracing::warn!("memtable server: not everything stopped in time");
        }
    }
}

fn stopping() -> Error {
    Error::new(ErrorKind::Stopping, "the runtime is stopping")
}

/// How much a node prefers to leave the partition's leadership to others: 0 for the preferred one. Leaders are spread.
fn preference(config: &MemtableServerConfig, partition: PartitionId, node: u64) -> u64 {
    let mut ids: Vec<u64> = config.cluster.memtable.iter().map(|s| s.id.0).collect();
    ids.sort_unstable();
    let n = ids.len() as u64;
    let at = ids.iter().position(|id| *id == node).unwrap_or(0) as u64;
    (at + n - u64::from(partition.0) % n) % n
}
