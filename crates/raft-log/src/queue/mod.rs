//! The order of all records, and how far it is durable.
//!
//! Owns the log sequence numbers (lsn), the records that wait for a device, and who waits for durability. Every record gets
//! the next lsn of the server when it is queued. A device's worker takes a run of consecutive records (whatever has queued
//! up, on whichever device is free: positions on one device never decrease), so each batch is named by its first lsn.
//!
//! [`Queue`] is a lock and who is woken when; what is decided under it is [`Books`].
//!
//! Does not own files, nor where entries are.
//!
//! Invariants: records are taken in the order of their lsns. Everything up to `durable_lsn` is durable on all devices, and
//! only what lies at or below it is ever completed with `Ok`. `metas` is the sum of all records *taken*, so a checkpoint
//! made of it speaks for exactly the records below the next one to be taken.

mod books;
mod floors;
mod item;

use std::collections::VecDeque;
use std::io;

use parking_lot::Mutex;
use tokio::sync::Notify;

use self::books::Books;
pub(crate) use self::books::{Space, Start, Take, Taken};
pub(crate) use self::item::{Completion, Item};
use crate::format::checkpoint::LogMeta;

pub(crate) struct Queue {
    books: Mutex<Books>,
    /// Wakes workers.
    work: Notify,
    /// Wakes the completer.
    durable: Notify,
    /// Wakes appends that wait for room.
    room: Notify,
}

impl Queue {
    pub fn new(start: Start) -> Self {
        let books = Mutex::new(Books::new(start));
        Self { books, work: Notify::new(), durable: Notify::new(), room: Notify::new() }
    }

    /// A new partition's slot.
    pub fn add_partition(&self, id: u32) -> u32 {
        let mut books = self.books.lock();
        books.metas.push((id, LogMeta::default()));
        books.metas.len() as u32 - 1
    }

    // For those who write to the log.

    /// Waits while too much is queued.
    pub async fn wait_for_room(&self) {
        loop {
            let notified = self.room.notified();
            tokio::pin!(notified);
            notified.as_mut().enable();
            {
                let books = self.books.lock();
                if !books.is_full() || books.failed.is_some() || books.closing {
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
            let mut books = self.books.lock();
            books.admit(bytes, is_append)?;
            for item in items {
                queued(&item, books.next_lsn);
                books.next_lsn += 1;
                books.bytes += item.bytes();
                books.items.push_back(item);
            }
            if let Some(completion) = completion {
                let lsn = books.next_lsn - 1;
                books.completions.push_back((lsn, completion));
                if lsn <= books.durable_lsn {
                    self.durable.notify_one();
                }
            }
        }
        self.work.notify_one();
        Ok(())
    }

    /// Why appends would be refused now: out of space, failed or stopping. What is reserved counts as used.
    pub fn check(&self, bytes: u64) -> io::Result<()> {
        let books = self.books.lock();
        books.admit(books.reserved.saturating_add(bytes), true)
    }

    /// As [`Queue::check`] for `bytes + spare`, and keeps `bytes` until [`Queue::unreserve`].
    pub fn reserve(&self, bytes: u64, spare: u64) -> io::Result<()> {
        let mut books = self.books.lock();
        books.admit(books.reserved.saturating_add(bytes).saturating_add(spare), true)?;
        books.reserved += bytes;
        Ok(())
    }

    pub fn unreserve(&self, bytes: u64) {
        let mut books = self.books.lock();
        books.reserved = books.reserved.saturating_sub(bytes);
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
        let mut books = self.books.lock();
        let was_full = books.is_full();
        let take = books.take(device, room, fresh, checkpoint, items);
        if was_full && !books.is_full() {
            self.room.notify_waiters();
        }
        if matches!(take, Take::Work(_)) && books.has_work_for_others() {
            self.work.notify_one();
        }
        take
    }

    /// What a device was given is durable, in the segment of this number.
    pub fn complete(&self, device: usize, segment: u32, space: Space) {
        let mut books = self.books.lock();
        let done = books.complete(device, segment, space);
        drop(books);
        if done.completes {
            self.durable.notify_one();
        }
        if done.retires {
            // The other devices may have segments to retire.
            self.work.notify_waiters();
        }
    }

    pub fn set_space(&self, device: usize, space: Space) {
        self.books.lock().space[device] = space;
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
        let mut books = self.books.lock();
        books.failed.get_or_insert_with(|| message.to_owned());
        books.items.clear();
        books.bytes = 0;
        drop(books);
        self.wake_all();
    }

    pub fn is_failed(&self) -> bool {
        self.books.lock().failed.is_some()
    }

    /// A worker ends.
    pub fn worker_ended(&self) {
        self.books.lock().workers -= 1;
        self.wake_all();
    }

    /// Accept nothing more; workers write what is queued and end.
    pub fn close(&self) {
        self.books.lock().closing = true;
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
        let books = self.books.lock();
        (books.durable_lsn, books.next_lsn)
    }

    /// Whether the caller is to compute the floor anew, and offer it (see [`Queue::offer_floor`]).
    pub fn begin_floor(&self) -> bool {
        self.books.lock().floors.begin()
    }

    /// A floor that was computed from the state of the partitions, at some time before now.
    pub fn offer_floor(&self, floor: u64) {
        let mut books = self.books.lock();
        let (shown_lsn, taken_lsn) = (books.next_lsn - 1, books.taken_lsn);
        books.floors.offer(floor, shown_lsn);
        books.floors.taken(taken_lsn);
        let has_others = books.in_flight.len() > 1;
        drop(books);
        if has_others {
            // They may have segments to free.
            self.work.notify_waiters();
        }
    }

    /// Whether a checkpoint would free a segment whose last record is this one.
    pub fn would_free(&self, last_lsn: u64) -> bool {
        self.books.lock().floors.would_free(last_lsn)
    }

    /// Whether the segment of this number, whose last record is this one, may be used again.
    pub fn may_retire(&self, segment: u32, last_lsn: u64) -> bool {
        self.books.lock().floors.may_retire(segment, last_lsn)
    }

    // For the completer.

    /// Waits for completions and moves them to `ready`, in order. Returns the result that they are to have; None: there will be
    /// no more.
    pub async fn completed(&self, ready: &mut Vec<Completion>) -> Option<io::Result<()>> {
        loop {
            {
                let mut books = self.books.lock();
                if let Some(message) = &books.failed {
                    let error = io::Error::other(message.clone());
                    ready.extend(books.completions.drain(..).map(|(_, completion)| completion));
                    if books.workers == 0 && ready.is_empty() {
                        return None;
                    }
                    if !ready.is_empty() {
                        return Some(Err(error));
                    }
                } else {
                    while books.completions.front().is_some_and(|(lsn, _)| *lsn <= books.durable_lsn) {
                        ready.extend(books.completions.pop_front().map(|(_, completion)| completion));
                    }
                    if !ready.is_empty() {
                        return Some(Ok(()));
                    }
                    if books.workers == 0 {
                        return None;
                    }
                }
            }
            self.durable.notified().await;
        }
    }

    /// Records that wait for a device.
    pub fn len(&self) -> usize {
        self.books.lock().items.len()
    }
}
