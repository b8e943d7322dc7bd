//! The order of all records, and how far it is durable.
//!
//! Owns the log sequence numbers (lsn), the records that wait for a device, and who waits for durability. Every record gets
//! the next lsn of the server when it is queued. A device's worker takes a run of consecutive records (whatever has queued
//! up, on whichever device is free: positions on one device never decrease), so each batch is named by its first lsn.
//!
//! Does not own files, nor where entries are.
//!
//! Invariants: records are taken in the order of their lsns. Everything up to `durable_lsn` is durable on all devices, and
//! only what lies at or below it is ever completed with `Ok`. `metas` is the sum of all records *taken*, so a checkpoint
//! made of it speaks for exactly the records below the next one to be taken.

mod floors;
mod item;

use std::collections::VecDeque;
use std::io;

use parking_lot::Mutex;
use tokio::sync::Notify;

use self::floors::Floors;
pub(crate) use self::item::{Completion, Item};
use crate::format::batch::BATCH_HEADER_BYTES;
use crate::format::checkpoint::{Checkpoint, LogMeta};
use crate::format::record::RecordKind;

/// Largest batch, unless one record is larger: more only delays those who wait for the first record in it.
pub(crate) const BATCH_BYTES_MAX: u64 = 4 << 20;
/// Appends wait beyond this many queued bytes. Raft's flow control keeps far below it unless the disk hangs; it bounds memory
/// for that case, and has room for many of the largest entries (16 MiB).
const QUEUE_BYTES_MAX: u64 = 256 << 20;
/// What appends leave of a device that is running out of space, for votes and what keeps a stopping server consistent.
const SPACE_RESERVE_BYTES: u64 = 64 << 10;

/// Room that a device has, as its worker saw it last.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Space {
    /// The disk was found full, and no file could be made since.
    pub exhausted: bool,
    /// Bytes that can certainly be written without any new space.
    pub room: u64,
}

/// What a worker is to write.
pub(crate) struct Taken {
    pub items: VecDeque<Item>,
    pub first_lsn: u64,
    /// To be written before the records: the state of all records before them.
    pub checkpoint: Option<Checkpoint>,
    /// The checkpoint begins a new segment.
    pub roll: bool,
    pub durable_lsn: u64,
}

pub(crate) enum Take {
    Work(Taken),
    /// Nothing to do now.
    Idle,
    /// There is work, but this device is full and another is not.
    NotHere,
    /// Nothing to do, ever.
    Closed,
}

struct InFlight {
    first_lsn: u64,
    /// Lsn and floor of a checkpoint in the same write.
    checkpoint: Option<(u64, u64)>,
}

pub(crate) struct Queue {
    inner: Mutex<Inner>,
    /// Wakes workers.
    work: Notify,
    /// Wakes the completer.
    durable: Notify,
    /// Wakes appends that wait for room.
    room: Notify,
}

struct Inner {
    next_lsn: u64,
    /// The last lsn that a worker took.
    taken_lsn: u64,
    durable_lsn: u64,
    items: VecDeque<Item>,
    bytes: u64,
    /// Promised to appends that are on their way here.
    reserved: u64,
    in_flight: Vec<Option<InFlight>>,
    completions: VecDeque<(u64, Completion)>,
    /// By slot: the partition's id, and the sum of its taken records.
    metas: Vec<(u32, LogMeta)>,
    floors: Floors,
    space: Vec<Space>,
    failed: Option<String>,
    closing: bool,
    /// Workers that still run.
    workers: usize,
}

/// What recovery found, for the queue to go on from.
pub(crate) struct Start {
    pub last_lsn: u64,
    pub floor: u64,
    pub metas: Vec<(u32, LogMeta)>,
    pub devices: usize,
}

impl Queue {
    pub fn new(start: Start) -> Self {
        let inner = Inner {
            next_lsn: start.last_lsn + 1,
            taken_lsn: start.last_lsn,
            durable_lsn: start.last_lsn,
            items: VecDeque::new(),
            bytes: 0,
            reserved: 0,
            in_flight: (0..start.devices).map(|_| None).collect(),
            completions: VecDeque::new(),
            metas: start.metas,
            floors: Floors::new(start.floor),
            space: vec![Space { exhausted: false, room: u64::MAX }; start.devices],
            failed: None,
            closing: false,
            workers: start.devices,
        };
        Self { inner: Mutex::new(inner), work: Notify::new(), durable: Notify::new(), room: Notify::new() }
    }

    /// A new partition's slot.
    pub fn add_partition(&self, id: u32) -> u32 {
        let mut inner = self.inner.lock();
        inner.metas.push((id, LogMeta::default()));
        inner.metas.len() as u32 - 1
    }

    // For those who write to the log.

    /// Waits while too much is queued.
    pub async fn wait_for_room(&self) {
        loop {
            let notified = self.room.notified();
            tokio::pin!(notified);
            notified.as_mut().enable();
            {
                let inner = self.inner.lock();
                if inner.bytes < QUEUE_BYTES_MAX || inner.failed.is_some() || inner.closing {
                    return;
                }
            }
            notified.await;
        }
    }

    /// Queues records, all or none. `bytes`: what they have together; `is_append`: some are entries. Calls `queued` for each
    /// with its lsn, under the queue's lock: in the order of the log.
    pub fn push(
        &self,
        items: impl Iterator<Item = Item>,
        (bytes, is_append): (u64, bool),
        completion: Option<Completion>,
        mut queued: impl FnMut(&Item, u64),
    ) -> io::Result<()> {
        {
            let mut inner = self.inner.lock();
            inner.admit(bytes, is_append)?;
            for item in items {
                queued(&item, inner.next_lsn);
                inner.next_lsn += 1;
                inner.bytes += item.bytes();
                inner.items.push_back(item);
            }
            if let Some(completion) = completion {
                let lsn = inner.next_lsn - 1;
                inner.completions.push_back((lsn, completion));
                if lsn <= inner.durable_lsn {
                    self.durable.notify_one();
                }
            }
        }
        self.work.notify_one();
        Ok(())
    }

    /// Why appends would be refused now: out of space, failed or stopping. What is reserved counts as used.
    pub fn check(&self, bytes: u64) -> io::Result<()> {
        let inner = self.inner.lock();
        inner.admit(inner.reserved.saturating_add(bytes), true)
    }

    /// As [`Queue::check`] for `bytes + spare`, and keeps `bytes` until [`Queue::unreserve`].
    pub fn reserve(&self, bytes: u64, spare: u64) -> io::Result<()> {
        let mut inner = self.inner.lock();
        inner.admit(inner.reserved.saturating_add(bytes).saturating_add(spare), true)?;
        inner.reserved += bytes;
        Ok(())
    }

    pub fn unreserve(&self, bytes: u64) {
        let mut inner = self.inner.lock();
        inner.reserved = inner.reserved.saturating_sub(bytes);
    }

    // For workers.

    /// Takes the next records for a device. `room`: bytes that are left in its segment; `fresh`: in a new one.
    /// `checkpoint`: make one even if nothing else is to be written.
    pub fn take(
        &self,
        device: usize,
        room: u64,
        fresh: u64,
        checkpoint: bool,
        mut items: VecDeque<Item>,
    ) -> Take {
        items.clear();
        let mut inner = self.inner.lock();
        if inner.failed.is_some() {
            return Take::Closed;
        }
        let Some(first) = inner.items.front() else {
            let (needs, space) = (inner.checkpoint_bytes(), inner.space[device]);
            let roll = needs > room;
            // Not worth the last bytes of a disk.
            if checkpoint && !(space.exhausted && needs > space.room) {
                let made = inner.make_checkpoint();
                return Take::Work(inner.start(device, items, Some(made), roll));
            }
            return if inner.closing { Take::Closed } else { Take::Idle };
        };
        let header = BATCH_HEADER_BYTES as u64;
        let mut needs = header + first.bytes();
        let space = inner.space[device];
        if space.exhausted && needs > space.room && inner.space.iter().any(|s| !s.exhausted) {
            return Take::NotHere;
        }
        if checkpoint {
            needs += inner.checkpoint_bytes();
        }
        let roll = needs > room;
        let limit = if roll {
            fresh.saturating_sub(inner.checkpoint_bytes())
        } else {
            room - (needs - header - first.bytes())
        };
        let limit = limit.min(BATCH_BYTES_MAX).saturating_sub(header);
        let checkpoint = (roll || checkpoint).then(|| inner.make_checkpoint());
        if inner.bytes <= limit {
            std::mem::swap(&mut items, &mut inner.items);
        } else {
            let mut bytes = 0;
            while let Some(item) = inner.items.front()
                && (items.is_empty() || bytes + item.bytes() <= limit)
            {
                bytes += item.bytes();
                items.extend(inner.items.pop_front());
            }
        }
        let was_full = inner.bytes >= QUEUE_BYTES_MAX;
        let work = inner.start(device, items, checkpoint, roll);
        if was_full && inner.bytes < QUEUE_BYTES_MAX {
            self.room.notify_waiters();
        }
        if !inner.items.is_empty() && inner.in_flight.iter().any(Option::is_none) {
            self.work.notify_one();
        }
        Take::Work(work)
    }

    /// What a device was given is durable.
    pub fn complete(&self, device: usize, space: Space) {
        let mut inner = self.inner.lock();
        inner.space[device] = space;
        let done = inner.in_flight[device].take();
        if let Some((lsn, floor)) = done.and_then(|done| done.checkpoint) {
            inner.floors.wrote(lsn, floor);
        }
        let first = inner.in_flight.iter().flatten().map(|f| f.first_lsn).fold(inner.taken_lsn + 1, u64::min);
        let durable = first - 1;
        inner.durable_lsn = durable;
        let retires = inner.floors.settle(durable);
        let completed = inner.completions.front().is_some_and(|(lsn, _)| *lsn <= durable);
        drop(inner);
        if completed {
            self.durable.notify_one();
        }
        if retires {
            // The other devices may have segments to retire.
            self.work.notify_waiters();
        }
    }

    pub fn set_space(&self, device: usize, space: Space) {
        self.inner.lock().space[device] = space;
    }

    /// Waits for something to do; see [`Queue::take`]. Created before `take` is called, so that nothing is missed.
    pub fn work(&self) -> tokio::sync::futures::Notified<'_> {
        self.work.notified()
    }

    /// Wakes a worker that is idle.
    pub fn wake_one(&self) {
        self.work.notify_one();
    }

    /// Nothing more is accepted, and nothing more is completed with `Ok`.
    pub fn fail(&self, message: &str) {
        let mut inner = self.inner.lock();
        inner.failed.get_or_insert_with(|| message.to_owned());
        inner.items.clear();
        inner.bytes = 0;
        drop(inner);
        self.wake_all();
    }

    pub fn is_failed(&self) -> bool {
        self.inner.lock().failed.is_some()
    }

    /// A worker ends.
    pub fn worker_ended(&self) {
        self.inner.lock().workers -= 1;
        self.wake_all();
    }

    /// Accept nothing more; workers write what is queued and end.
    pub fn close(&self) {
        self.inner.lock().closing = true;
        self.wake_all();
    }

    fn wake_all(&self) {
        self.work.notify_waiters();
        self.room.notify_waiters();
        self.durable.notify_one();
    }

    // Floors.

    /// Up to where records are durable, and the next lsn.
    pub fn lsns(&self) -> (u64, u64) {
        let inner = self.inner.lock();
        (inner.durable_lsn, inner.next_lsn)
    }

    /// Whether the floor should be computed anew (see [`Queue::offer_floor`]).
    pub fn wants_floor(&self) -> bool {
        self.inner.lock().floors.is_wanted()
    }

    /// A floor that was computed from the state of the partitions, at some time before now.
    pub fn offer_floor(&self, floor: u64) {
        let mut inner = self.inner.lock();
        let (shown_lsn, taken_lsn) = (inner.next_lsn - 1, inner.taken_lsn);
        inner.floors.offer(floor, shown_lsn);
        inner.floors.taken(taken_lsn);
        let has_others = inner.in_flight.len() > 1;
        drop(inner);
        if has_others {
            // They may have segments to free.
            self.work.notify_waiters();
        }
    }

    /// Whether a checkpoint would free a segment whose last record is this one.
    pub fn would_free(&self, last_lsn: u64) -> bool {
        self.inner.lock().floors.would_free(last_lsn)
    }

    /// Segments whose records all lie below it may be used again.
    pub fn durable_floor(&self) -> u64 {
        self.inner.lock().floors.durable()
    }

    // For the completer.

    /// Waits for completions and moves them to `ready`, in order. Returns the result that they are to have; None: there will be
    /// no more.
    pub async fn completed(&self, ready: &mut Vec<Completion>) -> Option<io::Result<()>> {
        loop {
            {
                let mut inner = self.inner.lock();
                if let Some(message) = &inner.failed {
                    let error = io::Error::other(message.clone());
                    ready.extend(inner.completions.drain(..).map(|(_, completion)| completion));
                    if inner.workers == 0 && ready.is_empty() {
                        return None;
                    }
                    if !ready.is_empty() {
                        return Some(Err(error));
                    }
                } else {
                    while inner.completions.front().is_some_and(|(lsn, _)| *lsn <= inner.durable_lsn) {
                        ready.extend(inner.completions.pop_front().map(|(_, completion)| completion));
                    }
                    if !ready.is_empty() {
                        return Some(Ok(()));
                    }
                    if inner.workers == 0 {
                        return None;
                    }
                }
            }
            self.durable.notified().await;
        }
    }

    /// Records that wait for a device.
    pub fn len(&self) -> usize {
        self.inner.lock().items.len()
    }
}

impl Inner {
    fn admit(&self, bytes: u64, is_append: bool) -> io::Result<()> {
        if let Some(message) = &self.failed {
            return Err(io::Error::other(message.clone()));
        }
        if self.closing {
            return Err(io::Error::other("the log is being closed"));
        }
        if self.space.iter().all(|space| space.exhausted) {
            // A purge must find room for the checkpoint that frees segments.
            let reserve = if is_append { SPACE_RESERVE_BYTES + 2 * self.checkpoint_bytes() } else { 0 };
            let room = self.space.iter().map(|space| space.room).max().unwrap_or(0);
            // Each record may become a batch of its own.
            let batches = (self.items.len() as u64 + 1) * 2 * BATCH_HEADER_BYTES as u64;
            if self.bytes + bytes + batches + reserve > room {
                let what = "no space left on the log devices";
                return Err(io::Error::new(io::ErrorKind::StorageFull, what));
            }
        }
        Ok(())
    }

    /// Bytes of a checkpoint's batch, with padding.
    fn checkpoint_bytes(&self) -> u64 {
        (BATCH_HEADER_BYTES + Checkpoint::encoded_len(self.metas.len())).next_multiple_of(BATCH_HEADER_BYTES)
            as u64
    }

    fn make_checkpoint(&mut self) -> Checkpoint {
        Checkpoint { floor: self.floors.state(), partitions: self.metas.clone() }
    }

    /// Books what a device was given. A checkpoint in it was made before.
    fn start(
        &mut self,
        device: usize,
        items: VecDeque<Item>,
        checkpoint: Option<Checkpoint>,
        roll: bool,
    ) -> Taken {
        let first_lsn = self.taken_lsn + 1;
        let queued = self.bytes;
        for item in &items {
            self.metas[item.slot as usize].1.apply(item.kind, item.detail, item.term, item.index);
            self.bytes -= item.bytes();
            if item.kind == RecordKind::Purge {
                self.floors.purged();
            }
        }
        // Until the worker says what is really left.
        let space = &mut self.space[device];
        space.room = space.room.saturating_sub(queued - self.bytes + 2 * BATCH_HEADER_BYTES as u64);
        self.taken_lsn += items.len() as u64;
        self.floors.taken(self.taken_lsn);
        let floor = checkpoint.as_ref().map(|checkpoint| (first_lsn - 1, checkpoint.floor));
        self.in_flight[device] = Some(InFlight { first_lsn, checkpoint: floor });
        Taken { items, first_lsn, checkpoint, roll, durable_lsn: self.durable_lsn }
    }
}
