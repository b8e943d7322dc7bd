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

mod driver;
mod in_flight;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::BoxStream;
use sextant_common::{Clock, Error, Result};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use crate::metrics::{MessageKind, PNodeMetrics};
use driver::Driver;

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
