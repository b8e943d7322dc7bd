//! What is asked of a node that need not be a member: whether there is a group, and whether it would lead it.

use std::sync::atomic::Ordering;

use sextant_common::ids::NodeId;
use sextant_environment::config::ClusterConfig;
use sextant_raft_log::Vote;

use super::room::could_lead;
use super::{Acceptor, Refusal};

/// Somebody who wants to be let into the group, as the incarnation that it is now.
#[derive(Clone, Copy, Debug)]
pub struct Stranger {
    pub node: u64,
    pub incarnation: u64,
}

/// Whoever is no other server of the configuration cannot be let in, and would stand in the way of those that can.
fn can_be_let_in(stranger: &Stranger, own: NodeId, cluster: &ClusterConfig) -> bool {
    cluster.memtable.iter().any(|s| s.id.0 == stranger.node && s.id != own)
}

impl Acceptor {
    /// Whether there is a group. `stranger`: who asks, if it asks to be let in too.
    pub async fn is_founded(
        &self,
        stranger: Option<Stranger>,
        cluster: &ClusterConfig,
    ) -> Result<bool, Refusal> {
        let founded = self.raft.is_initialized().await.map_err(Refusal::of_raft)?;
        if let Some(stranger) = stranger
            && can_be_let_in(&stranger, NodeId(self.shared.node), cluster)
        {
            let now_ns = self.shared.env.clock.holder_ns();
            self.shared.strangers.asks(stranger.node, stranger.incarnation, now_ns);
        }
        Ok(founded)
    }

    /// The leader of `vote` names this node as its successor. Only a wish: this node campaigns without jitter, but not before its vote
    /// guard is open. So no lease is passed by. False: it does not mean to lead. `stops`: it is going to stop.
    pub fn is_named_heir(&self, vote: &Vote, stops: bool) -> Result<bool, Refusal> {
        self.reach().check_vote(vote)?;
        if !stops {
            self.shared.heir_of.store(vote.leader_id.term, Ordering::Release);
            self.shared.named_heir.notify_one();
        }
        Ok(!stops)
    }

    /// Somebody asks whether this node would take the leadership over from a server whose log is full. Nothing is promised.
    pub fn would_lead(&self, stops: bool) -> bool {
        let hangs = self.disk_stall_ms > 0 && self.log.stalled_ns() > self.disk_stall_ms * 500_000;
        !stops && !hangs && could_lead(&self.log, self.group_bytes)
    }
}
