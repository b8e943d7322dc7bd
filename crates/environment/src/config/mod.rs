//! Configuration that all roles share. Plain data: documented defaults, `validate()`, unknown fields reported.

mod address;
mod load;
mod tls;
mod unix;
mod volume;

use std::time::Duration;

use serde::{Deserialize, Serialize};

use sextant_common::error::{Error, Result};
use sextant_common::ids::NodeId;
use sextant_common::key::SLOTS;

pub use address::{check_listens, check_reached, check_reached_here, host_port, is_host, is_loopback};
pub use load::{ConfigError, load, load_file, load_role, parse, role_of};
pub use sextant_common::configuration::LeaseMode;
pub use tls::{ClientCertificates, TlsConfig};
pub use unix::{FileMode, UnixListen, unix_path};
pub use volume::{foreign_volume, unusable};

/// One server of a tier.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Server {
    /// Unique in its tier; 1 or more.
    pub id: NodeId,
    /// `host:port` of its gRPC service.
    pub addr: String,
    /// What fails together: a rack, a data centre, a cloud's availability zone. The copies of a table are spread over as many as
    /// there are. None: what happens to this server happens to no other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
}

/// Where a server is: in a zone that has a name, or in one of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Zone<'a> {
    Named(&'a str),
    Own(NodeId),
}

impl Server {
    pub fn new(id: u64, addr: impl Into<String>) -> Self {
        Self { id: NodeId(id), addr: addr.into(), zone: None }
    }

    pub fn zone(&self) -> Zone<'_> {
        Zone::of(self.id, self.zone.as_deref())
    }
}

impl<'a> Zone<'a> {
    pub fn of(id: NodeId, name: Option<&'a str>) -> Self {
        name.map_or(Self::Own(id), Self::Named)
    }
}

/// Longest name of a zone, in bytes.
const ZONE_BYTES_MAX: usize = 64;

/// What every server of a cluster must agree on. [`ClusterConfig::fingerprint`] travels in every handshake: servers with
/// different values do not talk to each other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterConfig {
    /// Name of the cluster; data directories remember it.
    pub id: String,
    /// Number of partitions; fixed when the cluster is created.
    pub partitions: u32,
    pub memtable: Vec<Server>,
    pub sstable: Vec<Server>,
    /// The seed of what each partition replicates: once a partition has a configuration, that counts (`sextant admin
    /// configure` changes it). Heartbeats, jitter and the group interval are each server's own.
    #[serde(default)]
    pub lease: LeaseConfig,
}

/// The longest of all times in [`LeaseConfig`], in milliseconds: far beyond sense, and so short that sums of nanoseconds never
/// come round.
pub const LEASE_MS_MAX: u64 = 3_600_000;

/// Lengths in milliseconds. The order `heartbeat < lease <= leader_lease` is enforced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LeaseConfig {
    pub mode: LeaseMode,
    /// Longest lease of a p-node. Never outlives the leader's own lease.
    pub lease_ms: u64,
    /// How long a leader may serve after the send time of the last round that a majority acknowledged. Also how long every
    /// node abstains from votes after it heard from a leader.
    pub leader_lease_ms: u64,
    /// Raft heartbeats.
    pub heartbeat_ms: u64,
    /// Random extra wait before a node campaigns, 0 to so many.
    pub election_jitter_ms: u64,
    /// Bound on the drift of monotonic clocks against true time, in parts per million.
    pub drift_ppm: u64,
    /// The paper's fixed wait before a group is formed, in microseconds. 0: natural batching only.
    pub group_interval_us: u64,
}

impl Default for LeaseConfig {
    fn default() -> Self {
        Self {
            mode: LeaseMode::Ack,
            lease_ms: 300,
            leader_lease_ms: 400,
            heartbeat_ms: 60,
            election_jitter_ms: 150,
            drift_ppm: 500,
            group_interval_us: 0,
        }
    }
}

impl LeaseConfig {
    pub fn lease(&self) -> Duration {
        Duration::from_millis(self.lease_ms)
    }

    pub fn leader_lease(&self) -> Duration {
        Duration::from_millis(self.leader_lease_ms)
    }

    /// Lengths that do not fit each other are named.
    pub fn validate(&self) -> Result<()> {
        let l = self;
        let bad = |what: String| Err(Error::invalid(what));
        if l.heartbeat_ms == 0 || l.heartbeat_ms.saturating_mul(2) > l.leader_lease_ms {
            return bad(
                "cluster.lease: heartbeat_ms must be at least 1 and at most half of leader_lease_ms".into()
            );
        }
        if l.lease_ms == 0 || l.lease_ms > l.leader_lease_ms {
            return bad("cluster.lease: lease_ms must be at least 1 and at most leader_lease_ms".into());
        }
        for (field, ms) in [
            ("leader_lease_ms", l.leader_lease_ms),
            ("election_jitter_ms", l.election_jitter_ms),
            ("group_interval_us / 1000", l.group_interval_us / 1000),
        ] {
            if ms > LEASE_MS_MAX {
                return bad(format!("cluster.lease: {field} is {ms}: at most {LEASE_MS_MAX} (an hour)"));
            }
        }
        if l.drift_ppm > 100_000 {
            return bad("cluster.lease: drift_ppm is above 100000 (10 %)".into());
        }
        Ok(())
    }

    /// The longest that `d` on one clock can last on another, both within the drift bound: d * (1 + rho) / (1 - rho), rounded
    /// up.
    pub fn stretched(&self, d: Duration) -> Duration {
        const MILLION: u64 = 1_000_000;
        let (fast, slow) =
            (MILLION.saturating_add(self.drift_ppm), MILLION.saturating_sub(self.drift_ppm).max(1));
        let ns = (d.as_nanos() * u128::from(fast)).div_ceil(u128::from(slow));
        Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX))
    }
}

impl ClusterConfig {
    pub fn validate(&self) -> Result<()> {
        let bad = |what: String| Err(Error::invalid(what));
        if self.id.is_empty() || self.id.len() > 64 {
            return bad("cluster.id: 1 to 64 characters".into());
        }
        if self.partitions == 0 || self.partitions > u32::from(SLOTS) {
            return bad(format!("cluster.partitions is {}: 1 to {SLOTS}", self.partitions));
        }
        for (tier, servers) in [("memtable", &self.memtable), ("sstable", &self.sstable)] {
            if servers.is_empty() {
                return bad(format!("cluster.{tier}: at least one server"));
            }
            let mut ids: Vec<_> = servers.iter().map(|s| s.id).collect();
            ids.sort();
            if ids[0].0 == 0 || ids.windows(2).any(|w| w[0] == w[1]) {
                return bad(format!("cluster.{tier}: server ids are 1 or more, and unique"));
            }
            for server in servers {
                check_reached(&format!("cluster.{tier}"), &server.addr)?;
                if server.zone.as_ref().is_some_and(|zone| zone.is_empty() || zone.len() > ZONE_BYTES_MAX) {
                    return bad(format!(
                        "cluster.{tier}: zone of {}: 1 to {ZONE_BYTES_MAX} bytes",
                        server.id
                    ));
                }
            }
        }
        self.lease.validate()
    }

    /// Hash of what servers must agree on for routing to be right: id and partitions. Addresses may differ (a server can be
    /// reached under several); lease lengths are replicated.
    pub fn fingerprint(&self) -> u64 {
        let text = format!("{}\n{}", self.id, self.partitions);
        xxhash_rust::xxh3::xxh3_64(text.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(id: u64, addr: &str) -> Server {
        Server::new(id, addr)
    }

    fn good() -> ClusterConfig {
        ClusterConfig {
            id: "c".into(),
            partitions: 4,
            memtable: vec![server(1, "m:1"), server(2, "m:2")],
            sstable: vec![server(1, "s:1")],
            lease: LeaseConfig::default(),
        }
    }

    #[test]
    fn the_defaults_are_valid_and_every_mistake_is_named() {
        good().validate().unwrap();
        type Mistake = fn(&mut ClusterConfig);
        let mistakes: [(Mistake, &str); 15] = [
            (|c| c.id.clear(), "cluster.id"),
            (|c| c.partitions = 0, "cluster.partitions is 0"),
            (|c| c.partitions = 16_385, "cluster.partitions is 16385"),
            (|c| c.memtable.clear(), "cluster.memtable: at least one"),
            (|c| c.memtable[1].id = NodeId(1), "cluster.memtable: server ids"),
            (|c| c.sstable[0].id = NodeId(0), "cluster.sstable: server ids"),
            (|c| c.sstable[0].addr = "nowhere".into(), "\"nowhere\" is not host:port"),
            (|c| c.sstable[0].zone = Some(String::new()), "cluster.sstable: zone of 1"),
            (|c| c.lease.heartbeat_ms = 201, "heartbeat_ms"),
            (|c| c.lease.heartbeat_ms = u64::MAX, "heartbeat_ms"),
            (|c| c.lease.lease_ms = 401, "lease_ms"),
            (|c| c.lease.drift_ppm = 100_001, "drift_ppm"),
            (|c| c.lease.leader_lease_ms = 3_600_001, "leader_lease_ms is 3600001"),
            (|c| c.lease.election_jitter_ms = u64::MAX, "election_jitter_ms"),
            (|c| c.lease.group_interval_us = i64::MAX as u64, "group_interval_us"),
        ];
        for (mistake, expected) in mistakes {
            let mut config = good();
            mistake(&mut config);
            let error = config.validate().unwrap_err();
            assert!(error.message.contains(expected), "{error} is not about {expected}");
            assert_eq!(error.kind, sextant_common::ErrorKind::Invalid);
        }
    }

    #[test]
    fn the_fingerprint_covers_what_must_agree_and_nothing_else() {
        let same = ClusterConfig { memtable: vec![server(1, "other:1")], ..good() };
        assert_eq!(same.fingerprint(), good().fingerprint());
        let different: [fn(&mut ClusterConfig); 2] = [|c| c.id.push('x'), |c| c.partitions += 1];
        let prints = different.map(|change| {
            let mut config = good();
            change(&mut config);
            config.fingerprint()
        });
        assert!(!prints.contains(&good().fingerprint()));
    }

    #[test]
    fn a_stretched_duration_outlasts_the_slowest_clock() {
        for drift_ppm in [0, 1, 500, 100_000] {
            let lease = LeaseConfig { drift_ppm, ..LeaseConfig::default() };
            let rho = drift_ppm as f64 / 1e6;
            for ns in [0u64, 1, 999, 300_000_000, 86_400_000_000_000] {
                let stretched = lease.stretched(Duration::from_nanos(ns)).as_nanos() as f64;
                // On the slow clock `ns` take ns / (1 - rho) of true time, which the fast clock counts as that * (1 + rho).
                let exact = ns as f64 / (1.0 - rho) * (1.0 + rho);
                assert!(
                    stretched >= exact.floor() && stretched <= exact + 2.0,
                    "{drift_ppm} {ns}: {stretched} {exact}"
                );
            }
            assert_eq!(lease.stretched(Duration::MAX).as_nanos(), u128::from(u64::MAX));
        }
    }
}
