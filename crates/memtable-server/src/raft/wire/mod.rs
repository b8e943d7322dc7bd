//! Raft's wire edge: openraft's messages <-> those of `raft.proto`. Beside the gRPC service, generated messages of Raft
//! are met here only.
//!
//! Owns what each message says, the checks without which openraft must not see one, and how a peer's service is spoken
//! to. Does not own when anything is sent ([`super::network`]) nor what is taken ([`super::acceptor`]).

mod appends;
mod heartbeats;
mod peers;
mod votes;

use bytes::Bytes;
use sextant_common::error::{Error, Result};
use sextant_common::ids::LogPosition;
use sextant_proto::v1;
use sextant_raft_log::{LogId, Vote, log_id_at, position_of};
use tonic::Status;

pub use appends::{
    ENTRY_BYTES_MAX, append_from_wire, append_range, append_reply_from_wire, append_reply_to_wire,
    append_to_wire, check_entry, stream_result_from_wire, stream_result_to_wire,
};
pub use heartbeats::{answer_from_wire, answer_to_wire, heartbeats_to_wire};
pub use peers::{
    Introduction, PeerClient, heir_to_wire, introduction_from_wire, introduction_to_wire, is_only_asked,
    memory_from_wire, memory_to_wire, peer_client, snapshot_to_wire, would_lead_to_wire,
};
pub use sextant_proto::v1::{
    AppendEntriesRequest as AppendMessage, AppendEntriesResponse as AppendReply, VoteResponse as VoteReply,
};
pub use votes::{vote_reply_from_wire, vote_reply_to_wire, vote_request_from_wire, vote_request_to_wire};

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
