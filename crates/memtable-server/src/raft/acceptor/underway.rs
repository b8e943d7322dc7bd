//! What is kept for appends that Raft was handed, until it has done with them.
//!
//! Owns: room in the log, from before Raft takes an append until it has answered. Whoever sent the append may go away in
//! between; Raft appends all the same, and cannot go on if the log then refuses. So what is not answered when nobody waits any
//! more is kept until Raft has done everything that it was handed before.

use std::collections::VecDeque;

use futures::future::BoxFuture;
use parking_lot::Mutex;

use crate::raft::Raft;

type Settle = Box<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>;

/// To be held by whoever hands appends to Raft *and* by whoever listens to its answers: only when both are gone, nothing more comes.
pub struct Underway<T: Send + 'static> {
    /// Of each append that is not answered, in order.
    kept: Mutex<VecDeque<T>>,
    /// Completes when Raft has done all that it was handed before.
    settle: Settle,
}

impl<T: Send + 'static> Underway<T> {
    pub fn at(raft: &Raft) -> Self {
        let raft = raft.clone();
        // Raft's core works its messages off in their order. If it has stopped, it appends nothing.
        Self::until(Box::new(move || {
            let raft = raft.clone();
            Box::pin(async move {
                let _ = raft.with_raft_state(|_| ()).await;
            })
        }))
    }

    fn until(settle: Settle) -> Self {
        Self { kept: Mutex::default(), settle }
    }

    /// An append is about to be handed over.
    pub fn keep(&self, what: T) {
        self.kept.lock().push_back(what);
    }

    /// The oldest one was answered: it is appended, or never will be.
    pub fn answered(&self) -> Option<T> {
        self.kept.lock().pop_front()
    }
}

impl<T: Send + 'static> Drop for Underway<T> {
    fn drop(&mut self) {
        let kept = std::mem::take(self.kept.get_mut());
        if kept.is_empty() {
            return;
        }
        // Without a runtime there is no Raft any more.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let settled = (self.settle)();
            runtime.spawn(async move {
                settled.await;
                drop(kept);
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::sync::Notify;

    use super::*;

    #[tokio::test]
    async fn what_is_not_answered_is_kept_until_raft_has_done_with_it() {
        let (settled, freed) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        /// Says when it is given back.
        struct Room(Arc<Notify>);
        impl Drop for Room {
            fn drop(&mut self) {
                self.0.notify_one();
            }
        }
        let raft = settled.clone();
        let underway = Arc::new(Underway::until(Box::new(move || {
            let raft = raft.clone();
            Box::pin(async move { raft.notified().await })
        })));
        let (answered, unanswered) = (Arc::new(Notify::new()), freed.clone());
        underway.keep(Room(answered.clone()));
        underway.keep(Room(unanswered));
        drop(underway.answered());
        answered.notified().await;
        // The stream of answers is gone; whoever hands over may still be at it.
        let hands_over = underway.clone();
        drop(underway);
        drop(hands_over);
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert!(futures::FutureExt::now_or_never(freed.notified()).is_none(), "Raft may still append");
        settled.notify_one();
        freed.notified().await;
    }
}
