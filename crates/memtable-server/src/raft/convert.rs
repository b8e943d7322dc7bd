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
use tonic::Status;

/// Who talks to whom about which partition of which cluster.
#[derive(Clone, Debug)]
pub struct Address {
    pub partition: u32,
    pub from: u64,
    pub to: u64,
    /// Cluster id and the fingerprint of what servers must agree on.
    pub cluster: Bytes,
    /// Which incarnation of `to` the sender's membership names.
    pub to_incarnation: u64,
}

/// Metadata key of a refusal: which incarnation the server is.
const INCARNATION_HEADER: &str = "sextant-incarnation";

/// The refusal of a message that means another incarnation than `own`.
pub fn other_incarnation(named: u64, own: u64) -> Status {
    let text = format!(
        "meant for incarnation {named:016x}; this server is {own:016x}: it has lost its memory since"
    );
    let mut status = Status::failed_precondition(text);
    if let Ok(value) = format!("{own:016x}").parse() {
        status.metadata_mut().insert(INCARNATION_HEADER, value);
    }
    status
}

/// Which incarnation a server is that refused a message because it is not the one that was meant.
pub fn incarnation_of_refusal(status: &Status) -> Option<u64> {
    let value = status.metadata().get(INCARNATION_HEADER)?.to_str().ok()?;
    u64::from_str_radix(value, 16).ok().filter(|i| *i != 0)
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

/// The vote under which a leader sends entries: a majority has granted it.
pub fn leaders_vote_from_wire(vote: Option<v1::RaftVote>) -> Result<Vote> {
    let vote = vote_from_wire(vote)?;
    if vote.committed { Ok(vote) } else { Err(Error::invalid("entries from a node that nobody elected")) }
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
    acknowledged: u64,
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
        to_incarnation: address.to_incarnation,
        acknowledged,
    }
}

/// openraft takes for granted that entries follow each other without a hole; that is checked here.
pub fn append_from_wire(request: v1::AppendEntriesRequest) -> Result<AppendEntriesRequest<TypeConfig>> {
    let mut before: Option<LogPosition> = request.prev.map(Into::into);
    let entries = request.entries.into_iter().map(|e| {
        let position = e.position.ok_or_else(|| Error::invalid("a Raft entry without a position"))?;
        let position = LogPosition::from(position);
        if before.is_none() && position.index != 0 {
            return Err(Error::invalid(format!("Raft entry {position} after nothing")));
        }
        if let Some(before) = before
            && (before.index.checked_add(1) != Some(position.index) || position.term < before.term)
        {
            return Err(Error::invalid(format!("Raft entry {position} after {before}")));
        }
        before = Some(position);
        decode_entry(position, e.data)
    });
    Ok(AppendEntriesRequest {
        vote: leaders_vote_from_wire(request.vote)?,
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
    Ok(match Outcome::try_from(reply.outcome) {
        Ok(Outcome::Success) => AppendEntriesResponse::Success,
        Ok(Outcome::PartialSuccess) => {
            AppendEntriesResponse::PartialSuccess(reply.matching.map(log_id_from_wire))
        }
        Ok(Outcome::Conflict) => AppendEntriesResponse::Conflict,
        Ok(Outcome::HigherVote) => AppendEntriesResponse::HigherVote(vote_from_wire(reply.vote)?),
        Ok(Outcome::Failed) => return Err(Error::unavailable(reply.error)),
        // prost's accessor would take it for success: an acknowledgement that nobody gave.
        Err(_) => return Err(Error::invalid(format!("unknown outcome {} of an append", reply.outcome))),
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
        // openraft would count the follower for entries that nobody has.
        AppendEntriesResponse::PartialSuccess(matching) if matching > range.1 => {
            return Err(Error::invalid("more entries are acknowledged than were sent"));
        }
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
        to_incarnation: address.to_incarnation,
    }
}

/// A vote request never claims a transfer of leadership: that would pass the lease by. Nor that the vote is granted already.
pub fn vote_request_from_wire(request: v1::VoteRequest) -> Result<VoteRequest<TypeConfig>> {
    let vote = vote_from_wire(request.vote)?;
    if vote.committed {
        return Err(Error::invalid("a request for a vote that is granted already"));
    }
    Ok(VoteRequest::new(vote, request.last_log.map(log_id_from_wire)))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn position(term: u64, index: u64) -> v1::LogPosition {
        v1::LogPosition { term, index }
    }

    #[test]
    fn a_vote_is_taken_for_what_it_is_only() {
        let vote = |committed| Some(v1::RaftVote { term: 9, node: 1, committed });
        let request = |committed| v1::VoteRequest { vote: vote(committed), ..Default::default() };
        vote_request_from_wire(request(false)).unwrap();
        let error = vote_request_from_wire(request(true)).unwrap_err();
        assert!(error.message.contains("granted already"), "{error}");
        let append = |committed| v1::AppendEntriesRequest { vote: vote(committed), ..Default::default() };
        append_from_wire(append(true)).unwrap();
        let error = append_from_wire(append(false)).unwrap_err();
        assert!(error.message.contains("nobody elected"), "{error}");
        leaders_vote_from_wire(None).unwrap_err();
    }

    #[test]
    fn an_append_with_a_hole_is_refused_before_openraft_sees_it() {
        let append = |prev: Option<v1::LogPosition>, entries: &[(u64, u64)]| {
            let entry = |(term, index): &(u64, u64)| v1::RaftEntry {
                position: Some(position(*term, *index)),
                data: Bytes::from_static(&[0]),
            };
            append_from_wire(v1::AppendEntriesRequest {
                vote: Some(v1::RaftVote { term: 9, node: 1, committed: true }),
                prev,
                entries: entries.iter().map(entry).collect(),
                ..Default::default()
            })
        };
        append(None, &[(1, 0), (1, 1), (2, 2)]).unwrap();
        append(Some(position(1, 6)), &[(1, 7), (2, 8)]).unwrap();
        for (prev, entries) in [
            (Some(position(1, 6)), &[(1, 8)][..]),
            (Some(position(1, 6)), &[(1, 6)]),
            (Some(position(1, 6)), &[(1, 7), (1, 9)]),
            (Some(position(2, 6)), &[(1, 7)]),
            (Some(position(1, u64::MAX)), &[(1, 0)]),
            (None, &[(1, 5), (1, 6)]),
            (None, &[(1, 0), (1, 0)]),
        ] {
            let error = append(prev, entries).unwrap_err();
            assert!(error.message.contains("after"), "{error}");
        }
    }

    #[test]
    fn an_unknown_outcome_is_not_success() {
        let reply = v1::AppendEntriesResponse { outcome: 77, ..Default::default() };
        assert!(append_reply_from_wire(reply.clone()).unwrap_err().message.contains("77"));
        assert!(stream_result_from_wire(reply, (None, Some(log_id_at(LogPosition::default())))).is_err());
    }

    #[test]
    fn nobody_acknowledges_more_than_was_sent() {
        let reply = |index| v1::AppendEntriesResponse {
            outcome: v1::append_entries_response::Outcome::PartialSuccess.into(),
            matching: Some(position(2, index)),
            ..Default::default()
        };
        let range = (Some(log_id_from_wire(position(2, 4))), Some(log_id_from_wire(position(2, 7))));
        for honest in [4, 7] {
            stream_result_from_wire(reply(honest), range).unwrap().unwrap();
        }
        for lie in [8, u64::MAX] {
            let error = stream_result_from_wire(reply(lie), range).unwrap_err();
            assert!(error.message.contains("more entries"), "{error}");
        }
    }
}
