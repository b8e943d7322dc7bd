//! The gRPC services: thin shells that validate what comes in, ask the shared state or the worker, and answer.

pub mod admin;
pub mod answers;
pub mod heartbeat;
pub mod lease;
pub mod raft;
pub mod rows;
pub mod status;
mod underway;

use std::collections::HashMap;
use std::sync::Arc;

use openraft::async_runtime::WatchReceiver;
use sextant_common::error::{Error, Result};
use sextant_common::ids::{NodeId, PartitionId};
use sextant_environment::Env;
use sextant_environment::config::ClusterConfig;
use sextant_environment::env::status_of;
use sextant_proto::v1;
use sextant_raft_log::{LogId, StoredMembership};
use tokio::sync::Notify;
use tonic::Status;

use crate::metrics::Metrics;
use crate::raft::network::NetworkFactory;
use crate::raft::reach::check_acknowledged;
use crate::raft::snapshot_store::SnapshotStore;
use crate::recover::{Gate, Memories};
use crate::replica::{Handle, Leader};

impl From<Leader> for v1::LeaderHint {
    fn from(leader: Leader) -> Self {
        Self { partition: leader.partition.0, node: leader.node, term: leader.term }
    }
}

/// What all services share.
pub struct Context {
    pub env: Env,
    pub node: NodeId,
    pub cluster: ClusterConfig,
    pub partitions: HashMap<PartitionId, Handle>,
    pub rafts: HashMap<PartitionId, crate::raft::Raft>,
    pub networks: HashMap<PartitionId, NetworkFactory>,
    pub snapshots: HashMap<PartitionId, SnapshotStore>,
    /// Before the founding of each partition.
    pub gates: HashMap<PartitionId, Gate>,
    pub memories: Arc<Memories>,
    pub news: Arc<Notify>,
    pub metrics: Arc<Metrics>,
    /// Random per process: monotonic clocks cannot be compared across restarts.
    pub boot: u64,
    pub recovery: Recovery,
    pub log: Arc<sextant_raft_log::RaftLog>,
    /// For large answers to reads, of all partitions.
    pub answers: sextant_environment::room::Room,
    pub started_ns: u64,
    /// The server hands over and takes no new leadership.
    pub draining: sextant_environment::shutdown::Shutdown,
    pub shutdown: sextant_environment::shutdown::Shutdown,
    /// As in the tuning.
    pub disk_stall_ms: u64,
}

/// What starting up took.
#[derive(Clone, Debug, Default)]
pub struct Recovery {
    /// Reading and checking the log.
    pub log_seconds: f64,
    pub log_entries: u64,
    pub log_bytes: u64,
    pub torn_bytes: u64,
    /// Filling the memtables.
    pub replay_seconds: f64,
    pub replayed_writes: u64,
    pub skipped_writes: u64,
}

impl Context {
    pub fn partition(&self, id: u32) -> Result<&Handle> {
        self.partitions.get(&PartitionId(id)).ok_or_else(|| {
            Error::invalid(format!("no partition {id}: there are {}", self.cluster.partitions))
        })
    }

    /// The group takes this server for what it was before it lost its memory. It asks to be let in as what it is now
    /// (`raft::founding`).
    pub fn lost_in(&self, handle: &Handle, named: u64) {
        let incarnation = handle.shared.incarnation.clone();
        if incarnation.lose(handle.shared.id) {
            tracing::error!(
                partition = %handle.shared.id,
                "this server has lost its memory: the group knows it as incarnation {named:016x}, it is {:016x} now. It votes for \
                 nobody and counts for nothing until the group has let it in again",
                incarnation.id()
            );
            tokio::spawn(async move { incarnation.store().await });
        }
    }

    /// A leader of `term` says how many entries of the log this server has acknowledged to it. If the log ends before, this server's
    /// directories are an older copy: it has forgotten votes too, and must not go on with what it has.
    pub fn check_memory(&self, handle: &Handle, term: u64, acknowledged: u64) -> Result<(), Status> {
        if acknowledged == 0 {
            return Ok(());
        }
        let log = self.log.partition(handle.shared.id);
        // In this order: the log is cut only for a leader whose vote was taken before.
        let end = log.last_log_id().map_or(0, |last| last.index.saturating_add(1));
        // While a snapshot that contradicts its end is installed, the log is shorter than what it stands for.
        let end = end.max(self.snapshots.get(&handle.shared.id).map_or(0, SnapshotStore::entries_covered));
        if end >= acknowledged || log.vote().is_some_and(|vote| vote.leader_id.term > term) {
            return Ok(());
        }
        check_acknowledged(acknowledged, end).map_err(status_of)?;
        let what = format!(
            "partition {}: this server has acknowledged {acknowledged} entries to the leader of term {term}, but its log ends after \
             {end}: its directories are an older copy",
            handle.shared.id
        );
        Err(self.give_up_memory(handle, what))
    }

    /// A leader that has committed `leader_commit` means another incarnation of this server, `named`. If this server knows that it
    /// was let in as what it is by then, it has been replaced since: its directories are a copy of a former life, whose votes and
    /// acknowledgements count for nobody who knows of the later one. (Where it does not know that, it is a new one, and waits to be
    /// let in; or the leader is not up to date.)
    pub fn check_life(
        &self,
        handle: &Handle,
        raft: &crate::raft::Raft,
        named: u64,
        leader_commit: Option<LogId>,
    ) -> Result<(), Status> {
        let (node, own) = (handle.shared.node, handle.shared.incarnation.id());
        let is_former = {
            let metrics = raft.server_metrics();
            let m = metrics.borrow_watched();
            is_former_life(&m.committed_membership_config, node, own, leader_commit)
        };
        if !is_former {
            return Ok(());
        }
        let what = format!(
            "partition {}: this server is incarnation {own:016x}; the group has let it in as {named:016x} since: its directories are from \
             before that, an older copy",
            handle.shared.id
        );
        Err(self.give_up_memory(handle, what))
    }

    /// This server's directories are an older copy, as `what` says: it takes another incarnation, and ends.
    fn give_up_memory(&self, handle: &Handle, what: String) -> Status {
        if !handle.shared.incarnation.gives_up() {
            return Status::unavailable(what);
        }
        tracing::error!("{what}");
        let (incarnation, fatal) = (handle.shared.incarnation.clone(), self.env.fatal.clone());
        // Where an operator has taken it out, it stays out.
        let is_member = |raft: &crate::raft::Raft| {
            let metrics = raft.server_metrics();
            let m = metrics.borrow_watched();
            m.membership_config.membership().get_node(&self.node.0).is_some()
        };
        let members = self.rafts.iter().filter(|(_, raft)| is_member(raft)).map(|(id, _)| *id);
        let partitions = members.chain([handle.shared.id]).collect();
        let message = format!("{what}. When it is started again it asks to be let in as a new one");
        tokio::spawn(async move {
            match incarnation.renew(&partitions).await {
                Ok(()) => fatal.fatal(&message),
                Err(e) => fatal.fatal(&format!("{message}; but that cannot be written: {e}")),
            }
        });
        Status::unavailable(what)
    }
}

/// Whether the life that `committed` names this server as, `own`, was over when a leader had committed `leader_commit` and named another.
fn is_former_life(committed: &StoredMembership, node: u64, own: u64, leader_commit: Option<LogId>) -> bool {
    let named = committed.membership().get_node(&node).map(|n| n.incarnation);
    named == Some(own) && committed.log_id().is_some() && leader_commit >= *committed.log_id()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use sextant_raft_log::{Member, Membership, log_id};

    use super::*;

    #[test]
    fn only_a_leader_that_has_committed_this_servers_admission_can_say_that_its_life_is_over() {
        let nodes: BTreeMap<u64, Member> = (1..=3).map(|n| (n, Member::new("a:1", 10 * n))).collect();
        let membership = Membership::new(vec![[1, 2, 3].into()], nodes).unwrap();
        let committed = StoredMembership::new(Some(log_id(4, 100)), membership);
        let is_former = |own, commit| is_former_life(&committed, 2, own, commit);
        assert!(is_former(20, Some(log_id(4, 100))));
        assert!(is_former(20, Some(log_id(5, 101))));
        assert!(!is_former(20, Some(log_id(4, 99))), "it speaks of the life before this one");
        assert!(!is_former(20, Some(log_id(3, 200))), "a leader of an earlier term");
        assert!(!is_former(20, None));
        assert!(!is_former(77, Some(log_id(4, 100))), "it is new, and was not let in yet");
        assert!(!is_former_life(&StoredMembership::default(), 2, 20, None), "it knows of no group");
    }
}
