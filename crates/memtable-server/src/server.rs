//! Wiring: opens the log, recovers partitions, starts Raft, workers and services.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use sextant_common::error::{Error, ErrorKind, Result};
use sextant_common::ids::{LogPosition, PartitionId};
use sextant_environment::Env;
use sextant_environment::env::{Listening, Party, grpc_incoming, internal_calls};
use sextant_environment::freight::FreightLayer;
use sextant_environment::room::Room;
use sextant_environment::shutdown::{self, Shutdown, ShutdownTrigger};
use sextant_proto::MESSAGE_BYTES_MAX;
use sextant_proto::v1::admin_server::AdminServer;
use sextant_proto::v1::lease_server::LeaseServer;
use sextant_proto::v1::raft_server::RaftServer;
use sextant_proto::v1::rows_server::RowsServer;
use sextant_raft_log::{RaftLog, position_of};
use tokio::sync::{Notify, mpsc, oneshot, watch};

use crate::command::Configuration;
use crate::config::MemtableServerConfig;
use crate::drain;
use crate::flush::{Background, SstServers, repair_loop};
use crate::founding;
use crate::incarnation::{DirectoryLock, Incarnation};
use crate::metrics::Metrics;
use crate::partition::Partition;
use crate::partition::snapshot::Snapshot;
use crate::raft::acceptor::Acceptor;
use crate::raft::core::CoreThread;
use crate::raft::network::{NetworkFactory, Peer, Purged};
use crate::raft::snapshot_store::SnapshotStore;
use crate::raft::{Raft, StateMachine, election};
use crate::recover::{Gate, Memories, Rebuilding};
use crate::replica::{Event, Handle, LogFeed, ReplicaState, body_of};
use crate::service::admin::AdminShell;
use crate::service::lease::LeaseShell;
use crate::service::raft::RaftShell;
use crate::service::rows::{self, RowsShell};
use crate::service::{Context, Recovery};
use crate::worker::{Parts, Worker};

/// How long a stopping server waits for its parts.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);
/// A snapshot that could not be stored is tried again after this time.
const SNAPSHOT_RETRY: Duration = Duration::from_secs(1);

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
    _core: CoreThread,
}

/// One partition replica, recovered but not yet running.
struct Replica {
    shared: Arc<ReplicaState>,
    events: mpsc::UnboundedSender<Event>,
    event_queue: mpsc::UnboundedReceiver<Event>,
    writes: mpsc::Sender<crate::replica::QueuedWrite>,
    write_queue: mpsc::Receiver<crate::replica::QueuedWrite>,
    partition: Partition,
    recovered: Vec<(LogPosition, u64)>,
    snapshot_seq: u64,
    store: SnapshotStore,
}

impl MemtableServer {
    /// Starts a server; returns when its services listen. Elections follow in the background.
    pub async fn start(env: Env, config: MemtableServerConfig) -> Result<MemtableServer> {
        config.validate()?;
        let (env, listening) = Listening::counted(env);
        let started_ns = env.clock.holder_ns();
        let mut registry = Registry::with_prefix("sextant");
        let metrics = Arc::new(Metrics::register(&mut registry));
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
        let log = Arc::new(RaftLog::open(env.clone(), config.log(), &ids, &mut registry).await?);
        let report = log.report();
        let counted = incarnation.clone();
        env.blocking(move || counted.began()).await.ok_or_else(stopping)??;

        // Bound from here on: what this node promised before it stopped is forgotten.
        let memory_bytes = config.tuning.memory_bytes / u64::from(config.cluster.partitions);
        let founding = Configuration::founding(lease, memory_bytes);
        let news = Arc::new(Notify::new());
        let replay_start = env.clock.holder_ns();
        let mut replicas = Vec::new();
        for id in &ids {
            replicas.push(recover(&env, &config, *id, &log, &founding, &news, &incarnation)?);
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

        let listener = env.net.bind(config.listen.clone()).await?;
        let addr = listener.local_addr()?;
        let cluster = Bytes::from(format!("{}/{:016x}", config.cluster.id, config.cluster.fingerprint()));
        let core = CoreThread::start(&env);
        let mut peers = HashMap::new();
        for server in config.cluster.memtable.iter().filter(|s| s.id != config.id) {
            let peer = Peer::connect(&env, server, &config.cluster, config.id, &core).await?;
            peers.insert(server.id.0, peer);
        }
        let peers = Arc::new(peers);
        let servers = Arc::new(SstServers::connect(&env, &config.cluster, config.id));
        let attempts = Arc::new(AtomicU32::new(env.rng.next_u64() as u32));

        let memories = {
            let at_start = replicas.iter().any(|replica| replica.partition.next_index() > 0);
            Memories::new(at_start, incarnation.clone())
        };
        let (mut partitions, mut rafts, mut gates) = (HashMap::new(), HashMap::new(), HashMap::new());
        let (mut networks, mut stores) = (HashMap::new(), HashMap::new());
        let mut to_drain = Vec::new();
        for replica in replicas {
            let id = replica.shared.id;
            let partition_log = log.partition(id);
            partition_log.set_observer(Arc::new(LogFeed(replica.events.clone())));
            let state_machine = StateMachine::new(id, replica.events.clone(), replica.store.clone());
            let network = NetworkFactory {
                shared: replica.shared.clone(),
                cluster: cluster.clone(),
                peers: peers.clone(),
                purged: {
                    let log = partition_log.clone();
                    Purged(Arc::new(move || log.purged().map(|id| id.index)))
                },
            };
            let leader_lease_ms = replica.shared.configuration.load().leader_lease_ms;
            let raft_config = Arc::new(crate::raft::config(lease, leader_lease_ms, &config.tuning)?);
            let (node, net, raft_log) = (config.id.0, network.clone(), partition_log.clone());
            let raft = core
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
            };
            let (snapshots, offered) = watch::channel(None);
            stores.insert(id, replica.store.clone());
            tokio::spawn(keep_snapshots(replica.store, offered, raft.clone()));
            tokio::spawn(repair_loop(background.clone(), shutdown.clone()));
            let rank = preference(&config, id);
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
            gates.insert(id, gate);
            let election = election::election_loop(
                raft.clone(),
                replica.shared.clone(),
                lease.clone(),
                election::Device { log: log.clone(), stall_ms: config.tuning.disk_stall_ms },
                rank,
                draining.clone(),
            );
            tokio::spawn(election);
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
                snapshot_seq: replica.snapshot_seq,
            };
            let worker = Worker::new(parts, replica.event_queue, replica.write_queue, shutdown.clone());
            env.dedicated(&format!("partition-{id}"), worker.run());
            let handle = Handle { shared: replica.shared, events: replica.events, writes: replica.writes };
            to_drain.push((handle.clone(), network));
            partitions.insert(id, handle);
            rafts.insert(id, raft);
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
            rebuilding,
            memories,
            news,
            metrics,
            recovery,
            log,
            answers: Room::new(rows::ANSWER_BYTES_MAX),
            started_ns,
            draining,
            shutdown: shutdown.clone(),
        });
        serve(listener, &context, cluster, shutdown.clone());
        let http = match &config.http {
            Some(at) => Some(serve_http(&env, at, registry, &context, shutdown).await?),
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
            _core: core,
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
    pub async fn shutdown(self) {
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

/// How long a peer may be silent before it is asked whether it is there, and before it counts as gone.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

fn stopping() -> Error {
    Error::new(ErrorKind::Stopping, "the runtime is stopping")
}

/// Restores a partition from its snapshot and fills its memtables from the log after it.
fn recover(
    env: &Env,
    config: &MemtableServerConfig,
    id: PartitionId,
    log: &RaftLog,
    founding: &Configuration,
    news: &Arc<Notify>,
    incarnation: &Arc<Incarnation>,
) -> Result<Replica> {
    let (store, snapshot) = SnapshotStore::open(env, &config.data_dir, id)?;
    let mut partition = snapshot.as_ref().map_or_else(|| Partition::new(id), |s| Partition::restore(id, s));
    let partition_log = log.partition(id);
    if let Some(purged) = partition_log.purged()
        && purged.index >= partition.next_index()
    {
        return Err(Error::corrupt(format!(
            "partition {id}: the log begins after entry {}, but the snapshot reaches only to {}: {} is missing or old",
            purged.index,
            partition.next_index().saturating_sub(1),
            config.data_dir.join(format!("partition-{id}.snapshot")).display(),
        )));
    }
    if snapshot.is_some() && partition_log.purged().is_none() && partition_log.vote().is_none() {
        return Err(Error::corrupt(format!(
            "partition {id}: there is a snapshot in {}, but the log knows neither a vote nor a purge: it is not the log that belongs to \
             it. Empty all directories of this server if the others are sound",
            config.data_dir.display(),
        )));
    }
    if let Some(covered) = store.newest().and_then(|(meta, _)| meta.last_log_id) {
        let removed = partition_log.follow_snapshot(covered)?;
        if removed > 0 {
            tracing::warn!(
                partition = %id, removed,
                "the log lacks the last entry of a leader's snapshot: it begins after it now. What was removed is in the snapshot, \
                 or was never committed"
            );
        }
    }
    let snapshot_seq = partition.last_seq();
    let mut recovered = Vec::new();
    let next = partition.next_index();
    partition_log.replay(next, &mut |entry| {
        let at = position_of(&entry.log_id);
        partition.ingest(at, &body_of(&entry), false)?;
        recovered.push((at, partition.last_seq()));
        Ok(())
    })?;
    let (events, event_queue) = mpsc::unbounded_channel();
    let (writes, write_queue) = mpsc::channel(config.tuning.queue_requests);
    let shared = Arc::new(ReplicaState::new(env, config.id.0, &partition, founding, incarnation, news));
    Ok(Replica {
        shared,
        events,
        event_queue,
        writes,
        write_queue,
        partition,
        recovered,
        snapshot_seq,
        store,
    })
}

/// How much this node prefers to leave the partition's leadership to others: 0 for the preferred one. Leaders are spread.
fn preference(config: &MemtableServerConfig, partition: PartitionId) -> u64 {
    let mut ids: Vec<u64> = config.cluster.memtable.iter().map(|s| s.id.0).collect();
    ids.sort_unstable();
    let n = ids.len() as u64;
    let at = ids.iter().position(|id| *id == config.id.0).unwrap_or(0) as u64;
    (at + n - u64::from(partition.0) % n) % n
}

/// Stores the snapshots that a worker offers, and tells Raft when the log may be purged. One that could not be stored (the
/// disk is full) is tried again: the log waits for it.
async fn keep_snapshots(
    store: SnapshotStore,
    mut offered: watch::Receiver<Option<Arc<Snapshot>>>,
    raft: Raft,
) {
    let mut failed = false;
    loop {
        let patience = if failed { SNAPSHOT_RETRY } else { Duration::MAX };
        if let Ok(Err(_)) = tokio::time::timeout(patience, offered.changed()).await {
            return;
        }
        let Some(snapshot) = offered.borrow_and_update().clone() else { continue };
        failed = false;
        match store.put(&snapshot).await {
            Ok(true) => {
                let _ = raft.trigger().snapshot().await;
            }
            Ok(false) => {}
            // The log keeps everything until a snapshot succeeds.
            Err(e) => {
                tracing::error!("cannot store a partition's snapshot: {e}");
                failed = true;
            }
        }
    }
}

fn serve(
    listener: Box<dyn sextant_environment::env::Listener>,
    context: &Arc<Context>,
    cluster: Bytes,
    mut shutdown: Shutdown,
) {
    macro_rules! service {
        ($server:ident, $shell:expr) => {
            $server::new($shell)
                .max_decoding_message_size(MESSAGE_BYTES_MAX)
                .max_encoding_message_size(MESSAGE_BYTES_MAX)
        };
    }
    let me = Party::memtable(context.node);
    let router = tonic::transport::Server::builder()
        .layer(tonic::service::InterceptorLayer::new(internal_calls(&context.cluster, me)))
        .layer(FreightLayer)
        .tcp_nodelay(true)
        // A peer that is gone must not hold the room of what it has not taken.
        .http2_keepalive_interval(Some(KEEP_ALIVE))
        .http2_keepalive_timeout(Some(KEEP_ALIVE))
        .initial_stream_window_size(Some(4 * 1024 * 1024))
        .initial_connection_window_size(Some(16 * 1024 * 1024))
        .add_service(service!(RaftServer, RaftShell { context: context.clone(), cluster }))
        .add_service(service!(RowsServer, RowsShell { context: context.clone() }))
        .add_service(service!(LeaseServer, LeaseShell { context: context.clone() }))
        .add_service(service!(AdminServer, AdminShell { context: context.clone() }));
    tokio::spawn(async move {
        let incoming = grpc_incoming(listener);
        let mut at_once = shutdown.clone();
        // Long-lived streams would hold a graceful end up for ever: peers fail over instead.
        tokio::select! {
            served = router.serve_with_incoming_shutdown(incoming, async move { shutdown.wait().await }) => {
                if let Err(e) = served {
                    tracing::error!("gRPC service ended: {e}");
                }
            }
            () = async {
                at_once.wait().await;
                tokio::time::sleep(Duration::from_millis(200)).await;
            } => {}
        }
    });
}

/// Why a server that has lost its memory of a partition is not ready. `unfounded`: why nobody may let it in.
fn waits_to_be_let_in(partition: PartitionId, unfounded: Option<&str>) -> String {
    let waits = format!(
        "partition {partition}: this server has lost its memory, and waits until the group lets it in again (or, if it was left out \
         of the voters, until `sextant admin voters` names it)"
    );
    unfounded.map_or(waits.clone(), |why| format!("{waits}; {why}"))
}

async fn serve_http(
    env: &Env,
    at: &str,
    registry: Registry,
    context: &Arc<Context>,
    shutdown: Shutdown,
) -> Result<SocketAddr> {
    let (ready, status) = (context.clone(), context.clone());
    let state = sextant_environment::http::HttpState {
        registry: Arc::new(Mutex::new(registry)),
        ready: Arc::new(move || {
            if ready.draining.is_triggered() {
                return Err("the server is stopping".into());
            }
            // Ready: every partition has a leader that this node knows; but nobody tells a server that was removed.
            let removed = |h: &Handle| {
                let members = h.shared.numbers.lock().members.clone();
                !members.voters.is_empty() && !members.voters.contains(&h.shared.node)
            };
            let lost = ready.partitions.values().find(|h| h.shared.incarnation.is_lost(h.shared.id));
            if let Some(h) = lost {
                return Err(waits_to_be_let_in(h.shared.id, h.shared.unfounded.lock().as_deref()));
            }
            let lacking = ready.partitions.values().find(|h| h.shared.leader().node == 0 && !removed(h));
            let why = |h: &Handle| {
                let unfounded = h.shared.unfounded.lock().clone();
                unfounded.unwrap_or_else(|| format!("partition {} has no leader", h.shared.id))
            };
            lacking.map_or(Ok(()), |h| Err(why(h)))
        }),
        status: Arc::new(move || {
            let json = crate::service::status::json(&status);
            Box::pin(async move { json })
        }),
    };
    sextant_environment::http::serve(env, at, state, shutdown).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_without_its_memory_says_what_it_waits_for_and_what_keeps_the_group_from_being_there() {
        let waits = waits_to_be_let_in(PartitionId(3), None);
        assert!(
            waits.starts_with("partition 3: this server has lost its memory")
                && waits.contains("admin voters")
        );
        let why = waits_to_be_let_in(PartitionId(3), Some("run `sextant admin recover`"));
        assert!(why.starts_with(&waits) && why.ends_with("; run `sextant admin recover`"), "{why}");
    }
}
