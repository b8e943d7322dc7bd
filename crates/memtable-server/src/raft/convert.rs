//! openraft's messages <-> the wire.

use bytes::Bytes;
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, StreamAppendError, StreamAppendResult, VoteRequest,
    VoteResponse,
};
use sextant_common::error::{Error, Result};
use sextant_common::ids::LogPosition;
use sextant_proto::v1;
use sextant_raft_log::{LogId, TypeConfig, Vote, decode_entry, encode_entry, log_id_at, position_of};

/// Who talks to whom about which partition of which cluster.
#[derive(Clone, Debug)]
pub struct Address {
    pub partition: u32,
    pub from: u64,
    pub to: u64,
    /// Cluster id and the fingerprint of what servers must agree on.
    pub cluster: Bytes,
}

pub fn vote_to_wire(vote: &Vote) -> v1::RaftVote {
    v1::RaftVote { term: vote.leader_id.term, node: vote.leader_id.voted_for, committed: vote.committed }
}

pub fn vote_from_wire(vote: Option<v1::RaftVote>) -> Result<Vote> {
    let vote = vote.ok_or_else(|| Error::invalid("a Raft message without a vote"))?;
    Ok(if vote.committed {
        Vote::new_committed(vote.term, vote.node)
    } else {
        Vote::new(vote.term, vote.node)
    })
}

pub fn position_to_wire(id: &LogId) -> v1::LogPosition {
    position_of(id).into()
}

pub fn log_id_from_wire(position: v1::LogPosition) -> LogId {
    log_id_at(LogPosition::from(position))
}

pub fn append_to_wire(
    address: &Address,
    request: AppendEntriesRequest<TypeConfig>,
    abstention_ns: u64,
) -> v1::AppendEntriesRequest {
    v1::AppendEntriesRequest {
        partition: address.partition,
        from: address.from,
        to: address.to,
        cluster: address.cluster.clone(),
        vote: Some(vote_to_wire(&request.vote)),
        prev: request.prev_log_id.as_ref().map(position_to_wire),
        leader_commit: request.leader_commit.as_ref().map(position_to_wire),
        entries: request
            .entries
            .iter()
            .map(|e| v1::RaftEntry { position: Some(position_to_wire(&e.log_id)), data: encode_entry(e) })
            .collect(),
        abstention_ns,
    }
}

pub fn append_from_wire(request: v1::AppendEntriesRequest) -> Result<AppendEntriesRequest<TypeConfig>> {
    let entries = request.entries.into_iter().map(|e| {
        let position = e.position.ok_or_else(|| Error::invalid("a Raft entry without a position"))?;
        decode_entry(position.into(), e.data)
    });
    Ok(AppendEntriesRequest {
        vote: vote_from_wire(request.vote)?,
        prev_log_id: request.prev.map(log_id_from_wire),
        leader_commit: request.leader_commit.map(log_id_from_wire),
        entries: entries.collect::<Result<_>>()?,
    })
}

pub fn append_reply_to_wire(reply: AppendEntriesResponse<TypeConfig>) -> v1::AppendEntriesResponse {
    use v1::append_entries_response::Outcome;
    let mut out = v1::AppendEntriesResponse::default();
    let outcome = match reply {
        AppendEntriesResponse::Success => Outcome::Success,
        AppendEntriesResponse::PartialSuccess(matching) => {
            out.matching = matching.as_ref().map(position_to_wire);
            Outcome::PartialSuccess
        }
        AppendEntriesResponse::Conflict => Outcome::Conflict,
        AppendEntriesResponse::HigherVote(vote) => {
            out.vote = Some(vote_to_wire(&vote));
            Outcome::HigherVote
        }
    };
    out.outcome = outcome.into();
    out
}

pub fn append_reply_from_wire(reply: v1::AppendEntriesResponse) -> Result<AppendEntriesResponse<TypeConfig>> {
    use v1::append_entries_response::Outcome;
    Ok(match reply.outcome() {
        Outcome::Success => AppendEntriesResponse::Success,
        Outcome::PartialSuccess => {
            AppendEntriesResponse::PartialSuccess(reply.matching.map(log_id_from_wire))
        }
        Outcome::Conflict => AppendEntriesResponse::Conflict,
        Outcome::HigherVote => AppendEntriesResponse::HigherVote(vote_from_wire(reply.vote)?),
        Outcome::Failed => return Err(Error::unavailable(reply.error)),
    })
}

/// The last entry that an append names, and the one before its first.
pub fn append_range(request: &AppendEntriesRequest<TypeConfig>) -> (Option<LogId>, Option<LogId>) {
    let last = request.entries.last().map(|e| e.log_id).or(request.prev_log_id);
    (request.prev_log_id, last)
}

pub fn stream_result_to_wire(result: StreamAppendResult<TypeConfig>) -> v1::AppendEntriesResponse {
    use v1::append_entries_response::Outcome;
    let mut out = v1::AppendEntriesResponse::default();
    let outcome = match result {
        Ok(matching) => {
            out.matching = matching.as_ref().map(position_to_wire);
            Outcome::PartialSuccess
        }
        Err(StreamAppendError::Conflict(_)) => Outcome::Conflict,
        Err(StreamAppendError::HigherVote(vote)) => {
            out.vote = Some(vote_to_wire(&vote));
            Outcome::HigherVote
        }
    };
    out.outcome = outcome.into();
    out
}

/// A reply on an append stream; `range` is that of the request it answers.
pub fn stream_result_from_wire(
    reply: v1::AppendEntriesResponse,
    range: (Option<LogId>, Option<LogId>),
) -> Result<StreamAppendResult<TypeConfig>> {
    let conflict = range.0.ok_or_else(|| Error::invalid("a conflict before the first entry"));
    Ok(match append_reply_from_wire(reply)? {
        AppendEntriesResponse::Success => Ok(range.1),
        AppendEntriesResponse::PartialSuccess(matching) => Ok(matching),
        AppendEntriesResponse::Conflict => Err(StreamAppendError::Conflict(conflict?)),
        AppendEntriesResponse::HigherVote(vote) => Err(StreamAppendError::HigherVote(vote)),
    })
}

pub fn vote_request_to_wire(address: &Address, request: &VoteRequest<TypeConfig>) -> v1::VoteRequest {
    v1::VoteRequest {
        partition: address.partition,
        from: address.from,
        to: address.to,
        cluster: address.cluster.clone(),
        vote: Some(vote_to_wire(&request.vote)),
        last_log: request.last_log_id.as_ref().map(position_to_wire),
    }
}

/// A vote request never claims a transfer of leadership: that would pass the lease by.
pub fn vote_request_from_wire(request: v1::VoteRequest) -> Result<VoteRequest<TypeConfig>> {
    Ok(VoteRequest::new(vote_from_wire(request.vote)?, request.last_log.map(log_id_from_wire)))
}

pub fn vote_reply_to_wire(reply: &VoteResponse<TypeConfig>) -> v1::VoteResponse {
    v1::VoteResponse {
        vote: Some(vote_to_wire(&reply.vote)),
        granted: reply.vote_granted,
        last_log: reply.last_log_id.as_ref().map(position_to_wire),
    }
}

pub fn vote_reply_from_wire(reply: v1::VoteResponse) -> Result<VoteResponse<TypeConfig>> {
    Ok(VoteResponse::new(vote_from_wire(reply.vote)?, reply.last_log.map(log_id_from_wire), reply.granted))
}
