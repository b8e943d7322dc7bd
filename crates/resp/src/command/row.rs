//! Commands that one client has sent on one key, one directly behind the other: they go as one batch, in their order.
//!
//! One by one each of them would wait until the one before it is durable. As a batch they take effect at one moment; each has a reply of
//! its own. A batch that does not take effect as a whole keeps nobody from anything: its commands go one after the other then, and each
//! is answered before the next one begins.
//!
//! Owns which go together, and how. Does not own which stand behind each other: that is the connection's.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesOrdered;
use sextant_common::operation::Lane;
use sextant_common::{ErrorKind, Result};
use sextant_environment::slow_log::{self, Trace};
use tokio::sync::oneshot::Receiver;

use super::ahead::Ahead;
use super::atomic;
use super::errors::store_error;
use super::increments::Increments;
use super::objects::{self, RowDone};
use super::request::Request;
use super::transaction::Queued;
use crate::companions::Turn;
use crate::frame::Reply;
use crate::shared::Shared;
use crate::store::Store;

/// Of a row: commands, their arguments (no more than an ordinary batch of operations), and bytes (less than what counts as large).
const COMMANDS_MAX: usize = 64;
const ARGUMENTS_MAX: usize = 1024;
const BYTES_MAX: usize = 48 * 1024;

/// So many of one quick way are better off without those of another.
const ALIKE_MIN: usize = 8;

/// How much a row has.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RowSize {
    commands: usize,
    arguments: usize,
    bytes: usize,
    /// How the commands on an object go together, if all of them go so.
    alike: Option<objects::Row>,
}

impl RowSize {
    /// Whether this one has room in it.
    pub fn takes(&mut self, request: &Request) -> bool {
        let (arguments, bytes) = match request {
            Request::Object(object) => (object.arguments, object.bytes),
            request => (1, request.bytes()),
        };
        let row = object_row(request);
        let is_like_them = self.commands == 0 || row == self.alike;
        if !is_like_them && self.commands >= ALIKE_MIN && matches!(self.alike, Some(objects::Row::Quick(_))) {
            return false;
        }
        self.alike = if is_like_them { row } else { None };
        self.commands += 1;
        self.arguments += arguments;
        self.bytes += bytes;
        self.commands <= COMMANDS_MAX && self.arguments <= ARGUMENTS_MAX && self.bytes <= BYTES_MAX
    }
}

/// Whether a command that writes one key may go with others on it.
pub(crate) fn may_have_others(request: &Request) -> bool {
    is_operation(request) || object_row(request).is_some()
}

/// Whether it may go with the one directly before it.
pub(crate) fn go_together(before: &Request, next: &Request) -> bool {
    let is_same_key = || before.single_key().is_some() && before.single_key() == next.single_key();
    match (object_row(before), object_row(next)) {
        (None, None) => is_operation(before) && is_operation(next) && is_same_key(),
        (Some(before), Some(next)) => before.goes_with(next) && is_same_key(),
        _ => false,
    }
}

/// One of the sequencer's.
fn is_operation(request: &Request) -> bool {
    match request {
        Request::Set { .. } => true,
        Request::Change { ops, .. } => ops.len() == 1,
        Request::Delete(keys) => keys.len() == 1,
        _ => false,
    }
}

/// Of a command on an object: how it goes with others.
fn object_row(request: &Request) -> Option<objects::Row> {
    match request {
        Request::Object(object) => object.row(),
        _ => None,
    }
}

/// Whether others that did not go with it may succeed, after a batch with it failed so: nothing took effect, and it was not for want of
/// room.
fn is_worth_a_second_look(kind: ErrorKind) -> bool {
    !matches!(
        kind,
        ErrorKind::OutcomeUnknown | ErrorKind::Internal | ErrorKind::Overloaded | ErrorKind::Stopping
    )
}

/// The commands of a row, as they are answered one after the other.
pub(crate) struct RowRun<S: Store> {
    shared: Arc<Shared<S>>,
    lane: Lane,
    left: Left,
    /// Under which there may be something new for those who wait.
    filled: Option<Bytes>,
}

enum Left {
    Requests(Vec<Request>),
    Replies(std::vec::IntoIter<Reply>),
    /// One by one.
    Apart(std::vec::IntoIter<Request>),
    InLine(InLine),
}

/// Those that stand in the line of their key. All of them are looked after until each has its answer: one that is to lead has others
/// behind it.
struct InLine {
    told: FuturesOrdered<BoxFuture<'static, Answered>>,
    /// Answers that came while one before them was not handed on yet.
    early: VecDeque<Answered>,
}

/// A reply, and where its time went, if that is known of it alone.
pub(crate) type Answered = (Reply, Option<Trace>);

impl<S: Store> RowRun<S> {
    /// Of one row, and not empty.
    pub fn new(requests: Vec<Request>, shared: Arc<Shared<S>>, lane: Lane) -> Self {
        let filled = requests.iter().find_map(|request| request.filled().pop());
        Self { shared, lane, left: Left::Requests(requests), filled }
    }

    /// The reply to the next one. None: that was all.
    pub async fn next(&mut self) -> Option<Answered> {
        if let Left::Requests(requests) = &mut self.left {
            let requests = std::mem::take(requests);
            self.left = match requests.iter().all(|request| matches!(request, Request::Object(_))) {
                true => self.on_an_object(requests).await,
                false => self.as_batch(requests).await,
            };
            self.wake();
        }
        match &mut self.left {
            Left::Requests(_) => None,
            Left::Replies(replies) => Some((replies.next()?, None)),
            Left::Apart(requests) => {
                Some((requests.next()?.run(self.shared.clone(), Ahead::default(), self.lane).await, None))
            }
            Left::InLine(InLine { told, early }) => match early.pop_front() {
                None => told.next().await,
                answered => answered,
            },
        }
    }

    /// Until this is done. Those that stand in line are looked after meanwhile.
    pub async fn meanwhile<T>(&mut self, other: impl Future<Output = T>) -> T {
        let Left::InLine(InLine { told, early }) = &mut self.left else { return other.await };
        let mut other = pin!(other);
        loop {
            tokio::select! {
                biased;
                done = &mut other => return done,
                Some(answered) = told.next() => early.push_back(answered),
            }
        }
    }

    /// Until one that stands in line is told what has become of it.
    fn told(&self, waits: Result<Receiver<Turn>>) -> BoxFuture<'static, Answered> {
        let (shared, lane, filled) = (self.shared.clone(), self.lane, self.filled.clone());
        Box::pin(async move {
            let told = match waits {
                Ok(told) => told,
                Err(e) => return (store_error(&e), None),
            };
            let mut told = Box::pin(slow_log::traced(objects::behind(told, &shared, lane)));
            let reply = told.as_mut().await;
            let trace = told.as_mut().take_value();
            drop(told);
            filled.iter().for_each(|key| shared.waiters.wake(shared.database, key));
            (reply.unwrap_or_else(|e| store_error(&e)), trace)
        })
    }

    fn wake(&self) {
        self.filled.iter().for_each(|key| self.shared.waiters.wake(self.shared.database, key));
    }

    async fn on_an_object(&mut self, requests: Vec<Request>) -> Left {
        let objects = requests.into_iter().filter_map(|request| match request {
            Request::Object(object) => Some(object),
            _ => None,
        });
        match objects::run_row(objects.collect(), &self.shared, self.lane).await {
            RowDone::Replies(replies) => Left::Replies(replies.into_iter()),
            RowDone::Apart(requests) => Left::Apart(requests.into_iter()),
            RowDone::InLine(waiting) => {
                let told = waiting.into_iter().map(|waits| self.told(waits)).collect();
                Left::InLine(InLine { told, early: VecDeque::new() })
            }
        }
    }

    async fn as_batch(&mut self, requests: Vec<Request>) -> Left {
        let has_put = requests.iter().any(Request::is_put);
        let (store, lane) = (&self.shared.store, self.lane);
        let summed = match Increments::of(&requests) {
            Some(increments) => increments.run(store, lane).await,
            None => Ok(None),
        };
        let commands: Vec<Queued> = requests.into_iter().map(Queued::Ask).collect();
        let done = match summed {
            Ok(None) => atomic::run_as_batch(store, &commands, lane).await,
            done => done,
        };
        match done {
            Ok(Some(replies)) => return Left::Replies(replies.into_iter()),
            // One of them does not go with what is there, or they are too much together.
            Ok(None) => {}
            Err(e) if e.kind == ErrorKind::Invalid => {}
            // (What a put is written over need not be known.)
            Err(e) if has_put && is_worth_a_second_look(e.kind) => {}
            Err(e) => {
                let replies: Vec<_> = commands.iter().map(|_| store_error(&e)).collect();
                return Left::Replies(replies.into_iter());
            }
        }
        Left::Apart(requests_of(commands).into_iter())
    }
}

pub(super) fn requests_of(commands: Vec<Queued>) -> Vec<Request> {
    let request = |command| match command {
        Queued::Ask(request) => Some(request),
        Queued::Known(_) => None,
    };
    commands.into_iter().filter_map(request).collect()
}
