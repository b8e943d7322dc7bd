//! Who waits for an element of a list or a sorted set, in the order in which they came.
//!
//! Owns a line for each key that is waited for. The first of a line looks at the key now and then, because elements may come through
//! other servers, and is woken by those that come through this one; the others sleep until it is their turn.
//!
//! Invariant: whoever leaves a line that it was first of, or lets others pass, wakes the next one.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use sextant_common::database::Database;
use sextant_common::marks::Kind;
use tokio::sync::{Notify, Semaphore, SemaphorePermit};

use crate::queued::{Held, QueuedRoom};

/// What a key that is waited for takes beside its bytes.
const KEY_BYTES: usize = 256;
/// How long one who is first waits between two looks, if few keys are waited for.
const PAUSE: Duration = Duration::from_millis(20);
/// The longest time between two looks: within it every key is looked at, however many there are.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// With many keys all of them are looked at so often together, in a second, unless that would take longer than [`PAUSE_MAX`].
const LOOKS_PER_S: usize = 10_000;
/// Most of them that take something at once of one owner of keys, after a look that has found something: one that does not answer holds
/// up nobody who takes something of another.
const TRIES_MAX: usize = 16;
/// Owners beyond this share tries.
const OWNERS_MAX: usize = 64;

/// What is waited for.
type Place = (Database, Kind, Bytes);

fn of((database, kind): (Database, Kind), key: &Bytes) -> Place {
    (database, kind, key.clone())
}

/// Of all connections.
#[derive(Debug)]
pub(crate) struct Waiters {
    lines: Mutex<HashMap<Place, Line>>,
    count: AtomicUsize,
    tries: Vec<Semaphore>,
    /// For the keys.
    room: QueuedRoom,
}

/// Those that wait for one key, in the order in which they came.
#[derive(Debug, Default)]
struct Line(VecDeque<Seat>);

#[derive(Debug)]
struct Seat {
    of: Arc<Notify>,
    /// It tries to take something of other keys, and lets those behind it pass meanwhile.
    is_away: bool,
}

impl Line {
    /// The first one; if all are away, that which was there first, as it looks when it is back.
    fn first(&self) -> Option<&Arc<Notify>> {
        let here = self.0.iter().find(|seat| !seat.is_away);
        here.or(self.0.front()).map(|seat| &seat.of)
    }

    fn is_led_by(&self, of: &Arc<Notify>) -> bool {
        self.first().is_some_and(|first| Arc::ptr_eq(first, of))
    }

    fn wake_first(&self) {
        if let Some(first) = self.first() {
            first.notify_one();
        }
    }

    fn seat(&mut self, of: &Arc<Notify>) -> Option<&mut Seat> {
        self.0.iter_mut().find(|seat| Arc::ptr_eq(&seat.of, of))
    }
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
            tries: (0..OWNERS_MAX).map(|_| Semaphore::new(TRIES_MAX)).collect(),
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
            let line = lines.entry(of(place, key)).or_default();
            line.0.push_back(Seat { of: seat.clone(), is_away: false });
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
            if let Some(line) = lines.get(&of((database, kind), key)) {
                line.wake_first();
            }
        }
    }

    /// A turn to take something of keys of this owner, until it is dropped. None: there is none for so long.
    pub async fn turn(&self, owner: u32, patience: Duration) -> Option<SemaphorePermit<'_>> {
        let tries = &self.tries[owner as usize % OWNERS_MAX];
        tokio::time::timeout(patience, tries.acquire()).await.ok()?.ok()
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
        let leads =
            |key: &&Bytes| lines.get(&of(self.place, key)).is_some_and(|line| line.is_led_by(&self.seat));
        self.keys.iter().filter(leads).cloned().collect()
    }

    /// While it tries to take something of these keys, which may take long, others pass in the lines of all others.
    pub fn tries(&self, keys: &[Bytes]) -> Away<'_> {
        let others: Vec<&Bytes> = self.keys.iter().filter(|key| !keys.contains(key)).collect();
        self.mark(&others, true);
        Away { waiter: self, keys: others }
    }

    fn mark(&self, keys: &[&Bytes], is_away: bool) {
        if keys.is_empty() {
            return;
        }
        let mut lines = self.all.lines.lock();
        for key in keys {
            let Some(line) = lines.get_mut(&of(self.place, key)) else { continue };
            let led = line.is_led_by(&self.seat);
            if let Some(seat) = line.seat(&self.seat) {
                seat.is_away = is_away;
            }
            if led && !line.is_led_by(&self.seat) {
                line.wake_first();
            }
        }
    }

    /// Until there may be something for it.
    pub async fn woken(&self) {
        self.seat.notified().await;
    }
}

/// One who waits lets others pass in the lines of these keys, until it is dropped.
#[derive(Debug)]
pub(crate) struct Away<'w> {
    waiter: &'w Waiter<'w>,
    keys: Vec<&'w Bytes>,
}

impl Drop for Away<'_> {
    fn drop(&mut self) {
        self.waiter.mark(&self.keys, false);
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let mut lines = self.all.lines.lock();
        self.all.count.fetch_sub(1, Ordering::SeqCst);
        for key in std::mem::take(&mut self.keys) {
            let place = of(self.place, &key);
            let Some(line) = lines.get_mut(&place) else { continue };
            // (One that is away may have been woken for another.)
            let was_first =
                line.is_led_by(&self.seat) || line.seat(&self.seat).is_some_and(|seat| seat.is_away);
            line.0.retain(|seat| !Arc::ptr_eq(&seat.of, &self.seat));
            if line.0.is_empty() {
                lines.remove(&place);
            } else if was_first {
                // (There may be more than was taken.)
                line.wake_first();
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
    fn while_the_first_takes_something_of_one_key_others_pass_in_the_line_of_another() {
        let all = waiters();
        let keys = [Bytes::from_static(b"k"), Bytes::from_static(b"l")];
        let first = all.enter(LISTS, &keys).unwrap();
        let second = all.enter(LISTS, &keys[1..]).unwrap();
        let away = first.tries(&keys[..1]);
        assert!(second.woken().now_or_never().is_some(), "there may be something");
        assert_eq!((first.leads(), second.leads()), (vec![keys[0].clone()], vec![keys[1].clone()]));
        all.wake(Database::FIRST, &keys[1]);
        assert!(second.woken().now_or_never().is_some() && first.woken().now_or_never().is_none());
        drop(away);
        assert_eq!((first.leads(), second.leads()), (keys.to_vec(), vec![]), "nothing came of it");
        drop(second);
        let away = first.tries(&keys[..1]);
        all.wake(Database::FIRST, &keys[1]);
        assert!(first.woken().now_or_never().is_some(), "it looks when it is back");
        let last = all.enter(LISTS, &keys[1..]).unwrap();
        drop(away);
        drop(first);
        assert!(last.woken().now_or_never().is_some());
        assert_eq!(last.leads(), keys[1..]);
    }

    #[tokio::test(start_paused = true)]
    async fn no_owner_has_the_tries_of_another() {
        let all = waiters();
        let mut turns = Vec::new();
        for _ in 0..TRIES_MAX {
            turns.push(all.turn(1, PAUSE).await.expect("there are as many"));
        }
        assert!(all.turn(1, PAUSE).await.is_none());
        assert!(all.turn(2, PAUSE).await.is_some());
        turns.pop();
        assert!(all.turn(1, PAUSE).await.is_some());
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
