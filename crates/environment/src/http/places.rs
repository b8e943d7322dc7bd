//! Places of connections.
//!
//! Invariant: no more connections have one than there are. Whoever is being answered keeps its place; who asks for nothing
//! has it until somebody else comes and there is no other.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

pub(super) struct Places {
    most: usize,
    guests: Mutex<Guests>,
    /// One may be had.
    free: Notify,
}

#[derive(Default)]
struct Guests {
    /// Rises whenever one comes, or has been answered.
    last: u64,
    by_number: BTreeMap<u64, Guest>,
}

struct Guest {
    /// When it came, or was last answered; None: it is being answered.
    quiet_since: Option<u64>,
    lost: Arc<Notify>,
}

impl Guests {
    fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }
}

impl Places {
    pub fn new(most: usize) -> Self {
        Self { most, guests: Mutex::default(), free: Notify::new() }
    }

    /// Returns when there is one: at once, unless as many are being answered as there are places.
    pub async fn take(self: &Arc<Self>) -> Arc<Place> {
        loop {
            let free = self.free.notified();
            if let Some(place) = self.try_take() {
                return place;
            }
            free.await;
        }
    }

    fn try_take(self: &Arc<Self>) -> Option<Arc<Place>> {
        let mut guests = self.guests.lock();
        if guests.by_number.len() >= self.most {
            let quiet = guests.by_number.iter().filter_map(|(number, guest)| {
                let since = guest.quiet_since?;
                Some((since, *number))
            });
            let (_, longest) = quiet.min()?;
            if let Some(guest) = guests.by_number.remove(&longest) {
                guest.lost.notify_one();
            }
        }
        let (number, lost) = (guests.next(), Arc::new(Notify::new()));
        guests.by_number.insert(number, Guest { quiet_since: Some(number), lost: lost.clone() });
        Some(Arc::new(Place { places: self.clone(), number, lost }))
    }
}

/// Of one connection, until it is dropped.
pub(super) struct Place {
    places: Arc<Places>,
    number: u64,
    lost: Arc<Notify>,
}

impl Place {
    /// Returns when somebody else has it. (Once.)
    pub async fn lost(&self) {
        self.lost.notified().await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.guests.lock().by_number.remove(&self.number);
        self.places.free.notify_one();
    }
}

/// A request of the connection that has this place is being answered, until it is dropped.
pub(super) struct Answering(Arc<Place>);

impl Answering {
    pub fn begin(place: Arc<Place>) -> Self {
        if let Some(guest) = place.places.guests.lock().by_number.get_mut(&place.number) {
            guest.quiet_since = None;
        }
        Self(place)
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        let Self(place) = self;
        let mut guests = place.places.guests.lock();
        let now = guests.next();
        if let Some(guest) = guests.by_number.get_mut(&place.number) {
            guest.quiet_since = Some(now);
        }
        drop(guests);
        place.places.free.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn is_lost(place: &Place) -> bool {
        place.lost().now_or_never().is_some()
    }

    #[tokio::test]
    async fn who_has_asked_for_nothing_for_the_longest_time_gives_its_place_away() {
        let places = Arc::new(Places::new(3));
        let (first, second, third) = (places.take().await, places.take().await, places.take().await);
        drop(Answering::begin(first.clone()));
        let _fourth = places.take().await;
        assert!(is_lost(&second) && !is_lost(&first) && !is_lost(&third));
        let _fifth = places.take().await;
        assert!(is_lost(&third) && !is_lost(&first));
        // One that has lost its place gives none back.
        drop((second, third));
        assert_eq!(places.guests.lock().by_number.len(), 3);
    }

    #[tokio::test]
    async fn who_is_being_answered_keeps_its_place_and_others_wait_until_it_has_been() {
        let places = Arc::new(Places::new(2));
        let (first, second) = (places.take().await, places.take().await);
        let answering = [Answering::begin(first.clone()), Answering::begin(second.clone())];
        let mut waits = [Box::pin(places.take()), Box::pin(places.take())];
        assert!(waits.iter_mut().all(|waits| waits.as_mut().now_or_never().is_none()));
        assert!(!is_lost(&first) && !is_lost(&second));
        drop(answering);
        let [third, fourth] = waits;
        let (third, _fourth) = (third.await, fourth.await);
        assert!(is_lost(&first) && is_lost(&second) && !is_lost(&third));
        // A place that is given back is had again, and nobody loses one.
        drop(third);
        let _fifth = places.take().await;
        assert_eq!(places.guests.lock().by_number.len(), 2);
    }
}
