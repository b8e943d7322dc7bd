//! Who waits for an element of a list or a sorted set, in the order in which they came.
//!
//! Owns a line for each key that is waited for. The first of a line looks at the key now and then, because elements may come through
//! other servers, and is woken by those that come through this one; the others sleep until it is their turn.
//!
//! Invariant: whoever leaves a line that it was first of wakes the next one.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use sextant_common::database::Database;
use sextant_common::marks::Kind;
use tokio::sync::{Notify, Semaphore};

use crate::queued::{Held, QueuedRoom};

/// What a key that is waited for takes beside its bytes.
const KEY_BYTES: usize = 256;
/// How long one who is first waits between two looks, if few keys are waited for.
const PAUSE: Duration = Duration::from_millis(20);
/// The longest time between two looks: within it every key is looked at, however many there are.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// With many keys all of them are looked at so often together, in a second, unless that would take longer than [`PAUSE_MAX`].
const LOOKS_PER_S: usize = 10_000;
/// Most of them that take something at once, after a look that has found something.
const TRIES_MAX: usize = 64;

/// What is waited for.
type Place = (Database, Kind, Bytes);

fn of((database, kind): (Database, Kind), key: &Bytes) -> Place {
    (database, kind, key.clone())
}

/// Of all connections.
#[derive(Debug)]
pub(crate) struct Waiters {
    lines: Mutex<HashMap<Place, VecDeque<Arc<Notify>>>>,
    count: AtomicUsize,
    pub tries: Semaphore,
    /// For the keys.
    room: QueuedRoom,
}

/// One who waits, until it is dropped.
#[derive(Debug)]
pub(crate) struct Waiter<'w> {
    all: &'w Waiters,
    place: (Database, Kind),
    keys: Vec<Bytes>,
    seat: Arc<Notify>,
    _room: Held,
}

impl Waiters {
    /// So many bytes are for the keys, beyond the few that each who waits has for nothing.
    pub fn new(bytes_max: usize) -> Self {
        Self {
            lines: Mutex::default(),
            count: AtomicUsize::new(0),
            tries: Semaphore::new(TRIES_MAX),
            room: QueuedRoom::new(bytes_max),
        }
    }

    /// Stands in the line of each of these keys, copies of which are kept. None: there is no room for them.
    pub fn enter(&self, place: (Database, Kind), keys: &[Bytes]) -> Option<Waiter<'_>> {
        let mut held = Held::default();
        if !held.take(&self.room, keys.iter().map(|key| key.len() + KEY_BYTES).sum()) {
            return None;
        }
        let mut keys: Vec<Bytes> = keys.iter().map(|key| Bytes::copy_from_slice(key)).collect();
        let mut seen = std::collections::HashSet::new();
        keys.retain(|key| seen.insert(key.clone()));
        let seat = Arc::new(Notify::new());
        let mut lines = self.lines.lock();
        for key in &keys {
            lines.entry(of(place, key)).or_default().push_back(seat.clone());
        }
        self.count.fetch_add(1, Ordering::SeqCst);
        drop(lines);
        Some(Waiter { all: self, place, keys, seat, _room: held })
    }

    pub fn count(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }

    /// Whether somebody waits for this.
    pub fn has_line(&self, place: (Database, Kind), key: &Bytes) -> bool {
        self.count() > 0 && self.lines.lock().contains_key(&of(place, key))
    }

    /// There may be something under this key.
    pub fn wake(&self, database: Database, key: &Bytes) {
        if self.count() == 0 {
            return;
        }
        let lines = self.lines.lock();
        for kind in [Kind::List, Kind::SortedSet] {
            if let Some(first) = lines.get(&of((database, kind), key)).and_then(VecDeque::front) {
                first.notify_one();
            }
        }
    }

    /// How long one who is first waits until it looks again.
    pub fn pause(&self) -> Duration {
        let keys = self.lines.lock().len() as u32;
        let even = Duration::from_secs(1) / LOOKS_PER_S as u32;
        even.saturating_mul(keys).clamp(PAUSE, PAUSE_MAX)
    }
}

impl Waiter<'_> {
    /// The keys in whose lines it is first.
    pub fn leads(&self) -> Vec<Bytes> {
        let lines = self.all.lines.lock();
        let is_first = |key: &&Bytes| {
            let first = lines.get(&of(self.place, key)).and_then(VecDeque::front);
            first.is_some_and(|first| Arc::ptr_eq(first, &self.seat))
        };
        self.keys.iter().filter(is_first).cloned().collect()
    }

    /// Until there may be something for it.
    pub async fn woken(&self) {
        self.seat.notified().await;
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let mut lines = self.all.lines.lock();
        self.all.count.fetch_sub(1, Ordering::SeqCst);
        for key in std::mem::take(&mut self.keys) {
            let place = of(self.place, &key);
            let Some(line) = lines.get_mut(&place) else { continue };
            let was_first = line.front().is_some_and(|first| Arc::ptr_eq(first, &self.seat));
            line.retain(|seat| !Arc::ptr_eq(seat, &self.seat));
            match line.front() {
                None => drop(lines.remove(&place)),
                // (There may be more than was taken.)
                Some(next) if was_first => next.notify_one(),
                Some(_) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    const LISTS: (Database, Kind) = (Database::FIRST, Kind::List);

    fn waiters() -> Waiters {
        Waiters::new(1 << 20)
    }

    #[test]
    fn who_came_first_is_woken_first_and_then_the_next() {
        let all = waiters();
        let key = Bytes::from_static(b"k");
        let enter = || all.enter(LISTS, std::slice::from_ref(&key)).unwrap();
        let (first, second) = (enter(), enter());
        assert_eq!((first.leads(), second.leads()), (vec![key.clone()], vec![]));
        all.wake(Database::FIRST, &key);
        assert!(first.woken().now_or_never().is_some() && second.woken().now_or_never().is_none());
        drop(first);
        assert!(second.woken().now_or_never().is_some(), "there may be more");
        assert_eq!(second.leads(), vec![key.clone()]);
        drop(second);
        assert_eq!((all.count(), all.has_line(LISTS, &key)), (0, false));
    }

    #[test]
    fn lists_and_sorted_sets_have_lines_of_their_own() {
        let all = waiters();
        let keys = [Bytes::from_static(b"k"), Bytes::from_static(b"l"), Bytes::from_static(b"k")];
        let list = all.enter(LISTS, &keys[..1]).unwrap();
        let sorted = all.enter((Database::FIRST, Kind::SortedSet), &keys).unwrap();
        assert_eq!(sorted.leads(), keys[..2], "a key that is named twice has one place");
        all.wake(Database::FIRST, &keys[1]);
        assert!(sorted.woken().now_or_never().is_some() && list.woken().now_or_never().is_none());
    }

    #[test]
    fn many_keys_are_looked_at_less_often_and_without_room_nobody_waits() {
        let all = waiters();
        assert_eq!(all.pause(), PAUSE);
        let keys: Vec<Bytes> = (0..1000).map(|n| Bytes::from(format!("key{n}"))).collect();
        let _waiter = all.enter(LISTS, &keys).unwrap();
        assert_eq!(all.pause(), Duration::from_millis(100));
        let others: Vec<_> = (0..10).map_while(|_| all.enter(LISTS, &keys)).collect();
        assert!(others.len() < 10);
    }

    #[test]
    fn however_many_keys_there_are_each_is_looked_at_within_a_second() {
        let all = Waiters::new(16 << 20);
        let keys: Vec<Bytes> = (0..12_000).map(|n| Bytes::from(format!("key{n}"))).collect();
        let _waiter = all.enter(LISTS, &keys).unwrap();
        assert_eq!(all.pause(), Duration::from_secs(1));
    }
}
