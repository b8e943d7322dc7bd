//! One long-lived stream to a server, fed by a coalescer: what has queued up travels in one message.
//!
//! Owns: batching, the number of messages in flight, correlation of replies, and what happens to requests when the stream
//! breaks. Does not own their meaning ([`Call`]), nor retries.
//!
//! Flow: callers -> bounded queue -> (while fewer than [`Limits::messages`] are in flight) one message of everything that is
//! there, up to a number and a size -> replies by id -> callers.
//!
//! A message that takes long no longer counts as in flight, up to [`Limits::messages_max`]: one slow partition must not
//! hold up the others. Requests whose callers have gone are not sent.
//!
//! A stream may outlive what is behind it: a server that is being replaced can go on answering on streams that are open.
//! [`Coalescer::renew`] moves to a new stream once everything in flight is answered.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use sextant_common::{Clock, Error, Result};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use crate::metrics::{MessageKind, PNodeMetrics};

/// The replies on a stream.
pub(crate) type Inbound<T> = BoxStream<'static, Result<T, Status>>;

/// A kind of request on a kind of stream.
pub(crate) trait Call: Send + Sync + 'static {
    const KIND: MessageKind;
    type Request: Send + 'static;
    type Reply: Send + 'static;
    type Batch: Send + 'static;
    type BatchReply: Send + 'static;

    fn request_bytes(request: &Self::Request) -> usize;
    fn reply_bytes(reply: &Self::Reply) -> usize;
    /// A message of requests with the ids `first_id`, `first_id + 1`, and so on.
    fn batch(&self, first_id: u64, requests: Vec<Self::Request>) -> Self::Batch;
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
        stalled_after: Duration::from_secs(3),
    };
    /// A write waits for disks and acknowledgements, and the server forms groups of its own.
    pub const WRITES: Limits = Limits {
        messages: 8,
        slow_after: Duration::from_millis(10),
        messages_max: 512,
        requests_per_message: 1024,
        bytes_per_message: 4 * 1024 * 1024,
        stalled_after: Duration::from_secs(30),
    };
}

/// Requests that wait to be sent: some messages' worth. Beyond it callers wait in line (with their deadlines).
const QUEUE_MAX: usize = 4096;
/// How long opening a stream may take.
const OPEN_TIMEOUT: Duration = Duration::from_secs(2);
/// A stream younger than this is not renewed: many callers notice the same thing at once.
const RENEWED_AFTER: Duration = Duration::from_millis(100);
/// What is in flight on a stream that is to be renewed gets so long for its answers.
const RENEWAL_MAX: Duration = Duration::from_millis(500);
/// Size of the replies to one message that is aimed at, from the largest replies seen recently. Well below the largest
/// message that may be received.
const REPLY_BYTES_AIM: usize = 8 * 1024 * 1024;

struct Entry<C: Call> {
    request: C::Request,
    reply: oneshot::Sender<Result<C::Reply>>,
}

/// The callers' end.
pub(crate) struct Coalescer<C: Call> {
    queue: mpsc::Sender<Entry<C>>,
    renewals: watch::Sender<u64>,
    call: Arc<C>,
    metrics: Arc<PNodeMetrics>,
}

impl<C: Call> Coalescer<C> {
    /// Starts the stream's task; it ends when the coalescer is dropped. Must be called within a tokio runtime.
    pub fn start(call: C, limits: Limits, clock: Arc<dyn Clock>, metrics: Arc<PNodeMetrics>) -> Self {
        let (queue, requests) = mpsc::channel(QUEUE_MAX);
        let call = Arc::new(call);
        let renewals = watch::Sender::new(0);
        let driver = Driver {
            call: call.clone(),
            limits,
            clock,
            metrics: metrics.clone(),
            renewals: renewals.subscribe(),
            widest_reply_bytes: 0,
        };
        tokio::spawn(driver.run(requests));
        Self { queue, renewals, call, metrics }
    }

    /// Something about the answers suggests that the stream leads to a server that is gone: later requests travel on a new one.
    pub fn renew(&self) {
        self.renewals.send_modify(|n| *n += 1);
    }

    /// Sends a request along with others. An error says that it may or may not have reached the server. The caller sets
    /// the deadline.
    pub async fn ask(&self, request: C::Request) -> Result<C::Reply> {
        let (reply, answer) = oneshot::channel();
        self.queue.send(Entry { request, reply }).await.map_err(|_| stopping())?;
        answer.await.map_err(|_| stopping())?
    }

    /// Sends a request in a message of its own, without the stream.
    pub async fn ask_alone(&self, request: C::Request) -> Result<C::Reply> {
        self.metrics.count_message(C::KIND, 1);
        let reply = self.call.unary(self.call.batch(0, vec![request])).await.map_err(Error::from)?;
        let mut first = None;
        self.call.replies(reply, &mut |id, reply| {
            if id == 0 && first.is_none() {
                first = Some(reply);
            }
        });
        first.ok_or_else(|| Error::unavailable("an answer without a reply"))
    }
}

fn stopping() -> Error {
    Error::new(sextant_common::ErrorKind::Stopping, "the p-node is stopping")
}

/// How a stream ended.
enum End {
    /// Nothing was in flight on it.
    Renewed,
    Broken(Error),
    CallersGone,
}

struct Driver<C: Call> {
    call: Arc<C>,
    limits: Limits,
    clock: Arc<dyn Clock>,
    metrics: Arc<PNodeMetrics>,
    renewals: watch::Receiver<u64>,
    /// The largest replies seen recently.
    widest_reply_bytes: usize,
}

impl<C: Call> Driver<C> {
    async fn run(mut self, mut requests: mpsc::Receiver<Entry<C>>) {
        let mut next_id = 1;
        let mut waiting = VecDeque::new();
        loop {
            // No stream while there is nothing to send.
            if waiting.is_empty() {
                let Some(entry) = requests.recv().await else { return };
                waiting.push_back(entry);
            }
            let mut in_flight = InFlight::new(next_id);
            let end = self.run_stream(&mut requests, &mut waiting, &mut in_flight).await;
            next_id = in_flight.next_id();
            let error = match end {
                End::CallersGone => return,
                // Nothing is in flight; what waits has not been sent.
                End::Renewed => continue,
                End::Broken(error) => error,
            };
            for caller in in_flight.drain().chain(waiting.drain(..).map(|e| e.reply)) {
                let _ = caller.send(Err(error.clone()));
            }
        }
    }

    /// Runs one stream until it ends.
    async fn run_stream(
        &mut self,
        requests: &mut mpsc::Receiver<Entry<C>>,
        waiting: &mut VecDeque<Entry<C>>,
        in_flight: &mut InFlight<oneshot::Sender<Result<C::Reply>>>,
    ) -> End {
        let (messages, outbound) = mpsc::channel(1);
        // Take what came along with the first request, and send before the server answers the opening of the stream.
        while waiting.len() < self.limits.requests_per_message
            && let Ok(entry) = requests.try_recv()
        {
            waiting.push_back(entry);
        }
        if let Some(batch) = self.next_message(waiting, in_flight) {
            let _ = messages.try_send(batch);
        }
        let call = self.call.clone();
        let opening = call.open(ReceiverStream::new(outbound));
        let mut inbound = match tokio::time::timeout(OPEN_TIMEOUT, opening).await {
            Ok(Ok(inbound)) => inbound,
            Ok(Err(status)) => return End::Broken(lost(&status)),
            Err(_) => return End::Broken(Error::unavailable("the server did not open a stream in time")),
        };
        let mut buffer = Vec::new();
        let opened_ns = self.clock.holder_ns();
        self.renewals.mark_unchanged();
        // Since when the stream is to be renewed.
        let mut renewing_ns: Option<u64> = None;
        loop {
            let now_ns = self.clock.holder_ns();
            if let Some(since_ns) = renewing_ns {
                if in_flight.is_empty() {
                    return End::Renewed;
                }
                if now_ns >= after(since_ns, RENEWAL_MAX) {
                    return End::Broken(Error::unavailable("the stream was given up"));
                }
            }
            if in_flight.oldest_sent_ns().is_some_and(|sent| now_ns >= after(sent, self.limits.stalled_after))
            {
                return End::Broken(Error::unavailable("the server does not answer"));
            }
            let may_send = renewing_ns.is_none() && in_flight.may_send(self.limits, now_ns);
            let look_again = match renewing_ns {
                Some(since_ns) => {
                    Some(Duration::from_nanos(after(since_ns, RENEWAL_MAX).saturating_sub(now_ns)))
                }
                None => in_flight.next_change(self.limits, may_send, now_ns),
            };
            tokio::select! {
                biased;
                reply = inbound.next() => match reply {
                    Some(Ok(reply)) => self.deliver(reply, in_flight),
                    Some(Err(status)) => return End::Broken(lost(&status)),
                    None => return End::Broken(Error::unavailable("the server closed the stream")),
                },
                // Never wait for room alone: the server may be waiting for us to take its replies.
                room = messages.reserve(), if may_send && !waiting.is_empty() => match room {
                    Ok(room) => {
                        if let Some(batch) = self.next_message(waiting, in_flight) {
                            room.send(batch);
                        }
                    }
                    Err(_) => return End::Broken(Error::unavailable("the stream is closed")),
                },
                taken = requests.recv_many(&mut buffer, self.limits.requests_per_message),
                    if may_send && waiting.is_empty() =>
                {
                    if taken == 0 {
                        return End::CallersGone;
                    }
                    waiting.extend(buffer.drain(..));
                }
                renewal = self.renewals.changed() => {
                    if renewal.is_err() {
                        return End::CallersGone;
                    }
                    if renewing_ns.is_none() && now_ns >= after(opened_ns, RENEWED_AFTER) {
                        renewing_ns = Some(now_ns);
                    }
                }
                () = sleep_opt(look_again) => {}
            }
        }
    }

    /// The next message out of what waits. Those whose callers have gone are dropped.
    fn next_message(
        &mut self,
        waiting: &mut VecDeque<Entry<C>>,
        in_flight: &mut InFlight<oneshot::Sender<Result<C::Reply>>>,
    ) -> Option<C::Batch> {
        let by_reply_size = REPLY_BYTES_AIM / self.widest_reply_bytes.max(1);
        let most = self.limits.requests_per_message.min(by_reply_size.max(1));
        let first_id = in_flight.next_id();
        let (mut requests, mut bytes) = (Vec::with_capacity(waiting.len().min(most)), 0);
        while requests.len() < most
            && let Some(entry) = waiting.pop_front()
        {
            if entry.reply.is_closed() {
                continue;
            }
            bytes += C::request_bytes(&entry.request);
            if !requests.is_empty() && bytes > self.limits.bytes_per_message {
                waiting.push_front(entry);
                break;
            }
            requests.push(entry.request);
            in_flight.push(entry.reply);
        }
        if requests.is_empty() {
            return None;
        }
        self.metrics.count_message(C::KIND, requests.len());
        in_flight.message_sent(first_id, self.clock.holder_ns());
        Some(self.call.batch(first_id, requests))
    }

    fn deliver(&mut self, reply: C::BatchReply, in_flight: &mut InFlight<oneshot::Sender<Result<C::Reply>>>) {
        let mut widest = self.widest_reply_bytes;
        let complete = self.call.replies(reply, &mut |id, reply| {
            widest = C::reply_bytes(&reply).max(widest - widest / 64);
            if let Some(caller) = in_flight.take(id) {
                let _ = caller.send(Ok(reply));
            }
        });
        self.widest_reply_bytes = widest;
        if let Some(first_id) = complete {
            for caller in in_flight.finish_message(first_id) {
                let _ = caller.send(Err(Error::unavailable("the answer lacks a reply")));
            }
        }
    }
}

fn lost(status: &Status) -> Error {
    Error::unavailable(format!("the stream broke: {}", status.message()))
}

fn after(sent_ns: u64, time: Duration) -> u64 {
    sent_ns.saturating_add(time.as_nanos() as u64)
}

async fn sleep_opt(time: Option<Duration>) {
    match time {
        Some(time) => tokio::time::sleep(time).await,
        None => std::future::pending().await,
    }
}

/// What is in flight: callers by consecutive ids, and the messages that they travelled in.
struct InFlight<T> {
    /// Id of the first slot.
    base: u64,
    slots: VecDeque<Option<T>>,
    /// In the order of sending: (first id, requests not answered yet, sent at).
    messages: VecDeque<Message>,
}

struct Message {
    first_id: u64,
    end_id: u64,
    left: usize,
    sent_ns: u64,
}

impl<T> InFlight<T> {
    fn new(next_id: u64) -> Self {
        Self { base: next_id, slots: VecDeque::new(), messages: VecDeque::new() }
    }

    fn next_id(&self) -> u64 {
        self.base + self.slots.len() as u64
    }

    fn push(&mut self, caller: T) {
        self.slots.push_back(Some(caller));
    }

    /// Everything pushed since `first_id` travels in one message.
    fn message_sent(&mut self, first_id: u64, sent_ns: u64) {
        let end_id = self.next_id();
        self.messages.push_back(Message { first_id, end_id, left: (end_id - first_id) as usize, sent_ns });
    }

    fn take(&mut self, id: u64) -> Option<T> {
        let at = usize::try_from(id.checked_sub(self.base)?).ok()?;
        let caller = self.slots.get_mut(at)?.take()?;
        while let Some(None) = self.slots.front() {
            self.slots.pop_front();
            self.base += 1;
        }
        let at = self.messages.partition_point(|m| m.end_id <= id);
        if let Some(message) = self.messages.get_mut(at) {
            message.left -= 1;
            if message.left == 0 {
                self.messages.remove(at);
            }
        }
        Some(caller)
    }

    /// Takes whoever is left of a message.
    fn finish_message(&mut self, first_id: u64) -> Vec<T> {
        let at = self.messages.partition_point(|m| m.first_id < first_id);
        match self.messages.get(at) {
            Some(m) if m.first_id == first_id => {
                (m.first_id..m.end_id).filter_map(|id| self.take(id)).collect()
            }
            _ => Vec::new(),
        }
    }

    fn drain(&mut self) -> impl Iterator<Item = T> + use<T> {
        self.base = self.next_id();
        self.messages.clear();
        std::mem::take(&mut self.slots).into_iter().flatten()
    }

    fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    fn oldest_sent_ns(&self) -> Option<u64> {
        self.messages.front().map(|m| m.sent_ns)
    }

    fn may_send(&self, limits: Limits, now_ns: u64) -> bool {
        let slow = self.messages.partition_point(|m| after(m.sent_ns, limits.slow_after) <= now_ns);
        self.messages.len() - slow < limits.messages && self.messages.len() < limits.messages_max
    }

    /// When time alone changes what may be done: a message becomes slow, or the stream is stalled.
    fn next_change(&self, limits: Limits, may_send: bool, now_ns: u64) -> Option<Duration> {
        let stalled = after(self.oldest_sent_ns()?, limits.stalled_after);
        let slow = self.messages.iter().map(|m| after(m.sent_ns, limits.slow_after)).find(|at| *at > now_ns);
        let at = if may_send { stalled } else { slow.map_or(stalled, |slow| slow.min(stalled)) };
        Some(Duration::from_nanos(at.saturating_sub(now_ns)))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use parking_lot::Mutex;
    use proptest::prelude::*;
    use sextant_common::clock::{ManualClock, SystemClock};

    use super::*;

    type Numbered = Vec<(u64, u32)>;
    /// A stream as the server sees it.
    type Accepted = (ReceiverStream<Numbered>, mpsc::UnboundedSender<Result<Numbered, Status>>);
    type Messages = mpsc::UnboundedReceiver<Accepted>;

    /// Requests and replies are numbers; the test plays the server.
    struct Numbers {
        streams: mpsc::UnboundedSender<Accepted>,
        whole: bool,
        refuse: Arc<AtomicUsize>,
    }

    impl Call for Numbers {
        const KIND: MessageKind = MessageKind::Read;
        type Request = u32;
        type Reply = u32;
        type Batch = Vec<(u64, u32)>;
        type BatchReply = Vec<(u64, u32)>;

        fn request_bytes(request: &u32) -> usize {
            *request as usize
        }
        fn reply_bytes(_: &u32) -> usize {
            4
        }
        fn batch(&self, first_id: u64, requests: Vec<u32>) -> Self::Batch {
            (first_id..).zip(requests).collect()
        }
        fn open(
            &self,
            messages: ReceiverStream<Self::Batch>,
        ) -> BoxFuture<'_, Result<Inbound<Self::BatchReply>, Status>> {
            if self.refuse.load(Ordering::SeqCst) > 0 {
                self.refuse.fetch_sub(1, Ordering::SeqCst);
                return Box::pin(async { Err(Status::unavailable("refused")) });
            }
            let (tx, rx) = mpsc::unbounded_channel();
            let _ = self.streams.send((messages, tx));
            let inbound = tokio_stream::wrappers::UnboundedReceiverStream::new(rx);
            Box::pin(async { Ok(inbound.boxed()) })
        }
        fn unary(&self, batch: Self::Batch) -> BoxFuture<'_, Result<Self::BatchReply, Status>> {
            Box::pin(async { Ok(batch.into_iter().map(|(id, n)| (id, n + 1)).collect()) })
        }
        fn replies(&self, reply: Self::BatchReply, each: &mut dyn FnMut(u64, u32)) -> Option<u64> {
            let first = reply.first().map(|(id, _)| *id);
            reply.into_iter().for_each(|(id, n)| each(id, n));
            if self.whole { first } else { None }
        }
    }

    fn start(
        limits: Limits,
        clock: Arc<dyn Clock>,
    ) -> (Arc<Coalescer<Numbers>>, Messages, Arc<AtomicUsize>, Arc<PNodeMetrics>) {
        let (streams, accepted) = mpsc::unbounded_channel();
        let refuse = Arc::new(AtomicUsize::new(0));
        let metrics = Arc::new(PNodeMetrics::default());
        let call = Numbers { streams, whole: true, refuse: refuse.clone() };
        (Arc::new(Coalescer::start(call, limits, clock, metrics.clone())), accepted, refuse, metrics)
    }

    fn asks(
        c: &Arc<Coalescer<Numbers>>,
        numbers: impl IntoIterator<Item = u32>,
    ) -> Vec<tokio::task::JoinHandle<Result<u32>>> {
        numbers
            .into_iter()
            .map(|n| {
                let c = c.clone();
                tokio::spawn(async move { c.ask(n).await })
            })
            .collect()
    }

    fn answer(batch: Vec<(u64, u32)>) -> Vec<(u64, u32)> {
        batch.into_iter().map(|(id, n)| (id, n + 1)).collect()
    }

    #[tokio::test]
    async fn what_queues_up_while_two_messages_are_in_flight_travels_in_one() {
        let (c, mut accepted, _, metrics) = start(Limits::READS, Arc::new(ManualClock::default()));
        let first = asks(&c, [1]);
        let (mut inbound, replies) = accepted.recv().await.unwrap();
        let m1 = inbound.next().await.unwrap();
        let second = asks(&c, [2]);
        let m2 = inbound.next().await.unwrap();
        // The clock stands still: neither message ever becomes slow, so these wait.
        let rest = asks(&c, 3..=50);
        tokio::task::yield_now().await;
        replies.send(Ok(answer(m1))).unwrap();
        let m3 = inbound.next().await.unwrap();
        assert_eq!(m3.len(), 48);
        replies.send(Ok(answer(m2))).unwrap();
        replies.send(Ok(answer(m3))).unwrap();
        for (task, n) in first.into_iter().chain(second).chain(rest).zip(1..) {
            assert_eq!(task.await.unwrap().unwrap(), n + 1);
        }
        assert_eq!(metrics.messages(MessageKind::Read), (3, 50));
    }

    #[tokio::test]
    async fn a_broken_stream_fails_what_is_in_flight_and_the_next_request_opens_another() {
        let (c, mut accepted, _, _) = start(Limits::READS, Arc::new(ManualClock::default()));
        let tasks = asks(&c, [1, 2]);
        let (mut inbound, replies) = accepted.recv().await.unwrap();
        inbound.next().await.unwrap();
        replies.send(Err(Status::unavailable("gone"))).unwrap();
        for task in tasks {
            assert!(task.await.unwrap().is_err());
        }
        let again = asks(&c, [7]);
        let (mut inbound, replies) = accepted.recv().await.unwrap();
        let m = inbound.next().await.unwrap();
        replies.send(Ok(answer(m))).unwrap();
        for task in again {
            assert_eq!(task.await.unwrap().unwrap(), 8);
        }
    }

    #[tokio::test]
    async fn a_server_that_refuses_streams_fails_requests_at_once() {
        let (c, _accepted, refuse, _) = start(Limits::READS, Arc::new(ManualClock::default()));
        refuse.store(1, Ordering::SeqCst);
        assert!(c.ask(1).await.is_err());
    }

    #[tokio::test]
    async fn a_renewed_stream_answers_what_is_in_flight_and_sends_no_more() {
        let clock = Arc::new(ManualClock::default());
        let (c, mut accepted, _, _) = start(Limits::READS, clock.clone());
        let first = asks(&c, [1]);
        let (mut old_inbound, old_replies) = accepted.recv().await.unwrap();
        let m1 = old_inbound.next().await.unwrap();
        c.renew();
        tokio::task::yield_now().await;
        let second = asks(&c, [2]);
        let m2 = old_inbound.next().await.unwrap();
        assert_eq!(m2.len(), 1, "a young stream is not renewed");
        clock.advance(RENEWED_AFTER);
        // The driver looks at the clock with the next event.
        old_replies.send(Ok(answer(m2))).unwrap();
        for task in second {
            task.await.unwrap().unwrap();
        }
        c.renew();
        tokio::task::yield_now().await;
        let third = asks(&c, [3]);
        tokio::task::yield_now().await;
        old_replies.send(Ok(answer(m1))).unwrap();
        for task in first {
            assert_eq!(task.await.unwrap().unwrap(), 2);
        }
        let (mut new_inbound, new_replies) = accepted.recv().await.unwrap();
        assert!(old_inbound.next().await.is_none(), "the third request did not travel on the old stream");
        let m3 = new_inbound.next().await.unwrap();
        new_replies.send(Ok(answer(m3))).unwrap();
        for task in third {
            assert_eq!(task.await.unwrap().unwrap(), 4);
        }
    }

    #[tokio::test]
    async fn slow_messages_do_not_hold_up_others_and_a_stall_ends_the_stream() {
        let clock = Arc::new(ManualClock::default());
        let (c, mut accepted, _, _) = start(Limits::READS, clock.clone());
        let stuck = asks(&c, [1]);
        let (mut inbound, replies) = accepted.recv().await.unwrap();
        inbound.next().await.unwrap();
        let stuck2 = asks(&c, [2]);
        inbound.next().await.unwrap();
        let third = asks(&c, [3]);
        clock.advance(Limits::READS.slow_after);
        let m3 = inbound.next().await.unwrap();
        replies.send(Ok(answer(m3))).unwrap();
        for task in third {
            assert_eq!(task.await.unwrap().unwrap(), 4);
        }
        clock.advance(Limits::READS.stalled_after);
        // Any event makes the driver look at the clock; a request is one.
        let late = asks(&c, [4]);
        for task in stuck.into_iter().chain(stuck2) {
            assert!(task.await.unwrap().is_err());
        }
        drop(late);
    }

    #[tokio::test]
    async fn messages_are_bounded_in_requests_and_bytes() {
        let limits = Limits { requests_per_message: 10, bytes_per_message: 100, ..Limits::READS };
        let (c, mut accepted, _, _) = start(limits, Arc::new(ManualClock::default()));
        let tasks = asks(&c, std::iter::repeat_n(60, 3).chain(std::iter::repeat_n(1, 25)));
        let (mut inbound, replies) = accepted.recv().await.unwrap();
        let mut sizes = Vec::new();
        let mut left = 28;
        while left > 0 {
            let m = inbound.next().await.unwrap();
            sizes.push(m.len());
            left -= m.len();
            let bytes: u32 = m.iter().map(|(_, n)| *n).sum();
            assert!(m.len() <= 10 && bytes <= 100, "{sizes:?}");
            replies.send(Ok(answer(m))).unwrap();
        }
        for task in tasks {
            task.await.unwrap().unwrap();
        }
    }

    #[tokio::test]
    async fn a_missing_reply_is_an_error_and_callers_who_left_are_not_sent() {
        let (c, mut accepted, _, _) = start(Limits::READS, Arc::new(ManualClock::default()));
        let tasks = asks(&c, [1, 2]);
        let (mut inbound, replies) = accepted.recv().await.unwrap();
        let mut m = answer(inbound.next().await.unwrap());
        m.truncate(1);
        replies.send(Ok(m)).unwrap();
        let results: Vec<_> =
            futures::future::join_all(tasks).await.into_iter().map(Result::unwrap).collect();
        assert!(results[0].is_ok() && results[1].is_err());
        let _a = asks(&c, [1]);
        inbound.next().await.unwrap();
        let _b = asks(&c, [2]);
        inbound.next().await.unwrap();
        let gone = asks(&c, [3]);
        tokio::task::yield_now().await;
        gone.into_iter().for_each(|task| task.abort());
        let _kept = asks(&c, [4]);
        tokio::task::yield_now().await;
        replies.send(Ok(vec![(3, 9)])).unwrap();
        assert_eq!(inbound.next().await.unwrap().into_iter().map(|(_, n)| n).collect::<Vec<_>>(), [4]);
    }

    #[tokio::test]
    async fn alone_means_without_the_stream() {
        let (c, mut accepted, _, _) = start(Limits::READS, Arc::new(SystemClock::default()));
        assert_eq!(c.ask_alone(4).await.unwrap(), 5);
        assert!(accepted.try_recv().is_err());
    }

    proptest! {
        /// Against a plain map: whatever is sent, answered in any order, finished or drained, nobody is lost or answered twice.
        #[test]
        fn in_flight_agrees_with_a_map(ops in prop::collection::vec((0u8..4, any::<prop::sample::Index>(), 1usize..5), 0..100)) {
            let mut in_flight = InFlight::new(1);
            let mut model: std::collections::BTreeMap<u64, u64> = std::collections::BTreeMap::new();
            let mut messages: Vec<(u64, u64)> = Vec::new();
            let taken = Mutex::new(0);
            for (op, index, n) in ops {
                match op {
                    0 => {
                        let first = in_flight.next_id();
                        for id in first..first + n as u64 {
                            in_flight.push(id);
                            model.insert(id, id);
                        }
                        in_flight.message_sent(first, 0);
                        messages.push((first, first + n as u64));
                    }
                    1 if in_flight.next_id() > 1 => {
                        let id = 1 + index.index(in_flight.next_id() as usize - 1) as u64;
                        prop_assert_eq!(in_flight.take(id), model.remove(&id));
                        *taken.lock() += 1;
                    }
                    2 if !messages.is_empty() => {
                        let (first, end) = *index.get(&messages);
                        let expected: Vec<u64> = (first..end).filter_map(|id| model.remove(&id)).collect();
                        prop_assert_eq!(in_flight.finish_message(first), expected);
                    }
                    3 if n == 4 => {
                        let drained: Vec<u64> = in_flight.drain().collect();
                        prop_assert_eq!(drained, std::mem::take(&mut model).into_values().collect::<Vec<_>>());
                    }
                    _ => {}
                }
                let open = messages.iter().filter(|(f, e)| model.range(*f..*e).next().is_some()).count();
                prop_assert_eq!(in_flight.messages.len(), open);
            }
        }
    }
}
