//! One call to a peer: its limit of time, what a refusal means, and how much of an answer is believed.

use std::future::Future;
use std::sync::atomic::Ordering;
use std::time::Duration;

use openraft::errors::{RPCError, Unreachable};
use openraft::raft::{VoteRequest, VoteResponse};
use sextant_common::error::{Error, ErrorKind, Result};
use sextant_environment::env::{error_of, status_of};
use sextant_raft_log::{LogId, TypeConfig};

use super::super::reach::Reach;
use super::super::wire::{self, Address, VoteReply};
use crate::replica::ReplicaState;

/// A limit of time. Unit tests, of which none is about it, are as slow as their machine.
pub(super) const fn unhurried(limit: Duration) -> Duration {
    if cfg!(test) { Duration::from_secs(60) } else { limit }
}

pub(super) type RpcResult<T> = std::result::Result<T, RPCError<TypeConfig>>;

/// An append has data and an fsync behind it; Raft retries.
pub(super) const APPEND_TIMEOUT: Duration = unhurried(Duration::from_secs(2));
/// A vote has an fsync behind it. Raft itself waits no longer than a leader's lease lasts, and asks for no vote twice: so that is the limit
/// of what a majority's fsyncs may take, unless the lease is longer than this.
pub(super) const VOTE_TIMEOUT: Duration = unhurried(Duration::from_secs(2));
/// Whether it would be given costs nothing.
pub(super) const PRE_VOTE_TIMEOUT: Duration = unhurried(Duration::from_millis(300));
/// Who is only asked about itself is not taken for lost because it is busy.
pub(super) const INTRODUCTION_TIMEOUT: Duration = Duration::from_secs(2);
/// A successor that does not answer so long is none: who stops asks the next one.
pub(super) const HEIR_TIMEOUT: Duration = Duration::from_secs(1);

pub(super) fn unreachable(e: &Error) -> RPCError<TypeConfig> {
    RPCError::Unreachable(Unreachable::from_string(e))
}

pub(super) async fn call<T>(
    limit: Duration,
    call: impl Future<Output = std::result::Result<tonic::Response<T>, tonic::Status>>,
) -> std::result::Result<T, tonic::Status> {
    match tokio::time::timeout(limit, call).await {
        Ok(answer) => Ok(answer?.into_inner()),
        Err(_) => Err(status_of(Error::unavailable(format!("no answer within {limit:?}")))),
    }
}

/// An error of a call to a member, and what the leader is to know of it: one that is not the incarnation that was meant has lost its
/// memory.
pub(super) fn refused(shared: &ReplicaState, address: &Address, status: tonic::Status) -> Error {
    if let Some(is) = wire::incarnation_of_refusal(&status) {
        let now_ns = shared.env.clock.holder_ns();
        shared.strangers.refused(address.to, address.to_incarnation, is, now_ns);
    }
    error_of(status)
}

/// The same of an append: one whose log has no space is sent a snapshot sooner.
pub(super) fn refused_append(shared: &ReplicaState, address: &Address, status: tonic::Status) -> Error {
    let error = refused(shared, address, status);
    if error.kind == ErrorKind::Disk {
        shared.full_follower_ns.store(shared.env.clock.holder_ns().max(1), Ordering::Release);
    }
    error
}

/// From where an answer is judged: from what was asked.
pub(super) fn reach(term: u64, last: Option<&LogId>) -> Reach {
    Reach { term, index: last.map_or(0, |id| id.index), node: 0 }
}

/// The answer to a vote request, if it is within reach.
pub(super) fn believed(
    request: &VoteRequest<TypeConfig>,
    reply: VoteReply,
) -> Result<VoteResponse<TypeConfig>> {
    let reply = wire::vote_reply_from_wire(reply)?;
    reach(request.vote.leader_id.term, request.last_log_id.as_ref()).check_vote_reply(&reply)?;
    Ok(reply)
}
