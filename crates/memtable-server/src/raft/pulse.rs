//! When leaders send heartbeats: all of a thread at once, so that those to one peer travel together
//! ([`heartbeats`](super::network)). openraft's own timers are off: there would be one for each partition, each at another time.

use std::time::Duration;

use futures::FutureExt;
use openraft::ServerState;
use openraft::async_runtime::WatchReceiver;
use sextant_environment::shutdown::Shutdown;

use super::Raft;

/// Runs until the shutdown. `rafts`: of the partitions of one thread, on which this runs.
pub async fn pulse(rafts: Vec<Raft>, interval: Duration, mut shutdown: Shutdown) {
    let mut beat = tokio::time::interval(interval);
    // After a pause one beat is enough.
    beat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = shutdown.wait() => return,
            _ = beat.tick() => {}
        }
        for raft in &rafts {
            let leads = raft.server_metrics().borrow_watched().state == ServerState::Leader;
            if leads {
                // Raft's queue is long; if it is full, nothing is waited for here. (If Raft has stopped, the call would wait for the end
                // of its core, which runs on this very thread: it is there at the first look, or somebody else waits for it.)
                let _ = tokio::task::unconstrained(raft.trigger().heartbeat()).now_or_never();
            }
        }
    }
}
