//! Whether a request has left: the one thing that tells "certainly not executed" from "perhaps".
//!
//! Invariant: a request is sent or withdrawn, never both; whoever comes first decides.

use std::sync::atomic::{AtomicU64, Ordering};

const WAITING: u64 = 0;
const WITHDRAWN: u64 = 1;

/// Shared by the caller and whoever sends.
#[derive(Debug, Default)]
pub(crate) struct Slip(AtomicU64);

impl Slip {
    /// To be called right before the request leaves. False: it was withdrawn, and must not leave.
    pub fn send(&self, now_ns: u64) -> bool {
        let sent = now_ns.max(WITHDRAWN + 1);
        self.0.compare_exchange(WAITING, sent, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// True: it has not left and never will.
    pub fn withdraw(&self) -> bool {
        let before = self.0.compare_exchange(WAITING, WITHDRAWN, Ordering::AcqRel, Ordering::Acquire);
        before.is_ok() || before == Err(WITHDRAWN)
    }

    /// What was to carry it never left, nor will.
    pub fn take_back(&self) {
        self.0.store(WITHDRAWN, Ordering::Release);
    }

    /// When it left.
    pub fn sent_ns(&self) -> Option<u64> {
        Some(self.0.load(Ordering::Acquire)).filter(|at| *at > WITHDRAWN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_withdrawn_never_leaves_and_what_has_left_cannot_be_withdrawn() {
        let slip = Slip::default();
        assert_eq!(slip.sent_ns(), None);
        assert!(slip.withdraw() && slip.withdraw(), "twice is the same as once");
        assert!(!slip.send(7));
        let slip = Slip::default();
        assert!(slip.send(7) && !slip.send(8));
        assert!(!slip.withdraw());
        assert_eq!(slip.sent_ns(), Some(7));
        slip.take_back();
        assert!(slip.withdraw() && !slip.send(9) && slip.sent_ns().is_none());
    }
}
