//! Elections: openraft's own timer is off; this one campaigns only when the vote guard is open.

use std::sync::Arc;
use std::time::Duration;

use openraft::ServerState;
use openraft::async_runtime::WatchReceiver;
use sextant_common::config::LeaseConfig;
use sextant_common::shutdown::Shutdown;
use sextant_raft_log::RaftLog;

use super::Raft;
use crate::shared::Shared;

const TICK: Duration = Duration::from_millis(10);
/// What must fit into the log for a campaign: a leader begins with an entry, and Raft cannot go on if the log refuses it. Far
/// less than what makes the log refuse writes, so that servers that filled up together still elect one of them.
const LOG_ROOM_BYTES: u64 = 32 * 1024;
/// Between two attempts of one node: a vote round with its fsyncs, and some.
const ATTEMPT_MS: u64 = 120;

/// Campaigns when no leader was heard for the lease plus a random jitter. `rank`: 0 for the node that is to lead the partition
/// by preference (leaders are spread that way); the others wait a little longer.
pub async fn election_loop(
    raft: Raft,
    shared: Arc<Shared>,
    log: Arc<RaftLog>,
    lease: LeaseConfig,
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
        let (state, initialised) = {
            let metrics = raft.server_metrics();
            let m = metrics.borrow_watched();
            (m.state, m.membership_config.membership().voter_ids().next().is_some())
        };
        if matches!(state, ServerState::Leader | ServerState::Shutdown) {
            continue;
        }
        let now = clock.grantor_ns();
        if !initialised || now < next_attempt || now < shared.guard.opens_at_ns() + jitter + patience {
            continue;
        }
        if log.check_room(LOG_ROOM_BYTES).is_err() {
            continue;
        }
        if raft.trigger().elect(true).await.is_err() {
            return;
        }
        jitter = draw();
        next_attempt = now + ATTEMPT_MS * 1_000_000 + draw();
    }
}
