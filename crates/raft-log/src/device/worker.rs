//! The worker of one device.

use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use sextant_environment::vfs::IoKind;
use sextant_rules::mutant::{self, Mutant};

use crate::format::batch::BATCH_ALIGN;
use crate::format::checkpoint::Checkpoint;
use crate::format::identity::Identity;
use crate::format::record::RecordKind;
use crate::format::segment::{SEGMENT_HEADER_BYTES, SegmentHeader};
use crate::queue::{Item, Space, Take, Taken};
use crate::shared::{Partition, Segment, Shared};
use crate::state::index::Place;

use super::spares::Spares;
use super::writer::{Stamp, WriteBuffer};

/// How often a worker whose disk is full looks again.
const FULL_PAUSE: Duration = Duration::from_secs(1);
/// How long a device may take for each byte without being slow: 4 MiB/s, what is left to one of many writers of a busy disk.
/// A batch is at most some megabytes, and a small one gets no more time than it ever had.
const SOUND_NS_PER_BYTE: u64 = 1_000_000_000 / (4 << 20);
/// A buffer larger than this is not kept: the largest entries are rare.
const BUFFER_BYTES_KEPT: usize = 8 << 20;

/// The segment that is being written.
pub(crate) struct Current {
    pub segment: Arc<Segment>,
    /// Where the next batch goes. Everything before it is durable.
    pub end: u64,
    /// Bytes that were written once.
    pub capacity: u64,
}

/// A segment that is full.
pub(crate) struct Full {
    pub segment: Arc<Segment>,
    pub capacity: u64,
    /// No record in it, nor in those before it, has a larger lsn.
    pub last_lsn: u64,
}

/// What does not change while the log is open.
pub(crate) struct Device {
    pub number: usize,
    pub dir: PathBuf,
    pub identity: Identity,
    pub fingerprint: u64,
    pub run: u32,
    pub segment_bytes: u64,
}

pub(crate) struct Worker {
    pub shared: Arc<Shared>,
    pub device: Device,
    pub current: Current,
    /// Oldest first.
    pub full: VecDeque<Full>,
    pub next_generation: u64,
    pub spares: Spares,
    /// Highest lsn on this device.
    pub last_lsn: u64,
    pub buffer: WriteBuffer,
    /// By slot.
    pub partitions: Vec<Arc<Partition>>,
    /// Of the last checkpoint, with its header.
    pub checkpoint_bytes: u64,
    /// Of the directory, for as long as the worker runs.
    pub _lock: Box<dyn Send + Sync>,
}

/// What of so many bytes of a file batches can use.
fn whole_units(bytes: u64) -> u64 {
    bytes - bytes % BATCH_ALIGN
}

/// Tells the queue that the worker has ended, even if it did by a panic: those who wait must not wait for ever.
struct EndGuard(Arc<Shared>);

impl Drop for EndGuard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.queue.fail("a log device's worker panicked");
        }
        self.0.queue.worker_ended();
    }
}

impl Worker {
    /// Writes batches until the log is closed or has failed.
    pub async fn run(mut self) {
        let end = EndGuard(self.shared.clone());
        let result = self.work().await;
        if let Err(e) = result {
            let path = self.current.segment.path.clone();
            let message = format!("log device {}: {}: {e}", self.device.number, path.display());
            self.shared.queue.fail(&message);
            self.shared.env.fatal.fatal(&message);
        }
        self.spares.finish().await;
        // The directory is free before anybody hears that the worker has ended.
        drop(self);
        drop(end);
    }

    async fn work(&mut self) -> io::Result<()> {
        let shared = self.shared.clone();
        let mut items = VecDeque::new();
        loop {
            let notified = shared.queue.work();
            tokio::pin!(notified);
            notified.as_mut().enable();
            shared.metrics.busy(self.device.number, shared.env.clock.holder_ns());
            let checkpoint = self.housekeep()?;
            let (room, fresh) = self.room();
            let take =
                shared.queue.take(self.device.number, room, fresh, checkpoint, std::mem::take(&mut items));
            if !matches!(take, Take::Work(_)) {
                shared.metrics.busy(self.device.number, 0);
            }
            match take {
                Take::Work(taken) => {
                    // What is large takes its time on a disk that is sound.
                    let bytes: u64 = taken.items.iter().map(Item::bytes).sum();
                    let begun_ns = shared.env.clock.holder_ns();
                    shared.metrics.busy(self.device.number, begun_ns + bytes * SOUND_NS_PER_BYTE);
                    items = self.write(taken).await?;
                }
                Take::Idle if self.spares.is_exhausted() => {
                    // Space may have come back.
                    let _ = tokio::time::timeout(FULL_PAUSE, notified).await;
                }
                Take::Idle => notified.await,
                Take::NotHere => {
                    // Whoever is idle may take it. A worker that waited for this wake itself would spin.
                    notified.set(shared.queue.work());
                    shared.queue.wake_one();
                    tokio::time::sleep(FULL_PAUSE).await;
                }
                Take::Closed if shared.queue.is_failed() => return Ok(()),
                Take::Closed => return self.write_end().await,
            }
        }
    }

    /// What is to be done between batches. Returns whether a checkpoint would free a segment.
    fn housekeep(&mut self) -> io::Result<bool> {
        if self.shared.queue.begin_floor() {
            let floor = self.shared.compute_floor();
            self.shared.queue.offer_floor(floor);
        }
        let queue = &self.shared.queue;
        while self.full.front().is_some_and(|full| queue.may_retire(full.segment.number, full.last_lsn)) {
            if let Some(full) = self.full.pop_front() {
                self.shared.segments.write().remove(&full.segment.number);
                self.spares.retire(full.segment, full.capacity);
            }
        }
        self.shared.metrics.set_segments(self.device.number, self.full.len() + 1);
        self.spares.prepare(self.current.end, self.current.capacity)?;
        let space = self.space();
        self.shared.queue.set_space(self.device.number, space);
        Ok(self.full.front().is_some_and(|full| self.shared.queue.would_free(full.last_lsn)))
    }

    /// One of the two is counted: a record that does not fit into the first goes into the second.
    pub fn space(&self) -> Space {
        let current = whole_units(self.current.capacity).saturating_sub(self.current.end);
        let spare = whole_units(self.spares.ready_bytes());
        Space {
            exhausted: self.spares.is_exhausted(),
            room: current.max(spare.saturating_sub(SEGMENT_HEADER_BYTES + self.checkpoint_bytes)),
            file_bytes: self.spares.next_bytes(self.current.capacity),
        }
    }

    /// Bytes that may still go into the current segment, and into a new one. A segment may grow to its full size as long as
    /// there is no other file and the disk is not full.
    fn room(&mut self) -> (u64, u64) {
        let (capacity, full_size) = (self.current.capacity, self.device.segment_bytes);
        let (end, fresh) = match self.spares.has_ready() || self.spares.is_exhausted() {
            true => (capacity, self.spares.ready_bytes()),
            false => (capacity.max(full_size), full_size),
        };
        let room = whole_units(end).saturating_sub(self.current.end);
        (room, whole_units(fresh).saturating_sub(SEGMENT_HEADER_BYTES))
    }

    async fn write(&mut self, mut taken: Taken) -> io::Result<VecDeque<Item>> {
        if taken.roll {
            self.roll(taken.first_lsn).await?;
        } else {
            self.buffer.clear(self.current.end);
        }
        let stamp = self.stamp(taken.durable_lsn);
        if let Some(checkpoint) = &taken.checkpoint {
            let start = self.buffer.end();
            self.buffer.push_checkpoint(stamp, taken.first_lsn, checkpoint);
            self.checkpoint_bytes = self.buffer.end() - start;
        }
        if !taken.items.is_empty() {
            self.learn_partitions(&taken.items);
            let ids = |slot: u32| self.partitions[slot as usize].id.0;
            self.buffer.push_records(stamp, taken.first_lsn, taken.items.iter(), ids);
            self.last_lsn = taken.first_lsn + taken.items.len() as u64 - 1;
        }
        self.flush(&taken).await?;
        // Payloads are let go of only now: those who wait were answered first.
        taken.items.clear();
        Ok(taken.items)
    }

    fn stamp(&self, durable_lsn: u64) -> Stamp {
        Stamp {
            generation: self.current.segment.generation,
            run: self.device.run,
            salt: self.device.identity.salt,
            // In a new segment nothing is durable yet; else everything before the write is.
            durable_before: self.current.end,
            durable_lsn,
        }
    }

    /// Writes the buffer and makes it durable, then tells the queue.
    async fn flush(&mut self, taken: &Taken) -> io::Result<()> {
        let shared = self.shared.clone();
        let end = self.buffer.end();
        let bytes = end - self.buffer.offset;
        shared.delay(IoKind::Write).await;
        let offset = self.buffer.offset;
        let file = self.current.segment.file.clone();
        file.write_all_at(self.buffer.whole_pages(self.current.capacity), offset)?;
        // Readable from now on, and known to be before anybody hears that it is durable: see `Shared::compute_floor`.
        self.set_places(taken);
        shared.delay(IoKind::Sync).await;
        let started = shared.env.clock.holder_ns();
        if !mutant::active(Mutant::NoFsync) {
            file.sync_data()?;
        }
        let fsync_ns = shared.env.clock.holder_ns().saturating_sub(started);
        self.current.end = end;
        self.current.capacity = self.current.capacity.max(end);
        let (space, queue) = (self.space(), &shared.queue);
        queue.complete(self.device.number, self.current.segment.number, space);
        shared.metrics.wrote(self.device.number, taken.items.len() as u64, bytes, fsync_ns, queue.len());
        if self.buffer.bytes.capacity() > BUFFER_BYTES_KEPT {
            self.buffer.bytes = Vec::new();
        }
        Ok(())
    }

    fn set_places(&self, taken: &Taken) {
        let segment = self.current.segment.number;
        let mut entries = taken.items.iter().zip(&self.buffer.places).zip(taken.first_lsn..).peekable();
        while let Some(((first, _), _)) = entries.peek() {
            let slot = first.slot;
            let mut state = self.partitions[slot as usize].state.lock();
            while let Some(((item, offset), lsn)) = entries.next_if(|((item, _), _)| item.slot == slot) {
                if item.kind == RecordKind::Entry {
                    state.index.set_place(item.index, lsn, Place { segment, offset: *offset });
                }
            }
            state.evict();
        }
    }

    fn learn_partitions(&mut self, items: &VecDeque<Item>) {
        if items.iter().any(|item| item.slot as usize >= self.partitions.len()) {
            self.partitions = self.shared.partitions();
        }
    }

    /// Begins a new segment: its header comes first in the buffer.
    async fn roll(&mut self, first_lsn: u64) -> io::Result<()> {
        let spare = self.spares.take().await?;
        let (generation, path, file) = (self.next_generation, spare.path, spare.file);
        self.next_generation += 1;
        let number = self.device.number;
        let segment = self.shared.add_segment(|n| Segment {
            number: n,
            device: number,
            generation,
            path,
            file,
            first_lsn,
        });
        let header = SegmentHeader {
            generation,
            previous_generation: self.current.segment.generation,
            previous_end: self.current.end as u32,
            previous_last_lsn: self.last_lsn,
            first_lsn,
            fingerprint: self.device.fingerprint,
            identity: self.device.identity.clone(),
        };
        let new = Current { segment, end: 0, capacity: spare.capacity };
        let old = std::mem::replace(&mut self.current, new);
        self.full.push_back(Full { segment: old.segment, capacity: old.capacity, last_lsn: self.last_lsn });
        self.buffer.clear(0);
        self.buffer.bytes.extend_from_slice(&header.encode(self.device.identity.salt));
        Ok(())
    }

    /// An empty batch, so that the next start can tell that everything before it was durable.
    async fn write_end(&mut self) -> io::Result<()> {
        let (durable_lsn, next_lsn) = self.shared.queue.lsns();
        self.buffer.clear(self.current.end);
        self.buffer.push_records(self.stamp(durable_lsn), next_lsn, std::iter::empty(), |slot| slot);
        let end = self.buffer.end();
        if end > self.current.capacity {
            // Not worth new space.
            return Ok(());
        }
        let offset = self.buffer.offset;
        let file = &self.current.segment.file;
        file.write_all_at(self.buffer.whole_pages(self.current.capacity), offset)?;
        file.sync_data()
    }

    /// Makes durable, before anything else is written, a run's first checkpoint.
    pub fn write_start(&mut self, durable_lsn: u64, checkpoint: &Checkpoint) -> io::Result<()> {
        let first_lsn = durable_lsn + 1;
        self.buffer.push_checkpoint(self.stamp(durable_lsn), first_lsn, checkpoint);
        let (offset, end) = (self.buffer.offset, self.buffer.end());
        let file = self.current.segment.file.clone();
        file.write_all_at(self.buffer.whole_pages(self.current.capacity), offset)?;
        file.sync_data()?;
        self.current.end = end;
        self.current.capacity = self.current.capacity.max(end);
        Ok(())
    }
}
