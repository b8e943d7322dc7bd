//! One long-lived stream to a server, fed by a coalescer: what has queued up travels in one message.
//!
//! Owns: batching, the number of messages in flight, correlation of replies, and what happens to requests when the stream
//! breaks. Does not own their meaning ([`Call`]), nor retries.
//!
//! Flow: callers -> bounded queue -> (while fewer than [`Limits::messages`] are in flight) one message of everything that is
//! there, up to a number and a size -> replies by id -> callers.
//!
//! Requests that are [alike](Call::alike) and leave together leave as one, which all their callers are answered by: each asked
//! before it left, so what is true after that is an answer to each.
//!
//! A message that takes long no longer counts as in flight, up to [`Limits::messages_max`]: one slow partition must not
//! hold up the others. Requests whose callers have gone, or have withdrawn them ([`Slip`]), are not sent. What is in flight is
//! bounded in bytes too ([`Limits::bytes_in_flight`]): the rest waits here, where it can still be withdrawn.
//!
//! A stream may outlive what is behind it: a server that is being replaced can go on answering on streams that are open.
//! [`Coalescer::renew`] moves to a new stream once everything in flight is answered.

mod driver;
mod in_flight;
mod parcel;
mod slip;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::BoxStream;
use sextant_common::{Error, ErrorKind, Result};
use sextant_environment::Clock;
use sextant_environment::env::{error_of, never_connected};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use crate::metrics::{MessageKind, PNodeMetrics};
use driver::Driver;
use in_flight::after;
pub(crate) use parcel::Answers;
use parcel::{Caller, stopping};
use slip::Slip;

/// The replies on a stream.
pub(crate) type Inbound<T> = BoxStream<'static, Result<T, Status>>;

/// A kind of request on a kind of stream.
pub(crate) trait Call: Send + Sync + 'static {
    const KIND: MessageKind;
    type Request: Send + 'static;
    type Reply: Clone + Send + 'static;
    type Batch: Send + 'static;
    type BatchReply: Send + 'static;

    fn request_bytes(request: &Self::Request) -> usize;
    fn reply_bytes(reply: &Self::Reply) -> usize;
    /// A message of requests with the ids `first_id`, `first_id + 1`, and so on.
    fn batch(&self, first_id: u64, requests: Vec<Self::Request>) -> Self::Batch;
    /// A request is about to leave that has waited here for so long.
    fn leaves(_request: &mut Self::Request, _waited: Duration) {}
    /// A hash that requests have in common which one answer is good for. None: each has an effect of its own.
    fn alike(_request: &Self::Request) -> Option<u64> {
        None
    }
    /// Makes a request stand for another one too, which looks [alike](Self::alike). False: it is not.
    fn join(_earlier: &mut Self::Request, _later: &Self::Request) -> bool {
        false
    }
    /// Opens a stream. May wait for the first message before it answers.
    fn open(
        &self,
        messages: ReceiverStream<Self::Batch>,
    ) -> BoxFuture<'_, Result<Inbound<Self::BatchReply>, Status>>;
    /// One message without a stream.
    fn unary(&self, batch: Self::Batch) -> BoxFuture<'_, Result<Self::BatchReply, Status>>;
    /// The replies with the ids of their requests. Returns the first id of a message that is answered completely with this.
    fn replies(&self, reply: Self::BatchReply, each: &mut dyn FnMut(u64, Self::Reply)) -> Option<u64>;
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Messages in flight, not counting slow ones. Two keep both ends busy; more only make messages smaller.
    pub messages: usize,
    /// A message that has been in flight for so long counts no more.
    pub slow_after: Duration,
    /// Messages in flight, slow ones included: bounds what a stuck server can hold.
    pub messages_max: usize,
    /// Requests in one message: beyond some hundred there is nothing more to save.
    pub requests_per_message: usize,
    /// Bytes of requests in one message: a fraction of the largest message, so that one request more always fits.
    pub bytes_per_message: usize,
    /// Bytes of requests that are not answered yet, and of the replies to be expected. Below it one more message may leave,
    /// whatever its size.
    pub bytes_in_flight: usize,
    /// A stream whose oldest message has been in flight for so long is given up.
    pub stalled_after: Duration,
}

impl Limits {
    pub const READS: Limits = Limits {
        messages: 2,
        slow_after: Duration::from_millis(5),
        messages_max: 64,
        requests_per_message: 256,
        bytes_per_message: 4 * 1024 * 1024,
        // Of the replies that are to be expected: some of the largest.
        bytes_in_flight: 32 * 1024 * 1024,
        stalled_after: Duration::from_secs(3),
    };
    /// A write waits for disks and acknowledgements, and the server forms groups of its own.
    pub const WRITES: Limits = Limits {
        messages: 8,
        slow_after: Duration::from_millis(10),
        messages_max: 512,
        requests_per_message: 1024,
        bytes_per_message: 4 * 1024 * 1024,
        // All that the numbers of a session allow, if each is as large as a small one can be.
        bytes_in_flight: 64 * 1024 * 1024,
        stalled_after: Duration::from_secs(30),
    };
    /// Large writes have a connection of their own, so that small ones never queue behind them. Few are in flight: the leader
    /// makes a log entry of each, so more of them would only wait there, where they cannot be withdrawn.
    pub const BULK_WRITES: Limits = Limits { bytes_in_flight: 12 * 1024 * 1024, ..Limits::WRITES };
}

/// Requests that wait to be sent: some messages' worth. Beyond it callers wait in line (with their deadlines).
const QUEUE_MAX: usize = 4096;

struct Entry<C: Call> {
    request: C::Request,
    queued_ns: u64,
    caller: Caller<C::Reply>,
}

/// The callers' end.
pub(crate) struct Coalescer<C: Call> {
    queue: mpsc::Sender<Entry<C>>,
    renewals: watch::Sender<u64>,
    call: Arc<C>,
    clock: Arc<dyn Clock>,
    metrics: Arc<PNodeMetrics>,
    /// Room for requests that travel alone, in units of [`UNIT_BYTES`].
    alone: Semaphore,
    alone_max: usize,
}

/// How long a request may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// If it has not left by then (holder's clock), it is withdrawn.
    pub leave_by_ns: u64,
    /// The answer, from when it left.
    pub answer: Duration,
}

/// Room is counted in these.
const UNIT_BYTES: usize = 1024;

impl<C: Call> Coalescer<C> {
    /// Starts the stream's task; it ends when the coalescer is dropped. Must be called within a tokio runtime.
    pub fn start(call: C, limits: Limits, clock: Arc<dyn Clock>, metrics: Arc<PNodeMetrics>) -> Self {
        let (queue, requests) = mpsc::channel(QUEUE_MAX);
        let call = Arc::new(call);
        let renewals = watch::Sender::new(0);
        let driver = Driver {
            call: call.clone(),
            limits,
            clock: clock.clone(),
            metrics: metrics.clone(),
            renewals: renewals.subscribe(),
            widest_reply_bytes: 0,
            alike: Default::default(),
        };
        tokio::spawn(driver.run(requests));
        let alone_max = limits.bytes_in_flight / UNIT_BYTES;
        Self { queue, renewals, call, clock, metrics, alone: Semaphore::new(alone_max), alone_max }
    }

    /// Something about the answers suggests that the stream leads to a server that is gone: later requests travel on a new one.
    pub fn renew(&self) {
        self.renewals.send_modify(|n| *n += 1);
    }

    /// Sends a request along with others. An error says that it may or may not have reached the server. The caller sets
    /// the deadline.
    pub async fn ask(&self, request: C::Request) -> Result<C::Reply> {
        self.enqueue(request, &Answers::to(1)).await
    }

    async fn enqueue(&self, request: C::Request, answers: &Answers<C::Reply>) -> Result<C::Reply> {
        let queued_ns = self.clock.holder_ns();
        let entry = Entry { request, queued_ns, caller: answers.caller(0) };
        self.queue.send(entry).await.map_err(|_| stopping())?;
        answers.one().await
    }

    /// Hands a request over if there is room, without waiting for anything; its answer comes to `answers`, as the one to request `at`.
    /// False: there is no room, or the p-node stops; it will not leave, and is not answered.
    pub fn hand_over(&self, request: C::Request, answers: &Answers<C::Reply>, at: usize) -> bool {
        let Ok(room) = self.queue.try_reserve() else { return false };
        let queued_ns = self.clock.holder_ns();
        room.send(Entry { request, queued_ns, caller: answers.caller(at) });
        true
    }

    /// As [`Coalescer::ask`] (or `alone`), with a limit to each stage. After an error, or if this is dropped, the first slip of `answers`
    /// tells whether the request left.
    pub async fn ask_within(
        &self,
        request: C::Request,
        alone: bool,
        answers: &Answers<C::Reply>,
        patience: Patience,
    ) -> Result<C::Reply> {
        let slip = answers.slip(0);
        let answer = async {
            if alone { self.send_alone(request, slip).await } else { self.enqueue(request, answers).await }
        };
        let mut answer = std::pin::pin!(answer);
        loop {
            let now_ns = self.clock.holder_ns();
            let until_ns = match slip.sent_ns() {
                Some(sent_ns) => after(sent_ns, patience.answer),
                // It may leave at any time; so look again before it can be overdue.
                None => patience.leave_by_ns.min(after(now_ns, patience.answer)),
            };
            let wait = Duration::from_nanos(until_ns.saturating_sub(now_ns));
            if let Ok(answer) = tokio::time::timeout(wait, &mut answer).await {
                return answer;
            }
            let now_ns = self.clock.holder_ns();
            match slip.sent_ns() {
                Some(sent_ns) if now_ns >= after(sent_ns, patience.answer) => {
                    return Err(Error::unavailable("the leader did not answer in time"));
                }
                None if now_ns >= patience.leave_by_ns && slip.withdraw() => {
                    return Err(Error::new(
                        ErrorKind::Overloaded,
                        "the write was not executed: too much was before it on the way to the leader",
                    ));
                }
                _ => {}
            }
        }
    }

    async fn send_alone(&self, mut request: C::Request, slip: &Slip) -> Result<C::Reply> {
        let queued_ns = self.clock.holder_ns();
        let units = C::request_bytes(&request).div_ceil(UNIT_BYTES).clamp(1, self.alone_max.max(1));
        let _room = self.alone.acquire_many(units as u32).await.map_err(|_| stopping())?;
        let now_ns = self.clock.holder_ns();
        if !slip.send(now_ns) {
            return Err(Error::unavailable("the request was withdrawn"));
        }
        C::leaves(&mut request, Duration::from_nanos(now_ns.saturating_sub(queued_ns)));
        let sent = self.send_unary(request).await;
        if sent.as_ref().is_err_and(never_connected) {
            slip.take_back();
        }
        self.only_reply(sent)
    }

    /// Sends a request in a message of its own, without the stream.
    pub async fn ask_alone(&self, request: C::Request) -> Result<C::Reply> {
        self.only_reply(self.send_unary(request).await)
    }

    async fn send_unary(&self, request: C::Request) -> Result<C::BatchReply, Status> {
        self.metrics.count_message(C::KIND, 1);
        self.call.unary(self.call.batch(0, vec![request])).await
    }

    fn only_reply(&self, sent: Result<C::BatchReply, Status>) -> Result<C::Reply> {
        let mut first = None;
        self.call.replies(sent.map_err(error_of)?, &mut |id, reply| {
            if id == 0 && first.is_none() {
                first = Some(reply);
            }
        });
        first.ok_or_else(|| Error::unavailable("an answer without a reply"))
    }
}
