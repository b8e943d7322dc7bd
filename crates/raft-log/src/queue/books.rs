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
/// What appends leave of each device that is running out of space, for votes, for what keeps a stopping server consistent, and
/// for the checkpoint of the next start.
const SPACE_RESERVE_BYTES: u64 = 64 << 10;
/// What a batch takes beside its records: its header, and padding.
const BATCH_EXTRA_BYTES: u64 = 2 * BATCH_HEADER_BYTES as u64;

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
    /// There is work, but this device is full, and another has more room.
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
            let reserve = if is_append { self.reserve_bytes() } else { 0 };
            // Of one device, which takes all that the others do not: see `is_for`.
            let room = self.space.iter().map(|space| space.room).max().unwrap_or(0);
            if self.queued_bytes() + bytes + BATCH_EXTRA_BYTES + reserve > room {
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
            let alone = if checkpoint { self.checkpoint_alone(device, room, items) } else { None };
            return alone.unwrap_or(if self.closing { Take::Closed } else { Take::Idle });
        };
        let record = BATCH_HEADER_BYTES as u64 + first.bytes();
        if !self.is_for(device, record) {
            let alone = if checkpoint { self.checkpoint_alone(device, room, items) } else { None };
            return alone.unwrap_or(Take::NotHere);
        }
        let checkpoint = checkpoint && self.goes_along(device, record, room);
        let before = if checkpoint { self.checkpoint_bytes() } else { 0 };
        let roll = before + record > room;
        let limit = self.batch_bytes_max(device, if roll { fresh } else { room }, roll || checkpoint);
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

    /// Whether a device is to take a record that needs so many bytes. What does not fit behind the reserve of a full device is
    /// left to the one with the most room, for which it was admitted: there is always one that takes it.
    fn is_for(&self, device: usize, record: u64) -> bool {
        let space = self.space[device];
        let rank = |device: usize| (!self.space[device].exhausted, self.space[device].room, device);
        !space.exhausted
            || record + self.reserve_bytes() <= space.room
            || (0..self.space.len()).all(|other| rank(other) <= rank(device))
    }

    /// Whether a checkpoint that is due is written before the next records. On a full device it neither begins a segment, nor
    /// takes the room of what was admitted: it waits until nothing is queued.
    fn goes_along(&self, device: usize, record: u64, room: u64) -> bool {
        let (space, needs) = (self.space[device], self.checkpoint_bytes());
        !space.exhausted || needs + record <= room && needs + self.queued_bytes() <= space.room
    }

    /// A checkpoint without records. It is not worth the last bytes of a disk.
    fn checkpoint_alone(&mut self, device: usize, room: u64, items: VecDeque<Item>) -> Option<Take> {
        let (needs, space) = (self.checkpoint_bytes(), self.space[device]);
        (!space.exhausted || needs <= space.room).then(|| {
            let made = self.make_checkpoint();
            Take::Work(self.start(device, items, Some(made), needs > room))
        })
    }

    /// How many bytes of records go into a batch: of what a segment has room for, behind the checkpoint if there is one. The
    /// first record goes there whatever it has.
    fn batch_bytes_max(&self, device: usize, room: u64, checkpoint: bool) -> u64 {
        let space = self.space[device];
        let before = if checkpoint { self.checkpoint_bytes() } else { 0 };
        let behind = if space.exhausted { space.room.saturating_sub(self.reserve_bytes()) } else { u64::MAX };
        let bytes = room.saturating_sub(before).min(behind).min(BATCH_BYTES_MAX);
        bytes.saturating_sub(BATCH_HEADER_BYTES as u64)
    }

    /// What is queued will take, even if each record becomes a batch of its own.
    fn queued_bytes(&self) -> u64 {
        self.bytes + self.items.len() as u64 * BATCH_EXTRA_BYTES
    }

    /// What appends leave of a full device: a purge must find room for the checkpoint that frees segments.
    fn reserve_bytes(&self) -> u64 {
        SPACE_RESERVE_BYTES + 2 * self.checkpoint_bytes()
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
        // Until the worker says what is really left. A new segment's checkpoint was never counted as room.
        let before = if checkpoint.is_some() && !roll { self.checkpoint_bytes() } else { 0 };
        let space = &mut self.space[device];
        space.room = space.room.saturating_sub(before + queued - self.bytes + BATCH_EXTRA_BYTES);
        self.taken_lsn += items.len() as u64;
        self.floors.taken(self.taken_lsn);
        let floor = checkpoint.as_ref().map(|checkpoint| (first_lsn - 1, checkpoint.floor));
        self.in_flight[device] = Some(InFlight { first_lsn, checkpoint: floor });
        Taken { items, first_lsn, checkpoint, roll, durable_lsn: self.durable_lsn }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of three partitions.
    const CHECKPOINT: u64 = 320;
    const RESERVE: u64 = SPACE_RESERVE_BYTES + 2 * CHECKPOINT;

    fn books(rooms: &[u64]) -> Books {
        let metas = (0..3).map(|id| (id, LogMeta::default())).collect();
        let mut books = Books::new(Start { last_lsn: 0, floor: 1, metas, devices: rooms.len() });
        books.space =
            rooms.iter().map(|room| Space { exhausted: true, room: *room, file_bytes: 0 }).collect();
        assert_eq!((books.checkpoint_bytes(), books.reserve_bytes()), (CHECKPOINT, RESERVE));
        books
    }

    /// Queues a record of so many bytes with its batch's header.
    fn queue(books: &mut Books, bytes: u64) {
        let mut item = Item::control(0, RecordKind::Entry, true, (1, 1));
        item.payload = vec![0; bytes as usize - 96].into();
        books.bytes += item.bytes();
        books.items.push_back(item);
    }

    /// What a device is given whose segment has `room`, and which has no other file.
    fn take(books: &mut Books, device: usize, room: u64, checkpoint: bool) -> Take {
        books.take(device, room, 0, checkpoint, VecDeque::new())
    }

    #[test]
    fn what_was_admitted_for_one_device_is_not_taken_by_another() {
        let (little, much) = (900, 1 << 20);
        let mut books = books(&[little, much]);
        books.admit(10_000, true).unwrap();
        queue(&mut books, 10_000);
        assert!(matches!(take(&mut books, 0, little, false), Take::NotHere));
        assert!(matches!(take(&mut books, 1, much, false), Take::Work(taken) if !taken.roll));
    }

    #[test]
    fn appends_leave_the_reserve_of_every_full_device() {
        let room = RESERVE + 5_000;
        let mut books = books(&[room, 1 << 20]);
        for _ in 0..3 {
            queue(&mut books, 2_000);
        }
        let Take::Work(taken) = take(&mut books, 0, room, false) else { panic!("it fits") };
        assert_eq!(taken.items.len(), 2, "the third would be in the reserve");
        assert!(matches!(take(&mut books, 0, room - 4_096, false), Take::NotHere));
        // What is urgent gets the reserve, too.
        books.space[1].room = 0;
        assert!(matches!(take(&mut books, 0, room - 4_096, false), Take::Work(_)));
    }

    #[test]
    fn there_is_always_one_device_that_takes_what_is_queued() {
        for rooms in [[0, 0, 0], [500, 0, 500], [100, 200, 300], [RESERVE, RESERVE + 1, RESERVE]] {
            for not_full in [None, Some(0), Some(2)] {
                let takers = (0..3).filter(|device| {
                    let mut books = books(&rooms);
                    not_full.into_iter().for_each(|device: usize| books.space[device].exhausted = false);
                    queue(&mut books, 200);
                    matches!(take(&mut books, *device, rooms[*device], false), Take::Work(_))
                });
                assert_eq!(takers.count(), 1, "{rooms:?} {not_full:?}");
            }
        }
    }

    #[test]
    fn a_checkpoint_that_is_due_does_not_take_the_room_of_records() {
        let room = 1_000;
        let mut books = books(&[room]);
        queue(&mut books, 800);
        let Take::Work(taken) = take(&mut books, 0, room, true) else { panic!("it fits") };
        assert!(!taken.roll && taken.checkpoint.is_none());
        // With more room it goes along.
        books.space[0].room = RESERVE;
        queue(&mut books, 800);
        let Take::Work(taken) = take(&mut books, 0, RESERVE, true) else { panic!("it fits") };
        assert!(!taken.roll && taken.checkpoint.is_some());
        assert_eq!(books.space[0].room, RESERVE - CHECKPOINT - (800 - 64) - BATCH_EXTRA_BYTES);
    }

    #[test]
    fn a_device_that_leaves_records_to_others_still_writes_the_checkpoint_that_frees_its_segments() {
        let mut books = books(&[CHECKPOINT, 1 << 20]);
        queue(&mut books, 800);
        let Take::Work(taken) = take(&mut books, 0, CHECKPOINT, true) else { panic!("it fits") };
        assert!(taken.items.is_empty() && taken.checkpoint.is_some() && !taken.roll);
        assert!(matches!(take(&mut books, 0, 0, true), Take::NotHere), "there is no room for another");
    }

    #[test]
    fn a_batch_is_no_longer_than_the_file_that_it_begins() {
        let mut books = books(&[1 << 20]);
        books.space[0].exhausted = false;
        (0..10).for_each(|_| queue(&mut books, 1_000));
        let Take::Work(taken) = books.take(0, 500, 4_096, false, VecDeque::new()) else { panic!() };
        assert!(taken.roll);
        assert_eq!(taken.items.len(), 3, "beside the checkpoint");
    }
}
