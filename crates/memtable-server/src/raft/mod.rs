//! openraft's side of a partition: its network, its messages ([`wire`]), its state machine, its configuration, elections; what
//! this node, as a member, takes from the others ([`acceptor`]); and the threads that partitions live on ([`threads`]).
//!
//! openraft decides what is committed. What an entry *does* is the worker's business; the state machine here only passes on
//! how far the log is committed, and returns at once (waiting in `apply` would stop replication's heart).

pub mod acceptor;
pub mod election;
pub mod network;
pub mod pulse;
pub mod reach;
pub mod snapshot_store;
pub mod state_machine;
pub mod threads;
pub mod wire;

use openraft::{Config, SnapshotPolicy, StepDownPolicy};
use sextant_common::error::{Error, Result};
use sextant_environment::config::LeaseConfig;
use sextant_raft_log::TypeConfig;

pub use state_machine::StateMachine;

use crate::config::Tuning;

pub type Raft = openraft::Raft<TypeConfig, StateMachine>;

/// openraft's settings for our lease lengths; `leader_lease_ms` is that of the replicated configuration as of the start: openraft's
/// own lease only refuses, so that it may lag behind a change. Elections are ours ([`election`]): openraft's timer knows nothing of what
/// this node promised before it restarted.
/// The log reader caps the bytes of an append.
pub fn config(lease: &LeaseConfig, leader_lease_ms: u64, tuning: &Tuning) -> Result<Config> {
    let config = Config {
        cluster_name: "sextant".into(),
        heartbeat_interval: lease.heartbeat_ms,
        election_timeout_min: leader_lease_ms.saturating_sub(1).max(lease.heartbeat_ms + 1),
        election_timeout_max: leader_lease_ms.max(lease.heartbeat_ms + 2),
        enable_elect: false,
        // Heartbeats are asked for ([`pulse`]); nothing else depends on openraft's timer.
        enable_tick: false,
        enable_heartbeat: false,
        enable_pre_vote: Some(true),
        enable_leader_restore: Some(false),
        snapshot_policy: SnapshotPolicy::Never,
        // It would pass leases by: a leader that is no voter any more hands over as any other (`worker::leading::voters`).
        removed_leader_step_down: StepDownPolicy::Never,
        max_in_snapshot_log_to_keep: tuning.log_entries_kept,
        max_payload_entries: tuning.log_entries_per_append,
        // A follower that lags further than this gets a snapshot; since snapshots hold no data but a manifest, entries
        // are preferred as long as the log has them.
        replication_lag_threshold: u64::MAX,
        install_snapshot_timeout: 10_000,
        ..Config::default()
    };
    config.validate().map_err(|e| Error::invalid(format!("lease lengths do not suit Raft: {e}")))
}
