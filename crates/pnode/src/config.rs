//! Configuration of a p-node.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sextant_access::{AccessConfig, LimitsConfig};
use sextant_common::ids::NodeId;
use sextant_common::{Error, Result};
use sextant_environment::clock::WallSource;
use sextant_environment::config::{ClusterConfig, FileMode, TlsConfig, UnixListen, check_listens, host_port};
use sextant_resp::{Order, TCP_KEEPALIVE_S_DEFAULT};

/// Default size of the record cache.
const CACHE_BYTES_DEFAULT: u64 = 256 * 1024 * 1024;
/// Default deadline of an operation: several elections long.
const DEADLINE_MS_DEFAULT: u64 = 5_000;
/// Default threshold of the slow log: longer than a disk that is well takes, shorter than an election.
const SLOW_MS_DEFAULT: u64 = 100;
/// Default bound on client connections of each front end.
const CONNECTIONS_DEFAULT: usize = 10_000;

/// So far above the port of `grpc` administration listens if nothing else is said (below it where there is no port above).
pub const ADMIN_PORT_OFFSET: u16 = 1000;
/// Default bound on the bytes of long requests, and of long replies: eight values of the largest size.
const LARGE_BYTES_DEFAULT: usize = 64 * 1024 * 1024;
/// Default bound on commands under way: twice what the sessions of two partitions can have outstanding.
const COMMANDS_DEFAULT: usize = 1024;

/// A p-node as a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PNodeConfig {
    /// Names it in logs and certificates; 1 or more. Several p-nodes may have the same.
    pub id: NodeId,
    pub cluster: ClusterConfig,
    /// `host:port` of the gRPC service Kv.
    pub grpc: String,
    /// `host:port` of the gRPC service Admin; none: on loopback, [`ADMIN_PORT_OFFSET`] above the port of `grpc`. Whoever reaches it
    /// may change the cluster.
    #[serde(default)]
    pub admin: Option<String>,
    /// `host:port` of the RESP front end; none: off.
    #[serde(default)]
    pub resp: Option<String>,
    /// Path of a Unix socket for gRPC as well, for clients on this machine; none: off. It is not encrypted, whatever `tls` says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grpc_unix: Option<PathBuf>,
    /// Path of a Unix socket for RESP; none: off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resp_unix: Option<PathBuf>,
    /// Permissions of both, in octal: who may write to the file may connect, "0600" (only the p-node's own user) by default.
    #[serde(default)]
    pub unix_mode: FileMode,
    /// `host:port` of metrics, health and status; none: off.
    #[serde(default)]
    pub http: Option<String>,
    /// Size of the cache in bytes: records, and (a sixteenth of it) replies to reads of objects; 0: off.
    #[serde(default = "cache_bytes_default")]
    pub cache_bytes: u64,
    /// Which answers of leaders are kept, in the record cache: "off", "second" (those to keys that are asked for again), "every".
    #[serde(default)]
    pub register_reads: RegisterReads,
    /// Whether concurrent requests to one server travel in one message. Off only for measurement.
    #[serde(default = "yes")]
    pub coalesce: bool,
    /// Deadline of operations that state none, in milliseconds.
    #[serde(default = "deadline_ms_default")]
    pub default_deadline_ms: u64,
    /// Most client connections of each front end. Beyond it RESP refuses, and gRPC lets wait.
    #[serde(default = "connections_default")]
    pub max_connections: usize,
    /// Bytes of long requests (over 64 KiB) that may be in memory at a time, of all front ends: RESP takes the room before such
    /// a request is read, and until then it waits in its socket.
    #[serde(default = "large_bytes_default")]
    pub large_bytes_max: usize,
    /// Bytes of long replies (over 64 KiB) that may wait for their RESP clients; further ones are answered `TRYAGAIN`. And as many of
    /// long answers of short values that may wait for gRPC clients; further ones are refused (overloaded).
    #[serde(default = "large_bytes_default")]
    pub reply_bytes_max: usize,
    /// Bytes of large values (over 64 KiB) that may be on their way from the servers or held for their readers at a time, of all
    /// front ends; further reads of such wait until their deadline and are then refused (`TRYAGAIN`).
    #[serde(default = "large_bytes_default")]
    pub read_bytes_max: usize,
    /// RESP commands of pipelines that may be under way at a time, of all connections; further ones wait in their sockets. As many again
    /// are for connections that have nothing under way.
    #[serde(default = "commands_default")]
    pub commands_max: usize,
    /// Threads that serve the RESP front end; 0: by cores, one up to three, then one for two. One that is alone is the p-node's own,
    /// so that what asks a server is handed to no other thread.
    #[serde(default)]
    pub resp_threads: usize,
    /// In which order the commands of a RESP pipeline take effect: by `keys`, or as in the `pipeline`. A connection may ask for the other
    /// (`CLIENT ORDER`).
    #[serde(default)]
    pub resp_order: Order,
    /// A RESP client that has sent nothing for so many seconds is asked whether it is still there, and after as long again its connection
    /// fails. 0: it is not asked. (gRPC's connections ask every few seconds.)
    #[serde(default = "tcp_keepalive_s_default")]
    pub tcp_keepalive_s: u64,
    /// What takes a client so many milliseconds is told in the log, with where the time went, and is in `SLOWLOG`; 0: nothing is.
    #[serde(default = "slow_ms_default")]
    pub slow_ms: u64,
    /// Where the bound on the wall clock's error comes from. For whoever builds the [`sextant_environment::Env`]; the default (no
    /// bound) is always safe.
    #[serde(default)]
    pub clock: WallSource,
    /// Certificates; without, connections are not encrypted. For whoever builds the [`sextant_environment::Env`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<TlsConfig>,
    /// What each user may take of this p-node; none by default.
    #[serde(default)]
    pub limits: LimitsConfig,
    /// Users and their rights; without, whoever comes in may do everything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub access: Option<AccessConfig>,
}

/// Which answers of leaders a p-node keeps until their keys are written to (it asks them to be registered).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RegisterReads {
    Off,
    /// Of keys that are asked for a second time.
    #[default]
    Second,
    Every,
}

/// A p-node as a library: no listeners.
#[derive(Clone, Debug)]
pub struct LibraryConfig {
    /// How servers know this p-node; 0: one of the embedded ones.
    pub id: NodeId,
    pub cluster: ClusterConfig,
    /// 0: off.
    pub cache_bytes: u64,
    pub register_reads: RegisterReads,
    pub coalesce: bool,
    pub default_deadline: Duration,
    /// Bytes of large values that may be on their way or held for their readers.
    pub read_bytes_max: usize,
}

fn slow_ms_default() -> u64 {
    SLOW_MS_DEFAULT
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
fn large_bytes_default() -> usize {
    LARGE_BYTES_DEFAULT
}
fn commands_default() -> usize {
    COMMANDS_DEFAULT
}
fn tcp_keepalive_s_default() -> u64 {
    TCP_KEEPALIVE_S_DEFAULT
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
            admin: None,
            resp: None,
            grpc_unix: None,
            resp_unix: None,
            unix_mode: FileMode::default(),
            http: None,
            cache_bytes: CACHE_BYTES_DEFAULT,
            register_reads: RegisterReads::default(),
            coalesce: true,
            default_deadline_ms: DEADLINE_MS_DEFAULT,
            max_connections: CONNECTIONS_DEFAULT,
            large_bytes_max: LARGE_BYTES_DEFAULT,
            reply_bytes_max: LARGE_BYTES_DEFAULT,
            read_bytes_max: LARGE_BYTES_DEFAULT,
            commands_max: COMMANDS_DEFAULT,
            resp_threads: 0,
            resp_order: Order::Keys,
            tcp_keepalive_s: TCP_KEEPALIVE_S_DEFAULT,
            slow_ms: SLOW_MS_DEFAULT,
            clock: WallSource::default(),
            tls: None,
            limits: LimitsConfig::default(),
            access: None,
        }
    }

    pub fn validate(&self) -> Result<()> {
        if self.id.0 == 0 {
            return Err(Error::invalid("id: 1 or more"));
        }
        let named = [
            ("grpc", Some(&self.grpc)),
            ("admin", self.admin.as_ref()),
            ("resp", self.resp.as_ref()),
            ("http", self.http.as_ref()),
        ];
        for (name, addr) in named {
            if let Some(addr) = addr {
                check_listens(name, addr)?;
            }
        }
        for (name, listen) in
            [("grpc_unix", self.unix(&self.grpc_unix)), ("resp_unix", self.unix(&self.resp_unix))]
        {
            if let Some(listen) = listen {
                listen.check(name)?;
            }
        }
        if self.grpc_unix.is_some() && self.grpc_unix == self.resp_unix {
            return Err(Error::invalid("grpc_unix and resp_unix: one socket cannot be both"));
        }
        if self.max_connections == 0 {
            return Err(Error::invalid("max_connections: 1 or more"));
        }
        if self.large_bytes_max == 0 || self.reply_bytes_max == 0 || self.commands_max == 0 {
            return Err(Error::invalid("large_bytes_max, reply_bytes_max, commands_max: 1 or more"));
        }
        self.limits.validate()?;
        if let Some(access) = &self.access {
            access.validate()?;
        }
        self.library().validate()
    }

    /// Where administration listens. (Port 0 as the port of `grpc` stays what it is: any free one.)
    pub fn admin_addr(&self) -> String {
        let derived = || {
            let port = host_port(&self.grpc).map_or(0, |(_, port)| port);
            let above = port.checked_add(ADMIN_PORT_OFFSET).unwrap_or_else(|| port - ADMIN_PORT_OFFSET);
            format!("127.0.0.1:{}", if port == 0 { 0 } else { above })
        };
        self.admin.clone().unwrap_or_else(derived)
    }

    /// The Unix socket for gRPC.
    pub fn grpc_unix(&self) -> Option<UnixListen> {
        self.unix(&self.grpc_unix)
    }

    fn unix(&self, path: &Option<PathBuf>) -> Option<UnixListen> {
        let path = path.clone()?;
        Some(UnixListen { path, mode: self.unix_mode })
    }

    /// Of `cache_bytes`, for replies to reads of objects.
    pub fn remembered_bytes(&self) -> u64 {
        const PART: u64 = 16;
        if self.resp.is_some() || self.resp_unix.is_some() { self.cache_bytes / PART } else { 0 }
    }

    /// The part that the library needs.
    pub fn library(&self) -> LibraryConfig {
        LibraryConfig {
            id: self.id,
            cluster: self.cluster.clone(),
            cache_bytes: self.cache_bytes - self.remembered_bytes(),
            register_reads: self.register_reads,
            coalesce: self.coalesce,
            default_deadline: Duration::from_millis(self.default_deadline_ms),
            read_bytes_max: self.read_bytes_max,
        }
    }
}

impl LibraryConfig {
    pub fn new(cluster: ClusterConfig) -> Self {
        Self {
            id: NodeId(0),
            cluster,
            cache_bytes: CACHE_BYTES_DEFAULT,
            register_reads: RegisterReads::default(),
            coalesce: true,
            default_deadline: Duration::from_millis(DEADLINE_MS_DEFAULT),
            read_bytes_max: LARGE_BYTES_DEFAULT,
        }
    }

    pub fn validate(&self) -> Result<()> {
        if self.default_deadline.is_zero() || self.default_deadline > Duration::from_secs(3600) {
            return Err(Error::invalid("default_deadline_ms: 1 to 3600000"));
        }
        if self.read_bytes_max == 0 {
            return Err(Error::invalid("read_bytes_max: 1 or more"));
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
    fn administration_listens_on_loopback_unless_something_else_is_said() {
        let at = |grpc: &str| PNodeConfig { grpc: grpc.into(), ..minimal() }.admin_addr();
        assert_eq!(at("0.0.0.0:7400"), "127.0.0.1:8400");
        assert_eq!(at("[::]:65000"), "127.0.0.1:64000");
        assert_eq!(at("127.0.0.1:0"), "127.0.0.1:0");
        let said = PNodeConfig { admin: Some("10.0.0.7:9".into()), ..minimal() };
        assert_eq!(said.admin_addr(), "10.0.0.7:9");
    }

    #[test]
    fn unknown_fields_and_nonsense_are_reported() {
        let unknown = MINIMAL.replace("\"id\": 1, \"grpc\"", "\"cache_size\": 1, \"id\": 1, \"grpc\"");
        assert!(serde_json::from_str::<PNodeConfig>(&unknown).is_err());
        for change in [
            |c: &mut PNodeConfig| c.id = NodeId(0),
            |c: &mut PNodeConfig| c.grpc = "7000".into(),
            |c: &mut PNodeConfig| c.admin = Some("8400".into()),
            |c: &mut PNodeConfig| c.resp = Some("6379".into()),
            |c: &mut PNodeConfig| c.grpc_unix = Some("".into()),
            |c: &mut PNodeConfig| c.resp_unix = Some("x".repeat(200).into()),
            |c: &mut PNodeConfig| {
                c.resp_unix = Some("/run/s".into());
                c.grpc_unix = c.resp_unix.clone();
            },
            |c: &mut PNodeConfig| c.default_deadline_ms = 0,
            |c: &mut PNodeConfig| c.max_connections = 0,
            |c: &mut PNodeConfig| c.large_bytes_max = 0,
            |c: &mut PNodeConfig| c.commands_max = 0,
            |c: &mut PNodeConfig| c.cluster.partitions = 0,
        ] {
            let mut config = minimal();
            change(&mut config);
            assert!(config.validate().is_err(), "{config:?}");
        }
    }
}
