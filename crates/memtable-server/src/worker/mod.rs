//! A partition replica's one worker: the only writer of its memtables, filters and duplicate table (LogStore's thread per
//! partition), and, on the leader, its sequencer and publisher.
//!
//! Flow on the leader: waiting writes -> evaluate -> bf-log entries to the desk -> propose one Raft entry -> the log store
//! feeds the entry back -> ingest -> (Raft commits) -> publish rule -> `published_seq` moves, clients are answered. The next
//! group is evaluated as soon as the one before is ingested, so several are in flight.
//!
//! Invariant: published_seq never passes a group that is not committed, or that a live lease forbids, and moves strictly in
//! log order.

mod agreement;
mod backlog;
mod broken;
mod configure;
mod handover;
mod leadership;
mod pressure;
mod publish;
mod rejoin;
mod sequence;
mod upkeep;
mod voters;

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use openraft::async_runtime::WatchReceiver;
use sextant_common::env::ProbeEvent;
use sextant_common::error::{Error, Result};
use sextant_common::ids::{Generation, LogPosition, TableId};
use sextant_common::key::filter_hash;
use sextant_common::mutant::{self, Mutant};
use sextant_common::shutdown::Shutdown;
use sextant_raft_log::{Entry, PartitionLog, RaftLog, position_of};
use tokio::sync::{mpsc, oneshot, watch};

use crate::command::{Command, Configuration};
use crate::config::Tuning;
use crate::flush::Background;
use crate::metrics::Metrics;
use crate::partition::Partition;
use crate::partition::commit::Change;
use crate::partition::ingest::{Body, Ingested};
use crate::partition::snapshot::Snapshot;
use crate::publication::PublishQueue;
use crate::raft::Raft;
use crate::raft::network::NetworkFactory;
use crate::replica::{
    Event, FilterSet, Numbers, QueuedWrite, ReplicaState, TableNumbers, WriteOutcome, body_of,
};

use backlog::Backlog;
use handover::{Handover, Resigned, Stall};
use leadership::Lead;
use publish::{Deferred, Waiting};
use rejoin::Rejoining;
use sequence::{Control, Proposal};
use voters::Voters;

/// Events handled before the loop looks at its other duties.
const EVENTS_MAX: usize = 512;
/// How often the worker looks around when nothing wakes it.
const TICK: Duration = Duration::from_millis(20);
/// How often upkeep runs: it walks over all tables.
const UPKEEP_NS: u64 = 5_000_000;
/// Requests taken from the queue ahead of their turn: so that a deadline that passes is noticed.
const BACKLOG_MAX: usize = 4096;

pub struct Worker {
    shared: Arc<ReplicaState>,
    partition: Partition,
    raft: Raft,
    log: PartitionLog,
    server_log: Arc<RaftLog>,
    shutdown: Shutdown,
    tuning: Tuning,
    /// What this server's file says, for a partition that has no configuration yet.
    founding: Configuration,
    heartbeat_ms: u64,
    shortening: Option<configure::Shortening>,
    /// Of the configuration in effect.
    memory_bytes: usize,
    group_interval: Duration,
    metrics: Arc<Metrics>,
    background: Background,
    network: NetworkFactory,

    events: mpsc::UnboundedReceiver<Event>,
    writes: mpsc::Receiver<QueuedWrite>,

    lead: Option<Lead>,
    handover: Option<Handover>,
    resigned: Option<Resigned>,
    stall: Option<Stall>,
    voters: Voters,
    rejoining: Rejoining,
    /// Up to where this leader's own log was last seen durable.
    own_durable: u64,
    /// First index of the newest term in the log.
    term_start: LogPosition,
    proposal: Option<Proposal>,
    /// Commands of clients; bounded.
    control: VecDeque<Control>,
    /// The worker's own commands: at most a few per table.
    internal: VecDeque<Control>,
    /// Clients' commands and groups take turns.
    control_had_its_turn: bool,
    backlog: Backlog<QueuedWrite>,
    /// Appended, not yet published; in log order.
    queue: PublishQueue<Waiting>,
    deferred: VecDeque<Deferred>,
    publish_at_ns: Option<u64>,
    next_group_at_ns: u64,

    active_since: HashMap<TableId, (Generation, u64)>,
    freezing: HashSet<TableId>,
    /// Bytes that the server's log had taken when this partition last had something to flush, or was frozen at rest.
    /// None: not looked at yet.
    rest_log_bytes: Option<u64>,
    /// Up to where Raft was asked to purge a full log.
    purge_asked: u64,
    flushing: HashMap<TableId, Generation>,
    flush_retry_at_ns: HashMap<TableId, u64>,
    /// Of the last flush of each table, if it failed.
    flush_errors: BTreeMap<TableId, String>,
    compacting: HashSet<TableId>,
    compact_waiters: HashMap<TableId, Vec<oneshot::Sender<Result<()>>>>,
    compact_retry_at_ns: HashMap<TableId, u64>,
    snapshots: watch::Sender<Option<Arc<Snapshot>>>,
    next_upkeep_ns: u64,
    groups: u64,
    group_writes: u64,
    replayed: crate::partition::Counters,
}

/// What a worker is made of.
pub struct Parts {
    pub shared: Arc<ReplicaState>,
    pub partition: Partition,
    pub raft: Raft,
    pub log: PartitionLog,
    pub server_log: Arc<RaftLog>,
    pub shutdown: Shutdown,
    pub tuning: Tuning,
    pub founding: Configuration,
    pub heartbeat_ms: u64,
    pub group_interval: Duration,
    pub metrics: Arc<Metrics>,
    pub background: Background,
    /// To tell another node that it is to lead next.
    pub network: NetworkFactory,
    pub events: mpsc::UnboundedReceiver<Event>,
    pub writes: mpsc::Receiver<QueuedWrite>,
    pub snapshots: watch::Sender<Option<Arc<Snapshot>>>,
    /// Entries that replay ingested, which wait for their commit: (position, seq after the entry).
    pub recovered: Vec<(LogPosition, u64)>,
    /// The newest seq that the snapshot covers.
    pub snapshot_seq: u64,
}

impl Worker {
    pub fn new(parts: Parts) -> Self {
        let mut term_start = LogPosition::default();
        for (at, _) in &parts.recovered {
            if at.term != term_start.term {
                term_start = *at;
            }
        }
        let replayed = parts.partition.counters;
        let mut queue = PublishQueue::new(parts.partition.committed_index());
        parts.recovered.iter().for_each(|(at, seq)| queue.push(publish::bare(at.index, *seq)));
        let mut worker = Self {
            shared: parts.shared,
            partition: parts.partition,
            raft: parts.raft,
            log: parts.log,
            server_log: parts.server_log,
            shutdown: parts.shutdown,
            tuning: parts.tuning,
            memory_bytes: 0,
            founding: parts.founding,
            heartbeat_ms: parts.heartbeat_ms,
            shortening: None,
            group_interval: parts.group_interval,
            metrics: parts.metrics,
            background: parts.background,
            network: parts.network,
            events: parts.events,
            writes: parts.writes,
            lead: None,
            handover: None,
            resigned: None,
            stall: None,
            voters: Voters::default(),
            rejoining: Rejoining::default(),
            own_durable: 0,
            term_start,
            proposal: None,
            control: VecDeque::new(),
            internal: VecDeque::new(),
            control_had_its_turn: false,
            backlog: Backlog::default(),
            queue,
            deferred: VecDeque::new(),
            publish_at_ns: None,
            next_group_at_ns: 0,
            active_since: HashMap::new(),
            freezing: HashSet::new(),
            rest_log_bytes: None,
            purge_asked: 0,
            flushing: HashMap::new(),
            flush_retry_at_ns: HashMap::new(),
            flush_errors: BTreeMap::new(),
            compacting: HashSet::new(),
            compact_waiters: HashMap::new(),
            compact_retry_at_ns: HashMap::new(),
            snapshots: parts.snapshots,
            next_upkeep_ns: 0,
            groups: 0,
            group_writes: 0,
            replayed,
        };
        // What the snapshot covers is published; the log after it, when its commit is known.
        worker.shared.published_seq.store(parts.snapshot_seq, Ordering::Release);
        worker.refresh_view();
        worker.apply_configuration();
        worker.tell_of_checkpoints();
        worker.tell_of_manifest();
        worker
    }

    /// Runs until it is told to stop or its channels are gone. An unsafe state ends the process.
    pub async fn run(mut self) {
        let mut metrics = self.raft.server_metrics();
        let mut batch = Vec::with_capacity(EVENTS_MAX);
        let mut incoming = Vec::new();
        loop {
            let wants_writes = self.backlog.len() < BACKLOG_MAX;
            let wake = self.next_wake();
            tokio::select! {
                biased;
                n = self.events.recv_many(&mut batch, EVENTS_MAX) => {
                    if n == 0 {
                        return;
                    }
                    for event in batch.drain(..) {
                        if let Event::Stop(done) = event {
                            self.step_down("the server is stopping");
                            let _ = done.send(());
                            return;
                        }
                        if let Err(e) = self.handle(event) {
                            let text = format!("partition {}: {e}", self.shared.id);
                            self.shared.env.fatal.fatal(&text);
                            return;
                        }
                    }
                }
                changed = metrics.changed() => {
                    if changed.is_err() {
                        // A replica whose Raft core is dead looks alive and never comes back by itself.
                        self.step_down("Raft has stopped");
                        if self.shutdown.is_triggered() {
                            return;
                        }
                        let text = format!("partition {}: Raft has stopped", self.shared.id);
                        self.shared.env.fatal.fatal(&text);
                        return;
                    }
                }
                refused = Proposal::refusal(&mut self.proposal) => {
                    // If the entry was appended after all, its event was queued before the answer.
                    while let Ok(event) = self.events.try_recv() {
                        if let Event::Stop(done) = event {
                            self.step_down("the server is stopping");
                            let _ = done.send(());
                            return;
                        }
                        if let Err(e) = self.handle(event) {
                            self.shared.env.fatal.fatal(&format!("partition {}: {e}", self.shared.id));
                            return;
                        }
                    }
                    self.proposal_refused(refused);
                }
                n = self.writes.recv_many(&mut incoming, BACKLOG_MAX), if wants_writes => {
                    if n == 0 {
                        return;
                    }
                    incoming.drain(..).for_each(|write| self.backlog.push(write));
                }
                () = tokio::time::sleep(wake) => {}
            }
            let state = {
                let m = metrics.borrow_watched();
                (m.state, m.vote.leader_id.term, m.current_leader)
            };
            self.follow_leadership(state.0, state.1, state.2);
            self.see_to_voters();
            self.publish();
            self.see_to_handover();
            if !self.is_handing_over() {
                self.sequence().await;
            }
            let now = self.shared.env.clock.grantor_ns();
            if now >= self.next_upkeep_ns {
                self.next_upkeep_ns = now + UPKEEP_NS;
                self.upkeep();
                self.refresh_numbers();
            }
        }
    }

    /// How long the worker may sleep.
    fn next_wake(&self) -> Duration {
        let now = self.shared.env.clock.grantor_ns();
        let mut wake = TICK;
        if let Some(at) = self.publish_at_ns {
            wake = wake.min(Duration::from_nanos(at.saturating_sub(now)).max(Duration::from_micros(50)));
        }
        if self.proposal.is_none() && self.next_group_at_ns > now {
            wake = wake.min(Duration::from_nanos(self.next_group_at_ns - now));
        }
        // Nothing frozen waits longer than this for its flush.
        wake = wake
            .min(Duration::from_nanos(self.next_upkeep_ns.saturating_sub(now)).max(Duration::from_millis(1)));
        wake
    }

    fn handle(&mut self, event: Event) -> Result<()> {
        match event {
            Event::Appended(entries) => {
                for entry in entries {
                    self.ingest(&entry)?;
                }
            }
            Event::Truncated(after) => self.truncated(after.map(|id| id.index))?,
            Event::Committed(index) => self.committed(index),
            Event::Install { snapshot, done } => {
                let _ = done.send(self.install(&snapshot));
            }
            Event::Acknowledged => self.shared.ack_signalled.store(false, Ordering::Release),
            // Whoever asked may have given up: filters are large.
            Event::Filters(done) if done.is_closed() => {}
            Event::Filters(done) => {
                let _ = done.send(self.filters());
            }
            Event::Freeze { table, done } => self.freeze_on_demand(table, done),
            Event::EnsureTable { name, options, id, done } => self.ensure_table(name, options, id, done),
            Event::OpenSession { session, done } => {
                let term = self.lead.as_ref().map_or(0, |l| l.term);
                let time_ms = self.shared.env.clock.wall_guess_ns() / 1_000_000;
                self.control(Command::OpenSession { term, session, time_ms }, Some(done));
            }
            Event::Flushed { term, table, generation, result } => {
                self.flush_done(term, table, generation, result)
            }
            Event::Configure { change, done } => self.configure(&change, done),
            Event::Compact { table, done } => self.compact(table, done),
            Event::Compacted { term, table, inputs, result } => {
                self.compaction_done(term, table, inputs, result)
            }
            Event::Successors(done) => {
                if let Some(successors) = self.successors() {
                    let _ = done.send(successors);
                }
            }
            Event::HandOver { to, done } => self.hand_over_to(to, done),
            Event::ChangeVoters { voters, done } => self.choose_voters(voters, done),
            Event::VotersAnswered { term, result } => self.voters_answered(term, result),
            Event::Stop(_) => {}
        }
        Ok(())
    }

    fn ingest(&mut self, entry: &Entry) -> Result<()> {
        let at = position_of(&entry.log_id);
        let own = self.proposal.take_if(|p| p.is(entry, at.term));
        if own.is_none() && at.index > self.partition.next_index() {
            // A snapshot is being installed; the log is replayed after it.
            return Ok(());
        }
        self.shared.env.tell(|| ProbeEvent::Appended {
            partition: self.shared.id,
            node: self.shared.node,
            index: at.index,
            term: at.term,
            digest: digest_of(entry),
        });
        let new_term = at.term != self.partition.last().term || self.partition.next_index() == 0;
        let mut ignored = false;
        match self.partition.ingest(at, &body_of(entry), own.is_some())? {
            Ingested::Known => return Ok(()),
            Ingested::Frozen { table, next } => {
                self.freezing.remove(&table);
                self.tell_of_newest_checkpoint();
                if self.lead.is_some() {
                    let run =
                        crate::lease::ring::Run { table, generation: next, freeze: true, hashes: Vec::new() };
                    self.shared.desk.push([run]);
                    self.shared.news.notify_waiters();
                }
                self.refresh_view();
            }
            // A freeze that did not fit is due again.
            Ingested::Ignored => {
                self.freezing.clear();
                ignored = true;
            }
            Ingested::Configured => self.apply_configuration(),
            Ingested::Group { .. } => self.shared.env.tell(|| ProbeEvent::BitsLeft {
                partition: self.shared.id,
                index: at.index,
                term: at.term,
                bits: bits_of(entry),
            }),
            Ingested::Other => {}
        }
        if new_term {
            self.term_start = at;
        }
        if matches!(entry.payload, openraft::EntryPayload::Membership(_)) {
            self.membership_appended(at.index);
        }
        let last_seq = self.partition.last_seq();
        self.queue.push(match own {
            Some(proposal) if ignored => {
                // It had no effect on any replica: certainly not executed.
                let entry = publish::own(at.index, last_seq, proposal);
                entry.waiting.refused("the log changed meanwhile");
                publish::bare(at.index, last_seq)
            }
            Some(proposal) => publish::own(at.index, last_seq, proposal),
            None => publish::bare(at.index, last_seq),
        });
        Ok(())
    }

    fn truncated(&mut self, after: Option<u64>) -> Result<()> {
        let first = after.map_or(0, |index| index + 1);
        let before = self.partition.counters;
        self.partition.truncate_from(first)?;
        self.shared.env.tell(|| ProbeEvent::Truncated {
            partition: self.shared.id,
            node: self.shared.node,
            first,
            groups: self.partition.counters.truncated_groups - before.truncated_groups,
            freezes: self.partition.counters.truncated_freezes - before.truncated_freezes,
        });
        for entry in self.queue.truncate_from(first) {
            entry.waiting.lost();
        }
        for deferred in self.deferred.drain(..) {
            deferred.reply.sink.send(WriteOutcome::Retry("leadership changed"));
        }
        if self.term_start.index >= first {
            self.term_start = self.partition.last();
        }
        self.metrics.truncations.inc();
        self.membership_truncated(first);
        self.freezing.clear();
        self.apply_configuration();
        self.refresh_view();
        Ok(())
    }

    fn committed(&mut self, index: u64) {
        self.shared.env.tell(|| ProbeEvent::Committed {
            partition: self.shared.id,
            node: self.shared.node,
            index,
        });
        let now_ns = self.shared.env.clock.grantor_ns();
        let held_ns = self.shared.env.clock.holder_ns();
        for item in self.queue.iter_mut().take_while(|item| item.index <= index) {
            if item.waiting.committed_ns == 0 && item.waiting.proposed_ns > 0 {
                item.waiting.committed_ns = held_ns;
                self.shared.observe_log_write(held_ns.saturating_sub(item.waiting.proposed_ns));
            }
        }
        let changes = self.partition.commit(index, now_ns);
        if let Some(lead) = &self.lead
            && index >= lead.first_index
        {
            self.shared.desk.set_manifest(self.partition.manifest().clone());
        }
        if changes.is_empty() {
            return;
        }
        self.tell_of_manifest();
        for change in &changes {
            self.tell_of(change);
            self.changed(change);
        }
        self.refresh_view();
        // After the view, so that repair finds a new table in one of the two.
        self.shared
            .pending_ssts
            .lock()
            .retain(|id| !self.partition.manifest().all_ssts().any(|s| s.id == *id));
        self.next_upkeep_ns = 0;
        self.shared.news.notify_waiters();
        self.offer_snapshot();
    }

    fn tell_of(&self, change: &Change) {
        let (table, flush) = match change {
            Change::Flushed { table, .. } => (*table, true),
            Change::Compacted { table, .. } => (*table, false),
            _ => return,
        };
        self.shared.env.tell(|| ProbeEvent::TablesChanged {
            partition: self.shared.id,
            node: self.shared.node,
            leads: self.lead.is_some(),
            flush,
            added: self.partition.manifest().table(table).and_then(|t| t.ssts.first()).map(|sst| sst.id),
            required: self.tuning.sst_replicas_required,
        });
    }

    fn changed(&mut self, change: &Change) {
        match change {
            Change::TableCreated(_) => {}
            Change::Configured => self.configured(),
            Change::Flushed { table, generation } => {
                if self.flushing.get(table) == Some(generation) {
                    self.flushing.remove(table);
                }
                self.flush_errors.remove(table);
                self.metrics.flushes.inc();
            }
            Change::Compacted { table, removed } => {
                self.compacting.remove(table);
                self.metrics.compactions.inc();
                if self.lead.is_some() {
                    self.background.delete_later(removed.clone());
                }
                for waiter in self.compact_waiters.remove(table).unwrap_or_default() {
                    let _ = waiter.send(Ok(()));
                }
            }
            Change::Ignored { table, orphan } => {
                // A command that is applied again after a restart is ignored too, but its table is in the manifest.
                if self.lead.is_some()
                    && let Some(orphan) = orphan
                    && !self.partition.manifest().all_ssts().any(|s| s.id == *orphan)
                {
                    self.background.give_up(*orphan);
                }
                self.flushing.remove(table);
                self.compacting.remove(table);
                for waiter in self.compact_waiters.remove(table).unwrap_or_default() {
                    let _ = waiter.send(Err(Error::retry("the set of tables changed meanwhile")));
                }
            }
        }
    }

    /// Replaces everything by a snapshot that a leader sent (already durable here), then replays the log after it.
    fn install(&mut self, snapshot: &Snapshot) -> Result<()> {
        self.step_down("a snapshot was installed");
        self.shared.env.tell(|| ProbeEvent::Installed { partition: self.shared.id, node: self.shared.node });
        self.queue = PublishQueue::new(snapshot.checkpoint.at.index);
        self.partition = Partition::restore(self.shared.id, snapshot);
        self.tell_of_checkpoints();
        self.tell_of_manifest();
        let next = self.partition.next_index();
        let mut replayed = Vec::new();
        self.log.replay(next, &mut |entry| {
            replayed.push(entry);
            Ok(())
        })?;
        for entry in replayed {
            self.ingest(&entry)?;
        }
        self.shared.published_seq.store(snapshot.checkpoint.next_seq.saturating_sub(1), Ordering::Release);
        self.metrics.snapshots_installed.inc();
        self.apply_configuration();
        self.refresh_view();
        Ok(())
    }

    fn filters(&mut self) -> Option<FilterSet> {
        let lead = self.lead.as_ref()?;
        if self.partition.committed_index() < lead.first_index
            && !mutant::active(Mutant::FiltersOfCommittedOnly)
        {
            return None;
        }
        Some(FilterSet {
            epoch: lead.epoch,
            serial: self.shared.desk.serial(),
            manifest: self.partition.manifest().clone(),
            filters: self.partition.filters(),
        })
    }

    fn refresh_view(&self) {
        let view = self.partition.view();
        let version = view.manifest.version;
        self.shared.view.store(Arc::new(view));
        self.shared.manifest_version.send_if_modified(|v| std::mem::replace(v, version) != version);
    }

    /// Hands the newest snapshot to whoever stores it.
    fn offer_snapshot(&mut self) {
        if let Some(snapshot) = self.partition.snapshot() {
            self.snapshots.send_replace(Some(Arc::new(snapshot)));
        }
    }

    fn refresh_numbers(&self) {
        let (writes, writes_why) = self.admission();
        let unflushed_bytes = self.partition.unflushed_bytes();
        self.metrics.set_memory(self.shared.id, unflushed_bytes, self.memory_bytes);
        let members = self.members();
        let mut numbers = self.shared.numbers.lock();
        *numbers = Numbers {
            leading: self.lead.is_some(),
            last_index: self.partition.last().index,
            committed_index: self.partition.committed_index(),
            published_index: self.queue.published_index(),
            persisted_index: self.partition.persisted().index,
            purged_index: self.log.purged().map(|id| id.index),
            unflushed_bytes,
            memory_bytes: self.memory_bytes,
            writes,
            writes_why,
            members,
            tables: self
                .partition
                .tables()
                .map(|(id, t)| TableNumbers {
                    table: id.0,
                    generation: t.generation().0,
                    active_entries: t.active.entries(),
                    active_bytes: t.active.bytes(),
                    frozen: t.frozen.len(),
                    frozen_bytes: t.frozen.iter().map(|f| f.memtable.bytes()).sum(),
                    flush_error: self.flush_errors.get(&id).cloned(),
                })
                .collect(),
            groups: self.groups,
            group_writes: self.group_writes,
            waiting_requests: self.backlog.len(),
            sessions: self.partition.sessions().len(),
            replayed_writes: self.replayed.writes,
            replay_skipped_writes: self.replayed.skipped,
        };
    }
}

/// Of what an entry carries.
fn digest_of(entry: &Entry) -> u64 {
    match &entry.payload {
        openraft::EntryPayload::Normal(payload) => xxhash_rust::xxh3::xxh3_64(&payload.0),
        openraft::EntryPayload::Blank => 1,
        openraft::EntryPayload::Membership(_) => 2,
    }
}

/// The bits that a group's writes leave.
fn bits_of(entry: &Entry) -> Vec<(TableId, Generation, u64)> {
    let Body::Payload(payload) = body_of(entry) else { return Vec::new() };
    let Ok(Command::Group(group)) = Command::decode(&payload) else { return Vec::new() };
    let writes = group.tables.iter().flat_map(|t| t.writes.iter().map(move |w| (t, w)));
    let with_bits = writes.filter(|(_, write)| write.leaves_bit);
    with_bits.map(|(t, write)| (t.table, t.generation, filter_hash(&write.key))).collect()
}
