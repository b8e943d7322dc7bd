//! A memtable server's metrics. One registry a server.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use sextant_common::ids::PartitionId;
use sextant_environment::latency::Latencies;

/// Label `partition`.
type ByPartition = Family<[(&'static str, String); 1], Gauge>;
type ByReason = Family<[(&'static str, &'static str); 1], Counter>;

/// Where the time of a group of writes goes at its leader, from the arrival of its first write to its publication: one after the other.
#[derive(Clone, Debug)]
pub struct Stages {
    /// Until it is proposed: those before it, and the sequencer.
    pub queued: Latencies,
    /// Until it has its place in the log, and is in the memtables.
    pub ingested: Latencies,
    /// Until a majority has it on disk.
    pub committed: Latencies,
    /// Until leases and predecessors let it be seen.
    pub published: Latencies,
}

impl Stages {
    fn register(registry: &mut Registry) -> Self {
        let family = Family::<[(&'static str, &'static str); 1], Latencies>::default();
        let help = "Where the time of a group of writes goes at its leader, from the arrival of its first write: each stage begins where \
                    the one before ends";
        registry.register("memtable_write_stage_seconds", help, family.clone());
        let [queued, ingested, committed, published] = ["queued", "ingested", "committed", "published"]
            .map(|stage| family.get_or_create_owned(&[("stage", stage)]));
        Self { queued, ingested, committed, published }
    }
}

#[derive(Debug)]
pub struct Metrics {
    pub read_messages: Counter,
    pub reads: Counter,
    pub stale_reads: Counter,
    /// What p-nodes were told of manifests, and how many had another one by a version of ours.
    pub manifest_changes: Counter,
    pub whole_manifests: Counter,
    pub manifest_mismatches: Counter,
    /// Answers that may be kept, those that may not because a write was on its way, and slots that writes have invalidated.
    pub registered_reads: Counter,
    pub registrations_refused: Counter,
    pub invalidations: Counter,
    pub write_messages: Counter,
    pub write_requests: Counter,
    pub stale_writes: Counter,
    pub overloaded: Counter,
    pub refused_proposals: Counter,
    /// By which the time of partitions went on, so that records expire.
    pub ticks: Counter,
    pub pulls: Counter,
    pub leases: Counter,
    pub whole_filters: Counter,
    pub scan_pages: Counter,
    pub elections_won: Counter,
    pub handovers: Counter,
    pub truncations: Counter,
    pub flushes: Counter,
    pub loads: Counter,
    pub flush_failures: Counter,
    pub compactions: Counter,
    pub compaction_failures: Counter,
    pub tables_moved: Counter,
    pub tables_released: Counter,
    pub cuts_opened: Counter,
    pub cuts_expired: Counter,
    cuts_held: ByPartition,
    pub snapshots_installed: Counter,
    pub snapshots_refused: Counter,
    pub votes_dropped: Counter,
    pub lost_members: Counter,
    /// A message of reads, from its arrival until its answer is made.
    pub read_batch_seconds: Latencies,
    /// A write, from its arrival until its answer is on its way, whatever it says.
    pub write_seconds: Latencies,
    /// From proposal to publication, in seconds: log write, replication and commit wait together.
    pub propose_to_publish: Latencies,
    /// From commit to publication, in seconds: what leases and predecessors made a group wait.
    pub commit_wait: Latencies,
    pub stages: Stages,
    pub group_writes: Histogram,
    unflushed_bytes: ByPartition,
    memory_limit_bytes: ByPartition,
    tables_lacking_copies: ByPartition,
    tables_crowded: ByPartition,
    columns: ByPartition,
    compaction_debt_bytes: ByPartition,
    compaction_read_bytes: ByReason,
    compaction_written_bytes: ByReason,
}

impl Metrics {
    pub fn register(registry: &mut Registry) -> Self {
        let mut counter = |name: &str, help: &str| {
            let counter = Counter::default();
            registry.register(name, help, counter.clone());
            counter
        };
        let read_messages = counter("memtable_read_messages", "Messages of p-nodes with memtable reads");
        let reads = counter("memtable_reads", "Memtable reads in these messages");
        let stale_reads = counter(
            "memtable_stale_reads",
            "Memtable reads that were not answered because a flush had made the reader's manifest too old",
        );
        let manifest_changes = counter(
            "memtable_manifest_changes",
            "Changes of manifests that were sent to p-nodes in answers to pulls",
        );
        let whole_manifests = counter(
            "memtable_whole_manifests",
            "Whole manifests that were sent to p-nodes: with filters, to those that were too far behind, and to older ones",
        );
        let manifest_mismatches = counter(
            "memtable_manifest_mismatches",
            "Pulls whose digest of a manifest was not ours of the same version: the p-node took the whole instead",
        );
        let registered_reads = counter("memtable_registered_reads", "Answers that p-nodes may keep");
        let registrations_refused = counter(
            "memtable_registrations_refused",
            "Answers that may not be kept, because a write of their slot was on its way",
        );
        let invalidations = counter(
            "memtable_invalidations",
            "Registration slots that were written to: what p-nodes kept of their keys is over",
        );
        let write_messages = counter("memtable_write_messages", "Messages of p-nodes with writes");
        let write_requests = counter("memtable_write_requests", "Write requests in these messages");
        let stale_writes = counter(
            "memtable_stale_writes",
            "Writes whose condition was not evaluated because a flush had made the writer's manifest too old",
        );
        let overloaded = counter(
            "memtable_overloaded",
            "Writes refused: flushing cannot keep up, the log has no room, or the queue is full",
        );
        let refused_proposals = counter(
            "memtable_refused_proposals",
            "Groups of writes that Raft did not take: the leader's lease had lapsed, or leadership was changing",
        );
        let ticks = counter("memtable_ticks", "Ticks of partitions, by which records expire");
        let pulls = counter("memtable_lease_pulls", "Lease pulls of p-nodes that were answered");
        let leases = counter(
            "memtable_leases_granted",
            "Leases granted to p-nodes, by leaders of partitions on this server",
        );
        let whole_filters = counter(
            "memtable_whole_filters",
            "Whole filters of memtables sent to p-nodes, because these lagged too far behind the bf-log",
        );
        let scan_pages = counter("memtable_scan_pages", "Scan pages answered");
        let elections_won =
            counter("memtable_elections_won", "Terms that this server began to lead, of any partition");
        let handovers = counter(
            "memtable_handovers",
            "Leaderships that this server handed over: asked to, without a vote of its own, or because of its log device",
        );
        let truncations = counter(
            "memtable_truncations",
            "Times that entries were cut off the log of a partition, because another leader had others there",
        );
        let flushes = counter(
            "memtable_flushes",
            "Flushes that took effect: a memtable became an SSTable (on every replica of the partition)",
        );
        let loads = counter(
            "memtable_loads",
            "Bulk loads that this server has seen adopted, in partitions, whether it leads them or not",
        );
        let flush_failures = counter("memtable_flush_failures", "Flushes that failed and were tried again");
        let compactions = counter(
            "memtable_compactions",
            "Compactions that took effect: SSTables became others (on every replica of the partition)",
        );
        let compaction_failures =
            counter("memtable_compaction_failures", "Compactions that failed and are tried again");
        let tables_moved = counter(
            "memtable_tables_moved",
            "Times that an SSTable got another sstable server, because one was lost, is to be emptied, or is fuller than others",
        );
        let tables_released = counter(
            "memtable_tables_released",
            "Copies of SSTables that were deleted because the manifest names other servers for them",
        );
        let cuts_opened = counter(
            "memtable_client_snapshots_opened",
            "Snapshots of a partition that a client or a backup has asked for",
        );
        let cuts_expired = counter(
            "memtable_client_snapshots_expired",
            "Such snapshots that ended because nobody renewed them, or because they were too old",
        );
        let snapshots_installed = counter(
            "memtable_snapshots_installed",
            "Snapshots that this server took from a leader, because the log did not reach back far enough",
        );
        let snapshots_refused =
            counter("memtable_snapshots_refused", "Snapshots of a leader that the disk did not take");
        let votes_dropped = counter(
            "memtable_votes_dropped",
            "Requests for a vote that were dropped because a leader's lease may still live",
        );
        let lost_members = counter(
            "memtable_lost_members",
            "Members that a leader of this server found without their memory: replaced or restored disks",
        );
        let read_batch_seconds = Latencies::default();
        registry.register(
            "memtable_read_batch_seconds",
            "Time from the arrival of a message of reads until its answer is made",
            read_batch_seconds.clone(),
        );
        let write_seconds = Latencies::default();
        registry.register(
            "memtable_write_seconds",
            "Time from the arrival of a write until its answer is on its way, whatever it says",
            write_seconds.clone(),
        );
        let propose_to_publish = Latencies::default();
        registry.register(
            "memtable_propose_to_publish_seconds",
            "Time from the proposal of a group of writes to its publication: log, replication and commit wait",
            propose_to_publish.clone(),
        );
        let commit_wait = Latencies::default();
        registry.register(
            "memtable_commit_wait_seconds",
            "Time from the commit of a group of writes to its publication: waiting for leases and predecessors",
            commit_wait.clone(),
        );
        let stages = Stages::register(registry);
        let group_writes = Histogram::new(exponential_buckets(1.0, 2.0, 14));
        registry.register(
            "memtable_group_writes",
            "Writes in a group, as it was proposed",
            group_writes.clone(),
        );
        let (unflushed_bytes, memory_limit_bytes) = (ByPartition::default(), ByPartition::default());
        registry.register(
            "memtable_unflushed_bytes",
            "Bytes of memtables that are not yet flushed",
            unflushed_bytes.clone(),
        );
        registry.register(
            "memtable_memory_limit_bytes",
            "Unflushed bytes at which writes are refused; they are slowed from three quarters of it on",
            memory_limit_bytes.clone(),
        );
        let tables_lacking_copies = ByPartition::default();
        registry.register(
            "memtable_tables_lacking_copies",
            "SSTables that are sound on fewer of the sstable servers that answer than there should be copies, as the leader sees it",
            tables_lacking_copies.clone(),
        );
        let tables_crowded = ByPartition::default();
        registry.register(
            "memtable_tables_in_too_few_zones",
            "SSTables that could have copies in more zones than they have, as the leader sees it",
            tables_crowded.clone(),
        );
        let cuts_held = ByPartition::default();
        registry.register(
            "memtable_client_snapshots_held",
            "Snapshots of the partition whose SSTables are kept for whoever reads them, on every replica",
            cuts_held.clone(),
        );
        let (columns, compaction_debt_bytes) = (ByPartition::default(), ByPartition::default());
        registry.register(
            "memtable_columns",
            "Ranges of keys that the tables of a partition are cut into, counted by its leader; 0 elsewhere",
            columns.clone(),
        );
        registry.register(
            "memtable_compaction_debt_bytes",
            "What the compactions of a partition that are due would read, those under way included; 0 but at its leader",
            compaction_debt_bytes.clone(),
        );
        let (compaction_read_bytes, compaction_written_bytes) = (ByReason::default(), ByReason::default());
        registry.register(
            "memtable_compaction_read_bytes",
            "Bytes of the SSTables that compactions of this leader took, by what made them due",
            compaction_read_bytes.clone(),
        );
        registry.register(
            "memtable_compaction_written_bytes",
            "Bytes of the SSTables that they made, each counted once",
            compaction_written_bytes.clone(),
        );
        Self {
            read_messages,
            reads,
            stale_reads,
            manifest_changes,
            whole_manifests,
            manifest_mismatches,
            registered_reads,
            registrations_refused,
            invalidations,
            write_messages,
            write_requests,
            stale_writes,
            overloaded,
            refused_proposals,
            ticks,
            pulls,
            leases,
            whole_filters,
            scan_pages,
            elections_won,
            handovers,
            truncations,
            flushes,
            loads,
            flush_failures,
            compactions,
            compaction_failures,
            tables_moved,
            tables_released,
            cuts_opened,
            cuts_expired,
            cuts_held,
            snapshots_installed,
            snapshots_refused,
            votes_dropped,
            lost_members,
            read_batch_seconds,
            write_seconds,
            propose_to_publish,
            commit_wait,
            stages,
            group_writes,
            unflushed_bytes,
            memory_limit_bytes,
            tables_lacking_copies,
            tables_crowded,
            columns,
            compaction_debt_bytes,
            compaction_read_bytes,
            compaction_written_bytes,
        }
    }

    /// As the leader of the partition sees it; 0 at all others.
    pub fn set_tables_lacking(&self, partition: PartitionId, count: usize) {
        let label = [("partition", partition.0.to_string())];
        self.tables_lacking_copies.get_or_create(&label).set(count as i64);
    }

    pub fn set_tables_crowded(&self, partition: PartitionId, count: usize) {
        let label = [("partition", partition.0.to_string())];
        self.tables_crowded.get_or_create(&label).set(count as i64);
    }

    pub fn set_memory(&self, partition: PartitionId, unflushed: usize, limit: usize) {
        let label = [("partition", partition.0.to_string())];
        self.unflushed_bytes.get_or_create(&label).set(unflushed as i64);
        self.memory_limit_bytes.get_or_create(&label).set(limit as i64);
    }
    pub fn set_cuts(&self, partition: PartitionId, held: usize) {
        self.cuts_held.get_or_create(&[("partition", partition.0.to_string())]).set(held as i64);
    }

    pub fn set_columns(&self, partition: PartitionId, columns: usize, debt_bytes: u64) {
        let label = [("partition", partition.0.to_string())];
        self.columns.get_or_create(&label).set(columns as i64);
        self.compaction_debt_bytes.get_or_create(&label).set(debt_bytes as i64);
    }

    /// A compaction took effect. `bytes`: read, and written.
    pub fn compacted(&self, reason: &'static str, bytes: (u64, u64)) {
        let label = [("reason", reason)];
        self.compaction_read_bytes.get_or_create(&label).inc_by(bytes.0);
        self.compaction_written_bytes.get_or_create(&label).inc_by(bytes.1);
    }
}
