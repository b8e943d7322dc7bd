//! Configuration of an sstable server.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use sextant_common::error::{Error, Result};
use sextant_common::ids::NodeId;
use sextant_environment::config::{ClusterConfig, TlsConfig, check_listens};

use crate::memory::Memory;

/// What is slower takes for ever.
const PACE_MIN: u64 = 1024 * 1024;
/// The system knows none that gives way more.
const NICE_MAX: u8 = 19;

/// Plain data; [`SstServerConfig::validate`] checks it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SstServerConfig {
    /// This server, as `cluster.sstable` names it.
    pub id: NodeId,
    pub cluster: ClusterConfig,
    /// `host:port` of the gRPC service; port 0: any free one.
    pub listen: String,
    /// `host:port` of metrics, health and status; none: not served.
    #[serde(default)]
    pub http: Option<String>,
    /// Made if it does not exist; belongs to this server alone.
    pub data_dir: PathBuf,
    /// Memory for all of the process, in bytes: for the cache, for jobs (tables that are received or written), for requests and for
    /// the program itself ([`Memory`]). Default: 1 GiB; or what `block_cache_bytes` needs, if only that is stated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Of that, for the cache: decompressed blocks, indexes and filters. 0: nothing is kept. Default: what jobs leave.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_cache_bytes: Option<u64>,
    /// Most reads from disk (batches of gets, pages of scans) at a time; further ones wait.
    #[serde(default = "defaults::disk_reads_max")]
    pub disk_reads_max: usize,
    /// Most tables that are being received at a time, while there is room in memory for them: 60 MB each.
    #[serde(default = "defaults::ingests_max")]
    pub ingests_max: usize,
    /// Most compactions at a time, while there is room in memory for them; each has a thread of its own.
    #[serde(default = "defaults::compactions_max")]
    pub compactions_max: usize,
    /// A compaction reads at most so many bytes a second; 0: as many as it can.
    #[serde(default)]
    pub compaction_bytes_per_s: u64,
    /// And writes at most so many; 0: as many as it can.
    #[serde(default)]
    pub compaction_write_bytes_per_s: u64,
    /// How much less important than others the threads of compactions are, as a nice value: reads go before. 0 (as important as they)
    /// to 19.
    #[serde(default = "defaults::compaction_nice")]
    pub compaction_nice: u8,
    /// Files of tables that are not needed any more are removed at this pace, and faster when it takes more than ten seconds; 0: at
    /// once.
    #[serde(default = "defaults::delete_bytes_per_s")]
    pub delete_bytes_per_s: u64,
    /// Most tables that are being copied to this server at a time, and most that are being read by other servers.
    #[serde(default = "defaults::copies_max")]
    pub copies_max: usize,
    /// How often every table is read and verified, in seconds; 0: never.
    #[serde(default = "defaults::scrub_interval_s")]
    pub scrub_interval_s: u64,
    /// Verification reads at most so many bytes a second.
    #[serde(default = "defaults::scrub_bytes_per_s")]
    pub scrub_bytes_per_s: u64,
    /// Certificates; without, connections are not encrypted. For whoever builds the [`sextant_environment::Env`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<TlsConfig>,
}

mod defaults {
    pub fn disk_reads_max() -> usize {
        64
    }
    pub fn ingests_max() -> usize {
        4
    }
    pub fn compactions_max() -> usize {
        2
    }
    pub fn compaction_nice() -> u8 {
        5
    }
    pub fn delete_bytes_per_s() -> u64 {
        256 << 20
    }
    pub fn copies_max() -> usize {
        4
    }
    pub fn scrub_interval_s() -> u64 {
        24 * 3600
    }
    pub fn scrub_bytes_per_s() -> u64 {
        16 << 20
    }
}

impl SstServerConfig {
    /// A configuration with the default for everything that has one.
    pub fn new(
        id: NodeId,
        cluster: ClusterConfig,
        listen: impl Into<String>,
        data_dir: impl Into<PathBuf>,
    ) -> Self {
        Self {
            id,
            cluster,
            listen: listen.into(),
            http: None,
            data_dir: data_dir.into(),
            memory_bytes: None,
            block_cache_bytes: None,
            disk_reads_max: defaults::disk_reads_max(),
            ingests_max: defaults::ingests_max(),
            compactions_max: defaults::compactions_max(),
            compaction_bytes_per_s: 0,
            compaction_write_bytes_per_s: 0,
            compaction_nice: defaults::compaction_nice(),
            delete_bytes_per_s: defaults::delete_bytes_per_s(),
            copies_max: defaults::copies_max(),
            scrub_interval_s: defaults::scrub_interval_s(),
            scrub_bytes_per_s: defaults::scrub_bytes_per_s(),
            tls: None,
        }
    }

    /// What memory there is for.
    pub fn memory(&self) -> Memory {
        Memory::of(self.memory_bytes, self.block_cache_bytes)
    }

    pub fn validate(&self) -> Result<()> {
        self.cluster.validate()?;
        let bad = |what: String| Err(Error::invalid(what));
        if !self.cluster.sstable.iter().any(|s| s.id == self.id) {
            return bad(format!("id is {}: cluster.sstable has no such server", self.id));
        }
        for (field, addr) in [("listen", Some(&self.listen)), ("http", self.http.as_ref())] {
            if let Some(addr) = addr {
                check_listens(field, addr)?;
            }
        }
        if self.data_dir.as_os_str().is_empty() {
            return bad("data_dir is empty".into());
        }
        Memory::check(self.memory_bytes, self.block_cache_bytes)?;
        let counts = [
            ("disk_reads_max", self.disk_reads_max, 400),
            ("ingests_max", self.ingests_max, 64),
            ("compactions_max", self.compactions_max, 64),
            ("copies_max", self.copies_max, 64),
        ];
        // Reads, ingests and copies share the pool of 512 blocking threads.
        for (field, count, most) in counts {
            if count == 0 || count > most {
                return bad(format!("{field} is {count}: 1 to {most}"));
            }
        }
        if self.compaction_nice > NICE_MAX {
            return bad(format!("compaction_nice is {}: 0 to {NICE_MAX}", self.compaction_nice));
        }
        let paces = [
            ("delete_bytes_per_s", self.delete_bytes_per_s),
            ("compaction_write_bytes_per_s", self.compaction_write_bytes_per_s),
        ];
        for (field, pace) in paces {
            if (1..PACE_MIN).contains(&pace) {
                return bad(format!("{field} is {pace}: at least {PACE_MIN}, or 0: no limit"));
            }
        }
        if self.scrub_interval_s > 0 && self.scrub_bytes_per_s < 64 * 1024 {
            return bad(
                "scrub_bytes_per_s: at least 65536 (scrub_interval_s = 0 turns verification off)".into()
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::cluster_config;

    #[test]
    fn omitted_fields_have_their_defaults_and_unknown_ones_are_reported() {
        let config = SstServerConfig::new(NodeId(1), cluster_config(&["a:1", "b:2"]), "127.0.0.1:0", "/data");
        config.validate().unwrap();
        let text = r#"{"id":1,"listen":"127.0.0.1:0","data_dir":"/data","cluster":CLUSTER}"#
            .replace("CLUSTER", &serde_json::to_string(&config.cluster).unwrap());
        assert_eq!(serde_json::from_str::<SstServerConfig>(&text).unwrap(), config);
        let text = text.replace("\"listen\"", "\"listne\":\"x\",\"listen\"");
        assert!(serde_json::from_str::<SstServerConfig>(&text).unwrap_err().to_string().contains("listne"));
    }

    #[test]
    fn impossible_values_are_refused() {
        let good = SstServerConfig::new(NodeId(1), cluster_config(&["a:1"]), "127.0.0.1:0", "/data");
        let bad = [
            SstServerConfig { id: NodeId(7), ..good.clone() },
            SstServerConfig { listen: "nowhere".into(), ..good.clone() },
            SstServerConfig { http: Some("nowhere".into()), ..good.clone() },
            SstServerConfig { data_dir: PathBuf::new(), ..good.clone() },
            SstServerConfig { ingests_max: 0, ..good.clone() },
            SstServerConfig { disk_reads_max: 10_000, ..good.clone() },
            SstServerConfig { scrub_bytes_per_s: 1, ..good.clone() },
            SstServerConfig { compaction_nice: 20, ..good.clone() },
            SstServerConfig { delete_bytes_per_s: 1, ..good.clone() },
            SstServerConfig { compaction_write_bytes_per_s: 1, ..good.clone() },
            SstServerConfig { memory_bytes: Some(1 << 20), ..good.clone() },
            SstServerConfig { memory_bytes: Some(1 << 30), block_cache_bytes: Some(1 << 30), ..good.clone() },
        ];
        good.validate().unwrap();
        bad.iter().for_each(|config| assert!(config.validate().is_err(), "{config:?}"));
    }
}
