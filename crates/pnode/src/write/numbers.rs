//! The numbers of the p-node's own sessions: two sessions a partition, opened when the first write comes: one for small writes and one for large ones,
//! so that small ones do not wait until a slow large one leaves the window.
//!
//! Numbers are given out in order; those outstanding lie within a span, because the server keeps only so many results a
//! session, and are as many as the leader can make use of ([`Window`]). Everybody else waits in line, here, where there are two of them:
//! a caller who has nothing under way does not wait behind pipelines. `acked_below` is the smallest outstanding number.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use sextant_common::ids::PartitionId;
use sextant_common::operation::Lane;
use sextant_environment::Clock;
use tokio::sync::{Semaphore, SemaphorePermit, oneshot};

use super::window::Window;

/// Span of the numbers outstanding per partition and session: the results that a server keeps.
pub(super) const PNODE_SPAN: u64 = 1024;
/// While both wait, this many of those without others under way are served for each that has some.
const SINGLES_IN_A_ROW: usize = 3;

struct State {
    /// 0: none.
    session: u64,
    next: u64,
    outstanding: BTreeSet<u64>,
    window: Window,
    singles: Line,
    pipelined: Line,
    singles_in_a_row: usize,
}

/// Who waits, in the order of coming.
#[derive(Default)]
struct Line {
    waiting: VecDeque<oneshot::Sender<Offered>>,
    /// Of them, those who have left.
    gone: usize,
}

/// A number, on its way to whoever waits for it.
#[derive(Debug)]
struct Offered {
    session: u64,
    number: u64,
    before: usize,
}

struct Slot {
    state: Mutex<State>,
    /// One at a time opens a session.
    opening: Semaphore,
    clock: Arc<dyn Clock>,
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
    /// That were under way when it began.
    before: usize,
    begun_ns: u64,
}

impl<'s> Ticket<'s> {
    fn new(slot: &'s Slot, Offered { session, number, before }: Offered) -> Self {
        Self { slot, session, number, before, begun_ns: slot.clock.holder_ns() }
    }

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
        let took_ns = self.slot.clock.holder_ns().saturating_sub(self.begun_ns);
        let mut state = self.slot.state.lock();
        if state.session == self.session {
            let begun_since = state.next - self.number - 1;
            state.window.ended(self.before + begun_since as usize, took_ns);
            state.outstanding.remove(&self.number);
            state.hand_out();
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
        *self.slot.state.lock() = State::of(session);
    }
}

/// What there is for a write that wants a number.
enum Offer<'s> {
    Ticket(Ticket<'s>),
    NoSession,
    Line(InLine<'s>),
}

/// A place in line; given up when dropped.
struct InLine<'s> {
    slot: &'s Slot,
    lane: Lane,
    session: u64,
    offered: oneshot::Receiver<Offered>,
    served: bool,
}

impl<'s> InLine<'s> {
    /// None: there is another session, or none.
    async fn wait(mut self) -> Option<Ticket<'s>> {
        let offered = (&mut self.offered).await;
        self.served = true;
        Some(Ticket::new(self.slot, offered.ok()?))
    }
}

impl Drop for InLine<'_> {
    fn drop(&mut self) {
        if self.served {
            return;
        }
        let mut state = self.slot.state.lock();
        self.offered.close();
        if state.session != self.session {
            return;
        }
        match self.offered.try_recv() {
            Ok(offered) => {
                state.outstanding.remove(&offered.number);
                state.hand_out();
            }
            Err(_) => state.line(self.lane).leave(),
        }
    }
}

impl Numbers {
    pub fn new(partitions: u32, clock: &Arc<dyn Clock>) -> Self {
        let slot =
            || Slot { state: Mutex::new(State::of(0)), opening: Semaphore::new(1), clock: clock.clone() };
        Self { slots: (0..partitions).map(|_| [slot(), slot()]).collect() }
    }

    /// A number in the partition's session, or the turn to open one. Waits in line while enough is under way, or while somebody else
    /// opens a session; the caller sets the deadline.
    pub async fn begin(&self, partition: PartitionId, large: bool, lane: Lane) -> Begun<'_> {
        let slot = &self.slots[partition.0 as usize][usize::from(large)];
        loop {
            match slot.offer(lane) {
                Offer::Ticket(ticket) => return Begun::Ticket(ticket),
                Offer::Line(line) => {
                    if let Some(ticket) = line.wait().await {
                        return Begun::Ticket(ticket);
                    }
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
                // Whoever waits in line is told so.
                *state = State::of(0);
            }
        }
    }
}

impl Slot {
    fn offer(&self, lane: Lane) -> Offer<'_> {
        let mut state = self.state.lock();
        if state.session == 0 {
            return Offer::NoSession;
        }
        if state.has_room() {
            return Offer::Ticket(Ticket::new(self, state.take()));
        }
        if state.outstanding.len() >= state.window.limit() {
            state.window.is_short();
        }
        let (offer, offered) = oneshot::channel();
        state.line(lane).waiting.push_back(offer);
        Offer::Line(InLine { slot: self, lane, session: state.session, offered, served: false })
    }
}

impl State {
    fn of(session: u64) -> Self {
        Self {
            session,
            next: 1,
            outstanding: BTreeSet::new(),
            window: Window::up_to(PNODE_SPAN as usize),
            singles: Line::default(),
            pipelined: Line::default(),
            singles_in_a_row: 0,
        }
    }

    fn line(&mut self, lane: Lane) -> &mut Line {
        match lane {
            Lane::Single => &mut self.singles,
            Lane::Pipelined => &mut self.pipelined,
        }
    }

    fn has_room(&self) -> bool {
        let lowest = self.outstanding.first().copied().unwrap_or(self.next);
        self.outstanding.len() < self.window.limit() && self.next - lowest < PNODE_SPAN
    }

    fn take(&mut self) -> Offered {
        let number = self.next;
        self.next += 1;
        let before = self.outstanding.len();
        self.outstanding.insert(number);
        Offered { session: self.session, number, before }
    }

    /// Gives what there is room for to those who wait.
    fn hand_out(&mut self) {
        while self.has_room()
            && let Some(next) = self.next_in_line()
        {
            let offered = self.take();
            // Whoever leaves at this moment finds it, and gives it back.
            if let Err(offered) = next.send(offered) {
                self.outstanding.remove(&offered.number);
                self.next = offered.number;
            }
        }
        if self.outstanding.len() >= self.window.limit()
            && !(self.singles.is_empty() && self.pipelined.is_empty())
        {
            self.window.is_short();
        }
    }

    fn next_in_line(&mut self) -> Option<oneshot::Sender<Offered>> {
        let pipelined_first = self.singles_in_a_row >= SINGLES_IN_A_ROW;
        if pipelined_first && let Some(next) = self.pipelined.next() {
            self.singles_in_a_row = 0;
            return Some(next);
        }
        if let Some(next) = self.singles.next() {
            self.singles_in_a_row += 1;
            return Some(next);
        }
        self.singles_in_a_row = 0;
        self.pipelined.next()
    }
}

impl Line {
    fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Those who have left are passed over.
    fn next(&mut self) -> Option<oneshot::Sender<Offered>> {
        while let Some(next) = self.waiting.pop_front() {
            if !next.is_closed() {
                return Some(next);
            }
            self.gone = self.gone.saturating_sub(1);
        }
        None
    }

    /// Somebody has left: what that leaves behind is never more than half of the line.
    fn leave(&mut self) {
        self.gone += 1;
        if self.gone * 2 > self.waiting.len() {
            self.waiting.retain(|waiting| !waiting.is_closed());
            self.gone = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::atomic::{AtomicU64, Ordering};

    use proptest::prelude::*;
    use sextant_simulated::ManualClock;

    use super::super::window::FIRST;
    use super::*;

    const P: PartitionId = PartitionId(0);

    fn numbers() -> Numbers {
        let clock: Arc<dyn Clock> = Arc::new(ManualClock::default());
        Numbers::new(1, &clock)
    }

    async fn begin_in(numbers: &Numbers, lane: Lane) -> Ticket<'_> {
        static NEXT: AtomicU64 = AtomicU64::new(100);
        loop {
            match numbers.begin(P, false, lane).await {
                Begun::Ticket(ticket) => return ticket,
                Begun::Opening(turn) => turn.opened(NEXT.fetch_add(1, Ordering::SeqCst)),
            }
        }
    }

    async fn begin(numbers: &Numbers) -> Ticket<'_> {
        begin_in(numbers, Lane::Single).await
    }

    async fn begin_many(numbers: &Numbers, count: usize) -> Vec<Ticket<'_>> {
        let mut tickets = Vec::new();
        for _ in 0..count {
            tickets.push(begin(numbers).await);
        }
        tickets
    }

    #[tokio::test]
    async fn acked_below_is_the_smallest_outstanding_number() {
        let numbers = numbers();
        let (a, b, c) = (begin(&numbers).await, begin(&numbers).await, begin(&numbers).await);
        assert_eq!((a.number, b.number, c.number), (1, 2, 3));
        assert_eq!(c.acked_below(), 1);
        drop(b);
        assert_eq!(c.acked_below(), 1);
        drop(a);
        assert_eq!(c.acked_below(), 3);
    }

    #[tokio::test]
    async fn outstanding_numbers_span_no_more_than_the_server_keeps() {
        let numbers = numbers();
        let first = begin(&numbers).await;
        for _ in 1..PNODE_SPAN {
            drop(begin(&numbers).await);
        }
        // One is under way, and it holds up all others.
        let mut waiting = pin!(begin(&numbers));
        assert!(futures::poll!(waiting.as_mut()).is_pending());
        drop(first);
        let next = waiting.await;
        assert_eq!(next.number, PNODE_SPAN + 1);
        assert_eq!(next.acked_below(), PNODE_SPAN + 1);
    }

    #[tokio::test]
    async fn no_more_are_under_way_than_the_leader_can_make_use_of() {
        let numbers = numbers();
        let mut tickets = begin_many(&numbers, FIRST).await;
        let mut waiting = pin!(begin(&numbers));
        assert!(futures::poll!(waiting.as_mut()).is_pending());
        drop(tickets.pop());
        assert_eq!(waiting.await.number, FIRST as u64 + 1);
    }

    #[tokio::test]
    async fn those_who_left_the_line_lose_nobody_their_turn() {
        let numbers = numbers();
        let tickets = begin_many(&numbers, FIRST).await;
        let mut waiting: Vec<_> = (0..10).map(|_| Box::pin(begin(&numbers))).collect();
        for waiter in &mut waiting {
            assert!(futures::poll!(waiter.as_mut()).is_pending());
        }
        drop(waiting.remove(4));
        drop(tickets);
        // It was given a number, and leaves without having looked.
        drop(waiting.remove(0));
        let tickets = futures::future::join_all(waiting).await;
        assert_eq!(tickets.len(), 8);
        let mut lowest: Vec<_> = tickets.iter().map(Ticket::acked_below).collect();
        lowest.dedup();
        assert_eq!(lowest, [tickets[0].number], "what was given back is not outstanding");
    }

    #[tokio::test]
    async fn whoever_has_nothing_under_way_does_not_wait_behind_pipelines() {
        let numbers = numbers();
        let mut tickets = begin_many(&numbers, FIRST).await;
        let mut pipelined: Vec<_> = (0..3).map(|_| Box::pin(begin_in(&numbers, Lane::Pipelined))).collect();
        let mut singles: Vec<_> = (0..8).map(|_| Box::pin(begin_in(&numbers, Lane::Single))).collect();
        for waiter in pipelined.iter_mut().chain(&mut singles) {
            assert!(futures::poll!(waiter.as_mut()).is_pending());
        }
        for _ in 0..4 {
            drop(tickets.pop());
        }
        let mut served = Vec::new();
        for single in &mut singles[..3] {
            served.push(single.await);
        }
        assert!(futures::poll!(singles[3].as_mut()).is_pending());
        // Those with pipelines are not left to wait for ever.
        served.push(pipelined.remove(0).await);
        assert!(futures::poll!(pipelined[0].as_mut()).is_pending());
    }

    #[tokio::test]
    async fn a_large_write_that_takes_long_does_not_hold_up_small_ones() {
        let numbers = numbers();
        let Begun::Opening(turn) = numbers.begin(P, true, Lane::Single).await else {
            panic!("there is no session yet")
        };
        turn.opened(7);
        let Begun::Ticket(large) = numbers.begin(P, true, Lane::Single).await else {
            panic!("it was opened")
        };
        for _ in 0..2 * PNODE_SPAN {
            assert_ne!(begin(&numbers).await.session, large.session);
        }
    }

    #[tokio::test]
    async fn a_forgotten_session_is_replaced_once_and_its_tickets_touch_nothing() {
        let numbers = numbers();
        let old = begin(&numbers).await;
        numbers.forget(P, old.session);
        let new = begin(&numbers).await;
        assert_ne!(new.session, old.session);
        assert_eq!(new.number, 1);
        numbers.forget(P, old.session);
        drop(old);
        let next = begin(&numbers).await;
        assert_eq!((next.session, next.number, next.acked_below()), (new.session, 2, 1));
    }

    #[tokio::test]
    async fn those_who_wait_in_a_forgotten_session_go_on_in_the_next() {
        let numbers = numbers();
        let tickets = begin_many(&numbers, FIRST).await;
        let mut waiting = pin!(begin(&numbers));
        assert!(futures::poll!(waiting.as_mut()).is_pending());
        numbers.forget(P, tickets[0].session);
        assert_ne!(waiting.await.session, tickets[0].session);
    }

    #[tokio::test]
    async fn a_failed_opening_is_tried_by_the_next() {
        let numbers = numbers();
        let Begun::Opening(turn) = numbers.begin(P, false, Lane::Single).await else {
            panic!("there is no session yet")
        };
        drop(turn);
        assert_eq!(begin(&numbers).await.number, 1);
    }

    proptest! {
        /// Whoever comes, goes or leaves the line: numbers are used once, bounds hold, and nobody waits while there is room.
        #[test]
        fn lines_move_as_long_as_there_is_room(
            steps in prop::collection::vec((0u8..4, any::<bool>(), any::<prop::sample::Index>()), 0..1_500),
        ) {
            let numbers = numbers();
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            // Else a waiter who was served may seem to wait: tokio lets a task go on only so long.
            runtime.block_on(tokio::task::unconstrained(async {
                drop(begin(&numbers).await);
                let mut tickets: Vec<Ticket<'_>> = Vec::new();
                let mut waiting = Vec::new();
                let mut used = BTreeSet::new();
                for (step, pipelined, which) in steps {
                    match step {
                        0 | 1 => {
                            let lane = if pipelined { Lane::Pipelined } else { Lane::Single };
                            waiting.push(Box::pin(begin_in(&numbers, lane)));
                        }
                        2 if !tickets.is_empty() => drop(tickets.swap_remove(which.index(tickets.len()))),
                        3 if !waiting.is_empty() => drop(waiting.swap_remove(which.index(waiting.len()))),
                        _ => {}
                    }
                    let mut still = Vec::new();
                    for mut waiter in waiting {
                        match futures::poll!(waiter.as_mut()) {
                            std::task::Poll::Ready(ticket) => {
                                assert!(used.insert(ticket.number), "{} twice", ticket.number);
                                tickets.push(ticket);
                            }
                            std::task::Poll::Pending => still.push(waiter),
                        }
                    }
                    waiting = still;
                    let state = numbers.slots[0][0].state.lock();
                    assert_eq!(state.outstanding.len(), tickets.len());
                    assert!(waiting.is_empty() || !state.has_room());
                }
            }));
        }
    }
}
