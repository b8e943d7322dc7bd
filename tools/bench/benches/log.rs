//! Commits a second of the log, against the bare minimum that a disk asks for.
//!
//! Both stand on the same disk in the same process and take turns, so that what else the machine does hits both: first a
//! table of such rounds, then criterion's own measurements.

use std::hint::black_box;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bytes::Bytes;
use criterion::{Criterion, Throughput};
use openraft::EntryPayload;
use openraft::storage::RaftLogStorage;
use openraft::type_config::TypeConfigExt;
use prometheus_client::registry::Registry;
use sextant_common::ids::{NodeId, PartitionId};
use sextant_environment::Env;
use sextant_raft_log::{Entry, IoFlushed, Payload, RaftLog, RaftLogConfig, TypeConfig, log_id};

const PAYLOAD_BYTES: usize = 256;
const ROUND: Duration = Duration::from_millis(500);

#[allow(clippy::disallowed_methods, reason = "a bench measures real time")]
fn now() -> Instant {
    Instant::now()
}

/// The log under test: a partition for each producer, each of which waits for its entry before it sends the next.
struct Log {
    runtime: tokio::runtime::Runtime,
    log: RaftLog,
    next: u64,
}

impl Log {
    fn new(dir: PathBuf, partitions: u32) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let config = RaftLogConfig {
            devices: vec![dir],
            segment_bytes: RaftLogConfig::SEGMENT_BYTES_DEFAULT,
            cluster: "bench".into(),
            fingerprint: 0,
            node: NodeId(1),
            cache_bytes: 1 << 20,
        };
        let partitions: Vec<_> = (0..partitions).map(PartitionId).collect();
        let log = runtime
            .block_on(RaftLog::open(Env::real(), config, &partitions, &mut Registry::default()))
            .unwrap();
        Self { runtime, log, next: 1 }
    }

    /// Each of so many producers commits so many entries. Purges them afterwards, so that segments are used again.
    fn commit(&mut self, producers: u32, each: u64) -> Duration {
        let (first, log) = (self.next, &self.log);
        let started = now();
        self.runtime.block_on(async {
            let tasks: Vec<_> = (0..producers)
                .map(|producer| {
                    let mut handle = log.partition(PartitionId(producer));
                    tokio::spawn(async move {
                        let payload = Payload(Bytes::from(vec![producer as u8; PAYLOAD_BYTES]));
                        for index in first..first + each {
                            let payload = EntryPayload::Normal(payload.clone());
                            let entry = Entry { log_id: log_id(1, index), payload };
                            let (done, durable) = TypeConfig::oneshot::<io::Result<()>>();
                            handle.append([entry], IoFlushed::signal(done)).await.unwrap();
                            durable.await.unwrap().unwrap();
                        }
                        handle.purge(log_id(1, first + each - 1)).await.unwrap();
                    })
                })
                .collect();
            for task in tasks {
                task.await.unwrap();
            }
        });
        // Partitions without a producer keep step.
        self.next += each;
        started.elapsed()
    }
}

/// Append and fdatasync, one after the other: no batching, no checks, no recovery.
struct Bare {
    file: std::fs::File,
    buf: Vec<u8>,
}

impl Bare {
    fn new(path: &Path) -> Self {
        Self { file: std::fs::File::create(path).unwrap(), buf: vec![7; PAYLOAD_BYTES] }
    }

    fn commit(&mut self, count: u64) -> Duration {
        use std::io::Write;
        let started = now();
        for _ in 0..count {
            self.file.write_all(black_box(&self.buf)).unwrap();
            self.file.sync_data().unwrap();
        }
        started.elapsed()
    }
}

/// Repeats until a round's time is over; commits a second.
fn rate(mut commit: impl FnMut() -> (u64, Duration)) -> f64 {
    let (mut commits, mut time) = (0, Duration::ZERO);
    while time < ROUND {
        let (more, took) = commit();
        commits += more;
        time += took;
    }
    commits as f64 / time.as_secs_f64()
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut log = Log::new(dir.path().join("many"), 64);
    let mut single = Log::new(dir.path().join("one"), 1);
    let mut bare = Bare::new(&dir.path().join("bare"));

    println!(
        "commits/s, {PAYLOAD_BYTES} B payloads      64 producers    1 producer    bare append + fdatasync"
    );
    let mut columns = [Vec::new(), Vec::new(), Vec::new()];
    for round in 0..8 {
        let rates = [
            rate(|| (64 * 200, log.commit(64, 200))),
            rate(|| (200, single.commit(1, 200))),
            rate(|| (200, bare.commit(200))),
        ];
        println!("round {round}: {:>32.0} {:>13.0} {:>26.0}", rates[0], rates[1], rates[2]);
        columns.iter_mut().zip(rates).for_each(|(column, rate)| column.push(rate));
    }
    let [many, one, bare_rate] = columns.each_mut().map(|column| median(column));
    println!("median: {many:>33.0} {one:>13.0} {bare_rate:>26.0}");
    println!("64 producers: {:.1} x bare; 1 producer: {:.2} x bare\n", many / bare_rate, one / bare_rate);

    let mut criterion = Criterion::default().configure_from_args().sample_size(10);
    let mut group = criterion.benchmark_group("commit");
    group.throughput(Throughput::Elements(64));
    group.bench_function("raft log, 64 producers", |b| b.iter_custom(|each| log.commit(64, each)));
    group.throughput(Throughput::Elements(1));
    group.bench_function("raft log, 1 producer", |b| b.iter_custom(|each| single.commit(1, each)));
    group.bench_function("bare append + fdatasync", |b| b.iter_custom(|count| bare.commit(count)));
    group.finish();
    criterion.final_summary();
}
