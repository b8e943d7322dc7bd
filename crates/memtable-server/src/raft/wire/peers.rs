//! What peers are told and asked beside appends and votes, and how their service is spoken to.

use bytes::Bytes;
use openraft::alias::SnapshotMetaOf;
use sextant_environment::config::{ClusterConfig, Server};
use sextant_environment::env::{Network, Party, cluster_channel};
use sextant_proto::v1::raft_client::RaftClient;
use sextant_proto::{MESSAGE_BYTES_MAX, v1};
use sextant_raft_log::{TypeConfig, Vote, encode_membership};
use tonic::transport::Channel;

use super::{Address, position_to_wire, vote_to_wire};
use crate::incarnation::Memory;

/// Size of the pieces of a snapshot.
const SNAPSHOT_PIECE_BYTES: usize = 4 * 1024 * 1024;

/// Nobody leads it: terms begin at 1.
const NO_TERM: u64 = 0;

/// How a peer's service is spoken to.
pub type PeerClient = RaftClient<Channel>;

/// Connects when it is first used.
pub fn peer_client(
    net: &std::sync::Arc<dyn Network>,
    to: &Server,
    cluster: &ClusterConfig,
    from: Party,
) -> PeerClient {
    RaftClient::new(cluster_channel(net, &to.addr, cluster, from, Some(Party::memtable(to.id))))
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX)
}

/// What a server says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Introduction {
    /// It has something of the partition's group.
    pub founded: bool,
    pub incarnation: u64,
    /// The newest format of the partition that it can read.
    pub format: u32,
    /// Its wall clock, in nanoseconds since 1970; 0: it does not say.
    pub wall_ns: u64,
}

/// `let_in`: this server has lost its memory and asks to be let in as this incarnation; 0: it only asks.
pub fn introduction_to_wire(address: Address, let_in: u64) -> v1::IsFoundedRequest {
    let Address { partition, from, to, cluster, .. } = address;
    v1::IsFoundedRequest { partition, to, cluster, from, let_in }
}

pub fn introduction_from_wire(reply: v1::IsFoundedResponse) -> Introduction {
    let v1::IsFoundedResponse { founded, incarnation, format, unix_us } = reply;
    Introduction { founded, incarnation, format, wall_ns: unix_us.saturating_mul(1000) }
}

pub fn memory_to_wire(address: Address) -> v1::RemembersRequest {
    let Address { partition, to, cluster, .. } = address;
    v1::RemembersRequest { partition, to, cluster }
}

pub fn memory_from_wire(reply: v1::RemembersResponse) -> Memory {
    Memory { partition: reply.partition, any: reply.any, term: reply.term, lost: reply.lost }
}

/// The leader of `term`, the sender, lets go and wants the addressee to lead next.
pub fn heir_to_wire(address: Address, term: u64) -> v1::TransferLeaderRequest {
    let Address { partition, from, to, cluster, .. } = address;
    v1::TransferLeaderRequest {
        partition,
        from,
        to,
        cluster,
        from_leader: Some(v1::RaftVote { term, node: from, committed: true }),
        to_node: to,
        last_log: None,
    }
}

/// Whether the addressee would lead, which nobody has named yet. (A server of an older version answers as if it were named: it
/// looks only at whether it is stopping.)
pub fn would_lead_to_wire(address: Address) -> v1::TransferLeaderRequest {
    heir_to_wire(address, NO_TERM)
}

/// Whether that is what is asked.
pub fn is_only_asked(vote: &Vote) -> bool {
    vote.leader_id.term == NO_TERM
}

/// The messages of a snapshot: what it is, and then its bytes in pieces.
pub fn snapshot_to_wire(
    address: &Address,
    vote: &Vote,
    meta: &SnapshotMetaOf<TypeConfig>,
    data: Bytes,
    abstention_ns: u64,
) -> impl Iterator<Item = v1::InstallSnapshotRequest> + Send + use<> {
    let first = v1::InstallSnapshotRequest {
        partition: address.partition,
        from: address.from,
        to: address.to,
        cluster: address.cluster.clone(),
        vote: Some(vote_to_wire(vote)),
        last_log: meta.last_log_id.as_ref().map(position_to_wire),
        membership: Bytes::from(encode_membership(&meta.last_membership).to_vec()),
        membership_position: None,
        snapshot_id: String::new(),
        data: Bytes::new(),
        data_bytes: data.len() as u64,
        abstention_ns,
        to_incarnation: address.to_incarnation,
    };
    let pieces = (0..data.len()).step_by(SNAPSHOT_PIECE_BYTES).map(move |at| {
        let data = data.slice(at..data.len().min(at + SNAPSHOT_PIECE_BYTES));
        v1::InstallSnapshotRequest { data, ..Default::default() }
    });
    std::iter::once(first).chain(pieces)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raft::wire::vote_from_wire;

    #[test]
    fn a_question_is_told_from_a_name() {
        let address =
            || Address { partition: 0, from: 1, to: 2, cluster: Bytes::from_static(b"c"), to_incarnation: 0 };
        let is_question =
            |message: v1::TransferLeaderRequest| is_only_asked(&vote_from_wire(message.from_leader).unwrap());
        assert!(is_question(would_lead_to_wire(address())));
        assert!(!is_question(heir_to_wire(address(), 1)));
    }
}
