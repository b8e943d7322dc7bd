//! Heartbeats that travel together: those of all partitions of a thread to one peer, in one call, however many partitions there are.
//!
//! They come together because the thread's leaders are asked for them at the same time ([`super::super::pulse`]). Each is answered on
//! its own, as soon as the peer can: a partition that is busy holds up no other one.
//!
//! Invariant: what is counted for a lease is when a heartbeat was handed over, never later.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::StreamExt;
use openraft::raft::{AppendEntriesRequest, StreamAppendResult};
use sextant_common::error::Error;
use sextant_environment::Clock;
use sextant_raft_log::TypeConfig;
use tokio::sync::{mpsc, oneshot};
use tonic::{Code, Status};

use super::super::wire::{self, Address, AppendMessage, AppendReply, PeerClient};
use super::call::{APPEND_TIMEOUT, RpcResult, call, refused, unhurried, unreachable};
use super::pipeline::{Sent, accept, message_of};
use crate::replica::ReplicaState;

/// What follows the first one within so long travels along.
const GATHERED_WITHIN: Duration = Duration::from_millis(1);
/// An answer is waited for so long at least.
const ANSWERED_WITHIN: Duration = unhurried(Duration::from_millis(100));
/// A peer that does not know such calls is not asked again for so long: it may have been updated by then.
const OLDER_FOR_NS: u64 = 10_000_000_000;

/// Handed over, and not answered.
struct Beat {
    shared: Arc<ReplicaState>,
    address: Address,
    message: AppendMessage,
    sent: Sent,
    answer: oneshot::Sender<RpcResult<StreamAppendResult<TypeConfig>>>,
}

/// One thread's heartbeats to one peer. Cheap to clone.
#[derive(Clone)]
pub struct Heartbeats {
    /// Unbounded: one a partition, and it is not asked for another before that is over.
    beats: mpsc::UnboundedSender<Beat>,
    /// Until then (holder's clock) the peer is taken for an older version.
    older_until_ns: Arc<AtomicU64>,
}

impl Heartbeats {
    /// Carried by a task of this runtime, as long as somebody may hand heartbeats over.
    pub fn start(client: PeerClient, clock: Arc<dyn Clock>) -> Self {
        let (beats, waiting) = mpsc::unbounded_channel();
        let older_until_ns = Arc::new(AtomicU64::new(0));
        tokio::spawn(carry_all(waiting, client, clock, older_until_ns.clone()));
        Self { beats, older_until_ns }
    }

    /// Whether the peer takes them together, as far as is known.
    pub(super) fn are_understood(&self, now_ns: u64) -> bool {
        now_ns >= self.older_until_ns.load(Ordering::Relaxed)
    }

    pub(super) async fn send(
        &self,
        shared: Arc<ReplicaState>,
        address: Address,
        request: AppendEntriesRequest<TypeConfig>,
    ) -> RpcResult<StreamAppendResult<TypeConfig>> {
        let (message, sent) = message_of(&shared, &address, request);
        let (answer, answered) = oneshot::channel();
        let gone = || unreachable(&Error::unavailable("nobody carries heartbeats"));
        self.beats.send(Beat { shared, address, message, sent, answer }).map_err(|_| gone())?;
        answered.await.map_err(|_| gone())?
    }
}

async fn carry_all(
    mut waiting: mpsc::UnboundedReceiver<Beat>,
    client: PeerClient,
    clock: Arc<dyn Clock>,
    older_until_ns: Arc<AtomicU64>,
) {
    while let Some(first) = waiting.recv().await {
        tokio::time::sleep(GATHERED_WITHIN).await;
        let mut beats = vec![first];
        while let Ok(beat) = waiting.try_recv() {
            beats.push(beat);
        }
        let (client, clock, older_until_ns) = (client.clone(), clock.clone(), older_until_ns.clone());
        // A peer that is slow to answer keeps nobody from asking again.
        tokio::spawn(async move {
            if let Err(Code::Unimplemented) = carry(beats, client).await {
                older_until_ns.store(clock.holder_ns().saturating_add(OLDER_FOR_NS), Ordering::Relaxed);
            }
        });
    }
}

/// Whoever waits may have given up: an answer counts all the same, as long as it is worth anything.
async fn carry(beats: Vec<Beat>, mut client: PeerClient) -> Result<(), Code> {
    let Some(to) = beats.first().map(|beat| beat.address.to) else { return Ok(()) };
    // What comes later than a lease lasts renews none.
    let longest_ns = beats.iter().map(|beat| beat.sent.abstention_ns).max().unwrap_or_default();
    let limit = Duration::from_nanos(longest_ns).clamp(ANSWERED_WITHIN, APPEND_TIMEOUT);
    let (mut messages, mut unanswered) = (Vec::with_capacity(beats.len()), Vec::with_capacity(beats.len()));
    for Beat { shared, address, message, sent, answer } in beats {
        messages.push(message);
        unanswered.push(Some((shared, address, sent, answer)));
    }
    let mut left = unanswered.len();
    let carried = tokio::time::timeout(limit, async {
        let request = wire::heartbeats_to_wire(to, messages);
        let mut answers = call(limit, client.heartbeats(request)).await?;
        while left > 0 {
            let Some(some) = answers.next().await else { break };
            for answer in some?.answers {
                let (at, reply) = wire::answer_from_wire(answer);
                // (Not twice.)
                let Some(beat) = unanswered.get_mut(at).and_then(Option::take) else { continue };
                left -= 1;
                answered(beat, reply);
            }
        }
        Ok(())
    });
    let ended: Result<(), Status> = match carried.await {
        Ok(ended) => ended,
        Err(_) => Err(Status::unavailable(format!("no answer within {limit:?}"))),
    };
    let why = ended.as_ref().err().cloned();
    let why = why.unwrap_or_else(|| Status::unavailable("the peer left the heartbeat unanswered"));
    unanswered.into_iter().flatten().for_each(|beat| answered(beat, Err(why.clone())));
    ended.map_err(|status| status.code())
}

type Unanswered =
    (Arc<ReplicaState>, Address, Sent, oneshot::Sender<RpcResult<StreamAppendResult<TypeConfig>>>);

fn answered((shared, address, sent, answer): Unanswered, reply: Result<AppendReply, Status>) {
    let result = reply
        .map_err(|status| refused(&shared, &address, status))
        .and_then(|reply| accept(&shared, address.to, sent, reply));
    // (Whoever waits may have given up.)
    let _ = answer.send(result.map_err(|e| unreachable(&e)));
}
