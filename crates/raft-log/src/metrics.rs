//! What the log tells of itself. Counters are kept per device.

use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

/// What the log has written since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogStats {
    pub fsyncs: u64,
    pub batches: u64,
    pub records: u64,
    /// Of batches, with their headers.
    pub bytes: u64,
    /// A write or an fsync failed: the log takes nothing more.
    pub failed: bool,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct DeviceLabel {
    device: u32,
}

/// One device's meters.
pub(crate) struct DeviceMetrics {
    fsyncs: Counter,
    batch_bytes: Histogram,
    batch_records: Histogram,
    fsync_seconds: Histogram,
    segments: Gauge,
    /// Since when the device works at something (holder's clock); 0: it is idle.
    busy_since_ns: AtomicU64,
}

pub(crate) struct Metrics {
    devices: Vec<DeviceMetrics>,
    queue_records: Gauge,
    fsyncs: AtomicU64,
    batches: AtomicU64,
    records: AtomicU64,
    bytes: AtomicU64,
}

impl Metrics {
    pub fn register(registry: &mut Registry, devices: usize) -> Self {
        let registry = registry.sub_registry_with_prefix("raft_log");
        let fsyncs = Family::<DeviceLabel, Counter>::default();
        // 256 B to 16 MiB; 1 to 64 k records; 10 us to 5 s.
        let bytes = Family::<DeviceLabel, Histogram>::new_with_constructor(|| {
            Histogram::new(exponential_buckets(256.0, 4.0, 9))
        });
        let records = Family::<DeviceLabel, Histogram>::new_with_constructor(|| {
            Histogram::new(exponential_buckets(1.0, 4.0, 9))
        });
        let seconds = Family::<DeviceLabel, Histogram>::new_with_constructor(|| {
            Histogram::new(exponential_buckets(10e-6, 2.0, 20))
        });
        let segments = Family::<DeviceLabel, Gauge>::default();
        let queue_records = Gauge::default();
        registry.register("fsyncs", "Calls of fdatasync that a batch waited for", fsyncs.clone());
        registry.register_with_unit(
            "batch",
            "Bytes that were written to a log device at once",
            Unit::Bytes,
            bytes.clone(),
        );
        registry.register(
            "batch_records",
            "Records that were written to a log device at once",
            records.clone(),
        );
        registry.register_with_unit("fsync", "Time of one fdatasync", Unit::Seconds, seconds.clone());
        registry.register(
            "segments",
            "Segment files of the log, which are there because records in them are still needed",
            segments.clone(),
        );
        registry.register(
            "queue_records",
            "Records that wait to be written, on all log devices",
            queue_records.clone(),
        );
        let devices = (0..devices as u32).map(|device| {
            let label = DeviceLabel { device };
            DeviceMetrics {
                fsyncs: fsyncs.get_or_create(&label).clone(),
                batch_bytes: bytes.get_or_create(&label).clone(),
                batch_records: records.get_or_create(&label).clone(),
                fsync_seconds: seconds.get_or_create(&label).clone(),
                segments: segments.get_or_create(&label).clone(),
                busy_since_ns: AtomicU64::new(0),
            }
        });
        Self {
            devices: devices.collect(),
            queue_records,
            fsyncs: AtomicU64::new(0),
            batches: AtomicU64::new(0),
            records: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        }
    }

    /// A device begins its next batch, or goes on waiting (0).
    pub fn busy(&self, device: usize, since_ns: u64) {
        self.devices[device].busy_since_ns.store(since_ns, Ordering::Relaxed);
    }

    /// How long the slowest device has been at its batch.
    pub fn busy_for_ns(&self, now_ns: u64) -> u64 {
        let since = self.devices.iter().map(|d| d.busy_since_ns.load(Ordering::Relaxed)).filter(|at| *at > 0);
        since.min().map_or(0, |at| now_ns.saturating_sub(at))
    }

    /// A batch is durable.
    pub fn wrote(&self, device: usize, records: u64, bytes: u64, fsync_ns: u64, queued: usize) {
        let meters = &self.devices[device];
        meters.fsyncs.inc();
        meters.batch_bytes.observe(bytes as f64);
        meters.batch_records.observe(records as f64);
        meters.fsync_seconds.observe(fsync_ns as f64 / 1e9);
        self.queue_records.set(queued as i64);
        self.fsyncs.fetch_add(1, Ordering::Relaxed);
        self.batches.fetch_add(1, Ordering::Relaxed);
        self.records.fetch_add(records, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub fn set_segments(&self, device: usize, segments: usize) {
        self.devices[device].segments.set(segments as i64);
    }

    pub fn stats(&self, failed: bool) -> LogStats {
        LogStats {
            fsyncs: self.fsyncs.load(Ordering::Relaxed),
            batches: self.batches.load(Ordering::Relaxed),
            records: self.records.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            failed,
        }
    }
}
