//! The task behind a stream: fills messages, delivers replies, notices when the stream is of no use any more.

use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasherDefault;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use sextant_common::Error;
use sextant_common::hashed::AlreadyHashed;
use sextant_environment::Clock;
use sextant_environment::env::never_connected;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use super::in_flight::{InFlight, after};
use super::parcel::Callers;
use super::{Call, Entry, Limits};
use crate::metrics::PNodeMetrics;

/// How long opening a stream may take.
const OPEN_TIMEOUT: Duration = Duration::from_secs(2);
/// A stream younger than this is not renewed: many callers notice the same thing at once.
pub(super) const RENEWED_AFTER: Duration = Duration::from_millis(100);
/// What is in flight on a stream that is to be renewed gets so long for its answers.
const RENEWAL_MAX: Duration = Duration::from_millis(500);
/// Size of the replies to one message that is aimed at, from the largest replies seen recently. Well below the largest
/// message that may be received.
const REPLY_BYTES_AIM: usize = 8 * 1024 * 1024;

/// How a stream ended.
enum End {
    /// Nothing was in flight on it.
    Renewed,
    Broken(Error),
    /// Nothing has left: there was no connection.
    NotConnected(Error),
    CallersGone,
}

pub(super) struct Driver<C: Call> {
    pub call: Arc<C>,
    pub limits: Limits,
    pub clock: Arc<dyn Clock>,
    pub metrics: Arc<PNodeMetrics>,
    pub renewals: watch::Receiver<u64>,
    /// The largest replies seen recently.
    pub widest_reply_bytes: usize,
    /// Where in the message that is being filled those stand that others are [alike](Call::alike).
    pub alike: Alike,
}

pub(super) type Alike = HashMap<u64, usize, BuildHasherDefault<AlreadyHashed>>;

impl<C: Call> Driver<C> {
    pub async fn run(mut self, mut requests: mpsc::Receiver<Entry<C>>) {
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
            let (error, has_left) = match end {
                End::CallersGone => return,
                // Nothing is in flight; what waits has not been sent.
                End::Renewed => continue,
                End::Broken(error) => (error, true),
                End::NotConnected(error) => (error, false),
            };
            let unsent = waiting.drain(..).map(|entry| Callers::of(entry.caller));
            for callers in in_flight.drain().chain(unsent) {
                if !has_left {
                    callers.take_back();
                }
                callers.fail(&error);
            }
        }
    }

    /// Runs one stream until it ends.
    async fn run_stream(
        &mut self,
        requests: &mut mpsc::Receiver<Entry<C>>,
        waiting: &mut VecDeque<Entry<C>>,
        in_flight: &mut InFlight<Callers<C::Reply>>,
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
            Ok(Err(status)) if never_connected(&status) => return End::NotConnected(lost(&status)),
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
        in_flight: &mut InFlight<Callers<C::Reply>>,
    ) -> Option<C::Batch> {
        let by_reply_size = REPLY_BYTES_AIM / self.widest_reply_bytes.max(1);
        let most = self.limits.requests_per_message.min(by_reply_size.max(1));
        let first_id = in_flight.next_id();
        let (mut requests, mut bytes) = (Vec::with_capacity(waiting.len().min(most)), 0);
        let now_ns = self.clock.holder_ns();
        let (mut shared, may_be_alike) = (0, waiting.len() > 1);
        self.alike.clear();
        while requests.len() < most
            && let Some(mut entry) = waiting.pop_front()
        {
            if entry.caller.is_gone() {
                continue;
            }
            let alike = if may_be_alike { C::alike(&entry.request) } else { None };
            if let Some(at) = alike.and_then(|alike| self.alike.get(&alike).copied())
                && let Some(callers) = in_flight.get_mut(first_id + at as u64)
                && C::join(&mut requests[at], &entry.request)
            {
                if entry.caller.leaves(now_ns) {
                    callers.join(entry.caller);
                    shared += 1;
                }
                continue;
            }
            let more = C::request_bytes(&entry.request);
            if !requests.is_empty() && bytes + more > self.limits.bytes_per_message {
                waiting.push_front(entry);
                break;
            }
            if !entry.caller.leaves(now_ns) {
                continue;
            }
            bytes += more;
            C::leaves(&mut entry.request, Duration::from_nanos(now_ns.saturating_sub(entry.queued_ns)));
            if let Some(alike) = alike {
                self.alike.entry(alike).or_insert(requests.len());
            }
            requests.push(entry.request);
            in_flight.push(Callers::of(entry.caller));
        }
        if requests.is_empty() {
            return None;
        }
        self.metrics.count_message(C::KIND, requests.len());
        self.metrics.count_shared(C::KIND, shared);
        // Whatever replies there will be is in flight as well.
        let replies = requests.len().saturating_mul(self.widest_reply_bytes);
        in_flight.message_sent(first_id, bytes.saturating_add(replies), now_ns);
        Some(self.call.batch(first_id, requests))
    }

    fn deliver(&mut self, reply: C::BatchReply, in_flight: &mut InFlight<Callers<C::Reply>>) {
        let mut widest = self.widest_reply_bytes;
        let complete = self.call.replies(reply, &mut |id, reply| {
            widest = C::reply_bytes(&reply).max(widest - widest / 64);
            if let Some(callers) = in_flight.take(id) {
                callers.answer(reply);
            }
        });
        self.widest_reply_bytes = widest;
        if let Some(first_id) = complete {
            for callers in in_flight.finish_message(first_id) {
                callers.fail(&Error::unavailable("the answer lacks a reply"));
            }
        }
    }
}

fn lost(status: &Status) -> Error {
    Error::unavailable(format!("the stream broke: {}", status.message()))
}

async fn sleep_opt(time: Option<Duration>) {
    match time {
        Some(time) => tokio::time::sleep(time).await,
        None => std::future::pending().await,
    }
}
