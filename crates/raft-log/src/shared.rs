//! What the handles, the device workers and the completer of one log share.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use parking_lot::{Mutex, RwLock};
use sextant_common::ids::PartitionId;
use sextant_environment::Env;
use sextant_environment::vfs::{IoKind, VfsFile};

use crate::metrics::Metrics;
use crate::queue::Queue;
use crate::state::PartitionState;

pub(crate) struct Shared {
    pub env: Env,
    pub queue: Queue,
    pub salts: Vec<u32>,
    pub metrics: Metrics,
    pub cache_bytes: u64,
    /// Segments that entries may lie in, by their process-wide number.
    pub segments: RwLock<HashMap<u32, Arc<Segment>>>,
    pub next_segment: AtomicU32,
    partitions: RwLock<Partitions>,
    /// Tells background work to give up.
    pub closing: AtomicBool,
}

/// A file with entries.
pub(crate) struct Segment {
    /// Process-wide number, so that an index can name it in four bytes.
    pub number: u32,
    pub device: usize,
    pub generation: u64,
    pub path: PathBuf,
    pub file: Arc<dyn VfsFile>,
    /// No record in it has a smaller lsn.
    pub first_lsn: u64,
}

/// Thousands of them are looked up for each heartbeat and each group.
#[derive(Default)]
struct Partitions {
    by_slot: Vec<Arc<Partition>>,
    slots: HashMap<PartitionId, u32>,
}

impl Partitions {
    fn get(&self, id: PartitionId) -> Option<&Arc<Partition>> {
        self.by_slot.get(*self.slots.get(&id)? as usize)
    }

    /// Adds one to the next slot.
    fn push(&mut self, id: PartitionId, state: PartitionState) -> Arc<Partition> {
        let slot = self.by_slot.len() as u32;
        let partition =
            Arc::new(Partition { id, slot, state: Mutex::new(state), observer: RwLock::default() });
        self.slots.insert(id, slot);
        self.by_slot.push(partition.clone());
        partition
    }
}

pub(crate) struct Partition {
    pub id: PartitionId,
    /// Its place in the queue's and this module's tables.
    pub slot: u32,
    pub state: Mutex<PartitionState>,
    pub observer: RwLock<Option<Arc<dyn crate::LogObserver>>>,
}

impl Shared {
    pub fn new(env: Env, queue: Queue, salts: Vec<u32>, metrics: Metrics, cache_bytes: u64) -> Self {
        Self {
            env,
            queue,
            salts,
            metrics,
            cache_bytes,
            segments: RwLock::default(),
            next_segment: AtomicU32::new(0),
            partitions: RwLock::default(),
            closing: AtomicBool::new(false),
        }
    }

    /// Adds the partition of the next slot; recovery does this before anything else runs.
    pub fn add_recovered(&self, id: PartitionId, state: PartitionState) {
        self.partitions.write().push(id, state);
    }

    pub fn partition(&self, id: PartitionId) -> Arc<Partition> {
        if let Some(found) = self.partitions.read().get(id) {
            return found.clone();
        }
        let mut partitions = self.partitions.write();
        if let Some(found) = partitions.get(id) {
            return found.clone();
        }
        let slot = self.queue.add_partition(id.0);
        debug_assert_eq!(slot as usize, partitions.by_slot.len());
        partitions.push(id, PartitionState::new(self.cache_bytes))
    }

    /// By slot.
    pub fn partitions(&self) -> Vec<Arc<Partition>> {
        self.partitions.read().by_slot.clone()
    }

    pub fn partition_count(&self) -> usize {
        self.partitions.read().by_slot.len()
    }

    /// Must be found: the caller saw an entry in it under the partition's lock, and a segment leaves the table only after all
    /// of its entries left the partitions.
    pub fn segment(&self, number: u32) -> Option<Arc<Segment>> {
        self.segments.read().get(&number).cloned()
    }

    /// Numbers a segment and adds it to the table.
    pub fn add_segment(&self, make: impl FnOnce(u32) -> Segment) -> Arc<Segment> {
        let number = self.next_segment.fetch_add(1, Ordering::Relaxed);
        let segment = Arc::new(make(number));
        self.segments.write().insert(number, segment.clone());
        segment
    }

    /// Below which lsn nothing is needed, as the partitions stand now or stood during the call.
    pub fn compute_floor(&self) -> u64 {
        // What is queued but has no place yet lies above `durable`; what is queued later, at `next` or above.
        let (durable, next) = self.queue.lsns();
        let mut floor = next;
        for partition in self.partitions() {
            let state = partition.state.lock();
            let Some(first) = state.index.get(state.index.first()) else { continue };
            let segment = first.place.and_then(|place| self.segment(place.segment));
            floor = floor.min(segment.map_or(durable + 1, |segment| segment.first_lsn));
        }
        floor
    }

    /// Simulations only: the time that the next operation takes.
    pub async fn delay(&self, kind: IoKind) {
        if let Some(delay) = self.env.vfs.delay(kind) {
            tokio::time::sleep(delay).await;
        }
    }

    pub fn close(&self) {
        self.closing.store(true, Ordering::SeqCst);
        self.queue.close();
    }
}

/// The handles of a log hold it together: when the last one is dropped, the log closes.
pub(crate) struct Handle(pub Arc<Shared>);

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.close();
    }
}
