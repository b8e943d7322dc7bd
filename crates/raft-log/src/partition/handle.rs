//! The handle, and what does not come from openraft.

use std::sync::Arc;

use sextant_common::Result;

use crate::LogObserver;
use crate::shared::{Handle, Partition, Shared};
use crate::types::{Entry, LogId};

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

    /// Calls `f` for the entries from `from_index` (or the first there is) to the last, in order, in pieces of about a
    /// megabyte. Blocks. Returns the first error of `f`; [`sextant_common::ErrorKind::Corrupt`] with file and offset if a
    /// record fails its check.
    pub fn replay(&self, from_index: u64, f: &mut dyn FnMut(Entry) -> Result<()>) -> Result<()> {
        let mut next = from_index;
        loop {
            let piece = self.plan(next, u64::MAX, super::read::PIECE_BYTES).read(&self.shared)?;
            if piece.is_empty() {
                return Ok(());
            }
            for entry in piece {
                next = entry.log_id.index + 1;
                f(entry)?;
            }
        }
    }

    /// The id of the last entry, or of the last purged one if there is none.
    pub fn last_log_id(&self) -> Option<LogId> {
        self.partition.state.lock().last_log_id()
    }

    /// The last purged entry.
    pub fn purged(&self) -> Option<LogId> {
        self.partition.state.lock().purged
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
