//! Votes, asked for and given.

use openraft::raft::{VoteRequest, VoteResponse};
use sextant_common::error::{Error, Result};
use sextant_proto::v1;
use sextant_raft_log::TypeConfig;

use super::{Address, log_id_from_wire, position_to_wire, vote_from_wire, vote_to_wire};

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

/// A vote request never claims a transfer of leadership: that would pass the lease by. Nor that the vote is granted
/// already.
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
    use super::super::{append_from_wire, leaders_vote_from_wire};
    use super::*;

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
}
