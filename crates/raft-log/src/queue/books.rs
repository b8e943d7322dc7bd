//! What is queued, taken, in flight and durable, and what a device gets next.
//!
//! Owns the numbers of the queue and every decision about them. No lock, no waiting: whoever calls has the lock, and wakes others.

use std::collections::VecDeque;
use std::io;

use super::floors::{Floors, Written};
use super::item::{Completion, Item};
use crate::format::batch::BATCH_HEADER_BYTES;
use crate::format::checkpoint::{Checkpoint, LogMeta};
use crate::format::record::RecordKind;

/// Largest batch, unless one record is larger: more only delays those who wait for the first record in it.
const BATCH_BYTES_MAX: u64 = 4 << 20;
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
    /// What the next file takes.
    pub file_bytes: u64,
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

/// What follows from a write that is durable.
pub(super) struct Done {
    /// Somebody waits for it.
    pub completes: bool,
    /// The other devices may have segments to retire.
    pub retires: bool,
}

pub(super) struct InFlight {
    first_lsn: u64,
    /// Lsn and floor of a checkpoint in the same write.
    checkpoint: Option<(u64, u64)>,
}

/// What recovery found, for the queue to go on from.
pub(crate) struct Start {
    pub last_lsn: u64,
    pub floor: u64,
    pub metas: Vec<(u32, LogMeta)>,
    pub devices: usize,
}

/// See the module's head.
pub(super) struct Books {
    pub(super) next_lsn: u64,
    /// The last lsn that a worker took.
    pub(super) taken_lsn: u64,
    pub(super) durable_lsn: u64,
    pub(super) items: VecDeque<Item>,
    pub(super) bytes: u64,
    /// Promised to appends that are on their way here.
    pub(super) reserved: u64,
    pub(super) in_flight: Vec<Option<InFlight>>,
    pub(super) completions: VecDeque<(u64, Completion)>,
    /// By slot: the partition's id, and the sum of its taken records.
    pub(super) metas: Vec<(u32, LogMeta)>,
    pub(super) floors: Floors,
    pub(super) space: Vec<Space>,
    pub(super) failed: Option<String>,
    pub(super) closing: bool,
    /// Workers that still run.
    pub(super) workers: usize,
}

impl Books {
    pub(super) fn new(start: Start) -> Self {
        Self {
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
            space: vec![Space { exhausted: false, room: u64::MAX, file_bytes: 0 }; start.devices],
            failed: None,
            closing: false,
            workers: start.devices,
        }
    }

    /// Whether so many bytes more may be queued.
    pub(super) fn admit(&self, bytes: u64, is_append: bool) -> io::Result<()> {
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
                let file_bytes = self.space.iter().map(|space| space.file_bytes).min().unwrap_or(0);
                let what = format!(
                    "no space left on the log devices: another segment needs {file_bytes} bytes, or what is there has to be purged"
                );
                return Err(io::Error::new(io::ErrorKind::StorageFull, what));
            }
        }
        Ok(())
    }

    /// See `Queue::take`.
    pub(super) fn take(
        &mut self,
        device: usize,
        room: u64,
        fresh: u64,
        checkpoint: bool,
        mut items: VecDeque<Item>,
    ) -> Take {
        if self.failed.is_some() {
            return Take::Closed;
        }
        let Some(first) = self.items.front() else {
            let (needs, space) = (self.checkpoint_bytes(), self.space[device]);
            let roll = needs > room;
            // Not worth the last bytes of a disk.
            if checkpoint && !(space.exhausted && needs > space.room) {
                let made = self.make_checkpoint();
                return Take::Work(self.start(device, items, Some(made), roll));
            }
            return if self.closing { Take::Closed } else { Take::Idle };
        };
        let header = BATCH_HEADER_BYTES as u64;
        let mut needs = header + first.bytes();
        let space = self.space[device];
        if space.exhausted && needs > space.room && self.space.iter().any(|s| !s.exhausted) {
            return Take::NotHere;
        }
        if checkpoint {
            needs += self.checkpoint_bytes();
        }
        let roll = needs > room;
        let limit = if roll {
            fresh.saturating_sub(self.checkpoint_bytes())
        } else {
            room - (needs - header - first.bytes())
        };
        let limit = limit.min(BATCH_BYTES_MAX).saturating_sub(header);
        let checkpoint = (roll || checkpoint).then(|| self.make_checkpoint());
        if self.bytes <= limit {
            std::mem::swap(&mut items, &mut self.items);
        } else {
            let mut bytes = 0;
            while let Some(item) = self.items.front()
                && (items.is_empty() || bytes + item.bytes() <= limit)
            {
                bytes += item.bytes();
                items.extend(self.items.pop_front());
            }
        }
        Take::Work(self.start(device, items, checkpoint, roll))
    }

    /// Whether appends are to wait.
    pub(super) fn is_full(&self) -> bool {
        self.bytes >= QUEUE_BYTES_MAX
    }

    /// Whether something is left, and a worker that has nothing to do.
    pub(super) fn has_work_for_others(&self) -> bool {
        !self.items.is_empty() && self.in_flight.iter().any(Option::is_none)
    }

    /// What a device was given is durable, in the segment of this number.
    pub(super) fn complete(&mut self, device: usize, segment: u32, space: Space) -> Done {
        self.space[device] = space;
        let done = self.in_flight[device].take();
        if let Some((lsn, floor)) = done.and_then(|done| done.checkpoint) {
            self.floors.wrote(Written { lsn, floor, segment });
        }
        let first = self.in_flight.iter().flatten().map(|f| f.first_lsn).fold(self.taken_lsn + 1, u64::min);
        let durable = first - 1;
        self.durable_lsn = durable;
        let retires = self.floors.settle(durable);
        let completes = self.completions.front().is_some_and(|(lsn, _)| *lsn <= durable);
        Done { completes, retires }
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
