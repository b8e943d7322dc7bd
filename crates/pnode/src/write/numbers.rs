//! The numbers of the p-node's own sessions: two sessions a partition, opened when the first write comes: one for small writes and one for large ones,
//! so that small ones do not wait until a slow large one leaves the window.
//!
//! Numbers are given out in order; those outstanding lie within a window, because the server keeps only so many results a
//! session. `acked_below` is the smallest outstanding number.

use std::collections::BTreeSet;
use std::pin::pin;

use parking_lot::Mutex;
use sextant_common::ids::PartitionId;
use tokio::sync::{Notify, Semaphore, SemaphorePermit};

/// Span of the numbers outstanding per partition and session: the results that a server keeps.
pub(super) const PNODE_WINDOW: u64 = 1024;

#[derive(Default)]
struct State {
    /// 0: none.
    session: u64,
    next: u64,
    outstanding: BTreeSet<u64>,
}

struct Slot {
    state: Mutex<State>,
    /// The window has moved, or there is another session.
    moved: Notify,
    /// One at a time opens a session.
    opening: Semaphore,
}

pub(super) struct Numbers {
    /// By partition: for small writes, and for large ones.
    slots: Vec<[Slot; 2]>,
}

/// A number that is outstanding until this is dropped.
pub(super) struct Ticket<'s> {
    slot: &'s Slot,
    pub session: u64,
    pub number: u64,
}

impl Ticket<'_> {
    /// All answers below this number are here, or nobody waits for them.
    pub fn acked_below(&self) -> u64 {
        let state = self.slot.state.lock();
        if state.session == self.session {
            state.outstanding.first().copied().unwrap_or(self.number)
        } else {
            0
        }
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        let mut state = self.slot.state.lock();
        if state.session == self.session {
            let was_first = state.outstanding.first() == Some(&self.number);
            state.outstanding.remove(&self.number);
            drop(state);
            if was_first {
                // One wakes the next for as long as there is room: with thousands that wait, waking all of them for each number
                // costs more than the writes.
                self.slot.moved.notify_one();
            }
        }
    }
}

/// How a write begins.
pub(super) enum Begun<'s> {
    Ticket(Ticket<'s>),
    /// There is no session, and the caller is the one to open it.
    Opening(Opening<'s>),
}

/// The turn to open a session; dropped, it passes to the next.
pub(super) struct Opening<'s> {
    slot: &'s Slot,
    _turn: Option<SemaphorePermit<'s>>,
}

impl Opening<'_> {
    /// The session is registered: numbers are given out.
    pub fn opened(self, session: u64) {
        *self.slot.state.lock() = State { session, next: 1, outstanding: BTreeSet::new() };
        self.slot.moved.notify_waiters();
    }
}

/// What there is for a write that wants a number.
enum Offer<'s> {
    Ticket(Ticket<'s>),
    NoSession,
    WindowFull,
}

impl Numbers {
    pub fn new(partitions: u32) -> Self {
        let slot = || Slot { state: Mutex::default(), moved: Notify::new(), opening: Semaphore::new(1) };
        Self { slots: (0..partitions).map(|_| [slot(), slot()]).collect() }
    }

    /// A number in the partition's session, or the turn to open one. Waits while the window is full, or while somebody else
    /// opens a session; the caller sets the deadline.
    pub async fn begin(&self, partition: PartitionId, large: bool) -> Begun<'_> {
        let slot = &self.slots[partition.0 as usize][usize::from(large)];
        let mut waited = false;
        loop {
            let mut moved = pin!(slot.moved.notified());
            // From here on no move is missed.
            moved.as_mut().enable();
            match slot.offer() {
                Offer::Ticket(ticket) => {
                    if waited {
                        slot.moved.notify_one();
                    }
                    return Begun::Ticket(ticket);
                }
                Offer::WindowFull => {
                    waited = true;
                    moved.await;
                }
                Offer::NoSession => {
                    let turn = slot.opening.acquire().await;
                    if slot.state.lock().session == 0 {
                        return Begun::Opening(Opening { slot, _turn: turn.ok() });
                    }
                }
            }
        }
    }

    /// The servers do not know this session any more: the next write opens another.
    pub fn forget(&self, partition: PartitionId, session: u64) {
        for slot in &self.slots[partition.0 as usize] {
            let mut state = slot.state.lock();
            if state.session == session {
                *state = State::default();
                drop(state);
                slot.moved.notify_waiters();
            }
        }
    }
}

impl Slot {
    fn offer(&self) -> Offer<'_> {
        let mut state = self.state.lock();
        if state.session == 0 {
            return Offer::NoSession;
        }
        let number = state.next;
        let lowest = state.outstanding.first().copied().unwrap_or(number);
        if number - lowest >= PNODE_WINDOW {
            return Offer::WindowFull;
        }
        state.next += 1;
        state.outstanding.insert(number);
        Offer::Ticket(Ticket { slot: self, session: state.session, number })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    const P: PartitionId = PartitionId(0);

    async fn begin(sessions: &Numbers) -> Ticket<'_> {
        static NEXT: AtomicU64 = AtomicU64::new(100);
        loop {
            match sessions.begin(P, false).await {
                Begun::Ticket(ticket) => return ticket,
                Begun::Opening(turn) => turn.opened(NEXT.fetch_add(1, Ordering::SeqCst)),
            }
        }
    }

    #[tokio::test]
    async fn acked_below_is_the_smallest_outstanding_number() {
        let sessions = Numbers::new(1);
        let (a, b, c) = (begin(&sessions).await, begin(&sessions).await, begin(&sessions).await);
        assert_eq!((a.number, b.number, c.number), (1, 2, 3));
        assert_eq!(c.acked_below(), 1);
        drop(b);
        assert_eq!(c.acked_below(), 1);
        drop(a);
        assert_eq!(c.acked_below(), 3);
    }

    #[tokio::test]
    async fn outstanding_numbers_span_no_more_than_the_window() {
        let sessions = Numbers::new(1);
        let mut tickets = Vec::new();
        for _ in 0..PNODE_WINDOW {
            tickets.push(begin(&sessions).await);
        }
        // Giving up any but the oldest does not move the window.
        tickets.pop();
        let mut waiting = pin!(begin(&sessions));
        assert!(futures::poll!(waiting.as_mut()).is_pending());
        drop(tickets.remove(0));
        let next = waiting.await;
        assert_eq!(next.number, PNODE_WINDOW + 1);
        assert_eq!(next.acked_below(), 2);
    }

    #[tokio::test]
    async fn a_window_that_moves_far_lets_all_in_who_fit_and_those_who_left_lose_nobody_their_turn() {
        let sessions = Numbers::new(1);
        let first = begin(&sessions).await;
        let mut rest = Vec::new();
        for _ in 1..PNODE_WINDOW {
            rest.push(begin(&sessions).await);
        }
        let mut waiting: Vec<_> = (0..10).map(|_| Box::pin(begin(&sessions))).collect();
        for waiter in &mut waiting {
            assert!(futures::poll!(waiter.as_mut()).is_pending());
        }
        rest.clear();
        drop(first);
        // It was told, and leaves without having looked.
        drop(waiting.remove(0));
        let tickets = futures::future::join_all(waiting).await;
        assert_eq!(tickets.len(), 9);
    }

    #[tokio::test]
    async fn a_large_write_that_takes_long_does_not_hold_up_the_window_of_small_ones() {
        let sessions = Numbers::new(1);
        let Begun::Opening(turn) = sessions.begin(P, true).await else { panic!("there is no session yet") };
        turn.opened(7);
        let Begun::Ticket(large) = sessions.begin(P, true).await else { panic!("it was opened") };
        for _ in 0..2 * PNODE_WINDOW {
            assert_ne!(begin(&sessions).await.session, large.session);
        }
    }

    #[tokio::test]
    async fn a_forgotten_session_is_replaced_once_and_its_tickets_touch_nothing() {
        let sessions = Numbers::new(1);
        let old = begin(&sessions).await;
        sessions.forget(P, old.session);
        let new = begin(&sessions).await;
        assert_ne!(new.session, old.session);
        assert_eq!(new.number, 1);
        sessions.forget(P, old.session);
        drop(old);
        let next = begin(&sessions).await;
        assert_eq!((next.session, next.number, next.acked_below()), (new.session, 2, 1));
    }

    #[tokio::test]
    async fn a_failed_opening_is_tried_by_the_next() {
        let sessions = Numbers::new(1);
        let Begun::Opening(turn) = sessions.begin(P, false).await else { panic!("there is no session yet") };
        drop(turn);
        assert_eq!(begin(&sessions).await.number, 1);
    }
}
