//! What a member's Raft was told by heartbeats: not each has to reach it, as this node answers most of them itself.

use std::sync::atomic::{AtomicU64, Ordering};

/// So often at least Raft is told that the leader lives.
const TOLD_EVERY_NS: u64 = 250_000_000;

/// What Raft was last told by a heartbeat.
#[derive(Debug, Default)]
pub struct Told {
    /// Entries that are committed.
    commit: AtomicU64,
    /// Grantor's clock.
    at_ns: AtomicU64,
}

impl Told {
    /// Whether it has to be told.
    pub fn is_news(&self, commit: u64, now_ns: u64) -> bool {
        let since_ns = now_ns.saturating_sub(self.at_ns.load(Ordering::Relaxed));
        commit != self.commit.load(Ordering::Relaxed) || since_ns >= TOLD_EVERY_NS
    }

    /// It is told now.
    pub fn note(&self, commit: u64, now_ns: u64) {
        self.commit.store(commit, Ordering::Relaxed);
        self.at_ns.store(now_ns, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raft_is_told_what_is_new_and_now_and_then_that_the_leader_lives() {
        let told = Told::default();
        let start = 5 * TOLD_EVERY_NS;
        assert!(told.is_news(0, start), "it was told nothing yet");
        told.note(7, start);
        assert!(!told.is_news(7, start + TOLD_EVERY_NS - 1));
        assert!(told.is_news(7, start + TOLD_EVERY_NS));
        assert!(told.is_news(8, start));
    }
}
