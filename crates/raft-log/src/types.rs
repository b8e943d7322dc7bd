//! The Raft types of the whole system: one leader a term, opaque payloads.

use std::fmt;

use bytes::Bytes;
use sextant_common::ids::LogPosition;

openraft::declare_raft_types!(
    /// openraft's types, as every memtable server uses them.
    pub TypeConfig:
        D = Payload,
        R = (),
        NodeId = u64,
        Node = Member,
        Term = u64,
        LeaderId = openraft::impls::leader_id_std::LeaderId<Self::Term, Self::NodeId>,
        AsyncRuntime = Runtime,
);

#[cfg(not(feature = "simulation"))]
#[allow(deprecated, reason = "openraft names the crate that it wants instead, but re-exports the type")]
type Runtime = openraft::impls::TokioRuntime;
#[cfg(feature = "simulation")]
type Runtime = crate::simulation::SimulatedRuntime;

/// What a membership says of a server, beside its id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Member {
    /// `host:port` of its gRPC service.
    pub addr: String,
    /// Which life of the server is meant: random, written into its directories when they were empty. A server that comes back
    /// without its memory has another one, and is not the member that the group counts on. 0: none is named, and none meant.
    pub incarnation: u64,
}

impl Member {
    pub fn new(addr: impl Into<String>, incarnation: u64) -> Self {
        Self { addr: addr.into(), incarnation }
    }
}

/// What a normal entry carries: opaque to the log, and to openraft. A clone shares the bytes.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Payload(pub Bytes);

/// Prints the length only: payloads hold keys and values.
impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Payload({} bytes)", self.0.len())
    }
}

impl fmt::Display for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

pub type Entry = openraft::alias::EntryOf<TypeConfig>;
pub type LogId = openraft::alias::LogIdOf<TypeConfig>;
pub type Vote = openraft::alias::VoteOf<TypeConfig>;
pub type Membership = openraft::Membership<u64, Member>;
pub type StoredMembership = openraft::alias::StoredMembershipOf<TypeConfig>;
pub type LogState = openraft::storage::LogState<TypeConfig>;
pub type IoFlushed = openraft::storage::IOFlushed<TypeConfig>;

type CommittedLeaderId = openraft::alias::CommittedLeaderIdOf<TypeConfig>;

/// A log id from its parts.
pub fn log_id(term: u64, index: u64) -> LogId {
    LogId::new(CommittedLeaderId::new(term), index)
}

/// The position that a log id names.
pub fn position_of(id: &LogId) -> LogPosition {
    LogPosition { term: id.leader_id.term, index: id.index }
}

/// The log id of a position.
pub fn log_id_at(position: LogPosition) -> LogId {
    log_id(position.term, position.index)
}
