//! The numbers of the p-node's own sessions: two sessions a partition, opened when the first write comes: one for small writes and one for large ones,
//! so that small ones do not wait until a slow large one leaves the window.
//!
//! Numbers are given out in order; those outstanding lie within a span, because the server keeps only so many results a
//! session, and are as many as the leader can make use of ([`Window`]). Everybody else waits in line, here, where there are two of them:
//! a caller who has nothing under way does not wait behind pipelines. Whoever brings many writes waits once, and is given numbers as
//! they become free. `acked_below` is the smallest outstanding number.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use sextant_common::ids::PartitionId;
use sextant_common::operation::Lane;
use sextant_environment::Clock;
use slab::Slab;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::window::Window;

/// Span of the numbers outstanding per partition and session: what a server keeps of it. A batch takes as many as its answer needs
/// room there ([`limits::numbers_taken`](sextant_common::limits::numbers_taken)).
pub(super) const PNODE_SPAN: u64 = 1024;
/// While both wait, this many of those without others under way are served for each that has some.
const SINGLES_IN_A_ROW: usize = 3;

struct State {
    /// 0: none.
    session: u64,
    next: u64,
    /// Writes that were given numbers.
    begun: u64,
    outstanding: BTreeSet<u64>,
    window: Window,
    /// Who waits, or has been given what it waited for and has not taken it.
    waiters: Slab<Waiter>,
    /// Those that there were.
    came: u64,
    singles: Queue,
    pipelined: Queue,
    singles_in_a_row: usize,
}

struct Waiter {
    /// The how manieth it is: its place in the slab is another's later.
    came: u64,
    /// For so many writes more.
    wants: usize,
    /// Numbers that each of them takes.
    span: u64,
    offered: Vec<Offered>,
    waker: Option<Waker>,
}

/// Those who wait, in the order of coming.
#[derive(Default)]
struct Queue {
    waiting: VecDeque<Place>,
    /// Of them, those who have left.
    gone: usize,
}

/// Of a waiter.
struct Place {
    at: usize,
    came: u64,
}

/// A number, on its way to whoever waits for it.
#[derive(Debug)]
struct Offered {
    number: u64,
    before: usize,
    /// Writes that had begun, with it.
    begun: u64,
}

struct Slot {
    state: Mutex<State>,
    /// One at a time opens a session.
    opening: Arc<Semaphore>,
    clock: Arc<dyn Clock>,
}

pub(super) struct Numbers {
    /// By partition: for small writes, and for large ones.
    slots: Vec<[Arc<Slot>; 2]>,
}

/// A number that is outstanding until this is dropped.
pub(super) struct Ticket {
    slot: Arc<Slot>,
    pub session: u64,
    pub number: u64,
    /// That were under way when it began.
    before: usize,
    /// Writes that had begun, with it.
    begun: u64,
    begun_ns: u64,
}

impl Ticket {
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

impl Drop for Ticket {
    fn drop(&mut self) {
        let took_ns = self.slot.clock.holder_ns().saturating_sub(self.begun_ns);
        let mut state = self.slot.state.lock();
        if state.session == self.session {
            let begun_since = state.begun - self.begun;
            state.window.ended(self.before + begun_since as usize, took_ns);
            state.outstanding.remove(&self.number);
            state.hand_out();
        }
    }
}

/// How writes begin.
pub(super) enum Begun {
    /// In the session that there is.
    InSession(Line),
    /// There is none, and the caller is the one to open it.
    Opening(Opening),
}

/// What a write takes of its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Size {
    /// Which of the two sessions.
    pub is_large: bool,
    /// Numbers: 1 to [`PNODE_SPAN`].
    pub span: u64,
}

/// The turn to open a session; dropped, it passes to the next.
pub(super) struct Opening {
    slot: Arc<Slot>,
    _turn: Option<OwnedSemaphorePermit>,
}

impl Opening {
    /// The session is registered: numbers are given out.
    pub fn opened(self, session: u64) {
        *self.slot.state.lock() = State::of(session);
    }
}

/// There is another session now, or none: who still waits has to begin again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SessionGone;

/// Numbers for some writes, as they become free. What was not taken is given up when this is dropped.
pub(super) struct Line {
    slot: Arc<Slot>,
    session: u64,
    lane: Lane,
    /// Numbers still to come.
    wants: usize,
    /// Of the waiter.
    at: usize,
}

impl Line {
    /// Numbers still to come.
    pub fn wants(&self) -> usize {
        self.wants
    }

    /// Gives what there is to `each`. Pending: there is nothing, and the task is woken when there is. Not to be polled when nothing
    /// more is to come.
    pub fn poll(&mut self, each: &mut impl FnMut(Ticket), cx: &Context<'_>) -> Poll<Result<(), SessionGone>> {
        let begun_ns = self.slot.clock.holder_ns();
        let mut state = self.slot.state.lock();
        if state.session != self.session {
            return Poll::Ready(Err(SessionGone));
        }
        let waiter = &mut state.waiters[self.at];
        if waiter.offered.is_empty() {
            if !waiter.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
                waiter.waker = Some(cx.waker().clone());
            }
            return Poll::Pending;
        }
        let offered = std::mem::take(&mut waiter.offered);
        drop(state);
        self.wants -= offered.len();
        for Offered { number, before, begun } in offered {
            each(Ticket { slot: self.slot.clone(), session: self.session, number, before, begun, begun_ns });
        }
        Poll::Ready(Ok(()))
    }

    /// The only number that is wanted.
    pub async fn one(&mut self) -> Result<Ticket, SessionGone> {
        let mut ticket = None;
        loop {
            std::future::poll_fn(|cx| self.poll(&mut |one| ticket = Some(one), cx)).await?;
            if let Some(ticket) = ticket.take() {
                return Ok(ticket);
            }
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        let mut state = self.slot.state.lock();
        if state.session != self.session {
            return;
        }
        let waiter = state.waiters.remove(self.at);
        if waiter.wants > 0 {
            let (queue, waiters) = state.queue(self.lane);
            queue.leave(waiters);
        }
        for Offered { number, .. } in &waiter.offered {
            state.outstanding.remove(number);
        }
        // There is more room, or it was one who needed more than there is.
        if waiter.wants > 0 || !waiter.offered.is_empty() {
            state.hand_out();
        }
    }
}

impl Numbers {
    pub fn new(partitions: u32, clock: &Arc<dyn Clock>) -> Self {
        let slot = || {
            let opening = Arc::new(Semaphore::new(1));
            Arc::new(Slot { state: Mutex::new(State::of(0)), opening, clock: clock.clone() })
        };
        Self { slots: (0..partitions).map(|_| [slot(), slot()]).collect() }
    }

    /// Numbers for `writes` small writes of one operation (at least one) in the partition's session. None: there is no session.
    pub fn line(&self, partition: PartitionId, lane: Lane, writes: usize) -> Option<Line> {
        self.slots[partition.0 as usize][0].line(lane, writes, 1)
    }

    /// A place in the line for one write, or the turn to open a session; waits while somebody else opens one.
    pub async fn begin(&self, partition: PartitionId, size: Size, lane: Lane) -> Begun {
        let slot = &self.slots[partition.0 as usize][usize::from(size.is_large)];
        loop {
            if let Some(line) = slot.line(lane, 1, size.span) {
                return Begun::InSession(line);
            }
            let turn = slot.opening.clone().acquire_owned().await;
            if slot.state.lock().session == 0 {
                return Begun::Opening(Opening { slot: slot.clone(), _turn: turn.ok() });
            }
        }
    }

    /// The servers do not know this session any more: the next write opens another.
    pub fn forget(&self, partition: PartitionId, session: u64) {
        for slot in &self.slots[partition.0 as usize] {
            let mut state = slot.state.lock();
            if state.session == session {
                let gone = std::mem::replace(&mut *state, State::of(0));
                drop(state);
                gone.waiters.into_iter().filter_map(|(_, waiter)| waiter.waker).for_each(Waker::wake);
            }
        }
    }
}

impl Slot {
    fn line(self: &Arc<Self>, lane: Lane, writes: usize, span: u64) -> Option<Line> {
        let mut state = self.state.lock();
        if state.session == 0 {
            return None;
        }
        state.came += 1;
        let mut waiter = Waiter { came: state.came, wants: writes, span, offered: Vec::new(), waker: None };
        // Nobody waits where there is room for one, but a batch may need more than there is.
        while waiter.wants > 0 && state.nobody_waits() && state.has_room(span) {
            waiter.offered.push(state.take(span));
            waiter.wants -= 1;
        }
        let (waits, came) = (waiter.wants > 0, waiter.came);
        let at = state.waiters.insert(waiter);
        if waits {
            if state.outstanding.len() >= state.window.limit() {
                state.window.is_short();
            }
            state.queue(lane).0.waiting.push_back(Place { at, came });
            // Who waits may be in the other line, and need more.
            state.hand_out();
        }
        Some(Line { slot: self.clone(), session: state.session, lane, wants: writes, at })
    }
}

impl State {
    fn of(session: u64) -> Self {
        Self {
            session,
            next: 1,
            begun: 0,
            outstanding: BTreeSet::new(),
            window: Window::up_to(PNODE_SPAN as usize),
            waiters: Slab::new(),
            came: 0,
            singles: Queue::default(),
            pipelined: Queue::default(),
            singles_in_a_row: 0,
        }
    }

    fn queue(&mut self, lane: Lane) -> (&mut Queue, &mut Slab<Waiter>) {
        let queue = match lane {
            Lane::Single => &mut self.singles,
            Lane::Pipelined => &mut self.pipelined,
        };
        (queue, &mut self.waiters)
    }

    fn has_room(&self, span: u64) -> bool {
        let lowest = self.outstanding.first().copied().unwrap_or(self.next);
        self.outstanding.len() < self.window.limit() && self.next - lowest + span <= PNODE_SPAN
    }

    fn take(&mut self, span: u64) -> Offered {
        let number = self.next;
        self.next += span;
        self.begun += 1;
        let before = self.outstanding.len();
        self.outstanding.insert(number);
        Offered { number, before, begun: self.begun }
    }

    /// Gives what there is room for to those who wait.
    fn hand_out(&mut self) {
        while self.has_room(1)
            && let Some(lane) = self.next_lane()
        {
            let (queue, waiters) = self.queue(lane);
            let Some(at) = queue.next(waiters) else { return };
            let span = self.waiters[at].span;
            if !self.has_room(span) {
                break;
            }
            let offered = self.take(span);
            self.passed(lane);
            let (queue, waiters) = self.queue(lane);
            let waiter = &mut waiters[at];
            waiter.offered.push(offered);
            waiter.wants -= 1;
            let (is_served, waker) = (waiter.wants == 0, waiter.waker.take());
            if is_served {
                queue.waiting.pop_front();
            }
            if let Some(waker) = waker {
                waker.wake();
            }
        }
        if self.outstanding.len() >= self.window.limit() && !self.nobody_waits() {
            self.window.is_short();
        }
    }

    fn nobody_waits(&self) -> bool {
        self.singles.is_empty() && self.pipelined.is_empty()
    }

    /// Which line has the next number. None: nobody waits.
    fn next_lane(&self) -> Option<Lane> {
        let singles_first = self.singles_in_a_row < SINGLES_IN_A_ROW || self.pipelined.is_empty();
        if singles_first && !self.singles.is_empty() {
            return Some(Lane::Single);
        }
        (!self.pipelined.is_empty()).then_some(Lane::Pipelined)
    }

    /// It has had a number.
    fn passed(&mut self, lane: Lane) {
        self.singles_in_a_row = match lane {
            Lane::Single => self.singles_in_a_row + 1,
            Lane::Pipelined => 0,
        };
    }
}

impl Place {
    fn is_in(&self, waiters: &Slab<Waiter>) -> bool {
        waiters.get(self.at).is_some_and(|waiter| waiter.came == self.came)
    }
}

impl Queue {
    fn is_empty(&self) -> bool {
        self.waiting.len() == self.gone
    }

    /// Who is first. Those who have left are passed over.
    fn next(&mut self, waiters: &Slab<Waiter>) -> Option<usize> {
        while let Some(place) = self.waiting.front() {
            if place.is_in(waiters) {
                return Some(place.at);
            }
            self.waiting.pop_front();
            self.gone -= 1;
        }
        None
    }

    /// Somebody who waited is in the slab no more: what that leaves behind is never more than half of the queue.
    fn leave(&mut self, waiters: &Slab<Waiter>) {
        self.gone += 1;
        if self.gone * 2 > self.waiting.len() {
            self.waiting.retain(|place| place.is_in(waiters));
            self.gone = 0;
        }
    }
}

#[cfg(test)]
mod tests;
