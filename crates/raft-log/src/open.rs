//! Opening a log: recovery, then the start of a new run on every device.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures::future::join_all;
use prometheus_client::registry::Registry;
use sextant_common::ids::PartitionId;
use sextant_common::{Error, ErrorKind, Result};
use sextant_environment::Env;

use crate::config::RaftLogConfig;
use crate::device::spares::{self, Sizes, Spares};
use crate::device::worker::{Current, Device, Full, Worker};
use crate::device::writer::WriteBuffer;
use crate::format::batch::{BATCH_ALIGN, BATCH_HEADER_BYTES};
use crate::format::checkpoint::{Checkpoint, LogMeta};
use crate::format::identity::Identity;
use crate::format::segment::{SEGMENT_HEADER_BYTES, SegmentHeader};
use crate::metrics::Metrics;
use crate::queue::{Queue, Start};
use crate::recovery::RecoveryReport;
use crate::recovery::merge::{self, Plan};
use crate::recovery::replay::{Partitions, replay};
use crate::recovery::scan::{self, DeviceScan, ScannedSegment};
use crate::shared::{Segment, Shared};
use crate::state::PartitionState;

type Lock = Box<dyn Send + Sync>;

/// The parts of an open log, before anything runs.
pub(crate) struct Opened {
    pub shared: Arc<Shared>,
    pub workers: Vec<Worker>,
    pub report: RecoveryReport,
}

pub(crate) async fn open(
    env: Env,
    config: RaftLogConfig,
    partitions: &[PartitionId],
    registry: &mut Registry,
) -> Result<Opened> {
    config.validate()?;
    let started_ns = env.clock.holder_ns();
    let devices = config.devices.len();
    let scans = (0..devices).map(|device| {
        let (job_env, config) = (env.clone(), config.clone());
        blocking(&env, move || scan_device(&job_env, &config, device))
    });
    let (locks, scans): (Vec<Lock>, Vec<DeviceScan>) = on_all(scans).await?.into_iter().unzip();
    // Numbers of the segments in the whole process: one device after the other.
    let mut next_segment = 0;
    let numbers: Vec<Vec<u32>> = scans
        .iter()
        .map(|scan| {
            let first = next_segment;
            next_segment += scan.chain.len() as u32;
            (first..next_segment).collect()
        })
        .collect();
    let (plan, scans, numbers, recovered) = blocking(&env, move || {
        let plan = merge::plan(&scans)?;
        let recovered = replay(&plan, &scans, &numbers)?;
        Ok((plan, scans, numbers, recovered))
    })
    .await?;
    check_devices_belong_together(&scans, &plan, &recovered)?;

    let mut report = RecoveryReport {
        segments: scans.iter().map(|scan| scan.chain.len() as u64).sum(),
        torn_bytes: plan.void_bytes + scans.iter().map(|scan| scan.torn_bytes).sum::<u64>(),
        ..RecoveryReport::default()
    };
    let (states, metas) = partition_states(recovered, partitions, config.cache_bytes, &mut report);
    let floor = floor_of(&states, &scans, &numbers, &plan);
    let start = Start { last_lsn: plan.last_lsn, floor, metas: metas.clone(), devices };
    let salts = scans.iter().map(|scan| scan.identity.salt).collect();
    let metrics = Metrics::register(registry, devices);
    let shared = Arc::new(Shared::new(env.clone(), Queue::new(start), salts, metrics, config.cache_bytes));
    shared.next_segment.store(next_segment, Ordering::Relaxed);
    for (id, state) in states {
        shared.add_recovered(id, state);
    }

    // First everything that was found becomes durable everywhere, then the new run may say so.
    let secured = scans.into_iter().map(|scan| blocking(&env, move || secure(scan)));
    let scans = on_all(secured).await?;
    let checkpoint = Checkpoint { floor, partitions: metas };
    let last_lsn = plan.last_lsn;
    let starts =
        scans.into_iter().zip(locks).zip(numbers).enumerate().map(|(number, ((scan, lock), numbers))| {
            let device = Device {
                number,
                dir: scan.dir.clone(),
                identity: scan.identity.clone(),
                fingerprint: config.fingerprint,
                run: plan.next_run,
                segment_bytes: config.segment_bytes,
            };
            let (shared, checkpoint) = (shared.clone(), checkpoint.clone());
            blocking(&env, move || start_device(shared, device, scan, lock, &numbers, last_lsn, &checkpoint))
        });
    let workers = on_all(starts).await?;
    report.seconds = env.clock.holder_ns().saturating_sub(started_ns) as f64 / 1e9;
    if report.torn_bytes > 0 {
        let bytes = report.torn_bytes;
        tracing::info!(bytes, "the log ended in unfinished writes, which were never acknowledged: cut");
    }
    Ok(Opened { shared, workers, report })
}

async fn blocking<T: Send + 'static>(
    env: &Env,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let stopped = || Err(Error::new(ErrorKind::Stopping, "the runtime is stopping"));
    env.blocking(work).await.unwrap_or_else(stopped)
}

/// Works on all devices at once. Waits for all, so that nothing touches a device any more after an error.
async fn on_all<T>(works: impl Iterator<Item = impl Future<Output = Result<T>>>) -> Result<Vec<T>> {
    join_all(works).await.into_iter().collect()
}

fn scan_device(env: &Env, config: &RaftLogConfig, device: usize) -> Result<(Lock, DeviceScan)> {
    let dir = &config.devices[device];
    env.vfs.create_dir_all(dir)?;
    let lock = env.vfs.lock(&dir.join("LOCK")).map_err(|e| match e.kind() {
        std::io::ErrorKind::WouldBlock => {
            Error::unavailable(format!("log device {} is in use by another process", dir.display()))
        }
        _ => Error::from(e),
    })?;
    let expected = Identity {
        cluster: config.cluster.clone(),
        node: config.node.0,
        device: device as u16,
        devices: config.devices.len() as u16,
        salt: 0,
    };
    let identity = scan::identify(env, dir, expected)?;
    // A process that died may have left files whose names are not durable; they would take along what is written to them.
    env.vfs.sync_dir(dir)?;
    Ok((lock, scan::scan(env, dir, identity)?))
}

/// A device that was never written to beside others that were: it was lost or mixed up.
fn check_devices_belong_together(scans: &[DeviceScan], plan: &Plan, recovered: &Partitions) -> Result<()> {
    let has_state = plan.last_lsn > 0 || recovered.values().any(|p| p.meta != LogMeta::default());
    match scans.iter().find(|scan| scan.chain.is_empty()) {
        Some(empty) if has_state => Err(Error::corrupt(format!(
            "log device {} is empty, but the others are not: its records are lost",
            empty.dir.display()
        ))),
        _ => Ok(()),
    }
}

type States = Vec<(PartitionId, PartitionState)>;

/// The partitions, first those asked for, by slot; and what the queue is to know of them.
fn partition_states(
    mut recovered: Partitions,
    wanted: &[PartitionId],
    cache_bytes: u64,
    report: &mut RecoveryReport,
) -> (States, Vec<(u32, LogMeta)>) {
    let mut ids: Vec<u32> = wanted.iter().map(|id| id.0).collect();
    ids.sort_unstable();
    ids.dedup();
    for id in recovered.keys() {
        if ids.binary_search(id).is_err() {
            tracing::warn!(partition = id, "the log has a partition that this server was not given: kept");
        }
    }
    ids.extend(recovered.keys());
    ids.sort_unstable();
    ids.dedup();
    let mut metas = Vec::new();
    let states = ids.into_iter().map(|id| {
        let found = recovered.remove(&id).unwrap_or_default();
        report.entries += found.index.end() - found.index.first();
        report.bytes += found.index.bytes_since(0);
        metas.push((id, found.meta.clone()));
        (PartitionId(id), PartitionState::recovered(cache_bytes, &found.meta, found.index))
    });
    (states.collect(), metas)
}

/// Below which lsn nothing is needed: the start of the oldest segment that a first entry lies in. What a checkpoint has stated
/// stays true: other devices may have used segments again for it, and no recovery finds what lies between the two any more.
fn floor_of(states: &States, scans: &[DeviceScan], numbers: &[Vec<u32>], plan: &Plan) -> u64 {
    let segments = scans.iter().flat_map(|scan| &scan.chain);
    let first_lsns: std::collections::HashMap<u32, u64> =
        numbers.iter().flatten().copied().zip(segments.map(|segment| segment.header.first_lsn)).collect();
    let firsts = states.iter().filter_map(|(_, state)| state.index.get(state.index.first())?.place);
    let stated = plan.checkpoint.as_ref().map_or(0, |(_, checkpoint)| checkpoint.floor);
    let starts = firsts.filter_map(|place| first_lsns.get(&place.segment).copied());
    starts.fold(plan.last_lsn + 1, u64::min).max(stated)
}

/// Makes everything that was found durable. What may not have been is written again: if its fsync failed, the kernel takes
/// the pages for clean and another fsync would do nothing.
fn secure(scan: DeviceScan) -> Result<DeviceScan> {
    if let Some(last) = scan.chain.last() {
        // The padding of the last batch may lie beyond the end of the file.
        let mut bytes = vec![0; (last.end - last.durable) as usize];
        last.file.read_at(&mut bytes, last.durable)?;
        last.file.write_all_at(&bytes, last.durable)?;
        last.file.sync_data()?;
    }
    Ok(scan)
}

/// Begins the new run on a device: after the last whole batch if there is room, else in a new segment.
fn start_device(
    shared: Arc<Shared>,
    device: Device,
    scan: DeviceScan,
    lock: Lock,
    numbers: &[u32],
    last_lsn: u64,
    checkpoint: &Checkpoint,
) -> Result<Worker> {
    let lsns = last_lsns(&scan, last_lsn);
    let (mut full, mut current) = (std::collections::VecDeque::new(), None);
    let mut previous = (0, 0);
    for ((segment, number), last_lsn) in scan.chain.into_iter().zip(numbers).zip(&lsns) {
        let ScannedSegment { header, path, file, capacity, end, .. } = segment;
        let segment = Arc::new(Segment {
            number: *number,
            device: device.number,
            generation: header.generation,
            path,
            file,
            first_lsn: header.first_lsn,
        });
        shared.segments.write().insert(*number, segment.clone());
        previous = (header.generation, end);
        if let Some((Current { segment, capacity, .. }, last_lsn)) =
            current.replace((Current { segment, end, capacity }, *last_lsn))
        {
            full.push_back(Full { segment, capacity, last_lsn });
        }
    }
    let is_new = current.is_none();
    let mut next_generation = scan.next_generation;
    let device_last_lsn = lsns.last().copied().unwrap_or(0);
    let needs = (BATCH_HEADER_BYTES + Checkpoint::encoded_len(checkpoint.partitions.len())) as u64;
    let needs = needs.next_multiple_of(BATCH_ALIGN);
    let sizes = Sizes::new(device.segment_bytes, needs);
    let ready = spares::adopt(&*shared.env.vfs, scan.spares, sizes)?;
    let mut spares = Spares::new(shared.clone(), device.dir.clone(), sizes, scan.next_number, ready);
    // A segment that begins with records beyond the cut would break the promise of its header's `first_lsn`.
    let fits = current.as_ref().is_some_and(|(current, _)| {
        current.end + needs <= current.capacity && current.segment.first_lsn <= last_lsn + 1
    });
    let mut buffer = WriteBuffer::default();
    if let Some((current, _)) = current.as_ref().filter(|_| fits) {
        buffer.clear(current.end);
    } else {
        let spare = spares.take_first()?;
        let header = SegmentHeader {
            generation: next_generation,
            previous_generation: previous.0,
            previous_end: previous.1 as u32,
            previous_last_lsn: device_last_lsn,
            first_lsn: last_lsn + 1,
            fingerprint: device.fingerprint,
            identity: device.identity.clone(),
        };
        next_generation += 1;
        let (number, generation, first_lsn) = (device.number, header.generation, header.first_lsn);
        let (path, file): (PathBuf, _) = (spare.path, spare.file);
        let segment =
            shared.add_segment(|n| Segment { number: n, device: number, generation, path, file, first_lsn });
        let new = Current { segment, end: 0, capacity: spare.capacity };
        if let Some((old, last_lsn)) = current.replace((new, device_last_lsn)) {
            full.push_back(Full { segment: old.segment, capacity: old.capacity, last_lsn });
        }
        buffer.clear(0);
        buffer.bytes.extend_from_slice(&header.encode(device.identity.salt));
        debug_assert_eq!(buffer.end(), SEGMENT_HEADER_BYTES);
    }
    let Some((current, _)) = current else { return Err(Error::internal("a device without a segment")) };
    let mut worker = Worker {
        shared,
        device,
        current,
        full,
        next_generation,
        spares,
        last_lsn: device_last_lsn,
        buffer,
        partitions: Vec::new(),
        checkpoint_bytes: needs,
        _lock: lock,
    };
    worker.write_start(last_lsn, checkpoint)?;
    if !is_new {
        worker.spares.prepare_first(worker.current.end, worker.current.capacity)?;
    }
    worker.shared.queue.set_space(worker.device.number, worker.space());
    Ok(worker)
}

/// The highest recovered lsn in each segment of the chain and those before it.
fn last_lsns(scan: &DeviceScan, last_lsn: u64) -> Vec<u64> {
    let before = scan.chain.first().map_or(0, |first| first.header.previous_last_lsn);
    let mut lsns = vec![before; scan.chain.len()];
    for batch in &scan.batches {
        let last = (batch.header.next_lsn() - 1).min(last_lsn);
        lsns[batch.segment] = lsns[batch.segment].max(last);
    }
    for at in 1..lsns.len() {
        lsns[at] = lsns[at].max(lsns[at - 1]);
    }
    lsns
}
