//! The status on one page: leaders, positions, memtables, tables and their replicas, leases, servers.

mod columns;
mod document;
#[cfg(test)]
mod tests;

use std::fmt::Write;

use self::columns::{bytes, put_rows, row, seconds};
pub use self::document::Cluster;
use self::document::TableMemtables;

impl Cluster {
    pub fn summary(&self) -> String {
        let mut out = String::new();
        let _ = writeln!(out, "cluster {}", self.pnode.cluster);
        self.put_format(&mut out);
        self.put_draining(&mut out);
        self.put_partitions(&mut out);
        self.put_tables(&mut out);
        self.put_leases(&mut out);
        self.put_servers(&mut out);
        self.put_attention(&mut out);
        out
    }

    /// The lowest of the partitions, and what it could be.
    fn put_format(&self, out: &mut String) {
        let formats = self.leaders().into_values().map(|(_, replica)| replica.configuration.format);
        let Some(format) = formats.min() else { return };
        let reads: Vec<(u64, Option<u32>)> =
            self.memtable.iter().map(|s| (s.id, s.status.as_ref().map(|s| s.format_max))).collect();
        let most = reads.iter().filter_map(|(_, reads)| *reads).max().unwrap_or(0);
        let _ = write!(out, "format {format}");
        if most > format {
            let hinders = reads.iter().find(|(_, reads)| reads.is_none_or(|reads| reads < most));
            let _ = match hinders {
                None => write!(out, ", {most} is possible: sextant admin raise-format"),
                Some((id, None)) => write!(out, "; what memtable server {id} reads is not known"),
                Some((id, Some(reads))) => {
                    write!(out, "; memtable server {id} reads formats up to {reads}, others {most}")
                }
            };
        }
        out.push('\n');
    }

    /// Also servers that are no more: one that gets such an id again gets no tables.
    fn put_draining(&self, out: &mut String) {
        let draining: Vec<String> = self.draining().iter().map(u64::to_string).collect();
        if !draining.is_empty() {
            let _ = writeln!(out, "sstable servers that are to be empty: {}", draining.join(", "));
        }
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
            "for a key",
            "columns",
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
                    table.most_for_a_key.to_string(),
                    table.columns.to_string(),
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

    /// What an operator should know: why writes are slowed or refused, why flushes fail, which tables are damaged, or were, and which
    /// server gets none.
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
        let draining = self.draining();
        for server in &self.sstable {
            let Some(status) = &server.status else { continue };
            if draining.contains(&server.id) {
                let (id, tables) = (server.id, status.tables);
                lines.push(format!(
                    "sstable {id}: it is to be empty ({tables} tables left): if it is not, sextant admin drain --none"
                ));
            }
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
