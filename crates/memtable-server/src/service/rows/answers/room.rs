//! Room for answers that are on their way.

use std::sync::Arc;

use sextant_common::limits::LARGE_BYTES;
use sextant_proto::v1;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::MESSAGE_BYTES;

/// Answers that may be on their way on one stream, in bytes: some 64 thousand of small writes.
const STREAM_BYTES_MAX: usize = 32 * 1024 * 1024;
/// What an answer may have beside its results: mostly a reason.
pub(super) const ANSWER_BYTES: usize = 512;
/// What the result of an operation has at most, if it tells no value.
const RESULT_BYTES: usize = 48;
/// Counted for a result that tells a value, whose length nobody knows before. (A longer one is no copy: it is shared with the memtable,
/// the request or the log, until it is put into a message.)
const TOLD_BYTES: usize = LARGE_BYTES;

/// Room for the answers of one stream. Cheap to clone.
#[derive(Clone)]
pub struct Room(pub(super) Arc<Semaphore>);

impl Room {
    pub fn of_a_stream() -> Self {
        Self(Arc::new(Semaphore::new(STREAM_BYTES_MAX)))
    }

    /// Waits until there is room for the answer to a write. None: the stream has ended.
    pub async fn take(&self, write: &v1::WriteRequest) -> Option<OwnedSemaphorePermit> {
        let bytes = answer_bytes(write).min(STREAM_BYTES_MAX);
        self.0.clone().acquire_many_owned(bytes as u32).await.ok()
    }

    /// Nobody takes answers any more.
    pub fn close(&self) {
        self.0.close();
    }
}

/// The most that the answer to a write has, a manifest aside.
pub(super) fn answer_bytes(write: &v1::WriteRequest) -> usize {
    let tells = |op: &&v1::WriteOp| op.returns != v1::Returns::Nothing as i32;
    let told = match write.ops.iter().filter(tells).count() {
        0 => 0,
        // Numbers.
        1 if write.ops.iter().all(|op| is_increment(op.kind)) => 0,
        // No request is told more than fits into a message.
        values => values.saturating_mul(TOLD_BYTES).min(MESSAGE_BYTES),
    };
    ANSWER_BYTES + write.ops.len().saturating_mul(RESULT_BYTES).saturating_add(told)
}

fn is_increment(kind: i32) -> bool {
    use v1::WriteKind as K;
    kind == K::WriteIncrement as i32 || kind == K::WriteIncrementDecimal as i32
}

/// Whether the answers to all of these can travel in one message. (That to one alone can: what a request is told has a bound of its own.)
pub fn fit_one_message(writes: &[v1::WriteRequest]) -> bool {
    writes.len() <= 1 || writes.iter().map(answer_bytes).fold(0, usize::saturating_add) <= MESSAGE_BYTES
}
