//! Counters of a p-node. Owned by the core; a server registers them with its registry.
//!
//! Counters are resolved once: the hot path touches one atomic each and no map.

use sextant_common::operation::ReadMode;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

/// Which tiers a read asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReadPath {
    /// Answered from the record cache.
    Cache,
    /// Answered by what was kept of a leader's answer.
    Kept,
    /// Known to be absent without asking anyone.
    Nobody,
    Memtable,
    Sstable,
    Both,
}

impl ReadPath {
    pub const ALL: [ReadPath; 6] = [
        ReadPath::Cache,
        ReadPath::Kept,
        ReadPath::Nobody,
        ReadPath::Memtable,
        ReadPath::Sstable,
        ReadPath::Both,
    ];

    pub fn name(self) -> &'static str {
        match self {
            ReadPath::Cache => "cache",
            ReadPath::Kept => "kept",
            ReadPath::Nobody => "nobody",
            ReadPath::Memtable => "memtable",
            ReadPath::Sstable => "sstable",
            ReadPath::Both => "both",
        }
    }
}

/// Why a read had to ask once more than a precise one would have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WrongTurn {
    /// A filter of a memtable matched, and the memtables had no entry.
    MemtableFilter,
    /// A filter of an SSTable matched, and no SSTable had the key.
    SstableFilter,
    /// A flush made the searched version too old.
    StaleManifest,
    /// An SSTable had a tombstone: the memtables had to be asked.
    Tombstone,
    /// No replica had the table any more.
    TableGone,
}

impl WrongTurn {
    pub const ALL: [WrongTurn; 5] = [
        WrongTurn::MemtableFilter,
        WrongTurn::SstableFilter,
        WrongTurn::StaleManifest,
        WrongTurn::Tombstone,
        WrongTurn::TableGone,
    ];

    pub fn name(self) -> &'static str {
        match self {
            WrongTurn::MemtableFilter => "memtable_filter",
            WrongTurn::SstableFilter => "sstable_filter",
            WrongTurn::StaleManifest => "stale_manifest",
            WrongTurn::Tombstone => "tombstone",
            WrongTurn::TableGone => "table_gone",
        }
    }
}

/// Kinds of messages to other servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MessageKind {
    Read,
    Get,
    Write,
}

impl MessageKind {
    const ALL: [MessageKind; 3] = [MessageKind::Read, MessageKind::Get, MessageKind::Write];

    fn name(self) -> &'static str {
        match self {
            MessageKind::Read => "read",
            MessageKind::Get => "get",
            MessageKind::Write => "write",
        }
    }
}

/// What happened to lookups in the record cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CacheEvent {
    Hit,
    Miss,
    /// A stamp was moved over flushes whose filters rule the key out.
    Carried,
    /// An entry was dropped: a flush may have brought a newer version.
    Dropped,
}

impl CacheEvent {
    const ALL: [CacheEvent; 4] =
        [CacheEvent::Hit, CacheEvent::Miss, CacheEvent::Carried, CacheEvent::Dropped];

    fn name(self) -> &'static str {
        match self {
            CacheEvent::Hit => "hit",
            CacheEvent::Miss => "miss",
            CacheEvent::Carried => "carried",
            CacheEvent::Dropped => "dropped",
        }
    }
}

/// What happened to answers of leaders that may be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KeptEvent {
    /// A leader was asked for an answer that may be kept.
    Asked,
    /// It gave one.
    Kept,
    /// One was found that is over: its slot was written to, or the epoch has changed.
    Over,
}

impl KeptEvent {
    const ALL: [KeptEvent; 3] = [KeptEvent::Asked, KeptEvent::Kept, KeptEvent::Over];

    fn name(self) -> &'static str {
        match self {
            KeptEvent::Asked => "asked",
            KeptEvent::Kept => "kept",
            KeptEvent::Over => "over",
        }
    }
}

type Labels<const N: usize> = [(&'static str, &'static str); N];

/// See the module's head.
#[derive(Debug)]
pub struct PNodeMetrics {
    reads_family: Family<Labels<2>, Counter>,
    reads: [[Counter; ReadPath::ALL.len()]; ReadMode::ALL.len()],
    wrong_turns_family: Family<Labels<1>, Counter>,
    wrong_turns: [Counter; WrongTurn::ALL.len()],
    messages_family: Family<Labels<1>, Counter>,
    messages: [Counter; MessageKind::ALL.len()],
    entries_family: Family<Labels<1>, Counter>,
    entries: [Counter; MessageKind::ALL.len()],
    shared_family: Family<Labels<1>, Counter>,
    shared: [Counter; MessageKind::ALL.len()],
    cache_family: Family<Labels<1>, Counter>,
    cache: [Counter; CacheEvent::ALL.len()],
    kept_family: Family<Labels<1>, Counter>,
    kept: [Counter; KeptEvent::ALL.len()],
    pub(crate) swept_objects: Counter,
    pub(crate) swept_elements: Counter,
    pub(crate) no_lease_reads: Counter,
    pub(crate) expired_lease_reads: Counter,
    pub(crate) clock_contradictions: Counter,
    pub(crate) wall_clock_contradictions: Counter,
    pub(crate) read_retries: Counter,
    pub(crate) writes: Counter,
    pub(crate) write_retries: Counter,
    pub(crate) writes_unknown: Counter,
    pub(crate) sessions_opened: Counter,
    pub(crate) scan_pages: Counter,
    pub(crate) scan_pages_redone: Counter,
    pub(crate) scan_pages_without_leader: Counter,
    pub(crate) scan_tables_searched: Counter,
    pub(crate) scan_tables_passed_over: Counter,
    pub(crate) pulls: Counter,
    pub(crate) pulls_failed: Counter,
    pub(crate) pull_seconds: Histogram,
    pub(crate) bf_log_entries: Counter,
    pub(crate) whole_filter_fetches: Counter,
    pub(crate) whole_filter_bytes: Counter,
    pub(crate) sst_filter_fetches: Counter,
    pub(crate) sst_filter_bytes: Counter,
    pub(crate) manifest_refreshes: Counter,
    pub(crate) whole_manifests: Counter,
    pub(crate) manifest_mismatches: Counter,
}

impl Default for PNodeMetrics {
    fn default() -> Self {
        let reads_family: Family<Labels<2>, Counter> = Family::default();
        let reads = ReadMode::ALL.map(|mode| {
            ReadPath::ALL.map(|path| {
                reads_family.get_or_create(&[("mode", mode.name()), ("path", path.name())]).clone()
            })
        });
        let one = |family: &Family<Labels<1>, Counter>, label, value| {
            family.get_or_create(&[(label, value)]).clone()
        };
        let wrong_turns_family = Family::default();
        let messages_family = Family::default();
        let entries_family = Family::default();
        let shared_family = Family::default();
        let cache_family = Family::default();
        let kept_family = Family::default();
        Self {
            reads,
            wrong_turns: WrongTurn::ALL.map(|t| one(&wrong_turns_family, "cause", t.name())),
            messages: MessageKind::ALL.map(|k| one(&messages_family, "kind", k.name())),
            entries: MessageKind::ALL.map(|k| one(&entries_family, "kind", k.name())),
            shared: MessageKind::ALL.map(|k| one(&shared_family, "kind", k.name())),
            shared_family,
            cache: CacheEvent::ALL.map(|e| one(&cache_family, "event", e.name())),
            kept: KeptEvent::ALL.map(|e| one(&kept_family, "event", e.name())),
            kept_family,
            reads_family,
            wrong_turns_family,
            messages_family,
            entries_family,
            cache_family,
            swept_objects: Counter::default(),
            swept_elements: Counter::default(),
            no_lease_reads: Counter::default(),
            expired_lease_reads: Counter::default(),
            clock_contradictions: Counter::default(),
            wall_clock_contradictions: Counter::default(),
            read_retries: Counter::default(),
            writes: Counter::default(),
            write_retries: Counter::default(),
            writes_unknown: Counter::default(),
            sessions_opened: Counter::default(),
            scan_pages: Counter::default(),
            scan_pages_redone: Counter::default(),
            scan_pages_without_leader: Counter::default(),
            scan_tables_searched: Counter::default(),
            scan_tables_passed_over: Counter::default(),
            pulls: Counter::default(),
            pulls_failed: Counter::default(),
            pull_seconds: Histogram::new(exponential_buckets(0.000_1, 2.0, 16)),
            bf_log_entries: Counter::default(),
            whole_filter_fetches: Counter::default(),
            whole_filter_bytes: Counter::default(),
            sst_filter_fetches: Counter::default(),
            sst_filter_bytes: Counter::default(),
            manifest_refreshes: Counter::default(),
            whole_manifests: Counter::default(),
            manifest_mismatches: Counter::default(),
        }
    }
}

impl PNodeMetrics {
    /// Adds all counters to a registry, under `sextant_pnode_`.
    pub fn register(&self, registry: &mut Registry) {
        let r = registry.sub_registry_with_prefix("sextant_pnode");
        let family = "by mode and by the tiers that were asked";
        r.register("reads", format!("Point reads {family}"), self.reads_family.clone());
        r.register(
            "read_wrong_turns",
            "Requests that reads made in vain, or had to make once more, by cause",
            self.wrong_turns_family.clone(),
        );
        r.register("upstream_messages", "Messages to other servers, by kind", self.messages_family.clone());
        r.register("upstream_entries", "Requests in these messages, by kind", self.entries_family.clone());
        r.register(
            "upstream_shared",
            "Requests that were answered by another one in the same message that asked for the same, by kind",
            self.shared_family.clone(),
        );
        r.register(
            "cache_events",
            "Record cache: hit, miss, carried over a flush, dropped",
            self.cache_family.clone(),
        );
        r.register(
            "kept_events",
            "Answers of leaders that may be kept: asked for, kept, found to be over",
            self.kept_family.clone(),
        );
        r.register(
            "swept_objects",
            "Objects of the Redis protocol that were gone, and whose elements this p-node has deleted",
            self.swept_objects.clone(),
        );
        r.register(
            "swept_elements",
            "Elements of objects that were gone, deleted by this p-node",
            self.swept_elements.clone(),
        );
        r.register(
            "no_lease_reads",
            "pda reads done as bda for lack of a lease",
            self.no_lease_reads.clone(),
        );
        r.register(
            "expired_lease_reads",
            "pda reads done as bda because the lease was over (part of sextant_pnode_no_lease_reads_total)",
            self.expired_lease_reads.clone(),
        );
        r.register(
            "clock_contradictions",
            "Replies of memtable servers that show a drift of clocks beyond the configured bound",
            self.clock_contradictions.clone(),
        );
        r.register(
            "wall_clock_contradictions",
            "Reads whose lease was certainly over while the wall clock said that it lasts",
            self.wall_clock_contradictions.clone(),
        );
        r.register(
            "read_retries",
            "Point reads that were started again, after an error or a stale manifest",
            self.read_retries.clone(),
        );
        r.register("writes", "Write requests to memtable servers, sent again or not", self.writes.clone());
        r.register("write_retries", "Write requests sent again", self.write_retries.clone());
        r.register("writes_unknown", "Writes whose outcome stayed unknown", self.writes_unknown.clone());
        r.register(
            "sessions_opened",
            "Sessions opened for the p-node's own writes",
            self.sessions_opened.clone(),
        );
        r.register("scan_pages", "Pages of scans that clients were given", self.scan_pages.clone());
        r.register(
            "scan_pages_redone",
            "Pages of scans that had to be read again, because a flush or a compaction came between",
            self.scan_pages_redone.clone(),
        );
        r.register(
            "scan_pages_without_leader",
            "Pages of scans for which no leader was asked, since no memtable has a key that begins so",
            self.scan_pages_without_leader.clone(),
        );
        r.register(
            "scan_tables_searched",
            "SSTables that pages of scans were to have from, one for each page and table",
            self.scan_tables_searched.clone(),
        );
        r.register(
            "scan_tables_passed_over",
            "SSTables in the range of a page that have no key which begins as all of the range do, by their filters",
            self.scan_tables_passed_over.clone(),
        );
        r.register(
            "pulls",
            "Replies of memtable servers to pulls, which bring bf-logs and leases",
            self.pulls.clone(),
        );
        r.register(
            "pulls_failed",
            "Streams of pulls to a memtable server that broke off",
            self.pulls_failed.clone(),
        );
        r.register(
            "pull_seconds",
            "Time from a pull until its reply is in use, without the time that the server held it back",
            self.pull_seconds.clone(),
        );
        r.register(
            "bf_log_entries",
            "Entries of bf-logs that were added to copies of filters",
            self.bf_log_entries.clone(),
        );
        r.register(
            "whole_filter_fetches",
            "Whole filters of memtables fetched, because the bf-log did not reach back far enough",
            self.whole_filter_fetches.clone(),
        );
        r.register(
            "whole_filter_bytes",
            "Bytes of the whole filters of memtables that were fetched",
            self.whole_filter_bytes.clone(),
        );
        r.register("sst_filter_fetches", "Filters of SSTables fetched", self.sst_filter_fetches.clone());
        r.register(
            "sst_filter_bytes",
            "Bytes of the filters of SSTables that were fetched",
            self.sst_filter_bytes.clone(),
        );
        r.register(
            "manifest_refreshes",
            "Manifests asked for outside of pulls, because one at hand was too old",
            self.manifest_refreshes.clone(),
        );
        r.register(
            "whole_manifests",
            "Whole manifests fetched apart from filters, where changes did not lead to the leader's",
            self.whole_manifests.clone(),
        );
        r.register(
            "manifest_mismatches",
            "Changes of manifests that led to another digest than the leader's; they were not used, the whole was fetched",
            self.manifest_mismatches.clone(),
        );
    }

    pub(crate) fn count_read(&self, mode: ReadMode, path: ReadPath) {
        self.reads[mode as usize][path as usize].inc();
    }

    pub(crate) fn count_wrong_turn(&self, cause: WrongTurn) {
        self.wrong_turns[cause as usize].inc();
    }

    pub(crate) fn count_message(&self, kind: MessageKind, entries: usize) {
        self.messages[kind as usize].inc();
        self.entries[kind as usize].inc_by(entries as u64);
    }

    pub(crate) fn count_shared(&self, kind: MessageKind, requests: u64) {
        self.shared[kind as usize].inc_by(requests);
    }

    pub(crate) fn count_cache(&self, event: CacheEvent) {
        self.cache[event as usize].inc();
    }

    pub(crate) fn count_kept(&self, event: KeptEvent) {
        self.kept[event as usize].inc();
    }

    pub fn kept(&self, event: KeptEvent) -> u64 {
        self.kept[event as usize].get()
    }

    /// Point reads of a mode that took a path.
    pub fn reads(&self, mode: ReadMode, path: ReadPath) -> u64 {
        self.reads[mode as usize][path as usize].get()
    }

    pub fn wrong_turns(&self, cause: WrongTurn) -> u64 {
        self.wrong_turns[cause as usize].get()
    }

    /// Messages of a kind, and the requests in them.
    pub fn messages(&self, kind: MessageKind) -> (u64, u64) {
        (self.messages[kind as usize].get(), self.entries[kind as usize].get())
    }

    /// Requests that another one of their message was sent for.
    pub fn shared(&self, kind: MessageKind) -> u64 {
        self.shared[kind as usize].get()
    }

    pub fn cache(&self, event: CacheEvent) -> u64 {
        self.cache[event as usize].get()
    }

    /// pda reads that were done as bda because no lease was valid.
    pub fn no_lease_reads(&self) -> u64 {
        self.no_lease_reads.get()
    }

    /// Those of them that found a lease which was over.
    pub fn expired_lease_reads(&self) -> u64 {
        self.expired_lease_reads.get()
    }

    /// How often clocks were seen to be beyond their bounds: monotonic ones, wall clocks.
    pub fn clock_contradictions(&self) -> (u64, u64) {
        (self.clock_contradictions.get(), self.wall_clock_contradictions.get())
    }

    /// Pages of scans for which no leader was asked.
    pub fn scan_pages_without_leader(&self) -> u64 {
        self.scan_pages_without_leader.get()
    }

    /// SSTables that pages of scans were to have from, and those that were passed over because of how keys begin there.
    pub fn scan_tables(&self) -> (u64, u64) {
        (self.scan_tables_searched.get(), self.scan_tables_passed_over.get())
    }

    pub fn whole_filter_fetches(&self) -> u64 {
        self.whole_filter_fetches.get()
    }

    pub fn whole_manifests(&self) -> u64 {
        self.whole_manifests.get()
    }

    pub fn manifest_mismatches(&self) -> u64 {
        self.manifest_mismatches.get()
    }

    pub fn pulls(&self) -> u64 {
        self.pulls.get()
    }

    pub fn write_retries(&self) -> u64 {
        self.write_retries.get()
    }

    pub fn swept_elements(&self) -> u64 {
        self.swept_elements.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_registry_shows_what_was_counted() {
        let metrics = PNodeMetrics::default();
        let mut registry = Registry::default();
        metrics.register(&mut registry);
        metrics.count_read(ReadMode::Bda, ReadPath::Both);
        metrics.count_wrong_turn(WrongTurn::Tombstone);
        metrics.count_message(MessageKind::Get, 5);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        assert!(text.contains("sextant_pnode_reads_total{mode=\"bda\",path=\"both\"} 1"), "{text}");
        assert!(text.contains("sextant_pnode_read_wrong_turns_total{cause=\"tombstone\"} 1"));
        assert!(text.contains("sextant_pnode_upstream_entries_total{kind=\"get\"} 5"));
        assert_eq!(metrics.reads(ReadMode::Bda, ReadPath::Both), 1);
        assert_eq!(metrics.reads(ReadMode::Pda, ReadPath::Both), 0);
    }
}
