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

/// Requests of which Raft is told one at a time.
#[derive(Debug)]
pub struct Hearing<R> {
    is_under_way: bool,
    /// The newest that came meanwhile.
    next: Option<R>,
}

impl<R> Default for Hearing<R> {
    fn default() -> Self {
        Self { is_under_way: false, next: None }
    }
}

impl<R> Hearing<R> {
    /// What to tell it now. None: after what is under way.
    pub fn begin(&mut self, request: R) -> Option<R> {
        if std::mem::replace(&mut self.is_under_way, true) {
            self.next = Some(request);
            return None;
        }
        Some(request)
    }

    /// What is under way has ended: what to tell it next.
    pub fn ended(&mut self) -> Option<R> {
        self.is_under_way = self.next.is_some();
        self.next.take()
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

    #[test]
    fn of_what_comes_while_raft_is_told_of_one_it_is_told_the_newest() {
        let mut hearing = Hearing::default();
        assert_eq!([1, 2, 3].map(|request| hearing.begin(request)), [Some(1), None, None]);
        assert_eq!([hearing.ended(), hearing.ended()], [Some(3), None]);
        assert_eq!(hearing.begin(4), Some(4));
    }
}
