//! The status on one page: leaders, positions, memtables, tables and their replicas, leases, servers.
//!
//! Reads the part of the document that it shows; a field that is missing counts as 0 or empty, so that a newer or older
//! server is shown as well as possible.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::Deserialize;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Cluster {
    pnode: PNode,
    memtable: Vec<Server<Memtable>>,
    sstable: Vec<Server<Sstable>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct PNode {
    cluster: String,
    partitions: Vec<Routed>,
}

/// A partition as the p-node sees it.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Routed {
    partition: u32,
    leader: Option<u64>,
    epoch: Option<String>,
    serial: Option<u64>,
    manifest_version: u64,
    lease_left_ms: Option<u64>,
    leased: bool,
}

#[derive(Debug, Deserialize)]
struct Server<S> {
    id: u64,
    addr: String,
    status: Option<S>,
    error: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Memtable {
    partitions: Vec<Replica>,
    log: Log,
    uptime_seconds: f64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Log {
    bytes: u64,
    fsyncs: u64,
    failed: bool,
}

/// A partition as one of its replicas sees it.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Replica {
    partition: u32,
    role: String,
    serving: bool,
    term: u64,
    epoch: Option<String>,
    last_index: u64,
    committed_index: u64,
    published_index: u64,
    published_seq: u64,
    manifest_version: u64,
    lease_holders: u64,
    leases_live: u64,
    unflushed_bytes: u64,
    memory_bytes: u64,
    writes: String,
    writes_why: Option<String>,
    memtables: Vec<TableMemtables>,
    tables: Vec<Table>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct TableMemtables {
    table: u32,
    active_bytes: u64,
    active_entries: u64,
    frozen: u64,
    frozen_bytes: u64,
    flush_error: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Table {
    table: u32,
    name: String,
    sstables: Vec<Sst>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Sst {
    id: String,
    records: u64,
    tombstones: u64,
    bytes: u64,
    replicas: Vec<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Sstable {
    tables: u64,
    table_bytes: u64,
    damaged_tables: u64,
    damage: Vec<Damage>,
    repaired_tables: u64,
    repaired: Vec<Damage>,
    uptime_s: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Damage {
    error: String,
}

impl Cluster {
    pub fn summary(&self) -> String {
        let mut out = String::new();
        let _ = writeln!(out, "cluster {}", self.pnode.cluster);
        self.put_partitions(&mut out);
        self.put_tables(&mut out);
        self.put_leases(&mut out);
        self.put_servers(&mut out);
        self.put_attention(&mut out);
        out
    }

    /// The replica that leads each partition, and the server that it is on. If two claim it, the one of the newer term.
    fn leaders(&self) -> BTreeMap<u32, (u64, &Replica)> {
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

    fn put_partitions(&self, out: &mut String) {
        let mut rows = vec![row([
            "partition",
            "leader",
            "term",
            "serving",
            "last",
            "committed",
            "published",
            "seq",
            "manifest",
            "unflushed",
            "leases",
            "replicas",
        ])];
        let leaders = self.leaders();
        for routed in &self.pnode.partitions {
            let up = self.memtable.iter().flat_map(|s| s.status.iter().flat_map(|s| &s.partitions));
            let replicas = up.filter(|r| r.partition == routed.partition).count();
            let replicas = format!("{replicas}/{}", self.memtable.len());
            rows.push(match leaders.get(&routed.partition) {
                None => {
                    let mut cells = row([""; 12]);
                    cells[0] = routed.partition.to_string();
                    cells[1] = "none".into();
                    cells[11] = replicas;
                    cells
                }
                Some((server, r)) => vec![
                    r.partition.to_string(),
                    server.to_string(),
                    r.term.to_string(),
                    if r.serving { "yes" } else { "no" }.into(),
                    r.last_index.to_string(),
                    r.committed_index.to_string(),
                    r.published_index.to_string(),
                    r.published_seq.to_string(),
                    r.manifest_version.to_string(),
                    match r.memory_bytes {
                        0 => bytes(r.unflushed_bytes),
                        most => format!("{} of {}", bytes(r.unflushed_bytes), bytes(most)),
                    },
                    format!("{}/{}", r.leases_live, r.lease_holders),
                    replicas,
                ],
            });
        }
        put_rows(out, &rows);
    }

    fn put_tables(&self, out: &mut String) {
        let mut rows = vec![row([
            "table",
            "partition",
            "memtable",
            "entries",
            "frozen",
            "sstables",
            "records",
            "bytes",
        ])];
        let mut ssts = vec![row(["sstable", "table", "records", "tombstones", "bytes", "on servers"])];
        for (_, replica) in self.leaders().values() {
            for table in &replica.tables {
                let none = TableMemtables::default();
                let memory = replica.memtables.iter().find(|m| m.table == table.table).unwrap_or(&none);
                rows.push(vec![
                    table.name.clone(),
                    replica.partition.to_string(),
                    bytes(memory.active_bytes),
                    memory.active_entries.to_string(),
                    format!("{} ({})", memory.frozen, bytes(memory.frozen_bytes)),
                    table.sstables.len().to_string(),
                    table.sstables.iter().map(|s| s.records).sum::<u64>().to_string(),
                    bytes(table.sstables.iter().map(|s| s.bytes).sum()),
                ]);
                for sst in &table.sstables {
                    let replicas: Vec<String> = sst.replicas.iter().map(u64::to_string).collect();
                    ssts.push(vec![
                        sst.id.clone(),
                        table.name.clone(),
                        sst.records.to_string(),
                        sst.tombstones.to_string(),
                        bytes(sst.bytes),
                        replicas.join(" "),
                    ]);
                }
            }
        }
        for rows in [rows, ssts] {
            if rows.len() > 1 {
                out.push('\n');
                put_rows(out, &rows);
            }
        }
    }

    fn put_leases(&self, out: &mut String) {
        out.push('\n');
        let mut rows = vec![row(["this p-node", "leader", "lease", "epoch", "serial", "manifest"])];
        for p in &self.pnode.partitions {
            rows.push(vec![
                format!("partition {}", p.partition),
                p.leader.map_or("unknown".into(), |l| l.to_string()),
                match p.lease_left_ms {
                    Some(left) if p.leased => format!("{left} ms left"),
                    _ => "none".into(),
                },
                p.epoch.clone().unwrap_or_else(|| "-".into()),
                p.serial.map_or("-".into(), |s| s.to_string()),
                p.manifest_version.to_string(),
            ]);
        }
        put_rows(out, &rows);
    }

    fn put_servers(&self, out: &mut String) {
        out.push('\n');
        let mut rows = vec![row(["server", "address", "up", "state"])];
        for server in &self.memtable {
            let name = format!("memtable {}", server.id);
            rows.push(match &server.status {
                Some(s) => vec![
                    name,
                    server.addr.clone(),
                    seconds(s.uptime_seconds as u64),
                    format!(
                        "log {}, {} fsyncs{}",
                        bytes(s.log.bytes),
                        s.log.fsyncs,
                        if s.log.failed { ", FAILED" } else { "" }
                    ),
                ],
                None => server.down(name),
            });
        }
        for server in &self.sstable {
            let name = format!("sstable {}", server.id);
            rows.push(match &server.status {
                Some(s) => vec![
                    name,
                    server.addr.clone(),
                    seconds(s.uptime_s),
                    format!(
                        "{} tables, {}, {} damaged, {} repaired",
                        s.tables,
                        bytes(s.table_bytes),
                        s.damaged_tables,
                        s.repaired_tables
                    ),
                ],
                None => server.down(name),
            });
        }
        put_rows(out, &rows);
    }

    /// What an operator should know: why writes are slowed or refused, why flushes fail, which tables are damaged, or were.
    fn put_attention(&self, out: &mut String) {
        let mut lines = Vec::new();
        for (_, replica) in self.leaders().values() {
            if let Some(why) = &replica.writes_why {
                lines.push(format!("partition {}: writes are {}: {why}", replica.partition, replica.writes));
                continue;
            }
            for table in &replica.memtables {
                if let Some(error) = &table.flush_error {
                    let known = replica.tables.iter().find(|t| t.table == table.table);
                    let name = known.map_or("?", |t| &t.name);
                    lines.push(format!("partition {}: flush of {name} failed: {error}", replica.partition));
                }
            }
        }
        for server in &self.sstable {
            let Some(status) = &server.status else { continue };
            for (what, found) in [("damaged", &status.damage), ("repaired", &status.repaired)] {
                lines.extend(found.iter().map(|d| format!("sstable {}: {what}: {}", server.id, d.error)));
            }
        }
        if !lines.is_empty() {
            out.push_str("\nattention\n");
            lines.iter().for_each(|line| {
                let _ = writeln!(out, "  {line}");
            });
        }
    }
}

impl<S> Server<S> {
    fn down(&self, name: String) -> Vec<String> {
        let why = self.error.clone().unwrap_or_else(|| "no answer".into());
        vec![name, self.addr.clone(), "DOWN".into(), why]
    }
}

fn row<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.map(str::to_owned).into()
}

/// Columns as wide as their widest cell.
fn put_rows(out: &mut String, rows: &[Vec<String>]) {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width =
        |c: usize| rows.iter().filter_map(|r| r.get(c)).map(|cell| cell.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            let _ = write!(line, "{cell:<width$}  ");
        }
        let _ = writeln!(out, "{}", line.trim_end());
    }
}

fn bytes(n: u64) -> String {
    match n {
        0..1_000 => format!("{n} B"),
        1_000..1_000_000 => format!("{:.1} kB", n as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", n as f64 / 1e6),
        _ => format!("{:.2} GB", n as f64 / 1e9),
    }
}

fn seconds(s: u64) -> String {
    match s {
        0..120 => format!("{s} s"),
        120..7200 => format!("{} min", s / 60),
        7200..172_800 => format!("{} h", s / 3600),
        _ => format!("{} d", s / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster() -> Cluster {
        let replica = |role: &str, term: u64| {
            serde_json::json!({
                "partition": 0, "role": role, "serving": role == "leader", "term": term, "epoch": "2.1",
                "last_index": 181, "committed_index": 180, "published_index": 179, "published_seq": 1011,
                "manifest_version": 3, "lease_holders": 2, "leases_live": 1, "unflushed_bytes": 1500,
                "memory_bytes": 2000, "writes": "slowed", "writes_why": "flushing does not keep up",
                "memtables": [{"table": 1, "active_bytes": 1500, "active_entries": 12, "frozen": 0, "frozen_bytes": 0}],
                "tables": [{"table": 1, "name": "default", "sstables": [
                    {"id": "p0-2-179-2.1-7", "records": 1010, "tombstones": 3, "bytes": 1057620, "replicas": [1, 3, 2]}
                ]}],
                "something_new": {}
            })
        };
        let document = serde_json::json!({
            "pnode": {"cluster": "c", "partitions": [
                {"partition": 0, "leader": 2, "epoch": "2.1", "serial": 9, "manifest_version": 3, "lease_left_ms": 255, "leased": true},
                {"partition": 1, "leader": null, "leased": false}
            ]},
            "memtable": [
                {"id": 1, "addr": "a:1", "error": null, "status": {"partitions": [replica("leader", 1)]}},
                {"id": 2, "addr": "a:2", "error": null, "status": {"partitions": [replica("leader", 2)], "uptime_seconds": 3.5}},
                {"id": 3, "addr": "a:3", "error": "no answer in time", "status": null}
            ],
            "sstable": [{"id": 1, "addr": "b:1", "error": null, "status": {
                "tables": 4, "table_bytes": 2000000, "damaged_tables": 1, "damage": [{"table": "p0", "error": "SSTable p0: offset 7: x"}]
            }}]
        });
        serde_json::from_value(document).unwrap()
    }

    #[test]
    fn one_page_says_who_leads_what_is_where_and_who_is_down() {
        let text = cluster().summary();
        let line = |start: &str| {
            let found = text.lines().find(|l| l.starts_with(start));
            found
                .unwrap_or_else(|| panic!("no line {start:?} in:\n{text}"))
                .split_whitespace()
                .collect::<Vec<_>>()
        };
        assert_eq!(
            line("0 "),
            [
                "0", "2", "2", "yes", "181", "180", "179", "1011", "3", "1.5", "kB", "of", "2.0", "kB",
                "1/2", "2/3"
            ],
            "the leader of the newer term is server 2"
        );
        assert_eq!(line("1 "), ["1", "none", "0/3"]);
        assert_eq!(
            line("default"),
            ["default", "0", "1.5", "kB", "12", "0", "(0", "B)", "1", "1010", "1.1", "MB"]
        );
        assert_eq!(line("p0-2"), ["p0-2-179-2.1-7", "default", "1010", "3", "1.1", "MB", "1", "3", "2"]);
        assert!(line("partition 0").contains(&"255"));
        assert!(line("partition 1").contains(&"unknown"));
        assert_eq!(line("memtable 3"), ["memtable", "3", "a:3", "DOWN", "no", "answer", "in", "time"]);
        assert_eq!(
            line("sstable 1")[4..],
            ["s", "4", "tables,", "2.0", "MB,", "1", "damaged,", "0", "repaired"]
        );
        assert_eq!(
            line("  partition 0").join(" "),
            "partition 0: writes are slowed: flushing does not keep up"
        );
        assert_eq!(line("  sstable 1").join(" "), "sstable 1: damaged: SSTable p0: offset 7: x");
    }
}
