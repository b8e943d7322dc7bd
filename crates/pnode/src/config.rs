//! Configuration of a p-node.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use sextant_common::clock::WallSource;
use sextant_common::config::ClusterConfig;
use sextant_common::ids::NodeId;
use sextant_common::{Error, Result};

/// Default size of the record cache.
const CACHE_BYTES_DEFAULT: u64 = 256 * 1024 * 1024;
/// Default deadline of an operation: several elections long.
const DEADLINE_MS_DEFAULT: u64 = 5_000;
/// Default bound on client connections of each front end.
const CONNECTIONS_DEFAULT: usize = 10_000;

/// A p-node as a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PNodeConfig {
    /// Unique in its tier; 1 or more.
    pub id: NodeId,
    pub cluster: ClusterConfig,
    /// `host:port` of the gRPC services Kv and Admin.
    pub grpc: String,
    /// `host:port` of the RESP front end; none: off.
    #[serde(default)]
    pub resp: Option<String>,
    /// `host:port` of metrics, health and status; none: off.
    #[serde(default)]
    pub http: Option<String>,
    /// Size of the record cache in bytes; 0: off.
    #[serde(default = "cache_bytes_default")]
    pub cache_bytes: u64,
    /// Whether concurrent requests to one server travel in one message. Off only for measurement.
    #[serde(default = "yes")]
    pub coalesce: bool,
    /// Deadline of operations that state none, in milliseconds.
    #[serde(default = "deadline_ms_default")]
    pub default_deadline_ms: u64,
    /// Most client connections of each front end. Beyond it RESP refuses, and gRPC lets wait.
    #[serde(default = "connections_default")]
    pub max_connections: usize,
    /// Where the bound on the wall clock's error comes from. For whoever builds the [`sextant_common::Env`]; the default (no
    /// bound) is always safe.
    #[serde(default)]
    pub clock: WallSource,
}

/// A p-node as a library: no listeners.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    pub cluster: ClusterConfig,
    /// 0: off.
    pub cache_bytes: u64,
    pub coalesce: bool,
    pub default_deadline: Duration,
}

fn cache_bytes_default() -> u64 {
    CACHE_BYTES_DEFAULT
}
fn deadline_ms_default() -> u64 {
    DEADLINE_MS_DEFAULT
}
fn connections_default() -> usize {
    CONNECTIONS_DEFAULT
}
fn yes() -> bool {
    true
}

impl PNodeConfig {
    /// Defaults for everything but identity, cluster and address.
    pub fn new(id: NodeId, cluster: ClusterConfig, grpc: impl Into<String>) -> Self {
        Self {
            id,
            cluster,
            grpc: grpc.into(),
            resp: None,
            http: None,
            cache_bytes: CACHE_BYTES_DEFAULT,
            coalesce: true,
            default_deadline_ms: DEADLINE_MS_DEFAULT,
            max_connections: CONNECTIONS_DEFAULT,
            clock: WallSource::default(),
        }
    }

    pub fn validate(&self) -> Result<()> {
        if self.id.0 == 0 {
            return Err(Error::invalid("id: 1 or more"));
        }
        let named = [("grpc", Some(&self.grpc)), ("resp", self.resp.as_ref()), ("http", self.http.as_ref())];
        for (name, addr) in named {
            if let Some(addr) = addr
                && !addr.contains(':')
            {
                return Err(Error::invalid(format!("{name}: {addr:?} is not host:port")));
            }
        }
        if self.max_connections == 0 {
            return Err(Error::invalid("max_connections: 1 or more"));
        }
        self.engine().validate()
    }

    /// The part that the library needs.
    pub fn engine(&self) -> EngineConfig {
        EngineConfig {
            cluster: self.cluster.clone(),
            cache_bytes: self.cache_bytes,
            coalesce: self.coalesce,
            default_deadline: Duration::from_millis(self.default_deadline_ms),
        }
    }
}

impl EngineConfig {
    pub fn new(cluster: ClusterConfig) -> Self {
        Self {
            cluster,
            cache_bytes: CACHE_BYTES_DEFAULT,
            coalesce: true,
            default_deadline: Duration::from_millis(DEADLINE_MS_DEFAULT),
        }
    }

    pub fn validate(&self) -> Result<()> {
        if self.default_deadline.is_zero() || self.default_deadline > Duration::from_secs(3600) {
            return Err(Error::invalid("default_deadline_ms: 1 to 3600000"));
        }
        self.cluster.validate()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINIMAL: &str = r#"{
        "id": 1, "grpc": "127.0.0.1:7000",
        "cluster": {
            "id": "c", "partitions": 4,
            "memtable": [{"id": 1, "addr": "m:1"}], "sstable": [{"id": 1, "addr": "s:1"}]
        }
    }"#;

    fn minimal() -> PNodeConfig {
        serde_json::from_str(MINIMAL).unwrap()
    }

    #[test]
    fn everything_but_identity_cluster_and_address_has_a_default() {
        let config = minimal();
        config.validate().unwrap();
        assert_eq!(config, PNodeConfig::new(NodeId(1), config.cluster.clone(), "127.0.0.1:7000"));
        assert!(config.coalesce && config.cache_bytes > 0);
    }

    #[test]
    fn unknown_fields_and_nonsense_are_reported() {
        let unknown = MINIMAL.replace("\"id\": 1, \"grpc\"", "\"cache_size\": 1, \"id\": 1, \"grpc\"");
        assert!(serde_json::from_str::<PNodeConfig>(&unknown).is_err());
        for change in [
            |c: &mut PNodeConfig| c.id = NodeId(0),
            |c: &mut PNodeConfig| c.grpc = "7000".into(),
            |c: &mut PNodeConfig| c.resp = Some("6379".into()),
            |c: &mut PNodeConfig| c.default_deadline_ms = 0,
            |c: &mut PNodeConfig| c.max_connections = 0,
            |c: &mut PNodeConfig| c.cluster.partitions = 0,
        ] {
            let mut config = minimal();
            change(&mut config);
            assert!(config.validate().is_err(), "{config:?}");
        }
    }
}
