//! The handle, and what does not come from openraft.

use std::sync::Arc;

use sextant_common::ids::LogPosition;
use sextant_common::{Error, Result};

use crate::LogObserver;
use crate::shared::{Handle, Partition, Shared};
use crate::types::{LogId, Vote, log_id_at};

/// The log of one partition. Clones are the same log; at most one task writes to it (openraft's core does).
#[derive(Clone)]
pub struct PartitionLog {
    pub(super) shared: Arc<Shared>,
    pub(super) partition: Arc<Partition>,
    /// Keeps the log open.
    _handle: Arc<Handle>,
}

impl PartitionLog {
    pub(crate) fn new(handle: Arc<Handle>, partition: Arc<Partition>) -> Self {
        Self { shared: handle.0.clone(), partition, _handle: handle }
    }

    /// Who is told of appends and truncations. Set it before Raft starts: nothing is told twice.
    pub fn set_observer(&self, observer: Arc<dyn LogObserver>) {
        *self.partition.observer.write() = Some(observer);
    }

    /// Brings the log in line with a snapshot that is newer than what it knows. A snapshot that a leader sent is stored before the
    /// log is told to drop what it covers and what contradicts it, and the server may stop in between. To be called before
    /// anything else is done with the log.
    ///
    /// What a snapshot covers is committed. So if the log lacks exactly its last entry, `covered`, then whatever the log has from
    /// there on was never committed, and what it has before is not needed: all of it is removed, and the log begins after
    /// `covered`. Raft itself would purge only a log whose last entry is older than `covered`; behind a tail of a higher term
    /// that ends before it, Raft would go on where the log does not end, and every append would be refused. The vote stays.
    ///
    /// Both steps are records of the log, in this order and before any that come later; if only the first of them, or none, is
    /// there after a crash, the same is done again. Returns how many entries were removed.
    ///
    /// [`sextant_common::ErrorKind::Corrupt`] if the log has something else for committed: one of the two is not this server's.
    pub fn follow_snapshot(&self, covered: LogId) -> Result<u64> {
        let mut state = self.partition.state.lock();
        if state.has(covered) || state.purged.is_some_and(|purged| purged.index > covered.index) {
            return Ok(0);
        }
        if let Some(other) = state.contradicts(covered) {
            return Err(Error::corrupt(format!(
                "partition {}: a snapshot ends with entry {} of term {}, but in the log entry {} of term {} is committed: they are not \
                 of the same server",
                self.partition.id, covered.index, covered.leader_id.term, other.index, other.leader_id.term,
            )));
        }
        let entries = state.index.end() - state.index.first();
        let before = state.purged;
        self.truncate(&mut state, before)?;
        self.purge_upto(&mut state, covered)?;
        Ok(entries)
    }

    /// The id of the last entry, or of the last purged one if there is none.
    pub fn last_log_id(&self) -> Option<LogId> {
        self.partition.state.lock().last_log_id()
    }

    /// The newest vote.
    pub fn vote(&self) -> Option<Vote> {
        self.partition.state.lock().vote
    }

    /// The last purged entry.
    pub fn purged(&self) -> Option<LogId> {
        self.partition.state.lock().purged
    }

    /// Whether it has exactly this entry, or has purged exactly up to it.
    pub fn has(&self, position: LogPosition) -> bool {
        self.partition.state.lock().has(log_id_at(position))
    }

    /// Bytes of this partition's log from `index` to the end, record headers included.
    pub fn bytes_since(&self, index: u64) -> u64 {
        self.partition.state.lock().index.bytes_since(index)
    }
}

impl std::fmt::Debug for PartitionLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PartitionLog({})", self.partition.id)
    }
}
