//! What a connection needs before it goes on: room for a long command before that is read, and a turn for each command. (Room for
//! a long reply: `replies`.)
//!
//! Owns: which of them it holds or waits for. Does not own the bounds, which all connections of a server share.
//!
//! Invariant: a command holds room and turn until it is answered, so what is in memory and under way is bounded; and whoever waits does
//! so without reading, so that the client is held back by its own socket.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use sextant_access::Allowance;
use sextant_common::operation::Lane;
use sextant_environment::room::{Purse, Room, Share};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Sleep;

use crate::replies::{PATIENCE, SHORT_BYTES};

/// Least room that is taken for a command that grows by small arguments.
const STEP_BYTES: usize = 256 * 1024;
/// Commands of a pipeline that have their turn together: what is started together travels together, and is answered together.
const TOGETHER_MAX: usize = 32;
/// So long a connection with nothing under way waits for the turns of several commands, before it takes what those with one have.
const TOGETHER_PATIENCE: Duration = Duration::from_millis(50);
/// How long a client may take to send what it has begun, while it holds room that others wait for: this, and a second for so many
/// bytes.
const UPLOAD_GRACE: Duration = Duration::from_secs(10);
const UPLOAD_BYTES_PER_S: usize = 256 * 1024;

/// What a command may keep until it is answered.
#[derive(Debug, Default)]
pub(super) struct Leave {
    _turn: Option<OwnedSemaphorePermit>,
    _room: Vec<Share>,
    _carried: Option<OwnedSemaphorePermit>,
    _ahead: Option<Arc<Vec<Share>>>,
}

/// Of the command that is being received.
#[derive(Default)]
pub(super) struct Admission {
    room: Vec<Share>,
    purse: Option<Arc<Purse>>,
    taking_room: Option<BoxFuture<'static, Share>>,
    /// Until when it waits for that.
    gives_up: Option<Pin<Box<Sleep>>>,
    /// When what it holds room for is to be here.
    due: Option<Pin<Box<Sleep>>>,
    /// How long it may take for that.
    allowed: Duration,
    turn: Option<OwnedSemaphorePermit>,
    /// Of a pipeline: turns of the commands behind, if they are here.
    turns: Option<OwnedSemaphorePermit>,
    /// Until when it waits for several.
    tires: Option<Pin<Box<Sleep>>>,
    waiting_turn: Option<BoxFuture<'static, Option<OwnedSemaphorePermit>>>,
    waiting_in: Lane,
    /// For the user's limits: the next command is paid for, or when the next may be.
    paid: bool,
    pause: Option<Pin<Box<Sleep>>>,
    carried: Option<OwnedSemaphorePermit>,
    taking_bytes: Option<BoxFuture<'static, Option<OwnedSemaphorePermit>>>,
}

/// Whether more of a command may be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reading {
    Admitted,
    /// The task is woken when it may go on.
    Waits,
    /// There was no room for too long: the command is not received. It holds nothing any more.
    Refused,
}

/// A permit for each command that may be under way.
#[derive(Debug)]
pub(crate) struct Turns {
    singles: Arc<Semaphore>,
    pipelined: Arc<Semaphore>,
    together_max: usize,
}

impl Turns {
    /// So many for pipelines, and as many for connections that have nothing under way.
    pub fn new(commands_max: usize) -> Self {
        let turns = || Arc::new(Semaphore::new(commands_max.min(Semaphore::MAX_PERMITS)));
        // A few connections at least have theirs at the same time.
        let together_max = TOGETHER_MAX.min(commands_max / 4).max(1);
        Self { singles: turns(), pipelined: turns(), together_max }
    }

    fn of(&self, lane: Lane) -> &Arc<Semaphore> {
        match lane {
            Lane::Single => &self.singles,
            Lane::Pipelined => &self.pipelined,
        }
    }
}

impl Admission {
    /// Whether more of a command may be read that has `announced` bytes so far, with the argument that is being read. Who has waited for
    /// so long is refused: those who hold the room may be in no hurry, and whoever waits may be gone, which nobody sees who does not
    /// read.
    pub fn may_read(
        &mut self,
        all: &Room,
        announced: usize,
        patience: Duration,
        cx: &mut Context<'_>,
    ) -> Reading {
        if self.taking_room.is_none() {
            let held: usize = self.room.iter().map(Share::bytes).sum();
            if announced <= held.max(SHORT_BYTES) {
                return Reading::Admitted;
            }
            let needed = (announced - held).max(STEP_BYTES);
            let purse = self.purse.get_or_insert_with(|| Arc::new(all.purse())).clone();
            self.taking_room = Some(Box::pin(async move { purse.take(needed, PATIENCE).await }));
            self.gives_up = None;
        }
        if let Some(share) = poll_once(&mut self.taking_room, cx) {
            self.gives_up = None;
            self.room.push(share);
            let seconds = announced.div_ceil(UPLOAD_BYTES_PER_S) as u64;
            self.allowed = UPLOAD_GRACE + Duration::from_secs(seconds);
            self.due = Some(Box::pin(tokio::time::sleep(self.allowed)));
            return Reading::Admitted;
        }
        let gives_up = self.gives_up.get_or_insert_with(|| Box::pin(tokio::time::sleep(patience)));
        if gives_up.as_mut().poll(cx).is_pending() {
            return Reading::Waits;
        }
        self.let_go();
        Reading::Refused
    }

    /// The command is not received: it neither holds nor waits for anything any more.
    pub fn let_go(&mut self) {
        self.gives_up = None;
        self.taking_room = None;
        self.room.clear();
        self.due = None;
        self.taking_bytes = None;
        self.carried = None;
    }

    /// Whether the client has taken too long to send what it began. If not, the task is woken when it has.
    pub fn is_overdue(&mut self, cx: &mut Context<'_>) -> bool {
        self.taking_room.is_none() && self.due.as_mut().is_some_and(|due| due.as_mut().poll(cx).is_ready())
    }

    /// The connection does not read now: the client has all its time again when it does.
    pub fn forbear(&mut self) {
        if self.due.is_some() {
            self.due = Some(Box::pin(tokio::time::sleep(self.allowed)));
        }
    }

    /// Whether the next command may start, of `here` that may be here. If not, the task is woken when it may.
    ///
    /// Whoever has nothing under way does not wait behind pipelines; the first of several commands waits a moment, so that all of
    /// them can go together.
    pub fn take_turn(&mut self, all: &Turns, here: usize, lane: Lane, cx: &mut Context<'_>) -> bool {
        if self.turn.is_some() {
            return true;
        }
        let together = here.clamp(1, all.together_max) as u32;
        let is_patient = lane == Lane::Single && together > 1 && !self.is_tired(cx);
        let lane = if is_patient { Lane::Pipelined } else { lane };
        if self.waiting_in != lane {
            self.waiting_in = lane;
            self.waiting_turn = None;
        }
        if let Some(turns) = &mut self.turns {
            self.turn = turns.split(1);
            if self.turn.is_some() {
                return true;
            }
        }
        if self.waiting_turn.is_none() {
            let together = if lane == Lane::Single { 1 } else { together };
            let all = all.of(lane).clone();
            if let Ok(turns) = all.clone().try_acquire_many_owned(together) {
                return self.have_turns(Some(turns));
            }
            self.waiting_turn = Some(Box::pin(async move { all.acquire_many_owned(together).await.ok() }));
            if is_patient {
                self.tires = Some(Box::pin(tokio::time::sleep(TOGETHER_PATIENCE)));
                self.is_tired(cx);
            }
        }
        match poll_once(&mut self.waiting_turn, cx) {
            Some(turns) => self.have_turns(turns),
            None => false,
        }
    }

    /// Whether it has waited long enough for several turns.
    fn is_tired(&mut self, cx: &mut Context<'_>) -> bool {
        self.tires.as_mut().is_some_and(|tires| tires.as_mut().poll(cx).is_ready())
    }

    fn have_turns(&mut self, mut turns: Option<OwnedSemaphorePermit>) -> bool {
        self.tires = None;
        self.turn = turns.as_mut().and_then(|turns| turns.split(1));
        self.turns = turns;
        self.turn.is_some()
    }

    /// Nothing more is started now: others may have what is left of the turns.
    pub fn rest(&mut self) {
        self.turns = None;
    }

    /// Whether the user has an operation left. If not, the task is woken when it may have.
    pub fn may_begin(&mut self, allowance: &Allowance, cx: &mut Context<'_>) -> bool {
        if !self.paid && self.pause.is_none() {
            let wait = allowance.book();
            if !wait.is_zero() {
                self.pause = Some(Box::pin(tokio::time::sleep(wait)));
            }
        }
        if let Some(pause) = &mut self.pause {
            if pause.as_mut().poll(cx).is_pending() {
                return false;
            }
            self.pause = None;
        }
        self.paid = true;
        true
    }

    /// Whether the next command waits for its turn, or for what its user may take.
    pub fn waits(&self) -> bool {
        self.pause.is_some() || self.taking_bytes.is_some() || self.waiting_turn.is_some()
    }

    /// What was paid for has begun.
    pub fn begun(&mut self) {
        self.paid = false;
    }

    /// Whether the command's bytes are within what the user may have under way. If not, the task is woken when they are.
    pub fn may_carry(&mut self, allowance: &Arc<Allowance>, bytes: usize, cx: &mut Context<'_>) -> bool {
        if self.carried.is_some() {
            return true;
        }
        if self.taking_bytes.is_none() {
            match allowance.try_carry(bytes) {
                Ok(None) => return true,
                Ok(taken) => {
                    self.carried = taken;
                    return true;
                }
                Err(_) => self.taking_bytes = Some(Box::pin(allowance.clone().carry(bytes))),
            }
        }
        match poll_once(&mut self.taking_bytes, cx) {
            Some(taken) => {
                self.carried = taken;
                true
            }
            None => false,
        }
    }

    /// For the command that was received. `ahead`: the room of what it was read ahead with.
    pub fn leave(&mut self, ahead: Option<Arc<Vec<Share>>>) -> Leave {
        self.due = None;
        self.taking_bytes = None;
        Leave {
            _turn: self.turn.take(),
            _room: std::mem::take(&mut self.room),
            _carried: self.carried.take(),
            _ahead: ahead,
        }
    }
}

impl Admission {
    /// What was received needs no turn. What its user has under way with it may be kept.
    pub fn give_back(&mut self) -> Option<OwnedSemaphorePermit> {
        self.turn = None;
        self.due = None;
        self.room.clear();
        self.taking_bytes = None;
        self.carried.take()
    }

    /// The connection cannot go on for a reason of its own: others come first.
    pub fn leave_line(&mut self) {
        self.turn = None;
        self.turns = None;
        self.waiting_turn = None;
        self.tires = None;
    }

    /// The same, and it may not go on at all for as long as its client likes: what is given to it meanwhile would be lost to all.
    pub fn leave_all_lines(&mut self) {
        self.leave_line();
        self.taking_bytes = None;
        self.carried = None;
    }

    /// Whether it holds room that others may wait for. (While it waits for more of it, it does not read: its client may be gone.)
    pub fn holds_room(&self) -> bool {
        !self.room.is_empty() && !self.waits()
    }
}

fn poll_once<T>(waiting: &mut Option<BoxFuture<'static, T>>, cx: &mut Context<'_>) -> Option<T> {
    match Pin::new(waiting.as_mut()?).poll(cx) {
        Poll::Ready(done) => {
            *waiting = None;
            Some(done)
        }
        Poll::Pending => None,
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    const LONG: usize = 1 << 20;
    const ROOM_PATIENCE: Duration = Duration::from_secs(10);

    fn reading(admission: &mut Admission, all: &Room, announced: usize) -> Reading {
        admission.may_read(all, announced, ROOM_PATIENCE, &mut Context::from_waker(Waker::noop()))
    }

    fn may_read(admission: &mut Admission, all: &Room, announced: usize) -> bool {
        reading(admission, all, announced) == Reading::Admitted
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_for_room_too_long_is_refused_and_out_of_the_line() {
        let all = Room::new(LONG);
        let [mut holder, mut second, mut third] = [(); 3].map(|()| Admission::default());
        assert!(may_read(&mut holder, &all, LONG));
        // (One at a time may have more than there is: that is somebody else.)
        let other = all.purse();
        let _more = other.take(LONG, PATIENCE).await;
        assert_eq!(reading(&mut second, &all, LONG), Reading::Waits);
        tokio::time::sleep(ROOM_PATIENCE - Duration::from_secs(1)).await;
        assert_eq!(reading(&mut second, &all, LONG), Reading::Waits);
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(reading(&mut second, &all, LONG), Reading::Refused);
        assert!(!second.holds_room());
        assert_eq!(reading(&mut third, &all, LONG), Reading::Waits, "it has its own time");
    }

    #[tokio::test(start_paused = true)]
    async fn a_long_command_is_not_read_before_there_is_room_and_a_short_one_always_is() {
        let all = Room::new(LONG);
        let (mut first, mut second) = (Admission::default(), Admission::default());
        assert!(may_read(&mut first, &all, LONG));
        assert!(may_read(&mut first, &all, LONG), "the rest of the same argument");
        assert!(!may_read(&mut second, &all, LONG));
        assert!(may_read(&mut Admission::default(), &all, SHORT_BYTES));
        let leave = first.leave(None);
        assert!(!may_read(&mut second, &all, LONG), "until the command is answered");
        drop(leave);
        assert!(may_read(&mut second, &all, LONG));
    }

    #[tokio::test(start_paused = true)]
    async fn many_short_arguments_are_a_long_command() {
        let all = Room::new(2 * STEP_BYTES);
        let mut one = Admission::default();
        assert!((1..=20).all(|n| may_read(&mut one, &all, n * SHORT_BYTES / 2)));
        assert_eq!(all.held_bytes(), 2 * STEP_BYTES, "counted when they are more than a short command");
        let mut other = Admission::default();
        assert!(may_read(&mut other, &all, SHORT_BYTES) && !may_read(&mut other, &all, SHORT_BYTES + 1));
    }

    #[tokio::test(start_paused = true)]
    async fn commands_with_several_long_arguments_do_not_wait_for_each_other_for_ever() {
        let all = Room::new(2 * LONG);
        let (mut first, mut second) = (Admission::default(), Admission::default());
        assert!(may_read(&mut first, &all, LONG) && may_read(&mut second, &all, LONG));
        assert!((2..10).all(|n| may_read(&mut first, &all, n * LONG)), "one may have more than there is");
        assert!(!may_read(&mut second, &all, 2 * LONG), "only one");
        assert!(second.holds_room(), "a client that is gone while it waits is cut off");
        drop(first.leave(None));
        assert!(may_read(&mut second, &all, 2 * LONG));
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_takes_too_long_to_send_what_it_began_is_overdue() {
        let all = Room::new(2 * LONG);
        let mut slow = Admission::default();
        let overdue = |slow: &mut Admission| slow.is_overdue(&mut Context::from_waker(Waker::noop()));
        assert!(may_read(&mut slow, &all, LONG) && !overdue(&mut slow));
        tokio::time::advance(UPLOAD_GRACE + Duration::from_secs(3)).await;
        assert!(!overdue(&mut slow), "a megabyte may take 14 s");
        tokio::time::advance(Duration::from_secs(2)).await;
        assert!(overdue(&mut slow));
        slow.forbear();
        tokio::time::advance(UPLOAD_GRACE).await;
        assert!(!overdue(&mut slow), "it was not read from for a while");
        tokio::time::advance(UPLOAD_GRACE).await;
        assert!(overdue(&mut slow));
        drop(slow.leave(None));
        assert!(!overdue(&mut slow), "the next command has not begun");
    }

    #[test]
    fn connections_take_turns_one_command_at_a_time_where_turns_are_few() {
        let turns = Turns::new(2);
        let cx = &mut Context::from_waker(Waker::noop());
        let mut take = |admission: &mut Admission| admission.take_turn(&turns, 9, Lane::Pipelined, cx);
        let (mut deep, mut other) = (Admission::default(), Admission::default());
        assert!(take(&mut deep) && take(&mut deep), "one turn, asked for twice");
        let one = deep.leave(None);
        assert!(take(&mut deep));
        let _two = deep.leave(None);
        assert!(!take(&mut other) && !take(&mut deep));
        drop(one);
        assert!(!take(&mut deep), "whoever waits longer is first");
        assert!(take(&mut other));
    }

    #[test]
    fn what_is_here_of_a_pipeline_has_its_turn_together_and_what_is_left_is_given_up() {
        let turns = Turns::new(8);
        let cx = &mut Context::from_waker(Waker::noop());
        let mut take =
            |admission: &mut Admission, here| admission.take_turn(&turns, here, Lane::Pipelined, cx);
        let [mut deep, mut other, mut third] = [(); 3].map(|()| Admission::default());
        let mut held: Vec<_> = (0..7).map(|_| (take(&mut deep, 1), deep.leave(None))).collect();
        assert!(held.iter().all(|(had, _)| *had));
        assert!(
            !take(&mut other, 100) && !take(&mut third, 1),
            "one is left: two go together, and before the third"
        );
        held.pop();
        assert!(take(&mut other, 100) && !take(&mut third, 1));
        drop(held);
        assert!(take(&mut third, 1));
        let _first = other.leave(None);
        let _behind = (take(&mut other, 99), other.leave(None));
        assert_eq!(turns.pipelined.available_permits(), 5);
        assert!(take(&mut other, 98), "two more");
        other.rest();
        assert_eq!(turns.pipelined.available_permits(), 4, "the one that is not begun yet is kept");
    }

    #[test]
    fn whoever_has_nothing_under_way_does_not_wait_behind_pipelines() {
        let turns = Turns::new(1);
        let cx = &mut Context::from_waker(Waker::noop());
        let [mut deep, mut behind, mut single] = [(); 3].map(|()| Admission::default());
        let mut take = |admission: &mut Admission, lane| admission.take_turn(&turns, 1, lane, cx);
        assert!(take(&mut deep, Lane::Pipelined));
        assert!(!take(&mut behind, Lane::Pipelined));
        assert!(take(&mut single, Lane::Single));
        let held = single.leave(None);
        assert!(
            !take(&mut behind, Lane::Single),
            "it has changed lines, and somebody is before it in this one"
        );
        drop(deep.leave(None));
        assert!(!take(&mut behind, Lane::Single), "it does not wait in the other any more");
        drop(held);
        assert!(take(&mut behind, Lane::Single));
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_of_several_commands_waits_a_moment_for_the_others_turns_and_no_longer() {
        let turns = Turns::new(8);
        let take = |admission: &mut Admission, lane| {
            admission.take_turn(&turns, 2, lane, &mut Context::from_waker(Waker::noop()))
        };
        let free = || (turns.singles.available_permits(), turns.pipelined.available_permits());
        let [mut one, mut other] = [(); 2].map(|()| Admission::default());
        assert!(take(&mut one, Lane::Single));
        let first = one.leave(None);
        assert!(take(&mut one, Lane::Pipelined));
        let second = one.leave(None);
        assert_eq!(free(), (8, 6));
        let rest = turns.pipelined.clone().try_acquire_many_owned(6).unwrap();
        assert!(!take(&mut other, Lane::Single));
        tokio::time::advance(TOGETHER_PATIENCE - Duration::from_millis(1)).await;
        assert!(!take(&mut other, Lane::Single));
        tokio::time::advance(Duration::from_millis(2)).await;
        assert!(take(&mut other, Lane::Single));
        let _held = other.leave(None);
        assert_eq!(free(), (7, 0));
        assert!(!take(&mut other, Lane::Pipelined), "it has something under way");
        drop((first, second, rest));
        assert!(take(&mut other, Lane::Pipelined));
    }
}
