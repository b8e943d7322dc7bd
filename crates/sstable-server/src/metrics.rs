//! What the server counts. One registry per server.

use std::sync::{Arc, Weak};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

use sextant_environment::clock::OtherClocks;
use sextant_environment::latency::Latencies;

use crate::catalog::Catalog;
use crate::store::Store;
use crate::table::budget::Kind;
use crate::table::reader::Tally;

/// Label `outcome`: ok, or the kind of the error.
type Outcomes = Family<[(&'static str, &'static str); 1], Counter>;

/// Work that writes a table: how often, how it ended, how long it took, how much it wrote.
#[derive(Clone, Debug)]
pub struct JobMetrics {
    outcomes: Outcomes,
    seconds: Histogram,
    bytes: Counter,
}

impl JobMetrics {
    fn register(registry: &mut Registry, name: &str, what: &str) -> Self {
        let metrics = Self {
            outcomes: Outcomes::default(),
            // 1 ms to about 17 minutes.
            seconds: Histogram::new(exponential_buckets(0.001, 4.0, 11)),
            bytes: Counter::default(),
        };
        registry.register(
            name,
            format!("{what}, by outcome: ok, or the kind of the error"),
            metrics.outcomes.clone(),
        );
        let (seconds, bytes) = (format!("{name}_duration"), format!("{name}_written"));
        registry.register_with_unit(
            seconds,
            format!("{what}: time of each, well ended or not"),
            Unit::Seconds,
            metrics.seconds.clone(),
        );
        registry.register_with_unit(
            bytes,
            format!("{what}: bytes that were written by those that ended well"),
            Unit::Bytes,
            metrics.bytes.clone(),
        );
        metrics
    }

    /// `bytes` of the table that was written; the kind of the error otherwise.
    pub fn record(&self, outcome: Result<u64, &'static str>, elapsed_ns: u64) {
        let label = outcome.err().unwrap_or("ok");
        self.outcomes.get_or_create(&[("outcome", label)]).inc();
        self.seconds.observe(elapsed_ns as f64 / 1e9);
        self.bytes.inc_by(outcome.unwrap_or(0));
    }

    /// How many ended well.
    pub fn done(&self) -> u64 {
        self.outcomes.get_or_create(&[("outcome", "ok")]).get()
    }
}

#[derive(Clone, Debug)]
pub struct Metrics {
    pub gets: Counter,
    pub get_batches: Counter,
    /// From the arrival of a batch until its answer is made.
    pub get_batch_seconds: Latencies,
    /// Batches that had to wait for the disk.
    pub disk_batches: Counter,
    pub gone: Counter,
    pub corrupt: Counter,
    pub io_errors: Counter,
    pub scans: Counter,
    pub scanned_records: Counter,
    pub filtered: Counter,
    pub false_positives: Counter,
    pub block_hits: Counter,
    pub block_misses: Counter,
    pub index_hits: Counter,
    pub filter_hits: Counter,
    pub disk_bytes: Counter,
    pub ingest: JobMetrics,
    pub compact: JobMetrics,
    pub copy: JobMetrics,
    pub copies_resumed: Counter,
    pub deleted: Counter,
    pub scrubbed_bytes: Counter,
    pub scrub_failures: Counter,
    pub clocks: OtherClocks,
}

impl Metrics {
    pub fn register(registry: &mut Registry, catalog: Arc<Catalog>) -> Self {
        let clocks = OtherClocks::register(registry.sub_registry_with_prefix("sextant"));
        let registry = registry.sub_registry_with_prefix("sextant_sst");
        registry.register_collector(Box::new(CatalogCollector(catalog)));
        let mut counter = |name: &str, help: &str| {
            let counter = Counter::default();
            registry.register(name, help, counter.clone());
            counter
        };
        let gets = counter("gets", "Keys that p-nodes looked up");
        let get_batches = counter("get_batches", "Batches of gets, one message each");
        let disk_batches =
            counter("get_batches_from_disk", "Batches of gets of which a block was not cached");
        let gone = counter("gets_table_gone", "Gets that named a table which is not here");
        let corrupt = counter("gets_corrupt", "Gets that met damaged bytes");
        let io_errors = counter("gets_io_error", "Gets that failed because the disk returned an error");
        let scans = counter("scans", "Pages of scans that were asked for");
        let scanned_records = counter("scan_records", "Records that scans returned");
        let filtered = counter("filtered", "Lookups that a table's range or filter answered");
        let false_positives = counter("filter_false_positives", "Lookups that a filter let pass in vain");
        let block_hits = counter("block_cache_hits", "Blocks found in the cache");
        let block_misses = counter("block_cache_misses", "Blocks read from disk for a lookup");
        let index_hits = counter("index_hits", "Indexes found in memory by a lookup");
        let filter_hits = counter("filter_hits", "Filters found in memory by a lookup");
        let disk_bytes = counter("disk_read_bytes", "Bytes read from disk for lookups and scans");
        let deleted = counter("tables_deleted", "Tables deleted");
        let scrubbed_bytes = counter("scrubbed_bytes", "Bytes that verification has read");
        let scrub_failures = counter("scrub_failures", "Tables that verification found damaged");
        let get_batch_seconds = Latencies::default();
        registry.register(
            "get_batch_seconds",
            "Time from the arrival of a batch of gets until its answer is made",
            get_batch_seconds.clone(),
        );
        let ingest = JobMetrics::register(registry, "ingests", "Tables received from memtable servers");
        let compact = JobMetrics::register(registry, "compactions", "Compactions");
        let copy = JobMetrics::register(registry, "copies", "Tables copied from another replica");
        let copies_resumed = Counter::default();
        registry.register(
            "copies_resumed",
            "Copies that went on, from this source or another one, where they had broken off",
            copies_resumed.clone(),
        );
        Self {
            clocks,
            gets,
            get_batches,
            get_batch_seconds,
            disk_batches,
            gone,
            corrupt,
            io_errors,
            scans,
            scanned_records,
            filtered,
            false_positives,
            block_hits,
            block_misses,
            index_hits,
            filter_hits,
            disk_bytes,
            ingest,
            compact,
            copy,
            copies_resumed,
            deleted,
            scrubbed_bytes,
            scrub_failures,
        }
    }

    /// What is in memory, and how much there is room for.
    pub fn watch(&self, registry: &mut Registry, store: &Arc<Store>) {
        let registry = registry.sub_registry_with_prefix("sextant_sst");
        registry.register_collector(Box::new(MemoryCollector(Arc::downgrade(store))));
    }

    pub fn add(&self, tally: &Tally) {
        let pairs = [
            (&self.block_hits, tally.cache_hits),
            (&self.block_misses, tally.cache_misses),
            (&self.index_hits, tally.index_hits),
            (&self.filter_hits, tally.filter_hits),
            (&self.disk_bytes, tally.disk_bytes),
            (&self.filtered, tally.filtered),
            (&self.false_positives, tally.false_positives),
        ];
        pairs.iter().filter(|(_, n)| *n > 0).for_each(|(counter, n)| {
            counter.inc_by(*n);
        });
    }
}

/// What is counted when somebody looks.
#[derive(Debug)]
struct CatalogCollector(Arc<Catalog>);

impl Collector for CatalogCollector {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), std::fmt::Error> {
        let (mut bytes, mut damaged) = (0, 0);
        let tables = self.0.tables();
        let count = tables.len() as i64;
        for entry in tables.values() {
            bytes += entry.file_bytes() as i64;
            damaged += i64::from(entry.is_damaged());
        }
        drop(tables);
        let gauges = [
            ("tables", "Tables on this server", count),
            ("table_bytes", "Bytes of all tables", bytes),
            (
                "deleted_bytes",
                "Bytes of deleted tables that are still on the disk",
                self.0.deleted().bytes() as i64,
            ),
            ("tables_damaged", "Tables that failed a check and wait for their repair", damaged),
        ];
        for (name, help, value) in gauges {
            let gauge = ConstGauge::new(value);
            gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)?;
        }
        let (name, help) = ("tables_repaired", "Damaged tables that are sound again");
        let repaired = ConstCounter::new(self.0.repairs().count);
        repaired.encode(encoder.encode_descriptor(name, help, None, repaired.metric_type())?)?;
        Ok(())
    }
}

/// The same for memory.
struct MemoryCollector(Weak<Store>);

impl std::fmt::Debug for MemoryCollector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("MemoryCollector")
    }
}

impl Collector for MemoryCollector {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), std::fmt::Error> {
        let Some(store) = self.0.upgrade() else { return Ok(()) };
        let (cache, memory) = (store.catalog.cache(), store.config.memory());
        let mut used = vec![("block", cache.block_bytes()), ("job", store.jobs.held_bytes() as u64)];
        used.extend(Kind::ALL.map(|kind| (kind.name(), cache.section_bytes(kind))));
        let limits = vec![("all", memory.total), ("cache", memory.cache), ("jobs", memory.jobs)];
        let loads = Kind::SECTIONS.map(|kind| (kind.name(), cache.loads(kind)));
        let used_help = "Bytes in memory: blocks, indexes, filters, dictionaries, what every open table keeps, and the room \
                         that jobs have taken";
        let limit_help = "Bytes that there is room for: in all, in the cache (everything but jobs), for jobs";
        for (name, help, label, values) in
            [("memory_bytes", used_help, "kind", used), ("memory_limit_bytes", limit_help, "part", limits)]
        {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for (value_of, bytes) in values {
                ConstGauge::new(bytes as i64).encode(family.encode_family(&[(label, value_of)])?)?;
            }
        }
        let help = "Indexes, filters and dictionaries that were read because they were not in memory";
        let mut family = encoder.encode_descriptor("section_loads", help, None, MetricType::Counter)?;
        for (kind, count) in loads {
            ConstCounter::new(count).encode(family.encode_family(&[("kind", kind)])?)?;
        }
        Ok(())
    }
}
