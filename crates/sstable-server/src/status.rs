//! The status document: JSON for people and tools.

use std::collections::BTreeMap;

use serde::Serialize;
use sextant_environment::clock::WallReading;

use crate::store::Store;
use crate::table::budget::Kind;

/// Damaged tables that are named; the number is always right.
const DAMAGED_NAMED_MAX: usize = 100;

#[derive(Serialize)]
struct Status {
    role: &'static str,
    version: &'static str,
    wall: WallReading,
    node: u64,
    cluster: String,
    uptime_s: u64,
    tables: usize,
    table_bytes: u64,
    /// What open tables keep in memory, whatever the budget is.
    pinned_bytes: u64,
    memory: MemoryStatus,
    tables_by_partition: BTreeMap<u32, usize>,
    damaged_tables: usize,
    damaged: Vec<String>,
    /// What is wrong with them.
    damage: Vec<Damage>,
    /// Since the start.
    repaired_tables: u64,
    /// The newest of them, and what had been wrong.
    repaired: Vec<Damage>,
    block_cache: CacheStatus,
    running: Running,
    done: Done,
}

#[derive(Serialize)]
struct Damage {
    table: String,
    /// Names the offset, as far as it is known.
    error: String,
}

#[derive(Serialize)]
struct CacheStatus {
    used_bytes: u64,
    capacity_bytes: u64,
    hits: u64,
    misses: u64,
}

/// Bytes in memory, and how many there may be.
#[derive(Serialize)]
struct MemoryStatus {
    limit_bytes: u64,
    cache_limit_bytes: u64,
    job_limit_bytes: u64,
    block_bytes: u64,
    index_bytes: u64,
    filter_bytes: u64,
    dictionary_bytes: u64,
    table_bytes: u64,
    job_bytes: u64,
}

/// What is under way now.
#[derive(Serialize)]
struct Running {
    disk_reads: usize,
    ingests: usize,
    compactions: usize,
    copies: usize,
    fetches: usize,
}

/// Counted since the start.
#[derive(Serialize)]
struct Done {
    gets: u64,
    scans: u64,
    ingests: u64,
    compactions: u64,
    copies: u64,
    deleted_tables: u64,
    scrubbed_bytes: u64,
}

impl Store {
    fn memory_status(&self) -> MemoryStatus {
        let (memory, cache) = (self.config.memory(), self.catalog.cache());
        MemoryStatus {
            limit_bytes: memory.total,
            cache_limit_bytes: memory.cache,
            job_limit_bytes: memory.jobs,
            block_bytes: cache.block_bytes(),
            index_bytes: cache.section_bytes(Kind::Index),
            filter_bytes: cache.section_bytes(Kind::Filter),
            dictionary_bytes: cache.section_bytes(Kind::Dictionary),
            table_bytes: cache.section_bytes(Kind::Table),
            job_bytes: self.jobs.held_bytes() as u64,
        }
    }

    pub fn status_json(&self) -> String {
        let (mut table_bytes, mut pinned_bytes, mut damaged_tables) = (0, 0, 0);
        let (mut tables_by_partition, mut damaged) = (BTreeMap::new(), Vec::new());
        let mut damage = Vec::new();
        let ids = self.catalog.ids();
        for id in &ids {
            let Some(entry) = self.catalog.get(*id) else { continue };
            *tables_by_partition.entry(id.partition.0).or_insert(0) += 1;
            table_bytes += entry.file_bytes();
            pinned_bytes += entry.table().map_or(0, |t| t.pinned_bytes());
            if let Some(error) = entry.damage() {
                damaged_tables += 1;
                if damaged.len() < DAMAGED_NAMED_MAX {
                    damaged.push(id.to_string());
                    damage.push(Damage { table: id.to_string(), error: error.to_owned() });
                }
            }
        }
        let m = &self.metrics;
        let repairs = self.catalog.repairs();
        let repaired =
            repairs.newest.into_iter().map(|r| Damage { table: r.id.to_string(), error: r.damage });
        let status = Status {
            role: "sstable-server",
            version: env!("CARGO_PKG_VERSION"),
            wall: WallReading::of(&*self.env.clock),
            node: self.config.id.0,
            cluster: self.config.cluster.id.clone(),
            uptime_s: self.elapsed_ns(self.started_ns) / 1_000_000_000,
            tables: ids.len(),
            table_bytes,
            pinned_bytes,
            memory: self.memory_status(),
            tables_by_partition,
            damaged_tables,
            damaged,
            damage,
            repaired_tables: repairs.count,
            repaired: repaired.collect(),
            block_cache: CacheStatus {
                used_bytes: self.catalog.cache().used_bytes(),
                capacity_bytes: self.catalog.cache().capacity_bytes(),
                hits: m.block_hits.get(),
                misses: m.block_misses.get(),
            },
            running: Running {
                disk_reads: self.disk_reads.running(),
                ingests: self.ingests.running(),
                compactions: self.compactions.running(),
                copies: self.copies.running(),
                fetches: self.fetches.running(),
            },
            done: Done {
                gets: m.gets.get(),
                scans: m.scans.get(),
                ingests: m.ingest.done(),
                compactions: m.compact.done(),
                copies: m.copy.done(),
                deleted_tables: m.deleted.get(),
                scrubbed_bytes: m.scrubbed_bytes.get(),
            },
        };
        serde_json::to_string_pretty(&status).unwrap_or_else(|e| format!("{{\"error\":\"{e}\"}}"))
    }
}
