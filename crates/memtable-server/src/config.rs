//! Configuration of a memtable server.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use sextant_common::configuration::FORMAT_NEWEST;
use sextant_common::error::{Error, Result};
use sextant_common::ids::NodeId;
use sextant_common::limits;
use sextant_common::manifest::Compression;
use sextant_environment::clock::WallSource;
use sextant_environment::config::{ClusterConfig, TlsConfig, check_listens};
use sextant_raft_log::RaftLogConfig;

use crate::lease::ring::SERIALS_MAX;

/// Eight of them, of the smallest records, still fit into one SSTable.
const SST_TARGET_BYTES_MAX: u64 = 16 << 30;

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemtableServerConfig {
    /// Which of `cluster.memtable` this server is.
    pub id: NodeId,
    pub cluster: ClusterConfig,
    /// `host:port` of the gRPC service.
    pub listen: String,
    /// `host:port` of metrics, health and status; none: no HTTP.
    #[serde(default)]
    pub http: Option<String>,
    /// Directory for snapshots (manifests).
    pub data_dir: PathBuf,
    /// Directories of the log, one per device. Empty: `data_dir/log`.
    #[serde(default)]
    pub log_devices: Vec<PathBuf>,
    #[serde(default)]
    pub clock: WallSource,
    /// Certificates; without, connections are not encrypted. For whoever builds the [`sextant_environment::Env`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<TlsConfig>,
    #[serde(default)]
    pub tuning: Tuning,
}

/// What becomes of a memtable server that comes back without its memory (an empty disk, an older copy of one).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Rejoin {
    /// The leader takes it out of the voters and lets it in again as a new one, as soon as the others are a sound majority.
    #[default]
    Automatic,
    /// An operator does (`sextant admin voters`).
    Manual,
}

/// What may be changed without harm. Sizes in bytes, times in milliseconds.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Tuning {
    /// Threads that the partitions live on, at most one each; 0: by cores, one up to three, then one for two.
    pub threads: usize,
    /// A log segment.
    pub log_segment_bytes: u64,
    /// Recent log entries kept in memory per partition, for followers.
    pub log_cache_bytes: u64,
    /// Log entries kept behind the newest snapshot, for followers that lag a little; one that lags more takes the snapshot.
    pub log_entries_kept: u64,
    /// ... or fewer: those after which the server's log has grown by so many bytes, of all partitions, are purged, so that one in which
    /// little happens does not hold up the segments of all.
    pub log_bytes_kept: u64,
    /// Most log entries of one append to a follower. (Its bytes are bounded besides.)
    pub log_entries_per_append: u64,
    /// Entries of a partition's bf-log that its leader keeps for p-nodes, 8 bytes each; one that lags more takes whole filters.
    pub bf_log_serials: u64,
    /// The option `filter_inserts` of the default table, in partitions that have none yet: every new key leaves a bit, so that reads of
    /// absent keys ask nobody.
    pub default_filter_inserts: bool,
    /// The option `compression` of the default table, in partitions that have none yet: `none`, `lz4` or `zstd`. The same on all servers.
    pub default_compression: Compression,
    /// A table's memtable is frozen when it reaches this size (per partition).
    pub memtable_bytes: u64,
    /// ... or when its oldest write lies so far back in the log: a table that trickles must not pin the log.
    pub freeze_log_bytes: u64,
    /// ... or when it has held a write for so long.
    pub freeze_age_ms: u64,
    /// Memory for memtables that are not yet flushed, of all partitions of this server. Writes are slowed at three quarters and
    /// refused at the whole. Only the seed: replicated as part of each partition's configuration.
    pub memory_bytes: u64,
    /// How long, and for how many bytes per partition, flushed memtables still answer readers of older manifests.
    pub grace_ms: u64,
    pub grace_bytes: u64,
    /// Replicas of each SSTable, and how many must be durable before the flush flag.
    pub sst_replicas: usize,
    pub sst_replicas_required: usize,
    /// So many SSTables of a range of keys, of about one size, become one; 1 counts as 2. 0: only on command.
    pub compaction_trigger: usize,
    /// A compaction cuts what it writes into SSTables of about so many bytes, each for a range of keys of its own: a table of a
    /// partition is made of columns of this size, and no compaction does more work than some of them ask for.
    pub sst_target_bytes: u64,
    /// A table that had no flush for so long (each up to twice as long) is compacted until about a tenth is wasted. What nobody has
    /// written to for half of that is flushed, if its table has SSTables. 0: never.
    pub rest_after_ms: u64,
    /// Replaced SSTables are deleted after this time.
    pub sst_delete_grace_ms: u64,
    /// A snapshot ends when it is so old, renewed or not: what it names takes space until then.
    pub snapshot_age_max_ms: u64,
    /// How often the leader compares the sstable servers with the manifest.
    pub repair_interval_ms: u64,
    /// An sstable server that has not answered for so long is not waited for any more: its tables are copied to others. 0: never.
    pub sst_lost_after_ms: u64,
    /// How fast tables are copied for that, by each partition.
    pub repair_bytes_per_second: u64,
    /// Groups that may be appended but not yet committed: while they are under way the next group fills up.
    pub groups_in_flight: usize,
    /// Largest group, in bytes of keys and values (a single larger batch still makes a group of its own).
    pub group_bytes: usize,
    /// Requests waiting to be sequenced, per partition; beyond it they are refused as overloaded.
    pub queue_requests: usize,
    /// A leader whose log device has not finished a write for so long hands its leaderships over. 0: never.
    pub disk_stall_ms: u64,
    /// How often a server that leads clearly more partitions than another hands one over, while all is quiet. 0: never.
    pub balance_ms: u64,
    /// What a leader does about a server that has lost its memory.
    pub rejoin: Rejoin,
    /// The newest format of a partition that this server says it can read, and starts with. (Less than it can: for tests.)
    pub format_max: u32,
}

impl Default for Tuning {
    fn default() -> Self {
        const MIB: u64 = 1024 * 1024;
        Self {
            threads: 0,
            log_segment_bytes: 64 * MIB,
            log_cache_bytes: 32 * MIB,
            log_entries_kept: 2_000,
            log_bytes_kept: 256 * MIB,
            log_entries_per_append: 512,
            bf_log_serials: SERIALS_MAX,
            default_filter_inserts: true,
            default_compression: Compression::Lz4,
            memtable_bytes: 64 * MIB,
            freeze_log_bytes: 256 * MIB,
            freeze_age_ms: 30 * 60 * 1000,
            memory_bytes: 1024 * MIB,
            grace_ms: 2_000,
            grace_bytes: 64 * MIB,
            sst_replicas: 3,
            sst_replicas_required: 2,
            compaction_trigger: 6,
            sst_target_bytes: 128 * MIB,
            rest_after_ms: 10 * 60 * 1000,
            sst_delete_grace_ms: 15_000,
            snapshot_age_max_ms: 24 * 60 * 60 * 1000,
            repair_interval_ms: 1_000,
            sst_lost_after_ms: 10 * 60 * 1000,
            repair_bytes_per_second: 64 * MIB,
            groups_in_flight: 2,
            group_bytes: 4 * MIB as usize,
            queue_requests: 16_384,
            disk_stall_ms: 1_000,
            balance_ms: 0,
            rejoin: Rejoin::Automatic,
            format_max: FORMAT_NEWEST,
        }
    }
}

impl MemtableServerConfig {
    pub fn validate(&self) -> Result<()> {
        self.cluster.validate()?;
        let bad = |what: String| Err(Error::invalid(what));
        if !self.cluster.memtable.iter().any(|s| s.id == self.id) {
            return bad(format!("id {} is not in cluster.memtable", self.id));
        }
        for (field, addr) in [("listen", Some(&self.listen)), ("http", self.http.as_ref())] {
            if let Some(addr) = addr {
                check_listens(field, addr)?;
            }
        }
        if self.data_dir.as_os_str().is_empty() {
            return bad("data_dir is empty".into());
        }
        let t = &self.tuning;
        if t.log_segment_bytes < 1024 * 1024 {
            return bad("tuning.log_segment_bytes: at least 1 MiB".into());
        }
        if t.memtable_bytes < 4096 || t.memory_bytes < 2 * t.memtable_bytes {
            return bad(
                "tuning: memtable_bytes at least 4 KiB, memory_bytes at least twice memtable_bytes".into()
            );
        }
        if t.sst_replicas == 0 || t.sst_replicas_required == 0 || t.sst_replicas_required > t.sst_replicas {
            return bad("tuning: sst_replicas_required must be 1 to sst_replicas".into());
        }
        if t.sst_target_bytes < 1024 || t.sst_target_bytes > SST_TARGET_BYTES_MAX {
            return bad("tuning.sst_target_bytes: 1 KiB to 16 GiB".into());
        }
        if t.groups_in_flight == 0 || t.queue_requests == 0 || t.log_entries_per_append == 0 {
            return bad(
                "tuning: groups_in_flight, queue_requests and log_entries_per_append must be at least 1"
                    .into(),
            );
        }
        if t.group_bytes == 0 || t.group_bytes > limits::BATCH_BYTES_MAX {
            return bad("tuning.group_bytes: 1 byte to 16 MiB, what one Raft entry can carry".into());
        }
        if t.format_max > FORMAT_NEWEST {
            return bad(format!("tuning.format_max: this version reads formats up to {FORMAT_NEWEST}"));
        }
        if t.sst_delete_grace_ms < 100 {
            return bad(
                "tuning.sst_delete_grace_ms: at least 100, so that no reader loses a table under its hands"
                    .into(),
            );
        }
        self.log().validate()
    }

    /// The log's part of it.
    pub(crate) fn log(&self) -> RaftLogConfig {
        RaftLogConfig {
            devices: self.devices(),
            segment_bytes: self.tuning.log_segment_bytes,
            cluster: self.cluster.id.clone(),
            fingerprint: self.cluster.fingerprint(),
            node: self.id,
            cache_bytes: self.tuning.log_cache_bytes,
        }
    }

    /// Directories of the log.
    pub fn devices(&self) -> Vec<PathBuf> {
        if self.log_devices.is_empty() { vec![self.data_dir.join("log")] } else { self.log_devices.clone() }
    }
}

#[cfg(test)]
mod tests {
    use sextant_common::error::ErrorKind;

    use super::*;

    fn config(own: &str, tuning: &str) -> MemtableServerConfig {
        let text = format!(
            "id = 1\nlisten = \"127.0.0.1:0\"\ndata_dir = \"/data\"\n{own}\n[cluster]\nid = \"test\"\npartitions = 2\n\
             memtable = [{{ id = 1, addr = \"a:1\" }}]\nsstable = [{{ id = 1, addr = \"s:1\" }}]\n[tuning]\n{tuning}\n"
        );
        toml::from_str(&text).unwrap()
    }

    #[test]
    fn what_the_log_would_refuse_when_the_server_starts_is_refused_before() {
        config("log_devices = [\"/a\", \"/b\"]", "log_segment_bytes = 1073741824").validate().unwrap();
        for (own, tuning, why) in [
            ("log_devices = [\"/a\", \"/b\", \"/a\"]", "", "log device /a is given twice"),
            ("", "log_segment_bytes = 2147483648", "log segments of 2147483648 bytes"),
        ] {
            let error = config(own, tuning).validate().unwrap_err();
            assert!(error.kind == ErrorKind::Invalid && error.message.contains(why), "{error}");
        }
    }
}
