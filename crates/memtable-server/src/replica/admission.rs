//! Writes on their way to the sequencer, and how many bytes of them may wait.
//!
//! Invariant: what waits for one partition's sequencer is never more than [`QUEUE_BYTES_MAX`] (or a single write), and what finds no
//! room is refused before it is taken, so that it was certainly not executed.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use sextant_common::operation::WriteRequest;

use super::ReplySink;

/// Keys and values that may wait for a partition's sequencer, in bytes.
pub(super) const QUEUE_BYTES_MAX: usize = 64 * 1024 * 1024;

/// A write request on its way to the sequencer.
pub struct QueuedWrite {
    pub request: WriteRequest,
    pub share: QueueShare,
    /// On `Clock::holder_ns`: after this nobody waits for the answer any more.
    pub deadline_ns: u64,
    pub reply: ReplySink,
}

/// A share of the bytes that may wait for a sequencer; given back when dropped.
pub struct QueueShare {
    of: Arc<AtomicUsize>,
    pub bytes: usize,
}

impl QueueShare {
    /// None: there is no room. (A queue that is empty takes anything.)
    pub(super) fn take(of: &Arc<AtomicUsize>, bytes: usize, bytes_max: usize) -> Option<Self> {
        let share = Self { of: of.clone(), bytes };
        let before = of.fetch_add(bytes, Ordering::AcqRel);
        (before == 0 || before + bytes <= bytes_max).then_some(share)
    }
}

#[cfg(test)]
impl QueueShare {
    pub fn for_tests(bytes: usize) -> Self {
        Self { of: Arc::new(AtomicUsize::new(bytes)), bytes }
    }
}

impl Drop for QueueShare {
    fn drop(&mut self) {
        self.of.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_has_no_more_bytes_than_there_is_room_for_but_a_single_write_always_goes() {
        let waiting = Arc::new(AtomicUsize::new(0));
        let take = |bytes| QueueShare::take(&waiting, bytes, 100);
        let huge = take(500);
        assert!(huge.is_some() && take(1).is_none());
        drop(huge);
        let (first, second) = (take(60), take(40));
        assert!(first.is_some() && second.is_some() && take(1).is_none());
        drop(second);
        assert!(take(41).is_none() && take(40).is_some());
        drop(first);
        assert_eq!(waiting.load(Ordering::Acquire), 0, "whoever was refused holds nothing either");
    }
}
