//! Appends to a follower, pipelined over one stream: they go out as Raft makes them, answers come in their order.
//!
//! Invariant: a stream takes nothing from openraft after openraft has given it up ([`Feed`]), and one that ends with an append
//! unanswered has failed.

use std::any::Any;
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use futures::stream::BoxStream;
use futures::task::AtomicWaker;
use futures::{Stream, StreamExt};
use openraft::errors::RPCError;
use openraft::raft::{AppendEntriesRequest, StreamAppendError, StreamAppendResult};
use parking_lot::Mutex;
use sextant_common::error::{Error, Result};
use sextant_raft_log::{LogId, TypeConfig};

use super::super::wire::{self, Address, AppendMessage, AppendReply, PeerClient};
use super::Purged;
use super::call::{APPEND_TIMEOUT, RpcResult, call, reach, refused_append, unreachable};
use crate::leadership::Ack;
use crate::replica::ReplicaState;

/// An append that is on its way.
#[derive(Debug)]
pub(super) struct Sent {
    range: (Option<LogId>, Option<LogId>),
    term: u64,
    at_ns: u64,
    pub(super) abstention_ns: u64,
}

/// The message of an append that leaves now.
pub(super) fn message_of(
    shared: &ReplicaState,
    address: &Address,
    request: AppendEntriesRequest<TypeConfig>,
) -> (AppendMessage, Sent) {
    let range = wire::append_range(&request);
    let term = request.vote.leader_id.term;
    let abstention_ns = shared.guard.abstention_ns();
    let acknowledged = shared.lease.acknowledged_by(term, address.to);
    let message = wire::append_to_wire(address, request, abstention_ns, acknowledged);
    let at_ns = shared.env.clock.holder_ns();
    (message, Sent { range, term, at_ns, abstention_ns })
}

/// How often a stream that waits for answers looks whether the oldest append is overdue.
const OVERDUE_CHECK: Duration = Duration::from_secs(1);

/// The next answer. None: the stream has ended. An append that is not answered in time is an error: a connection may stay
/// open although an answer was lost.
async fn next_reply(
    replies: &mut tonic::Streaming<AppendReply>,
    sent: &Mutex<VecDeque<Sent>>,
    shared: &ReplicaState,
    address: &Address,
) -> Option<Result<AppendReply>> {
    loop {
        match tokio::time::timeout(OVERDUE_CHECK, replies.next()).await {
            Ok(Some(Ok(reply))) => return Some(Ok(reply)),
            Ok(Some(Err(status))) => return Some(Err(refused_append(shared, address, status))),
            Ok(None) => return None,
            Err(_) => {
                let oldest = sent.lock().front().map(|s| s.at_ns);
                let now = shared.env.clock.holder_ns();
                if oldest.is_some_and(|at| now.saturating_sub(at) > APPEND_TIMEOUT.as_nanos() as u64) {
                    return Some(Err(Error::unavailable(format!("no answer within {APPEND_TIMEOUT:?}"))));
                }
            }
        }
    }
}

/// What openraft feeds a stream of appends, as long as that stream is in use. Tonic may hold on to it for longer, and would take
/// what openraft means for the next stream: its streams share their state.
pub(super) struct Feed<S>(pub(super) Arc<Fed<S>>);

pub(super) struct Fed<S> {
    /// None: the stream was given up.
    input: Mutex<Option<S>>,
    waiting: AtomicWaker,
}

impl<S: Stream + Unpin> Stream for Feed<S> {
    type Item = S::Item;

    fn poll_next(self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Option<S::Item>> {
        self.0.waiting.register(cx.waker());
        match self.0.input.lock().as_mut() {
            Some(input) => input.poll_next_unpin(cx),
            None => Poll::Ready(None),
        }
    }
}

/// A stream of appends in use.
pub(super) struct InUse<S>(pub(super) Arc<Fed<S>>);

impl<S> InUse<S> {
    pub(super) fn new(input: S) -> Self {
        Self(Arc::new(Fed { input: Mutex::new(Some(input)), waiting: AtomicWaker::new() }))
    }
}

impl<S> Drop for InUse<S> {
    fn drop(&mut self) {
        let input = self.0.input.lock().take();
        drop(input);
        // Whoever holds on to the feed is to see its end, and let the connection have its stream back.
        self.0.waiting.wake();
    }
}

fn lost() -> RPCError<TypeConfig> {
    unreachable(&Error::unavailable("what the follower needs next is purged"))
}

/// Whether openraft goes on from a place before the purged entries. There is nothing that it could send from there; it would
/// try for ever, and after an error it looks where the follower stands.
pub(super) fn leads_nowhere(request: &AppendEntriesRequest<TypeConfig>, purged: Option<u64>) -> bool {
    let prev = request.prev_log_id.as_ref().map(|id| id.index);
    request.entries.is_empty() && prev.is_some() && prev < purged
}

/// Messages of a stream of appends. (A type without lifetimes: the compiler cannot see that the box is good for as long as tonic
/// wants it.)
pub(super) struct Outgoing(BoxStream<'static, AppendMessage>);

impl Stream for Outgoing {
    type Item = AppendMessage;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_next_unpin(cx)
    }
}

/// A stream of appends, and what is known of it.
pub(super) struct Pipeline {
    pub(super) shared: Arc<ReplicaState>,
    pub(super) address: Address,
    pub(super) purged: Purged,
    /// What is on its way, oldest first. Openraft stops feeding the stream when it has enough unanswered.
    pub(super) sent: Arc<Mutex<VecDeque<Sent>>>,
    /// See [`leads_nowhere`].
    pub(super) nowhere: Arc<AtomicBool>,
}

impl Pipeline {
    /// The messages, their times taken as they go out. Without entries only the first goes, which says where the follower stands.
    /// Openraft makes others to tell at once what is committed: nothing waits for that at a follower, the next append or heartbeat
    /// says it too, and each would be two messages and four turns for every group of writes.
    pub(super) fn outgoing(
        &self,
        requests: impl Stream<Item = AppendEntriesRequest<TypeConfig>> + Send + 'static,
    ) -> Outgoing {
        let (shared, address, purged) = (self.shared.clone(), self.address.clone(), self.purged.clone());
        let (sent, nowhere) = (self.sent.clone(), self.nowhere.clone());
        let mut is_first = true;
        Outgoing(Box::pin(requests.filter_map(move |request| {
            let is_needed = std::mem::take(&mut is_first) || !request.entries.is_empty();
            let is_lost = leads_nowhere(&request, (purged.0)());
            if is_lost {
                nowhere.store(true, Ordering::Release);
            }
            let message = (is_needed || is_lost).then(|| {
                let (message, leaves) = message_of(&shared, &address, request);
                sent.lock().push_back(leaves);
                message
            });
            std::future::ready(message)
        })))
    }

    pub(super) async fn open(
        self,
        mut client: PeerClient,
        mut outgoing: Outgoing,
        in_use: Box<dyn Any + Send>,
    ) -> RpcResult<BoxStream<'static, RpcResult<StreamAppendResult<TypeConfig>>>> {
        // Openraft waits out its backoff when a request is taken, and tonic takes none before it is connected: without this a peer
        // that refuses connections would be tried again and again without a pause.
        let Some(first) = outgoing.next().await else {
            return Ok(Box::pin(futures::stream::empty()));
        };
        if self.nowhere.load(Ordering::Acquire) {
            return Err(lost());
        }
        let outgoing = futures::stream::iter([first]).chain(outgoing);
        let replies = call(APPEND_TIMEOUT, client.stream_append(outgoing)).await;
        let replies = replies.map_err(|e| unreachable(&refused_append(&self.shared, &self.address, e)))?;
        Ok(self.answered(replies, in_use))
    }

    /// What openraft hears. `in_use` is kept as long as it listens.
    fn answered(
        self,
        replies: tonic::Streaming<AppendReply>,
        in_use: Box<dyn Any + Send>,
    ) -> BoxStream<'static, RpcResult<StreamAppendResult<TypeConfig>>> {
        let state = Some((self, replies, in_use));
        Box::pin(futures::stream::unfold(state, |state| async move {
            let (pipeline, mut replies, in_use) = state?;
            let reply = next_reply(&mut replies, &pipeline.sent, &pipeline.shared, &pipeline.address).await;
            if pipeline.nowhere.load(Ordering::Acquire) {
                return Some((Err(lost()), None));
            }
            // An error of a stream that owes nothing would undo what openraft has planned since. And a clean end of one that does,
            // it would take for a pause, and go on from where the stream once began: if that is purged by now, it would never get
            // any further.
            let owes_nothing = pipeline.sent.lock().is_empty();
            let reply = match reply {
                Some(Ok(reply)) => Ok(reply),
                None | Some(Err(_)) if owes_nothing => return None,
                Some(Err(e)) => Err(e),
                None => Err(Error::unavailable("the peer ended the stream before it had answered")),
            };
            match reply.and_then(|reply| pipeline.accept(reply)) {
                Ok(Ok(matching)) => Some((Ok(Ok(matching)), Some((pipeline, replies, in_use)))),
                Ok(Err(e)) => Some((Ok(Err(e)), None)),
                Err(e) => Some((Err(unreachable(&e)), None)),
            }
        }))
    }

    /// The answer to the oldest append.
    fn accept(&self, reply: AppendReply) -> Result<StreamAppendResult<TypeConfig>> {
        let oldest = self.sent.lock().pop_front();
        let oldest = oldest.ok_or_else(|| Error::invalid("an answer to no append"))?;
        accept(&self.shared, self.address.to, oldest, reply)
    }
}

/// The answer of node `from` to an append; the leader's lease counts it.
pub(super) fn accept(
    shared: &ReplicaState,
    from: u64,
    sent: Sent,
    reply: AppendReply,
) -> Result<StreamAppendResult<TypeConfig>> {
    let Sent { range, term, at_ns, abstention_ns } = sent;
    let accepted = wire::stream_result_from_wire(reply, range)?;
    if let Err(StreamAppendError::HigherVote(vote)) = &accepted {
        reach(term, range.1.as_ref()).check_vote(vote)?;
    }
    // (An answer to a leader that was binds nobody: it would keep this node from helping to elect the next one.)
    let counts = !matches!(accepted, Err(StreamAppendError::HigherVote(_))) && shared.lease.counts(term);
    if counts {
        // As long as this node leads, it promises as much as its followers do; before that is counted.
        shared.guard.bind(shared.env.clock.grantor_ns(), abstention_ns);
        shared.lease.acknowledged(Ack {
            term,
            node: from,
            // The leader's lease runs from the sending of what was acknowledged.
            sent_ns: at_ns,
            abstention_ns,
            matched: accepted.as_ref().ok().and_then(|m| m.as_ref()).map(|id| id.index),
        });
    }
    Ok(accepted)
}
