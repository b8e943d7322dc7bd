//! Room in memory that is taken before bytes are, and given back when they are gone.
//!
//! Invariants: what is held never has more bytes than there is room for (something larger than all of it takes all of it); who
//! waits longest comes next, so that a large wish is not passed by for ever.

use std::pin::pin;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use tokio::sync::{Mutex as AsyncMutex, OwnedSemaphorePermit, Semaphore};

/// Room is counted in these, so that some hundred gigabytes can be counted.
const UNIT_BYTES: usize = 1024;

/// A bounded number of bytes. Cheap to clone: clones share the room.
#[derive(Clone, Debug)]
pub struct Room {
    units: Arc<Semaphore>,
    units_max: u32,
    /// Whoever has some and needs more, one at a time.
    more: Arc<Semaphore>,
}

/// A share of a room; given back when dropped.
#[derive(Debug)]
pub struct Share {
    bytes: usize,
    _units: Option<OwnedSemaphorePermit>,
    _episode: Option<Arc<Episode>>,
}

impl Share {
    fn new(bytes: usize, units: Option<OwnedSemaphorePermit>) -> Self {
        Self { bytes, _units: units, _episode: None }
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

/// Takes shares one after the other for work that gives none of them back before it has all of them. Two such pieces of work
/// never wait for each other for ever: one at a time may have more than there is, until it has given everything back.
#[derive(Debug)]
pub struct Purse {
    room: Room,
    /// As long as any share is held.
    episode: AsyncMutex<Weak<Episode>>,
}

/// From a purse's first share until all are given back.
#[derive(Debug, Default)]
struct Episode {
    /// It is the one that may have more.
    more: OnceLock<OwnedSemaphorePermit>,
}

impl Purse {
    /// `patience`: see [`Room::take_or_more`].
    pub async fn take(&self, bytes: usize, patience: Duration) -> Share {
        let mut held = self.episode.lock().await;
        let Some(episode) = held.upgrade() else {
            let (units, is_more) = self.room.units_or_more(bytes, patience).await;
            let mut share = Share::new(bytes, None);
            let episode = Arc::new(Episode::default());
            match (is_more, units) {
                (true, Some(more)) => drop(episode.more.set(more)),
                (_, units) => share._units = units,
            }
            *held = Arc::downgrade(&episode);
            share._episode = Some(episode);
            return share;
        };
        let mut share = Share::new(bytes, None);
        if episode.more.get().is_none() {
            // It holds something already, and others may wait for that: no patience.
            match self.room.units_or_more(bytes, Duration::ZERO).await {
                (Some(more), true) => drop(episode.more.set(more)),
                (units, _) => share._units = units,
            }
        }
        share._episode = Some(episode);
        share
    }

    /// At once, or not at all.
    pub fn try_take(&self, bytes: usize) -> Option<Share> {
        let mut held = self.episode.try_lock().ok()?;
        let episode = held.upgrade().unwrap_or_default();
        let mut share = match episode.more.get() {
            Some(_) => Share::new(bytes, None),
            None => self.room.try_take(bytes)?,
        };
        *held = Arc::downgrade(&episode);
        share._episode = Some(episode);
        Some(share)
    }
}

impl Room {
    pub fn new(bytes_max: usize) -> Self {
        let units_max = u32::try_from(bytes_max.div_ceil(UNIT_BYTES).max(1)).unwrap_or(u32::MAX);
        let units_max = units_max.min(Semaphore::MAX_PERMITS.min(u32::MAX as usize) as u32);
        Self {
            units: Arc::new(Semaphore::new(units_max as usize)),
            units_max,
            more: Arc::new(Semaphore::new(1)),
        }
    }

    /// Waits until there is room.
    pub async fn take(&self, bytes: usize) -> Share {
        let units = self.units_of(bytes);
        // The semaphore is never closed.
        Share::new(bytes, self.units.clone().acquire_many_owned(units).await.ok())
    }

    /// At once, or not at all. Passes nobody by.
    pub fn try_take(&self, bytes: usize) -> Option<Share> {
        let units = self.units_of(bytes);
        let taken = self.units.clone().try_acquire_many_owned(units).ok()?;
        Some(Share::new(bytes, Some(taken)))
    }

    /// As [`Self::take`]; but whoever has waited for `patience` may also be the one who is given more than there is. For those
    /// whose turn others may wait for while they hold room themselves: so one of them always goes on.
    pub async fn take_or_more(&self, bytes: usize, patience: Duration) -> Share {
        Share::new(bytes, self.units_or_more(bytes, patience).await.0)
    }

    /// And whether it is more than there is.
    async fn units_or_more(&self, bytes: usize, patience: Duration) -> (Option<OwnedSemaphorePermit>, bool) {
        let units = self.units_of(bytes);
        if let Ok(taken) = self.units.clone().try_acquire_many_owned(units) {
            return (Some(taken), false);
        }
        let mut taken = pin!(self.units.clone().acquire_many_owned(units));
        if !patience.is_zero()
            && let Ok(taken) = tokio::time::timeout(patience, &mut taken).await
        {
            return (taken.ok(), false);
        }
        tokio::select! {
            biased;
            taken = taken => (taken.ok(), false),
            more = self.more.clone().acquire_owned() => (more.ok(), true),
        }
    }

    fn units_of(&self, bytes: usize) -> u32 {
        u32::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX).clamp(1, self.units_max)
    }

    /// For the parts of one piece of work that holds all of them until it is done.
    pub fn purse(&self) -> Purse {
        Purse { room: self.clone(), episode: AsyncMutex::default() }
    }

    pub fn held_bytes(&self) -> usize {
        (self.units_max as usize - self.units.available_permits().min(self.units_max as usize)) * UNIT_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn never_more_is_held_than_there_is_room_for_and_nobody_is_passed_by() {
        let room = Room::new(64 * UNIT_BYTES);
        let first = room.take(40 * UNIT_BYTES).await;
        let mut large = pin!(room.take(30 * UNIT_BYTES));
        assert!(futures::poll!(large.as_mut()).is_pending());
        let mut small = pin!(room.take(1));
        assert!(futures::poll!(small.as_mut()).is_pending(), "though it would fit");
        drop(first);
        let large = large.await;
        let _small = small.await;
        assert_eq!(room.held_bytes(), 31 * UNIT_BYTES);
        drop(large);
        assert_eq!(room.held_bytes(), UNIT_BYTES);
    }

    #[tokio::test]
    async fn what_is_larger_than_the_room_takes_all_of_it_and_who_leaves_the_line_holds_nothing() {
        let room = Room::new(10 * UNIT_BYTES);
        let all = room.take(usize::MAX).await;
        assert_eq!(room.held_bytes(), 10 * UNIT_BYTES);
        {
            let mut waiting = pin!(room.take(1));
            assert!(futures::poll!(waiting.as_mut()).is_pending());
        }
        drop(all);
        assert_eq!(room.held_bytes(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn of_those_who_have_waited_long_one_is_given_more_than_there_is() {
        let room = Room::new(UNIT_BYTES);
        let held = room.take(UNIT_BYTES).await;
        let patience = Duration::from_millis(500);
        let first = room.take_or_more(UNIT_BYTES, patience).await;
        let mut second = pin!(room.take_or_more(UNIT_BYTES, patience));
        assert!(tokio::time::timeout(10 * patience, second.as_mut()).await.is_err(), "only one");
        drop(held);
        let second = second.await;
        assert_eq!(room.held_bytes(), UNIT_BYTES);
        drop((first, second));
        assert_eq!(room.held_bytes(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn two_who_need_all_they_take_at_once_do_not_wait_for_each_other() {
        let room = Room::new(2 * UNIT_BYTES);
        let (one, other) = (room.purse(), room.purse());
        let patience = Duration::from_millis(500);
        let mut shares = vec![one.take(UNIT_BYTES, patience).await];
        let others = other.take(UNIT_BYTES, patience).await;
        shares.push(one.take(UNIT_BYTES, patience).await);
        shares.push(one.take(5 * UNIT_BYTES, patience).await);
        {
            let mut waits = pin!(other.take(UNIT_BYTES, patience));
            assert!(futures::poll!(waits.as_mut()).is_pending());
        }
        drop(shares);
        drop((other.take(UNIT_BYTES, patience).await, others));
        assert_eq!((room.held_bytes(), room.more.available_permits()), (0, 1));
    }
}
