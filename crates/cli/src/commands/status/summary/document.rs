//! The part of the status document that is shown.
//!
//! A field that is missing counts as 0 or empty, so that a newer or older server is shown as well as possible.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Cluster {
    pub pnode: PNode,
    pub memtable: Vec<Server<Memtable>>,
    pub sstable: Vec<Server<Sstable>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct PNode {
    pub cluster: String,
    pub partitions: Vec<Routed>,
}

/// A partition as the p-node sees it.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Routed {
    pub partition: u32,
    pub leader: Option<u64>,
    pub epoch: Option<String>,
    pub serial: Option<u64>,
    pub manifest_version: u64,
    pub lease_left_ms: Option<u64>,
    pub leased: bool,
}

#[derive(Debug, Deserialize)]
pub struct Server<S> {
    pub id: u64,
    pub addr: String,
    pub status: Option<S>,
    pub error: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Memtable {
    pub partitions: Vec<Replica>,
    pub log: Log,
    pub uptime_seconds: f64,
    /// The newest format of a partition that it can read.
    pub format_max: u32,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Log {
    pub bytes: u64,
    pub fsyncs: u64,
    pub failed: bool,
}

/// A partition as one of its replicas sees it.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Replica {
    pub partition: u32,
    pub role: String,
    pub serving: bool,
    pub term: u64,
    pub epoch: Option<String>,
    pub last_index: u64,
    pub committed_index: u64,
    pub published_index: u64,
    pub published_seq: u64,
    pub manifest_version: u64,
    pub configuration: Configuration,
    pub lease_holders: u64,
    pub leases_live: u64,
    pub unflushed_bytes: u64,
    pub memory_bytes: u64,
    pub writes: String,
    pub writes_why: Option<String>,
    pub memtables: Vec<TableMemtables>,
    pub tables: Vec<Table>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Configuration {
    pub format: u32,
    /// sstable servers that are to hold no tables.
    pub draining: Vec<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct TableMemtables {
    pub table: u32,
    pub active_bytes: u64,
    pub active_entries: u64,
    pub frozen: u64,
    pub frozen_bytes: u64,
    pub flush_error: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Table {
    pub table: u32,
    pub name: String,
    /// Ranges of keys that the SSTables cut it into.
    pub columns: usize,
    /// SSTables that answer for one key.
    pub most_for_a_key: usize,
    pub sstables: Vec<Sst>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Sst {
    pub id: String,
    pub records: u64,
    pub tombstones: u64,
    pub bytes: u64,
    pub replicas: Vec<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Sstable {
    pub tables: u64,
    pub table_bytes: u64,
    pub damaged_tables: u64,
    pub damage: Vec<Damage>,
    pub repaired_tables: u64,
    pub repaired: Vec<Damage>,
    pub uptime_s: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Damage {
    pub error: String,
}

impl Cluster {
    /// The replica that leads each partition, and the server that it is on. If two claim it, the one of the newer term.
    pub fn leaders(&self) -> BTreeMap<u32, (u64, &Replica)> {
        let mut leaders: BTreeMap<u32, (u64, &Replica)> = BTreeMap::new();
        for server in &self.memtable {
            for replica in server.status.iter().flat_map(|s| &s.partitions) {
                let older =
                    leaders.get(&replica.partition).is_none_or(|(_, known)| known.term < replica.term);
                if replica.role == "leader" && older {
                    leaders.insert(replica.partition, (server.id, replica));
                }
            }
        }
        leaders
    }

    /// sstable servers that are to hold no tables, of any partition.
    pub fn draining(&self) -> BTreeSet<u64> {
        self.leaders().values().flat_map(|(_, replica)| replica.configuration.draining.clone()).collect()
    }
}

impl<S> Server<S> {
    /// A row that says why it is not known.
    pub fn down(&self, name: String) -> Vec<String> {
        let why = self.error.clone().unwrap_or_else(|| "no answer".into());
        vec![name, self.addr.clone(), "DOWN".into(), why]
    }
}
