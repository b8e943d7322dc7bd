//! Elections: openraft's own timer is off; this one campaigns only when the vote guard is open.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use openraft::ServerState;
use openraft::async_runtime::WatchReceiver;
use sextant_common::config::LeaseConfig;
use sextant_common::shutdown::Shutdown;
use sextant_raft_log::RaftLog;

use super::Raft;
use crate::shared::Shared;

const TICK: Duration = Duration::from_millis(10);
/// Between two attempts of one node: a vote round with its fsyncs, and some.
const ATTEMPT_MS: u64 = 120;
/// The same for a node that the last leader has named as its successor: the others' guards open within a heartbeat or so.
const HEIR_ATTEMPT_MS: u64 = 30;

/// The device that a vote would have to be written to.
pub struct Device {
    pub log: Arc<RaftLog>,
    /// After a write that takes so long, the device counts as hung. 0: never.
    pub stall_ms: u64,
}

impl Device {
    fn hangs(&self) -> bool {
        self.stall_ms > 0 && self.log.stalled_ns() > self.stall_ms * 500_000
    }
}

/// Campaigns when no leader was heard for the lease plus a random jitter. `rank`: 0 for the node that is to lead the partition
/// by preference (leaders are spread that way); the others wait a little longer.
pub async fn election_loop(
    raft: Raft,
    shared: Arc<Shared>,
    lease: LeaseConfig,
    device: Device,
    rank: u64,
    mut shutdown: Shutdown,
) {
    let clock = shared.env.clock.clone();
    let draw = || shared.env.rng.below(lease.election_jitter_ms + 1) * 1_000_000;
    // A rank's worth of patience: long enough for a vote round in between, short against the lease.
    let patience = rank * lease.election_jitter_ms.min(100) * 1_000_000 / 2;
    let mut jitter = draw();
    let mut next_attempt = 0;
    loop {
        tokio::select! {
            () = shutdown.wait() => return,
            () = tokio::time::sleep(TICK) => {}
        }
        let (state, initialised, term) = {
            let metrics = raft.server_metrics();
            let m = metrics.borrow_watched();
            (m.state, m.membership_config.membership().voter_ids().next().is_some(), m.vote.leader_id.term)
        };
        if matches!(state, ServerState::Leader | ServerState::Shutdown) {
            continue;
        }
        let now = clock.grantor_ns();
        // Named by the leader of the term that this node still knows as the newest.
        let is_heir = term != 0 && shared.heir_of.load(Ordering::Acquire) == term;
        let wait = if is_heir { 0 } else { jitter + patience };
        // A candidate whose device hangs could not even write its own vote down.
        if !initialised
            || now < next_attempt
            || now < shared.guard.opens_at_ns() + wait
            || device.hangs()
        {
            continue;
        }
        if raft.trigger().elect(true).await.is_err() {
            return;
        }
        jitter = draw();
        next_attempt = now + if is_heir { HEIR_ATTEMPT_MS * 1_000_000 } else { ATTEMPT_MS * 1_000_000 + draw() };
    }
}
