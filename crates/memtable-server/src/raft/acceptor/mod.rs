//! What this node does with what the other members of a partition's group send: the promises, and the order in which they are kept.
//!
//! * [`addressed`]: a message for another incarnation of this server is refused *before* anything else is done with it.
//! * [`memory`]: a server that has forgotten what it acknowledged, or whose life is over, gives its memory up.
//! * [`ballot`]: the vote guard is asked before the vote and after it; in between, the leader's lease is forsworn.
//! * [`appends`]: the guard is bound before an append is taken and after it was accepted; room in the log comes first
//!   ([`room`]), and is kept as long as Raft may need it ([`underway`]); a heartbeat need not wait for the disk ([`heartbeat`]).
//! * [`snapshots`]: the leader's vote is durable before its snapshot is stored, and that before Raft is told.
//! * [`greetings`]: what those ask who are no members yet, or are to be leaders next.
//!
//! Does not own: what is on the wire (`service::raft`), and which numbers are believed at all ([`super::reach`]).
//!
//! Invariant: whatever order messages come in, nothing leaves this node that contradicts what it promised to a leader.

mod addressed;
mod appends;
mod ballot;
mod greetings;
mod heartbeat;
mod memory;
mod refusal;
pub mod room;
mod snapshots;
#[cfg(test)]
mod tests;
mod underway;

use std::collections::HashMap;
use std::sync::Arc;

use openraft::async_runtime::WatchReceiver;
use sextant_common::ids::PartitionId;
use sextant_raft_log::RaftLog;

use super::Raft;
use super::reach::Reach;
use super::snapshot_store::SnapshotStore;
use crate::metrics::Metrics;
use crate::replica::ReplicaState;

pub use addressed::check_server;
pub use appends::Sent;
pub use greetings::Stranger;
pub use refusal::Refusal;
pub use snapshots::Offered;

/// A partition's, on this node. Cheap to clone.
#[derive(Clone)]
pub struct Acceptor {
    pub shared: Arc<ReplicaState>,
    pub raft: Raft,
    /// Of all partitions of this server: they share its memory.
    pub rafts: Arc<HashMap<PartitionId, Raft>>,
    pub store: SnapshotStore,
    pub log: Arc<RaftLog>,
    pub metrics: Arc<Metrics>,
    /// As in the tuning.
    pub disk_stall_ms: u64,
    pub group_bytes: usize,
}

impl Acceptor {
    /// Whether this server's log says that it belongs to the group as what it is.
    fn is_member(&self) -> bool {
        let metrics = self.raft.server_metrics();
        let m = metrics.borrow_watched();
        let named = m.membership_config.membership().get_node(&self.shared.node).map(|n| n.incarnation);
        named == Some(self.shared.incarnation.id())
    }

    /// Where this node stands.
    fn reach(&self) -> Reach {
        Reach::of(&self.raft)
    }

    /// From now on this node abstains as long as a leader asks for, or longer.
    fn bind_guard(&self, asked_ns: u64) {
        self.shared.guard.bind(self.shared.env.clock.grantor_ns(), asked_ns);
    }
}
