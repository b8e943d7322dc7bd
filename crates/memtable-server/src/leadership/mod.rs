//! When this node may act as leader, and when it may help to make another one.
//!
//! openraft's own lease is not enough for leases given to third parties: a voter that restarts forgets it, a self-vote
//! passes no handler, a forced election ignores it. So (design, section 7):
//!
//! * [`LeaderLease`]: a leader grants and reads only within `leader_lease` of the *send* time of the last round that a
//!   majority acknowledged, minus a drift margin.
//! * [`VoteGuard`]: no node votes, pre-votes or campaigns until process start + lease, the last append or snapshot accepted
//!   from a leader + lease, and (if it led) its own last acknowledged round + lease have all passed.
//! * [`Told`]: what of this Raft has to hear, whose heartbeats this node answers itself.
//! * [`Strangers`]: members that came back without their memory, and what a leader does about them.
//!
//! How long a lease is says the partition's replicated configuration: `command::configuration` has the rules across changes.

mod leader_lease;
mod strangers;
mod told;
mod vote_guard;

use sextant_common::error::{Error, ErrorKind};

pub use leader_lease::{Ack, LeaderLease, Quorums, Terms};
pub use strangers::{Step, Strangers};
pub use told::{Hearing, Told};
pub use vote_guard::VoteGuard;

/// What only a leader can do is asked of a server that does not lead.
pub fn not_leading() -> Error {
    Error::new(ErrorKind::NotLeader, "this server does not lead the partition")
}

/// What only a leader can do was begun by one that leads no more: the next leader may be asked again.
pub fn leadership_changed() -> Error {
    Error::retry("leadership changed")
}
