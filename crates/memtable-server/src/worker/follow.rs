//! Who leads: the worker follows Raft into leadership and out of it; and what it looks after at any time.

use openraft::ServerState;

use super::Worker;
use super::leading::{self, Leading};

impl Worker {
    pub(super) fn follow_leadership(&mut self, state: ServerState, term: u64, leader: Option<u64>) {
        let me = self.replica.shared.node;
        // Raft may lead a little longer than this node does.
        let leader = leader.filter(|node| *node != me || !self.has_resigned(term));
        self.replica.shared.set_leader(term, leader.unwrap_or(0));
        let leads = state == ServerState::Leader && leader == Some(me);
        if self.leading.as_ref().is_some_and(|l| !leads || l.tenure.term != term) {
            self.step_down("another leader was elected");
        }
        let caught_up = self.replica.partition.last().term == term;
        if leads && caught_up && self.leading.is_none() {
            self.leading = Some(Leading::begin(&self.replica, term));
        }
        if let Some(leading) = &mut self.leading {
            leading.renew_own_lease(&self.replica);
        }
    }

    /// Ends leadership, if it is this node's: leases and service first, then everybody who waits is told.
    pub(super) fn step_down(&mut self, why: &'static str) {
        leading::end_service(&self.replica);
        if let Some(leading) = self.leading.take() {
            leading.end(&mut self.replica, why);
        }
    }

    pub(super) fn upkeep(&mut self, now_ns: u64) {
        let replica = &mut self.replica;
        let before = now_ns.saturating_sub(replica.tuning.grace_ms * 1_000_000);
        if replica.partition.end_grace(before, replica.tuning.grace_bytes as usize) {
            replica.refresh_view();
        }
        if let Some(leading) = &mut self.leading {
            leading.sequencer.refuse_late(replica.shared.env.clock.holder_ns());
        }
        replica.purge(now_ns);
        if let Some(leading) = &mut self.leading {
            leading.shorten_when_due(replica, now_ns);
            leading.settle_format(replica, now_ns);
            leading.see_to_full_log(replica, now_ns);
            leading.upkeep(replica, now_ns);
        }
    }
}
