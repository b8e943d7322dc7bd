//! SessionPool: what makes a retried write take effect once.
//!
//! A session is registered in every partition. Each write gets a number in it, and says below which number all answers
//! have arrived, so that the servers may forget those results. The numbers in flight of one session span at most
//! [`WINDOW`]: the servers keep a bounded number of results a session, and a write that hangs must not let the others
//! push its result out. A batch takes as many numbers as its answer needs room there. More concurrent writes open more
//! sessions.

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::Arc;

use parking_lot::Mutex;
use sextant_common::error::{Error, Result};
use sextant_common::operation::RequestId;
use tokio::sync::{Semaphore, SemaphorePermit};

/// Span of the request numbers in flight of one session. Well below the 4096 results that a server keeps of a session.
pub(crate) const WINDOW: u64 = 256;
/// Most sessions of one client: bounds its memory at the servers.
pub(crate) const SESSIONS_MAX: usize = 64;
/// Most numbers in flight; more wait for a place. Half of what the sessions hold, so that sessions whose oldest write
/// hangs keep nobody else from writing.
pub(crate) const WRITES_MAX: usize = SESSIONS_MAX * WINDOW as usize / 2;

/// The sessions of a client.
pub(crate) struct SessionPool {
    open: Mutex<Vec<Arc<PooledSession>>>,
    /// One for each number that may be in flight.
    places: Semaphore,
    /// Held while a session is opened: concurrent writes share the new one.
    opening: tokio::sync::Mutex<()>,
}

struct PooledSession {
    id: u64,
    numbers: Mutex<Numbers>,
}

impl PooledSession {
    fn is_in_use(&self) -> bool {
        !self.numbers.lock().in_flight.is_empty()
    }
}

/// The request numbers of one session.
#[derive(Debug)]
struct Numbers {
    next: u64,
    in_flight: BTreeSet<u64>,
}

impl Numbers {
    fn new() -> Self {
        Self { next: 1, in_flight: BTreeSet::new() }
    }

    /// All answers below this number have arrived, or will never be asked for.
    fn acked_below(&self) -> u64 {
        self.in_flight.first().copied().unwrap_or(self.next)
    }

    fn take(&mut self, span: u64) -> Option<u64> {
        if self.next - self.acked_below() + span > WINDOW {
            return None;
        }
        let number = self.next;
        self.next += span;
        self.in_flight.insert(number);
        Some(number)
    }

    fn done(&mut self, number: u64) {
        self.in_flight.remove(&number);
    }
}

/// The right to send one write under one number, as often as needed. Dropping it says that its answer has arrived or
/// that nobody will ask for it again.
pub(crate) struct Ticket<'s> {
    session: Arc<PooledSession>,
    number: u64,
    _place: SemaphorePermit<'s>,
}

impl Ticket<'_> {
    pub fn request_id(&self) -> RequestId {
        let acked_below = self.session.numbers.lock().acked_below();
        RequestId { session: self.session.id, number: self.number, acked_below }
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        self.session.numbers.lock().done(self.number);
    }
}

impl SessionPool {
    pub fn new() -> Self {
        Self {
            open: Mutex::new(Vec::new()),
            places: Semaphore::new(WRITES_MAX),
            opening: tokio::sync::Mutex::new(()),
        }
    }

    /// A number in an open session, and `span` - 1 (up to [`WINDOW`] in all) that are not used; `open` registers a new one if none has
    /// room.
    pub async fn ticket<F, A>(&self, span: u64, open: F) -> Result<Ticket<'_>>
    where
        F: Fn() -> A,
        A: Future<Output = Result<u64>>,
    {
        let mut place = self
            .places
            .acquire_many(span as u32)
            .await
            .map_err(|_| Error::internal("the client's sessions are closed"))?;
        loop {
            place = match self.try_ticket(span, place) {
                Ok(ticket) => return Ok(ticket),
                Err(place) => place,
            };
            let _opening = self.opening.lock().await;
            // Somebody else may have opened one meanwhile.
            place = match self.try_ticket(span, place) {
                Ok(ticket) => return Ok(ticket),
                Err(place) => place,
            };
            if self.open.lock().len() >= SESSIONS_MAX {
                return Err(Error::new(
                    sextant_common::ErrorKind::Overloaded,
                    "too many writes of this client hang: all of its sessions are full",
                ));
            }
            let id = open().await?;
            let session = PooledSession { id, numbers: Mutex::new(Numbers::new()) };
            self.open.lock().push(Arc::new(session));
        }
    }

    fn try_ticket<'s>(
        &'s self,
        span: u64,
        place: SemaphorePermit<'s>,
    ) -> Result<Ticket<'s>, SemaphorePermit<'s>> {
        let open = self.open.lock();
        for session in open.iter() {
            if let Some(number) = session.numbers.lock().take(span) {
                return Ok(Ticket { session: session.clone(), number, _place: place });
            }
        }
        Err(place)
    }

    /// The servers do not know the ticket's session (any more): nobody gets another number in it. Those in which no number is in flight
    /// go with it: each is taken only if there is no room in those before it, so they were hardly used since.
    pub fn forget(&self, ticket: Ticket<'_>) {
        let mut open = self.open.lock();
        let Some(at) = open.iter().position(|s| s.id == ticket.session.id) else { return };
        open.remove(at);
        open.retain(|s| s.is_in_use());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn acked_below_is_the_oldest_in_flight() {
        let mut numbers = Numbers::new();
        let taken: Vec<_> = (0..3).filter_map(|_| numbers.take(1)).collect();
        assert_eq!(taken, [1, 2, 3]);
        assert_eq!(numbers.acked_below(), 1);
        numbers.done(2);
        assert_eq!(numbers.acked_below(), 1, "1 is still in flight");
        numbers.done(1);
        assert_eq!(numbers.acked_below(), 3);
        numbers.done(3);
        assert_eq!(numbers.acked_below(), 4, "all answers have arrived");
    }

    proptest! {
        /// Numbers are never given twice, acked_below never falls, never passes a number in flight, and the span stays
        /// within the window.
        #[test]
        fn numbers_keep_their_promises(steps in prop::collection::vec((any::<bool>(), any::<prop::sample::Index>(), prop_oneof![9 => Just(1), 1 => 1..=WINDOW]), 1..300)) {
            let mut numbers = Numbers::new();
            let mut in_flight: Vec<u64> = Vec::new();
            let (mut highest, mut acked) = (0, 0);
            for (take, which, span) in steps {
                if take || in_flight.is_empty() {
                    if let Some(n) = numbers.take(span) {
                        prop_assert!(n > highest);
                        highest = n + span - 1;
                        in_flight.push(n);
                    } else {
                        prop_assert!(!in_flight.is_empty());
                    }
                } else {
                    numbers.done(in_flight.swap_remove(which.index(in_flight.len())));
                }
                let now = numbers.acked_below();
                prop_assert!(now >= acked);
                prop_assert!(in_flight.iter().all(|n| *n >= now) && (in_flight.is_empty() || highest - now < WINDOW));
                acked = now;
            }
        }
    }

    #[tokio::test]
    async fn sessions_are_opened_as_they_are_needed_and_a_forgotten_one_is_not_used_again() {
        let sessions = SessionPool::new();
        let opened = AtomicU64::new(0);
        let open = || async { Ok(opened.fetch_add(1, Relaxed) + 1) };
        let mut tickets = Vec::new();
        for _ in 0..WINDOW {
            tickets.push(sessions.ticket(1, &open).await.unwrap());
        }
        assert_eq!(opened.load(Relaxed), 1);
        let in_second = sessions.ticket(1, &open).await.unwrap();
        assert_eq!((in_second.request_id().session, in_second.request_id().number), (2, 1));
        sessions.forget(in_second);
        tickets.remove(0);
        let again = sessions.ticket(1, &open).await.unwrap();
        assert_eq!(again.request_id(), RequestId { session: 1, number: WINDOW + 1, acked_below: 2 });
        assert_eq!(opened.load(Relaxed), 2);
    }

    #[tokio::test]
    async fn sessions_that_nobody_uses_are_forgotten_with_one_that_is_unknown() {
        let sessions = SessionPool::new();
        let opened = AtomicU64::new(0);
        let open = || async { Ok(opened.fetch_add(1, Relaxed) + 1) };
        let in_first = sessions.ticket(1, &open).await.unwrap();
        let too = sessions.ticket(1, &open).await.unwrap();
        let _in_second = sessions.ticket(WINDOW, &open).await.unwrap();
        drop(sessions.ticket(WINDOW, &open).await.unwrap());
        sessions.forget(in_first);
        let left = || sessions.open.lock().iter().map(|session| session.id).collect::<Vec<_>>();
        assert_eq!(left(), [2], "the third rests");
        drop(sessions.ticket(1, &open).await.unwrap());
        sessions.forget(too);
        assert_eq!(left(), [2, 4], "it was forgotten before, and the fourth is newer");
    }

    #[tokio::test]
    async fn a_failure_to_open_is_passed_on_and_leaves_nothing_behind() {
        let sessions = SessionPool::new();
        let refused = sessions.ticket(1, || async { Err(Error::unavailable("nobody there")) }).await;
        assert!(refused.is_err());
        assert_eq!(sessions.places.available_permits(), WRITES_MAX);
        assert!(sessions.ticket(1, || async { Ok(7) }).await.is_ok());
    }
}
