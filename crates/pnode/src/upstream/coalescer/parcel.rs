//! Requests that are handed over together, and the way back to whoever asked: one allocation for all of them, instead of a channel for
//! each.
//!
//! Owns: whether each has left ([`Slip`]), and the answers until they are taken. Does not own the requests.
//!
//! Invariants: a request is sent or withdrawn, never both; each is answered once, if only by being forgotten ([`Caller`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use sextant_common::{Error, ErrorKind, Result};

use super::slip::Slip;

struct Parcel<R> {
    /// Most have one.
    first: Slip,
    rest: Box<[Slip]>,
    nobody_waits: AtomicBool,
    arrived: Mutex<Arrived<R>>,
}

struct Arrived<R> {
    answers: Vec<(usize, Result<R>)>,
    waker: Option<Waker>,
}

/// Where the answers to some requests arrive. When it is dropped, what has not left will not leave.
pub(crate) struct Answers<R>(Arc<Parcel<R>>);

/// The way back of one request's answer.
pub(crate) struct Caller<R> {
    parcel: Option<Arc<Parcel<R>>>,
    at: usize,
}

impl<R> Parcel<R> {
    fn slip(&self, at: usize) -> &Slip {
        if at == 0 { &self.first } else { &self.rest[at - 1] }
    }
}

impl<R> Answers<R> {
    /// To so many requests.
    pub fn to(requests: usize) -> Self {
        Self(Arc::new(Parcel {
            first: Slip::default(),
            rest: (1..requests).map(|_| Slip::default()).collect(),
            nobody_waits: AtomicBool::new(false),
            arrived: Mutex::new(Arrived { answers: Vec::new(), waker: None }),
        }))
    }

    /// Of a request: whether it has left.
    pub fn slip(&self, at: usize) -> &Slip {
        self.0.slip(at)
    }

    /// For one of the requests; to be taken once for each time that it is handed over.
    pub fn caller(&self, at: usize) -> Caller<R> {
        Caller { parcel: Some(self.0.clone()), at }
    }

    /// Moves what has arrived to `into`: the request, and its answer. Pending: nothing has, and the task is woken when something does.
    pub fn poll(&self, into: &mut Vec<(usize, Result<R>)>, cx: &Context<'_>) -> Poll<()> {
        let mut arrived = self.0.arrived.lock();
        if arrived.answers.is_empty() {
            if !arrived.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
                arrived.waker = Some(cx.waker().clone());
            }
            return Poll::Pending;
        }
        into.append(&mut arrived.answers);
        Poll::Ready(())
    }

    /// The answer to the only request.
    pub async fn one(&self) -> Result<R> {
        let mut arrived = Vec::new();
        std::future::poll_fn(|cx| self.poll(&mut arrived, cx)).await;
        arrived.pop().map_or_else(|| Err(stopping()), |(_, answer)| answer)
    }
}

impl<R> Drop for Answers<R> {
    fn drop(&mut self) {
        self.0.nobody_waits.store(true, Ordering::Release);
    }
}

impl<R> Caller<R> {
    pub fn is_gone(&self) -> bool {
        self.parcel.as_ref().is_none_or(|parcel| parcel.nobody_waits.load(Ordering::Acquire))
    }

    /// To be called right before the request leaves. False: it was withdrawn, and must not leave.
    pub fn leaves(&self, now_ns: u64) -> bool {
        self.parcel.as_ref().is_some_and(|parcel| parcel.slip(self.at).send(now_ns))
    }

    /// What was to carry the request never left, nor will.
    fn take_back(&self) {
        if let Some(parcel) = &self.parcel {
            parcel.slip(self.at).take_back();
        }
    }

    pub fn answer(mut self, answer: Result<R>) {
        self.give(answer);
    }

    fn give(&mut self, answer: Result<R>) {
        let Some(parcel) = self.parcel.take() else { return };
        let mut arrived = parcel.arrived.lock();
        arrived.answers.push((self.at, answer));
        let waker = arrived.waker.take();
        drop(arrived);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Whoever carried it has ended.
impl<R> Drop for Caller<R> {
    fn drop(&mut self) {
        if self.parcel.is_some() {
            self.give(Err(stopping()));
        }
    }
}

/// Those who are answered by one request.
pub(super) struct Callers<R> {
    first: Caller<R>,
    /// Mostly none.
    others: Vec<Caller<R>>,
}

impl<R> Callers<R> {
    pub fn of(first: Caller<R>) -> Self {
        Self { first, others: Vec::new() }
    }

    pub fn join(&mut self, caller: Caller<R>) {
        self.others.push(caller);
    }

    pub fn answer(self, answer: R)
    where
        R: Clone,
    {
        self.others.into_iter().for_each(|caller| caller.answer(Ok(answer.clone())));
        self.first.answer(Ok(answer));
    }

    /// What was to carry the request never left, nor will.
    pub fn take_back(&self) {
        self.first.take_back();
        self.others.iter().for_each(Caller::take_back);
    }

    pub fn fail(self, error: &Error) {
        self.others.into_iter().chain([self.first]).for_each(|caller| caller.answer(Err(error.clone())));
    }
}

pub(super) fn stopping() -> Error {
    Error::new(ErrorKind::Stopping, "the p-node is stopping")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrived(answers: &Answers<u32>) -> Vec<(usize, Result<u32, ErrorKind>)> {
        let mut arrived = Vec::new();
        let _ = answers.poll(&mut arrived, &Context::from_waker(Waker::noop()));
        arrived.into_iter().map(|(at, answer)| (at, answer.map_err(|e| e.kind))).collect()
    }

    #[test]
    fn answers_arrive_one_by_one_each_once() {
        let answers = Answers::to(3);
        let [a, b, c] = [0, 1, 2].map(|at| answers.caller(at));
        assert!(arrived(&answers).is_empty());
        c.answer(Ok(7));
        assert_eq!(arrived(&answers), [(2, Ok(7))]);
        a.answer(Err(Error::invalid("why")));
        drop(b);
        assert_eq!(arrived(&answers), [(0, Err(ErrorKind::Invalid)), (1, Err(ErrorKind::Stopping))]);
        assert!(arrived(&answers).is_empty());
    }

    #[test]
    fn each_has_a_slip_of_its_own_and_nobody_is_waited_for_who_is_gone() {
        let answers = Answers::<u32>::to(2);
        let [a, b] = [0, 1].map(|at| answers.caller(at));
        assert!(a.leaves(5) && !answers.slip(0).withdraw());
        assert!(answers.slip(1).withdraw() && !b.leaves(6));
        assert!(!a.is_gone() && !b.is_gone());
        drop(answers);
        assert!(a.is_gone() && b.is_gone());
        a.answer(Ok(1));
    }

    #[tokio::test]
    async fn whoever_waits_is_woken() {
        let answers = Answers::to(1);
        let caller = answers.caller(0);
        let (answer, ()) = tokio::join!(biased; answers.one(), async { caller.answer(Ok(3)) });
        assert_eq!(answer.unwrap(), 3);
    }
}
