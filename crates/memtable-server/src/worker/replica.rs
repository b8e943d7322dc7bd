//! What every replica of a partition has, whether it leads or not: the state that the log makes, what waits for publication, and
//! what others see of both.
//!
//! Owns the order in which the log's events take effect, and the queue of what is to be published, with whoever waits there for an
//! answer. What a leader has to do about an event (its ring, its commands) it is told as what was seen: [`Seen`], [`Change`].

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use sextant_common::error::Result;
use sextant_common::expiry::Tick;
use sextant_common::ids::{Generation, LogPosition, ManifestVersion, Serial, SstId, TableId};
use sextant_common::manifest::News;
use sextant_raft_log::{Entry, PartitionLog, RaftLog, position_of};
use sextant_rules::probe::ProbeEvent;
use tokio::sync::watch;

use super::freezes::Freezes;
use super::old_entries::OldEntries;
use super::proposal::Proposal;
use super::standing::Standing;
use super::waiting::{self, Waiting};
use crate::command::{Command, Configuration, ConfigurationRules};
use crate::config::Tuning;
use crate::flush::Background;
use crate::leadership::Terms;
use crate::metrics::Metrics;
use crate::partition::commit::CommitEffect;
use crate::partition::ingest::{Body, Ingested};
use crate::partition::snapshot::Snapshot;
use crate::partition::{Checkpoint, Counters, Partition};
use crate::publication::{Appended, Position, PublishQueue};
use crate::raft::Raft;
use crate::raft::network::NetworkFactory;
use crate::replica::{ReplicaState, body_of};

/// How soon Raft is asked again to purge a full log.
const PURGE_AGAIN_NS: u64 = 100_000_000;
/// So long after a follower has refused entries for want of space it counts as full. Raft tries again every now and then.
const FULL_FOLLOWER_NS: u64 = 10_000_000_000;

pub(super) struct Replica {
    pub shared: Arc<ReplicaState>,
    pub partition: Partition,
    /// Appended, not yet published; in log order.
    pub queue: PublishQueue<Waiting>,
    pub raft: Raft,
    pub log: PartitionLog,
    pub server_log: Arc<RaftLog>,
    pub tuning: Tuning,
    /// What this server's file says, for a partition that has no configuration yet.
    pub founding: Configuration,
    pub heartbeat_ms: u64,
    pub group_interval: Duration,
    /// Of the configuration in effect.
    pub memory_bytes: usize,
    pub metrics: Arc<Metrics>,
    pub background: Background,
    pub network: NetworkFactory,
    pub snapshots: watch::Sender<Option<Arc<Snapshot>>>,
    /// First index of the newest term in the log.
    pub term_start: LogPosition,
    pub standing: Standing,
    pub freezes: Freezes,
    old_entries: OldEntries,
    /// Not before this time (grantor's clock) Raft is asked (again) to purge the log.
    purge_again_ns: u64,
    /// Not before this time (grantor's clock) the leadership is to be handed over because the log is full. It outlives a leadership.
    pub full_log_rest_ns: u64,
    /// Groups that were formed here, and their writes.
    pub groups: u64,
    pub group_writes: u64,
    pub replayed: Counters,
    /// Up to which version of the manifest others have heard of changes.
    shown: ManifestVersion,
}

/// What a worker is made of.
pub struct Parts {
    pub shared: Arc<ReplicaState>,
    pub partition: Partition,
    pub raft: Raft,
    pub log: PartitionLog,
    pub server_log: Arc<RaftLog>,
    pub tuning: Tuning,
    pub founding: Configuration,
    pub heartbeat_ms: u64,
    pub group_interval: Duration,
    pub metrics: Arc<Metrics>,
    pub background: Background,
    /// To tell another node that it is to lead next.
    pub network: NetworkFactory,
    pub snapshots: watch::Sender<Option<Arc<Snapshot>>>,
    /// Entries that replay ingested, which wait for their commit, and what the log has come to with each.
    pub recovered: Vec<(LogPosition, Position)>,
    /// What the snapshot covers.
    pub of_snapshot: Position,
}

/// What an entry of the log did here that a leader has to know.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Seen {
    Nothing,
    /// A memtable was frozen; the next one has this generation.
    Frozen {
        table: TableId,
        next: Generation,
    },
    /// The same, of several at once.
    Cut(Vec<(TableId, Generation)>),
    /// It was of another leader's state of things: it did nothing. `serial`: of the ring entries that it has left, if it is a group of
    /// this leader's; 0: none.
    Ignored {
        serial: Serial,
    },
    /// A configuration was appended.
    Configured,
}

impl Replica {
    pub fn new(parts: Parts) -> Self {
        let mut term_start = LogPosition::default();
        for (at, _) in &parts.recovered {
            if at.term != term_start.term {
                term_start = *at;
            }
        }
        let replayed = parts.partition.counters;
        let mut queue = PublishQueue::new(parts.partition.committed_index());
        parts.recovered.iter().for_each(|(at, reached)| queue.push(waiting::bare(at.index, *reached)));
        // What the snapshot covers is published; the log after it, when its commit is known.
        parts.shared.published.store(parts.of_snapshot);
        let mut replica = Self {
            shared: parts.shared,
            partition: parts.partition,
            queue,
            raft: parts.raft,
            log: parts.log,
            server_log: parts.server_log,
            tuning: parts.tuning,
            founding: parts.founding,
            heartbeat_ms: parts.heartbeat_ms,
            group_interval: parts.group_interval,
            memory_bytes: 0,
            metrics: parts.metrics,
            background: parts.background,
            network: parts.network,
            snapshots: parts.snapshots,
            term_start,
            standing: Standing::default(),
            freezes: Freezes::default(),
            old_entries: OldEntries::default(),
            purge_again_ns: 0,
            full_log_rest_ns: 0,
            groups: 0,
            group_writes: 0,
            replayed,
            shown: ManifestVersion(0),
        };
        replica.refresh_view();
        replica.apply_configuration(None);
        replica.tell_of_checkpoints();
        replica.tell_of_manifest();
        replica.shared.catch_up.applied(replica.partition.committed_index());
        replica
    }

    /// An entry came into the log. `own`: the proposal of this leader that it is.
    pub fn ingest(&mut self, entry: &Entry, own: Option<Proposal>) -> Result<Seen> {
        let at = position_of(&entry.log_id);
        if own.is_none() && at.index > self.partition.next_index() {
            // A snapshot is being installed; the log is replayed after it.
            return Ok(Seen::Nothing);
        }
        self.shared.env.tell(|| ProbeEvent::Appended {
            partition: self.shared.id,
            node: self.shared.node,
            index: at.index,
            term: at.term,
            digest: digest_of(entry),
        });
        let new_term = at.term != self.partition.last().term || self.partition.next_index() == 0;
        let seen = match self.partition.ingest(at, &body_of(entry), own.is_some())? {
            Ingested::Known => return Ok(Seen::Nothing),
            Ingested::Frozen { table, next } => {
                self.tell_of_newest_checkpoint();
                self.refresh_view();
                Seen::Frozen { table, next }
            }
            Ingested::Cut(frozen) => {
                if !frozen.is_empty() {
                    self.tell_of_newest_checkpoint();
                    self.refresh_view();
                }
                Seen::Cut(frozen)
            }
            Ingested::Ignored => {
                Seen::Ignored { serial: own.as_ref().map_or(Serial(0), |proposal| proposal.serial) }
            }
            Ingested::Configured => Seen::Configured,
            Ingested::Group { .. } => {
                self.shared.env.tell(|| ProbeEvent::BitsLeft {
                    partition: self.shared.id,
                    index: at.index,
                    term: at.term,
                    bits: bits_of(entry),
                });
                Seen::Nothing
            }
            Ingested::Other => Seen::Nothing,
        };
        if new_term {
            self.term_start = at;
        }
        if matches!(entry.payload, openraft::EntryPayload::Membership(_)) {
            self.standing.membership_appended(at.index);
        }
        let reached = self.partition.position();
        self.queue.push(match own {
            Some(proposal) if matches!(seen, Seen::Ignored { .. }) => {
                // It had no effect on any replica: certainly not executed.
                waiting::own(at.index, reached, proposal, 0).waiting.refused("the log changed meanwhile");
                waiting::bare(at.index, reached)
            }
            Some(proposal) => waiting::own(at.index, reached, proposal, self.shared.env.clock.holder_ns()),
            None => waiting::bare(at.index, reached),
        });
        Ok(seen)
    }

    /// The log was cut: its entries from `first` on are gone. What waited for them.
    pub fn truncate_from(&mut self, first: u64) -> Result<Vec<Appended<Waiting>>> {
        let before = self.partition.counters;
        self.partition.truncate_from(first)?;
        self.shared.env.tell(|| ProbeEvent::Truncated {
            partition: self.shared.id,
            node: self.shared.node,
            first,
            groups: self.partition.counters.truncated_groups - before.truncated_groups,
            freezes: self.partition.counters.truncated_freezes - before.truncated_freezes,
        });
        if self.term_start.index >= first {
            self.term_start = self.partition.last();
        }
        self.metrics.truncations.inc();
        self.standing.membership_truncated(first);
        Ok(self.queue.truncate_from(first))
    }

    /// Everything up to `index` is committed. What that changed; the manifest is the new one already, the view is not.
    pub fn commit(&mut self, index: u64, leads: bool) -> Vec<CommitEffect> {
        self.shared.env.tell(|| ProbeEvent::Committed {
            partition: self.shared.id,
            node: self.shared.node,
            index,
        });
        let now_ns = self.shared.env.clock.grantor_ns();
        let held_ns = self.shared.env.clock.holder_ns();
        for item in self.queue.iter_mut().take_while(|item| item.index <= index) {
            if let Some(took_ns) = item.waiting.is_committed(held_ns) {
                self.shared.observe_log_write(took_ns);
            }
        }
        let effects = self.partition.commit(index, now_ns);
        if !effects.is_empty() {
            self.tell_of_manifest();
        }
        for effect in &effects {
            self.tell_of(effect, leads);
            if let CommitEffect::TableChanged { removed, .. } = effect {
                // No manifest that is compared with names what came and went at once.
                self.shared.pending_ssts.lock().retain(|id| !removed.contains(id));
            }
            match effect {
                CommitEffect::Flushed { .. } => drop(self.metrics.flushes.inc()),
                CommitEffect::Compacted { .. } => drop(self.metrics.compactions.inc()),
                CommitEffect::Loaded { .. } => drop(self.metrics.loads.inc()),
                CommitEffect::TableCreated(_)
                | CommitEffect::NotLoaded(_)
                | CommitEffect::TableChanged { .. }
                | CommitEffect::TableNotChanged(_)
                | CommitEffect::Configured
                | CommitEffect::Cut
                | CommitEffect::Placed
                | CommitEffect::Ignored { .. }
                | CommitEffect::NotCompacted(_) => {}
            }
        }
        effects
    }

    /// Others hear of what a commit changed, and the view shows.
    pub fn show_changes(&mut self) {
        // After the view, so that repair finds a new table in one of the two.
        self.forget_pending();
        self.shared.news.notify_waiters();
        // The newest snapshot goes to whoever stores it.
        if let Some(snapshot) = self.partition.snapshot() {
            self.snapshots.send_replace(Some(Arc::new(snapshot)));
        }
    }

    /// What is named is pending no more.
    fn forget_pending(&mut self) {
        let versions = self.partition.versions();
        let shown = std::mem::replace(&mut self.shown, versions.newest.version);
        let mut pending = self.shared.pending_ssts.lock();
        if pending.is_empty() {
            return;
        }
        let named: HashSet<SstId> = match versions.news(shown, None) {
            News::None => return,
            News::Changes(changes) => {
                changes.iter().flat_map(|change| change.added()).map(|sst| sst.id).collect()
            }
            News::TooOld | News::Differs => versions.newest.all_ssts().map(|sst| sst.id).collect(),
        };
        pending.retain(|id| !named.contains(id));
    }

    fn tell_of(&self, effect: &CommitEffect, leads: bool) {
        if let CommitEffect::TableChanged { table, .. } = *effect
            && self.partition.manifest().table(table).is_none()
        {
            self.shared.env.tell(|| ProbeEvent::TableDropped { partition: self.shared.id, table });
        }
        let (flush, added) = match effect {
            CommitEffect::Flushed { table, .. } => {
                let entry = self.partition.manifest().table(*table);
                (true, vec![entry.and_then(|t| t.ssts.first()).map(|sst| sst.id)])
            }
            CommitEffect::Loaded { added, .. } => (true, added.iter().copied().map(Some).collect()),
            CommitEffect::Compacted { added, .. } if added.is_empty() => (false, vec![None]),
            CommitEffect::Compacted { added, .. } => (false, added.iter().copied().map(Some).collect()),
            _ => return,
        };
        for added in added {
            self.shared.env.tell(|| ProbeEvent::TablesChanged {
                partition: self.shared.id,
                node: self.shared.node,
                leads,
                flush,
                added,
                required: self.tuning.sst_replicas_required,
            });
        }
    }

    /// Replaces everything by a snapshot that a leader sent (already durable here), then replays the log after it.
    pub fn install(&mut self, snapshot: &Snapshot) -> Result<()> {
        self.shared.env.tell(|| ProbeEvent::Installed { partition: self.shared.id, node: self.shared.node });
        self.queue = PublishQueue::new(snapshot.checkpoint.at.index);
        // The log up to there is gone, with a membership in it that was never committed; what is behind it is replayed.
        self.standing.membership_appended(0);
        self.partition = Partition::restore(self.shared.id, snapshot);
        self.partition.format_max = self.shared.format_max;
        self.tell_of_checkpoints();
        self.tell_of_manifest();
        let next = self.partition.next_index();
        let mut replayed = Vec::new();
        self.log.replay(next, &mut |entry| {
            replayed.push(entry);
            Ok(())
        })?;
        for entry in replayed {
            if self.ingest(&entry, None)? == Seen::Configured {
                self.apply_configuration(None);
            }
        }
        let Checkpoint { next_seq, tick, .. } = snapshot.checkpoint;
        self.shared.published.store(Position { seq: next_seq.saturating_sub(1), tick });
        self.metrics.snapshots_installed.inc();
        self.apply_configuration(None);
        self.refresh_view();
        Ok(())
    }

    /// Up to when a flush or a merge takes records for expired.
    pub fn expired_by(&self) -> Tick {
        self.partition.may_expire_by(self.shared.published.tick())
    }

    /// The configuration in effect; before there is one, what the file says.
    pub fn configuration(&self) -> &Configuration {
        self.partition.configuration().map_or(&self.founding, |(c, _)| c)
    }

    /// Brings the guards and the limits in line with the log: to be called when a configuration was appended, truncated or
    /// committed. `cap`: what a leader lives by already. Whether the ring's mode or its bound on drift has changed.
    pub fn apply_configuration(&mut self, cap: Option<&Configuration>) -> bool {
        let in_effect = self.partition.configuration();
        // The leader takes the shortest of all that may hold; a voter abstains for the longest.
        let shortest = self.partition.configurations().chain(cap).min_by_key(|c| c.leader_lease_ns());
        let longest = self.partition.configurations().map(Configuration::abstention_ns).max();
        let terms = match (in_effect, shortest) {
            (Some((_, configured_at)), Some(shortest)) => Terms {
                lease_ns: shortest.leader_lease_ns(),
                abstention_ns: shortest.abstention_ns(),
                configured_at,
            },
            _ => Terms::default(),
        };
        let founding = if in_effect.is_none() { self.founding.abstention_ns() } else { 0 };
        self.shared.guard.set_abstention_ns(longest.unwrap_or(0).max(founding));
        self.shared.lease.set_terms(terms);

        let configuration = self.configuration().clone();
        self.memory_bytes = usize::try_from(configuration.memory_bytes).unwrap_or(usize::MAX);
        let before = self.shared.configuration.swap(configuration.clone().into());
        (before.mode, before.drift_ppm) != (configuration.mode, configuration.drift_ppm)
    }

    /// A configuration entry was committed: the file may say something else.
    pub fn warn_of_another_file(&self) {
        let Some((configuration, _)) = self.partition.configuration() else { return };
        if !configuration.same(&self.founding) && configuration.revision == 1 {
            tracing::warn!(
                partition = %self.shared.id,
                "the configuration file's lease lengths or memory limit are not the cluster's, which count: \
                 `sextant admin configure` changes them"
            );
        }
    }

    /// Entries that are flushed, and kept for those that lag a little, give way when they are [old](OldEntries); all of them when the
    /// log is full, here or at a follower: such a follower takes a snapshot, and with it purges what it has of the log.
    ///
    /// Asked until it is done: Raft purges nothing beyond the snapshot that it knows, and hears of a new one later than this, or not
    /// at all, if it was just building one.
    pub fn purge(&mut self, now_ns: u64) {
        let persisted = self.partition.persisted().index;
        let (log_bytes, newest) = (self.server_log.stats().bytes, self.partition.last().index);
        let old = self.old_entries.up_to(log_bytes, newest, self.tuning.log_bytes_kept);
        if now_ns < self.purge_again_ns {
            return;
        }
        let purged = self.log.purged().map_or(0, |id| id.index);
        let up_to = match purged < persisted && (self.log_takes_groups().is_err() || self.has_full_follower())
        {
            true => persisted,
            false => old.unwrap_or(0).min(persisted),
        };
        if purged >= up_to {
            return;
        }
        self.purge_again_ns = now_ns.saturating_add(PURGE_AGAIN_NS);
        let raft = self.raft.clone();
        self.background.spawn(async move {
            let _ = raft.trigger().snapshot().await;
            let _ = raft.trigger().purge_log(up_to).await;
        });
    }

    /// Whether a follower lacks the space for what it is sent.
    fn has_full_follower(&self) -> bool {
        let at_ns = self.shared.full_follower_ns.load(Ordering::Acquire);
        at_ns != 0 && self.shared.env.clock.holder_ns().saturating_sub(at_ns) < FULL_FOLLOWER_NS
    }

    pub fn refresh_view(&self) {
        let view = self.partition.view();
        let version = view.versions.newest.version;
        let before = self.shared.view.swap(Arc::new(view));
        // With it goes what only it has still had: the memtable that was flushed. That takes as long as it had keys.
        self.background.let_go(before);
        self.shared.manifest_version.send_if_modified(|v| std::mem::replace(v, version) != version);
        let cuts = self.partition.cuts();
        self.shared.cuts.send_if_modified(|before| {
            let changed = before[..] != *cuts;
            if changed {
                *before = cuts.into();
            }
            changed
        });
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
    writes.flat_map(|(t, write)| write.bits().map(|hash| (t.table, t.generation, hash))).collect()
}
