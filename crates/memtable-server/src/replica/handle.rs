//! The ways to reach a partition's worker.

use std::sync::Arc;

use sextant_common::operation::WriteRequest;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

use super::admission::{QUEUE_BYTES_MAX, QueueShare, QueuedWrite};
use super::{Event, ReplicaState, ReplySink, WriteFate};

/// The ways to reach a partition's worker. Cheap to clone.
#[derive(Clone)]
pub struct Handle {
    pub shared: Arc<ReplicaState>,
    /// Raft's events and rare requests. Unbounded, because openraft's append must return at once; bounded in fact by the
    /// entries that Raft keeps in flight.
    pub events: mpsc::UnboundedSender<Event>,
    /// Writes: bounded; a full queue is "overloaded".
    pub writes: mpsc::Sender<QueuedWrite>,
}

/// The partition's queue is full. Whoever sent the write has been told.
#[derive(Debug)]
pub struct QueueFull;

impl Handle {
    /// Hands a write of `bytes` bytes to the partition's worker, or answers that it was not executed.
    pub fn submit(
        &self,
        request: WriteRequest,
        bytes: usize,
        deadline_ns: u64,
        reply: ReplySink,
    ) -> Result<(), QueueFull> {
        let full = |reply: ReplySink| {
            reply.send(WriteFate::Overloaded("the partition's queue of writes is full".into()));
            Err(QueueFull)
        };
        let Some(share) = QueueShare::take(&self.shared.queued_bytes, bytes, QUEUE_BYTES_MAX) else {
            return full(reply);
        };
        match self.writes.try_send(QueuedWrite { request, share, deadline_ns, reply }) {
            Ok(()) => Ok(()),
            Err(TrySendError::Full(write)) => full(write.reply),
            Err(TrySendError::Closed(write)) => {
                write.reply.send(WriteFate::Retry("the server is stopping"));
                Ok(())
            }
        }
    }
}
